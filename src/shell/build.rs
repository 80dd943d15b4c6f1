//! Builds a gate from a policy and nothing else, for whoever puts the core into a server of their own.
//!
//! What the `tallygate` program sets up by its options is here by defaults: books in memory, the latest decisions
//! remembered, the engines that the policy names watched.

use std::hash::{BuildHasher, RandomState};
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::ledger::{Store, StoreError};
use crate::observe::{Decisions, Keep, Metrics};
use crate::policy::{self, Policy};
use crate::units::Bytes;

use super::gate::Gate;

/// How much is remembered of decisions unless something else is said.
const REMEMBERED: Keep = Keep { most: 20_000, bytes: Bytes::new(32 * 1024 * 1024) };

/// A gate about to be started.
#[derive(Debug)]
pub struct GateBuilder {
    policy: Policy,
    keep: Keep,
    store: Option<Box<dyn Store>>,
}

/// Why a gate cannot start.
#[derive(Debug, thiserror::Error)]
pub enum GateError {
    /// What it would keep cannot be read.
    #[error("the ledger cannot be read: {0}")]
    Ledger(#[from] StoreError),
    /// What it would measure cannot be set up.
    #[error("metrics cannot be set up: {0}")]
    Metrics(String),
    /// What it would watch cannot be watched.
    #[error("the engines cannot be watched: {0}")]
    Engines(String),
}

impl Gate {
    /// A gate for the policy in a file. Paths in it are relative to it.
    ///
    /// # Errors
    /// Every mistake in the policy, each at its file, line and column.
    pub fn from_file(path: impl AsRef<Path>) -> Result<GateBuilder, policy::Mistakes> {
        Ok(Self::builder(policy::load(path.as_ref())?))
    }

    /// A gate for a policy written out, which names no other files.
    ///
    /// # Errors
    /// Every mistake in the policy, each at its line and column.
    pub fn from_text(text: &str) -> Result<GateBuilder, policy::Mistakes> {
        Ok(Self::builder(policy::parse_alone("policy", text)?))
    }

    /// A gate for a policy.
    #[must_use]
    pub fn builder(policy: Policy) -> GateBuilder {
        GateBuilder { policy, keep: REMEMBERED, store: None }
    }
}

impl GateBuilder {
    /// Remembers so much of decisions.
    #[must_use]
    pub fn remembering(mut self, keep: Keep) -> Self {
        self.keep = keep;
        self
    }

    /// Keeps what budgets grant in a store, and counts what it kept before as used.
    #[must_use]
    pub fn keeping(mut self, store: Box<dyn Store>) -> Self {
        self.store = Some(store);
        self
    }

    /// Starts it. Needs a tokio runtime with time, in which it lives as long as somebody holds it.
    ///
    /// # Errors
    /// When its ledger cannot be read, or its engines cannot be watched.
    pub fn start(self) -> Result<Gate, GateError> {
        let Self { policy, keep, store } = self;
        let policy = Arc::new(policy);
        let metrics = Metrics::new(policy.clone()).map_err(|error| GateError::Metrics(error.to_string()))?;
        let decisions = Decisions::new(keep);
        let gate = match store {
            None => Gate::start(policy, metrics, decisions, seed(), epoch()),
            Some(store) => Gate::start_keeping(policy, metrics, decisions, (seed(), epoch()), store)?,
        };
        gate.watch_engines(seed()).map_err(GateError::Engines)?;
        Ok(gate)
    }
}

/// A number nobody can foresee: what a map's hasher is seeded with.
#[must_use]
pub fn seed() -> u64 {
    RandomState::new().hash_one(())
}

/// Distinguishes this start of the process from others: the second it happened in.
fn epoch() -> u32 {
    let secs = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    u32::try_from(secs & u64::from(u32::MAX)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::{Gate, GateBuilder, Keep};
    use crate::units::Bytes;

    #[tokio::test]
    async fn a_policy_is_all_it_takes() {
        let built = Gate::from_text("version: 1").expect("a policy");
        let gate = built.remembering(Keep { most: 1, bytes: Bytes::new(1_000) }).start().expect("a gate");
        assert!(gate.look(|seen| seen.engine.requests().is_empty()).expect("not broken"));
    }

    #[test]
    fn every_mistake_is_told_with_its_place() {
        let wrong = |built: Result<GateBuilder, _>| built.map(drop).expect_err("a mistake");
        let text = wrong(Gate::from_text("version: 1\nfairnes: {}")).to_string();
        assert!(text.contains("policy:2:1") && text.contains("did you mean `fairness`"), "{text}");
        let text = wrong(Gate::from_text("version: 1\nidentity: {tenant: [{api_key: keys.yaml}]}")).to_string();
        assert!(text.contains("keys.yaml:1:1") && text.contains("file of its own"), "{text}");
        let text = wrong(Gate::from_file("/nowhere/policy.yaml")).to_string();
        assert!(text.contains("/nowhere/policy.yaml"), "{text}");
    }
}
