//! Progress and the end of tickets: how the books, the counters and the window follow what really happened.

use crate::ledger::Movement;
use crate::policy::model::Charge;
use crate::units::{Instant, TicketId, Tokens, VirtualTokens};

use super::engine::Engine;
use super::event::Event;
use super::flight::Bill;
use super::own::Own;
use super::ticket::{Ending, Outcome};
use super::window::{Opening, Whole};

impl Engine {
    /// A request in flight has produced this much in all. What exceeds the prediction is charged, held and
    /// counted as it comes.
    pub(super) fn progress(&mut self, id: TicketId, output: Tokens) {
        let now = self.now();
        let charge_mode = self.policy.fairness.charge;
        let Some(flight) = self.flights.get_mut(&id) else {
            self.emit(Event::UnknownTicket { at: now, ticket: id });
            return;
        };
        if output <= flight.output {
            return;
        }
        let first = flight.first_output_at.is_none();
        flight.first_output_at.get_or_insert(now);
        flight.output = output;
        let so_far = flight.so_far();
        let due = flight.request.price.cost(&so_far);
        let need = so_far.total().saturating_sub(flight.need);
        let service = beyond(due, flight.service);
        let held = beyond(due, flight.reserved);
        let charge = match charge_mode {
            Charge::Predicted | Charge::Streamed => beyond(due, flight.charged),
            Charge::Completion => VirtualTokens::ZERO,
        };
        flight.need += need;
        flight.service += service;
        flight.reserved += held;
        let prices = (&flight.request.price, &flight.request.tariff);
        self.limits.raise(now, &mut flight.holds, &so_far, prices);
        let holds_back = self.limits.holds_back(&flight.holds);
        let (place, request, subject) = (flight.place, flight.request.id, flight.request.subject.clone());
        let pool = &mut self.pools[subject.pool.index()];
        pool.window.grow(id, need, service);
        pool.tree.tenants[place.tenant].in_flight.tokens += need;
        pool.tree.classes[place.class.index()].in_flight.tokens += need;
        self.keep();
        self.post(&subject, request, Movement::Reserve, held);
        self.charge(id, charge);
        if charge.is_positive() {
            self.pools[subject.pool.index()].tree.refresh(place, Own::new(&self.fanout, &self.limits, now));
        }
        if holds_back {
            self.refresh_everywhere(&subject);
        }
        if first {
            self.upstream_produces(&subject, id);
        }
    }

    /// The answer to a request in flight has been coming since then, though nobody says how much of it there is.
    pub(super) fn began(&mut self, id: TicketId, since: Instant) {
        let now = self.now();
        let Some(flight) = self.flights.get_mut(&id) else {
            self.emit(Event::UnknownTicket { at: now, ticket: id });
            return;
        };
        if flight.first_output_at.is_some() {
            return;
        }
        flight.first_output_at = Some(since.max(flight.ticket.dispatched_at).min(now));
        let subject = flight.request.subject.clone();
        self.upstream_produces(&subject, id);
    }

    /// A request in flight ended: counters and books are made true, the window is released.
    pub(super) fn settle(&mut self, id: TicketId, ending: Ending) {
        let now = self.now();
        let Some(flight) = self.flights.get(&id) else {
            self.emit(Event::UnknownTicket { at: now, ticket: id });
            return;
        };
        let pool = flight.request.subject.pool;
        let bill = flight.bill(ending, now, &self.pools[pool.index()].speed);
        let vacated = beyond(flight.vacancy, bill.cost);
        let (request, subject) = (flight.request.id, flight.request.subject.clone());
        self.charge(id, bill.cost + vacated - flight.charged);
        if vacated.is_positive() {
            self.emit(Event::Vacated { at: now, request, subject, amount: vacated });
        }
        self.close(id, ending, bill);
    }

    fn close(&mut self, id: TicketId, ending: Ending, bill: Bill) {
        let Some(mut flight) = self.flights.remove(&id) else { return };
        let now = self.now();
        let used = (ending.outcome != Outcome::Lost).then_some(&bill.usage);
        let prices = (&flight.request.price, &flight.request.tariff);
        let held_back = self.limits.holds_back(&flight.holds);
        self.limits.settle(now, std::mem::take(&mut flight.holds), used, prices);
        self.keep();
        let (subject, request) = (flight.request.subject.clone(), flight.request.id);
        self.post(&subject, request, Movement::Reserve, beyond(bill.cost, flight.reserved));
        self.post(&subject, request, Movement::Settle, bill.cost);
        self.post(&subject, request, Movement::Refund, beyond(flight.reserved, bill.cost));
        let pool = &mut self.pools[subject.pool.index()];
        let since_dispatch = |moment: Instant| moment.since(flight.ticket.dispatched_at);
        let whole = ending.outcome.is_complete().then(|| Whole {
            lasted: since_dispatch(now),
            silent: since_dispatch(flight.first_output_at.unwrap_or(now)),
            input: bill.usage.uncached_input + bill.usage.cache_write,
            output: bill.usage.output(),
        });
        let opening = Opening::new(flight.need, flight.request.streamed, &subject.tenant);
        pool.window.release(id, opening, flight.service, whole);
        pool.land(flight.place, &flight, bill.cost);
        if ending.outcome.is_complete() {
            pool.speed.learn(bill.usage.output(), flight.request.choices, flight.producing(now));
        }
        let was_blocking = self.fanout.release(&subject, flight.request.agent);
        self.pools[subject.pool.index()].tree.refresh(flight.place, Own::new(&self.fanout, &self.limits, now));
        if was_blocking || held_back {
            self.refresh_everywhere(&subject);
        }
        self.emit(Event::Settled {
            at: now,
            request,
            ticket: id,
            subject,
            outcome: ending.outcome,
            usage: bill.usage,
            estimated: bill.estimated,
            cost: bill.cost,
            lasted: now.since(flight.ticket.dispatched_at),
        });
        self.upstream_ended(&flight.request.subject, id, &ending);
    }
}

/// How much `due` exceeds what is covered.
fn beyond(due: VirtualTokens, covered: VirtualTokens) -> VirtualTokens {
    (due - covered).max(VirtualTokens::ZERO)
}
