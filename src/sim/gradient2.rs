//! Netflix's Gradient2, to compare with: a limit on requests in flight from how long they take.
//!
//! *Source:* `Gradient2Limit.java` of Netflix/concurrency-limits, with its defaults. *Formula*, at every completion:
//!
//! ```text
//! gradient = max(0.5, min(1, 1.5 · long / short))     short: this request's time; long: its mean over 600 requests
//! limit    = 0.8 · limit + 0.2 · (gradient · limit + 4), within 20 to 200; unchanged while fewer than half are in flight
//! ```
//!
//! The long mean starts as a plain one over the first ten; while it is more than twice the short one it shrinks by a
//! twentieth. It stands here, in front of the simulated engine, and nowhere else: an answer's time says how long the
//! answer was more than how long it waited, so the limit drifts with the lengths.

use crate::units::Span;

const LEAST: f64 = 20.0;
const MOST: f64 = 200.0;
const QUEUE: f64 = 4.0;
const SMOOTHING: f64 = 0.2;
const TOLERANCE: f64 = 1.5;
const LONG: f64 = 600.0;
const WARM_UP: u32 = 10;

/// The limit of one pool.
#[derive(Debug)]
pub(super) struct Gradient2 {
    limit: f64,
    long: f64,
    seen: u32,
}

impl Gradient2 {
    pub(super) fn new() -> Self {
        Self { limit: LEAST, long: 0.0, seen: 0 }
    }

    /// Whether one more may be in flight.
    pub(super) fn allows(&self, in_flight: u32) -> bool {
        f64::from(in_flight) < self.limit.floor()
    }

    /// A request completed after this time, with so many in flight, itself included.
    pub(super) fn completed(&mut self, lasted: Span, in_flight: u32) {
        let short = lasted.as_secs_f64().max(1e-9);
        let long = self.mean(short);
        if long / short > 2.0 {
            self.long *= 0.95;
        }
        if f64::from(in_flight) < self.limit / 2.0 {
            return;
        }
        let gradient = (TOLERANCE * long / short).clamp(0.5, 1.0);
        let wanted = self.limit * gradient + QUEUE;
        self.limit = (self.limit * (1.0 - SMOOTHING) + wanted * SMOOTHING).clamp(LEAST, MOST);
    }

    fn mean(&mut self, sample: f64) -> f64 {
        if self.seen < WARM_UP {
            self.seen += 1;
            self.long += (sample - self.long) / f64::from(self.seen);
        } else {
            let weight = 2.0 / (LONG + 1.0);
            self.long = self.long * (1.0 - weight) + sample * weight;
        }
        self.long
    }
}

#[cfg(test)]
mod tests {
    use super::Gradient2;
    use crate::units::Span;

    #[test]
    fn it_grows_while_times_stay_and_halves_at_most() {
        let mut rule = Gradient2::new();
        (0..20).for_each(|_| rule.completed(Span::from_secs(1), 20));
        let grown = rule.limit;
        assert!((20.0 + 20.0 * 0.8 - grown).abs() < 1e-9, "0.2 x 4 more at every completion: {grown}");
        assert!(rule.allows(35) && !rule.allows(36));
        rule.completed(Span::from_secs(10), 36);
        assert!((grown * 0.9 + 0.8 - rule.limit).abs() < 1e-9, "a fifth of the way to half and four: {}", rule.limit);
        let held = rule.limit;
        rule.completed(Span::from_secs(1), 10);
        assert!((rule.limit - held).abs() < 1e-9, "with fewer than half in flight nothing changes");
    }
}
