//! Turns, classes, tenants and fan-out, as written.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Duration, Pattern, Percentage};

/// How turns are given among those who wait.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Fairness {
    /// Whose turn it is.
    pub(crate) algorithm: Algorithm,
    /// When a request's cost is added to its tenant's tally.
    pub(crate) charge: Charge,
}

/// Whose turn it is.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Algorithm {
    /// Virtual token counters: whoever has received least for their weight. Being idle earns no credit.
    #[default]
    Vtc,
    /// First come, first served. For comparison: one tenant's backlog delays everybody.
    Fcfs,
    /// One request of each tenant in turn. For comparison: blind to how large requests are.
    RoundRobin,
    /// Whoever has received least, idle time counted as credit. For comparison: a newcomer may starve the others.
    LeastCounter,
}

/// When a request's cost is added to its tenant's tally.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Charge {
    /// Input and predicted output when it is dispatched, made true when it ends.
    #[default]
    Predicted,
    /// Input when it is dispatched, output as it streams.
    Streamed,
    /// All of it when it ends.
    Completion,
}

/// A priority class.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Class {
    /// Its name: letters, digits, `-`, `_` and `.`.
    pub(crate) name: String,
    /// Its place in the order: lower goes first. No two classes have the same.
    pub(crate) rank: u32,
    /// The longest a request may wait for dispatch. It is refused at once when the predicted wait is longer. When
    /// left out: as long as its client does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Duration")]
    pub(crate) max_wait: Option<Duration>,
    /// The part of a pool's service that this class is owed while it has work, whatever its rank.
    #[serde(default = "nothing")]
    pub(crate) min_share: Percentage,
    /// The most of a pool's window that requests of this class may have in flight, in requests and in tokens, however
    /// idle the others are; one request may always. What is more waits, and nobody else is held up by it. What a class
    /// is owed and does not ask for is lent to the others until it does; this is how not to lend all of it. When left
    /// out: all of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Percentage", example = Percentage("80%".into()))]
    pub(crate) max_share: Option<Percentage>,
}

fn nothing() -> Percentage {
    Percentage("0%".into())
}

pub(super) fn default_classes() -> Vec<Class> {
    let class = |name: &str, rank, max_wait: &str, min_share: &str| Class {
        name: name.into(),
        rank,
        max_wait: Some(Duration(max_wait.into())),
        min_share: Percentage(min_share.into()),
        max_share: None,
    };
    vec![class("interactive", 0, "10s", "0%"), class("standard", 1, "30s", "20%"), class("batch", 2, "10m", "5%")]
}

/// What one or more tenants are given.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Tenant {
    /// Which tenants.
    #[serde(rename = "match")]
    pub(crate) matches: Pattern,
    /// The tenant's share relative to others in its class: weight 4 receives four times what weight 1 does, while
    /// both have work.
    #[serde(default = "one")]
    #[schemars(range(min = 0.001, max = 1_000_000))]
    pub(crate) weight: f64,
    /// The classes the tenant may use; it gets the first when it may not use the default class and asks for none
    /// of these. When left out: the default class and every class of higher rank.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Vec<String>", length(min = 1, max = 100))]
    pub(crate) classes: Option<Vec<String>>,
}

fn one() -> f64 {
    1.0
}

pub(super) fn example_tenants() -> Vec<Tenant> {
    let tenant = |matches: &str, weight, classes: &[&str]| Tenant {
        matches: Pattern(matches.into()),
        weight,
        classes: Some(classes.iter().map(|class| (*class).to_owned()).collect()),
    };
    vec![tenant("acme", 4.0, &["interactive", "standard", "batch"]), tenant("*", 1.0, &["standard", "batch"])]
}

/// Caps on requests in flight at once.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Fanout {
    /// Of one session. What is more waits inside the session, and nothing is refused for it. Where it is 2 or more,
    /// one of the slots stays for the agent that leads the session, however many others it started. A request that
    /// names no session has no such cap. When left out: no cap.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1), example = 8)]
    pub(crate) per_session: Option<u32>,
    /// Of one tenant, over all pools and classes. When left out: no cap.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1), example = 64)]
    pub(crate) per_tenant: Option<u32>,
}
