//! Who was refused for the queue beside whom: no tenant below its share, while one above its own is let through.
//!
//! Over every window of a length, a tenant's *share* is what weighted max-min fairness gives it of all the service
//! let through in the window, for what it asked there: what of its requests was let through, and what was refused for
//! the queue. It is *wronged* by as much as it stays below its share, if any of its requests was refused for the queue
//! in the window and somebody else got more than his. A request counts whole at the moment it was decided on, so
//! nobody can be told apart by less than a request or two.
//!
//! A burst that no queue of its patience could hold, followed by a lull, leaves a tenant below its share through
//! nobody's fault. What it could have had is therefore also reckoned alone: with a server to itself, as fast as its
//! share of the whole run, which takes a request if it can begin within the patience. A tenant's share of a window is
//! never more than what began there, without what was let through before the window: that came sooner than its share.
//!
//! No order that keeps no credit for a time in which a tenant asked little comes out at nothing. What such an order can do
//! at best is known from [`fair_queueing`], whose outcome may be judged in the same way.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use crate::units::{Instant, Span, TenantId, Tokens};

use super::max_min;

/// One request, as far as it competes for service.
#[derive(Clone, Debug, PartialEq)]
pub struct Bid {
    /// When it was asked for.
    pub asked: Instant,
    /// When it was let through or refused.
    pub at: Instant,
    /// Whose it is.
    pub tenant: TenantId,
    /// The tenant's weight.
    pub weight: f64,
    /// What it takes to serve it, in weighted tokens.
    pub service: Tokens,
    /// What became of it.
    pub verdict: Verdict,
}

/// What became of a request that competes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It was let through.
    LetThrough,
    /// It was refused because others were ahead of it.
    RefusedForTheQueue,
}

/// The worst wrong found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Wrong {
    /// By how much service a tenant stayed below its share; 0 where none was wronged.
    pub short: f64,
    /// That as a part of its share.
    pub part: f64,
    /// Which tenant.
    pub tenant: Option<TenantId>,
    /// Where the window begins.
    pub from: Instant,
    /// The service of the largest request of any window: what cannot be told apart.
    pub largest: Tokens,
    /// How many windows had a refusal for the queue in them.
    pub windows: usize,
}

/// One tenant in one window.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    weight: f64,
    given: u64,
    denied: u64,
    refusals: usize,
    /// What would have begun, had it a server of its share to itself.
    alone: u64,
}

/// Looks at every window of this length that begins a multiple of `step` after the first bid and ends before the last.
#[must_use]
pub fn refusals(bids: &[Bid], patience: Span, window: Span, step: Span) -> Wrong {
    let (Some(first), Some(last)) = (bids.iter().map(|bid| bid.at).min(), bids.iter().map(|bid| bid.at).max()) else {
        return Wrong::default();
    };
    let largest = bids.iter().map(|bid| bid.service).max().unwrap_or_default();
    let mut worst = Wrong { largest, ..Wrong::default() };
    let events = events(bids, patience, last.since(first));
    let mut tallies: BTreeMap<&TenantId, Tally> = BTreeMap::new();
    let (mut inside, mut ahead, mut from) = (BinaryHeap::new(), 0, first);
    while from + window <= last {
        while let Some(Event { at, counts_until, bid, what }) =
            events.get(ahead).filter(|event| event.at < from + window)
        {
            debug_assert!(counts_until <= at);
            tallies.entry(&bid.tenant).or_default().count(bid, *what, u64::saturating_add, 1);
            inside.push(Reverse((*counts_until, ahead)));
            ahead += 1;
        }
        while let Some(Reverse((_, gone))) = inside.peek().copied().filter(|Reverse((until, _))| *until < from) {
            let Event { bid, what, .. } = events[gone];
            tallies.entry(&bid.tenant).or_default().count(bid, what, u64::saturating_sub, -1);
            inside.pop();
        }
        worst.look(&tallies, from);
        from = from + step;
    }
    worst
}

/// What would have become of the same bids by start-time fair queueing (Goyal and others, 1996), which knows how long every
/// request is: with as much room at every moment as there was in the run, nobody refused before waiting as long as he may.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "tokens of a run")]
pub fn fair_queueing(bids: &[Bid], patience: Span) -> Vec<Bid> {
    let mut rooms: Vec<&Bid> = bids.iter().filter(|bid| bid.verdict == Verdict::LetThrough).collect();
    rooms.sort_by_key(|bid| bid.at);
    let mut asked: Vec<&Bid> = bids.iter().collect();
    asked.sort_by_key(|bid| bid.asked);
    let mut asked = asked.into_iter().peekable();
    let mut queues: BTreeMap<&TenantId, Queue<'_>> = BTreeMap::new();
    let (mut level, mut room, mut decided) = (0.0, 0.0, Vec::new());
    for now in rooms {
        while let Some(bid) = asked.next_if(|bid| bid.asked <= now.at) {
            queues.entry(&bid.tenant).or_default().join(bid, level);
        }
        for queue in queues.values_mut() {
            decided.extend(queue.expire(now.at, patience));
        }
        room += now.service.get() as f64;
        while room > 0.0 {
            let waiting = queues.values_mut().filter(|queue| !queue.bids.is_empty());
            let Some(next) = waiting.min_by(|one, other| one.start.total_cmp(&other.start)) else { break };
            let Some(bid) = next.bids.pop_front() else { break };
            level = next.start;
            next.start += bid.service.get() as f64 / bid.weight;
            room -= bid.service.get() as f64;
            decided.push(Bid { at: now.at, verdict: Verdict::LetThrough, ..bid.clone() });
        }
    }
    decided
}

/// A tenant's requests in fair queueing, and the tag of the first.
#[derive(Default)]
struct Queue<'a> {
    bids: VecDeque<&'a Bid>,
    start: f64,
}

impl<'a> Queue<'a> {
    fn join(&mut self, bid: &'a Bid, level: f64) {
        if self.bids.is_empty() {
            self.start = self.start.max(level);
        }
        self.bids.push_back(bid);
    }

    fn expire(&mut self, now: Instant, patience: Span) -> Vec<Bid> {
        let late = |bid: &mut &Bid| now.since(bid.asked) > patience;
        let expired = std::iter::from_fn(|| self.bids.pop_front_if(late));
        let refused = |bid: &Bid| Bid { at: bid.asked + patience, verdict: Verdict::RefusedForTheQueue, ..bid.clone() };
        expired.map(refused).collect()
    }
}

/// What happens to a bid: in the run, or were its tenant alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Decided,
    WouldBegin,
}

/// One of them.
#[derive(Clone, Copy, Debug)]
struct Event<'a> {
    at: Instant,
    /// The latest start of a window in which it counts: when it happens or, of what would begin, when it was let through in
    /// the run if that was before.
    counts_until: Instant,
    bid: &'a Bid,
    what: What,
}

/// Everything that happens, in order: the decisions, and what each tenant alone would have begun and when.
#[expect(clippy::cast_precision_loss, reason = "tokens of a run")]
fn events(bids: &[Bid], patience: Span, run: Span) -> Vec<Event<'_>> {
    let mut tallies: BTreeMap<&TenantId, Tally> = BTreeMap::new();
    for bid in bids {
        tallies.entry(&bid.tenant).or_default().count(bid, What::Decided, u64::saturating_add, 1);
    }
    let shares = shares(&tallies);
    let mut events: Vec<Event<'_>> =
        bids.iter().map(|bid| Event { at: bid.at, counts_until: bid.at, bid, what: What::Decided }).collect();
    for (tenant, share) in tallies.keys().zip(shares) {
        let per_second = share / run.as_secs_f64().max(1e-9);
        let mut own: Vec<&Bid> = bids.iter().filter(|bid| bid.tenant == **tenant).collect();
        own.sort_by_key(|bid| bid.asked);
        let mut free = Instant::EPOCH;
        for bid in own {
            let begins = free.max(bid.asked);
            if begins.since(bid.asked) <= patience {
                let counts_until = if bid.verdict == Verdict::LetThrough { begins.min(bid.at) } else { begins };
                events.push(Event { at: begins, counts_until, bid, what: What::WouldBegin });
                free = begins + Span::from_secs_f64((bid.service.get() as f64 / per_second).min(1e6));
            }
        }
    }
    events.sort_by_key(|event| event.at);
    events
}

#[expect(clippy::cast_precision_loss, reason = "tokens of a run")]
fn shares(tallies: &BTreeMap<&TenantId, Tally>) -> Vec<f64> {
    let given: u64 = tallies.values().map(|tally| tally.given).sum();
    let claim = |tally: &Tally| (tally.weight, (tally.given + tally.denied) as f64);
    max_min(given as f64, &tallies.values().map(claim).collect::<Vec<_>>())
}

impl Tally {
    fn count(&mut self, bid: &Bid, what: What, change: fn(u64, u64) -> u64, by: isize) {
        self.weight = bid.weight;
        match (what, bid.verdict) {
            (What::WouldBegin, _) => self.alone = change(self.alone, bid.service.get()),
            (What::Decided, Verdict::LetThrough) => self.given = change(self.given, bid.service.get()),
            (What::Decided, Verdict::RefusedForTheQueue) => {
                self.denied = change(self.denied, bid.service.get());
                self.refusals = self.refusals.saturating_add_signed(by);
            }
        }
    }
}

impl Wrong {
    #[expect(clippy::cast_precision_loss, reason = "tokens of a minute")]
    fn look(&mut self, tallies: &BTreeMap<&TenantId, Tally>, from: Instant) {
        self.windows += usize::from(tallies.values().any(|tally| tally.refusals > 0));
        let shares = shares(tallies);
        let over = tallies.values().zip(&shares).any(|(tally, share)| tally.given as f64 > *share + 0.5);
        for ((tenant, tally), share) in tallies.iter().zip(shares) {
            let short = share.min(tally.alone as f64) - tally.given as f64;
            if over && tally.refusals > 0 && short > self.short {
                (self.short, self.part, self.from) = (short, short / share, from);
                self.tenant = Some((*tenant).clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Bid, Verdict, fair_queueing, refusals};
    use crate::units::{Instant, Span, TenantId, Tokens};

    fn bids(tenant: &str, every: u64, service: u64, verdict: Verdict) -> impl Iterator<Item = Bid> {
        let tenant = TenantId::from(tenant);
        (0..200).step_by(usize::try_from(every).expect("small")).map(move |at| Bid {
            asked: Instant::from_secs_f64(f64::from(at)),
            at: Instant::from_secs_f64(f64::from(at)),
            tenant: tenant.clone(),
            weight: 1.0,
            service: Tokens::new(service),
            verdict,
        })
    }

    fn worst(bids: impl Iterator<Item = Bid>) -> super::Wrong {
        refusals(&bids.collect::<Vec<_>>(), Span::from_secs(5), Span::from_secs(60), Span::from_secs(1))
    }

    #[test]
    fn equal_shares_wrong_nobody_however_many_are_refused() {
        use Verdict::{LetThrough, RefusedForTheQueue};
        let fair = bids("a", 1, 10, LetThrough)
            .chain(bids("a", 1, 90, RefusedForTheQueue))
            .chain(bids("b", 1, 10, LetThrough))
            .chain(bids("b", 2, 50, RefusedForTheQueue));
        let found = worst(fair);
        assert!(found.short <= 10.0 && found.windows > 100, "{found:?}");
    }

    #[test]
    fn what_was_served_sooner_than_its_share_is_not_missed_after() {
        use Verdict::{LetThrough, RefusedForTheQueue};
        let at = |secs: f64| Instant::from_secs_f64(secs);
        // At second 99 it gets at once what alone would take until 105, asks for nothing until then, and is refused later.
        let steady = bids("a", 1, 10, LetThrough).filter(|bid| bid.asked <= at(98.0) || bid.asked >= at(105.0));
        let moved = |bid: Bid, secs: f64| Bid { asked: at(secs), at: at(secs), ..bid };
        let sooner = bids("a", 1, 10, LetThrough).take(6).map(|bid| moved(bid, 99.0));
        let refused = bids("a", 1, 10, RefusedForTheQueue).take(6).map(|bid| moved(bid, 130.0));
        let other = bids("b", 1, 20, LetThrough).chain(bids("b", 1, 20, RefusedForTheQueue));
        let found = worst(steady.chain(sooner).chain(refused).chain(other));
        // Three of the six refused could have begun; the six from before are not missed once more.
        assert!(found.short <= 31.0, "{found:?}");
    }

    #[test]
    fn fair_queueing_serves_in_proportion_to_weight_and_refuses_who_waited_too_long() {
        use Verdict::{LetThrough, RefusedForTheQueue};
        let heavy = bids("heavy", 1, 10, LetThrough).map(|bid| Bid { weight: 3.0, ..bid });
        let light = bids("light", 1, 10, RefusedForTheQueue).map(|bid| Bid { weight: 1.0, ..bid });
        let all: Vec<Bid> = heavy.chain(light).collect();
        let fair = fair_queueing(&all, Span::from_secs(5));
        let given = |tenant: &str| {
            let of = |bid: &&Bid| bid.tenant == TenantId::from(tenant) && bid.verdict == LetThrough;
            fair.iter().filter(of).count()
        };
        assert_eq!(given("heavy") + given("light"), 200, "as much room as there was");
        assert!((145..=155).contains(&given("heavy")), "{} of 200 at three quarters", given("heavy"));
        let late = fair.iter().filter(|bid| bid.verdict == RefusedForTheQueue);
        assert!(
            late.clone().count() > 100 && late.into_iter().all(|bid| bid.at.since(bid.asked) == Span::from_secs(5))
        );
        let found = refusals(&fair, Span::from_secs(5), Span::from_secs(60), Span::from_secs(1));
        assert!(found.short <= 11.0 && found.windows > 100, "{found:?}");
    }

    #[test]
    fn a_light_tenant_that_is_refused_beside_a_hog_is_wronged_and_one_that_asks_little_is_not() {
        use Verdict::{LetThrough, RefusedForTheQueue};
        let hog = || bids("hog", 1, 100, LetThrough).chain(bids("hog", 1, 500, RefusedForTheQueue));
        let found = worst(hog().chain(bids("light", 10, 100, RefusedForTheQueue)));
        assert_eq!(found.tenant, Some(TenantId::from("light")));
        assert!((found.short - 600.0).abs() < 101.0 && found.part > 0.99, "{found:?}");
        let found = worst(hog().chain(bids("light", 10, 100, LetThrough)));
        assert!(found.short < 1e-9, "{found:?}");
    }
}
