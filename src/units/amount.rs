//! Amounts that limits and budgets count: requests, tokens, service, money.
//!
//! One signed integer type for all of them, each in the smallest part it is reckoned in, so that holds, refunds and
//! debts are exact and a rule does not care what it counts. What an amount is of stands beside it, as a [`Measure`].

use std::fmt;
use std::ops::{Add, AddAssign, Sub, SubAssign};

use super::money::Price;
use super::tokens::{Tokens, Usage};

/// So much of something, in the smallest part of its [`Measure`]. Signed, since a debt is a number too; arithmetic
/// saturates.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Amount(i128);

impl Amount {
    /// Nothing.
    pub const ZERO: Self = Self(0);

    /// Wraps a number of smallest parts.
    #[must_use]
    pub const fn from_parts(parts: i128) -> Self {
        Self(parts)
    }

    /// The number of smallest parts.
    #[must_use]
    pub const fn parts(self) -> i128 {
        self.0
    }

    /// Whether this is more than nothing.
    #[must_use]
    pub const fn is_positive(self) -> bool {
        self.0 > 0
    }

    /// As a whole number of its units, rounded down, and none where it is a debt: what a header tells.
    #[must_use]
    pub fn whole(self, of: Measure) -> u64 {
        u64::try_from((self.0 / of.parts()).max(0)).unwrap_or(u64::MAX)
    }

    /// As a decimal number of its units, for display and statistics.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "for display and statistics only")]
    pub fn as_f64(self, of: Measure) -> f64 {
        self.0 as f64 / of.parts() as f64
    }

    /// The amount with what it is of, as a person would say it: `1200 tokens`, `0.25 of money`.
    #[must_use]
    pub fn of(self, measure: Measure) -> Measured {
        Measured { amount: self, measure }
    }
}

impl Add for Amount {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl Sub for Amount {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl AddAssign for Amount {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl SubAssign for Amount {
    fn sub_assign(&mut self, other: Self) {
        *self = *self - other;
    }
}

/// What a limit or a budget counts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Measure {
    /// Requests, whatever their size.
    Requests,
    /// Input and output tokens, cached ones too.
    Tokens,
    /// Input tokens, cached ones too.
    InputTokens,
    /// Output tokens, reasoning included.
    OutputTokens,
    /// Service, which is tokens by their weights, in millionths of a virtual token.
    Service,
    /// Money by the models' price lists, in millionths of a millionth.
    Money,
}

impl Measure {
    /// The word for it, in policies, headers and messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Requests => "requests",
            Self::Tokens => "tokens",
            Self::InputTokens => "input_tokens",
            Self::OutputTokens => "output_tokens",
            Self::Service => "service",
            Self::Money => "money",
        }
    }

    /// How many smallest parts one unit has.
    #[must_use]
    pub const fn parts(self) -> i128 {
        match self {
            Self::Requests | Self::Tokens | Self::InputTokens | Self::OutputTokens => 1,
            Self::Service => 1_000_000,
            Self::Money => 1_000_000_000_000,
        }
    }

    /// What one request with this usage comes to. A model without a price list costs no money.
    #[must_use]
    pub fn of(self, usage: &Usage, price: &Price, tariff: &Tariff) -> Amount {
        let tokens = |tokens: Tokens| Amount(i128::from(tokens.get()));
        match self {
            Self::Requests => Amount(1),
            Self::Tokens => tokens(usage.total()),
            Self::InputTokens => tokens(usage.input()),
            Self::OutputTokens => tokens(usage.output()),
            Self::Service => Amount(price.cost(usage).as_micros()),
            Self::Money => tariff.cost(usage),
        }
    }
}

/// An amount and what it is of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Measured {
    amount: Amount,
    measure: Measure,
}

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = self.amount.as_f64(self.measure);
        match self.measure {
            Measure::Requests if self.amount.0 == 1 => f.write_str("1 request"),
            Measure::Requests => write!(f, "{} requests", self.amount.0),
            Measure::Tokens => write!(f, "{} tokens", self.amount.0),
            Measure::InputTokens => write!(f, "{} input tokens", self.amount.0),
            Measure::OutputTokens => write!(f, "{} output tokens", self.amount.0),
            Measure::Service => write!(f, "{number:.1} virtual tokens"),
            Measure::Money => {
                let text = format!("{number:.6}");
                write!(f, "{} of money", text.trim_end_matches('0').trim_end_matches('.'))
            }
        }
    }
}

/// What a token of each kind costs in money, in millionths of a millionth. All zero where a model has no price list.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tariff {
    uncached_input: u64,
    cached_input: u64,
    cache_write: u64,
    visible_output: u64,
    reasoning_output: u64,
}

impl Tariff {
    /// Prices in money per million tokens, in this order: input, cached input, cache write, output, reasoning. Each is
    /// kept to a millionth; nothing where one of them is negative, not a number or beyond a million.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked to be in range")]
    pub fn per_million(prices: [f64; 5]) -> Option<Self> {
        let valid = prices.iter().all(|price| (0.0..=1e6).contains(price));
        let [uncached_input, cached_input, cache_write, visible_output, reasoning_output] =
            prices.map(|price| (price * 1e6).round() as u64);
        valid.then_some(Self { uncached_input, cached_input, cache_write, visible_output, reasoning_output })
    }

    /// The cost of this usage.
    #[must_use]
    pub fn cost(&self, usage: &Usage) -> Amount {
        let line = |tokens: Tokens, parts: u64| i128::from(tokens.get()) * i128::from(parts);
        Amount(
            line(usage.uncached_input, self.uncached_input)
                + line(usage.cached_input, self.cached_input)
                + line(usage.cache_write, self.cache_write)
                + line(usage.visible_output, self.visible_output)
                + line(usage.reasoning_output, self.reasoning_output),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::{Amount, Measure, Tariff, Tokens, Usage};

    #[test]
    fn money_is_exact_to_a_millionth_per_million_tokens() {
        let tariff = Tariff::per_million([0.6, 0.06, 0.75, 2.4, 2.4]).expect("valid");
        let usage = Usage { cached_input: Tokens::new(1_000), ..Usage::plain(Tokens::new(100), Tokens::new(50)) };
        let cost = tariff.cost(&usage);
        assert_eq!(cost, Amount::from_parts(100 * 600_000 + 1_000 * 60_000 + 50 * 2_400_000));
        assert_eq!(cost.of(Measure::Money).to_string(), "0.00024 of money");
        for bad in [f64::NAN, -1.0, 1e9, f64::INFINITY] {
            assert_eq!(Tariff::per_million([bad, 0.0, 0.0, 0.0, 0.0]), None);
        }
    }

    #[test]
    fn a_header_tells_no_debt_and_rounds_down() {
        assert_eq!(Amount::from_parts(-5).whole(Measure::Tokens), 0);
        assert_eq!(Amount::from_parts(1_999_999).whole(Measure::Service), 1);
        assert_eq!(Amount::from_parts(i128::MAX).whole(Measure::Tokens), u64::MAX);
    }
}
