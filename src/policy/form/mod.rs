//! The policy as it is written: one struct a mapping, one field a key, every default in one place.
//!
//! These structs are the single source of what a policy file may say. The reader's schema, the manual
//! (`docs/policy.md`), `policies/schema.json` and `policies/default.yaml` are all generated from them, and the
//! doc comment of a field is what an operator reads about that key. What cannot be said by a type
//! (that a name exists, that shares add up) is checked by [`parse`](super::parse).
//!
//! A key or value that is named in the plan but not built stands under `x-later`, not as a field: it is refused
//! as "not available in this build", and no struct holds a setting that does nothing.

mod cost;
mod identity;
mod limits;
mod overload;
mod pools;
mod rate_limit;
mod scheduling;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub(super) use cost::{Cost, Effort, MoneyPrice, TokenWeights};
pub(super) use identity::{ClassSource, Identity, Listener, NameSource, NotGranted, SessionSource, TenantSource};
pub(super) use limits::{Budget, Limit, Per, Period, WhenExceeded, WhenSpent};
pub(super) use overload::{Breaker, Retries, Sign};
pub(super) use pools::{Adapt, Alias, Engine, Orca, Pool, Queue};
pub(super) use rate_limit::{Domain, HitEntry, HitRule, HitsAre, Names, Unmatched};
pub(super) use scheduling::{Algorithm, Charge, Class, Fairness, Fanout, Tenant};

/// What Tallygate lets through, in which order, and what it refuses.
///
/// Every key but `version` has a default, so `version: 1` alone is a working policy. An unknown key is an error.
/// The order of every list has meaning: the first entry that fits decides.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Policy")]
pub(crate) struct Policy {
    /// The version of this format.
    #[schemars(extend("const" = 1))]
    pub(crate) version: u32,

    /// Who a request belongs to.
    #[serde(default)]
    pub(crate) identity: Identity,

    /// What tokens cost: the service a request is charged with.
    #[serde(default)]
    pub(crate) cost: Cost,

    /// How turns are given among those who wait.
    #[serde(default)]
    pub(crate) fairness: Fairness,

    /// Priority classes. A class is served before those of higher rank, but a class that is owed its `min_share`
    /// goes first.
    #[serde(default = "scheduling::default_classes")]
    #[schemars(length(min = 1, max = 100))]
    pub(crate) classes: Vec<Class>,

    /// The class of a request that does not ask for one its tenant may use. When left out: `standard` where there
    /// is a class of that name, else the first class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = &"standard")]
    pub(crate) default_class: Option<String>,

    /// What tenants are given. The first rule whose `match` fits a tenant decides. A tenant that no rule fits has
    /// weight 1 and the classes of a rule that does not list any.
    #[serde(default)]
    #[schemars(length(max = 10_000), example = scheduling::example_tenants())]
    pub(crate) tenants: Vec<Tenant>,

    /// Pools of serving capacity, each with its own window and queue. The first whose `models` fit serves a
    /// request; a model that fits none is answered with 404.
    #[serde(default = "pools::default_pools")]
    #[schemars(length(min = 1, max = 100))]
    pub(crate) pools: Vec<Pool>,

    /// How many requests of one session or tenant may be in flight at once. The excess waits, and while it waits
    /// nobody else is held up by it.
    #[serde(default)]
    pub(crate) fanout: Fanout,

    /// Rates. All that concern a request are checked together and then charged together: with what it is expected to
    /// use when it arrives, made true when it ends.
    #[serde(default)]
    #[schemars(length(max = 100), example = limits::example_limits())]
    pub(crate) limits: Vec<Limit>,

    /// Budgets, charged like rates. With `serve --ledger file:PATH` they survive restarts and crashes.
    #[serde(default)]
    #[schemars(length(max = 100), example = limits::example_budgets())]
    pub(crate) budgets: Vec<Budget>,

    /// The rate limit service (`envoy.service.ratelimit.v3`): what Envoy's descriptors count against. Each names one of
    /// `limits`, and shares it with the requests that come in by the other doors. A domain that is not here is an error.
    #[serde(default)]
    #[schemars(length(max = 100), example = rate_limit::example())]
    pub(crate) rate_limit: Vec<Domain>,

    /// How many of a tenant's requests may be retries: those that say so (`x-stainless-retry-count`), and the further
    /// attempts of an Envoy in front of the upstream, where its answers tell of them (`x-envoy-attempt-count`). The rest
    /// is refused with 429 `retry_budget`. Coming back when this gateway said so is no retry. When left out: as many as
    /// like to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Retries", example = Retries::default())]
    pub(crate) retries: Option<Retries>,

    /// What becomes of a request to a path that is not metered and has a body: multipart uploads, audio, batches,
    /// and whatever an upstream may add. Paths that are metered, reading requests and token counting are not
    /// concerned, nor are realtime sessions, which are refused.
    #[serde(default)]
    pub(crate) unmetered: Unmetered,

    /// The semantic cache.
    #[serde(default)]
    pub(crate) cache: Cache,
}

/// What becomes of a request that is not metered.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Unmetered {
    /// It is refused as unsupported: what is not read cannot be charged.
    #[default]
    Refuse,
    /// It passes to its pool's upstream, uncharged and without waiting, once its caller is identified.
    Pass,
}

/// The semantic cache.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Cache {
    /// Whether answers are reused.
    #[schemars(extend("x-later" = [true]))]
    pub(crate) enabled: bool,
}

/// A length of time with its unit, such as `500ms`, `10s`, `2m` or `1h 30m`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(extend("title" = "duration", "examples" = ["10s"]))]
pub(crate) struct Duration(pub(crate) String);

/// A part of the whole, such as `20%`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(extend("title" = "percentage", "examples" = ["20%"]))]
pub(crate) struct Percentage(pub(crate) String);

/// A name, in which `*` stands for any run of characters. Case matters.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(extend("title" = "pattern", "examples" = ["llama-*"], "minLength" = 1, "maxLength" = 256))]
pub(crate) struct Pattern(pub(crate) String);
