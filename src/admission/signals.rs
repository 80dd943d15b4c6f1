//! How much a pool is wanted, for whoever adds and removes engines.
//!
//! *Decides* nothing. *Formulas:* with `H` what is in flight and `Q` what waits, in tokens (input plus expected output)
//! or in requests, and `W` the window's cap in the same unit,
//!
//! ```text
//! saturation = max over the capped units of (H + Q) ÷ W
//! backlog    = service that waits in the pool ÷ the pool's drain rate
//! wait       = min(service that waits in the default class, c × (Σ weights of eligible tenants + 1)) ÷ its drain rate
//! ```
//!
//! where `c` is the mean service of a request that waits in the default class: `wait` is what a newcomer of weight 1
//! with such a request would wait, being nobody so far; the tenant with the longest queue waits longer, up to `backlog`.
//! At 1 the window is just full, above it something waits. *At idle* all are zero. *Unknown* is a saturation without a
//! cap, and a time while something waits and the drain rate is not measured yet: whoever scales should do nothing then.

use crate::units::{ClassIndex, Instant, PoolIndex, Span, Tokens, VirtualTokens, Weight};

use super::engine::Engine;
use super::pool::Pool;
use super::queue::Load;
use super::refusal::Unit;

/// How much a pool is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signals {
    /// Which pool.
    pub pool: PoolIndex,
    /// What waits.
    pub queued: Load,
    /// How full it is, in the unit that is scarcest; nothing where its window has no cap.
    pub saturation: Option<Saturation>,
    /// How long everything that waits takes to be let through, where that is known.
    pub backlog: Option<Span>,
    /// How long a newcomer of weight 1 in the default class would wait, where that is known.
    pub wait: Option<Span>,
}

/// How full a pool is, counting what waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Saturation {
    /// In which unit.
    pub unit: Unit,
    /// What is in flight and what waits.
    pub wanted: u64,
    /// How much may be in flight. Not zero.
    pub window: u64,
}

impl Saturation {
    /// As a fraction: 1 where the window is just full.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "for looking at")]
    pub fn as_f64(&self) -> f64 {
        self.wanted as f64 / self.window as f64
    }

    /// `wanted ÷ window` against another's, exactly.
    fn fuller(self, other: Self) -> Self {
        let scaled = |one: &Self, by: &Self| u128::from(one.wanted) * u128::from(by.window);
        if scaled(&other, &self) > scaled(&self, &other) { other } else { self }
    }
}

impl Engine {
    /// How much each pool is wanted at a moment, in the policy's order.
    #[must_use]
    pub fn signals(&self, now: Instant) -> Vec<Signals> {
        self.pools.iter().map(|pool| signals(pool, self.policy.default_class, now)).collect()
    }
}

fn signals(pool: &Pool, class: ClassIndex, now: Instant) -> Signals {
    let queued = pool.tree.queued;
    let caps = pool.window.found(Tokens::ZERO).caps;
    let saturation = |unit, in_flight: u64, queued: u64, cap: Option<u64>| {
        let window = cap.filter(|cap| *cap > 0)?;
        Some(Saturation { unit, wanted: in_flight.saturating_add(queued), window })
    };
    let tokens =
        saturation(Unit::Tokens, pool.window.tokens().get(), queued.tokens.get(), caps.tokens.cap().map(Tokens::get));
    let requests = saturation(
        Unit::Requests,
        pool.window.requests().into(),
        queued.requests.into(),
        caps.requests.cap().map(u64::from),
    );
    let all = pool.tree.classes.iter().fold(VirtualTokens::ZERO, |all, class| all + class.queued_cost);
    let node = &pool.tree.classes[class.index()];
    let nothing_waits = |requests: u32| (requests == 0).then_some(Span::ZERO);
    let newcomers = {
        let mean = node.queued_cost.as_micros() / i128::from(node.queued.requests.max(1));
        let one = u64::from(Weight::ONE.thousandths());
        let weights = node.contest.eligible_weight().saturating_add(one);
        let turns = mean.saturating_mul(i128::from(weights)) / i128::from(one);
        VirtualTokens::from_micros(turns).min(node.queued_cost)
    };
    Signals {
        pool: pool.index,
        queued,
        saturation: match (tokens, requests) {
            (Some(tokens), Some(requests)) => Some(tokens.fuller(requests)),
            (tokens, requests) => tokens.or(requests),
        },
        backlog: nothing_waits(queued.requests).or_else(|| pool.drain.time_for(all, now)),
        wait: nothing_waits(node.queued.requests).or_else(|| node.drain.time_for(newcomers, now)),
    }
}
