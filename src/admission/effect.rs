//! Everything the core can want done. A closed list.

use crate::ledger::Entry;
use crate::units::RequestId;

use super::event::Event;
use super::limits::RateStanding;
use super::refusal::Refusal;
use super::rule::Debit;
use super::ticket::Ticket;

/// Something for the driver to do, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Tell the door about a request that arrived. Comes exactly once for each, unless it was cancelled.
    Answer {
        /// Which.
        request: RequestId,
        /// What was decided.
        verdict: Verdict,
    },
    /// Write in the books.
    Post(Entry),
    /// Write down a grant of a budget. What tickets it covers ([`Ticket::covered_by`]) may go upstream only when that is
    /// done.
    Debit(Debit),
    /// Tell how the rate of each hit that was counted stands, in their order.
    Counted(Vec<RateStanding>),
    /// Tell whoever counts.
    Emit(Event),
}

/// The decision on one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Send it upstream now.
    Admitted(Ticket),
    /// Refuse it.
    Refused(Refusal),
}
