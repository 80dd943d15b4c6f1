//! What can be seen of the core from outside: plain copies, for the admin API and tests.

use crate::units::{
    ClassIndex, Instant, PoolIndex, RequestId, SessionId, Share, TenantId, TicketId, Tokens, Usage, VirtualTokens,
    Weight,
};

use super::request::Subject;

/// A tenant that has something queued or in flight, or a counter that is remembered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantView {
    /// Where it competes.
    pub pool: PoolIndex,
    /// In which class.
    pub class: ClassIndex,
    /// Who.
    pub tenant: TenantId,
    /// The weight of its latest request.
    pub weight: Weight,
    /// Its fair counter, `v`.
    pub virtual_tokens: VirtualTokens,
    /// Requests waiting.
    pub queued_requests: u32,
    /// Their input plus expected output.
    pub queued_tokens: Tokens,
    /// Requests dispatched and unfinished.
    pub in_flight_requests: u32,
    /// Their input plus expected output, or what they produced where that is more.
    pub in_flight_tokens: Tokens,
}

/// A session below a tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionView {
    /// Whose. `session` is `None` for requests that name none.
    pub subject: Subject,
    /// Its fair counter among the tenant's sessions.
    pub virtual_tokens: VirtualTokens,
    /// Requests waiting.
    pub queued_requests: u32,
    /// Requests dispatched and unfinished.
    pub in_flight_requests: u32,
}

/// A class's queue in a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueView {
    /// In which pool.
    pub pool: PoolIndex,
    /// Which class.
    pub class: ClassIndex,
    /// Requests waiting.
    pub requests: u32,
    /// Their tokens.
    pub tokens: Tokens,
    /// Their bytes.
    pub bytes: crate::units::Bytes,
    /// Tenants that have something waiting that nothing of their own holds back.
    pub eligible_tenants: usize,
    /// When the oldest waiting request arrived.
    pub oldest_arrival: Option<Instant>,
    /// Measured service rate while there was a backlog, in virtual tokens a second.
    pub drain_rate: Option<VirtualTokens>,
    /// The share the class is owed.
    pub min_share: Share,
    /// What it is owed now and has not received.
    pub owed: VirtualTokens,
}

/// A pool's window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolView {
    /// Which.
    pub pool: PoolIndex,
    /// Requests dispatched and unfinished.
    pub in_flight_requests: u32,
    /// Their tokens.
    pub in_flight_tokens: Tokens,
    /// The most ever dispatched and unfinished at once, in service: `M_g` of the fairness bound, weighted.
    pub peak_in_flight: VirtualTokens,
}

/// One request, queued or in flight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestView {
    /// Which.
    pub request: RequestId,
    /// Whose.
    pub subject: Subject,
    /// When it arrived.
    pub arrived_at: Instant,
    /// When it must be dispatched.
    pub deadline: Option<Instant>,
    /// What it is expected to use.
    pub expected: Usage,
    /// Where it stands.
    pub state: RequestState,
}

/// Where a request stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestState {
    /// Waiting its turn.
    Queued,
    /// Dispatched.
    InFlight {
        /// Under which ticket.
        ticket: TicketId,
        /// Since when.
        since: Instant,
        /// Output tokens seen so far.
        output: Tokens,
    },
}

/// What stands at the front of a pool: the request that a slot would be given to now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// Which.
    pub request: RequestId,
    /// What it is expected to use.
    pub expected: Usage,
    /// The session, of use to whoever grants slots by affinity.
    pub session: Option<SessionId>,
}
