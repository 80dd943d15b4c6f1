//! `tallygate check`: is this a policy, and if not, everything that is wrong with it.
//!
//! All mistakes of all files are told in one run, each as `file:line:column: what`, the form editors and CI systems
//! turn into links. A good file gets one line that says what it amounts to.

use std::io::{self, Write};
use std::path::PathBuf;

use crate::policy;
use crate::policy::model::{Adapt, Policy, Pool};
use crate::units::Limit;

use super::Outcome;

/// Check policy files: all mistakes at once, with file, line and column
#[derive(Debug, clap::Args)]
pub(super) struct Check {
    /// The policy files
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
}

impl Check {
    pub(super) fn run(self) -> anyhow::Result<Outcome> {
        let (mut out, mut err) = (io::stdout().lock(), io::stderr().lock());
        let mut outcome = Outcome::Success;
        for path in &self.paths {
            match policy::load(path) {
                Ok(policy) => writeln!(out, "{}: ok: {}", path.display(), summary(&policy))?,
                Err(mistakes) => {
                    outcome = Outcome::Failure;
                    writeln!(err, "{mistakes}")?;
                }
            }
        }
        Ok(outcome)
    }
}

/// What a policy amounts to, in one line.
fn summary(policy: &Policy) -> String {
    let pools: Vec<String> = policy.pools.iter().map(pool).collect();
    format!(
        "{}, {}, {}",
        counted(policy.classes.len(), "class", "classes"),
        counted(policy.tenants.iter().filter(|rule| rule.written).count(), "tenant rule", "tenant rules"),
        pools.join(", "),
    )
}

fn pool(pool: &Pool) -> String {
    let (none, found) = match pool.adapt {
        Adapt::Fixed => ("no limit", ""),
        Adapt::Auto => ("what the engine is found to take", "what the engine is found to take but at most "),
    };
    let window = match (pool.window.requests, pool.window.tokens) {
        (Limit::Unlimited, Limit::Unlimited) => return format!("pool {} with {none} in flight", pool.name),
        (Limit::AtMost(requests), Limit::Unlimited) => format!("{requests} requests"),
        (Limit::Unlimited, Limit::AtMost(tokens)) => format!("{tokens} tokens"),
        (Limit::AtMost(requests), Limit::AtMost(tokens)) => format!("{requests} requests and {tokens} tokens"),
    };
    format!("pool {} with {found}{window} in flight", pool.name)
}

fn counted(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}
