//! Everything that can happen to the core. A closed list.

use crate::units::{Amount, Calendar, EngineGauges, Instant, PoolIndex, RequestId, TicketId, Tokens, UnixTime};

use super::gauges::Source;
use super::limits::Hit;
use super::request::Request;
use super::rule::Owner;
use super::ticket::Ending;

/// Something that happened outside.
#[derive(Clone, Debug)]
pub enum Input {
    /// A quoted request asks to be let through. Its verdict comes now or with a later input.
    Arrive(Box<Request>),
    /// The client of a queued request left. Harmless when the request is no longer queued.
    Cancel(RequestId),
    /// A dispatched request has produced this much output so far, in all.
    Progress {
        /// Which.
        ticket: TicketId,
        /// Output tokens since dispatch, cumulative. Going backwards changes nothing.
        output: Tokens,
    },
    /// The answer to a dispatched request has been coming since then. For a door that does not see the answer and learns
    /// this from others, late; where progress is told it is not needed, and changes nothing after it.
    Began {
        /// Which.
        ticket: TicketId,
        /// Since when. Never counts as before its dispatch, nor as later than now.
        since: Instant,
    },
    /// A dispatched request ended.
    Settle {
        /// Which.
        ticket: TicketId,
        /// How.
        ending: Ending,
    },
    /// Somebody who holds the slots (an engine's own scheduler, an arbiter for many gateways) grants one: the
    /// head of the pool is dispatched whatever the window says.
    Grant(PoolIndex),
    /// An engine of a pool said this of its own load.
    Gauges {
        /// Whose engine.
        pool: PoolIndex,
        /// Where it was said.
        source: Source,
        /// When it was true: when it was asked for, not when the answer came. Never counts as later than now.
        taken_at: Instant,
        /// What.
        gauges: EngineGauges,
    },
    /// Rates are used by what is no request here. Answered at once with [`Effect::Counted`](super::Effect::Counted).
    Count(Vec<Hit>),
    /// What a ledger has kept of budgets from before a restart. It comes before any request.
    Restore(Vec<Restored>),
    /// The clocks were compared: from now on the calendar is read so.
    Calendar(Calendar),
    /// The gateway shuts down: newcomers are refused, the queue is served on.
    Drain,
    /// The gateway's patience with the queue is over: everything still queued is refused.
    Flush,
    /// Time passed and nothing else happened.
    Tick,
}

/// What was granted of a budget before a restart, all of which counts as used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restored {
    /// Of which of the policy's budgets.
    pub budget: u16,
    /// To whom.
    pub owner: Owner,
    /// The start of the period it was granted in.
    pub period: UnixTime,
    /// How much.
    pub upto: Amount,
}
