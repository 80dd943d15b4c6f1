//! Virtual tokens, the currency of fairness, and the price list that turns usage into them.
//!
//! Everything here is an exact integer in millionths of a virtual token. Costs are sums of products of
//! integers, so "reserved = settled + refunded + live" can be checked with `==` and never drifts.

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Neg, Sub, SubAssign};

use super::tokens::{TokenWeight, Usage, Weight};

/// An amount of service, in millionths of a virtual token. Signed: a debt is a number too.
///
/// 128 bits hold the whole life of any process: the largest single cost is below 2¹⁰⁷ (2⁶⁴ tokens at the
/// greatest price), and saturating arithmetic keeps even absurd sums in order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct VirtualTokens(i128);

const MICROS: i128 = 1_000_000;

impl VirtualTokens {
    /// Nothing.
    pub const ZERO: Self = Self(0);
    /// Less than anything.
    pub const MIN: Self = Self(i128::MIN);
    /// More than anything.
    pub const MAX: Self = Self(i128::MAX);

    /// Whole virtual tokens.
    #[must_use]
    pub const fn whole(count: u64) -> Self {
        Self(count as i128 * MICROS)
    }

    /// Millionths of a virtual token.
    #[must_use]
    pub const fn from_micros(micros: i128) -> Self {
        Self(micros)
    }

    /// Millionths of a virtual token.
    #[must_use]
    pub const fn as_micros(self) -> i128 {
        self.0
    }

    /// As a decimal, for display and statistics.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "for display and statistics only")]
    pub fn as_f64(self) -> f64 {
        self.0 as f64 / 1e6
    }

    /// What this service adds to the counter of someone of that weight: `cost / weight`, rounded down to a
    /// millionth.
    #[must_use]
    pub fn over(self, weight: Weight) -> Self {
        Self(self.0.saturating_mul(1_000).div_euclid(i128::from(weight.thousandths())))
    }

    /// This much for each unit of a summed weight, which is given in thousandths; the inverse of [`over`](Self::over).
    #[must_use]
    pub fn times_thousandths(self, thousandths: u64) -> Self {
        Self(self.0.saturating_mul(i128::from(thousandths)) / 1_000)
    }

    /// Whether this is more than nothing.
    #[must_use]
    pub const fn is_positive(self) -> bool {
        self.0 > 0
    }
}

impl Add for VirtualTokens {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl Sub for VirtualTokens {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl Neg for VirtualTokens {
    type Output = Self;
    fn neg(self) -> Self {
        Self(self.0.saturating_neg())
    }
}

impl AddAssign for VirtualTokens {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl SubAssign for VirtualTokens {
    fn sub_assign(&mut self, other: Self) {
        *self = *self - other;
    }
}

impl Sum for VirtualTokens {
    fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
        iter.fold(Self::ZERO, Add::add)
    }
}

impl fmt::Debug for VirtualTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}vt", self.as_f64())
    }
}

impl fmt::Display for VirtualTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1}", self.as_f64())
    }
}

/// What a token of each bucket costs for one model: `scale × weight`, in millionths of a virtual token.
///
/// A ticket freezes the price it was admitted under.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Price {
    uncached_input: u64,
    cached_input: u64,
    cache_write: u64,
    visible_output: u64,
    reasoning_output: u64,
}

impl Price {
    /// The price list of a model whose tokens cost `scale` times the given weights, in this order: input,
    /// cached input, cache write, output, reasoning.
    #[must_use]
    pub fn new(scale: TokenWeight, weights: [TokenWeight; 5]) -> Self {
        let [uncached_input, cached_input, cache_write, visible_output, reasoning_output] =
            weights.map(|weight| u64::from(scale.millionths()) * u64::from(weight.millionths()) / 1_000_000);
        Self { uncached_input, cached_input, cache_write, visible_output, reasoning_output }
    }

    /// The cost of this usage.
    #[must_use]
    pub fn cost(&self, usage: &Usage) -> VirtualTokens {
        let line = |tokens: super::Tokens, micros: u64| i128::from(tokens.get()) * i128::from(micros);
        VirtualTokens(
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
    use super::super::{TokenWeight, Tokens, Usage, Weight};
    use super::{Price, VirtualTokens};

    fn price(scale: f64) -> Price {
        let weight = |value| TokenWeight::new(value).expect("valid");
        Price::new(weight(scale), [1.0, 0.1, 1.25, 2.0, 2.0].map(weight))
    }

    #[test]
    fn the_default_weights_cost_what_the_design_says() {
        let usage = Usage {
            uncached_input: Tokens::new(100),
            cached_input: Tokens::new(1_000),
            cache_write: Tokens::new(8),
            visible_output: Tokens::new(20),
            reasoning_output: Tokens::new(30),
        };
        assert_eq!(price(1.0).cost(&usage), VirtualTokens::whole(100 + 100 + 10 + 40 + 60));
        assert_eq!(price(4.0).cost(&usage), VirtualTokens::whole(4 * 310));
    }

    #[test]
    fn an_absurd_count_does_not_wrap() {
        let absurd = Usage::plain(Tokens::new(u64::MAX), Tokens::new(u64::MAX));
        assert!(price(1_000.0).cost(&absurd) > VirtualTokens::whole(u64::MAX));
    }

    #[test]
    fn a_heavier_tenant_counts_slower() {
        let cost = VirtualTokens::whole(12);
        assert_eq!(cost.over(Weight::new(4.0).expect("valid")), VirtualTokens::whole(3));
        assert_eq!(cost.over(Weight::ONE), cost);
    }
}
