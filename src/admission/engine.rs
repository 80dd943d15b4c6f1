//! The machine: `(now, input)` in, effects out.
//!
//! Every entry is one step: time moves, what expired is refused, the input is taken, and then whatever the
//! windows let go is dispatched. Nothing here waits, reads a clock, or draws unseeded chance, so equal inputs
//! give equal decisions under Envoy, the proxy, tower and the simulator alike.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rand::SeedableRng;
use rand::rngs::StdRng;

use crate::ledger::{Account, Entry, Movement};
use crate::policy::Policy;
use crate::policy::model::{Algorithm, Charge};
use crate::units::{
    Calendar, ClassIndex, Instant, Limit, PoolIndex, RequestId, Span, TicketId, Tokens, VirtualTokens, Weight,
};

use super::displace::Victim;
use super::effect::{Effect, Verdict};
use super::event::Event;
use super::fanout::{Fanout, Left};
use super::flight::Flight;
use super::input::{Input, Restored};
use super::limits::{Hit, Limits};
use super::order::{Question, Wait};
use super::own::Own;
use super::pool::{Pool, Slots};
use super::promise::{Promised, until_bearable};
use super::refusal::Reason;
use super::request::{Request, Subject};
use super::retry::{Retries, Try};
use super::rule::Keeping;
use super::ticket::Ticket;
use super::tree::{Arrival, Place, Slot, Waiting};
use super::window::Opening;

/// How a core is set up, beside its policy.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Decides everything that is left to chance: the jitter of retry times.
    pub seed: u64,
    /// Who decides that something may be dispatched.
    pub slots: Slots,
    /// What the calendar says.
    pub calendar: Calendar,
    /// Who keeps what budgets have granted.
    pub keeping: Keeping,
}

/// The admission core.
#[derive(Debug)]
pub struct Engine {
    pub(super) policy: Arc<Policy>,
    pub(super) pools: Vec<Pool>,
    pub(super) flights: BTreeMap<TicketId, Flight>,
    pub(super) fanout: Fanout,
    pub(super) retries: Retries,
    pub(super) limits: Limits,
    queued: BTreeMap<RequestId, (PoolIndex, Slot)>,
    expiry: BTreeSet<(Instant, RequestId)>,
    arrivals: u64,
    tickets: u64,
    draining: bool,
    now: Instant,
    pub(super) rng: StdRng,
    pub(super) effects: Vec<Effect>,
}

impl Engine {
    /// A core with nothing queued and nothing in flight.
    #[must_use]
    pub fn new(policy: Arc<Policy>, options: Options) -> Self {
        let pools = (0u16..).zip(&policy.pools);
        let pools = pools.map(|(n, _)| Pool::new(&policy, PoolIndex::new(n), options.seed, options.slots)).collect();
        Self {
            pools,
            flights: BTreeMap::new(),
            fanout: Fanout::new(policy.fanout),
            retries: Retries::new(policy.retries),
            limits: Limits::new(&policy, options.calendar, options.keeping),
            queued: BTreeMap::new(),
            expiry: BTreeSet::new(),
            arrivals: 0,
            tickets: 0,
            draining: false,
            now: Instant::EPOCH,
            rng: StdRng::seed_from_u64(options.seed),
            effects: Vec::new(),
            policy,
        }
    }

    /// One step. Time never runs backwards: an earlier `now` counts as the latest seen.
    ///
    /// A request's id must not be in use already, and its pool and class must be the policy's.
    pub fn on(&mut self, now: Instant, input: Input) -> Vec<Effect> {
        self.now = self.now.max(now);
        self.limits.advance(self.now);
        let own = Own::new(&self.fanout, &self.limits, self.now);
        self.pools.iter_mut().for_each(|pool| pool.tree.unhold(own));
        for pool in &mut self.pools {
            pool.count_vacancy(self.now);
            pool.promises.lapse(self.now);
            pool.window.step(self.now);
        }
        self.turn_breakers();
        self.expire();
        match input {
            Input::Arrive(request) => self.arrive(request),
            Input::Cancel(request) => self.cancel(request),
            Input::Progress { ticket, output } => self.progress(ticket, output),
            Input::Began { ticket, since } => self.began(ticket, since),
            Input::Settle { ticket, ending } => self.settle(ticket, ending),
            Input::Grant(pool) => self.grant(pool),
            Input::Count(hits) => self.count(&hits),
            Input::Restore(kept) => self.restore(kept),
            Input::Calendar(calendar) => self.limits.synchronise(calendar, self.now),
            Input::Gauges { pool, source, taken_at, gauges } => self.read(pool, source, taken_at, gauges),
            Input::Drain => self.draining = true,
            Input::Flush => self.flush(),
            Input::Tick => {}
        }
        self.pump();
        // A newcomer whose deadline is now had its chance; its place may have held others up.
        if self.next_wakeup().is_some_and(|deadline| deadline <= self.now) {
            self.expire();
            self.pump();
        }
        std::mem::take(&mut self.effects)
    }

    /// When [`Input::Tick`] is due if nothing happens before: the earliest deadline in the queue, the moment at which a
    /// rate allows what it holds back, the one at which an adaptive window lets the next request go, or the one at which
    /// a breaker turns.
    #[must_use]
    pub fn next_wakeup(&self) -> Option<Instant> {
        let held = self.pools.iter().filter_map(|pool| pool.tree.next_unheld());
        let opens = self.pools.iter().filter_map(Pool::opens_at);
        let turns = self.pools.iter().filter_map(|pool| pool.breaker.turns_at());
        held.chain(opens).chain(turns).chain(self.expiry.first().map(|(deadline, _)| *deadline)).min()
    }

    pub(super) fn now(&self) -> Instant {
        self.now
    }

    /// What a ledger has kept counts as used.
    fn restore(&mut self, kept: Vec<Restored>) {
        for Restored { budget, owner, period, upto } in kept {
            self.limits.restore(budget, period, &owner, upto);
        }
    }

    /// Counts use of rates by what is no request here.
    fn count(&mut self, hits: &[Hit]) {
        let standings = self.limits.count(self.now, hits);
        let known = |hit: &Hit| usize::from(hit.limit) < self.policy.limits.len();
        let told: Vec<_> = hits.iter().zip(&standings).filter(|(hit, _)| known(hit)).collect();
        for (hit, standing) in told {
            let (limit, kind, outcome) = (hit.limit, hit.kind, standing.outcome);
            self.emit(Event::Hit { at: self.now, limit, kind, outcome });
        }
        self.effects.push(Effect::Counted(standings));
    }

    fn arrive(&mut self, mut request: Box<Request>) {
        debug_assert!(!self.queued.contains_key(&request.id), "request ids are never reused");
        if let Some(demotion) = self.limits.demotion(self.now, &request) {
            request.subject.class = demotion.to;
            let subject = request.subject.clone();
            self.emit(Event::Demoted { at: self.now, request: request.id, subject, demotion });
        }
        let cost = request.price.cost(&request.expected);
        let pool = request.subject.pool;
        let question = self.question(self.now, &request);
        let (deadline, at_once) = (question.deadline, question.takes_at_once());
        let asked = question.ask();
        let which = self.retries.which(&request, self.now);
        self.retries.came(&request, self.now);
        self.pools[pool.index()].promises.redeem(&request.subject, request.attempt, self.now);
        match asked {
            Err(objection) => {
                let retry = self.retry(self.after_shut(&request.subject, objection.wait));
                if objection.reason.is_of_the_queue() {
                    self.promise(&request, cost, retry);
                }
                self.limits.told(self.now, &request, objection.reason);
                self.refuse(&request, objection.reason, retry, Span::ZERO);
            }
            Ok(victims) => {
                self.retries.passed(&request.subject.tenant, u32::from(which == Try::Again), self.now);
                for victim in victims {
                    self.displace(pool, victim);
                }
                self.enqueue(request, deadline, cost, at_once);
            }
        }
    }

    /// What the gates are asked about a request at a moment.
    pub(super) fn question<'a>(&'a self, now: Instant, request: &'a Request) -> Question<'a> {
        let deadline = self.deadline(now, request);
        let pool = &self.pools[request.subject.pool.index()];
        let promised = if pool.promises.redeems(&request.subject, request.attempt, now) {
            Promised::default()
        } else {
            pool.expected_back(request, deadline, now)
        };
        let all_promised = pool.promises.promised(&request.subject, Instant::FAR);
        let (fanout, limits, retries, draining) = (&self.fanout, &self.limits, &self.retries, self.draining);
        Question { now, request, deadline, pool, fanout, limits, retries, promised, all_promised, draining }
    }

    /// The class's `max_wait` or the client's own deadline, whichever is sooner.
    fn deadline(&self, now: Instant, request: &Request) -> Instant {
        let class = &self.policy.classes[request.subject.class.index()];
        let patience = match class.max_wait {
            Limit::AtMost(span) => now + span,
            Limit::Unlimited => Instant::FAR,
        };
        request.deadline.map_or(patience, |deadline| deadline.min(patience))
    }

    fn enqueue(&mut self, request: Box<Request>, deadline: Instant, cost: VirtualTokens, at_once: bool) {
        let (id, subject) = (request.id, request.subject.clone());
        self.post(&subject, id, Movement::Reserve, cost);
        for rule in self.limits.shadows(self.now, &request) {
            self.emit(Event::Shadowed { at: self.now, request: id, subject: subject.clone(), rule });
        }
        let holds = self.limits.hold(self.now, &request);
        self.keep();
        self.limits.joins(&request);
        self.arrivals += 1;
        let arrival = Arrival { request, number: self.arrivals, arrived_at: self.now, deadline, cost, holds };
        let slot = self.pools[subject.pool.index()].tree.push(arrival, Own::new(&self.fanout, &self.limits, self.now));
        self.queued.insert(id, (subject.pool, slot));
        if deadline < Instant::FAR {
            self.expiry.insert((deadline, id));
        }
        if !at_once {
            self.emit(Event::Queued { at: self.now, request: id, subject });
        }
    }

    /// Takes a waiting request out of every index but its principals' places.
    fn dequeue(&mut self, pool: PoolIndex, slot: Slot) -> Waiting {
        let waiting = self.pools[pool.index()].tree.take(slot);
        self.limits.leaves(&waiting.request);
        self.queued.remove(&waiting.request.id);
        self.expiry.remove(&(waiting.deadline, waiting.request.id));
        waiting
    }

    /// Takes a waiting request out for good and releases its hold.
    pub(super) fn withdraw(&mut self, pool: PoolIndex, slot: Slot) -> Waiting {
        let mut waiting = self.dequeue(pool, slot);
        self.limits.release(self.now, std::mem::take(&mut waiting.holds));
        if waiting.vacancy.is_positive() {
            let Request { id, ref subject, weight, .. } = *waiting.request;
            self.move_counters(waiting.place, subject.clone(), id, waiting.vacancy, weight);
            self.emit(Event::Vacated { at: self.now, request: id, subject: subject.clone(), amount: waiting.vacancy });
        }
        self.pools[pool.index()].tree.refresh(waiting.place, Own::new(&self.fanout, &self.limits, self.now));
        self.post(&waiting.request.subject, waiting.request.id, Movement::Refund, waiting.cost);
        waiting
    }

    fn cancel(&mut self, request: RequestId) {
        let Some((pool, slot)) = self.queued.get(&request).copied() else { return };
        let waiting = self.withdraw(pool, slot);
        let waited = self.now.since(waiting.arrived_at);
        self.emit(Event::Cancelled { at: self.now, request, subject: waiting.request.subject, waited });
    }

    fn displace(&mut self, pool: PoolIndex, victim: Victim) {
        let waiting = self.withdraw(pool, victim.slot);
        let class = &self.pools[pool.index()].tree.classes[waiting.place.class.index()];
        let promised = self.pools[pool.index()].promises.promised(&waiting.request.subject, Instant::FAR);
        let work = waiting.cost + promised.of_tenant.work;
        let wait = class.drain.time_for(work, self.now).into();
        self.refuse_waiting(&waiting, victim.reason, wait);
    }

    fn expire(&mut self) {
        while let Some((deadline, request)) = self.expiry.first().copied()
            && deadline <= self.now
        {
            let Some((pool, slot)) = self.queued.get(&request).copied() else {
                self.expiry.pop_first();
                continue;
            };
            let waiting = self.withdraw(pool, slot);
            let waited = self.now.since(waiting.arrived_at);
            let pool = &self.pools[pool.index()];
            let promised = pool.promises.promised(&waiting.request.subject, Instant::FAR);
            let work = pool.ahead(&waiting.request, &promised).work();
            let wait = pool.tree.classes[waiting.place.class.index()].drain.time_for(work, self.now);
            let wait = wait.map(|predicted| until_bearable(predicted, waited)).into();
            self.refuse_waiting(&waiting, Reason::Expired { waited }, wait);
        }
    }

    fn flush(&mut self) {
        let queued: Vec<_> = self.queued.values().copied().collect();
        for (pool, slot) in queued {
            let waiting = self.withdraw(pool, slot);
            self.refuse_waiting(&waiting, Reason::Draining, Wait::Unknown);
        }
    }

    /// What is left of the limits that concern a request, once so many more of its own are in flight.
    pub(super) fn left(&self, request: &Request, more: u32) -> Left {
        Left { rules: self.limits.left(self.now, request), ..self.fanout.left(&request.subject, more) }
    }

    /// Has the grants of budgets written down that were made in this step.
    pub(super) fn keep(&mut self) {
        self.effects.extend(self.limits.due().map(Effect::Debit));
    }

    /// Dispatches whatever the windows let go.
    fn pump(&mut self) {
        // A dispatch in one pool can put a tenant at its cap in all of them, and so change the head of a pool
        // that was looked at before. Every dispatch takes a request out of the queue, so this ends.
        let mut moved = true;
        while std::mem::take(&mut moved) {
            for pool in 0..self.pools.len() {
                while let Some(slot) = self.pools[pool].ready() {
                    self.dispatch(self.pools[pool].index, slot);
                    moved = true;
                }
            }
        }
        for pool in &mut self.pools {
            pool.mark_backlog(self.now);
            pool.note_vacancy(self.now);
            pool.note_held();
        }
        self.tell_windows();
    }

    /// Tells what adaptive windows have newly found.
    fn tell_windows(&mut self) {
        for pool in &mut self.pools {
            if let Some(found) = pool.window.take_news() {
                self.effects.push(Effect::Emit(Event::WindowMoved { at: self.now, pool: pool.index, found }));
            }
        }
    }

    fn grant(&mut self, pool: PoolIndex) {
        if let Some(slot) = self.pools[pool.index()].upcoming() {
            self.dispatch(pool, slot);
        }
    }

    fn dispatch(&mut self, pool: PoolIndex, slot: Slot) {
        let Waiting { request, place, arrived_at, deadline, cost, vacancy, mut holds, .. } = self.dequeue(pool, slot);
        let holds_back = self.limits.hold_dispatched(self.now, &request, &mut holds);
        self.tickets += 1;
        let ticket = Ticket {
            id: TicketId::new(self.tickets),
            request: request.id,
            dispatched_at: self.now,
            waited: self.now.since(arrived_at),
            left: self.left(&request, 1),
            covered_by: self.limits.covered_by(&holds),
        };
        let charge = match self.policy.fairness.charge {
            Charge::Predicted => cost,
            Charge::Streamed => request.price.cost(&request.expected.input_only()),
            Charge::Completion => VirtualTokens::ZERO,
        };
        let need = request.expected.total();
        let flight = Flight {
            ticket: ticket.clone(),
            place,
            arrived_at,
            deadline,
            expected_cost: cost,
            charged: VirtualTokens::ZERO,
            vacancy,
            holds,
            reserved: cost,
            need,
            service: cost,
            output: Tokens::ZERO,
            first_output_at: None,
            request,
        };
        let node = &mut self.pools[pool.index()];
        let opening = Opening::new(need, flight.request.streamed, &flight.request.subject.tenant);
        node.window.take(ticket.id, opening, cost);
        node.depart(place, &flight, self.now);
        node.breaker.depart(ticket.id, &flight.request.subject.tenant, node.window.requests());
        self.emit_dispatched(&ticket, &flight);
        let subject = flight.request.subject.clone();
        let (weight, agent) = (flight.request.weight, flight.request.agent);
        self.flights.insert(ticket.id, flight);
        if self.fanout.take(&subject, agent) || holds_back {
            self.refresh_everywhere(&subject);
        }
        self.charge_turn(pool, ticket.id, weight);
        self.charge(ticket.id, charge);
        self.pools[pool.index()].tree.refresh(place, Own::new(&self.fanout, &self.limits, self.now));
        self.pools[pool.index()].follow_breaker(Own::new(&self.fanout, &self.limits, self.now));
        self.effects.push(Effect::Answer { request: ticket.request, verdict: Verdict::Admitted(ticket) });
    }

    fn emit_dispatched(&mut self, ticket: &Ticket, flight: &Flight) {
        self.emit(Event::Dispatched {
            at: self.now,
            request: ticket.request,
            ticket: ticket.id,
            subject: flight.request.subject.clone(),
            waited: ticket.waited,
            expected: flight.request.expected,
        });
    }

    /// Under round robin a turn costs one, whatever the request.
    fn charge_turn(&mut self, pool: PoolIndex, ticket: TicketId, weight: Weight) {
        if self.policy.fairness.algorithm == Algorithm::RoundRobin
            && let Some(flight) = self.flights.get(&ticket)
        {
            self.pools[pool.index()].tree.charge(flight.place, VirtualTokens::whole(1), weight);
        }
    }

    /// Brings a flight's charge to its fair counter up by a cost, or down. A refresh must follow.
    pub(super) fn charge(&mut self, ticket: TicketId, amount: VirtualTokens) {
        let Some(flight) = self.flights.get_mut(&ticket) else { return };
        if amount == VirtualTokens::ZERO {
            return;
        }
        flight.charged += amount;
        let (place, weight, subject) = (flight.place, flight.request.weight, flight.request.subject.clone());
        let request = flight.request.id;
        self.move_counters(place, subject, request, amount, weight);
    }

    /// Moves the counters of a request's principals. A refresh must follow.
    fn move_counters(
        &mut self,
        place: Place,
        subject: Subject,
        request: RequestId,
        amount: VirtualTokens,
        weight: Weight,
    ) {
        let tree = &mut self.pools[subject.pool.index()].tree;
        tree.sessions[place.session].charged += amount;
        if self.policy.fairness.algorithm != Algorithm::RoundRobin {
            tree.charge(place, amount, weight);
        }
        self.emit(Event::Charged { at: self.now, request, subject, amount });
    }

    /// A fan-out cap was reached or left: the principals it blocks stand in every pool and class.
    pub(super) fn refresh_everywhere(&mut self, subject: &Subject) {
        let classes = self.policy.classes.len();
        for pool in &mut self.pools {
            for class in (0u16..).take(classes).map(ClassIndex::new) {
                pool.refresh_named(class, subject, Own::new(&self.fanout, &self.limits, self.now));
            }
        }
    }

    pub(super) fn emit(&mut self, event: Event) {
        self.effects.push(Effect::Emit(event));
    }

    pub(super) fn post(&mut self, subject: &Subject, request: RequestId, movement: Movement, amount: VirtualTokens) {
        if amount.is_positive() {
            let account = Account { pool: subject.pool, class: subject.class, tenant: subject.tenant.clone() };
            self.effects.push(Effect::Post(Entry { account, request, movement, amount }));
        }
    }
}
