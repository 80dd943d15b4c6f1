//! The admission core: who goes next, who waits, who is refused. Sans-IO.

mod effect;
mod event;
mod input;
mod refusal;
mod request;
mod ticket;
mod view;

pub use effect::{Effect, Verdict};
pub use event::Event;
pub use input::Input;
pub use refusal::{Level, Reason, Refusal, Retry, Unit};
pub use request::{Request, Subject};
pub use ticket::{Ending, Outcome, Reported, Ticket};
pub use view::{Head, PoolView, QueueView, RequestState, RequestView, SessionView, TenantView};
