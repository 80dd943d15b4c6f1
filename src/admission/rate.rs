//! Rates: so much in so long, with so much at once.
//!
//! *Decides* whether a rate allows an amount now, and when it will. *Source:* the generic cell rate algorithm (ITU-T
//! I.371), here with amounts of any size, refunds and debts. A bucket is one number, the moment at which it will be
//! empty, in units of `1 ÷ amount` nanoseconds, in which every amount is a whole number of units and nothing rounds.
//! *Formulas:*
//!
//! ```text
//! level(now)    max(empty_at - now, 0)                    what is used and not yet granted anew
//! allowed       level + min(asked, burst) ≤ burst         one larger than the burst needs a full bucket
//! take          empty_at = max(empty_at, now) + asked     beyond the burst too: a debt is kept, and paid by waiting
//! give back     empty_at -= min(unused, lowest level since it was taken)
//! ```
//!
//! The last is what the bucket would have come to, had it never been taken: where it was lower meanwhile than what comes
//! back, the rest has been granted anew already, and giving it back too would let whoever asks for much and leaves store
//! up what time granted in between. (The difference of two such buckets shrinks exactly while the lower one is empty; for
//! one that comes back this is exact, for several the lowest levels are those of the bucket as it was.)
//!
//! *Bound:* over any span `w`, what is taken and not given back is at most `amount · w ÷ every + burst`, and what was
//! taken beyond what had been allowed. *At idle* a bucket is empty and forgotten. At most [`MOST`] are remembered for
//! each limit; beyond that the one that will be empty first is forgotten, which forgives the least. *Never* moves when
//! a request is refused, but for the turns that those who are refused are told to come back in, which follow each other
//! at the rate's own pace so that they do not all come back at once.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::policy::model::Rate;
use crate::units::{Amount, Instant, Span};

use super::rule::Owner;

/// The most buckets remembered for one limit.
pub(super) const MOST: usize = 65_536;
/// How many empty buckets are forgotten in one step, at most.
const SWEPT_AT_ONCE: usize = 2;
/// How many lowest levels are remembered of a bucket.
const MOST_LOWS: usize = 32;
/// The most that turns to come back in are put off.
const LONGEST_TURN: Span = Span::from_secs(60);

/// A moment in units of `1 ÷ amount` nanoseconds.
type Moment = u128;

/// One limit's buckets.
#[derive(Debug)]
pub(super) struct Buckets {
    pace: Pace,
    by_owner: BTreeMap<Owner, Bucket>,
    by_empty: BTreeSet<(Moment, Owner)>,
    takings: u64,
}

/// When something was taken of a bucket, in the order of all of its limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Taking(u64);

/// How fast a limit grants, and how much at once.
#[derive(Clone, Copy, Debug)]
struct Pace {
    /// Parts in each period; also the units of a nanosecond.
    amount: u128,
    /// Nanoseconds of the period; also the units of a part.
    every: u128,
    /// In units.
    burst: u128,
}

#[derive(Clone, Debug, Default)]
struct Bucket {
    empty_at: Moment,
    /// When the last of those who were refused was told to come back.
    told: Moment,
    lows: Lows,
}

/// The lowest levels: for each of some takings, the lowest level since the one before it, in which each is higher than
/// those before. The lowest since a taking is therefore that of the first from it on.
#[derive(Clone, Debug, Default)]
struct Lows(VecDeque<(Taking, u128)>);

impl Lows {
    /// The level was as low as this, just before a taking.
    fn note(&mut self, taking: Taking, level: u128) {
        while self.0.back().is_some_and(|(_, low)| *low >= level) {
            self.0.pop_back();
        }
        self.0.push_back((taking, level));
        if self.0.len() > MOST_LOWS
            && let Some((_, lowest)) = self.0.pop_front()
            && let Some((_, low)) = self.0.front_mut()
        {
            // For a taking in between it is told lower than it was, which gives back less.
            *low = lowest;
        }
    }

    fn since(&self, taking: Taking) -> Option<u128> {
        self.0.iter().find(|(noted, _)| *noted > taking).map(|(_, low)| *low)
    }
}

impl Buckets {
    pub(super) fn new(rate: &Rate) -> Self {
        let parts = |amount: Amount| u128::try_from(amount.parts()).unwrap_or(0).max(1);
        let every = u128::from(rate.every.as_nanos()).max(1);
        let pace = Pace { amount: parts(rate.amount), every, burst: parts(rate.burst) * every };
        Self { pace, by_owner: BTreeMap::new(), by_empty: BTreeSet::new(), takings: 0 }
    }

    /// How long until so much is allowed, and so much before it; nothing if it is now.
    pub(super) fn wait(&self, owner: &Owner, now: Instant, before: Amount, asked: Amount) -> Span {
        let Pace { burst, .. } = self.pace;
        let needed = self.pace.units(asked).min(burst).saturating_add(self.pace.units(before));
        self.pace.span(self.level(owner, now).saturating_add(needed).saturating_sub(burst))
    }

    /// Whether so much is allowed now.
    pub(super) fn allows(&self, owner: &Owner, now: Instant, asked: Amount) -> bool {
        self.wait(owner, now, Amount::ZERO, asked) == Span::ZERO
    }

    /// What is allowed now; less than nothing while there is a debt.
    pub(super) fn left(&self, owner: &Owner, now: Instant) -> Amount {
        let signed = |units: u128| i128::try_from(units).unwrap_or(i128::MAX);
        let left = signed(self.pace.burst).saturating_sub(signed(self.level(owner, now)));
        Amount::from_parts(left.div_euclid(signed(self.pace.every)))
    }

    /// How long until the whole burst is allowed again.
    pub(super) fn whole_in(&self, owner: &Owner, now: Instant) -> Span {
        self.pace.span(self.level(owner, now))
    }

    /// Takes so much, allowed or not.
    pub(super) fn take(&mut self, owner: &Owner, now: Instant, amount: Amount) -> Taking {
        self.takings += 1;
        let taking = Taking(self.takings);
        let level = self.level(owner, now);
        let mut bucket = self.bucket(owner);
        bucket.lows.note(taking, level);
        bucket.empty_at = bucket.empty_at.max(self.pace.moment(now)).saturating_add(self.pace.units(amount));
        self.put(owner, bucket, now);
        taking
    }

    /// The latest taking there was.
    pub(super) fn latest(&self) -> Taking {
        Taking(self.takings)
    }

    /// Gives back what was not used of what was taken then.
    pub(super) fn give_back(&mut self, owner: &Owner, now: Instant, taking: Taking, unused: Amount) {
        let level = self.level(owner, now);
        let mut bucket = self.bucket(owner);
        let lowest = bucket.lows.since(taking).map_or(level, |low| low.min(level));
        bucket.empty_at = bucket.empty_at.saturating_sub(self.pace.units(unused).min(lowest));
        self.takings += 1;
        bucket.lows.note(Taking(self.takings), self.pace.level(&bucket, now));
        self.put(owner, bucket, now);
    }

    /// How long whoever is refused for so much is told to wait: until it is allowed, and those who were told before
    /// have had their turn.
    pub(super) fn turn(&self, owner: &Owner, now: Instant, asked: Amount) -> Span {
        self.pace.span(self.next_turn(owner, now, asked).saturating_sub(self.pace.moment(now)))
    }

    /// Whoever is refused for so much is told so.
    pub(super) fn give_turn(&mut self, owner: &Owner, now: Instant, asked: Amount) {
        let told = self.next_turn(owner, now, asked);
        let bucket = self.bucket(owner);
        self.put(owner, Bucket { told, ..bucket }, now);
    }

    fn next_turn(&self, owner: &Owner, now: Instant, asked: Amount) -> Moment {
        let moment = self.pace.moment(now);
        let units = |span: Span| u128::from(span.as_nanos()).saturating_mul(self.pace.amount);
        let allowed = moment.saturating_add(units(self.wait(owner, now, Amount::ZERO, asked)));
        let last = allowed.saturating_add(units(LONGEST_TURN));
        let told = self.by_owner.get(owner).map_or(0, |bucket| bucket.told);
        // The first of a row waits for its own amount; each that follows, for its own after the one before.
        let after =
            if told < moment { allowed } else { told.saturating_add(self.pace.units(asked).min(self.pace.burst)) };
        after.clamp(allowed, last)
    }

    fn bucket(&self, owner: &Owner) -> Bucket {
        self.by_owner.get(owner).cloned().unwrap_or_default()
    }

    fn level(&self, owner: &Owner, now: Instant) -> u128 {
        self.by_owner.get(owner).map_or(0, |bucket| self.pace.level(bucket, now))
    }

    fn put(&mut self, owner: &Owner, bucket: Bucket, now: Instant) {
        let last = bucket.last();
        if let Some(before) = self.by_owner.insert(owner.clone(), bucket) {
            self.by_empty.remove(&(before.last(), owner.clone()));
        }
        self.by_empty.insert((last, owner.clone()));
        let moment = self.pace.moment(now);
        for _ in 0..SWEPT_AT_ONCE {
            let over = self.by_empty.first().is_some_and(|(last, _)| *last <= moment) || self.by_owner.len() > MOST;
            let Some((_, owner)) = over.then(|| self.by_empty.pop_first()).flatten() else { return };
            self.by_owner.remove(&owner);
        }
    }

    #[cfg(test)]
    pub(super) fn remembered(&self) -> usize {
        assert_eq!(self.by_owner.len(), self.by_empty.len());
        self.by_owner.len()
    }
}

impl Bucket {
    /// When nothing is left to be remembered.
    fn last(&self) -> Moment {
        self.empty_at.max(self.told)
    }
}

impl Pace {
    fn moment(&self, now: Instant) -> Moment {
        u128::from(now.as_nanos()).saturating_mul(self.amount)
    }

    fn level(&self, bucket: &Bucket, now: Instant) -> u128 {
        bucket.empty_at.saturating_sub(self.moment(now))
    }

    fn units(&self, amount: Amount) -> u128 {
        u128::try_from(amount.parts()).unwrap_or(0).saturating_mul(self.every)
    }

    fn span(&self, units: u128) -> Span {
        Span::from_nanos(u64::try_from(units.div_ceil(self.amount)).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    use super::{Amount, Buckets, Instant, MOST, Owner, Span};
    use crate::policy::model::{Exceeded, Per, Rate, Scope};
    use crate::units::{Measure, TenantId};

    fn buckets(amount: i128, every: Span, burst: i128) -> Buckets {
        Buckets::new(&Rate {
            name: "test".into(),
            scope: Scope::default(),
            per: Per::Tenant,
            measure: Measure::Tokens,
            amount: Amount::from_parts(amount),
            every,
            burst: Amount::from_parts(burst),
            exceeded: Exceeded::Refuse,
        })
    }

    fn owner(name: &str) -> Owner {
        Owner::Tenant(TenantId::from(name))
    }

    fn parts(parts: i128) -> Amount {
        Amount::from_parts(parts)
    }

    #[test]
    fn a_limit_is_met_exactly_at_the_instant_it_names() {
        let mut rng = StdRng::seed_from_u64(7);
        for _ in 0..2_000 {
            let (amount, burst) = (rng.random_range(1..10_000), rng.random_range(1..10_000));
            let mut buckets = buckets(amount, Span::from_nanos(rng.random_range(1..10_000_000)), burst);
            let (who, mut now) = (owner("a"), Instant::from_nanos(rng.random_range(0..1_000_000)));
            for _ in 0..20 {
                let asked = parts(rng.random_range(1..=12_000));
                let wait = buckets.wait(&who, now, Amount::ZERO, asked);
                if wait > Span::ZERO {
                    let before = now + wait - Span::from_nanos(1);
                    assert!(!buckets.allows(&who, before, asked), "a nanosecond before it is not");
                }
                now = now + wait;
                assert!(buckets.allows(&who, now, asked));
                buckets.take(&who, now, asked);
                now = now + Span::from_nanos(rng.random_range(0..100_000));
            }
        }
    }

    #[test]
    fn no_window_has_more_than_its_rate_and_a_burst() {
        let mut rng = StdRng::seed_from_u64(11);
        for _ in 0..300 {
            let (amount, every, burst) =
                (rng.random_range(1..500), rng.random_range(1..1_000u64), rng.random_range(1..500));
            let mut buckets = buckets(amount, Span::from_nanos(every), burst);
            let who = owner("a");
            let (mut now, mut taken, mut held) = (Instant::EPOCH, Vec::new(), Vec::new());
            for _ in 0..200 {
                now = now + Span::from_nanos(rng.random_range(0..200));
                let asked = rng.random_range(1..=burst);
                if rng.random_bool(0.6) && buckets.allows(&who, now, parts(asked)) {
                    let taking = buckets.take(&who, now, parts(asked));
                    taken.push((now, asked, taking, None));
                    held.push(taken.len() - 1);
                } else if !held.is_empty() && rng.random_bool(0.5) {
                    let settled = held.swap_remove(rng.random_range(0..held.len()));
                    let unused = rng.random_range(0..=taken[settled].1);
                    let before = buckets.left(&who, now);
                    buckets.give_back(&who, now, taken[settled].2, parts(unused));
                    let after = buckets.left(&who, now);
                    assert!(after <= before + parts(unused) && after <= parts(burst), "leaving earns nothing");
                    taken[settled].1 -= unused;
                    taken[settled].3 = Some((now, unused));
                }
            }
            for (start, (since, ..)) in taken.iter().enumerate() {
                // What comes back in the window of what was taken before it may be taken again.
                let back = taken[..start].iter().filter_map(|(_, _, _, back)| back.filter(|(at, _)| at >= since));
                let mut sum = -back.map(|(_, unused)| unused).sum::<i128>();
                for (at, amount_taken, ..) in &taken[start..] {
                    sum += amount_taken;
                    let span = i128::from(at.since(*since).as_nanos());
                    assert!(sum * i128::from(every) <= amount * span + burst * i128::from(every), "{sum} in {span} ns");
                }
            }
        }
    }

    #[test]
    fn whoever_asks_for_much_and_leaves_is_where_it_would_be_had_it_never_asked() {
        let mut rng = StdRng::seed_from_u64(13);
        for _ in 0..2_000 {
            let (amount, every, burst) =
                (rng.random_range(1..50), rng.random_range(1..50u64), rng.random_range(1..500));
            let (mut with, mut without) =
                (buckets(amount, Span::from_nanos(every), burst), buckets(amount, Span::from_nanos(every), burst));
            let (who, mut now, mut ghost) = (owner("a"), Instant::EPOCH, None);
            let (comes, leaves) = (rng.random_range(0..10), rng.random_range(10..20));
            for step in 0..20 {
                now = now + Span::from_nanos(rng.random_range(0..200));
                if step == comes {
                    let asked = parts(rng.random_range(1..1_000));
                    ghost = Some((with.take(&who, now, asked), asked));
                }
                if step == leaves
                    && let Some((taking, asked)) = ghost
                {
                    with.give_back(&who, now, taking, asked);
                }
                let (left, alone) = (with.left(&who, now), without.left(&who, now));
                assert!(left <= alone, "never more than had it not asked");
                assert!(step < leaves || left == alone, "and once it has left, as much");
                let asked = parts(rng.random_range(0..100));
                with.take(&who, now, asked);
                without.take(&who, now, asked);
            }
        }
    }

    #[test]
    fn a_bucket_remembers_few_low_levels_and_never_gives_back_more_for_that() {
        let mut buckets = buckets(1, Span::from_secs(1), 1_000_000);
        let (who, now) = (owner("a"), Instant::EPOCH);
        let takings: Vec<_> = (0..1_000).map(|_| buckets.take(&who, now, parts(5))).collect();
        assert!(buckets.by_owner[&who].lows.0.len() <= super::MOST_LOWS);
        for taking in takings {
            buckets.give_back(&who, now, taking, parts(5));
            assert!(buckets.left(&who, now) <= parts(1_000_000));
        }
    }

    #[test]
    fn a_debt_is_kept_and_paid_by_waiting() {
        let mut buckets = buckets(10, Span::from_secs(1), 10);
        let (who, now) = (owner("a"), Instant::EPOCH);
        buckets.take(&who, now, parts(30));
        assert_eq!(buckets.left(&who, now), parts(-20));
        assert_eq!(buckets.wait(&who, now, Amount::ZERO, parts(10)), Span::from_secs(3));
        assert_eq!(buckets.wait(&who, now, Amount::ZERO, parts(1_000)), Span::from_secs(3), "larger than the burst");
        assert!(buckets.allows(&owner("b"), now, parts(10)));
    }

    #[test]
    fn those_who_are_refused_come_back_one_after_the_other_and_within_a_minute() {
        let mut buckets = buckets(10, Span::from_secs(1), 10);
        let (who, now) = (owner("a"), Instant::EPOCH);
        buckets.take(&who, now, parts(10));
        let mut told = Vec::new();
        for _ in 0..100 {
            told.push(buckets.turn(&who, now, parts(10)));
            buckets.give_turn(&who, now, parts(10));
        }
        assert_eq!(told[..3], [1, 2, 3].map(Span::from_secs));
        assert_eq!(told.last(), Some(&Span::from_secs(61)));
        assert_eq!(buckets.wait(&who, now, Amount::ZERO, parts(10)), Span::from_secs(1), "and nothing was used");
        let later = now + Span::from_secs(120);
        assert_eq!(buckets.turn(&who, later, parts(10)), Span::ZERO);
    }

    #[test]
    fn buckets_are_forgotten_when_they_are_empty_and_never_more_than_the_most_remembered() {
        let mut buckets = buckets(1, Span::from_secs(1), 100);
        for number in 0..MOST + 100 {
            buckets.take(&owner(&number.to_string()), Instant::EPOCH, parts(5));
        }
        assert_eq!(buckets.remembered(), MOST);
        for number in 0..MOST {
            let at = Instant::EPOCH + Span::from_secs(1_000 + number as u64);
            buckets.take(&owner("late"), at, parts(1));
        }
        assert_eq!(buckets.remembered(), 1);
    }

    #[test]
    fn absurd_amounts_stay_in_order() {
        let mut buckets = buckets(i128::from(u64::MAX), Span::MAX, i128::from(u64::MAX));
        let who = owner("a");
        let taking = buckets.take(&who, Instant::FAR, parts(i128::MAX));
        buckets.give_back(&who, Instant::FAR, taking, parts(i128::MAX));
        assert!(buckets.left(&who, Instant::FAR) <= parts(i128::MAX));
    }
}
