//! What the gates find that protect an upstream in trouble, retry budget and breaker, as rows and sentences.

use serde::Serialize;

use crate::admission::{BreakerFound, BreakerStage, RetriesFound, RetryCount, Subject, Try};
use crate::units::{Instant, Span};

use super::words;

#[derive(Debug, Serialize)]
pub(super) struct RetriesRow {
    /// `first`, `told` or `again`.
    which: &'static str,
    /// Its tenant's in the last minute, and how many there may be; nothing where that is not limited.
    retries: Option<u32>,
    allowed: Option<u32>,
}

#[derive(Debug, Serialize)]
pub(super) struct BreakerRow {
    key: String,
    /// How the upstream is treated; nothing where the pool has no breaker.
    pool: Option<&'static str>,
    /// How the tenant's requests are, beyond that.
    tenant: Option<&'static str>,
    /// For how long nothing of its is let through, where that is known.
    shut_for_s: Option<f64>,
}

/// What the retry budget says.
pub(super) fn retries(found: RetriesFound) -> (String, RetriesRow) {
    let (which, is) = match found.which {
        Try::First => ("first", "it does not say that it is a retry"),
        Try::Told => ("told", "it comes back since it was told to, which is no retry"),
        Try::Again => ("again", "it says that it is a retry"),
    };
    let says = match found.budget {
        Some(RetryCount { retries, allowed }) => {
            format!("{is}; its tenant had {retries} retries in the last minute, of at most {allowed} (retries)")
        }
        None => format!("{is}; how many there may be is not limited (no retries)"),
    };
    let (retries, allowed) = (found.budget.map(|count| count.retries), found.budget.map(|count| count.allowed));
    (says, RetriesRow { which, retries, allowed })
}

/// What the breaker says.
pub(super) fn breaker(subject: &Subject, found: BreakerFound, now: Instant) -> (String, BreakerRow) {
    let key = words::breaker_key(subject.pool);
    let left = [found.pool, found.tenant].into_iter().filter_map(BreakerStage::until).max();
    let left = left.map(|until| until.since(now));
    let says = match (found.watched, found.tenant, found.pool) {
        (false, _, _) => format!("whether the upstream fails is not watched (no {key})"),
        (true, BreakerStage::Serving, stage) => format!("the upstream is {} ({key})", how(stage, now)),
        (true, own, stage) => format!(
            "the upstream is {}, and what it gets of this tenant's requests is {} ({key})",
            how(stage, now),
            how(own, now)
        ),
    };
    let name = |stage: BreakerStage| found.watched.then(|| stage.name());
    let shut_for_s = left.map(Span::as_secs_f64);
    (says, BreakerRow { key, pool: name(found.pool), tenant: name(found.tenant), shut_for_s })
}

fn how(stage: BreakerStage, now: Instant) -> String {
    match stage {
        BreakerStage::Serving => "sent whatever fits".into(),
        BreakerStage::Returning { most } => format!("well again, and sent at most {most} at once for now"),
        BreakerStage::Paused { until } => format!("sent nothing for {}, since a budget is spent", until.since(now)),
        BreakerStage::Tripped { until } => format!("sent nothing for {}, since it failed", until.since(now)),
        BreakerStage::Probing => "tried with one request at a time".into(),
    }
}
