//! Puts a price on a call: input as counted, output as predicted, under the price list the policy selects.
//!
//! Never more output than the client's own cap times the answers it asks for; a call without a cap has no cap here
//! either. Never less than what the request insists on.

use crate::policy::model::Selection;
use crate::units::{Limit, Price, TenantId, Tokens, Usage};

use super::call::Call;
use super::predict::{PredictKey, Predictor};

/// A priced call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quote {
    /// Input as counted, output as predicted.
    pub expected: Usage,
    /// The most output all choices together can produce, where the client states a cap.
    pub output_cap: Limit<Tokens>,
    /// The price list.
    pub price: Price,
    /// What the prediction was made from, to learn from its outcome.
    pub key: PredictKey,
}

impl Quote {
    /// Prices a call whose input was counted.
    #[must_use]
    pub fn new(call: &Call, input: Tokens, tenant: &TenantId, selection: &Selection, predictor: &Predictor) -> Self {
        let key = PredictKey {
            tenant: tenant.clone(),
            model: selection.model.clone(),
            effort: call.effort,
            cap: call.cap,
            choices: call.choices,
        };
        let output_cap = match call.cap {
            Limit::Unlimited => Limit::Unlimited,
            Limit::AtMost(cap) => Limit::AtMost(cap.times(u64::from(call.choices.get()))),
        };
        let least = call.least.times(u64::from(call.choices.get()));
        let output = predictor.predict(&key).max(least);
        Self { expected: Usage::plain(input, output), output_cap, price: selection.price, key }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::Quote;
    use crate::costing::{Call, Effort, Predictor, Prompt};
    use crate::policy::model::{EffortFactors, Selection};
    use crate::units::{Bytes, ClassIndex, Limit, Model, PoolIndex, Price, TenantId, TokenWeight, Tokens, Weight};

    fn quote(cap: Limit<Tokens>, choices: u32, predictor: &Predictor) -> Quote {
        let call = Call {
            model: "alias".into(),
            prompt: Prompt::default(),
            cap,
            least: Tokens::ZERO,
            choices: NonZeroU32::new(choices).expect("not zero"),
            effort: Effort::Unstated,
            streamed: false,
            bytes: Bytes::ZERO,
        };
        let selection = Selection {
            pool: PoolIndex::new(0),
            model: Model::from("m"),
            class: ClassIndex::new(0),
            weight: Weight::ONE,
            price: Price::new(TokenWeight::ONE, [TokenWeight::ONE; 5]),
        };
        Quote::new(&call, Tokens::new(100), &TenantId::from("acme"), &selection, predictor)
    }

    #[test]
    fn a_prediction_never_exceeds_the_cap_of_all_choices() {
        let predictor = Predictor::new(EffortFactors::NEUTRAL);
        let capped = quote(Limit::AtMost(Tokens::new(50)), 3, &predictor);
        assert_eq!(capped.output_cap, Limit::AtMost(Tokens::new(150)));
        assert_eq!(capped.expected.output(), Tokens::new(150));
        assert_eq!(quote(Limit::AtMost(Tokens::ZERO), 1, &predictor).expected.output(), Tokens::ZERO);
        assert_eq!(quote(Limit::Unlimited, 3, &predictor).output_cap, Limit::Unlimited);
    }

    #[test]
    fn what_was_learnt_under_the_quotes_key_changes_the_next_quote() {
        let mut predictor = Predictor::new(EffortFactors::NEUTRAL);
        let first = quote(Limit::Unlimited, 1, &predictor);
        assert_eq!((first.expected.input(), first.key.model.as_str()), (Tokens::new(100), "m"), "after aliases");
        for _ in 0..50 {
            predictor.learn(&first.key, first.expected.output(), Tokens::new(10));
        }
        assert!(quote(Limit::Unlimited, 1, &predictor).expected.output() < Tokens::new(20));
    }
}
