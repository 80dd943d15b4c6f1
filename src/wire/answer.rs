//! The one table that turns a refusal into status, headers and words.
//!
//! | reason | status | retry |
//! |---|---|---|
//! | `rate_limited`, `budget_spent`, `queue_full`, `wait_too_long`, `expired`, `retry_budget` | 429 | as the core says |
//! | `breaker_tripped` | 503, in Anthropic's dialect 529 | as the core says |
//! | `draining` | 503 | as the core says |
//! | `too_large` | 413 | never |
//! | `unidentified` | 401 | never |
//! | `class_not_granted` | 403 | never |
//! | `model_not_found` | 404 | never |
//! | `unsupported`, `malformed` | 400 | never |
//! | `upstream_unreachable` | 502 | the client's own |
//! | `upstream_timed_out` | 504 | the client's own |
//! | `internal` | 500 | the client's own |
//!
//! A wait is told three times: `Retry-After` in whole seconds, rounded up and never 0 (the SDKs take 0 for absent);
//! `retry-after-ms`, which they prefer; and in the message. Over a minute `x-should-retry: false` goes with it, since
//! one SDK ignores longer waits and comes back at once. The core has already jittered a wait it knows; one it does
//! not know is [`UNKNOWN_WAIT`] and up to half as much more, spread by the decision's own number.

use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{Response, StatusCode};

use crate::admission::{Reason, Refusal, Retry};
use crate::units::{Bytes, DecisionId, Instant, Span};

use super::dialect::{ErrorBody, Voice, grpc};

/// The id of the decision, on every answer.
pub const DECISION: HeaderName = HeaderName::from_static("x-tallygate-decision");
/// The reason, on every refusal.
pub const REASON: HeaderName = HeaderName::from_static("x-tallygate-reason");
/// How long an admitted request waited, in milliseconds.
pub const QUEUE_MS: HeaderName = HeaderName::from_static("x-tallygate-queue-ms");
const RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");
const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

/// The wait told when nothing measured says how long it will be, before jitter.
pub const UNKNOWN_WAIT: Span = Span::from_secs(5);

/// The longest wait every SDK can be trusted to keep.
const LONGEST_KEPT_WAIT: Span = Span::from_secs(60);

/// Why a request is answered by us and not by the upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The core refused it.
    ByCore(Box<Refusal>),
    /// No tenant, or an unknown key.
    Unidentified(String),
    /// The request does not say what it must.
    Malformed(String),
    /// A rate limit service was asked, and a limit does not allow it.
    OverLimit {
        /// Which, and what is left of it.
        what: String,
        /// When it would.
        wait: Span,
    },
    /// The body is larger than is read.
    BodyTooLarge {
        /// The most that is read.
        most: Bytes,
    },
    /// The body is larger than the proxy in front of us reads.
    BodyTooLargeInFront,
    /// The proxy in front of us gave up while the request waited for its turn.
    HeldTooLong {
        /// How long it had waited.
        waited: Span,
    },
    /// The bodies of other requests take all the memory there is for them.
    NoMemory,
    /// As many requests as can be kept count of run elsewhere.
    NoLease,
    /// The class wished for is none the tenant may use, and the policy says to refuse that.
    ClassNotGranted {
        /// The class wished for.
        wished: String,
        /// Those the tenant may use.
        granted: String,
    },
    /// No pool serves the model.
    ModelNotFound(String),
    /// Something that does not exist here.
    Unsupported(String),
    /// The upstream cannot be reached.
    UpstreamUnreachable(String),
    /// The upstream did not answer in the time the proxy in front of us gives it.
    UpstreamTimedOut(String),
    /// The upstream did not begin its answer in the time we give it.
    UpstreamSilent {
        /// How long that is.
        within: Span,
    },
    /// A fault of ours.
    Internal,
}

/// When the client is told to come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    /// After this long.
    Known(Span),
    /// After this long, which is a guess.
    Guessed(Span),
    /// Not at all.
    Never,
    /// Nothing is said.
    Unsaid,
}

impl Refused {
    /// The code in headers, bodies, logs and metrics.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::ByCore(refusal) => refusal.reason.code(),
            Self::Unidentified(_) => "unidentified",
            Self::Malformed(_) => "malformed",
            Self::OverLimit { .. } => "rate_limited",
            Self::BodyTooLarge { .. } | Self::BodyTooLargeInFront => "too_large",
            Self::HeldTooLong { .. } => "expired",
            Self::NoMemory | Self::NoLease => "queue_full",
            Self::ClassNotGranted { .. } => "class_not_granted",
            Self::ModelNotFound(_) => "model_not_found",
            Self::Unsupported(_) => "unsupported",
            Self::UpstreamUnreachable(_) => "upstream_unreachable",
            Self::UpstreamTimedOut(_) | Self::UpstreamSilent { .. } => "upstream_timed_out",
            Self::Internal => "internal",
        }
    }

    /// The status it is answered with. Callers that speak gRPC are told it in gRPC's own way.
    #[must_use]
    pub fn status(&self, voice: Voice) -> StatusCode {
        match self {
            Self::ByCore(refusal) => match refusal.reason {
                Reason::QueueFull { .. }
                | Reason::WaitTooLong { .. }
                | Reason::Expired { .. }
                | Reason::RateLimited { .. }
                | Reason::BudgetSpent { .. }
                | Reason::RetryBudget { .. } => StatusCode::TOO_MANY_REQUESTS,
                Reason::TooLarge { .. } | Reason::BeyondBurst { .. } => StatusCode::PAYLOAD_TOO_LARGE,
                Reason::BreakerTripped { .. } if voice == Voice::Anthropic => anthropic_overloaded(),
                Reason::BreakerTripped { .. } | Reason::Draining => StatusCode::SERVICE_UNAVAILABLE,
            },
            Self::Unidentified(_) => StatusCode::UNAUTHORIZED,
            Self::Malformed(_) | Self::Unsupported(_) => StatusCode::BAD_REQUEST,
            Self::BodyTooLarge { .. } | Self::BodyTooLargeInFront => StatusCode::PAYLOAD_TOO_LARGE,
            Self::OverLimit { .. } | Self::HeldTooLong { .. } | Self::NoMemory | Self::NoLease => {
                StatusCode::TOO_MANY_REQUESTS
            }
            Self::ClassNotGranted { .. } => StatusCode::FORBIDDEN,
            Self::ModelNotFound(_) => StatusCode::NOT_FOUND,
            Self::UpstreamUnreachable(_) => StatusCode::BAD_GATEWAY,
            Self::UpstreamTimedOut(_) | Self::UpstreamSilent { .. } => StatusCode::GATEWAY_TIMEOUT,
            Self::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// After how long the client is told to come back, if it is.
    #[must_use]
    pub fn told_wait(&self, decision: DecisionId, now: Instant) -> Option<Span> {
        self.wait(decision, now).span()
    }

    /// What is wrong, in words.
    #[must_use]
    pub fn words(&self) -> String {
        match self {
            Self::ByCore(refusal) => refusal.reason.to_string(),
            Self::Unidentified(what)
            | Self::Malformed(what)
            | Self::Unsupported(what)
            | Self::UpstreamUnreachable(what)
            | Self::UpstreamTimedOut(what)
            | Self::OverLimit { what, .. } => what.clone(),
            Self::UpstreamSilent { within } => format!("the upstream did not begin its answer within {within}"),
            Self::BodyTooLarge { most } => format!("the body is larger than the {} bytes that are read", most.get()),
            Self::BodyTooLargeInFront => "the body is larger than the proxy in front of this gateway reads".into(),
            Self::HeldTooLong { waited } => {
                format!("it had waited {waited} for its turn when the proxy in front of this gateway gave up")
            }
            Self::NoMemory => "the requests already here take all the memory there is for bodies".into(),
            Self::NoLease => "as many requests as can be kept count of run already".into(),
            Self::ClassNotGranted { wished, granted } => {
                format!("the class {wished:?} is not granted; wish for one of {granted}, or for none")
            }
            Self::ModelNotFound(model) => format!("no pool serves the model {model:?}"),
            Self::Internal => "the gateway failed to handle this request; it was not sent on".into(),
        }
    }

    fn wait(&self, decision: DecisionId, now: Instant) -> Wait {
        match self {
            Self::ByCore(refusal) => match refusal.retry {
                Retry::At(moment) => Wait::Known(moment.since(now).max(Span::from_millis(1))),
                Retry::Unknown => Wait::Guessed(guess(decision)),
                Retry::Never => Wait::Never,
            },
            Self::OverLimit { wait, .. } => Wait::Known((*wait).max(Span::from_millis(1))),
            Self::HeldTooLong { .. } | Self::NoMemory | Self::NoLease => Wait::Guessed(guess(decision)),
            _ => Wait::Unsaid,
        }
    }

    fn message(&self, wait: Wait) -> String {
        format!("Tallygate: {}.{}", self.words(), wait.words())
    }

    /// What is wrong and when to come back, in a sentence or two.
    #[must_use]
    pub fn told(&self, decision: DecisionId, now: Instant) -> String {
        self.message(self.wait(decision, now))
    }

    /// The member of the request that is at fault, where one is.
    fn param(&self) -> Option<&'static str> {
        matches!(self, Self::ModelNotFound(_)).then_some("model")
    }

    /// The whole answer, as the caller's SDK understands it.
    #[must_use]
    pub fn answer(&self, decision: DecisionId, now: Instant, voice: Voice) -> Response<String> {
        let wait = self.wait(decision, now);
        let (status, code) = (self.status(voice), self.code());
        let message = self.message(wait);
        let (our_code, request_id) = (format!("tallygate_{code}"), decision.to_string());
        let retry_after = wait.span();
        let error = ErrorBody {
            status,
            code: &our_code,
            param: self.param(),
            message: &message,
            request_id: &request_id,
            retry_after,
        };
        let mut response = Response::new(voice.error_body(&error));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(REASON, HeaderValue::from_static(code));
        headers.insert(voice.request_id(), header(&decision));
        headers.insert(DECISION, header(&decision));
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        wait.write(headers);
        if voice == Voice::Grpc {
            *response.status_mut() = StatusCode::OK;
            grpc::fail(response.headers_mut(), status, &message);
        }
        response
    }
}

impl Wait {
    fn span(self) -> Option<Span> {
        match self {
            Self::Known(span) | Self::Guessed(span) => Some(span),
            Self::Never | Self::Unsaid => None,
        }
    }

    fn words(self) -> String {
        match self {
            Self::Known(span) => format!(" Please try again in {span}."),
            Self::Guessed(span) => {
                format!(" Nothing measured yet says when there will be room; please try again in {span}.")
            }
            Self::Never => " Trying the same again does not help.".into(),
            Self::Unsaid => String::new(),
        }
    }

    fn write(self, headers: &mut HeaderMap) {
        if let Some(span) = self.span() {
            headers.insert(RETRY_AFTER, header(&span.as_secs_up().max(1)));
            headers.insert(RETRY_AFTER_MS, header(&span.as_millis_up().max(1)));
        }
        // An SDK that is told no time comes back by its own.
        if self == Self::Never || self.span().is_some_and(|span| span > LONGEST_KEPT_WAIT) {
            headers.insert(SHOULD_RETRY, HeaderValue::from_static("false"));
        }
    }
}

/// The code by which gRPC says what HTTP says by a status, as Google's API guide has it.
#[must_use]
pub fn rpc_code(status: StatusCode) -> tonic::Code {
    tonic::Code::from_i32(grpc::number(status).into())
}

/// The status by which Anthropic's API says that it is overloaded.
fn anthropic_overloaded() -> StatusCode {
    StatusCode::from_u16(529).expect("three digits")
}

/// A value made of digits and letters as a header.
fn header(value: &impl ToString) -> HeaderValue {
    HeaderValue::try_from(value.to_string()).expect("digits, letters and dashes are a legal header value")
}

/// Marks an answer that is passed through: which decision let it in, and how long it had waited.
pub fn mark_admitted(headers: &mut HeaderMap, decision: DecisionId, waited: Span) {
    headers.insert(DECISION, header(&decision));
    headers.insert(QUEUE_MS, header(&waited.as_millis_up()));
}

/// The unknown wait and up to half as much more. Refused requests come in bursts, and each gets another number.
fn guess(decision: DecisionId) -> Span {
    let base = UNKNOWN_WAIT.as_nanos();
    let seed = (u64::from(decision.epoch) << 32) ^ decision.request.get();
    // The finaliser of SplitMix64: neighbouring numbers land far apart.
    let mut mixed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^= mixed >> 31;
    Span::from_nanos(base + mixed % (base / 2))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use http::StatusCode;
    use serde_json::Value;

    use super::{Refused, UNKNOWN_WAIT, Voice, guess};
    use crate::admission::{Left, Level, Reason, Refusal, Retry, Rule, Subject, Unit};
    use crate::policy::model::Per;
    use crate::units::{
        Amount, Bytes, ClassIndex, DecisionId, Instant, Measure, PoolIndex, RequestId, Span, TenantId, Tokens,
    };

    const NOW: Instant = Instant::from_nanos(1_000_000_000_000);

    fn decision(number: u64) -> DecisionId {
        DecisionId { epoch: 0xabcd, request: RequestId::new(number) }
    }

    fn core(reason: Reason, retry: Retry) -> Refused {
        let subject = Subject {
            pool: PoolIndex::new(0),
            class: ClassIndex::new(0),
            tenant: TenantId::from("acme"),
            session: None,
        };
        Refused::ByCore(Box::new(Refusal { request: RequestId::new(7), subject, reason, retry, left: Left::default() }))
    }

    fn queue_full() -> Reason {
        let (level, unit) = (Level::Tenant, Unit::Requests);
        Reason::QueueFull { level, unit, cap: 10, queued: 10, asked: 1, displaced: false }
    }

    fn rate_limited() -> Reason {
        let (rule, per, measure) = (Rule::Limit(0), Per::Tenant, Measure::Tokens);
        let (asked, left, burst) = (Amount::from_parts(200), Amount::from_parts(50), Amount::from_parts(1_000));
        Reason::RateLimited { rule, per, measure, asked, left, burst }
    }

    fn budget_spent() -> Reason {
        let (rule, per, measure) = (Rule::Budget(0), Per::Tenant, Measure::Tokens);
        let (asked, left, amount) = (Amount::from_parts(200), Amount::from_parts(-5), Amount::from_parts(1_000));
        Reason::BudgetSpent { rule, per, measure, asked, left, amount }
    }

    fn beyond_burst() -> Reason {
        let (rule, measure) = (Rule::Limit(0), Measure::InputTokens);
        Reason::BeyondBurst { rule, measure, asked: Amount::from_parts(9), burst: Amount::from_parts(5) }
    }

    #[test]
    fn a_limit_says_what_is_left_and_what_was_asked() {
        let words = [rate_limited(), budget_spent(), beyond_burst()].map(|reason| reason.to_string());
        assert_eq!(
            words,
            [
                "50 tokens are left of the 1000 tokens that this tenant may use at once, and this request is expected to \
                 take 200 tokens",
                "nothing is left of the budget of 1000 tokens that this tenant has, and this request is expected to take \
                 200 tokens",
                "its input alone comes to 9 input tokens and a limit allows at most 5 input tokens at once",
            ]
        );
    }

    fn not_granted() -> Refused {
        Refused::ClassNotGranted { wished: "vip".into(), granted: "standard, batch".into() }
    }

    /// Status, reason header, Retry-After, retry-after-ms, x-should-retry, error code, message.
    fn answer(refused: &Refused) -> (StatusCode, [Option<String>; 4], Value) {
        let response = refused.answer(decision(7), NOW, Voice::OpenAi);
        let names = ["x-tallygate-reason", "retry-after", "retry-after-ms", "x-should-retry"];
        let headers = names.map(|name| response.headers().get(name).map(|value| value.to_str().unwrap().to_owned()));
        assert_eq!(response.headers()["x-tallygate-decision"], "0000abcd-7");
        assert_eq!(response.headers()["content-type"], "application/json");
        let body: Value = serde_json::from_str(response.body()).expect("JSON");
        (response.status(), headers, body["error"].clone())
    }

    #[test]
    fn every_reason_has_the_status_the_design_gives_it() {
        let at = Retry::At(NOW + Span::from_secs(1));
        let (span, tokens) = (Span::from_secs(9), Tokens::new(9));
        let table = [
            (core(queue_full(), at), 429, "queue_full", "rate_limit_error"),
            (
                core(Reason::WaitTooLong { predicted: span, allowed: span }, at),
                429,
                "wait_too_long",
                "rate_limit_error",
            ),
            (core(Reason::Expired { waited: span }, at), 429, "expired", "rate_limit_error"),
            (core(rate_limited(), at), 429, "rate_limited", "rate_limit_error"),
            (core(budget_spent(), at), 429, "budget_spent", "rate_limit_error"),
            (core(beyond_burst(), Retry::Never), 413, "too_large", "invalid_request_error"),
            (core(Reason::TooLarge { tokens, most: tokens }, Retry::Never), 413, "too_large", "invalid_request_error"),
            (core(Reason::RetryBudget { retries: 12, allowed: 12 }, at), 429, "retry_budget", "rate_limit_error"),
            (
                core(Reason::BreakerTripped { level: Level::Pool, left: span }, at),
                503,
                "breaker_tripped",
                "server_error",
            ),
            (core(Reason::Draining, Retry::Unknown), 503, "draining", "server_error"),
            (Refused::Unidentified("x".into()), 401, "unidentified", "authentication_error"),
            (Refused::Malformed("x".into()), 400, "malformed", "invalid_request_error"),
            (Refused::BodyTooLarge { most: Bytes::new(5) }, 413, "too_large", "invalid_request_error"),
            (Refused::BodyTooLargeInFront, 413, "too_large", "invalid_request_error"),
            (Refused::HeldTooLong { waited: span }, 429, "expired", "rate_limit_error"),
            (Refused::NoMemory, 429, "queue_full", "rate_limit_error"),
            (not_granted(), 403, "class_not_granted", "permission_error"),
            (Refused::ModelNotFound("x".into()), 404, "model_not_found", "invalid_request_error"),
            (Refused::Unsupported("x".into()), 400, "unsupported", "invalid_request_error"),
            (Refused::UpstreamUnreachable("x".into()), 502, "upstream_unreachable", "server_error"),
            (Refused::UpstreamTimedOut("x".into()), 504, "upstream_timed_out", "server_error"),
            (Refused::Internal, 500, "internal", "server_error"),
        ];
        let readme = include_str!("../../README.md");
        let (_, list) = readme.split_once("The reasons are ").expect("a list of the reasons");
        let (list, _) = list.split_once(". ").expect("which ends");
        let told: BTreeSet<&str> = list.split('`').skip(1).step_by(2).collect();
        assert_eq!(told, table.iter().map(|(_, _, reason, _)| *reason).collect(), "what the README tells");
        for (refused, status, reason, kind) in table {
            let (found, headers, error) = answer(&refused);
            assert_eq!((found.as_u16(), headers[0].as_deref()), (status, Some(reason)));
            assert_eq!(error["code"], format!("tallygate_{reason}"));
            assert_eq!(error["type"], kind);
            assert!(error["message"].as_str().is_some_and(|message| message.starts_with("Tallygate: ")));
        }
    }

    #[test]
    fn a_wait_rounds_up_is_never_zero_and_is_said_in_the_message() {
        let wait = |nanos: u64| answer(&core(queue_full(), Retry::At(NOW + Span::from_nanos(nanos))));
        let (_, headers, error) = wait(1_400_000_001);
        assert_eq!(headers[1..3], [Some("2".into()), Some("1401".into())]);
        let message = error["message"].as_str().expect("a string");
        assert!(message.ends_with("would add 1. Please try again in 1.4 s."), "{message}");
        let (_, headers, _) = wait(0);
        assert_eq!(headers[1..3], [Some("1".into()), Some("1".into())]);
        assert_eq!(answer(&core(queue_full(), Retry::At(Instant::EPOCH))).1[1], Some("1".into()), "already past");
    }

    #[test]
    fn of_the_waits_only_one_over_a_minute_forbids_a_retry() {
        let should_retry = |span: Span| answer(&core(queue_full(), Retry::At(NOW + span))).1[3].clone();
        assert_eq!(should_retry(Span::from_secs(60)), None);
        assert_eq!(should_retry(Span::from_millis(60_001)), Some("false".into()));
    }

    #[test]
    fn never_forbids_a_retry_and_unknown_is_a_spread_guess() {
        // What no time brings back, as the budget of a task that is used up.
        let (_, headers, error) = answer(&core(budget_spent(), Retry::Never));
        assert_eq!(headers[1..], [None, None, Some("false".into())]);
        assert!(error["message"].as_str().is_some_and(|message| message.ends_with("again does not help.")), "{error}");
        let (_, headers, error) = answer(&core(queue_full(), Retry::Unknown));
        assert!(headers[1].is_some() && error["message"].as_str().unwrap().contains("Nothing measured yet"));
        let guesses: BTreeSet<Span> = (0..100).map(|number| guess(decision(number))).collect();
        assert!(guesses.len() > 95, "spread");
        assert!(guesses.iter().all(|guess| *guess >= UNKNOWN_WAIT && *guess < Span::from_millis(7_500)));
    }
}
