//! One request as the outside world knows it: who sends it, when, how long its answer will be.
//!
//! The simulated engine may look at all of it. The gateway under test sees only what a gateway would: the
//! length of an answer reaches it token by token, as it is produced.

use std::sync::Arc;

use crate::costing::Effort;
use crate::units::{Instant, Limit, SessionId, Span, TenantId, Tokens};

/// One request of a workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Demand {
    /// When it arrives.
    pub arrival: Instant,
    /// When its client first asked for it: earlier than it arrives where it was refused and comes back.
    pub asked: Instant,
    /// Who sends it.
    pub tenant: TenantId,
    /// The session it belongs to.
    pub session: Option<SessionId>,
    /// The model it names, before aliases.
    pub model: Arc<str>,
    /// The class it wishes for.
    pub class: Option<Arc<str>>,
    /// Input tokens.
    pub input: Tokens,
    /// How many of them the engine has cached.
    pub cached: Tokens,
    /// Output tokens its answer will have.
    pub output: Tokens,
    /// The most output it allows, which the gateway is told.
    pub max_tokens: Limit<Tokens>,
    /// How long after its arrival being dispatched is still of use to it, which the gateway is told.
    pub deadline: Option<Span>,
    /// Whether its answer comes token by token; otherwise all of it comes at its end, and nothing before.
    pub streamed: bool,
    /// How hard it asks the model to think.
    pub effort: Effort,
    /// What becomes of it once it is let through.
    pub fate: Fate,
    /// Which try this is; 0 is the first.
    pub attempt: u32,
    /// Whether it came back at the time it was told to.
    pub heeded: bool,
    /// What its client asks for next, once this has ended for good: a closed loop.
    pub then: Option<Arc<Then>>,
    /// How many times its client tries again when refused, waiting each time as long as it is told.
    pub retries: u32,
    /// What its client is told to wait instead of what the gateway says: a constant, to hold ours against.
    pub told_instead: Option<Span>,
}

/// What a client asks for next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Then {
    /// How long it thinks before.
    pub think: Span,
    /// Not if that is later than this.
    pub until: Instant,
    /// The request, but for its arrival.
    pub demand: Demand,
}

impl Then {
    /// The request, where there is still time for it.
    #[must_use]
    pub fn after(&self, ended: Instant) -> Option<Demand> {
        let arrival = ended + self.think;
        (arrival < self.until).then(|| Demand { arrival, asked: arrival, ..self.demand.clone() })
    }
}

/// How a request's life outside the gateway goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The client waits for the end of the answer.
    Patient,
    /// The client leaves this long after arriving, wherever the request then stands. If it has tries left it asks
    /// again after a pause of its own, as the official SDKs do when they time out.
    LeavesAfter(Span),
    /// The engine fails it after this many output tokens.
    FailsAfter(Tokens),
}

impl Demand {
    /// A patient request for a nameless model, without session, class, cap or deadline.
    #[must_use]
    pub fn plain(arrival: Instant, tenant: TenantId, input: Tokens, output: Tokens) -> Self {
        Self {
            arrival,
            asked: arrival,
            tenant,
            session: None,
            model: "".into(),
            class: None,
            input,
            cached: Tokens::ZERO,
            output,
            max_tokens: Limit::Unlimited,
            deadline: None,
            streamed: true,
            effort: Effort::Unstated,
            fate: Fate::Patient,
            attempt: 0,
            heeded: false,
            then: None,
            retries: 0,
            told_instead: None,
        }
    }

    /// The same request once more, where its client tries again after a refusal that told it to wait this long.
    ///
    /// As the official SDKs do: a wait that is named is kept to the millisecond, and after none they wait half a
    /// second, then one, two and so on up to eight (less a random quarter, which is left out here). Longer waits than
    /// [`Self::LONGEST_WAIT`] are refused together with the word not to retry, which they obey.
    #[must_use]
    pub fn again(&self, refused: Instant, told: Option<Span>) -> Option<Self> {
        let told = told.map(|told| self.told_instead.unwrap_or(told));
        let own = || Span::from_secs_f64((0.5 * f64::from(self.attempt).exp2()).min(8.0));
        let wait = told.unwrap_or_else(own);
        let willing = self.attempt < self.retries && wait <= Self::LONGEST_WAIT;
        willing.then(|| Self {
            arrival: refused + wait,
            attempt: self.attempt + 1,
            heeded: told.is_some(),
            ..self.clone()
        })
    }

    /// The longest wait that is not refused with the word not to retry.
    pub const LONGEST_WAIT: Span = Span::from_secs(60);

    /// The output tokens it will really produce: its answer, cut at its own cap.
    #[must_use]
    pub fn produced(&self) -> Tokens {
        self.max_tokens.cap().map_or(self.output, |cap| cap.min(self.output))
    }
}
