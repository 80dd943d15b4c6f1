//! From the policy as written to the policy as meant, or to everything that is wrong with it.
//!
//! The types of [`form`](super::form) have been checked when this runs. Here is what they cannot say: that a
//! name exists and is given once, that shares fit into the whole, that an address is one, that no entry of a
//! list is cut off by one before it. Nothing is built unless everything is right; a part that is not yields a
//! mistake at its place and `None`, and the rest is checked on.

mod cost;
mod identity;
mod limits;
mod overload;
mod pools;
mod rate_limit;
mod scheduling;
mod values;

#[cfg(test)]
mod tests;

use std::fmt::Display;
use std::path::Path;

use sha2::{Digest, Sha256};

use crate::units::Limit;
use crate::yaml::{self, Mistake, Mistakes, Partly, Position, Positions};

use super::keys::KeysText;
use super::model::{Fanout, Policy, Unmetered};
use super::{form, keys};

pub(super) use values::tenant;

/// Reads a policy file and the files it names, whose paths are relative to it.
///
/// # Errors
/// Every mistake in all of them, each at its file, line and column.
pub fn load(path: &Path) -> Result<Policy, Mistakes> {
    load_written(path).map(|(policy, _)| policy)
}

/// The same, and what was read.
///
/// # Errors
/// Every mistake in all of them, each at its file, line and column.
pub fn load_written(path: &Path) -> Result<(Policy, Written), Mistakes> {
    let text = yaml::read(path)?;
    let folder = path.parent().unwrap_or(Path::new(""));
    let mut digest = Sha256::new_with_prefix(&text);
    let policy = parse(&path.display().to_string(), &text, |file| {
        let keys = keys::read(&folder.join(file))?;
        digest.update(&keys.text);
        Ok(keys)
    })?;
    Ok((policy, Written { text, sha256: digest.finalize().into() }))
}

/// A policy as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// The text of its file. It holds no secret: keys stand in files of their own, as hashes, and an upstream's address
    /// with a password in it is refused.
    pub text: String,
    /// SHA-256 of that text followed by the texts of the files of keys it names, in their order.
    pub sha256: [u8; 32],
}

impl Written {
    /// A text that names no other file.
    #[must_use]
    pub fn new(text: &str) -> Self {
        Self { text: text.to_owned(), sha256: Sha256::digest(text).into() }
    }
}

/// Reads a policy from its text. `name` is what mistakes in it are reported under, and `read_keys` fetches the
/// text of a file of API keys that it names.
///
/// # Errors
/// Every mistake in the policy and in its files of keys, each at its file, line and column.
pub fn parse(
    name: &str,
    text: &str,
    mut read_keys: impl FnMut(&str) -> Result<KeysText, Mistakes>,
) -> Result<Policy, Mistakes> {
    let Partly { loaded, mistakes } = yaml::load_partly::<form::Policy>(name, text);
    let Some(loaded) = loaded else { return Err(mistakes.sorted()) };
    let mut checks = Checks { positions: &loaded.positions, mistakes, elsewhere: Mistakes::none() };
    let policy = checks.policy(&loaded.value, &mut read_keys);
    let Checks { mut mistakes, elsewhere, .. } = checks;
    mistakes.append(elsewhere);
    mistakes.into_result()?;
    Ok(policy.expect("a part is missing only where a mistake was reported"))
}

/// Reads a policy from its text, which names no other files.
///
/// # Errors
/// Every mistake in it, each at its line and column; that it names a file of keys is one.
pub fn parse_alone(name: &str, text: &str) -> Result<Policy, Mistakes> {
    parse(name, text, |file| {
        let message = "a policy that is written out cannot name other files; keep it in a file of its own".into();
        Err(Mistakes::from(Mistake { file: file.into(), position: Position::START, path: String::new(), message }))
    })
}

/// What has been found so far.
struct Checks<'form> {
    positions: &'form Positions,
    /// In the policy's own file.
    mistakes: Mistakes,
    /// In files it names.
    elsewhere: Mistakes,
}

impl Checks<'_> {
    fn policy(
        &mut self,
        form: &form::Policy,
        read_keys: &mut dyn FnMut(&str) -> Result<KeysText, Mistakes>,
    ) -> Option<Policy> {
        let identity = self.identity(&form.identity, read_keys);
        let cost = self.cost(&form.cost);
        let fairness = scheduling::fairness(&form.fairness);
        let classes = self.classes(&form.classes);
        let default_class = self.default_class(form);
        let tenants = self.tenants(form, default_class);
        let pools = self.pools(&form.pools);
        let limits = self.limits(form);
        let budgets = self.budgets(form);
        let rate_limit = self.rate_limit(form, limits.as_deref().unwrap_or_default());
        let fanout = Fanout { per_session: form.fanout.per_session.into(), per_tenant: form.fanout.per_tenant.into() };
        let retries = self.retries(form.retries.as_ref());
        self.ceilings(form);
        Some(Policy {
            identity: identity?,
            cost: cost?,
            fairness,
            classes: classes?,
            default_class: default_class?,
            tenants: tenants?,
            pools: pools?,
            fanout,
            limits: limits?,
            budgets: budgets?,
            rate_limit: rate_limit?,
            retries: retries?,
            unmetered: match form.unmetered {
                form::Unmetered::Refuse => Unmetered::Refuse,
                form::Unmetered::Pass => Unmetered::Pass,
            },
        })
    }

    /// Notes a mistake about the part at a JSON Pointer.
    fn mistake(&mut self, pointer: &str, message: impl Into<String>) {
        self.mistakes.push(self.positions.mistake(pointer, message));
    }

    /// The value, or a mistake about the part it was to be made from.
    fn gate<T>(&mut self, pointer: &str, result: Result<T, impl Display>) -> Option<T> {
        result.map_err(|error| self.mistake(pointer, error.to_string())).ok()
    }

    fn line_of(&self, pointer: &str) -> usize {
        self.positions.position_of(pointer).line
    }

    /// Notes each entry that can never decide anything: it repeats one before it, or one before it fits everything.
    /// `pointer` gives the place of the n-th entry's pattern.
    fn unreachable(&mut self, patterns: &[&form::Pattern], pointer: impl Fn(usize) -> String) {
        let fits_all = |pattern: &form::Pattern| pattern.0.bytes().all(|byte| byte == b'*');
        for (index, pattern) in patterns.iter().enumerate() {
            let before = &patterns[..index];
            let (first, why) = if let Some(first) = before.iter().position(|other| fits_all(other)) {
                (first, "fits everything")
            } else if let Some(first) = before.iter().position(|other| other.0 == pattern.0) {
                (first, "is the same")
            } else {
                continue;
            };
            let line = self.line_of(&pointer(first));
            self.mistake(&pointer(index), format!("is never reached: the entry on line {line} {why}"));
        }
    }

    /// Notes each text that was given before.
    fn repeated<'text>(
        &mut self,
        texts: impl Iterator<Item = &'text str>,
        what: &str,
        pointer: impl Fn(usize) -> String,
    ) {
        let mut seen: Vec<&str> = Vec::new();
        for (index, text) in texts.enumerate() {
            if let Some(first) = seen.iter().position(|other| *other == text) {
                let line = self.line_of(&pointer(first));
                self.mistake(&pointer(index), format!("the {what} `{text}` is given twice; first on line {line}"));
            }
            seen.push(text);
        }
    }
}

/// All of them, if none is missing.
fn all<T>(parts: Vec<Option<T>>) -> Option<Vec<T>> {
    parts.into_iter().collect()
}

/// A cap in a type of its own.
fn cap<F, T>(written: Option<F>, wrap: impl Fn(F) -> T) -> Limit<T> {
    written.map(wrap).map_or(Limit::Unlimited, Limit::AtMost)
}
