//! Follows every effect of the core and judges it by the rules alone.
//!
//! A request is answered once, or withdrawn. A ticket is handed out once and settled once. Per request, what was
//! reserved is what was settled, refunded and still runs. Windows, queues and fan-out stay within their caps, nobody
//! waits past a deadline, and an empty pool with somebody eligible does not stand still.

use std::collections::BTreeMap;
use std::sync::Arc;

use tallygate::admission::{Effect, Ending, Engine, Event, Input, Outcome, Reported, Verdict};
use tallygate::ledger::{Entry, Movement};
use tallygate::policy::Policy;
use tallygate::units::{Instant, PoolIndex, RequestId, TicketId, VirtualTokens};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Waiting,
    Running(TicketId),
    Ended,
}

#[derive(Debug, Default)]
struct Account {
    reserved: VirtualTokens,
    ended: VirtualTokens,
}

#[derive(Debug)]
pub struct Books {
    policy: Arc<Policy>,
    requests: u64,
    states: BTreeMap<RequestId, State>,
    accounts: BTreeMap<RequestId, Account>,
    settled: Vec<TicketId>,
    /// The ticket the operation under way settles, if it runs.
    settling: Option<TicketId>,
    /// The request the operation under way withdraws, if it waits.
    cancelling: Option<RequestId>,
}

impl Books {
    pub fn new(policy: Arc<Policy>) -> Self {
        Self {
            policy,
            requests: 0,
            states: BTreeMap::new(),
            accounts: BTreeMap::new(),
            settled: Vec::new(),
            settling: None,
            cancelling: None,
        }
    }

    pub fn next_request(&mut self) -> RequestId {
        self.requests += 1;
        RequestId::new(self.requests)
    }

    pub fn some_request(&self, which: u8) -> Option<RequestId> {
        let ids: Vec<RequestId> = self.states.keys().copied().collect();
        (!ids.is_empty()).then(|| ids[usize::from(which) % ids.len()])
    }

    pub fn some_ticket(&self, which: u8) -> Option<TicketId> {
        let running = self.running();
        (!running.is_empty()).then(|| running[usize::from(which) % running.len()])
    }

    pub fn some_settled(&self, which: u8) -> Option<TicketId> {
        (!self.settled.is_empty()).then(|| self.settled[usize::from(which) % self.settled.len()])
    }

    fn running(&self) -> Vec<TicketId> {
        let ticket = |state: &State| if let State::Running(ticket) = state { Some(*ticket) } else { None };
        self.states.values().filter_map(ticket).collect()
    }

    /// What ends everything that runs.
    pub fn endings(&self) -> Vec<Input> {
        let lost = Ending { outcome: Outcome::Lost, usage: Reported::Nothing, heard: None };
        self.running().into_iter().map(|ticket| Input::Settle { ticket, ending: lost }).collect()
    }

    pub fn before(&mut self, input: &Input) {
        (self.settling, self.cancelling) = (None, None);
        match input {
            Input::Arrive(request) => {
                self.states.insert(request.id, State::Waiting);
            }
            Input::Settle { ticket, .. } => self.settling = self.running().contains(ticket).then_some(*ticket),
            Input::Cancel(request) => {
                self.cancelling = (self.states.get(request) == Some(&State::Waiting)).then_some(*request);
            }
            Input::Progress { .. }
            | Input::Began { .. }
            | Input::Gauges { .. }
            | Input::Grant(_)
            | Input::Count(_)
            | Input::Restore(_)
            | Input::Calendar(_)
            | Input::Drain
            | Input::Flush
            | Input::Tick => {}
        }
    }

    pub fn after(&mut self, now: Instant, effects: &[Effect]) {
        for effect in effects {
            match effect {
                Effect::Answer { request, verdict } => self.answer(*request, verdict),
                Effect::Post(entry) => self.post(entry),
                // The core makes none where nothing but itself keeps budgets.
                Effect::Debit(debit) => panic!("{debit:?}"),
                Effect::Counted(standings) => panic!("nobody asked: {standings:?}"),
                Effect::Emit(event) => self.event(now, event),
            }
        }
        assert_eq!(self.settling, None, "a running ticket was settled and no event says so");
        assert_eq!(self.cancelling, None, "a waiting request was withdrawn and no event says so");
    }

    fn answer(&mut self, request: RequestId, verdict: &Verdict) {
        let next = match verdict {
            Verdict::Admitted(ticket) => {
                assert!(!self.settled.contains(&ticket.id) && !self.running().contains(&ticket.id), "a ticket twice");
                assert_eq!(ticket.request, request);
                State::Running(ticket.id)
            }
            Verdict::Refused(refusal) => {
                assert_eq!(refusal.request, request);
                State::Ended
            }
        };
        assert_eq!(self.states.insert(request, next), Some(State::Waiting), "{request} was answered twice");
    }

    fn post(&mut self, entry: &Entry) {
        assert!(entry.amount >= VirtualTokens::ZERO, "{entry:?}");
        let account = self.accounts.entry(entry.request).or_default();
        match entry.movement {
            Movement::Reserve => account.reserved += entry.amount,
            Movement::Settle | Movement::Refund => account.ended += entry.amount,
        }
        assert!(account.ended <= account.reserved, "more was ended than reserved: {entry:?}");
    }

    fn event(&mut self, now: Instant, event: &Event) {
        match event {
            Event::Settled { request, ticket, .. } => {
                assert_eq!(self.states.insert(*request, State::Ended), Some(State::Running(*ticket)));
                assert_eq!(self.settling.take(), Some(*ticket), "settled without being asked to");
                self.settled.push(*ticket);
            }
            Event::Cancelled { request, .. } => {
                // It may have expired at this very step, and was then refused instead.
                assert_eq!(self.states.insert(*request, State::Ended), Some(State::Waiting));
                assert_eq!(self.cancelling.take(), Some(*request));
            }
            Event::Refused { refusal, .. } => {
                if self.cancelling == Some(refusal.request) {
                    self.cancelling = None;
                }
            }
            Event::UnknownTicket { ticket, .. } => assert!(self.settled.contains(ticket), "{ticket} runs"),
            Event::Queued { at, .. }
            | Event::Dispatched { at, .. }
            | Event::Charged { at, .. }
            | Event::Vacated { at, .. }
            | Event::Demoted { at, .. }
            | Event::Shadowed { at, .. }
            | Event::Hit { at, .. }
            | Event::WindowMoved { at, .. }
            | Event::Breaker { at, .. } => assert!(*at <= now),
        }
    }

    pub fn judge(&self, now: Instant, engine: &Engine) {
        for (request, state) in &self.states {
            let balanced = self.accounts.get(request).is_none_or(|account| account.reserved == account.ended);
            assert!(*state != State::Ended || balanced, "{request} ended and something of it still runs");
        }
        let waiting = self.states.values().filter(|state| **state == State::Waiting).count();
        let queued: u32 = engine.queues().iter().map(|queue| queue.requests).sum();
        assert_eq!(waiting, queued as usize, "who waits");
        if let Some(wakeup) = engine.next_wakeup() {
            assert!(wakeup > now, "somebody is past its deadline");
        }
        for view in engine.pools() {
            let pool = &self.policy.pools[view.pool.index()];
            assert!(pool.window.requests.allows(view.in_flight_requests), "the window is exceeded: {view:?}");
            if view.in_flight_requests == 0 {
                assert!(engine.head(view.pool).is_none(), "an empty pool stands still before an eligible request");
            }
            let queued =
                engine.queues().iter().filter(|queue| queue.pool == view.pool).map(|queue| queue.requests).sum();
            assert!(pool.queue.pool.requests.allows(queued), "the queue is over its cap: {queued}");
        }
        self.judge_fanout(engine);
    }

    fn judge_fanout(&self, engine: &Engine) {
        let mut by_tenant: BTreeMap<String, u32> = BTreeMap::new();
        for view in engine.tenants() {
            *by_tenant.entry(view.tenant.to_string()).or_default() += view.in_flight_requests;
            let cap = self.policy.pools[view.pool.index()].queue.tenant.requests;
            assert!(cap.allows(view.queued_requests), "a tenant's queue is over its cap: {view:?}");
        }
        for (tenant, in_flight) in by_tenant {
            assert!(self.policy.fanout.per_tenant.allows(in_flight), "{tenant} has {in_flight} in flight");
        }
    }

    /// Everything has ended: nothing waits, nothing runs, every book is closed.
    pub fn assert_closed(&self, engine: &Engine) {
        assert!(engine.requests().is_empty(), "left over: {:?}", engine.requests());
        for pool in (0..).zip(&self.policy.pools).map(|(index, _)| PoolIndex::new(index)) {
            assert!(engine.head(pool).is_none());
        }
        for (request, account) in &self.accounts {
            assert_eq!(account.reserved, account.ended, "{request} is not closed");
        }
    }
}
