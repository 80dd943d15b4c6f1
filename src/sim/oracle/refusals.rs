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
//! never more than what began there.

use std::collections::{BTreeMap, VecDeque};

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
    let (mut inside, mut ahead, mut from) = (VecDeque::new(), events.into_iter().peekable(), first);
    while from + window <= last {
        while let Some(event) = ahead.next_if(|(at, ..)| *at < from + window) {
            tallies.entry(&event.1.tenant).or_default().count(event.1, event.2, u64::saturating_add, 1);
            inside.push_back(event);
        }
        while let Some((_, bid, what)) = inside.pop_front_if(|(at, ..)| *at < from) {
            tallies.entry(&bid.tenant).or_default().count(bid, what, u64::saturating_sub, -1);
        }
        worst.look(&tallies, from);
        from = from + step;
    }
    worst
}

/// What happens to a bid: in the run, or were its tenant alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Decided,
    WouldBegin,
}

/// Everything that happens, in order: the decisions, and what each tenant alone would have begun and when.
#[expect(clippy::cast_precision_loss, reason = "tokens of a run")]
fn events(bids: &[Bid], patience: Span, run: Span) -> Vec<(Instant, &Bid, What)> {
    let mut tallies: BTreeMap<&TenantId, Tally> = BTreeMap::new();
    for bid in bids {
        tallies.entry(&bid.tenant).or_default().count(bid, What::Decided, u64::saturating_add, 1);
    }
    let shares = shares(&tallies);
    let mut events: Vec<(Instant, &Bid, What)> = bids.iter().map(|bid| (bid.at, bid, What::Decided)).collect();
    for (tenant, share) in tallies.keys().zip(shares) {
        let per_second = share / run.as_secs_f64().max(1e-9);
        let mut own: Vec<&Bid> = bids.iter().filter(|bid| bid.tenant == **tenant).collect();
        own.sort_by_key(|bid| bid.asked);
        let mut free = Instant::EPOCH;
        for bid in own {
            let begins = free.max(bid.asked);
            if begins.since(bid.asked) <= patience {
                events.push((begins, bid, What::WouldBegin));
                free = begins + Span::from_secs_f64((bid.service.get() as f64 / per_second).min(1e6));
            }
        }
    }
    events.sort_by_key(|(at, ..)| *at);
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
    use super::{Bid, Verdict, refusals};
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
