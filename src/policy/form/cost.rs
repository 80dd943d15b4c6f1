//! What tokens cost, as written.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Pattern;

/// What tokens cost: the service a request is charged with.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Cost {
    /// What a token of each kind costs. The kinds do not overlap: cached input is no part of `input`.
    pub(crate) weights: TokenWeights,

    /// Models whose tokens cost more or less than others'. The first entry whose `match` fits decides; a model
    /// that none fits has scale 1.
    #[schemars(length(max = 1000), example = example_models())]
    pub(crate) models: Vec<ModelCost>,

    /// How many times the usual output to expect of a request that states a reasoning effort, until its own kind
    /// has been observed.
    pub(crate) effort: Effort,
}

/// What a token of each kind costs.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct TokenWeights {
    /// A token of input that has to be processed.
    #[schemars(range(min = 0, max = 1000))]
    pub(crate) input: f64,
    /// A token of input read from a prefix cache.
    #[schemars(range(min = 0, max = 1000))]
    pub(crate) cached_input: f64,
    /// A token of input written to a prefix cache, where the upstream reports that.
    #[schemars(range(min = 0, max = 1000))]
    pub(crate) cache_write: f64,
    /// A token of output that the caller sees.
    #[schemars(range(min = 0, max = 1000))]
    pub(crate) output: f64,
    /// A token of output spent on reasoning.
    #[schemars(range(min = 0, max = 1000))]
    pub(crate) reasoning: f64,
}

impl Default for TokenWeights {
    fn default() -> Self {
        Self { input: 1.0, cached_input: 0.1, cache_write: 1.25, output: 2.0, reasoning: 2.0 }
    }
}

/// A model's cost relative to others.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ModelCost {
    /// Which models, by their names after aliases.
    #[serde(rename = "match")]
    pub(crate) matches: Pattern,
    /// How many times the weights a token of these models costs.
    #[serde(default = "one")]
    #[schemars(range(min = 0.001, max = 1000))]
    pub(crate) scale: f64,
    /// What their tokens cost in money. It counts against budgets of money, and nowhere else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) price: Option<MoneyPrice>,
}

fn one() -> f64 {
    1.0
}

/// What tokens cost in money, for a million of each kind. Which currency is yours to say; it must be one for all.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct MoneyPrice {
    /// Input that has to be processed.
    #[schemars(range(min = 0, max = 1_000_000))]
    pub(crate) input: f64,
    /// Input read from a prefix cache. When left out: as `input`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1_000_000))]
    pub(crate) cached_input: Option<f64>,
    /// Input written to a prefix cache. When left out: as `input`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1_000_000))]
    pub(crate) cache_write: Option<f64>,
    /// Output that the caller sees.
    #[schemars(range(min = 0, max = 1_000_000))]
    pub(crate) output: f64,
    /// Output spent on reasoning. When left out: as `output`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1_000_000))]
    pub(crate) reasoning: Option<f64>,
}

fn example_models() -> Vec<ModelCost> {
    let price = MoneyPrice { input: 0.6, cached_input: Some(0.06), cache_write: None, output: 2.4, reasoning: None };
    vec![ModelCost { matches: Pattern("llama-70b*".into()), scale: 4.0, price: Some(price) }]
}

/// A factor for each reasoning effort.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Effort {
    /// No reasoning.
    #[schemars(range(min = 0.001, max = 1000))]
    pub(crate) none: f64,
    /// As little as possible.
    #[schemars(range(min = 0.001, max = 1000))]
    pub(crate) minimal: f64,
    /// Little.
    #[schemars(range(min = 0.001, max = 1000))]
    pub(crate) low: f64,
    /// Some.
    #[schemars(range(min = 0.001, max = 1000))]
    pub(crate) medium: f64,
    /// Much.
    #[schemars(range(min = 0.001, max = 1000))]
    pub(crate) high: f64,
    /// Very much.
    #[schemars(range(min = 0.001, max = 1000))]
    pub(crate) xhigh: f64,
    /// As much as possible.
    #[schemars(range(min = 0.001, max = 1000))]
    pub(crate) max: f64,
}

impl Default for Effort {
    fn default() -> Self {
        Self { none: 0.3, minimal: 0.5, low: 0.7, medium: 1.0, high: 2.0, xhigh: 3.0, max: 4.0 }
    }
}
