//! Leave to proceed, and how it ends.
//!
//! Dispatch hands out a ticket. It lives until the end of the response *body* and is settled exactly once, by
//! id; a second settlement is refused and reported, so a slot can never be given back twice.

use crate::units::{Instant, RequestId, Span, Status, TicketId, Usage};

use super::budget::DebitNumber;
use super::fanout::Left;

/// Leave to send one request upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// What to settle.
    pub id: TicketId,
    /// The request let through.
    pub request: RequestId,
    /// When it was let through.
    pub dispatched_at: Instant,
    /// How long it had waited.
    pub waited: Span,
    /// What is left of the limits that concern it.
    pub left: Left,
    /// The last of the grants that cover it, where a ledger keeps budgets: it goes upstream once that is written down.
    pub covered_by: Option<DebitNumber>,
}

/// How a ticket's life ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Outcome {
    /// The whole answer was produced and delivered.
    Completed,
    /// The client closed after the final event: complete for all purposes.
    ClosedAfterFinal,
    /// The client left before the end.
    ClientAborted,
    /// The upstream failed.
    UpstreamFailed,
    /// We gave up waiting for the upstream.
    TimedOut,
    /// We cut it off in favour of another.
    Evicted,
    /// Nobody reported its end; its lease expired.
    Lost,
}

impl Outcome {
    /// Every outcome.
    pub const ALL: [Self; 7] = [
        Self::Completed,
        Self::ClosedAfterFinal,
        Self::ClientAborted,
        Self::UpstreamFailed,
        Self::TimedOut,
        Self::Evicted,
        Self::Lost,
    ];

    /// The name in logs, metrics and the admin API.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::ClosedAfterFinal => "closed_after_final",
            Self::ClientAborted => "client_aborted",
            Self::UpstreamFailed => "upstream_failed",
            Self::TimedOut => "timed_out",
            Self::Evicted => "evicted",
            Self::Lost => "lost",
        }
    }

    /// Whether the whole answer was produced.
    #[must_use]
    pub const fn is_complete(self) -> bool {
        matches!(self, Self::Completed | Self::ClosedAfterFinal)
    }
}

/// What is known of the usage when a ticket ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reported {
    /// Nothing.
    Nothing,
    /// What the door itself counted of the answer so far.
    Counted(Usage),
    /// What the upstream reported as final.
    Final(Usage),
}

/// The end of a ticket, as a door reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ending {
    /// How it ended.
    pub outcome: Outcome,
    /// What it used, as far as is known.
    pub usage: Reported,
    /// The head of the upstream's answer; nothing where none came.
    pub heard: Option<Heard>,
}

impl Ending {
    /// Whether what was asked for was done.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.outcome.is_complete() && self.heard.is_none_or(|heard| heard.status.is_success())
    }
}

/// What the head of an upstream's answer says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heard {
    /// Its status.
    pub status: Status,
    /// After how long to come back, where it says so.
    pub retry_after: Option<Span>,
    /// How often a proxy before the upstream had tried before this answer came.
    pub further_attempts: u32,
}
