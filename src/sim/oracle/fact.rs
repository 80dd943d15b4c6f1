//! The log a run leaves for its judge.

use crate::units::{ClassIndex, Instant, PoolIndex, RequestId, SessionId, TenantId, Tokens, VirtualTokens, Weight};

/// Whose request it is, and where it competes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Party {
    /// The pool.
    pub pool: PoolIndex,
    /// The class.
    pub class: ClassIndex,
    /// The tenant.
    pub tenant: TenantId,
    /// The session, if any.
    pub session: Option<SessionId>,
    /// The tenant's weight.
    pub weight: Weight,
}

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    /// When.
    pub at: Instant,
    /// To which request.
    pub request: RequestId,
    /// What.
    pub what: What,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// It joined the queue.
    Joined {
        /// Whose it is.
        party: Party,
        /// Its input and reserved output, which is what the window counts.
        size: Tokens,
        /// What its input costs.
        input_cost: VirtualTokens,
        /// What one output token costs.
        output_price: VirtualTokens,
    },
    /// It left the queue without being let through.
    Left,
    /// It was let through.
    Dispatched,
    /// Service was produced for it.
    Served {
        /// How much, since the last.
        service: VirtualTokens,
        /// Its input and the output so far.
        held: Tokens,
    },
    /// Room stood empty before it, or had, that it did not use in the end: service its tenant had all the same.
    Vacated {
        /// How much service could not be given meanwhile.
        service: VirtualTokens,
    },
    /// It ended, however it did.
    Ended,
}
