//! What every gate says of a request, with its numbers, without deciding anything.
//!
//! [`Engine::explain`] asks the very gates that decide ([`order`](super::order)), but all of them, also behind the
//! first that refuses, and tells what each looked at; then where the request would stand among those who wait, and
//! what is in flight of the pool and of its own. It borrows the core, so it can change nothing, and it costs what an
//! arrival costs: a few looks into ordered sets, never a walk along the queue. *Bound:* none of what it tells grows
//! with the queue. *Never* promises: what others do next is not known, and when a request to be queued has others
//! displaced, its place is told as if they still stood there.

use crate::units::{Instant, Limit, Span, VirtualTokens};

use super::breaker::BreakerFound;
use super::circuit::Passage;
use super::engine::Engine;
use super::fanout::FanoutFound;
use super::order::{Gate, ORDER, Objection, Size, WaitFound};
use super::pool::Turn;
use super::queue::{Fullness, Load};
use super::refusal::Reason;
use super::request::{Request, Subject};
use super::retry::RetriesFound;
use super::rule::{Demotion, RuleFound};
use super::window::WindowFound;

/// What the core says of a request at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// When.
    pub at: Instant,
    /// What the request is expected to cost.
    pub cost: VirtualTokens,
    /// Until when it may wait, and who says so.
    pub patience: Until,
    /// Whether the gateway is shutting down, and what that comes to.
    pub drain: Finding<bool>,
    /// Whether it is a retry, and how many there may be.
    pub retries: Finding<RetriesFound>,
    /// Whether the upstream is left alone.
    pub breaker: Finding<BreakerFound>,
    /// How large it is.
    pub size: Finding<Size>,
    /// The rates that concern it.
    pub rates: Finding<Vec<RuleFound>>,
    /// The budgets that concern it.
    pub budgets: Finding<Vec<RuleFound>>,
    /// The class it competes in instead of the one it asked for, where a rule sends it there.
    pub demotion: Option<Demotion>,
    /// What is queued.
    pub queue: Finding<QueueFound>,
    /// How long it would wait.
    pub wait: Finding<WaitFound>,
    /// What is in flight in its pool.
    pub window: WindowFound,
    /// What is in flight of its own.
    pub fanout: FanoutFound,
    /// Where it would stand among those who wait.
    pub turn: Turn,
    /// Whether the pool's window decides, and not somebody outside who grants slots.
    window_decides: bool,
}

/// What one gate looked at, and what it objects to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finding<T> {
    /// What it looked at.
    pub found: T,
    /// Why it would refuse; nothing where it would not.
    pub objection: Option<Objection>,
}

/// Until when a request may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// As long as it takes.
    Unlimited,
    /// As long as its class lets it: the policy's `max_wait`.
    Class(Instant),
    /// As long as its client does, which is no longer than its class lets it.
    Client(Instant),
}

/// What the queue's gate looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueFound {
    /// Whether it would go at once, so that no cap of the queue concerns it.
    pub at_once: bool,
    /// What the request would add.
    pub asked: Load,
    /// What is queued at each level, in the order they are checked.
    pub levels: [Fullness; 4],
    /// How many others would have to leave for it.
    pub displaces: u32,
}

/// What would become of the request now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prospect {
    /// It would be dispatched at once.
    Dispatched,
    /// It would wait for its turn.
    Queued,
    /// It would be refused.
    Refused(Objection),
}

impl Engine {
    /// What every gate would say of this request now. `now` counts as the latest moment seen if it is earlier. Whoever
    /// waits and has expired since the last step is still counted; a [`Tick`](super::Input::Tick) before removes them.
    #[must_use]
    pub fn explain(&self, now: Instant, request: &Request) -> Explanation {
        let now = self.now().max(now);
        let demotion = self.limits.demotion(now, request);
        let demoted = demotion.map(|demotion| {
            let subject = Subject { class: demotion.to, ..request.subject.clone() };
            Request { subject, ..request.clone() }
        });
        let request = demoted.as_ref().unwrap_or(request);
        let question = self.question(now, request);
        let pool = question.pool;
        let cost = request.price.cost(&request.expected);
        let queue = question.queue();
        let displaces = queue.as_ref().map_or(0, |victims| u32::try_from(victims.len()).unwrap_or(u32::MAX));
        let found = QueueFound {
            at_once: question.takes_at_once(),
            asked: question.load(),
            levels: question.levels(),
            displaces,
        };
        Explanation {
            at: now,
            cost,
            patience: until(question.deadline, request.deadline),
            drain: Finding { found: question.draining, objection: question.drain().err() },
            retries: Finding { found: question.retries.found(request, now), objection: question.retries().err() },
            breaker: Finding {
                found: pool.breaker.found(&request.subject.tenant),
                objection: question.breaker().err(),
            },
            size: Finding { found: question.size_found(), objection: question.size().err() },
            rates: Finding { found: self.limits.rates_found(now, request), objection: question.rates().err() },
            budgets: Finding { found: self.limits.budgets_found(now, request), objection: question.budgets().err() },
            demotion,
            queue: Finding { found, objection: queue.err() },
            wait: Finding { found: question.wait_found(), objection: question.wait().err() },
            window: pool.window.found(request.expected.total()),
            fanout: question.fanout.found(&request.subject, request.agent),
            turn: pool.turn(request, question.deadline, cost, question.own()),
            window_decides: pool.decides(),
        }
    }
}

fn until(deadline: Instant, clients: Option<Instant>) -> Until {
    match clients {
        _ if deadline == Instant::FAR => Until::Unlimited,
        Some(client) if client <= deadline => Until::Client(deadline),
        Some(_) | None => Until::Class(deadline),
    }
}

impl Until {
    /// The moment, where there is one.
    #[must_use]
    pub const fn moment(self) -> Option<Instant> {
        match self {
            Self::Unlimited => None,
            Self::Class(moment) | Self::Client(moment) => Some(moment),
        }
    }
}

impl Explanation {
    /// Every gate and its objection, in the order they are asked.
    pub fn objections(&self) -> impl Iterator<Item = (Gate, Option<Objection>)> + '_ {
        ORDER.into_iter().map(|gate| {
            let objection = match gate {
                Gate::Drain => self.drain.objection,
                Gate::Retries => self.retries.objection,
                Gate::Breaker => self.breaker.objection,
                Gate::Size => self.size.objection,
                Gate::Rates => self.rates.objection,
                Gate::Budgets => self.budgets.objection,
                Gate::Queue => self.queue.objection,
                Gate::Wait => self.wait.objection,
            };
            (gate, objection)
        })
    }

    /// What would become of the request: what the first gate that objects says, else whether it is its turn. One that
    /// has no time to wait and is not dispatched at once expires at once.
    #[must_use]
    pub fn prospect(&self) -> Prospect {
        if let Some(objection) = self.objections().find_map(|(_, objection)| objection) {
            return Prospect::Refused(objection);
        }
        let its_turn = match self.breaker.found.passage {
            Passage::Open => self.turn.next,
            Passage::OneProbe => self.turn.probes,
            Passage::Shut => false,
        };
        if its_turn && self.window.fits && self.window_decides {
            return Prospect::Dispatched;
        }
        match self.wait.found.allowed {
            Limit::AtMost(Span::ZERO) => {
                let wait = self.wait.found.predicted.into();
                Prospect::Refused(Objection { reason: Reason::Expired { waited: Span::ZERO }, wait })
            }
            Limit::AtMost(_) | Limit::Unlimited => Prospect::Queued,
        }
    }
}
