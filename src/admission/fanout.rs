//! Fan-out caps: how many requests of one session, and of one tenant, may be in flight at once.
//!
//! *Decides* whether a principal takes part in the contest at all. One at its cap is skipped and its excess
//! waits inside it; nothing is refused for it. Because the block is its own, it leaves the lift's minimum and
//! is lifted again on return, see [`vtc`](super::vtc). *Formula:* blocked while `in flight ≥ cap`. The caps hold
//! over all pools and classes, since an agent that opens fifty requests does not care where they go. *At idle*
//! nothing is remembered: a count of zero is dropped. A request that names no session has no session cap.
//! *Never* interrupts a request in flight.

use std::collections::BTreeMap;

use crate::policy::model;
use crate::units::{Limit, SessionId, TenantId};

use super::request::Subject;

/// What is in flight of one principal, against its cap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InFlight {
    /// Requests dispatched and unfinished.
    pub requests: u32,
    /// The most there may be.
    pub cap: u32,
}

/// What the fan-out caps say of a request. It is never refused for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FanoutFound {
    /// Its tenant's requests in flight, where a cap is set.
    pub tenant: Option<InFlight>,
    /// Its session's, where it names one and a cap is set.
    pub session: Option<InFlight>,
    /// Whether it has to wait until one of its own ends, whatever room there is.
    pub waits_for_own: bool,
}

/// Requests in flight by tenant and session, against their caps.
#[derive(Debug)]
pub(super) struct Fanout {
    caps: model::Fanout,
    tenants: BTreeMap<TenantId, u32>,
    sessions: BTreeMap<(TenantId, SessionId), u32>,
}

impl Fanout {
    pub(super) fn new(caps: model::Fanout) -> Self {
        Self { caps, tenants: BTreeMap::new(), sessions: BTreeMap::new() }
    }

    pub(super) fn blocks_tenant(&self, tenant: &TenantId) -> bool {
        self.caps.per_tenant.is_limited() && !may_add(self.caps.per_tenant, self.tenants.get(tenant))
    }

    pub(super) fn blocks_session(&self, tenant: &TenantId, session: Option<&SessionId>) -> bool {
        match session {
            Some(session) if self.caps.per_session.is_limited() => {
                !may_add(self.caps.per_session, self.sessions.get(&(tenant.clone(), session.clone())))
            }
            Some(_) | None => false,
        }
    }

    /// What is in flight of a subject, against its caps.
    pub(super) fn found(&self, subject: &Subject) -> FanoutFound {
        let session = subject.session.as_ref();
        let of_session = session.map(|session| (subject.tenant.clone(), session.clone()));
        let in_flight = |cap: Limit<u32>, count: Option<&u32>| {
            let cap = cap.cap()?;
            Some(InFlight { requests: count.copied().unwrap_or(0), cap })
        };
        FanoutFound {
            tenant: in_flight(self.caps.per_tenant, self.tenants.get(&subject.tenant)),
            session: of_session.and_then(|key| in_flight(self.caps.per_session, self.sessions.get(&key))),
            waits_for_own: self.blocks(subject),
        }
    }

    /// Counts a dispatch. Returns whether somebody is blocked now who was not before.
    pub(super) fn take(&mut self, subject: &Subject) -> bool {
        if self.caps.per_tenant.is_limited() {
            *self.tenants.entry(subject.tenant.clone()).or_default() += 1;
        }
        if let (true, Some(session)) = (self.caps.per_session.is_limited(), &subject.session) {
            *self.sessions.entry((subject.tenant.clone(), session.clone())).or_default() += 1;
        }
        self.blocks(subject)
    }

    /// Counts an end. Returns whether somebody was blocked until now.
    pub(super) fn release(&mut self, subject: &Subject) -> bool {
        let blocked = self.blocks(subject);
        if self.caps.per_tenant.is_limited() {
            decrement(&mut self.tenants, &subject.tenant);
        }
        if let (true, Some(session)) = (self.caps.per_session.is_limited(), &subject.session) {
            decrement(&mut self.sessions, &(subject.tenant.clone(), session.clone()));
        }
        blocked
    }

    fn blocks(&self, subject: &Subject) -> bool {
        self.blocks_tenant(&subject.tenant) || self.blocks_session(&subject.tenant, subject.session.as_ref())
    }
}

fn may_add(cap: Limit<u32>, in_flight: Option<&u32>) -> bool {
    cap.allows(in_flight.copied().unwrap_or(0).saturating_add(1))
}

fn decrement<K: Ord>(counts: &mut BTreeMap<K, u32>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}
