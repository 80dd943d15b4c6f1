//! How long a request will wait, and until when it may.
//!
//! *Decides* whether a request that could not be dispatched in time is refused on arrival, and what any
//! refusal names as the time to come back. *Formula:* with `R` the service rate of its class, measured only
//! while the class had a backlog (so that it includes what higher classes take),
//!
//! ```text
//! wait = 9/8 · ahead ÷ R
//! ```
//!
//! with the work [`ahead`](super::ahead) of it in virtual tokens; an eighth more than the estimate, since who is let in
//! and expires has waited for nothing. *Bound:* an estimate, not a promise; the
//! deadline itself is kept exactly, by expiry. *At start and at idle* the rate is unknown and refuses nobody: it
//! needs, within the last half minute, two seconds of backlog and ten dispatches, or on a slow engine ten seconds
//! and three. *At overload* it refuses early
//! what would expire late. *Never* looks further back than that, so a recovered engine is believed again.

use crate::units::{Instant, Span, VirtualTokens};

const BUCKETS: usize = 16;
const BUCKET: Span = Span::from_secs(2);
/// How much backlog and how many dispatches say enough: a short look at a fast engine, a longer one at a slow one.
const ENOUGH: [(Span, u32); 2] = [(Span::from_secs(2), 10), (Span::from_secs(10), 3)];

#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    number: u64,
    service: VirtualTokens,
    backlog: Span,
    dispatches: u32,
}

/// The service rate of a class while it had a backlog.
#[derive(Debug)]
pub(super) struct DrainRate {
    buckets: [Bucket; BUCKETS],
    backlogged_since: Option<Instant>,
}

impl DrainRate {
    pub(super) fn new() -> Self {
        Self { buckets: [Bucket::default(); BUCKETS], backlogged_since: None }
    }

    pub(super) fn is_backlogged(&self) -> bool {
        self.backlogged_since.is_some()
    }

    /// From now on the class has, or has not, an eligible request that waits.
    pub(super) fn set_backlogged(&mut self, now: Instant, backlogged: bool) {
        if backlogged != self.is_backlogged() {
            self.catch_up(now);
            self.backlogged_since = backlogged.then_some(now);
        }
    }

    /// The class was given this much service. Counts only while it has a backlog.
    pub(super) fn served(&mut self, now: Instant, cost: VirtualTokens) {
        if self.is_backlogged() {
            self.catch_up(now);
            let bucket = self.bucket(now.as_nanos() / BUCKET.as_nanos());
            bucket.service += cost;
            bucket.dispatches += 1;
        }
    }

    /// Spreads the backlogged time up to now over the buckets it fell in.
    fn catch_up(&mut self, now: Instant) {
        let Some(since) = self.backlogged_since else { return };
        let last = now.as_nanos() / BUCKET.as_nanos();
        let first = (since.as_nanos() / BUCKET.as_nanos()).max(last.saturating_sub(BUCKETS as u64 - 1));
        for number in first..=last {
            let start = Instant::from_nanos(number * BUCKET.as_nanos()).max(since);
            let end = Instant::from_nanos((number + 1).saturating_mul(BUCKET.as_nanos())).min(now);
            let bucket = self.bucket(number);
            bucket.backlog = bucket.backlog.saturating_add(end.since(start));
        }
        self.backlogged_since = Some(now.max(since));
    }

    fn bucket(&mut self, number: u64) -> &mut Bucket {
        #[expect(clippy::cast_possible_truncation, reason = "less than BUCKETS")]
        let bucket = &mut self.buckets[(number % BUCKETS as u64) as usize];
        if bucket.number != number {
            *bucket = Bucket { number, ..Bucket::default() };
        }
        bucket
    }

    /// Service a second, if enough was seen to say so.
    pub(super) fn per_second(&self, now: Instant) -> Option<VirtualTokens> {
        let oldest = (now.as_nanos() / BUCKET.as_nanos()).saturating_sub(BUCKETS as u64 - 1);
        let recent = self.buckets.iter().filter(|bucket| bucket.number >= oldest);
        let (mut service, mut backlog, mut dispatches) = (VirtualTokens::ZERO, Span::ZERO, 0u32);
        for bucket in recent {
            service += bucket.service;
            backlog = backlog.saturating_add(bucket.backlog);
            dispatches = dispatches.saturating_add(bucket.dispatches);
        }
        // The stretch since the last input is backlog too, or a stalled engine would look as fast as before.
        backlog = backlog.saturating_add(self.backlogged_since.map_or(Span::ZERO, |since| now.since(since)));
        let enough = ENOUGH.iter().any(|(span, count)| backlog >= *span && dispatches >= *count);
        if !enough || !service.is_positive() {
            return None;
        }
        let per_second = service.as_micros().saturating_mul(1_000_000_000) / i128::from(backlog.as_nanos());
        Some(VirtualTokens::from_micros(per_second.max(1)))
    }

    /// How long this much work takes, if the rate is known.
    pub(super) fn time_for(&self, work: VirtualTokens, now: Instant) -> Option<Span> {
        self.per_second(now).map(|per_second| time_at(per_second, work))
    }
}

/// A predicted wait and an eighth of it, for what the prediction may be off by. Who is let into the queue and expires there
/// has waited for nothing; who is refused at once is told when to come.
pub(super) fn surely(wait: Span) -> Span {
    wait.saturating_add(Span::from_nanos(wait.as_nanos() / 8))
}

/// How long this much work takes at a rate, which is service a second and more than nothing.
pub(super) fn time_at(per_second: VirtualTokens, work: VirtualTokens) -> Span {
    let nanos = work.as_micros().max(0).saturating_mul(1_000_000_000) / per_second.as_micros().max(1);
    Span::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::{DrainRate, Instant, Span, VirtualTokens};

    fn at(secs: f64) -> Instant {
        Instant::from_secs_f64(secs)
    }

    #[test]
    fn the_rate_counts_backlogged_time_only_and_is_unknown_until_measured() {
        let mut rate = DrainRate::new();
        rate.served(at(0.5), VirtualTokens::whole(1_000_000));
        rate.set_backlogged(at(10.0), true);
        for dispatch in 0..10 {
            rate.served(at(10.0 + f64::from(dispatch) * 0.1), VirtualTokens::whole(100));
        }
        assert_eq!(rate.per_second(at(11.9)), None, "two seconds of backlog are needed");
        assert_eq!(rate.per_second(at(14.0)), Some(VirtualTokens::whole(250)));
        rate.set_backlogged(at(14.0), false);
        assert_eq!(rate.per_second(at(30.0)), Some(VirtualTokens::whole(250)), "idle time does not count");
        assert_eq!(rate.time_for(VirtualTokens::whole(500), at(30.0)), Some(Span::from_secs(2)));
        assert_eq!(rate.per_second(at(60.0)), None, "what is older than half a minute is forgotten");
    }

    #[test]
    fn a_slow_engine_is_known_after_a_longer_look() {
        let mut rate = DrainRate::new();
        rate.set_backlogged(at(0.0), true);
        for dispatch in 1..=3 {
            rate.served(at(f64::from(dispatch) * 3.0), VirtualTokens::whole(100));
        }
        assert_eq!(rate.per_second(at(9.0)), None);
        assert_eq!(rate.per_second(at(10.0)), Some(VirtualTokens::whole(30)));
    }

    #[test]
    fn a_stalled_engine_looks_slower_by_the_second() {
        let mut rate = DrainRate::new();
        rate.set_backlogged(at(0.0), true);
        for _ in 0..20 {
            rate.served(at(4.0), VirtualTokens::whole(100));
        }
        assert_eq!(rate.per_second(at(4.0)), Some(VirtualTokens::whole(500)));
        assert_eq!(rate.per_second(at(8.0)), Some(VirtualTokens::whole(250)));
    }
}
