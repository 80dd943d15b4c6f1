//! What is remembered of one decision: what the door knew, what the core said, what became of it.
//!
//! Facts come from several tasks and in no fixed order (a permit may be settled while the door that asked for it is
//! still being told), so each has a place of its own and none waits for another. What a decision has come to is read
//! off them by [`Record::state`].

use crate::admission::{Demotion, Event, Explanation, Outcome, Refusal, Rule, RuleFound, RuleLeft};
use crate::policy::model::{Listener, Selection};
use crate::units::{Agent, Bytes, Instant, Limit, RequestId, SessionId, Span, TenantId, Tokens, Usage, VirtualTokens};

/// One decision.
#[derive(Clone, Debug)]
pub struct Record {
    /// The request decided on.
    pub request: RequestId,
    /// How it came.
    pub came: Came,
    /// Whether what is decided is done.
    pub force: Force,
    /// Whose it is, once that was found out.
    pub caller: Option<Known>,
    /// What it asked for, once that was read and quoted.
    pub asked: Option<Box<Asked>>,
    /// That it passed without being metered.
    pub passed: bool,
    /// The class it competes in instead of the one it asked for, and why.
    pub demotion: Option<Demotion>,
    /// The limits and budgets that would have refused it, but only note that. At most as many as the policy has.
    pub shadowed: Vec<Rule>,
    /// When it was queued, if it had to wait.
    pub queued_at: Option<Instant>,
    /// The core's refusal.
    pub refused: Option<Refused>,
    /// That it was let through.
    pub dispatched: Option<Dispatched>,
    /// When the first byte of its answer came.
    pub first_byte_at: Option<Instant>,
    /// When the first token of a streamed answer was seen.
    pub first_token_at: Option<Instant>,
    /// What an endpoint picker behind the door said of it.
    pub picked: Option<Picked>,
    /// How it ended.
    pub settled: Option<Settled>,
    /// What its fair counter was charged for room that stood empty before it.
    pub vacated: VirtualTokens,
    /// When its client left, having neither been let through nor refused.
    pub left_at: Option<Instant>,
    /// What the door answered in place of the upstream.
    pub answered: Option<Answered>,
}

/// What an endpoint picker behind a door said of a request.
#[derive(Clone, Debug, PartialEq)]
pub struct Picked {
    /// The endpoint that served it, or else the ones it picked, shortened.
    pub endpoint: Option<Box<str>>,
    /// What it reports that the request cost, in a unit of its own.
    pub cost: Option<f64>,
}

/// Whether what is decided of a request is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Force {
    /// It is.
    Binding,
    /// The request goes on whatever is decided, which is only what would have been.
    Trial,
}

/// How a request came.
#[derive(Clone, Debug)]
pub struct Came {
    /// When.
    pub at: Instant,
    /// By which listener.
    pub listener: Listener,
    /// With which method.
    pub method: http::Method,
    /// To which path, shortened.
    pub path: Box<str>,
}

/// Whose a request is, and how that was found out.
#[derive(Clone, Debug)]
pub struct Known {
    /// The verified tenant.
    pub tenant: TenantId,
    /// The session the client names.
    pub session: Option<SessionId>,
    /// Which of the session's agents asks.
    pub agent: Agent,
    /// The class the client wishes for.
    pub wished_class: Option<Box<str>>,
    /// Which of the policy's rules for the tenant decided, counted from zero.
    pub rule: usize,
    /// What the owner of the API key calls it.
    pub key_name: Option<Box<str>>,
}

/// What a request asked for, what it was quoted, and what the core said of it on arrival.
#[derive(Clone, Debug)]
pub struct Asked {
    /// The API it is written in.
    pub dialect: &'static str,
    /// The model it names, before aliases.
    pub model: Box<str>,
    /// Where it goes and what it weighs.
    pub selection: Selection,
    /// Whether its answer is to be streamed.
    pub streamed: bool,
    /// The size of its body.
    pub bytes: Bytes,
    /// Its input as counted, before what is learnt from reports corrects it.
    pub counted: Tokens,
    /// How near the truth that count is.
    pub counting: Counting,
    /// What it is expected to use.
    pub expected: Usage,
    /// The most output it can produce, where it states a cap.
    pub output_cap: Limit<Tokens>,
    /// How long its client said it waits for dispatch, from arrival.
    pub waits_for_dispatch: Option<Span>,
    /// How long its client said it waits for something of the answer, from arrival.
    pub waits_for_answer: Option<Span>,
    /// What every gate said on arrival.
    pub explained: Explanation,
}

/// How near the truth a count of input is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counting {
    /// With the model's own tokenizer, and nothing in it that is reckoned by formula.
    Exact,
    /// With another tokenizer, or in part by formula.
    Near,
    /// The upstream adds what is not here to be counted.
    Partial,
}

impl Counting {
    /// The name in the admin API.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Near => "near",
            Self::Partial => "partial",
        }
    }
}

/// That the core refused a request.
#[derive(Clone, Debug)]
pub struct Refused {
    /// When.
    pub at: Instant,
    /// How long it had waited.
    pub waited: Span,
    /// Why.
    pub refusal: Refusal,
}

/// That a request was let through.
#[derive(Clone, Copy, Debug)]
pub struct Dispatched {
    /// When.
    pub at: Instant,
    /// How long it had waited.
    pub waited: Span,
}

/// How a request that was let through ended.
#[derive(Clone, Copy, Debug)]
pub struct Settled {
    /// When.
    pub at: Instant,
    /// How.
    pub outcome: Outcome,
    /// What it was settled for.
    pub usage: Usage,
    /// Whether that is our estimate rather than the upstream's word.
    pub estimated: bool,
    /// What it cost.
    pub cost: VirtualTokens,
    /// From dispatch to the end.
    pub lasted: Span,
}

/// What a door answered in place of the upstream.
#[derive(Clone, Debug)]
pub struct Answered {
    /// When.
    pub at: Instant,
    /// With which status.
    pub status: http::StatusCode,
    /// With which code in `x-tallygate-reason`.
    pub code: &'static str,
    /// In which words, shortened.
    pub words: Box<str>,
    /// After how long the client was told to come back, if it was.
    pub retry_after: Option<Span>,
}

/// What a decision has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Its body is being read.
    Arriving,
    /// It waits its turn.
    Queued,
    /// It runs.
    InFlight,
    /// It was not let through.
    Refused,
    /// Its client left before it was decided.
    Left,
    /// It passed without being metered.
    Passed,
    /// It was let through, and ended.
    Ended(Outcome),
}

impl State {
    /// Every state.
    pub fn all() -> impl Iterator<Item = Self> {
        let ended = Outcome::ALL.into_iter().map(Self::Ended);
        [Self::Arriving, Self::Queued, Self::InFlight, Self::Refused, Self::Left, Self::Passed].into_iter().chain(ended)
    }

    /// The name in the admin API.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Arriving => "arriving",
            Self::Queued => "queued",
            Self::InFlight => "in_flight",
            Self::Refused => "refused",
            Self::Left => "left",
            Self::Passed => "passed",
            Self::Ended(outcome) => outcome.name(),
        }
    }
}

impl Record {
    pub(super) fn new(request: RequestId, came: Came) -> Self {
        Self {
            request,
            came,
            force: Force::Binding,
            caller: None,
            asked: None,
            passed: false,
            demotion: None,
            shadowed: Vec::new(),
            queued_at: None,
            refused: None,
            dispatched: None,
            first_byte_at: None,
            first_token_at: None,
            picked: None,
            settled: None,
            vacated: VirtualTokens::ZERO,
            left_at: None,
            answered: None,
        }
    }

    /// What it has come to.
    #[must_use]
    pub fn state(&self) -> State {
        if let Some(settled) = &self.settled {
            State::Ended(settled.outcome)
        } else if self.dispatched.is_some() {
            State::InFlight
        } else if self.refused.is_some() || self.answered.is_some() {
            State::Refused
        } else if self.left_at.is_some() {
            State::Left
        } else if self.passed {
            State::Passed
        } else if self.queued_at.is_some() {
            State::Queued
        } else {
            State::Arriving
        }
    }

    /// Whose it is, if that was found out.
    #[must_use]
    pub fn tenant(&self) -> Option<&TenantId> {
        self.caller.as_ref().map(|caller| &caller.tenant)
    }

    /// Takes note of what the core did.
    pub(super) fn note(&mut self, event: &Event) {
        match event {
            Event::Queued { at, .. } => self.queued_at = Some(*at),
            Event::Dispatched { at, waited, .. } => self.dispatched = Some(Dispatched { at: *at, waited: *waited }),
            Event::Settled { at, outcome, usage, estimated, cost, lasted, .. } => {
                self.settled = Some(Settled {
                    at: *at,
                    outcome: *outcome,
                    usage: *usage,
                    estimated: *estimated,
                    cost: *cost,
                    lasted: *lasted,
                });
            }
            Event::Refused { at, waited, refusal } => {
                self.refused = Some(Refused { at: *at, waited: *waited, refusal: refusal.clone() });
            }
            Event::Cancelled { at, .. } => self.left_at = Some(*at),
            Event::Vacated { amount, .. } => self.vacated += *amount,
            Event::Demoted { demotion, .. } => self.demotion = Some(*demotion),
            Event::Shadowed { rule, .. } => self.shadowed.push(*rule),
            Event::Charged { .. }
            | Event::Hit { .. }
            | Event::Breaker { .. }
            | Event::WindowMoved { .. }
            | Event::UnknownTicket { .. } => {}
        }
    }

    /// What it takes in memory, its texts included.
    pub(super) fn weight(&self) -> usize {
        let text = |text: Option<&str>| text.map_or(0, str::len);
        let caller = self.caller.as_ref().map_or(0, |caller| {
            caller.tenant.as_str().len()
                + text(caller.session.as_ref().map(SessionId::as_str))
                + text(caller.wished_class.as_deref())
                + text(caller.key_name.as_deref())
        });
        let asked = self
            .asked
            .as_ref()
            .map_or(0, |asked| size_of::<Asked>() + asked.model.len() + asked.selection.model.as_str().len());
        let picked = text(self.picked.as_ref().and_then(|picked| picked.endpoint.as_deref()));
        let words = text(self.answered.as_ref().map(|answered| &*answered.words));
        let explained = self.asked.as_ref().map_or(0, |asked| {
            let (rates, budgets) = (&asked.explained.rates.found, &asked.explained.budgets.found);
            (rates.len() + budgets.len()) * size_of::<RuleFound>()
        });
        let left = self.refused.as_ref().map_or(0, |refused| refused.refusal.left.rules.len() * size_of::<RuleLeft>());
        let rules = explained + left + self.shadowed.len() * size_of::<Rule>();
        size_of::<Self>() + self.came.path.len() + caller + asked + picked + words + rules
    }
}
