//! The gateway's side of the world: what a door does, with the network taken out.
//!
//! It identifies (the trace says who), selects, predicts, asks the core, and reports progress and endings to
//! it; books every entry; and writes down what became of each request.

mod client;
mod log;

use std::borrow::Cow;
use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::sync::Arc;

use crate::admission::{
    Attempt, Effect, Ending, Engine, Event, Input, Options, Outcome as End, Reason, Refusal, Reported, Request, Retry,
    Slots, Subject, Ticket, Verdict,
};
use crate::costing::admissible;
use crate::ledger::{Ledger, Memory, Movement};
use crate::policy::model::{Adapt, Charge, Policy, Selection};
use crate::units::{Agent, Bytes, Instant, PoolIndex, RequestId, Span, TicketId, Tokens, Usage, VirtualTokens};

use super::guess::{Guesser, key, session};
use super::{Keep, Load, Place, Run, Setup, WindowMove};
use crate::sim::demand::{Demand, Fate};
use crate::sim::engine::{Job, JobId, Progress, Watch};
use crate::sim::gradient2::Gradient2;
use crate::sim::oracle::{Booking, Fact, Party, What};
use crate::sim::record::{Outcome, Record};

/// The most faults written down.
const MOST_FAULTS: usize = 100;

/// Whether the engine's answer goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stream {
    /// Nothing special.
    Fine,
    /// The engine failed it just now.
    Broken,
}

pub(super) struct Desk<'a> {
    /// The workload, and after it whoever came back.
    demands: Cow<'a, [Demand]>,
    /// Who will come back, and has not been asked for yet.
    returning: Vec<usize>,
    policy: Arc<Policy>,
    core: Engine,
    guesser: Guesser,
    ledger: Memory,
    records: Vec<Record>,
    states: Vec<State>,
    admitted: VecDeque<(PoolIndex, usize)>,
    ended: usize,
    /// Where Gradient2 decides: each pool's limit, and what is in flight.
    limits: Vec<(Gradient2, u32)>,
    window_moves: Vec<WindowMove>,
    keep: Keep,
    /// Whether the core is told of every token as it is produced: an adaptive window learns from when.
    watches_every: bool,
    facts: Vec<Fact>,
    bookings: Vec<Booking>,
    faults: Vec<String>,
}

/// Where a request stands, as far as the desk must remember it.
#[derive(Clone, Debug)]
enum State {
    /// It has not arrived.
    Ahead,
    /// It waits in the core.
    Waiting(Box<Selection>),
    /// It was let through.
    InFlight { ticket: TicketId, selection: Box<Selection>, served: VirtualTokens, told: Tokens },
    /// It has ended.
    Ended,
}

pub(super) fn job_id(index: usize) -> JobId {
    JobId(number(index))
}

pub(super) fn index(job: JobId) -> usize {
    place(job.0)
}

fn number(index: usize) -> u64 {
    u64::try_from(index).expect("a position in memory fits 64 bits")
}

fn place(id: u64) -> usize {
    usize::try_from(id).expect("ids are positions in memory")
}

impl<'a> Desk<'a> {
    pub(super) fn new(setup: &Setup, demands: &'a [Demand]) -> Self {
        let slots = match setup.place {
            Place::Gateway => Slots::Window,
            Place::Engine | Place::Gradient2 => Slots::Granted,
        };
        Self {
            demands: demands.into(),
            returning: Vec::new(),
            policy: Arc::clone(&setup.policy),
            core: Engine::new(Arc::clone(&setup.policy), Options { seed: setup.seed, slots, ..Options::default() }),
            guesser: Guesser::new(setup.guess, setup.policy.cost.effort, setup.seed),
            ledger: Memory::new(),
            records: demands.iter().zip(0..).map(|(demand, id)| Record::ahead(demand, RequestId::new(id))).collect(),
            states: vec![State::Ahead; demands.len()],
            admitted: VecDeque::new(),
            ended: 0,
            limits: match setup.place {
                Place::Gradient2 => setup.policy.pools.iter().map(|_| (Gradient2::new(), 0)).collect(),
                Place::Gateway | Place::Engine => Vec::new(),
            },
            window_moves: Vec::new(),
            keep: setup.keep,
            watches_every: setup.keep == Keep::Log || setup.policy.pools.iter().any(|pool| pool.adapt == Adapt::Auto),
            facts: Vec::new(),
            bookings: Vec::new(),
            faults: Vec::new(),
        }
    }

    pub(super) fn ended(&self) -> usize {
        self.ended
    }

    /// How many requests there are in all, as far as is known.
    pub(super) fn asked(&self) -> usize {
        self.demands.len()
    }

    pub(super) fn demand(&self, index: usize) -> &Demand {
        &self.demands[index]
    }

    pub(super) fn next_wakeup(&self) -> Option<Instant> {
        self.core.next_wakeup()
    }

    pub(super) fn next_admitted(&mut self) -> Option<(PoolIndex, usize)> {
        self.admitted.pop_front()
    }

    /// The pool whose engine has the request.
    pub(super) fn pool_in_flight(&self, index: usize) -> Option<PoolIndex> {
        match &self.states[index] {
            State::InFlight { selection, .. } => Some(selection.pool),
            State::Ahead | State::Waiting(_) | State::Ended => None,
        }
    }

    /// The request as the engine sees it.
    pub(super) fn job(&self, index: usize) -> Job {
        let demand = &self.demands[index];
        let every = self.watches_every || matches!(demand.fate, Fate::FailsAfter(_));
        let watch = if every { Watch::Every } else { Watch::Ends };
        let output = demand.produced();
        Job { id: job_id(index), input: demand.input, cached: demand.cached, output, watch }
    }

    /// Whom a slot of this pool would go to.
    pub(super) fn head(&self, pool: PoolIndex) -> Option<usize> {
        self.core.head(pool).map(|head| place(head.request.get()))
    }

    /// Gives the head of the pool a slot and says whom it went to.
    pub(super) fn grant(&mut self, now: Instant, pool: PoolIndex) -> Option<usize> {
        self.feed(now, Input::Grant(pool));
        self.admitted.pop_front().map(|(_, index)| index)
    }

    /// Grants what Gradient2 lets through, where that decides.
    pub(super) fn let_through(&mut self, now: Instant) {
        for pool in (0..).map(PoolIndex::new).take(self.limits.len()) {
            while self.limits[pool.index()].0.allows(self.limits[pool.index()].1) && self.core.head(pool).is_some() {
                self.feed(now, Input::Grant(pool));
            }
        }
    }

    pub(super) fn wake(&mut self, now: Instant) {
        self.feed(now, Input::Tick);
    }

    pub(super) fn arrive(&mut self, now: Instant, index: usize) {
        let demand = self.demands[index].clone();
        let Some(selection) = self.policy.select(&demand.tenant, demand.class.as_deref(), &demand.model) else {
            let record = &mut self.records[index];
            record.decided = Some(now);
            record.reason = Some("model_not_found");
            self.end(index, Outcome::Refused);
            return;
        };
        let most = self.policy.pools[selection.pool.index()].max_request_tokens;
        let predicted = self.guesser.predict(&key(&demand, &selection), demand.produced());
        let predicted = admissible(predicted, demand.input, most);
        let input = self.guesser.input(session(&demand, &selection).as_ref(), demand.input);
        let record = &mut self.records[index];
        record.class = Some(Arc::clone(&self.policy.classes[selection.class.index()].name));
        record.predicted = Some(predicted);
        let request = Request {
            id: RequestId::new(number(index)),
            subject: Subject {
                pool: selection.pool,
                class: selection.class,
                tenant: demand.tenant.clone(),
                session: demand.session.clone(),
            },
            model: selection.model.clone(),
            user: None,
            task: None,
            weight: selection.weight,
            tariff: selection.tariff,
            price: selection.price,
            expected: input.with_output(predicted),
            output_cap: demand.max_tokens,
            agent: Agent::Lead,
            attempt: if demand.attempt == 0 { Attempt::First } else { Attempt::Again },
            choices: NonZeroU32::MIN,
            bytes: Bytes::ZERO,
            deadline: demand.deadline.map(|span| demand.arrival + span),
            streamed: demand.streamed,
        };
        self.log_joined(now, index, &demand, &selection, predicted);
        self.states[index] = State::Waiting(Box::new(selection));
        self.feed(now, Input::Arrive(Box::new(request)));
    }

    /// The engine produced tokens for a request.
    pub(super) fn produced(&mut self, progress: Progress) -> Stream {
        let (now, index) = (progress.at, place(progress.id.0));
        let Demand { input, cached, fate, streamed, .. } = self.demands[index];
        let Some(ticket) = self.ticket(index) else {
            self.fault(format!("{now:?} {index}: produced tokens without a ticket"));
            return Stream::Broken;
        };
        self.records[index].first_token.get_or_insert(now);
        let usage = Usage {
            uncached_input: input.saturating_sub(cached),
            cached_input: cached,
            visible_output: progress.output,
            ..Usage::default()
        };
        self.serve(now, index, &usage);
        if progress.finished {
            self.measure(now, index);
            self.settle(now, index, Ending { outcome: End::Completed, usage: Reported::Final(usage), heard: None });
            self.learn(index, Some(&usage));
            self.end(index, Outcome::Completed);
            self.ask_next(now, index);
            return Stream::Fine;
        }
        if matches!(fate, Fate::FailsAfter(tokens) if progress.output >= tokens) {
            self.abort(now, index, "upstream_failed", End::UpstreamFailed, self.counted(index, usage));
            return Stream::Broken;
        }
        if streamed {
            self.tell(now, index, ticket, progress.output);
        }
        Stream::Fine
    }

    /// How far a request has come, of which not every token is reported. Charged at dispatch, only what exceeds
    /// the prediction is news to the core.
    pub(super) fn came_to(&mut self, progress: Progress) {
        let index = place(progress.id.0);
        let State::InFlight { ticket, told, .. } = self.states[index] else { return };
        if !self.demands[index].streamed {
            return;
        }
        let known = match self.policy.fairness.charge {
            Charge::Streamed => told,
            Charge::Predicted | Charge::Completion => told.max(self.records[index].predicted.unwrap_or_default()),
        };
        if progress.output > known {
            self.tell(progress.at, index, ticket, progress.output);
        }
    }

    fn tell(&mut self, now: Instant, index: usize, ticket: TicketId, output: Tokens) {
        if let State::InFlight { told, .. } = &mut self.states[index] {
            *told = output;
        }
        self.feed(now, Input::Progress { ticket, output });
    }

    /// Tells Gradient2, where that decides, how long a request took.
    fn measure(&mut self, now: Instant, index: usize) {
        let State::InFlight { selection, .. } = &self.states[index] else { return };
        if let Some((limit, in_flight)) = self.limits.get_mut(selection.pool.index()) {
            limit.completed(now.since(self.records[index].dispatched.unwrap_or(now)), *in_flight);
        }
    }

    /// The client of a request in flight left when this much had been produced.
    pub(super) fn abandoned(&mut self, now: Instant, index: usize, produced: Tokens) {
        let usage = Usage::plain(self.demands[index].input, produced);
        if produced == Tokens::ZERO {
            // Its input is paid for, so it counts as served.
            self.serve(now, index, &usage);
        }
        self.abort(now, index, "client_left", End::ClientAborted, self.counted(index, usage));
    }

    /// What a door has counted of an answer that did not come to its end: of one in one piece, nothing.
    fn counted(&self, index: usize, usage: Usage) -> Reported {
        if self.demands[index].streamed { Reported::Counted(usage) } else { Reported::Nothing }
    }

    /// The client of a waiting request left. Harmless if it does not wait.
    pub(super) fn cancelled(&mut self, now: Instant, index: usize) {
        if !matches!(self.states[index], State::Waiting(_)) {
            return;
        }
        self.feed(now, Input::Cancel(RequestId::new(number(index))));
        if !matches!(self.states[index], State::Waiting(_)) {
            // It expired at this very moment, and the core answered first.
            return;
        }
        self.log(now, index, What::Left);
        self.records[index].reason = Some("client_left");
        self.records[index].finished = Some(now);
        self.end(index, Outcome::Aborted);
        self.again_or_next(now, index, None);
    }

    /// The engine would not take a request that was let through.
    pub(super) fn rejected(&mut self, now: Instant, index: usize) {
        self.abort(now, index, "engine_rejected", End::UpstreamFailed, Reported::Nothing);
    }

    fn abort(&mut self, now: Instant, index: usize, reason: &'static str, outcome: End, usage: Reported) {
        self.learn(index, None);
        self.settle(now, index, Ending { outcome, usage, heard: None });
        self.records[index].reason = Some(reason);
        self.end(index, Outcome::Aborted);
        match outcome {
            End::ClientAborted => self.again_or_next(now, index, None),
            _ => self.ask_next(now, index),
        }
    }

    fn settle(&mut self, now: Instant, index: usize, ending: Ending) {
        let Some(ticket) = self.ticket(index) else { return };
        self.records[index].finished = Some(now);
        self.log(now, index, What::Ended);
        self.feed(now, Input::Settle { ticket, ending });
    }

    fn learn(&mut self, index: usize, reported: Option<&Usage>) {
        let State::InFlight { selection, .. } = &self.states[index] else { return };
        let demand = &self.demands[index];
        if let Some(usage) = reported {
            let predicted = self.records[index].predicted.unwrap_or_default();
            self.guesser.learn(&key(demand, selection), predicted, usage.output());
        }
        if let Some(session) = session(demand, selection) {
            self.guesser.session_ended(session, reported);
        }
    }

    fn end(&mut self, index: usize, outcome: Outcome) {
        if self.records[index].outcome.replace(outcome).is_some() {
            self.fault(format!("request {index} ended twice"));
        }
        let was = std::mem::replace(&mut self.states[index], State::Ended);
        if let State::InFlight { selection, .. } = was
            && let Some((_, in_flight)) = self.limits.get_mut(selection.pool.index())
        {
            *in_flight -= 1;
        }
        self.ended += 1;
    }

    fn ticket(&self, index: usize) -> Option<TicketId> {
        match &self.states[index] {
            State::InFlight { ticket, .. } => Some(*ticket),
            State::Ahead | State::Waiting(_) | State::Ended => None,
        }
    }

    /// One step of the core, and all that follows from it.
    pub(super) fn feed(&mut self, now: Instant, input: Input) {
        for effect in self.core.on(now, input) {
            match effect {
                Effect::Answer { request, verdict: Verdict::Admitted(ticket) } => {
                    self.admit(now, place(request.get()), &ticket);
                }
                Effect::Answer { request, verdict: Verdict::Refused(refusal) } => {
                    self.refuse(now, place(request.get()), &refusal);
                }
                Effect::Post(entry) => {
                    self.ledger.post(&entry);
                    self.log_booking(entry);
                }
                // The core makes none where nothing but itself keeps budgets.
                Effect::Debit(_) | Effect::Counted(_) => {}
                Effect::Emit(event) => self.note(&event),
            }
        }
    }

    fn admit(&mut self, now: Instant, index: usize, ticket: &Ticket) {
        let State::Waiting(selection) = std::mem::replace(&mut self.states[index], State::Ended) else {
            self.fault(format!("{now:?} {index}: let through without waiting"));
            return;
        };
        let pool = selection.pool;
        self.states[index] =
            State::InFlight { ticket: ticket.id, selection, served: VirtualTokens::ZERO, told: Tokens::ZERO };
        self.records[index].decided = Some(now);
        self.records[index].dispatched = Some(now);
        self.log(now, index, What::Dispatched);
        if let Some((_, in_flight)) = self.limits.get_mut(pool.index()) {
            *in_flight += 1;
        }
        self.admitted.push_back((pool, index));
    }

    fn refuse(&mut self, now: Instant, index: usize, refusal: &Refusal) {
        self.log(now, index, What::Left);
        let record = &mut self.records[index];
        record.decided = Some(now);
        record.reason = Some(refusal.reason.code());
        record.retry_after = match refusal.retry {
            Retry::At(at) => Some(at.since(now)),
            Retry::Unknown | Retry::Never => None,
        };
        let (expired, told) = (matches!(refusal.reason, Reason::Expired { .. }), record.retry_after);
        self.end(index, if expired { Outcome::Expired } else { Outcome::Refused });
        match refusal.retry {
            Retry::Never => self.ask_next(now, index),
            Retry::At(_) | Retry::Unknown => self.again_or_next(now, index, told),
        }
    }

    fn note(&mut self, event: &Event) {
        match event {
            Event::Settled { request, cost, .. } => self.records[place(request.get())].charged = Some(*cost),
            Event::Vacated { at, request, amount, .. } => {
                self.log(*at, place(request.get()), What::Vacated { service: *amount });
            }
            &Event::WindowMoved { at, pool, found } => self.window_moves.push(WindowMove { at, pool, found }),
            Event::UnknownTicket { at, ticket } => self.fault(format!("{at:?} {ticket}: unknown to the core")),
            Event::Queued { .. }
            | Event::Demoted { .. }
            | Event::Shadowed { .. }
            | Event::Hit { .. }
            | Event::Dispatched { .. }
            | Event::Charged { .. }
            | Event::Refused { .. }
            | Event::Cancelled { .. }
            | Event::Breaker { .. } => {}
        }
    }

    fn fault(&mut self, what: String) {
        if self.faults.len() < MOST_FAULTS {
            self.faults.push(what);
        }
    }

    pub(super) fn finish(mut self, engine_queue_share: f64, load: Vec<Load>) -> Run {
        let standing = self.records.len() - self.ended;
        if standing > 0 {
            self.fault(format!("{standing} requests are left standing and nothing would ever move them"));
        }
        Run {
            records: self.records,
            engine_queue_share,
            load,
            accuracy: self.guesser.predictor().accuracy(),
            books: self.ledger.total(),
            window_moves: self.window_moves,
            facts: self.facts,
            bookings: self.bookings,
            faults: self.faults,
        }
    }
}
