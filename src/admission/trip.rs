//! What a breaker's change does to whoever waits, and what it says to whoever comes.
//!
//! *Decides* who of a queue leaves when an upstream is left alone: whoever's deadline is not after the end of that time,
//! since nothing can become of it before. Who can wait longer does. Newcomers are refused for as long as it lasts, and
//! told a time after it that grows with what was promised to those refused before them, at the rate at which their class
//! was served: so they come back one after the other, and no herd meets an upstream that has just recovered. *Bound:* one
//! walk along the queue at each trip. *Never* refuses anybody for a spent budget: then the wait grows by the pause, and
//! its own gate says whether that is too long.

use std::collections::BTreeSet;

use crate::units::{ClassIndex, Instant, PoolIndex, Span, TenantId, TicketId};

use super::breaker::Sent;
use super::circuit::{BreakerStage, Shift};
use super::engine::Engine;
use super::event::Event;
use super::order::{Objection, Question, Wait};
use super::own::Own;
use super::pool::Pool;
use super::refusal::{Level, Reason};
use super::request::Subject;
use super::ticket::Ending;
use super::tree::Slot;

impl Engine {
    /// Lets every trip and pause end whose time has come.
    pub(super) fn turn_breakers(&mut self) {
        let now = self.now();
        for pool in 0..self.pools.len() {
            let shifts = self.pools[pool].breaker.turn(now);
            let index = self.pools[pool].index;
            self.shifted(index, shifts);
        }
    }

    /// The first output of a request is there.
    pub(super) fn upstream_produces(&mut self, subject: &Subject, ticket: TicketId) {
        let sent = Sent { at: self.now(), ticket, tenant: &subject.tenant };
        let shifts = self.pools[subject.pool.index()].breaker.produced(sent);
        self.shifted(subject.pool, shifts);
    }

    /// A request's life upstream has ended.
    pub(super) fn upstream_ended(&mut self, subject: &Subject, ticket: TicketId, ending: &Ending) {
        let now = self.now();
        if ending.is_good() {
            self.retries.succeeded(&subject.tenant, now);
        }
        if let Some(further @ 1..) = ending.heard.map(|heard| heard.further_attempts) {
            self.retries.passed(&subject.tenant, further, now);
        }
        let sent = Sent { at: now, ticket, tenant: &subject.tenant };
        let shifts = self.pools[subject.pool.index()].breaker.land(sent, ending);
        self.shifted(subject.pool, shifts);
    }

    fn shifted(&mut self, pool: PoolIndex, shifts: Vec<Shift>) {
        let own = Own::new(&self.fanout, &self.limits, self.now());
        self.pools[pool.index()].follow_breaker(own);
        let at = self.now();
        for Shift { tenant, stage } in shifts {
            self.emit(Event::Breaker { at, pool, tenant: tenant.clone(), stage });
            if let BreakerStage::Tripped { until } = stage {
                self.refuse_hopeless(pool, tenant.as_ref(), until);
            }
        }
    }

    /// Refuses whoever waits, of a tenant or of all, and cannot outlast the trip; in the order in which they came.
    fn refuse_hopeless(&mut self, pool: PoolIndex, tenant: Option<&TenantId>, until: Instant) {
        let waiting = self.pools[pool.index()].tree.waiting.iter();
        let theirs =
            waiting.filter(|(_, waiting)| tenant.is_none_or(|tenant| waiting.request.subject.tenant == *tenant));
        let hopeless = theirs.filter(|(_, waiting)| waiting.deadline <= until);
        let mut hopeless: Vec<(u64, Slot)> = hopeless.map(|(slot, waiting)| (waiting.number, slot)).collect();
        hopeless.sort_unstable();
        let (level, left) = (tenant.map_or(Level::Pool, |_| Level::Tenant), until.since(self.now()));
        for (_, slot) in hopeless {
            let waiting = self.withdraw(pool, slot);
            let wait = self.question(self.now(), &waiting.request).after_trip(left);
            self.refuse_waiting(&waiting, Reason::BreakerTripped { level, left }, wait);
        }
    }

    /// A wait that is no shorter than nothing is let through.
    pub(super) fn after_shut(&self, subject: &Subject, wait: Wait) -> Wait {
        let shut_for = self.pools[subject.pool.index()].breaker.shut_for(&subject.tenant, self.now());
        match wait {
            Wait::For(span) => Wait::For(span.max(shut_for)),
            Wait::Unknown if shut_for > Span::ZERO => Wait::For(shut_for),
            other @ (Wait::Unknown | Wait::Forever) => other,
        }
    }
}

impl Pool {
    /// Brings the places of those up to date whom the breaker holds back, or no longer does.
    pub(super) fn follow_breaker(&mut self, own: Own<'_>) {
        if self.breaker.barred().eq(self.tree.barred()) {
            return;
        }
        let barred: BTreeSet<TenantId> = self.breaker.barred().cloned().collect();
        let before = self.tree.bar(barred.clone());
        for tenant in barred.symmetric_difference(&before) {
            for class in (0u16..).take(self.tree.classes.len()).map(ClassIndex::new) {
                if let Some(node) = self.tree.find_tenant(class, tenant) {
                    self.tree.refresh_tenant(node, own);
                }
            }
        }
    }
}

impl Question<'_> {
    pub(super) fn breaker(&self) -> Result<(), Objection> {
        match self.pool.breaker.refuses(&self.request.subject.tenant) {
            Some((level, until)) => {
                let left = until.since(self.now);
                Err(Objection { reason: Reason::BreakerTripped { level, left }, wait: self.after_trip(left) })
            }
            None => Ok(()),
        }
    }

    /// When the trip is over, and whoever was told to come back before is served.
    pub(super) fn after_trip(&self, left: Span) -> Wait {
        match self.after(self.pool.ahead(self.request, &self.all_promised).work()) {
            Wait::For(served) => Wait::For(left.saturating_add(served)),
            Wait::Unknown | Wait::Forever => Wait::For(left),
        }
    }

    /// A predicted wait, and before it the pause of a spent budget. A pause is known where a rate is not.
    pub(super) fn not_before_pause(&self, predicted: Option<Span>) -> Option<Span> {
        match self.pool.breaker.shut_for(&self.request.subject.tenant, self.now) {
            Span::ZERO => predicted,
            shut => Some(predicted.unwrap_or(Span::ZERO).saturating_add(shut)),
        }
    }
}
