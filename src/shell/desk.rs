//! What the lock protects: the core and everything that must change in step with it.
//!
//! One step takes an input to the core and carries out the effects: books, counts, lessons from how it went. What
//! is to be said to others (verdicts, log lines) is handed back, to be said once the lock is released.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::oneshot;

use crate::admission::{Effect, Engine, Event, Input, RateStanding, Refusal, Request, Ticket, Verdict};
use crate::costing::{Basis, Experience, Quote};
use crate::ledger::{Ledger, Memory};
use crate::observe::{Metrics, Totals};
use crate::policy::Policy;
use crate::units::{Instant, Limit, PoolIndex, RequestId, Span, TicketId, Tokens, Usage};

use super::ask::{Ask, Quoted, Sight, counting};
use super::keep::Uncovered;
use super::pace::Pace;
use super::permit::Permit;

/// What goes to whoever waits for a verdict.
pub(super) type Answer = Result<Permit, Refusal>;

/// The core and its companions.
#[derive(Debug)]
pub(super) struct Desk {
    pub(super) engine: Engine,
    pub(super) experience: Experience,
    pub(super) ledger: Memory,
    pub(super) totals: Totals,
    metrics: Metrics,
    waiting: HashMap<RequestId, Waiter>,
    flying: HashMap<TicketId, Flying>,
    paces: Vec<Pace>,
    /// The largest request of each pool.
    most: Vec<Limit<Tokens>>,
    draining: bool,
    policy: Arc<Policy>,
    /// Grants of budgets that are not written yet, and who waits for them.
    pub(super) uncovered: Uncovered,
}

#[derive(Debug)]
struct Waiter {
    to: oneshot::Sender<Answer>,
    pool: PoolIndex,
    flying: Flying,
}

#[derive(Debug)]
struct Flying {
    basis: Basis,
    expected: Usage,
    streamed: bool,
}

/// A verdict on its way.
#[derive(Debug)]
pub(super) struct Delivery {
    pub(super) to: oneshot::Sender<Answer>,
    pub(super) verdict: Result<(Ticket, PoolIndex, Usage), Refusal>,
}

/// What one step leaves to be said.
#[derive(Debug, Default)]
pub(super) struct Said {
    pub(super) deliveries: Vec<Delivery>,
    pub(super) events: Vec<Event>,
    pub(super) standings: Vec<RateStanding>,
}

impl Desk {
    pub(super) fn new(policy: &Arc<Policy>, engine: Engine, metrics: Metrics) -> Self {
        Self {
            engine,
            experience: Experience::new(policy.cost.effort),
            ledger: Memory::new(),
            totals: Totals::default(),
            metrics,
            waiting: HashMap::new(),
            flying: HashMap::new(),
            most: policy.pools.iter().map(|pool| pool.max_request_tokens).collect(),
            paces: vec![Pace::default(); policy.pools.len()],
            draining: false,
            policy: policy.clone(),
            uncovered: Uncovered::default(),
        }
    }

    /// Quotes a request and asks the core. The verdict goes to `to`, now or later. Tells what was quoted and what every
    /// gate said.
    pub(super) fn arrive(&mut self, now: Instant, ask: &Ask, to: oneshot::Sender<Answer>) -> (Said, Quoted) {
        // What has expired or lapsed by now is not to be told of as if it were there.
        let mut said = self.step(now, Input::Tick);
        let (request, basis) = self.quote(ask);
        let quoted = self.explain(now, ask, &request);
        let flying = Flying { basis, expected: request.expected, streamed: ask.call.streamed };
        let waiter = Waiter { to, pool: ask.selection.pool, flying };
        self.waiting.insert(request.id, waiter);
        let decided = self.step(now, Input::Arrive(Box::new(request)));
        said.deliveries.extend(decided.deliveries);
        said.events.extend(decided.events);
        (said, quoted)
    }

    /// What would be quoted, and what every gate would say, if this came now.
    pub(super) fn would(&self, now: Instant, ask: &Ask) -> Quoted {
        self.explain(now, ask, &self.quote(ask).0)
    }

    fn explain(&self, now: Instant, ask: &Ask, request: &Request) -> Quoted {
        Quoted {
            counted: ask.input.total(),
            counting: counting(&ask.input),
            expected: request.expected,
            output_cap: request.output_cap,
            explained: self.engine.explain(now, request),
        }
    }

    /// The request as the core is to see it, and what its prediction was made from.
    fn quote(&self, ask: &Ask) -> (Request, Basis) {
        let Ask { call, caller, selection, .. } = ask;
        let most = self.most[selection.pool.index()];
        let quote = Quote::new(call, ask.input, caller, selection, &self.experience, most);
        let request = Request {
            id: ask.decision.request,
            subject: ask.subject(),
            model: selection.model.clone(),
            user: caller.user.clone(),
            task: caller.task.clone(),
            agent: caller.agent,
            attempt: ask.patience.attempt,
            weight: selection.weight,
            price: quote.price,
            tariff: selection.tariff,
            expected: quote.expected,
            // The cap is for each answer: where their number is not known it bounds what is expected, and not what may
            // be reported.
            output_cap: if ask.sight == Sight::EndOfSome { Limit::Unlimited } else { quote.output_cap },
            choices: quote.basis.key.choices,
            bytes: call.bytes,
            deadline: self.deadline(ask, quote.expected.output()),
            streamed: call.streamed && ask.sight == Sight::Passing,
        };
        (request, quote.basis)
    }

    /// The latest useful moment of dispatch: what the client states for it, and what it states for the answer less
    /// the time until there is something of it. Never before the arrival, so that a pessimistic guess refuses
    /// nobody whom there is room for.
    fn deadline(&self, ask: &Ask, output: Tokens) -> Option<Instant> {
        let pace = self.paces[ask.selection.pool.index()];
        let dispatch = ask.patience.dispatch.map(|span| ask.arrived + span);
        let answer = ask
            .patience
            .answer
            .map(|span| ask.arrived + span.saturating_sub(pace.until_useful(ask.call.streamed, output)));
        dispatch.into_iter().chain(answer).min()
    }

    /// One step of the core.
    pub(super) fn step(&mut self, now: Instant, input: Input) -> Said {
        let mut said = Said::default();
        for effect in self.engine.on(now, input) {
            match effect {
                Effect::Answer { request, verdict } => {
                    let delivery = self.answer(request, verdict);
                    said.deliveries.extend(delivery.and_then(|delivery| self.uncovered.pass(delivery)));
                }
                Effect::Post(entry) => self.ledger.post(&entry),
                Effect::Debit(debit) => self.uncovered.grant(&self.policy, debit),
                Effect::Counted(standings) => said.standings = standings,
                Effect::Emit(event) => {
                    self.note(&event);
                    said.events.push(event);
                }
            }
        }
        said
    }

    fn answer(&mut self, request: RequestId, verdict: Verdict) -> Option<Delivery> {
        let Waiter { to, pool, flying } = self.waiting.remove(&request)?;
        let verdict = match verdict {
            Verdict::Admitted(ticket) => {
                let expected = flying.expected;
                self.flying.insert(ticket.id, flying);
                Ok((ticket, pool, expected))
            }
            Verdict::Refused(refusal) => Err(refusal),
        };
        Some(Delivery { to, verdict })
    }

    fn note(&mut self, event: &Event) {
        self.totals.note(event);
        self.metrics.note(event);
        let Event::Settled { ticket, subject, outcome, usage, estimated, lasted, .. } = event else { return };
        let Some(Flying { basis, expected, .. }) = self.flying.remove(ticket) else { return };
        if outcome.is_complete() && !estimated {
            self.experience.learn(&basis, &expected, usage);
            self.paces[subject.pool.index()].completed(usage.output(), *lasted);
        } else {
            self.experience.unreported(&basis);
        }
    }

    /// The client of a queued request left.
    pub(super) fn cancel(&mut self, now: Instant, request: RequestId) -> Said {
        if self.waiting.remove(&request).is_none() {
            return Said::default();
        }
        self.step(now, Input::Cancel(request))
    }

    /// The answer to a request began this long after it was asked for. The first byte of one that comes at once is its
    /// last, and says nothing of others.
    pub(super) fn began(&mut self, pool: PoolIndex, ticket: TicketId, after: Span) {
        if self.flying.get(&ticket).is_some_and(|flying| flying.streamed) {
            self.paces[pool.index()].began(after);
        }
    }

    /// From now on newcomers are refused.
    pub(super) fn drain(&mut self, now: Instant) -> Said {
        self.draining = true;
        self.step(now, Input::Drain)
    }

    pub(super) fn is_draining(&self) -> bool {
        self.draining
    }

    /// Whether nothing waits and nothing runs.
    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.flying.is_empty()
    }
}
