//! Puts a price on a call: input as counted, output as predicted, under the price list the policy selects.
//!
//! Never more output than the client's own cap times the answers it asks for; a call without a cap has no cap here
//! either. Cached input is taken out of the counted input and can never exceed it.

use crate::policy::model::Selection;
use crate::units::{Limit, Price, Tokens, Usage};

use super::call::Call;

/// What is expected of a call besides its counted input.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Forecast {
    /// Output of all choices together.
    pub output: Tokens,
    /// Input that a prefix cache will serve.
    pub cached_input: Tokens,
}

/// A priced call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quote {
    /// Input as counted, output as predicted.
    pub expected: Usage,
    /// The most output all choices together can produce, where the client states a cap.
    pub output_cap: Limit<Tokens>,
    /// The price list.
    pub price: Price,
}

impl Quote {
    /// Prices a call whose input was counted.
    #[must_use]
    pub fn new(call: &Call, input: Tokens, forecast: Forecast, selection: &Selection) -> Self {
        let output_cap = match call.cap {
            Limit::Unlimited => Limit::Unlimited,
            Limit::AtMost(cap) => Limit::AtMost(cap.times(u64::from(call.choices.get()))),
        };
        let output = output_cap.cap().map_or(forecast.output, |cap| cap.min(forecast.output));
        let cached_input = forecast.cached_input.min(input);
        let expected = Usage {
            uncached_input: input.saturating_sub(cached_input),
            cached_input,
            visible_output: output,
            ..Usage::default()
        };
        Self { expected, output_cap, price: selection.price }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::{Forecast, Quote};
    use crate::costing::{Call, Prompt};
    use crate::policy::model::Selection;
    use crate::units::{Bytes, ClassIndex, Limit, Model, PoolIndex, Price, TokenWeight, Tokens, Weight};

    fn quote(cap: Limit<Tokens>, choices: u32, forecast: Forecast) -> Quote {
        let call = Call {
            model: "m".into(),
            prompt: Prompt::default(),
            cap,
            choices: NonZeroU32::new(choices).expect("not zero"),
            effort: None,
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
        Quote::new(&call, Tokens::new(100), forecast, &selection)
    }

    fn tokens(output: u64, cached_input: u64) -> Forecast {
        Forecast { output: Tokens::new(output), cached_input: Tokens::new(cached_input) }
    }

    #[test]
    fn a_prediction_never_exceeds_the_cap_of_all_choices() {
        let capped = quote(Limit::AtMost(Tokens::new(50)), 3, tokens(400, 0));
        assert_eq!(capped.output_cap, Limit::AtMost(Tokens::new(150)));
        assert_eq!(capped.expected.output(), Tokens::new(150));
        assert_eq!(quote(Limit::AtMost(Tokens::ZERO), 1, tokens(400, 0)).expected.output(), Tokens::ZERO);
        assert_eq!(quote(Limit::Unlimited, 3, tokens(400, 0)).expected.output(), Tokens::new(400));
    }

    #[test]
    fn cached_input_is_part_of_the_input_counted() {
        let expected = quote(Limit::Unlimited, 1, tokens(1, 1_000)).expected;
        assert_eq!((expected.uncached_input, expected.cached_input), (Tokens::ZERO, Tokens::new(100)));
        let expected = quote(Limit::Unlimited, 1, tokens(1, 96)).expected;
        assert_eq!((expected.uncached_input, expected.cached_input), (Tokens::new(4), Tokens::new(96)));
    }
}
