//! The admission core: who goes next, who waits, who is refused.
//!
//! # In one page
//!
//! Many tenants share a pool of serving capacity that takes only so much at once (its *window*). Each request
//! that cannot go at once waits in a tree, pool → class → tenant → session. Whenever the window has room, the
//! core walks down the tree: the class that is owed its share or else the first by rank, in it the eligible
//! tenant with the least virtual tokens over weight, in it the session with the least, in it the request with
//! the earliest deadline. If that request, the *head*, does not fit the window, everybody waits for it.
//!
//! Dispatch hands out a [`Ticket`] and charges the tenant the request's expected cost; progress charges what
//! exceeds it; the ticket's end makes it true. So an expensive request pushes its tenant back by what it costs,
//! whoever is least served goes next, and nobody needs a rate limit to be protected from a neighbour.
//!
//! # The machine
//!
//! [`Engine::on`] takes the time and an [`Input`] and returns [`Effect`]s; [`Engine::next_wakeup`] says when it
//! wants to be woken. There is no IO, no clock, no task, no lock and no unseeded chance here, so the same core
//! runs under every door and in the simulator, and gives equal decisions for equal inputs.
//!
//! # Where to read
//!
//! | file | rule |
//! |---|---|
//! | `order` | the gates, and their order |
//! | `explain` | what the gates say of a request, without deciding |
//! | `queue`, `displace` | queue caps, and who leaves when a shared one is reached |
//! | `deadline` | the predicted wait |
//! | `vtc`, `debt` | the fair order, and debts outlasting their names |
//! | `class` | ranks and owed shares |
//! | `fanout` | caps on requests in flight |
//! | `retry` | how many of a tenant's requests may be retries |
//! | `breaker`, `circuit`, `evidence`, `trip` | an upstream that fails, or whose budget is spent |
//! | `window`, `pool` | how much may be in flight, written or found, and which request is next |
//! | `signals` | how much a pool is wanted, for whoever adds and removes engines |
//! | `gauges` | what the engines say of their own load, and how old that is |
//! | `flight`, `settle` | what a request is charged, held and settled for |
//! | `tree`, `engine` | the bookkeeping, and the machine itself |

mod ahead;
mod breaker;
mod budget;
mod circuit;
mod class;
mod deadline;
mod debt;
mod displace;
mod effect;
mod engine;
mod event;
mod evidence;
mod explain;
mod fanout;
mod flight;
mod gauges;
mod input;
mod limits;
mod order;
mod own;
mod pool;
mod promise;
mod queue;
mod rate;
mod refusal;
mod refuse;
mod request;
mod retry;
mod rule;
mod session;
mod settle;
mod signals;
mod ticket;
mod tree;
mod trip;
mod vacancy;
mod view;
mod vtc;
mod window;

#[cfg(test)]
mod tests;

pub use breaker::BreakerFound;
pub use budget::DebitNumber;
pub use circuit::{BreakerStage, Passage};
pub use effect::{Effect, Verdict};
pub use engine::{Engine, Options};
pub use event::Event;
pub use explain::{Explanation, Finding, Prospect, QueueFound, Until};
pub use fanout::{FanoutFound, Left, Quota, SessionRunning, TenantRunning};
pub use gauges::{Sight, Source};
pub use input::{Input, Restored};
pub use limits::{Hit, HitKind, HitOutcome, RateStanding};
pub use order::{Gate, Objection, Size, Wait, WaitFound};
pub use pool::{Slots, Turn};
pub use queue::{Fill, Fullness, Load};
pub use refusal::{Level, Reason, Refusal, Retry, Unit};
pub use request::{Attempt, Request, Subject};
pub use retry::{RetriesFound, RetryCount, Try};
pub use rule::{BudgetUse, Debit, Demotion, Keeping, Owner, Rule, RuleFound, RuleLeft};
pub use signals::{Saturation, Signals};
pub use ticket::{Ending, Heard, Outcome, Reported, Ticket};
pub use view::{Head, PoolView, QueueView, RequestState, RequestView, SessionView, TenantView};
pub use vtc::Standing;
pub use window::{Adapted, Cause, Found, WindowFound};
