//! Limits and budgets, as written.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Duration, Pattern, Percentage};

/// A rate: how much may be used in how long. Give exactly one of `requests`, `tokens`, `input_tokens`, `output_tokens`
/// and `service`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Limit {
    /// Its name in headers, messages and metrics: letters, digits, `-`, `_` and `.`.
    pub(crate) name: String,
    /// Whose use counts together.
    #[serde(default)]
    pub(crate) per: Per,
    /// So many requests in each period.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000_000_000_000u64))]
    pub(crate) requests: Option<u64>,
    /// So many tokens, input and output, cached ones too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000_000_000_000u64))]
    pub(crate) tokens: Option<u64>,
    /// So many input tokens, cached ones too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000_000_000_000u64))]
    pub(crate) input_tokens: Option<u64>,
    /// So many output tokens, reasoning included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000_000_000_000u64))]
    pub(crate) output_tokens: Option<u64>,
    /// So much service: tokens by the weights of `cost`, in virtual tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000_000_000_000u64))]
    pub(crate) service: Option<u64>,
    /// The period.
    pub(crate) every: Duration,
    /// How much may be used at once after a pause. When left out: as much as is granted in one period.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000_000_000_000u64), example = 300_000)]
    pub(crate) burst: Option<u64>,
    /// What becomes of a request beyond it.
    #[serde(default)]
    pub(crate) when_exceeded: WhenExceeded,
    /// Only requests of these tenants. When left out: of all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1000))]
    pub(crate) tenants: Vec<Pattern>,
    /// Only requests for these models, by their names after aliases. When left out: for all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1000))]
    pub(crate) models: Vec<Pattern>,
    /// Only requests in these classes. When left out: in all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100))]
    pub(crate) classes: Vec<String>,
    /// Only requests for these pools. When left out: for all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100))]
    pub(crate) pools: Vec<String>,
}

/// Whose use counts together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Per {
    /// Each tenant's, over all pools and classes.
    #[default]
    Tenant,
    /// Each user's, as `identity.user` names them, below its tenant. A request that names none is not concerned.
    User,
    /// Each session's, below its tenant. A request that names none is not concerned.
    Session,
    /// Each task's, as `identity.task` names them, below its tenant. A request that names none is not concerned.
    Task,
    /// Each class's.
    Class,
    /// Each model's, by its name after aliases.
    Model,
    /// Each pool's.
    Pool,
    /// All together.
    Global,
}

/// What becomes of a request that exceeds a limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum WhenExceeded {
    /// It is refused with 429 `rate_limited`, and told the moment at which the limit would allow it.
    #[default]
    Refuse,
    /// It waits in its queue until the limit allows it; others of the same tenant or session wait behind it, and nobody
    /// else does. For limits per tenant and per session.
    Queue,
    /// It competes in this class, and does not count against the limit.
    Demote(String),
    /// It is let through and counted; that it would have been refused is a metric and part of its decision.
    Shadow,
}

/// A budget: how much may be used in a period of the calendar, or in the life of a session or a task. Give exactly one
/// of `requests`, `tokens`, `service` and `money`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Budget {
    /// Its name in headers, messages, metrics and the ledger: letters, digits, `-`, `_` and `.`. Under a new name a
    /// budget begins anew.
    pub(crate) name: String,
    /// Whose use counts together. When left out: the session's or the task's where that is the period, else the
    /// tenant's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = Per::Tenant)]
    pub(crate) per: Option<Per>,
    /// So many requests in each period.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000_000_000_000u64))]
    pub(crate) requests: Option<u64>,
    /// So many tokens, input and output, cached ones too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000_000_000_000u64))]
    pub(crate) tokens: Option<u64>,
    /// So much service: tokens by the weights of `cost`, in virtual tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000_000_000_000u64))]
    pub(crate) service: Option<u64>,
    /// So much money, by the `price` of each model in `cost.models`, which every model then needs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.000_001, max = 1e12))]
    pub(crate) money: Option<f64>,
    /// The period.
    pub(crate) period: Period,
    /// The zone whose calendar decides when an hour, a day or a month begins, such as `Europe/Berlin`.
    #[serde(default = "utc")]
    #[schemars(length(min = 1, max = 64))]
    pub(crate) zone: String,
    /// What becomes of a request that it no longer covers.
    #[serde(default)]
    pub(crate) when_spent: WhenSpent,
    /// From which part of it on every answer carries a warning, `x-tallygate-budget-warning`. When left out: 80% and
    /// 95%.
    #[serde(default = "most_of_it")]
    #[schemars(length(max = 8))]
    pub(crate) warn_at: Vec<Percentage>,
    /// Only requests of these tenants. When left out: of all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1000))]
    pub(crate) tenants: Vec<Pattern>,
    /// Only requests for these models, by their names after aliases. When left out: for all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1000))]
    pub(crate) models: Vec<Pattern>,
    /// Only requests in these classes. When left out: in all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100))]
    pub(crate) classes: Vec<String>,
    /// Only requests for these pools. When left out: for all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100))]
    pub(crate) pools: Vec<String>,
}

fn utc() -> String {
    "UTC".into()
}

fn most_of_it() -> Vec<Percentage> {
    vec![Percentage("80%".into()), Percentage("95%".into())]
}

/// For how long a budget is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Period {
    /// An hour of the calendar.
    Hour,
    /// A day of the calendar.
    Day,
    /// A month of the calendar.
    Month,
    /// As long as the session goes on.
    Session,
    /// As long as the task goes on.
    Task,
}

/// What becomes of a request that a budget no longer covers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum WhenSpent {
    /// It is refused with 429 `budget_spent`, and told when the next period begins where one does.
    #[default]
    Refuse,
    /// It competes in this class, and does not count against the budget.
    Demote(String),
    /// It is let through and counted; that it would have been refused is a metric and part of its decision.
    Shadow,
}

pub(super) fn example_limits() -> Vec<Limit> {
    vec![Limit {
        name: "tenant-tokens".into(),
        per: Per::Tenant,
        requests: None,
        tokens: Some(200_000),
        input_tokens: None,
        output_tokens: None,
        service: None,
        every: Duration("1m".into()),
        burst: Some(300_000),
        when_exceeded: WhenExceeded::Refuse,
        tenants: Vec::new(),
        models: Vec::new(),
        classes: Vec::new(),
        pools: Vec::new(),
    }]
}

pub(super) fn example_budgets() -> Vec<Budget> {
    vec![Budget {
        name: "monthly".into(),
        per: Some(Per::Tenant),
        requests: None,
        tokens: Some(2_000_000_000),
        service: None,
        money: None,
        period: Period::Month,
        zone: utc(),
        when_spent: WhenSpent::Refuse,
        warn_at: most_of_it(),
        tenants: Vec::new(),
        models: Vec::new(),
        classes: Vec::new(),
        pools: Vec::new(),
    }]
}
