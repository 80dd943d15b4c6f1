//! How much output a request will probably produce.
//!
//! What it decides: the expected output tokens of a request before any of it exists. Fair charging, the
//! window and the predicted wait all use it; every one of them is made true at the end, so a wrong guess
//! costs evenness, never correctness.
//!
//! The rule. A mean per key, shrunk towards the mean of the next broader key, for the keys
//! all requests → model → (tenant, model) → (tenant, model, effort, cap bucket):
//! `mean_k = (sum_k + 3 × mean_broader) / (count_k + 3)`, in output tokens of one choice. Counts are rescaled
//! to at most 50 a key (200 for all requests together), so old behaviour fades: beyond that a new observation
//! weighs 1/51. Before anything is known the mean is 256. A narrowest key without any history multiplies the
//! broader mean by the policy's factor for its effort; with history the factor is in the observations already. The
//! prediction never exceeds the request's own cap, and choices multiply. The cap bucket is the cap's binary
//! order of magnitude: clients that ask for little get little, and the cap says so before the answer does.
//!
//! The shrinkage is the empirical-Bayes estimator in its simplest form: three observations' worth of belief
//! in the crowd, so one long answer from a stranger does not make all his next ones look long.
//!
//! What it learns from: completed requests only. An aborted answer says how patient the client was, not how
//! long the answer would have been, and whoever could teach it by aborting could make himself look cheap. Of one choice
//! never more than its cap, or a million tokens without one.
//!
//! Bounds. At most [`Predictor::MOST_KEYS`] keys at each level; the one longest without news is dropped, and
//! its requests fall back to the broader key. O(log keys) to learn, O(1) to predict. Deterministic: no chance,
//! no clock. It never learns from a prediction and never predicts less than one token a choice.

use std::num::NonZeroU32;

use crate::policy::model::EffortFactors;
use crate::units::{Limit, Model, TenantId, Tokens};

use super::error::{Score, Tally};
use super::recent::Recent;

/// Observations' worth of belief in the broader key.
const PRIOR_COUNT: f64 = 3.0;
/// The mean before anything is known, in tokens.
const PRIOR_MEAN: f64 = 256.0;
/// The most observations a key's mean stands for.
const MOST_OBSERVATIONS: f64 = 50.0;
/// The same for all requests together.
const MOST_OBSERVATIONS_GLOBAL: f64 = 200.0;

/// The most that is learnt of one choice without a cap: no model writes more in one go, and whoever says so must not
/// spoil what is expected of others.
const MOST_LEARNT: Tokens = Tokens::new(1_000_000);

/// How hard the caller asks the model to think.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Effort {
    /// The request does not say.
    #[default]
    Unstated,
    /// Not at all.
    None,
    /// As little as possible.
    Minimal,
    /// Little.
    Low,
    /// Some.
    Medium,
    /// Much.
    High,
    /// Very much.
    XHigh,
    /// As much as possible.
    Max,
}

impl Effort {
    /// By its name in the providers' APIs; `None` for a word that is not one.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Some(match name {
            "none" => Self::None,
            "minimal" => Self::Minimal,
            "low" => Self::Low,
            "medium" => Self::Medium,
            "high" => Self::High,
            "xhigh" => Self::XHigh,
            "max" => Self::Max,
            _ => return None,
        })
    }

    /// How many times the usual output to expect where there is no history, as the policy says.
    fn factor(self, factors: &EffortFactors) -> f64 {
        let factor = match self {
            Self::Unstated => return 1.0,
            Self::None => factors.none,
            Self::Minimal => factors.minimal,
            Self::Low => factors.low,
            Self::Medium => factors.medium,
            Self::High => factors.high,
            Self::XHigh => factors.xhigh,
            Self::Max => factors.max,
        };
        factor.as_f64()
    }
}

/// What a prediction depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PredictKey {
    /// Whose request.
    pub tenant: TenantId,
    /// The model, after aliases.
    pub model: Model,
    /// How hard to think.
    pub effort: Effort,
    /// The most output one choice may have.
    pub cap: Limit<Tokens>,
    /// How many answers are asked for: `n`, `best_of`, a batch of prompts.
    pub choices: NonZeroU32,
}

impl PredictKey {
    /// A plain request: one choice, no cap, no stated effort.
    #[must_use]
    pub fn plain(tenant: TenantId, model: Model) -> Self {
        Self { tenant, model, effort: Effort::Unstated, cap: Limit::Unlimited, choices: NonZeroU32::MIN }
    }

    fn narrow(&self) -> NarrowKey {
        let bucket = self.cap.cap().map(|cap| u64::BITS - cap.get().leading_zeros());
        (self.tenant.clone(), self.model.clone(), self.effort, bucket)
    }
}

type NarrowKey = (TenantId, Model, Effort, Option<u32>);

/// A mean over at most so many observations.
#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    sum: f64,
    count: f64,
}

impl Mean {
    fn add(&mut self, value: f64, most: f64) {
        self.sum += value;
        self.count += 1.0;
        if self.count > most {
            self.sum *= most / self.count;
            self.count = most;
        }
    }

    fn towards(self, broader: f64) -> f64 {
        (self.sum + PRIOR_COUNT * broader) / (self.count + PRIOR_COUNT)
    }
}

/// How good the predictions were.
#[derive(Clone, Debug, PartialEq)]
pub struct Accuracy {
    /// Over all requests.
    pub overall: Score,
    /// Per model, by name.
    pub models: Vec<(Model, Score)>,
}

/// The predictor.
#[derive(Clone, Debug)]
pub struct Predictor {
    efforts: EffortFactors,
    global: Mean,
    models: Recent<Model, (Mean, Tally)>,
    tenants: Recent<(TenantId, Model), Mean>,
    narrow: Recent<NarrowKey, Mean>,
    overall: Tally,
}

impl Predictor {
    /// The most tenants' and narrower keys remembered, at each level.
    pub const MOST_KEYS: usize = 65_536;
    /// The most models remembered.
    pub const MOST_MODELS: usize = 1_024;

    /// One that knows nothing yet but what a policy says of stated efforts.
    #[must_use]
    pub fn new(efforts: EffortFactors) -> Self {
        Self::with_most_keys(Self::MOST_KEYS, efforts)
    }

    fn with_most_keys(most: usize, efforts: EffortFactors) -> Self {
        Self {
            efforts,
            global: Mean::default(),
            models: Recent::new(most.min(Self::MOST_MODELS)),
            tenants: Recent::new(most),
            narrow: Recent::new(most),
            overall: Tally::default(),
        }
    }

    /// The output to expect, all choices together.
    #[must_use]
    pub fn predict(&self, key: &PredictKey) -> Tokens {
        let global = self.global.towards(PRIOR_MEAN);
        let model = self.models.get(&key.model).map_or(global, |(mean, _)| mean.towards(global));
        let tenant = (key.tenant.clone(), key.model.clone());
        let tenant = self.tenants.get(&tenant).map_or(model, |mean| mean.towards(model));
        let one = match self.narrow.get(&key.narrow()) {
            Some(mean) => mean.towards(tenant),
            None => tenant * key.effort.factor(&self.efforts),
        };
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "`as` saturates, and that is meant"
        )]
        let one = Tokens::new(one.round().max(1.0) as u64);
        let one = key.cap.cap().map_or(one, |cap| one.min(cap));
        one.times(key.choices.get().into())
    }

    /// Learns what a completed request produced, all choices together, and how far the prediction was off.
    pub fn learn(&mut self, key: &PredictKey, predicted: Tokens, actual: Tokens) {
        if key.cap == Limit::AtMost(Tokens::ZERO) {
            // What may have no output says nothing about how long answers are.
            return;
        }
        #[expect(clippy::cast_precision_loss, reason = "a mean needs no 53rd bit")]
        let [whole, most] = [actual, key.cap.cap().unwrap_or(MOST_LEARNT)].map(|tokens| tokens.get() as f64);
        let one = (whole / f64::from(key.choices.get())).min(most);
        self.global.add(one, MOST_OBSERVATIONS_GLOBAL);
        self.models.entry(key.model.clone(), |(mean, tally)| {
            mean.add(one, MOST_OBSERVATIONS);
            tally.add(predicted, actual);
        });
        let tenant = (key.tenant.clone(), key.model.clone());
        self.tenants.entry(tenant, |mean| mean.add(one, MOST_OBSERVATIONS));
        self.narrow.entry(key.narrow(), |mean| mean.add(one, MOST_OBSERVATIONS));
        self.overall.add(predicted, actual);
    }

    /// How good its predictions were so far, over all requests.
    #[must_use]
    pub fn overall(&self) -> Score {
        self.overall.score()
    }

    /// How good its predictions were so far.
    #[must_use]
    pub fn accuracy(&self) -> Accuracy {
        let mut models: Vec<_> = self.models.iter().map(|(model, (_, tally))| (model.clone(), tally.score())).collect();
        models.sort_by(|a, b| a.0.cmp(&b.0));
        Accuracy { overall: self.overall.score(), models }
    }
}

#[cfg(test)]
mod tests;
