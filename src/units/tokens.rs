//! Tokens, the five buckets of usage, and the ratios that weigh them.

use std::fmt;
use std::iter::Sum;
use std::num::NonZeroU32;
use std::ops::{Add, AddAssign};

/// A count of model tokens. Addition saturates: a hostile count cannot wrap to a small one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Tokens(u64);

impl Tokens {
    /// None.
    pub const ZERO: Self = Self(0);

    /// Wraps a count.
    #[must_use]
    pub const fn new(count: u64) -> Self {
        Self(count)
    }

    /// The count.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The difference, zero when `other` is more.
    #[must_use]
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// This many times over, saturating.
    #[must_use]
    pub const fn times(self, factor: u64) -> Self {
        Self(self.0.saturating_mul(factor))
    }
}

impl Add for Tokens {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Tokens {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sum for Tokens {
    fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
        iter.fold(Self::ZERO, Add::add)
    }
}

impl fmt::Display for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A size in bytes. Addition saturates.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Bytes(u64);

impl Bytes {
    /// None.
    pub const ZERO: Self = Self(0);

    /// Wraps a size.
    #[must_use]
    pub const fn new(bytes: u64) -> Self {
        Self(bytes)
    }

    /// The size.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The difference, zero when `other` is more.
    #[must_use]
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl Add for Bytes {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

/// What a request used or is expected to use, in five disjoint buckets.
///
/// Providers report buckets that overlap (cached input inside input, reasoning inside output); the dialects
/// normalise them to these, which simply add up.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Usage {
    /// Input tokens that had to be processed.
    pub uncached_input: Tokens,
    /// Input tokens read from a prefix cache.
    pub cached_input: Tokens,
    /// Input tokens written to a prefix cache, where the provider prices that.
    pub cache_write: Tokens,
    /// Output tokens the caller sees.
    pub visible_output: Tokens,
    /// Output tokens spent on reasoning.
    pub reasoning_output: Tokens,
}

impl Usage {
    /// Plain input and output, nothing cached, nothing reasoned.
    #[must_use]
    pub fn plain(input: Tokens, output: Tokens) -> Self {
        Self { uncached_input: input, visible_output: output, ..Self::default() }
    }

    /// All input tokens.
    #[must_use]
    pub fn input(&self) -> Tokens {
        self.uncached_input + self.cached_input + self.cache_write
    }

    /// All output tokens.
    #[must_use]
    pub fn output(&self) -> Tokens {
        self.visible_output + self.reasoning_output
    }

    /// All tokens, which is what stays resident in the engine's memory.
    #[must_use]
    pub fn total(&self) -> Tokens {
        self.input() + self.output()
    }

    /// The same input with no output.
    #[must_use]
    pub fn input_only(&self) -> Self {
        Self { visible_output: Tokens::ZERO, reasoning_output: Tokens::ZERO, ..*self }
    }

    /// The same input with this much visible output instead.
    #[must_use]
    pub fn with_output(&self, output: Tokens) -> Self {
        Self { visible_output: output, ..self.input_only() }
    }
}

/// Why a unit could not be made from what was written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ParseUnitError(pub String);

const THOUSAND: f64 = 1_000.0;
const MILLION: f64 = 1_000_000.0;

/// Converts a decimal to fixed point, refusing what cannot be held exactly enough.
fn fixed(value: f64, scale: f64, least: f64, most: f64, what: &str) -> Result<u32, ParseUnitError> {
    if !value.is_finite() || value < least || value > most {
        return Err(ParseUnitError(format!("{what} must be between {least} and {most}, not {value}")));
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bounds checked above")]
    let scaled = (value * scale).round() as u32;
    Ok(scaled)
}

/// A tenant's weight: its share relative to its siblings. Thousandths, from 0.001 to 1,000,000.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Weight(NonZeroU32);

impl Weight {
    /// The weight everybody has unless told otherwise.
    pub const ONE: Self = Self(NonZeroU32::new(1_000).expect("not zero"));

    /// From a decimal.
    ///
    /// # Errors
    /// When it is not between 0.001 and 1,000,000.
    pub fn new(value: f64) -> Result<Self, ParseUnitError> {
        let thousandths = fixed(value, THOUSAND, 0.001, MILLION, "a weight")?;
        NonZeroU32::new(thousandths).map(Self).ok_or_else(|| ParseUnitError("a weight must not be 0".into()))
    }

    /// The weight in thousandths.
    #[must_use]
    pub const fn thousandths(self) -> u32 {
        self.0.get()
    }

    /// As a decimal, for display.
    #[must_use]
    pub fn as_f64(self) -> f64 {
        f64::from(self.0.get()) / THOUSAND
    }
}

/// What a token of one bucket costs, in virtual tokens. Millionths, from 0 to 1,000.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TokenWeight(u32);

impl TokenWeight {
    /// One virtual token a token.
    pub const ONE: Self = Self(1_000_000);

    /// From a decimal.
    ///
    /// # Errors
    /// When it is not between 0 and 1,000.
    pub fn new(value: f64) -> Result<Self, ParseUnitError> {
        fixed(value, MILLION, 0.0, THOUSAND, "a token weight").map(Self)
    }

    /// The weight in millionths.
    #[must_use]
    pub const fn millionths(self) -> u32 {
        self.0
    }

    /// As a decimal, for display.
    #[must_use]
    pub fn as_f64(self) -> f64 {
        f64::from(self.0) / MILLION
    }
}

/// A part of a whole. Millionths, from 0 to 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Share(u32);

impl Share {
    /// Nothing.
    pub const ZERO: Self = Self(0);

    /// From a fraction between 0 and 1.
    ///
    /// # Errors
    /// When it is not.
    pub fn new(fraction: f64) -> Result<Self, ParseUnitError> {
        fixed(fraction, MILLION, 0.0, 1.0, "a share").map(Self)
    }

    /// The share in millionths.
    #[must_use]
    pub const fn millionths(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", f64::from(self.0) / 10_000.0)
    }
}

#[cfg(test)]
mod tests {
    use super::{Share, TokenWeight, Tokens, Usage, Weight};

    #[test]
    fn a_hostile_count_saturates() {
        assert_eq!(Tokens::new(u64::MAX) + Tokens::new(1), Tokens::new(u64::MAX));
        assert_eq!(Usage::plain(Tokens::new(u64::MAX), Tokens::new(7)).total(), Tokens::new(u64::MAX));
    }

    #[test]
    fn constructors_are_gates() {
        for bad in [f64::NAN, f64::INFINITY, -1.0, 0.0, 1e9] {
            assert!(Weight::new(bad).is_err(), "{bad}");
        }
        assert!(TokenWeight::new(-0.1).is_err());
        assert_eq!(TokenWeight::new(0.1).map(TokenWeight::millionths), Ok(100_000));
        assert!(Share::new(1.01).is_err());
    }
}
