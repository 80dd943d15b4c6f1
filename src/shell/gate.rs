//! The handle to the core: ask it, watch it, stop it.
//!
//! What it guarantees to a door: every request it asks for is either refused, or let through with a [`Permit`] that
//! is settled exactly once whatever becomes of it. A door that stops waiting leaves the queue at once. If the core
//! ever panics its state cannot be trusted; from then on every question is answered [`Broken`], and nothing is let
//! through.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::{Notify, oneshot};

use crate::admission::{Ending, Engine, Event, Hit, Input, Keeping, Options, RateStanding, Refusal, Slots, Ticket};
use crate::costing::Experience;
use crate::ledger::{Memory, Store, StoreError};
use crate::observe::{Decisions, Journal, Metrics, Totals};
use crate::policy::Policy;
use crate::units::{DecisionId, Instant, PoolIndex, RequestId, Span, TicketId, Tokens, VirtualTokens};

use super::ask::{Ask, Quoted, asked};
use super::clock::Clock;
use super::desk::{Answer, Delivery, Desk, Said};
use super::keep::{Keeper, Uncovered};
use super::permit::Permit;
use super::watch::Watch;

/// Why a request is not let through.
#[derive(Debug)]
pub enum Denied {
    /// The core refused it.
    Refused(Refusal),
    /// The core is broken.
    Broken,
}

/// The core panicked once and is not to be trusted any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the admission core is broken; nothing is let through until a restart")]
pub struct Broken;

/// What can be seen behind the lock. Copy what is needed and leave.
#[derive(Debug)]
pub struct Seen<'a> {
    /// What time it is.
    pub now: Instant,
    /// The policy in force.
    pub policy: &'a Policy,
    /// The core.
    pub engine: &'a Engine,
    /// The books.
    pub ledger: &'a Memory,
    /// Running totals.
    pub totals: &'a Totals,
    /// What past requests taught.
    pub experience: &'a Experience,
    /// Whether the gateway is shutting down.
    pub draining: bool,
}

/// The handle to the core. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Gate(Arc<Shared>);

/// The handle of somebody who does not keep the core alive.
#[derive(Clone, Debug)]
pub struct WeakGate(Weak<Shared>);

impl WeakGate {
    /// The handle itself, while somebody else keeps the core alive.
    #[must_use]
    pub fn upgrade(&self) -> Option<Gate> {
        self.0.upgrade().map(Gate)
    }
}

/// How a gate begins.
struct Start {
    seed: u64,
    epoch: u32,
    keeper: Option<Keeper>,
}

/// How often the clocks are compared, for budgets by the calendar.
const COMPARED_EVERY: Span = Span::from_secs(60);

#[derive(Debug)]
struct Shared {
    policy: Arc<Policy>,
    clock: Clock,
    metrics: Metrics,
    decisions: Decisions,
    epoch: u32,
    requests: AtomicU64,
    desk: Mutex<Desk>,
    journal: Mutex<Journal>,
    watch: Watch,
    keeper: Option<Keeper>,
    /// Tells the timer that the core wants to be woken earlier than before.
    wake: Arc<Notify>,
    idle: Notify,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.wake.notify_one();
    }
}

impl Gate {
    /// Sets up the core of a policy and the timer that wakes it. Needs a tokio runtime.
    ///
    /// `seed` decides what the core leaves to chance; `epoch` distinguishes this start of the process from others.
    #[must_use]
    pub fn start(policy: Arc<Policy>, metrics: Metrics, decisions: Decisions, seed: u64, epoch: u32) -> Self {
        Self::with(policy, metrics, decisions, Start { seed, epoch, keeper: None })
    }

    /// The same, with what budgets grant kept in a store, and what it kept before counted as used.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn start_keeping(
        policy: Arc<Policy>,
        metrics: Metrics,
        decisions: Decisions,
        (seed, epoch): (u64, u32),
        mut store: Box<dyn Store>,
    ) -> Result<Self, StoreError> {
        let (keeper, keeping) = Keeper::new();
        let gate = Self::with(policy, metrics, decisions, Start { seed, epoch, keeper: Some(keeper) });
        gate.recall(&mut *store)?;
        tokio::spawn(keeping.with(store).go_on(gate.downgrade(), *gate.clock()));
        Ok(gate)
    }

    fn with(policy: Arc<Policy>, metrics: Metrics, decisions: Decisions, start: Start) -> Self {
        let Start { seed, epoch, keeper } = start;
        let clock = Clock::start();
        let calendar = clock.calendar();
        let keeping = if keeper.is_some() { Keeping::Ledger } else { Keeping::Memory };
        let options = Options { seed, slots: Slots::Window, calendar, keeping };
        let engine = Engine::new(policy.clone(), options);
        let wake = Arc::new(Notify::new());
        let gate = Self(Arc::new(Shared {
            desk: Mutex::new(Desk::new(&policy, engine, metrics.clone())),
            watch: Watch::new(&policy),
            keeper,
            policy,
            clock,
            metrics,
            decisions,
            epoch,
            requests: AtomicU64::new(1),
            journal: Mutex::new(Journal::new(epoch)),
            wake: wake.clone(),
            idle: Notify::new(),
        }));
        tokio::spawn(keep_time(gate.downgrade(), gate.0.clock, wake));
        if !gate.0.policy.budgets.is_empty() {
            tokio::spawn(keep_calendar(gate.downgrade(), gate.0.clock));
        }
        gate
    }

    /// A handle that does not keep the core alive.
    #[must_use]
    pub fn downgrade(&self) -> WeakGate {
        WeakGate(Arc::downgrade(&self.0))
    }

    /// The policy in force.
    #[must_use]
    pub fn policy(&self) -> &Arc<Policy> {
        &self.0.policy
    }

    /// The clock everything here goes by.
    #[must_use]
    pub fn clock(&self) -> &Clock {
        &self.0.clock
    }

    /// The metrics everything here counts in.
    #[must_use]
    pub fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }

    /// The decisions remembered.
    #[must_use]
    pub fn decisions(&self) -> &Decisions {
        &self.0.decisions
    }

    /// The name of no decision, for what is only explained.
    #[must_use]
    pub fn no_decision(&self) -> DecisionId {
        self.decision_of(RequestId::new(0))
    }

    /// Whether a decision has been named by this start of the process.
    #[must_use]
    pub fn has_named(&self, decision: DecisionId) -> bool {
        let next = self.0.requests.load(Ordering::Relaxed);
        decision.epoch == self.0.epoch && (1..next).contains(&decision.request.get())
    }

    /// What this start of the process is called in decision ids.
    #[must_use]
    pub fn epoch(&self) -> u32 {
        self.0.epoch
    }

    /// A name for the next decision.
    #[must_use]
    pub fn decision(&self) -> DecisionId {
        let request = RequestId::new(self.0.requests.fetch_add(1, Ordering::Relaxed));
        DecisionId { epoch: self.0.epoch, request }
    }

    /// The public name of a request's decision.
    #[must_use]
    pub fn decision_of(&self, request: RequestId) -> DecisionId {
        DecisionId { epoch: self.0.epoch, request }
    }

    /// Asks to be let through, and waits as long as it takes. Dropping the future leaves the queue.
    ///
    /// # Errors
    /// When the core refuses, on arrival or later, or is broken.
    pub async fn admit(&self, ask: Ask) -> Result<Permit, Denied> {
        let (to, from) = oneshot::channel();
        let mut waiting = Waiting { gate: self, request: Some(ask.decision.request), from };
        let mut quoted = None;
        let arriving = self.transact(|desk, now| {
            let (said, quote) = desk.arrive(now, &ask, to);
            quoted = Some(quote);
            said
        });
        arriving.map_err(|Broken| Denied::Broken)?;
        if let Some(quoted) = quoted {
            self.0.decisions.asked(ask.decision.request, Box::new(asked(&ask, quoted)));
        }
        // The texts are counted; what waits is only the request.
        drop(ask);
        let answer = (&mut waiting.from).await;
        waiting.request = None;
        match answer {
            Ok(Ok(permit)) => Ok(permit),
            Ok(Err(refusal)) => Err(Denied::Refused(refusal)),
            Err(_) => Err(Denied::Broken),
        }
    }

    /// What would become of a request now. Changes nothing.
    ///
    /// # Errors
    /// When the core is broken.
    pub fn explain(&self, ask: &Ask) -> Result<Quoted, Broken> {
        let desk = self.lock()?;
        Ok(desk.would(self.0.clock.now(), ask))
    }

    /// Counts use of rates by what is no request here, and tells how the rate of each stands then.
    ///
    /// # Errors
    /// When the core is broken.
    pub fn count(&self, hits: Vec<Hit>) -> Result<Vec<RateStanding>, Broken> {
        let mut standings = Vec::new();
        self.transact(|desk, now| {
            let mut said = desk.step(now, Input::Count(hits));
            standings = std::mem::take(&mut said.standings);
            said
        })?;
        Ok(standings)
    }

    /// Looks behind the lock. `look` should only copy: everybody waits for it.
    ///
    /// # Errors
    /// When the core is broken.
    pub fn look<T>(&self, look: impl FnOnce(Seen<'_>) -> T) -> Result<T, Broken> {
        let desk = self.lock()?;
        Ok(look(Seen {
            now: self.0.clock.now(),
            policy: &self.0.policy,
            engine: &desk.engine,
            ledger: &desk.ledger,
            totals: &desk.totals,
            experience: &desk.experience,
            draining: desk.is_draining(),
        }))
    }

    /// From now on newcomers are refused; what is queued is served on.
    ///
    /// # Errors
    /// When the core is broken.
    pub fn start_draining(&self) -> Result<(), Broken> {
        self.transact(Desk::drain)
    }

    /// Refuses everything still queued.
    ///
    /// # Errors
    /// When the core is broken.
    pub fn flush(&self) -> Result<(), Broken> {
        self.tell(Input::Flush)
    }

    /// Waits until nothing is queued and nothing runs.
    ///
    /// # Errors
    /// When the core is broken.
    pub async fn idle(&self) -> Result<(), Broken> {
        loop {
            let news = self.0.idle.notified();
            tokio::pin!(news);
            news.as_mut().enable();
            if self.lock()?.is_idle() {
                return Ok(());
            }
            news.await;
        }
    }

    pub(super) fn began(&self, pool: PoolIndex, ticket: &Ticket) {
        let now = self.0.clock.now();
        if let Ok(mut desk) = self.lock() {
            desk.began(pool, ticket.id, now.since(ticket.dispatched_at));
        }
        self.0.decisions.first_byte(ticket.request, now);
    }

    pub(super) fn began_since(&self, pool: PoolIndex, ticket: &Ticket, since: Instant) {
        let since = since.max(ticket.dispatched_at).min(self.0.clock.now());
        let began = self.transact(|desk, now| {
            desk.began(pool, ticket.id, since.since(ticket.dispatched_at));
            desk.step(now, Input::Began { ticket: ticket.id, since })
        });
        if began.is_ok() {
            self.0.decisions.first_byte(ticket.request, since);
        }
    }

    pub(super) fn first_token(&self, request: RequestId) {
        self.0.decisions.first_token(request, self.0.clock.now());
    }

    pub(super) fn progress(&self, ticket: TicketId, output: Tokens) {
        // A broken core keeps no counters that could be wrong.
        let _broken = self.transact(|desk, now| desk.step(now, Input::Progress { ticket, output }));
    }

    pub(super) fn keeper(&self) -> Option<&Keeper> {
        self.0.keeper.as_ref()
    }

    /// Does something with the grants that are not written. Nothing where the core is broken.
    pub(super) fn with_uncovered<T>(&self, act: impl FnOnce(&mut Uncovered) -> T) -> Option<T> {
        self.lock().ok().map(|mut desk| act(&mut desk.uncovered))
    }

    pub(super) fn watch(&self) -> &Watch {
        &self.0.watch
    }

    /// Tells the core of something that is nobody's request.
    pub(super) fn tell(&self, input: Input) -> Result<(), Broken> {
        self.transact(|desk, now| desk.step(now, input))
    }

    /// Settles a ticket, and tells what it came to.
    pub(super) fn settle(&self, ticket: TicketId, ending: Ending) -> Option<VirtualTokens> {
        let mut charged = None;
        // A broken core lets nothing through, so nothing waits for this slot.
        let _broken = self.transact(|desk, now| {
            let said = desk.step(now, Input::Settle { ticket, ending });
            charged = said.events.iter().find_map(|event| match event {
                Event::Settled { ticket: settled, cost, .. } if *settled == ticket => Some(*cost),
                _ => None,
            });
            said
        });
        charged
    }

    /// Hands verdicts to whoever waits for them.
    pub(super) fn deliver(&self, deliveries: Vec<Delivery>) {
        for Delivery { to, verdict } in deliveries {
            let answer: Answer = verdict.map(|admitted| Permit::new(self.clone(), admitted));
            // Whoever waited may have left a moment ago. Then the permit comes back and settles itself.
            drop(to.send(answer));
        }
    }

    fn lock(&self) -> Result<MutexGuard<'_, Desk>, Broken> {
        self.0.desk.lock().map_err(|_poisoned| Broken)
    }

    /// Does something behind the lock, and says what is to be said once it is released.
    fn transact(&self, act: impl FnOnce(&mut Desk, Instant) -> Said) -> Result<(), Broken> {
        let said = {
            let mut desk = self.lock()?;
            let due = desk.engine.next_wakeup();
            let said = act(&mut desk, self.0.clock.now());
            if let Some(next) = desk.engine.next_wakeup()
                && due.is_none_or(|due| next < due)
            {
                self.0.wake.notify_one();
            }
            if let Some(keeper) = &self.0.keeper
                && desk.uncovered.is_due()
            {
                keeper.wake();
            }
            if desk.is_idle() {
                self.0.idle.notify_waiters();
            }
            said
        };
        // Before anybody is told, or they would ask and find nothing.
        self.0.decisions.note(&said.events);
        self.deliver(said.deliveries);
        let mut journal = self.0.journal.lock().unwrap_or_else(PoisonError::into_inner);
        said.events.iter().for_each(|event| journal.write(&self.0.policy, event));
        Ok(())
    }
}

/// Somebody waiting for a verdict. Dropped before it came, it takes the request out of the queue.
struct Waiting<'a> {
    gate: &'a Gate,
    request: Option<RequestId>,
    from: oneshot::Receiver<Answer>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some(request) = self.request {
            // A broken core has no queue to leave.
            let _broken = self.gate.transact(|desk, now| desk.cancel(now, request));
        }
    }
}

/// Wakes the core when it asks to be. Ends with the gate, or when the core is broken.
async fn keep_time(gate: WeakGate, clock: Clock, wake: Arc<Notify>) {
    loop {
        let due = {
            let Some(gate) = gate.upgrade() else { return };
            let Ok(due) = gate.lock().map(|desk| desk.engine.next_wakeup()) else { return };
            match due {
                Some(due) if due <= clock.now() => {
                    if gate.transact(|desk, now| desk.step(now, Input::Tick)).is_err() {
                        return;
                    }
                    continue;
                }
                due => due,
            }
        };
        match due {
            Some(due) => {
                tokio::select! {
                    () = clock.sleep_until(due) => {}
                    () = wake.notified() => {}
                }
            }
            None => wake.notified().await,
        }
    }
}

/// Tells the core what the calendar says, which may be set while this runs. Ends with the gate, or when the core is broken.
async fn keep_calendar(gate: WeakGate, clock: Clock) {
    loop {
        clock.sleep(COMPARED_EVERY).await;
        let Some(gate) = gate.upgrade() else { return };
        if gate.transact(|desk, now| desk.step(now, Input::Calendar(clock.compared()))).is_err() {
            return;
        }
    }
}

#[cfg(test)]
pub(super) mod tests;
