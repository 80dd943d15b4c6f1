//! The only clock.
//!
//! Counts from its own start, as the core does. Built on tokio's clock, so that a test that pauses that one stops
//! time here too.

use std::time::SystemTime;

use crate::units::{Calendar, Instant, Span, UnixTime};

/// A running clock.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: tokio::time::Instant,
    wall: SystemTime,
}

impl Clock {
    /// Starts a clock at [`Instant::EPOCH`].
    #[must_use]
    pub fn start() -> Self {
        Self { start: tokio::time::Instant::now(), wall: SystemTime::now() }
    }

    /// What time it is.
    #[must_use]
    pub fn now(&self) -> Instant {
        Instant::EPOCH + Span::from(self.start.elapsed())
    }

    /// Waits until a moment; not at all when it has passed.
    pub async fn sleep_until(&self, moment: Instant) {
        tokio::time::sleep_until(self.start + moment.since(Instant::EPOCH).to_std()).await;
    }

    /// Waits for a span.
    pub async fn sleep(&self, span: Span) {
        tokio::time::sleep(span.to_std()).await;
    }

    /// What the calendar says at each moment.
    #[must_use]
    pub fn calendar(&self) -> Calendar {
        let start = self.wall.duration_since(SystemTime::UNIX_EPOCH).map_or(Span::ZERO, Span::from);
        Calendar::synchronised(Instant::EPOCH, UnixTime::from_nanos(0).after(start))
    }

    /// The same, by what the system's clock says now: it may have been set meanwhile.
    #[must_use]
    pub fn compared(&self) -> Calendar {
        let wall = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(Span::ZERO, Span::from);
        Calendar::synchronised(self.now(), UnixTime::from_nanos(0).after(wall))
    }

    /// A moment as wall time, in seconds since 1970.
    #[must_use]
    pub fn unix_seconds(&self, moment: Instant) -> f64 {
        let start = self.wall.duration_since(SystemTime::UNIX_EPOCH).map_or(Span::ZERO, Span::from);
        start.saturating_add(moment.since(Instant::EPOCH)).as_secs_f64()
    }
}
