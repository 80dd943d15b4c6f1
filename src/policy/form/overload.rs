//! What protects an upstream that fails, as written.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Duration, Percentage};

/// When an upstream counts as failed, and for how long it is then left alone: no requests are sent to it, and newcomers
/// are refused with 503 (529 in Anthropic's dialect). Then one request at a time is tried, and when one goes well, more
/// and more are. Other statuses than those listed and clients that leave say nothing of an upstream. Where all failures
/// are one tenant's, that tenant alone is held back. See docs/breakers.md.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Breaker {
    /// So many failures trip it. No tenant makes up more than half of them. When left out: 5 where there is no `ratio`,
    /// else no number trips it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 4000), example = 5)]
    pub(crate) failures: Option<u32>,
    /// Such a part of the requests failing trips it. When left out: no part does.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Percentage", example = Percentage("50%".into()))]
    pub(crate) ratio: Option<Percentage>,
    /// Of how many requests at least `ratio` is a part. When left out: 20.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 4000), example = 20)]
    pub(crate) min_requests: Option<u32>,
    /// Within how long failures and requests are counted.
    pub(crate) within: Duration,
    /// The statuses that are failures: one, or a range with both its ends.
    #[schemars(length(max = 100))]
    pub(crate) statuses: Vec<String>,
    /// What else is a failure.
    #[schemars(length(max = 3))]
    pub(crate) also: Vec<Sign>,
    /// For how long it trips.
    pub(crate) trip_for: Duration,
    /// Whether a `Retry-After` of a failing answer decides instead for how long it trips, up to a week.
    pub(crate) accept_retry_after: bool,
    /// The statuses that say that a budget at the upstream is spent. They are no failures: the tenant they are said to,
    /// and the whole pool when they are said to a second one meanwhile, wait for as long as `Retry-After` says, or a
    /// second where it says nothing. Whoever waits keeps waiting, and the answer goes to its client as it is.
    #[schemars(length(max = 100))]
    pub(crate) limited: Vec<String>,
}

impl Default for Breaker {
    fn default() -> Self {
        Self {
            failures: None,
            ratio: None,
            min_requests: None,
            within: Duration("30s".into()),
            statuses: vec!["500-599".into()],
            also: vec![Sign::Timeout, Sign::Unreachable, Sign::EarlyEnd],
            trip_for: Duration("20s".into()),
            accept_retry_after: true,
            limited: vec!["429".into()],
        }
    }
}

/// A failure that is no status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Sign {
    /// The upstream did not begin its answer in time, or said nothing more of one.
    Timeout,
    /// It could not be reached, or broke the connection before it answered.
    Unreachable,
    /// Its answer began well and ended early, or with an error in it.
    EarlyEnd,
}

/// With every key.
pub(super) fn example_breaker() -> Breaker {
    let ratio = Some(Percentage("50%".into()));
    Breaker { failures: Some(5), ratio, min_requests: Some(20), ..Breaker::default() }
}

/// How many of a tenant's requests may be retries.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Retries {
    /// The part of the tenant's requests of the last minute that ended well.
    pub(crate) ratio: Percentage,
    /// So many in a minute in any case.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub(crate) floor: u32,
}

impl Default for Retries {
    fn default() -> Self {
        Self { ratio: Percentage("10%".into()), floor: 10 }
    }
}
