//! A refusal is a value: whose request, which rule, the numbers, and when to come back.
//!
//! "Later" and "never" are different answers, and so is "we do not know". One table, `wire/answer.rs`, turns
//! a refusal into status, headers and body; nothing else decides those.

use std::fmt;

use crate::policy::model::Per;
use crate::units::{Amount, Instant, Measure, RequestId, Span, Tokens};

use super::fanout::Left;
use super::request::Subject;
use super::rule::Rule;

/// Why a request is not let through, and what would have let it in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The request refused.
    pub request: RequestId,
    /// Whose it is.
    pub subject: Subject,
    /// The rule that fired, with its numbers.
    pub reason: Reason,
    /// When trying again makes sense.
    pub retry: Retry,
    /// What is left of the limits that concern it.
    pub left: Left,
}

/// When trying again makes sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// Not before this moment.
    At(Instant),
    /// Later, but nothing measured yet says when.
    Unknown,
    /// The same request will never be let in.
    Never,
}

/// The rule that fired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// A queue cap was reached, on arrival or by being displaced from the queue.
    QueueFull {
        /// Whose cap.
        level: Level,
        /// In which unit.
        unit: Unit,
        /// The cap, in that unit.
        cap: u64,
        /// What was queued at that level when the request was refused, in that unit, itself not included, and for
        /// a newcomer also what is kept for those of its tenant who were told to come back.
        queued: u64,
        /// What the request would have added, in that unit.
        asked: u64,
        /// Whether it had been queued and was displaced by another's arrival.
        displaced: bool,
    },
    /// The predicted wait exceeds what the request may wait.
    WaitTooLong {
        /// The wait predicted on arrival.
        predicted: Span,
        /// The longest it may wait: the class's `max_wait` or its own deadline, whichever is sooner.
        allowed: Span,
    },
    /// It waited as long as it may and was not dispatched.
    Expired {
        /// How long it waited.
        waited: Span,
    },
    /// Its input alone is larger than the largest request ever admitted. What is only predicted never refuses.
    TooLarge {
        /// Its input.
        tokens: Tokens,
        /// The most that is admitted.
        most: Tokens,
    },
    /// Too many of its tenant's requests are retries.
    RetryBudget {
        /// How many were in the last minute.
        retries: u32,
        /// How many there may be, by what ended well in that time.
        allowed: u32,
    },
    /// The upstream fails, and is left alone for a while.
    BreakerTripped {
        /// Whose requests are held back: the pool's, or the tenant's alone, whose requests alone failed.
        level: Level,
        /// For how long from now on.
        left: Span,
    },
    /// It alone is larger than all that a limit ever allows at once, by its input.
    BeyondBurst {
        /// Which limit.
        rule: Rule,
        /// What it counts.
        measure: Measure,
        /// What the request asks of it.
        asked: Amount,
        /// The most it allows at once.
        burst: Amount,
    },
    /// A limit does not allow it yet.
    RateLimited {
        /// Which.
        rule: Rule,
        /// Whose use it counts together.
        per: Per,
        /// What it counts.
        measure: Measure,
        /// What the request is expected to take of it.
        asked: Amount,
        /// What was left of it; less than nothing where there was a debt.
        left: Amount,
        /// The most it allows at once.
        burst: Amount,
    },
    /// A budget does not cover it.
    BudgetSpent {
        /// Which.
        rule: Rule,
        /// Whose use it counts together.
        per: Per,
        /// What it counts.
        measure: Measure,
        /// What the request is expected to take of it.
        asked: Amount,
        /// What was left of it; less than nothing where there was a debt.
        left: Amount,
        /// The whole of it.
        amount: Amount,
    },
    /// The gateway is shutting down.
    Draining,
}

impl Reason {
    /// Whether a place in the queue is what was missing, or will be when the upstream is well again: then whoever is told
    /// when to come back is promised one.
    pub(super) const fn is_of_the_queue(self) -> bool {
        matches!(
            self,
            Self::QueueFull { .. } | Self::WaitTooLong { .. } | Self::Expired { .. } | Self::BreakerTripped { .. }
        )
    }

    /// The limit or budget that refused, where one did.
    #[must_use]
    pub const fn rule(self) -> Option<Rule> {
        match self {
            Self::BeyondBurst { rule, .. } | Self::RateLimited { rule, .. } | Self::BudgetSpent { rule, .. } => {
                Some(rule)
            }
            _ => None,
        }
    }

    /// The code in headers, bodies, logs and metrics.
    #[must_use]
    pub const fn code(self) -> &'static str {
        match self {
            Self::QueueFull { .. } => "queue_full",
            Self::WaitTooLong { .. } => "wait_too_long",
            Self::Expired { .. } => "expired",
            Self::TooLarge { .. } | Self::BeyondBurst { .. } => "too_large",
            Self::RateLimited { .. } => "rate_limited",
            Self::BudgetSpent { .. } => "budget_spent",
            Self::RetryBudget { .. } => "retry_budget",
            Self::BreakerTripped { .. } => "breaker_tripped",
            Self::Draining => "draining",
        }
    }
}

impl fmt::Display for Reason {
    /// In words a newcomer can act on.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::QueueFull { level, unit, cap, queued, asked, displaced } => {
                let (level, unit) = (level.name(), unit.name());
                if *displaced {
                    write!(
                        f,
                        "displaced from a full queue: the {level}'s cap is {cap} {unit}, and this request belonged to whoever held most of it for its weight"
                    )
                } else {
                    write!(
                        f,
                        "the {level}'s queue is full: {queued} of {cap} {unit} are taken by who waits or was told to come back, and this request would add {asked}"
                    )
                }
            }
            Self::WaitTooLong { predicted, allowed } => {
                write!(f, "the predicted wait of {predicted} is longer than the {allowed} this request may wait")
            }
            Self::Expired { waited } => write!(f, "not dispatched within the {waited} this request may wait"),
            Self::TooLarge { tokens, most } => {
                write!(f, "its input is {tokens} tokens and the largest request admitted is {most}")
            }
            Self::RetryBudget { retries, allowed } => write!(
                f,
                "too many of this tenant's requests are retries: {retries} in the last minute, of at most {allowed} by what ended well in it"
            ),
            Self::BreakerTripped { level: Level::Tenant, left } => {
                write!(
                    f,
                    "the upstream failed too many of this tenant's requests, and takes no more of them for {left}"
                )
            }
            Self::BreakerTripped { left, .. } => {
                write!(f, "the upstream failed too many requests, and is left alone for {left}")
            }
            Self::BeyondBurst { measure, asked, burst, .. } => {
                let (asked, burst) = (asked.of(*measure), burst.of(*measure));
                write!(f, "its input alone comes to {asked} and a limit allows at most {burst} at once")
            }
            Self::RateLimited { per, measure, asked, left, burst, .. } => {
                let (whose, asked) = (per.whose(), asked.of(*measure));
                write!(
                    f,
                    "{} left of the {} that {whose} may use at once, and this request is expected to take {asked}",
                    remaining(*left, *measure),
                    burst.of(*measure)
                )
            }
            Self::BudgetSpent { per, measure, asked, left, amount, .. } => {
                let (whose, asked) = (per.whose(), asked.of(*measure));
                write!(
                    f,
                    "{} left of the budget of {} that {whose} has, and this request is expected to take {asked}",
                    remaining(*left, *measure),
                    amount.of(*measure)
                )
            }
            Self::Draining => f.write_str("the gateway is shutting down"),
        }
    }
}

fn remaining(left: Amount, measure: Measure) -> String {
    if left.is_positive() {
        let verb = if measure == Measure::Requests && left == Amount::from_parts(1) { "is" } else { "are" };
        format!("{} {verb}", left.of(measure))
    } else {
        "nothing is".into()
    }
}

/// Whose cap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// One session's.
    Session,
    /// One tenant's, in one class.
    Tenant,
    /// One class's, in one pool.
    Class,
    /// One pool's.
    Pool,
}

impl Level {
    /// The word for it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Session => "session",
            Self::Tenant => "tenant",
            Self::Class => "class",
            Self::Pool => "pool",
        }
    }
}

/// What a cap counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unit {
    /// Requests.
    Requests,
    /// Input plus expected output tokens.
    Tokens,
    /// Bytes of request bodies.
    Bytes,
}

impl Unit {
    /// Every unit, in the order they are checked.
    pub const ALL: [Self; 3] = [Self::Requests, Self::Tokens, Self::Bytes];

    /// The word for it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Requests => "requests",
            Self::Tokens => "tokens",
            Self::Bytes => "bytes",
        }
    }
}
