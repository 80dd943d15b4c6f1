//! `tallygate envoy-check`: will this Envoy let Tallygate do its work, and if not, what will go wrong and where.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde_json::{Value, json};

use crate::envoy_check::{Expected, Finding, Level, Report, check};
use crate::policy::model::TenantSource;
use crate::policy::{self, Policy};
use crate::settings::Door;
use crate::units::{Limit, Span};
use crate::yaml::{MOST_BYTES, Mistake, Mistakes, Position};

use super::Outcome;

/// The headers a key may come in.
const KEYS: [&str; 2] = ["authorization", "x-api-key"];

/// Check an Envoy configuration: what in it will keep Tallygate from doing its work, and the fix
///
/// FILE is a bootstrap file (YAML or JSON), what `/config_dump?include_eds` of Envoy's admin address says, or a file of
/// xDS resources. Every finding says where, what will go wrong, and what to do. Exits 0 when nothing is an error, 1
/// when something is. docs/envoy-check.md lists all that can be found.
#[derive(Debug, clap::Args)]
pub(super) struct EnvoyCheck {
    /// The configuration; `-` reads it from standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The policy whose waits, queues and identities it must fit; the default one otherwise
    #[arg(long, value_name = "PATH")]
    policy: Option<PathBuf>,
    /// A cluster that is Tallygate's; otherwise told by its name, address or port. May be given several times
    #[arg(long = "cluster", value_name = "NAME")]
    clusters: Vec<String>,
    /// The port of Tallygate's gRPC server
    #[arg(long, value_name = "PORT", default_value_t = 9001)]
    port: u16,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl EnvoyCheck {
    pub(super) fn run(self) -> anyhow::Result<Outcome> {
        let policy = match &self.policy {
            Some(path) => policy::load(path),
            None => policy::parse("default policy", "version: 1", |file| Err(no_keys(file))),
        };
        let policy = match policy {
            Ok(policy) => policy,
            Err(mistakes) => {
                writeln!(io::stderr().lock(), "{mistakes}")?;
                return Ok(Outcome::Failure);
            }
        };
        let text = read(&self.file).with_context(|| format!("cannot read {}", self.file.display()))?;
        let name = if self.file == Path::new("-") { "stdin".into() } else { self.file.display().to_string() };
        let report = match check(&name, &text, &self.expected(&policy)) {
            Ok(report) => report,
            Err(mistakes) => {
                writeln!(io::stderr().lock(), "{mistakes}")?;
                return Ok(Outcome::Failure);
            }
        };
        let mut out = io::stdout().lock();
        if self.json {
            writeln!(out, "{:#}", to_json(&name, &report))?;
        } else {
            // What a rule is about is told once, however many routes break it.
            let mut told = BTreeSet::new();
            for finding in &report {
                if told.insert(finding.rule.name) {
                    writeln!(out, "{finding}")?;
                } else {
                    writeln!(out, "{}", finding.headline())?;
                }
            }
            writeln!(out, "{}", summary(&name, &report))?;
        }
        Ok(if report.is_good() { Outcome::Success } else { Outcome::Failure })
    }

    fn expected(&self, policy: &Policy) -> Expected {
        let door = Door::default();
        let (mut headers, mut namespaces) = (Vec::new(), Vec::new());
        for source in &policy.identity.tenant {
            match source {
                TenantSource::Header(header) => headers.push(header.as_str().to_owned()),
                TenantSource::ApiKey(_) => headers.extend(KEYS.map(str::to_owned)),
                TenantSource::Metadata(key) => namespaces.push(key.namespace.clone()),
                TenantSource::Fallback(_) => {}
            }
        }
        namespaces.dedup();
        let running = sum(policy.pools.iter().map(|pool| pool.window.requests.cap().map(u64::from).into()));
        let waiting = sum(policy.pools.iter().map(|pool| pool.queue.pool.requests.cap().map(u64::from).into()));
        Expected {
            clusters: self.clusters.clone(),
            port: self.port,
            longest_wait: longest(policy),
            most_held: sum([running, waiting].into_iter()),
            most_running: running,
            body_most: door.body_most,
            begin_within: door.begin_within,
            identity_headers: headers,
            identity_namespaces: namespaces,
        }
    }
}

/// The text of a file, or of standard input, within the bound.
fn read(path: &Path) -> io::Result<String> {
    let limit = MOST_BYTES as u64 + 1;
    let mut text = String::new();
    if path == Path::new("-") {
        io::stdin().lock().take(limit).read_to_string(&mut text)?;
    } else {
        File::open(path)?.take(limit).read_to_string(&mut text)?;
    }
    Ok(text)
}

/// The default policy names no file of keys.
fn no_keys(file: &str) -> Mistakes {
    let message = "no file of keys is read for the default policy".into();
    Mistake { file: file.into(), position: Position::START, path: String::new(), message }.into()
}

/// The longest that a request of any class may wait.
fn longest(policy: &Policy) -> Limit<Span> {
    let caps: Option<Vec<Span>> = policy.classes.iter().map(|class| class.max_wait.cap()).collect();
    caps.map(|caps| caps.into_iter().max().unwrap_or_default()).into()
}

/// Caps of several together.
fn sum(caps: impl Iterator<Item = Limit<u64>>) -> Limit<u64> {
    caps.map(Limit::cap).sum::<Option<u64>>().into()
}

fn summary(name: &str, report: &Report) -> String {
    let [errors, warnings, notes] =
        [Level::Error, Level::Warning, Level::Note].map(|level| (level, report.count(level)));
    let counted = [errors, warnings, notes].map(|(level, count)| {
        let many = if count == 1 { "" } else { "s" };
        format!("{count} {level}{many}")
    });
    let more = if report.unlisted() > 0 { format!(", and {} more", report.unlisted()) } else { String::new() };
    let word = if report.is_good() { "ok" } else { "will go wrong" };
    format!("{name}: {word}: {}{more}", counted.join(", "))
}

fn to_json(name: &str, report: &Report) -> Value {
    let finding = |finding: &Finding| {
        json!({
            "rule": finding.rule.name,
            "level": finding.rule.level.to_string(),
            "line": finding.position.line,
            "column": finding.position.column,
            "path": finding.path,
            "found": finding.found,
            "harm": finding.rule.harm,
            "fix": finding.rule.fix,
        })
    };
    json!({
        "file": name,
        "ok": report.is_good(),
        "findings": report.iter().map(finding).collect::<Vec<_>>(),
        "unlisted": report.unlisted(),
    })
}
