//! What tokens cost: the weights of each kind, what a model costs beside others, and what a stated effort changes.

use crate::units::TokenWeight;

use super::super::Pattern;
use super::super::model::{Cost, EffortFactors, ModelCost, TokenWeights};
use super::{Checks, all, form};

impl Checks<'_> {
    pub(super) fn cost(&mut self, form: &form::Cost) -> Option<Cost> {
        let weights = self.weights(&form.weights);
        let patterns: Vec<_> = form.models.iter().map(|model| &model.matches).collect();
        self.unreachable(&patterns, |index| format!("/cost/models/{index}/match"));
        let models = form.models.iter().enumerate().map(|(index, model)| {
            let matches = self.gate(&format!("/cost/models/{index}/match"), Pattern::new(&model.matches.0));
            let scale = self.factor(&format!("/cost/models/{index}/scale"), model.scale);
            Some(ModelCost { matches: matches?, scale: scale? })
        });
        let models = all(models.collect());
        let effort = self.effort(&form.effort);
        Some(Cost { weights: weights?, models: models?, effort: effort? })
    }

    fn factor(&mut self, pointer: &str, value: f64) -> Option<TokenWeight> {
        self.gate(pointer, TokenWeight::new(value))
    }

    fn weights(&mut self, form: &form::TokenWeights) -> Option<TokenWeights> {
        let mut weight = |key, value| self.factor(&format!("/cost/weights/{key}"), value);
        let weights = TokenWeights {
            input: weight("input", form.input)?,
            cached_input: weight("cached_input", form.cached_input)?,
            cache_write: weight("cache_write", form.cache_write)?,
            output: weight("output", form.output)?,
            reasoning: weight("reasoning", form.reasoning)?,
        };
        if weights.input.millionths() == 0 && weights.output.millionths() == 0 {
            self.mistake(
                "/cost/weights",
                "input and output cannot both cost 0: nobody's share could be told from another's",
            );
        }
        Some(weights)
    }

    fn effort(&mut self, form: &form::Effort) -> Option<EffortFactors> {
        let mut factor = |key, value| self.factor(&format!("/cost/effort/{key}"), value);
        Some(EffortFactors {
            none: factor("none", form.none)?,
            minimal: factor("minimal", form.minimal)?,
            low: factor("low", form.low)?,
            medium: factor("medium", form.medium)?,
            high: factor("high", form.high)?,
            xhigh: factor("xhigh", form.xhigh)?,
            max: factor("max", form.max)?,
        })
    }
}
