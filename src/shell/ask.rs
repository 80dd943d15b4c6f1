//! What is asked of the core for one request, and what it is quoted.

use crate::admission::{Attempt, Explanation, Subject};
use crate::costing::{Call, Counted, Fit};
use crate::observe::decisions::{Asked, Counting};
use crate::policy::model::{Caller, Selection};
use crate::units::{DecisionId, Instant, Limit, Span, Tokens, Usage};

/// A request, identified, routed and counted, that asks to be let through.
#[derive(Clone, Debug)]
pub struct Ask {
    /// The name of the decision to be made.
    pub decision: DecisionId,
    /// The API it is written in.
    pub dialect: &'static str,
    /// When the request arrived.
    pub arrived: Instant,
    /// What it asks for.
    pub call: Call,
    /// Its input as counted.
    pub input: Counted,
    /// Whose it is.
    pub caller: Caller,
    /// Where it goes and what it weighs.
    pub selection: Selection,
    /// How long its client waits.
    pub patience: Patience,
    /// What will be seen of its answer before it ends.
    pub sight: Sight,
}

/// What a door sees of an answer on its way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sight {
    /// Every part as it comes.
    #[default]
    Passing,
    /// Only its end, of an answer whose most is known. To the core, which learns from when answers begin, it comes in
    /// one piece.
    End,
    /// Only its end, and it is not known how many answers were asked for, each of which may come to the cap.
    EndOfSome,
}

impl Ask {
    /// Whom it belongs to, and where it competes.
    #[must_use]
    pub fn subject(&self) -> Subject {
        Subject {
            pool: self.selection.pool,
            class: self.selection.class,
            tenant: self.caller.tenant.clone(),
            session: self.caller.session.clone(),
        }
    }
}

/// What a request is quoted, and what every gate says of it.
#[derive(Clone, Debug)]
pub struct Quoted {
    /// Its input as counted.
    pub counted: Tokens,
    /// How near the truth that count is.
    pub counting: Counting,
    /// What it is expected to use.
    pub expected: Usage,
    /// The most output it can produce, where it states a cap.
    pub output_cap: Limit<Tokens>,
    /// What every gate says.
    pub explained: Explanation,
}

/// How long a client waits, as far as it says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Patience {
    /// For dispatch, from arrival.
    pub dispatch: Option<Span>,
    /// For something of the answer, from arrival.
    pub answer: Option<Span>,
    /// Which try this is, of those it is willing to make.
    pub attempt: Attempt,
}

/// How near the truth a count is.
pub(super) fn counting(counted: &Counted) -> Counting {
    let by_formula = counted.structured != Tokens::ZERO || counted.attachments != Tokens::ZERO;
    if counted.is_partial() {
        Counting::Partial
    } else if counted.fit == Fit::Exact && !by_formula {
        Counting::Exact
    } else {
        Counting::Near
    }
}

/// What is remembered of what a request asked for.
pub(super) fn asked(ask: &Ask, quoted: Quoted) -> Asked {
    Asked {
        dialect: ask.dialect,
        model: ask.call.model.as_str().into(),
        selection: ask.selection.clone(),
        streamed: ask.call.streamed,
        bytes: ask.call.bytes,
        counted: quoted.counted,
        counting: quoted.counting,
        expected: quoted.expected,
        output_cap: quoted.output_cap,
        waits_for_dispatch: ask.patience.dispatch,
        waits_for_answer: ask.patience.answer,
        explained: quoted.explained,
    }
}
