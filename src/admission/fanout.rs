//! Fan-out caps: how many requests of one session, and of one tenant, may be in flight at once.
//!
//! *Decides* whether a principal takes part in the contest at all. One at its cap is skipped and its excess
//! waits inside it; nothing is refused for it. Because the block is its own, it leaves the lift's minimum and
//! is lifted again on return, see [`vtc`](super::vtc). *Formulas:*
//!
//! ```text
//! a tenant or session is blocked      while in flight ≥ cap
//! a session's sub-agents are blocked  while in flight ≥ cap, or theirs ≥ cap - 1 where the cap is 2 or more
//! ```
//!
//! so that the agent that leads a session finds a slot however many others it started. The caps hold
//! over all pools and classes, since an agent that opens fifty requests does not care where they go. *At idle*
//! nothing is remembered: a count of zero is dropped. A request that names no session has no session cap.
//! *Never* interrupts a request in flight.

use std::collections::BTreeMap;

use crate::policy::model;
use crate::units::{Agent, Limit, SessionId, TenantId};

use super::request::Subject;
use super::rule::RuleLeft;

/// What is in flight of a tenant, against its cap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TenantRunning {
    /// Requests dispatched and unfinished.
    pub requests: u32,
    /// The most there may be.
    pub cap: u32,
}

/// What is in flight of a session, against its cap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionRunning {
    /// Requests dispatched and unfinished.
    pub requests: u32,
    /// How many of them are sub-agents', of whom one fewer may be where the cap is two or more.
    pub of_sub_agents: u32,
    /// The most there may be.
    pub cap: u32,
}

/// What the fan-out caps say of a request. It is never refused for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FanoutFound {
    /// Its tenant's requests in flight, where a cap is set.
    pub tenant: Option<TenantRunning>,
    /// Its session's, where it names one and a cap is set.
    pub session: Option<SessionRunning>,
    /// Whether it has to wait until one of its own ends, whatever room there is.
    pub waits_for_own: bool,
}

/// What is left of the limits that concern a request, where there are any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Left {
    /// How many more requests of the tenant may be in flight, over all pools and classes.
    pub tenant: Option<Quota>,
    /// How many more of the session, where it names one.
    pub session: Option<Quota>,
    /// Of rates and budgets.
    pub rules: Vec<RuleLeft>,
}

/// A cap on requests in flight, and what is left of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// How many may be in flight at once.
    pub cap: u32,
    /// How many more may be now.
    pub left: u32,
}

/// Requests in flight by tenant and session, against their caps.
#[derive(Debug)]
pub(super) struct Fanout {
    caps: model::Fanout,
    tenants: BTreeMap<TenantId, u32>,
    sessions: BTreeMap<(TenantId, SessionId), InFlight>,
}

/// What a session has in flight.
#[derive(Clone, Copy, Debug, Default)]
struct InFlight {
    all: u32,
    of_sub_agents: u32,
}

/// Whom of a session there is room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    Everybody,
    /// The slot kept for the agent that leads it is all that is left.
    LeadOnly,
    Nobody,
}

impl Room {
    pub(super) fn admits(self, agent: Agent) -> bool {
        match self {
            Self::Everybody => true,
            Self::LeadOnly => agent == Agent::Lead,
            Self::Nobody => false,
        }
    }
}

impl Fanout {
    pub(super) fn new(caps: model::Fanout) -> Self {
        Self { caps, tenants: BTreeMap::new(), sessions: BTreeMap::new() }
    }

    pub(super) fn blocks_tenant(&self, tenant: &TenantId) -> bool {
        self.caps.per_tenant.is_limited() && !may_add(self.caps.per_tenant, self.tenants.get(tenant))
    }

    /// How many more may be in flight, once so many more are.
    pub(super) fn left(&self, subject: &Subject, more: u32) -> Left {
        let quota = |cap: Limit<u32>, in_flight: u32| {
            cap.cap().map(|cap| Quota { cap, left: cap.saturating_sub(in_flight.saturating_add(more)) })
        };
        let tenant = self.tenants.get(&subject.tenant).copied().unwrap_or_default();
        let session = subject.session.as_ref().and_then(|session| {
            let in_flight = self.sessions.get(&(subject.tenant.clone(), session.clone())).copied();
            quota(self.caps.per_session, in_flight.unwrap_or_default().all)
        });
        Left { tenant: quota(self.caps.per_tenant, tenant), session, rules: Vec::new() }
    }

    /// Whom of a session there is room for.
    pub(super) fn room(&self, tenant: &TenantId, session: Option<&SessionId>) -> Room {
        let (Some(session), Limit::AtMost(cap)) = (session, self.caps.per_session) else { return Room::Everybody };
        let in_flight = self.sessions.get(&(tenant.clone(), session.clone())).copied().unwrap_or_default();
        if in_flight.all >= cap {
            Room::Nobody
        } else if cap >= 2 && in_flight.of_sub_agents >= cap - 1 {
            Room::LeadOnly
        } else {
            Room::Everybody
        }
    }

    /// What is in flight of a subject, against its caps.
    pub(super) fn found(&self, subject: &Subject, agent: Agent) -> FanoutFound {
        let Subject { tenant, session, .. } = subject;
        let of_session = || {
            let cap = self.caps.per_session.cap()?;
            let key = (tenant.clone(), session.clone()?);
            let InFlight { all, of_sub_agents } = self.sessions.get(&key).copied().unwrap_or_default();
            Some(SessionRunning { requests: all, of_sub_agents, cap })
        };
        let of_tenant = || {
            let cap = self.caps.per_tenant.cap()?;
            Some(TenantRunning { requests: self.tenants.get(tenant).copied().unwrap_or(0), cap })
        };
        FanoutFound {
            tenant: of_tenant(),
            session: of_session(),
            waits_for_own: self.blocks_tenant(tenant) || !self.room(tenant, session.as_ref()).admits(agent),
        }
    }

    /// Counts a dispatch. Returns whether somebody is blocked now.
    pub(super) fn take(&mut self, subject: &Subject, agent: Agent) -> bool {
        if self.caps.per_tenant.is_limited() {
            *self.tenants.entry(subject.tenant.clone()).or_default() += 1;
        }
        if let (true, Some(session)) = (self.caps.per_session.is_limited(), &subject.session) {
            let in_flight = self.sessions.entry((subject.tenant.clone(), session.clone())).or_default();
            in_flight.all += 1;
            in_flight.of_sub_agents += u32::from(agent == Agent::Sub);
        }
        self.blocks(subject)
    }

    /// Counts an end. Returns whether somebody was blocked until now.
    pub(super) fn release(&mut self, subject: &Subject, agent: Agent) -> bool {
        let blocked = self.blocks(subject);
        if self.caps.per_tenant.is_limited()
            && let Some(count) = self.tenants.get_mut(&subject.tenant)
        {
            *count -= 1;
            if *count == 0 {
                self.tenants.remove(&subject.tenant);
            }
        }
        if let (true, Some(session)) = (self.caps.per_session.is_limited(), &subject.session) {
            let key = (subject.tenant.clone(), session.clone());
            if let Some(in_flight) = self.sessions.get_mut(&key) {
                in_flight.all -= 1;
                in_flight.of_sub_agents -= u32::from(agent == Agent::Sub);
                if in_flight.all == 0 {
                    self.sessions.remove(&key);
                }
            }
        }
        blocked
    }

    fn blocks(&self, subject: &Subject) -> bool {
        self.blocks_tenant(&subject.tenant) || self.room(&subject.tenant, subject.session.as_ref()) != Room::Everybody
    }
}

fn may_add(cap: Limit<u32>, in_flight: Option<&u32>) -> bool {
    cap.allows(in_flight.copied().unwrap_or(0).saturating_add(1))
}
