//! Time as the core sees it: nanoseconds since the world began.
//!
//! The core never reads a clock. Whoever drives it (the shell in production, the event world in simulation)
//! says what time it is, so a recorded run replays exactly and a test can stop time.

use std::fmt;
use std::ops::{Add, Sub};

const NANOS_PER_SEC: u64 = 1_000_000_000;

/// A moment, in nanoseconds since the driver's epoch. Good for 584 years.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Instant(u64);

/// A length of time, in nanoseconds. Arithmetic saturates.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Span(u64);

impl Instant {
    /// The moment the world began.
    pub const EPOCH: Self = Self(0);
    /// Later than any real moment: the deadline of what may wait forever.
    pub const FAR: Self = Self(u64::MAX);

    /// The moment this many nanoseconds after the epoch.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// The moment this many seconds after the epoch; negative and non-finite values give the epoch.
    #[must_use]
    pub fn from_secs_f64(secs: f64) -> Self {
        Self(Span::from_secs_f64(secs).0)
    }

    /// Nanoseconds since the epoch.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Seconds since the epoch.
    #[must_use]
    pub fn as_secs_f64(self) -> f64 {
        Span(self.0).as_secs_f64()
    }

    /// How long after `earlier` this is; zero when it is not after.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }
}

impl Span {
    /// No time at all.
    pub const ZERO: Self = Self(0);
    /// Longer than anything.
    pub const MAX: Self = Self(u64::MAX);

    /// A span of nanoseconds.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// A span of milliseconds.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    /// A span of whole seconds.
    #[must_use]
    pub const fn from_secs(secs: u64) -> Self {
        Self(secs.saturating_mul(NANOS_PER_SEC))
    }

    /// A span of seconds; negative and not-a-number give zero, too large gives [`Span::MAX`].
    #[must_use]
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "`as` saturates, and that is meant")]
    pub fn from_secs_f64(secs: f64) -> Self {
        Self((secs * 1e9).round() as u64)
    }

    /// Nanoseconds.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Whole milliseconds, rounded up, so that a wait told in them is never too short.
    #[must_use]
    pub const fn as_millis_up(self) -> u64 {
        self.0.div_ceil(1_000_000)
    }

    /// Whole seconds, rounded up, so that a wait told in them is never too short.
    #[must_use]
    pub const fn as_secs_up(self) -> u64 {
        self.0.div_ceil(NANOS_PER_SEC)
    }

    /// Seconds.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "for display and statistics only")]
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// The sum, saturating.
    #[must_use]
    pub const fn saturating_add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// The difference, zero when `other` is longer.
    #[must_use]
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// This span as the standard library's type.
    #[must_use]
    pub const fn to_std(self) -> std::time::Duration {
        std::time::Duration::from_nanos(self.0)
    }
}

impl From<std::time::Duration> for Span {
    fn from(duration: std::time::Duration) -> Self {
        Self(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl Add<Span> for Instant {
    type Output = Self;
    fn add(self, span: Span) -> Self {
        Self(self.0.saturating_add(span.0))
    }
}

impl Sub<Span> for Instant {
    type Output = Self;
    fn sub(self, span: Span) -> Self {
        Self(self.0.saturating_sub(span.0))
    }
}

impl fmt::Debug for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::FAR { f.write_str("@far") } else { write!(f, "@{:.6}s", self.as_secs_f64()) }
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.6}s", self.as_secs_f64())
    }
}

impl fmt::Display for Span {
    /// As a person would say it: `1.4 s`, `350 ms`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 < NANOS_PER_SEC {
            write!(f, "{} ms", self.as_millis_up())
        } else {
            write!(f, "{:.1} s", self.as_secs_f64())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Instant, Span};

    #[test]
    fn waits_round_up_and_arithmetic_saturates() {
        assert_eq!(Span::from_nanos(1).as_secs_up(), 1);
        assert_eq!(Span::from_nanos(1_000_000_001).as_secs_up(), 2);
        assert_eq!(Span::from_secs_f64(f64::NAN), Span::ZERO);
        assert_eq!(Span::from_secs_f64(-1.0), Span::ZERO);
        assert_eq!(Span::from_secs_f64(1e300), Span::MAX);
        assert_eq!(Instant::FAR + Span::from_secs(1), Instant::FAR);
        assert_eq!(Instant::EPOCH.since(Instant::FAR), Span::ZERO);
    }
}
