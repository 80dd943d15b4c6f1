//! The gates a request passes, in order.
//!
//! *Decides* whether a newcomer may join the queue. Every gate is checked before any commits, so a refusal
//! leaves every counter as it found it. The order matters where a request fails several: it is told the reason
//! that would still hold if the others were mended, the lasting one first. What comes before these (parsing,
//! identity, routing) happens at the doors.
//!
//! *Never* refuses for the queue or the wait what would not have to wait.

use crate::policy::model::QueueCap;
use crate::units::{Agent, Instant, Limit, Span, Tokens, VirtualTokens};

use super::deadline::{self, time_at};
use super::displace::{self, Displacement, Victim};
use super::fanout::Fanout;
use super::limits::Limits;
use super::own::Own;
use super::pool::Pool;
use super::promise::{self, Kept, Promised};
use super::queue::{Fullness, Load};
use super::refusal::{Level, Reason};
use super::request::Request;
use super::retry::{Retries, RetryCount};

/// The gates, in the order they are asked.
pub(super) const ORDER: [Gate; 8] = [
    // Shutting down: nothing else matters.
    Gate::Drain,
    // One more of too many retries: it is not to add to the trouble that the next gate may tell of.
    Gate::Retries,
    // The upstream fails: whatever else holds, nothing is served now.
    Gate::Breaker,
    // Never going to fit: no use in saying "later".
    Gate::Size,
    // Too much, too fast; however long the queue.
    Gate::Rates,
    // Too much altogether.
    Gate::Budgets,
    // No room to wait, now.
    Gate::Queue,
    // Room, but not soon enough. Last, since its numbers assume a place in the queue.
    Gate::Wait,
];

/// One gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// Whether the gateway is shutting down.
    Drain,
    /// Whether it is one retry too many.
    Retries,
    /// Whether the upstream is left alone.
    Breaker,
    /// Whether the request could ever be served.
    Size,
    /// Whether the rates that concern it allow it.
    Rates,
    /// Whether the budgets that concern it cover it.
    Budgets,
    /// Whether there is room to wait.
    Queue,
    /// Whether its turn would come soon enough.
    Wait,
}

/// Everything the gates look at.
#[derive(Clone, Copy, Debug)]
pub(super) struct Question<'a> {
    pub(super) now: Instant,
    pub(super) request: &'a Request,
    pub(super) deadline: Instant,
    pub(super) pool: &'a Pool,
    pub(super) fanout: &'a Fanout,
    pub(super) retries: &'a Retries,
    pub(super) limits: &'a Limits,
    /// What is kept from it for others of its tenant.
    pub(super) promised: Promised,
    /// Everybody of its tenant who was told to come back, whether they will or not.
    pub(super) all_promised: Promised,
    pub(super) draining: bool,
}

/// Why not, and how long until it may be otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Objection {
    /// The rule, with its numbers.
    pub reason: Reason,
    /// How long until it may be otherwise, before jitter.
    pub wait: Wait,
}

/// How long until it may be otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// So long.
    For(Span),
    /// Nothing measured says.
    Unknown,
    /// It will never be.
    Forever,
}

impl From<Option<Span>> for Wait {
    fn from(wait: Option<Span>) -> Self {
        wait.map_or(Self::Unknown, Self::For)
    }
}

/// What a request may have at most of what it asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Its input.
    pub input: Tokens,
    /// The most that is admitted.
    pub most: Limit<Tokens>,
}

/// What the predicted wait is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitFound {
    /// The work that may be served before it, in virtual tokens, with what is kept for those who were told to come back.
    pub ahead: VirtualTokens,
    /// Its tenant's weight, in thousandths.
    pub weight: u64,
    /// The weights of all tenants it would take turns with, its own included, in thousandths.
    pub weights: u64,
    /// What its class is served in a second while it has a backlog, where that is known.
    pub rate: Option<VirtualTokens>,
    /// How long rates whose requests wait would hold it back, behind what of its own waits already.
    pub held: Span,
    /// How long it would wait, where that is known.
    pub predicted: Option<Span>,
    /// How long it may.
    pub allowed: Limit<Span>,
}

/// One of the levels whose caps are the newcomer's own.
struct OwnLevel {
    level: Fullness,
    /// What waits there costs.
    queued_cost: VirtualTokens,
    /// What has to be reckoned with of those who were told to come back, and all that was promised to them.
    kept: Kept,
    all: Kept,
}

impl Question<'_> {
    /// Asks every gate. On success, the requests that have to leave the queue for this one.
    pub(super) fn ask(&self) -> Result<Vec<Victim>, Objection> {
        let mut victims = Vec::new();
        for gate in ORDER {
            match gate {
                Gate::Drain => self.drain()?,
                Gate::Retries => self.retries()?,
                Gate::Breaker => self.breaker()?,
                Gate::Size => self.size()?,
                Gate::Rates => self.rates()?,
                Gate::Budgets => self.budgets()?,
                Gate::Queue => victims = self.queue()?,
                Gate::Wait => self.wait()?,
            }
        }
        Ok(victims)
    }

    pub(super) fn drain(&self) -> Result<(), Objection> {
        let objection = Objection { reason: Reason::Draining, wait: Wait::Unknown };
        if self.draining { Err(objection) } else { Ok(()) }
    }

    pub(super) fn retries(&self) -> Result<(), Objection> {
        match self.retries.room_at(self.request, self.now) {
            Some((RetryCount { retries, allowed }, room)) => {
                let wait = Wait::For(room.since(self.now));
                Err(Objection { reason: Reason::RetryBudget { retries, allowed }, wait })
            }
            None => Ok(()),
        }
    }

    pub(super) fn size_found(&self) -> Size {
        // By input alone: a prediction may be wrong, and "never" must not be.
        Size { input: self.request.expected.input(), most: self.pool.max_request_tokens }
    }

    pub(super) fn size(&self) -> Result<(), Objection> {
        let Size { input: tokens, most } = self.size_found();
        match most.cap() {
            Some(most) if tokens > most => {
                Err(Objection { reason: Reason::TooLarge { tokens, most }, wait: Wait::Forever })
            }
            Some(_) | None => Ok(()),
        }
    }

    pub(super) fn own(&self) -> Own<'_> {
        Own::new(self.fanout, self.limits, self.now)
    }

    pub(super) fn rates(&self) -> Result<(), Objection> {
        self.limits.check_rates(self.now, self.request)
    }

    pub(super) fn budgets(&self) -> Result<(), Objection> {
        self.limits.check_budgets(self.now, self.request)
    }

    pub(super) fn queue(&self) -> Result<Vec<Victim>, Objection> {
        if self.takes_at_once() {
            return Ok(Vec::new());
        }
        self.place().map_err(|objection| match self.fits_an_empty_queue() {
            true => objection,
            // It can only be let through when nobody waits, which nothing predicts; and kept room would be no use.
            false => Objection { wait: Wait::Unknown, ..objection },
        })
    }

    /// Whether every cap allows the request while nothing is queued or kept.
    fn fits_an_empty_queue(&self) -> bool {
        let empty = |level: Fullness| Fullness { queued: Load::default(), kept: Load::default(), ..level };
        self.levels().into_iter().all(|level| empty(level).exceeded(self.load()).is_none())
    }

    fn place(&self) -> Result<Vec<Victim>, Objection> {
        self.own_caps()?;
        match displace::plan(self.pool, self.request, self.load(), self.deadline) {
            Displacement::Nobody => match self.kept_places() {
                None => Ok(Vec::new()),
                Some(reason) => Err(self.no_shared_place(reason)),
            },
            Displacement::These(victims) => Ok(victims),
            Displacement::Newcomer(reason) => Err(self.no_shared_place(reason)),
        }
    }

    fn no_shared_place(&self, reason: Reason) -> Objection {
        let queued = self.pool.tree.classes[self.request.subject.class.index()].queued_cost;
        // While its own tenant's promises are kept, the others take their turns; however many of theirs were refused.
        let promised = self.pool.ahead(self.request, &self.all_promised).of_class(self.all_promised.of_tenant.work);
        Objection { reason, wait: self.after(excess_of(reason, queued) + promised) }
    }

    /// When this much of the class is served, and what is promised can be kept.
    pub(super) fn after(&self, work: VirtualTokens) -> Wait {
        match self.time_for(work) {
            Wait::For(span) => Wait::For(span.saturating_add(promise::slack(span))),
            other @ (Wait::Unknown | Wait::Forever) => other,
        }
    }

    fn own_caps(&self) -> Result<(), Objection> {
        for OwnLevel { level, queued_cost, kept, all } in self.own_levels() {
            if let Some(reason) = level.exceeded(self.load()) {
                let excess = excess_of(reason, queued_cost + kept.work) + all.work - kept.work;
                let work = self.pool.ahead(self.request, &self.all_promised).of_class(excess);
                return Err(Objection { reason, wait: self.after(work) });
            }
        }
        Ok(())
    }

    /// The levels whose caps are the newcomer's own, in the order they are checked.
    fn own_levels(&self) -> [OwnLevel; 2] {
        let subject = &self.request.subject;
        let caps = &self.pool.caps;
        let tenant = self.pool.tree.find_tenant(subject.class, &subject.tenant);
        let session_cap = self.session_cap();
        let session = tenant.and_then(|tenant| self.pool.tree.find_session(tenant, subject.session.as_ref()));
        let session = session.map(|node| &self.pool.tree.sessions[node]);
        let tenant = tenant.map(|node| &self.pool.tree.tenants[node]);
        let (kept, all) = (self.promised, self.all_promised);
        let level = |level, cap, held: Option<(Load, VirtualTokens)>, kept: Kept, all: Kept| {
            let (queued, queued_cost) = held.unwrap_or_default();
            OwnLevel { level: Fullness { level, cap, queued, kept: kept.load }, queued_cost, kept, all }
        };
        let session = session.map(|node| (node.queued, node.queued_cost));
        let tenant = tenant.map(|node| (node.queued, node.queued_cost));
        [
            level(Level::Session, session_cap, session, kept.of_session, all.of_session),
            level(Level::Tenant, caps.tenant, tenant, kept.of_tenant, all.of_tenant),
        ]
    }

    /// The shared cap that would be exceeded, were everybody here who was told to come back; unless the tenant holds
    /// no more than its share of it even then, for others' places are no reason to refuse that.
    fn kept_places(&self) -> Option<Reason> {
        if self.promised.of_tenant.load.is_empty() {
            return None;
        }
        let reason = self.shared_levels().iter().find_map(|level| level.exceeded(self.load()))?;
        let Reason::QueueFull { unit, cap, asked, .. } = reason else { return Some(reason) };
        let [_, tenant] = self.own_levels();
        let own = tenant.level.queued.plus(tenant.level.kept).in_unit(unit).saturating_add(asked);
        let ahead = self.pool.ahead(self.request, &self.promised);
        let beyond = u128::from(own) * u128::from(ahead.weights()) > u128::from(cap) * u128::from(ahead.weight());
        beyond.then_some(reason)
    }

    fn shared_levels(&self) -> [Fullness; 2] {
        let in_class = self.pool.tree.classes[self.request.subject.class.index()].queued;
        displace::shared_levels(self.pool, in_class, self.pool.tree.queued, self.promised.in_class.load)
    }

    /// The cap of the session. Requests that name no session are no session; and of the places of a session
    /// that has more than one, the last is for the agent that leads it.
    fn session_cap(&self) -> QueueCap {
        let cap = self.pool.caps.session;
        match (&self.request.subject.session, self.request.agent, cap.requests) {
            (None, _, _) => QueueCap::default(),
            (Some(_), Agent::Sub, Limit::AtMost(requests)) if requests >= 2 => {
                QueueCap { requests: Limit::AtMost(requests - 1), ..cap }
            }
            (Some(_), _, _) => cap,
        }
    }

    /// What is queued at every level, in the order their caps are checked.
    pub(super) fn levels(&self) -> [Fullness; 4] {
        let [session, tenant] = self.own_levels().map(|own| own.level);
        let [class, pool] = self.shared_levels();
        [session, tenant, class, pool]
    }

    pub(super) fn wait_found(&self) -> WaitFound {
        let ahead = self.pool.ahead(self.request, &self.promised);
        let rate = self.pool.tree.classes[self.request.subject.class.index()].drain.per_second(self.now);
        let (work, takes_at_once) = (ahead.work(), self.takes_at_once());
        let work = if takes_at_once { VirtualTokens::ZERO } else { work };
        let allowed = Limit::AtMost(self.deadline.since(self.now));
        let held = self.limits.queued_wait(self.now, self.request).map_or(Span::ZERO, |(held, _)| held);
        let by_queue = rate.map(|rate| deadline::surely(time_at(rate, work)));
        let predicted = if held > Span::ZERO { Some(by_queue.unwrap_or(Span::ZERO).max(held)) } else { by_queue };
        WaitFound {
            ahead: work,
            weight: ahead.weight(),
            weights: ahead.weights(),
            rate,
            held,
            predicted: if takes_at_once { Some(Span::ZERO) } else { self.not_before_pause(predicted) },
            allowed: if self.deadline == Instant::FAR { Limit::Unlimited } else { allowed },
        }
    }

    pub(super) fn wait(&self) -> Result<(), Objection> {
        if self.deadline == Instant::FAR || self.takes_at_once() {
            return Ok(());
        }
        match self.wait_found() {
            WaitFound { held, allowed: Limit::AtMost(allowed), .. } if held > allowed => {
                let reason = self.limits.queued_wait(self.now, self.request).map(|(_, reason)| reason);
                let reason = reason.unwrap_or(Reason::WaitTooLong { predicted: held, allowed });
                Err(Objection { reason, wait: Wait::For(promise::until_bearable(held, allowed)) })
            }
            WaitFound { predicted: Some(predicted), allowed: Limit::AtMost(allowed), .. } if predicted > allowed => {
                // Those who were told before come before, even those who may not.
                let last = match self.after(self.pool.ahead(self.request, &self.all_promised).work()) {
                    Wait::For(last) => last,
                    Wait::Unknown | Wait::Forever => predicted,
                };
                let wait = Wait::For(promise::until_bearable(last, allowed));
                Err(Objection { reason: Reason::WaitTooLong { predicted, allowed }, wait })
            }
            _ => Ok(()),
        }
    }

    pub(super) fn takes_at_once(&self) -> bool {
        self.pool.takes_at_once(self.request, self.deadline, self.own())
    }

    pub(super) fn load(&self) -> Load {
        Load::of(self.request.expected.total(), self.request.bytes)
    }

    fn time_for(&self, work: VirtualTokens) -> Wait {
        self.pool.tree.classes[self.request.subject.class.index()].drain.time_for(work, self.now).into()
    }
}

/// The part of the queued work that has to go before a refusal for a cap no longer holds.
fn excess_of(reason: Reason, queued_cost: VirtualTokens) -> VirtualTokens {
    let Reason::QueueFull { cap, queued, asked, .. } = reason else { return queued_cost };
    let excess = queued.saturating_add(asked).saturating_sub(cap).min(queued);
    let part = queued_cost.as_micros().saturating_mul(i128::from(excess)) / i128::from(queued.max(1));
    VirtualTokens::from_micros(part)
}
