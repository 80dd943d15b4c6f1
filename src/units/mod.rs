//! The quantities Tallygate reckons in, each a type of its own.
//!
//! A bare `u64` may be tokens, milliseconds or bytes, and the compiler cannot tell them apart; a mistake there
//! is a tenant billed in the wrong unit. So no bare number crosses a module wall: it is wrapped here, with
//! arithmetic only where it has meaning, and saturating where a hostile request could overflow it. This room
//! imports nothing of the project.

mod amount;
mod gauges;
mod ids;
mod limit;
mod money;
mod status;
mod time;
mod tokens;
mod wall;

pub use amount::{Amount, Measure, Measured, Tariff};
pub use gauges::EngineGauges;
pub use ids::{
    Agent, ClassIndex, DecisionId, Model, PoolIndex, RequestId, SessionId, TaskId, TenantId, TicketId, UserId,
};
pub use limit::Limit;
pub use money::{Price, VirtualTokens};
pub use status::{Status, StatusRange};
pub use time::{Instant, Span};
pub use tokens::{Bytes, ParseUnitError, Share, TokenWeight, Tokens, Usage, Weight};
pub use wall::{Calendar, UnixTime};
