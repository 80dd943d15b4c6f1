//! What the core is asked to decide on.

use std::num::NonZeroU32;

use crate::units::{
    Agent, Bytes, ClassIndex, Instant, Limit, Model, PoolIndex, Price, RequestId, SessionId, Tariff, TaskId, TenantId,
    Tokens, Usage, UserId, Weight,
};

/// Whom a request belongs to, and where it competes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Subject {
    /// The pool it wants served from.
    pub pool: PoolIndex,
    /// The class it competes in.
    pub class: ClassIndex,
    /// The verified tenant.
    pub tenant: TenantId,
    /// The session the client names, if any.
    pub session: Option<SessionId>,
}

/// Which try of its client a request is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Attempt {
    /// The client does not say.
    #[default]
    Unsaid,
    /// The first.
    First,
    /// One after a refusal or a failure.
    Again,
}

/// A quoted request: identified, routed and priced.
#[derive(Clone, Debug)]
pub struct Request {
    /// Its name at this gateway; never reused.
    pub id: RequestId,
    /// Whose it is.
    pub subject: Subject,
    /// The model it is for, after aliases.
    pub model: Model,
    /// The user below the tenant, if one is named.
    pub user: Option<UserId>,
    /// The task it is part of, if one is named.
    pub task: Option<TaskId>,
    /// Who of the session's agents asks.
    pub agent: Agent,
    /// The tenant's weight, frozen for this request.
    pub weight: Weight,
    /// The price list, frozen for this request.
    pub price: Price,
    /// What its tokens cost in money, frozen for this request.
    pub tariff: Tariff,
    /// Input as counted, and output as predicted. What is charged, held and counted against the window.
    pub expected: Usage,
    /// The most output it can produce, all choices together, where it states a cap.
    pub output_cap: Limit<Tokens>,
    /// How many answers are produced side by side; output is their sum.
    pub choices: NonZeroU32,
    /// Memory its body occupies while it waits.
    pub bytes: Bytes,
    /// The latest moment at which being dispatched is still of use to the client. The class's `max_wait` is
    /// applied by the core on top.
    pub deadline: Option<Instant>,
    /// Which try it is.
    pub attempt: Attempt,
    /// Whether the door sees the answer as it is produced. If not, an aborted answer is charged by time.
    pub streamed: bool,
}
