//! The calendar's time, for what is counted by the hour, the day or the month.
//!
//! The core counts spans on a clock that never steps ([`Instant`]); calendar time only says which period it is. It is
//! told to the core as an input, like everything else that comes from outside.

use std::fmt;

use super::time::{Instant, Span};

/// Nanoseconds since the start of 1970 in UTC. Good until 2262.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct UnixTime(i64);

impl UnixTime {
    /// Later than any real moment.
    pub const FAR: Self = Self(i64::MAX);

    /// The moment this many nanoseconds after the start of 1970.
    #[must_use]
    pub const fn from_nanos(nanos: i64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the start of 1970.
    #[must_use]
    pub const fn as_nanos(self) -> i64 {
        self.0
    }

    /// The moment so much later; saturates.
    #[must_use]
    pub fn after(self, span: Span) -> Self {
        Self(self.0.saturating_add(i64::try_from(span.as_nanos()).unwrap_or(i64::MAX)))
    }

    /// How long after `earlier` this is; zero when it is not after.
    #[must_use]
    pub fn since(self, earlier: Self) -> Span {
        Span::from_nanos(u64::try_from(i128::from(self.0) - i128::from(earlier.0)).unwrap_or(0))
    }
}

impl fmt::Debug for UnixTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unix {}ns", self.0)
    }
}

/// What the calendar says at each [`Instant`]: one moment of both clocks, from which the rest follows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Calendar {
    at_epoch: UnixTime,
}

impl Calendar {
    /// Both clocks at one moment.
    #[must_use]
    pub fn synchronised(instant: Instant, wall: UnixTime) -> Self {
        let since = i64::try_from(instant.as_nanos()).unwrap_or(i64::MAX);
        Self { at_epoch: UnixTime(wall.0.saturating_sub(since)) }
    }

    /// What the calendar says at a moment.
    #[must_use]
    pub fn at(self, instant: Instant) -> UnixTime {
        self.at_epoch.after(instant.since(Instant::EPOCH))
    }
}

#[cfg(test)]
mod tests {
    use super::{Calendar, Instant, Span, UnixTime};

    #[test]
    fn the_calendar_follows_the_clock_from_where_they_met() {
        let calendar = Calendar::synchronised(Instant::from_secs_f64(5.0), UnixTime::from_nanos(1_000_000_000_000));
        assert_eq!(calendar.at(Instant::from_secs_f64(7.0)), UnixTime::from_nanos(1_002_000_000_000));
        assert_eq!(calendar.at(Instant::FAR), UnixTime::FAR);
        assert_eq!(UnixTime::from_nanos(3).since(UnixTime::from_nanos(5)), Span::ZERO);
    }
}
