//! What protects an upstream that fails, and whoever waits for it.

use crate::units::{Share, Span, Status, StatusRange};

/// When an upstream counts as failed, and for how long it is then left alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Breaker {
    /// So many failures trip it, where a number is set.
    pub failures: Option<u32>,
    /// Such a part of the requests failing trips it, where one is set.
    pub ratio: Option<FailureRatio>,
    /// Within how long.
    pub within: Span,
    /// The statuses that are failures.
    pub statuses: Vec<StatusRange>,
    /// What else is a failure.
    pub signs: Vec<FailureSign>,
    /// For how long it trips.
    pub trip_for: Span,
    /// What becomes of an upstream's own word on when to come back.
    pub retry_after: UpstreamsWord,
    /// The statuses that say that a budget at the upstream is spent.
    pub limited: Vec<StatusRange>,
}

impl Breaker {
    /// Whether an answer with this status is a failure.
    #[must_use]
    pub fn is_failure(&self, status: Status) -> bool {
        self.statuses.iter().any(|range| range.contains(status))
    }

    /// Whether an answer with this status says that a budget is spent.
    #[must_use]
    pub fn is_limited(&self, status: Status) -> bool {
        self.limited.iter().any(|range| range.contains(status))
    }
}

/// A part of the requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailureRatio {
    /// Which part of them fails.
    pub share: Share,
    /// Of how many at least.
    pub of_at_least: u32,
}

/// A failure that is no status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureSign {
    /// No answer in time, or nothing more of one.
    Timeout,
    /// No connection, or one that broke before the answer.
    Unreachable,
    /// An answer that began well and ended early, or with an error in it.
    EarlyEnd,
}

/// What becomes of an upstream's Retry-After.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpstreamsWord {
    /// It decides for how long the breaker trips.
    Accepted,
    /// Nothing.
    Ignored,
}

/// How many of a tenant's requests may be retries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retries {
    /// The part of the successes of the last minute.
    pub ratio: Share,
    /// So many in a minute in any case. At least one.
    pub floor: u32,
}
