//! What the rate limit service is asked, as written.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A domain of Envoy's rate limits, and what descriptors in it count against.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Domain {
    /// The domain, as the filter's configuration has it.
    #[schemars(length(min = 1, max = 256))]
    pub(crate) domain: String,
    /// What becomes of a descriptor that no rule fits.
    #[serde(default)]
    pub(crate) unmatched: Unmatched,
    /// Which descriptors count against which limit. All that fit one count.
    #[schemars(length(min = 1, max = 100))]
    pub(crate) rules: Vec<HitRule>,
}

/// What becomes of a descriptor that no rule fits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Unmatched {
    /// The call is an error that names it, or a typing mistake would be a limit less. What Envoy does then is its
    /// filter's `failure_mode_deny`.
    #[default]
    Refuse,
    /// It is allowed, and counts against nothing.
    Pass,
}

/// Descriptors that count against a limit: those with exactly these entries, in any order.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct HitRule {
    /// The limit, by its name in `limits`. One that refuses or shadows: nothing can wait or be demoted here.
    pub(crate) limit: String,
    /// Its entries. They must name what the limit counts per, and what it is restricted to.
    #[schemars(length(min = 1, max = 16))]
    pub(crate) entries: Vec<HitEntry>,
    /// What hits are. When left out: `asked` for a limit of requests, else `used`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) hits: Option<HitsAre>,
}

/// One entry of a descriptor.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct HitEntry {
    /// Its key.
    #[schemars(length(min = 1, max = 256))]
    pub(crate) key: String,
    /// Only with this value. Without this and `is`, with any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub(crate) value: Option<String>,
    /// What its value names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) is: Option<Names>,
}

/// What the value of an entry names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Names {
    /// The tenant.
    Tenant,
    /// A user of the tenant.
    User,
    /// A session of the tenant.
    Session,
    /// A task of the tenant.
    Task,
    /// The class, by its name in `classes`.
    Class,
    /// The model, before aliases or after.
    Model,
    /// The pool, by its name in `pools`.
    Pool,
}

/// What hits are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum HitsAre {
    /// What a request asks for: counted where the limit allows it.
    Asked,
    /// What was used already: counted whatever is left, and over the limit where nothing was. None at all
    /// (`hits_addend: 0`) only asks whether anything is left.
    Used,
}

pub(super) fn example() -> Vec<Domain> {
    let entry = |key: &str, is| HitEntry { key: key.into(), value: None, is: Some(is) };
    let cost = HitEntry { key: "cost".into(), value: Some("tokens".into()), is: None };
    let entries = vec![entry("tenant", Names::Tenant), cost];
    let rules = vec![HitRule { limit: "tenant-tokens".into(), entries, hits: Some(HitsAre::Used) }];
    vec![Domain { domain: "llm".into(), unmatched: Unmatched::Refuse, rules }]
}
