//! What of its own holds a principal back: fan-out caps, and rates whose requests wait.
//!
//! *Decides* whether a tenant or a session takes part in the contest. It is skipped while its own caps are reached
//! ([`fanout`](super::fanout)), or while a rate with `when_exceeded: queue` does not allow the request it would send next
//! ([`limits`](super::limits)): a rate per tenant looks at the tenant's next request, one per session at the session's,
//! and what stands behind it waits, however small, or a stream of small requests would starve a large one. *Bound:* the
//! rates'. *Never* holds anybody else back, refuses anything, or looks at the shared window. One tenant's requests in
//! several pools or classes are not ordered among each other: whichever is allowed first goes.

use crate::policy::model::Per;
use crate::units::{Instant, SessionId, TenantId};

use super::fanout::{Fanout, Room};
use super::limits::Limits;
use super::request::Request;

/// What holds principals back, at one moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Own<'a> {
    pub(super) fanout: &'a Fanout,
    pub(super) limits: &'a Limits,
    pub(super) now: Instant,
}

impl<'a> Own<'a> {
    pub(super) fn new(fanout: &'a Fanout, limits: &'a Limits, now: Instant) -> Self {
        Self { fanout, limits, now }
    }

    pub(super) fn blocks_tenant(&self, tenant: &TenantId) -> bool {
        self.fanout.blocks_tenant(tenant)
    }

    pub(super) fn room(&self, tenant: &TenantId, session: Option<&SessionId>) -> Room {
        self.fanout.room(tenant, session)
    }

    /// Until when rates per tenant hold this request back, if they do.
    pub(super) fn holds_tenant(&self, request: &Request) -> Option<Instant> {
        self.limits.held_until(self.now, request, Per::Tenant)
    }

    /// Until when rates per session hold this request back, if they do.
    pub(super) fn holds_session(&self, request: &Request) -> Option<Instant> {
        self.limits.held_until(self.now, request, Per::Session)
    }

    /// Whether anything of its own holds this request back.
    pub(super) fn holds(&self, request: &Request) -> bool {
        self.blocks_tenant(&request.subject.tenant)
            || !self.room(&request.subject.tenant, request.subject.session.as_ref()).admits(request.agent)
            || self.holds_tenant(request).is_some()
            || self.holds_session(request).is_some()
    }
}
