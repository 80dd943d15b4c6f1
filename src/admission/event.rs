//! What happened, said once.
//!
//! The core counts nothing for show. It says what it did, and metrics, audit log, traces and tests all derive
//! from the same events.

use crate::units::{Instant, PoolIndex, RequestId, Span, TenantId, TicketId, Usage, VirtualTokens};

use super::circuit::BreakerStage;
use super::limits::{HitKind, HitOutcome};
use super::refusal::Refusal;
use super::request::Subject;
use super::rule::{Demotion, Rule};
use super::ticket::Outcome;
use super::window::Found;

/// Something the core did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A request passed every gate and waits its turn.
    Queued {
        /// When.
        at: Instant,
        /// Which.
        request: RequestId,
        /// Whose.
        subject: Subject,
    },
    /// A request competes in another class than it asked for, because a limit or a budget says so.
    Demoted {
        /// When.
        at: Instant,
        /// Which.
        request: RequestId,
        /// Whose, in the class it competes in.
        subject: Subject,
        /// From where, to where, and why.
        demotion: Demotion,
    },
    /// A limit or a budget that only notes it would have refused a request.
    Shadowed {
        /// When.
        at: Instant,
        /// Which.
        request: RequestId,
        /// Whose.
        subject: Subject,
        /// Which rule.
        rule: Rule,
    },
    /// A rate was used by what is no request here, or was to be.
    Hit {
        /// When.
        at: Instant,
        /// Which of the policy's limits.
        limit: u16,
        /// What was to be done.
        kind: HitKind,
        /// What became of it.
        outcome: HitOutcome,
    },
    /// A request was let through.
    Dispatched {
        /// When.
        at: Instant,
        /// Which.
        request: RequestId,
        /// Under which ticket.
        ticket: TicketId,
        /// Whose.
        subject: Subject,
        /// How long it had waited.
        waited: Span,
        /// What it is expected to use.
        expected: Usage,
    },
    /// A fair counter moved: at dispatch, with progress, or to the truth at the end (then perhaps downwards).
    Charged {
        /// When.
        at: Instant,
        /// For which request.
        request: RequestId,
        /// Whose.
        subject: Subject,
        /// By how much, before division by weight. Negative for a refund.
        amount: VirtualTokens,
    },
    /// A request paid, on the fair counters, for room that stood empty before it, beyond what it is settled for.
    Vacated {
        /// When.
        at: Instant,
        /// Which.
        request: RequestId,
        /// Whose.
        subject: Subject,
        /// How much service could not be given meanwhile.
        amount: VirtualTokens,
    },
    /// A ticket ended.
    Settled {
        /// When.
        at: Instant,
        /// Which request.
        request: RequestId,
        /// Which ticket.
        ticket: TicketId,
        /// Whose.
        subject: Subject,
        /// How.
        outcome: Outcome,
        /// What it was settled for.
        usage: Usage,
        /// Whether that usage is our estimate rather than the upstream's word.
        estimated: bool,
        /// What it cost.
        cost: VirtualTokens,
        /// From dispatch to the end.
        lasted: Span,
    },
    /// A request was refused, on arrival or while queued.
    Refused {
        /// When.
        at: Instant,
        /// How long it had waited; zero when refused on arrival.
        waited: Span,
        /// Why, and all the rest.
        refusal: Refusal,
    },
    /// A client left the queue.
    Cancelled {
        /// When.
        at: Instant,
        /// Which.
        request: RequestId,
        /// Whose.
        subject: Subject,
        /// How long it had waited.
        waited: Span,
    },
    /// A pool's breaker changed, or what it makes of one tenant.
    Breaker {
        /// When.
        at: Instant,
        /// Whose upstream.
        pool: PoolIndex,
        /// The tenant that is held back by itself, or no longer; nobody where it is the pool.
        tenant: Option<TenantId>,
        /// To what.
        stage: BreakerStage,
    },
    /// A window that adapts has changed: its tokens by an eighth or more, or its room by a request.
    WindowMoved {
        /// When.
        at: Instant,
        /// Whose.
        pool: PoolIndex,
        /// What it has found now, and why.
        found: Found,
    },
    /// Somebody settled, or reported progress of, a ticket that is not live: a fault in a door, harmless here.
    UnknownTicket {
        /// When.
        at: Instant,
        /// Which.
        ticket: TicketId,
    },
}
