//! What tokens cost: the weights of each kind, what a model costs beside others, and what a stated effort changes.

use crate::units::{Tariff, TokenWeight};

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
            let tariff = model.price.as_ref().map(|price| self.tariff(&format!("/cost/models/{index}/price"), price));
            Some(ModelCost {
                matches: matches?,
                scale: scale?,
                tariff: tariff.map_or(Some(None), |tariff| tariff.map(Some))?,
            })
        });
        let models = all(models.collect());
        let effort = self.effort(&form.effort);
        Some(Cost { weights: weights?, models: models?, effort: effort? })
    }

    fn tariff(&mut self, pointer: &str, price: &form::MoneyPrice) -> Option<Tariff> {
        let form::MoneyPrice { input, cached_input, cache_write, output, reasoning } = *price;
        let or_input = |price: Option<f64>| price.unwrap_or(input);
        let prices = [input, or_input(cached_input), or_input(cache_write), output, reasoning.unwrap_or(output)];
        self.gate(pointer, Tariff::per_million(prices).ok_or("each price is a number from 0 to 1000000"))
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
