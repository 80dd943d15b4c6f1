//! Puts a price on a call: input as counted, output as predicted, under the price list the policy selects.
//!
//! Never more output than the client's own cap times the answers it asks for; a call without a cap has no cap here
//! either. Never less than what the request insists on. A prediction never makes a request larger than its pool
//! admits: whether it is too large for good is for its input and its own words to say, not for a guess.

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
    /// Prices a call whose input was counted, for a pool that admits requests of at most so many tokens.
    #[must_use]
    pub fn new(
        call: &Call,
        input: Tokens,
        tenant: &TenantId,
        selection: &Selection,
        predictor: &Predictor,
        most: Limit<Tokens>,
    ) -> Self {
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
        let output = admissible(predictor.predict(&key), input, most).max(least);
        Self { expected: Usage::plain(input, output), output_cap, price: selection.price, key }
    }
}

/// A predicted output, as far as a request with this input may have it in a pool that admits at most so many tokens.
#[must_use]
pub fn admissible(predicted: Tokens, input: Tokens, most: Limit<Tokens>) -> Tokens {
    most.cap().map_or(predicted, |most| predicted.min(most.saturating_sub(input)))
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::Quote;
    use crate::costing::{Call, Effort, Predictor, Prompt};
    use crate::policy::model::{EffortFactors, Selection};
    use crate::units::{Bytes, ClassIndex, Limit, Model, PoolIndex, Price, TenantId, TokenWeight, Tokens, Weight};

    fn call(cap: Limit<Tokens>, choices: u32) -> Call {
        Call {
            model: "alias".into(),
            prompt: Prompt::default(),
            cap,
            least: Tokens::ZERO,
            choices: NonZeroU32::new(choices).expect("not zero"),
            effort: Effort::Unstated,
            streamed: false,
            bytes: Bytes::ZERO,
        }
    }

    fn selection() -> Selection {
        Selection {
            pool: PoolIndex::new(0),
            model: Model::from("m"),
            class: ClassIndex::new(0),
            weight: Weight::ONE,
            price: Price::new(TokenWeight::ONE, [TokenWeight::ONE; 5]),
        }
    }

    fn quote(cap: Limit<Tokens>, choices: u32, predictor: &Predictor) -> Quote {
        quote_within(cap, choices, predictor, Limit::Unlimited)
    }

    fn quote_within(cap: Limit<Tokens>, choices: u32, predictor: &Predictor, most: Limit<Tokens>) -> Quote {
        let tenant = TenantId::from("acme");
        Quote::new(&call(cap, choices), Tokens::new(100), &tenant, &selection(), predictor, most)
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
    fn a_poisoned_predictor_never_makes_a_request_too_large() {
        let mut predictor = Predictor::new(EffortFactors::NEUTRAL);
        let first = quote(Limit::Unlimited, 1, &predictor);
        for _ in 0..50 {
            predictor.learn(&first.key, Tokens::ZERO, Tokens::new(u64::MAX));
        }
        let within = |most: u64| {
            let most = Limit::AtMost(Tokens::new(most));
            quote_within(Limit::Unlimited, 128, &predictor, most).expected.total().get()
        };
        assert_eq!((within(1_000_000), within(150), within(100)), (1_000_000, 150, 100));
        assert_eq!(within(99), 100, "the input alone is too large, and stays so");
    }

    #[test]
    fn output_that_is_insisted_on_is_expected_for_every_choice() {
        let predictor = Predictor::new(EffortFactors::NEUTRAL);
        let forced = |least: u64| {
            let mut call = call(Limit::AtMost(Tokens::new(900)), 2);
            call.least = Tokens::new(least);
            let tenant = TenantId::from("acme");
            let most = Limit::Unlimited;
            Quote::new(&call, Tokens::new(100), &tenant, &selection(), &predictor, most).expected.output()
        };
        assert_eq!(forced(900), Tokens::new(1_800), "all of it");
        assert_eq!(forced(1), forced(0), "less than is expected anyway");
    }

    #[test]
    fn what_may_have_no_output_teaches_nothing_about_it() {
        let mut predictor = Predictor::new(EffortFactors::NEUTRAL);
        let before = quote(Limit::Unlimited, 1, &predictor).expected;
        let embedding = quote(Limit::AtMost(Tokens::ZERO), 1, &predictor);
        for _ in 0..50 {
            predictor.learn(&embedding.key, Tokens::ZERO, Tokens::ZERO);
        }
        assert_eq!(quote(Limit::Unlimited, 1, &predictor).expected, before);
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
