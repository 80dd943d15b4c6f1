//! One decision, from its arrival to its end.

use serde::Serialize;

use crate::admission::{Reason, Retry, Subject};
use crate::observe::decisions::{Asked, Dispatched, Force, Record, Settled, State};
use crate::policy::Policy;
use crate::policy::model::{Listener, TenantSource};
use crate::shell::{Gate, Quoted};
use crate::units::{Agent, Instant, Span, Tokens, Usage, VirtualTokens};

use super::super::exact::exact;
use super::found::{Found, Patience, found};
use super::words::{self, Advice, Deadline};

/// Everything known of a decision.
#[derive(Debug, Serialize)]
pub(in crate::wire) struct Decision {
    decision: String,
    /// What it has come to: `arriving`, `queued`, `in_flight`, `refused`, `left`, `passed`, or how it ended.
    outcome: &'static str,
    /// Whether it went on whatever was decided, so that all of this is only what would have been.
    trial: bool,
    reason: Option<&'static str>,
    /// Why, in words.
    why: Option<String>,
    what_would_have_let_it_in: Option<String>,
    /// The policy's key that holds the limit.
    key: Option<String>,
    arrived: At,
    door: Door,
    caller: Option<Caller>,
    request: Option<Request>,
    quote: Option<Quote>,
    on_arrival: Option<Found>,
    demoted: Option<Demoted>,
    /// The limits and budgets in shadow that would have refused it.
    shadowed_by: Vec<String>,
    refusal: Option<Refusal>,
    life: Life,
    /// What an endpoint picker behind the door said of it.
    picked: Option<Picked>,
    settled: Option<End>,
    answer: Option<Answer>,
}

/// A decision in a list.
#[derive(Debug, Serialize)]
pub(in crate::wire) struct Brief {
    decision: String,
    age_s: f64,
    outcome: &'static str,
    reason: Option<&'static str>,
    tenant: Option<String>,
    session: Option<String>,
    pool: Option<String>,
    class: Option<String>,
    model: Option<String>,
    path: String,
    waited_s: Option<f64>,
    input_tokens: Option<u64>,
    output_tokens: Option<u64>,
    charged: Option<f64>,
}

#[derive(Debug, Serialize)]
struct At {
    unix_s: f64,
    age_s: f64,
}

#[derive(Debug, Serialize)]
struct Door {
    listener: &'static str,
    method: String,
    path: String,
    dialect: Option<&'static str>,
}

#[derive(Debug, Serialize)]
struct Caller {
    tenant: String,
    /// Which rule of the policy named the tenant, and how.
    rule: String,
    by: String,
    key_name: Option<String>,
    session: Option<String>,
    agent: &'static str,
    wished_class: Option<String>,
}

#[derive(Debug, Serialize)]
struct Request {
    model_asked: String,
    model: String,
    pool: String,
    class: String,
    weight: f64,
    streamed: bool,
    body_bytes: u64,
    waits_for_dispatch_s: Option<f64>,
    waits_for_answer_s: Option<f64>,
}

/// What was expected of it before it ran.
#[derive(Debug, Serialize)]
pub(super) struct Quote {
    /// As counted, and then corrected by what is learnt from reports.
    input_tokens: u64,
    /// The part of it that is expected to be read from a cache.
    cached_input: u64,
    counted_input: u64,
    /// How near the truth the count is: `exact`, `near` or `partial`.
    counted: &'static str,
    predicted_output: u64,
    output_cap: Option<u64>,
    #[serde(serialize_with = "exact")]
    cost: VirtualTokens,
}

/// The core's refusal.
#[derive(Debug, Serialize)]
struct Refusal {
    /// The numbers of the rule that fired.
    numbers: Numbers,
    after_s: f64,
    waited_s: f64,
    /// `at`, `unknown` or `never`.
    retry: &'static str,
    /// From the refusal on, jitter included.
    retry_after_s: Option<f64>,
    retry_at_unix_s: Option<f64>,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Numbers {
    Queue { level: &'static str, unit: &'static str, cap: u64, queued: u64, asked: u64, displaced: bool },
    Wait { predicted_s: f64, allowed_s: f64 },
    Expired { waited_s: f64 },
    Size { input_tokens: u64, most: u64 },
    Retries { retries: u32, allowed: u32 },
    Breaker { level: &'static str, left_s: f64 },
    Rule { name: String, per: Option<&'static str>, unit: &'static str, asked: f64, left: Option<f64>, most: f64 },
    Drain { draining: bool },
}

impl Numbers {
    fn of(policy: &Policy, reason: Reason) -> Self {
        let named = |rule| words::rule_name(policy, rule).to_owned();
        match reason {
            Reason::BeyondBurst { rule, measure, asked, burst } => Self::Rule {
                name: named(rule),
                per: None,
                unit: measure.name(),
                asked: asked.as_f64(measure),
                left: None,
                most: burst.as_f64(measure),
            },
            Reason::RateLimited { rule, per, measure, asked, left, burst: most }
            | Reason::BudgetSpent { rule, per, measure, asked, left, amount: most } => Self::Rule {
                name: named(rule),
                per: Some(per.name()),
                unit: measure.name(),
                asked: asked.as_f64(measure),
                left: Some(left.as_f64(measure)),
                most: most.as_f64(measure),
            },
            Reason::QueueFull { level, unit, cap, queued, asked, displaced } => {
                Self::Queue { level: level.name(), unit: unit.name(), cap, queued, asked, displaced }
            }
            Reason::WaitTooLong { predicted, allowed } => {
                Self::Wait { predicted_s: predicted.as_secs_f64(), allowed_s: allowed.as_secs_f64() }
            }
            Reason::Expired { waited } => Self::Expired { waited_s: waited.as_secs_f64() },
            Reason::TooLarge { tokens, most } => Self::Size { input_tokens: tokens.get(), most: most.get() },
            Reason::RetryBudget { retries, allowed } => Self::Retries { retries, allowed },
            Reason::BreakerTripped { level, left } => Self::Breaker { level: level.name(), left_s: left.as_secs_f64() },
            Reason::Draining => Self::Drain { draining: true },
        }
    }
}

/// That a limit or a budget sent it to another class.
#[derive(Debug, Serialize)]
struct Demoted {
    from: String,
    to: String,
    by: String,
    key: String,
}

/// Moments of its life, in seconds from its arrival.
#[derive(Debug, Serialize)]
struct Life {
    queued_s: Option<f64>,
    dispatched_s: Option<f64>,
    waited_s: Option<f64>,
    first_byte_s: Option<f64>,
    first_token_s: Option<f64>,
    ended_s: Option<f64>,
    left_s: Option<f64>,
}

#[derive(Debug, Serialize)]
struct End {
    outcome: &'static str,
    usage: Buckets,
    /// Whether the usage is this gateway's estimate rather than the upstream's word.
    estimated: bool,
    #[serde(serialize_with = "exact")]
    charged: VirtualTokens,
    /// What its fair counter was charged beside that, for room that stood empty before it.
    #[serde(serialize_with = "exact")]
    vacated: VirtualTokens,
    lasted_s: f64,
}

#[derive(Debug, Serialize)]
struct Buckets {
    input: u64,
    cached_input: u64,
    cache_write: u64,
    output: u64,
    reasoning: u64,
}

/// What the client was answered in place of the upstream's answer.
#[derive(Debug, Serialize)]
struct Picked {
    /// The endpoint that served it, or else those it picked.
    endpoint: Option<String>,
    /// What it reports the request to have cost, in its own unit.
    cost: Option<f64>,
}

#[derive(Debug, Serialize)]
struct Answer {
    status: u16,
    code: &'static str,
    words: String,
    retry_after_s: Option<f64>,
}

/// All of it.
pub(in crate::wire) fn decision(gate: &Gate, record: &Record) -> Decision {
    let policy = gate.policy();
    let now = gate.clock().now();
    let from_arrival = |moment: Instant| moment.since(record.came.at).as_secs_f64();
    let advice = advice(policy, record);
    let why = advice.as_ref().and_then(|_| why(record));
    Decision {
        decision: gate.decision_of(record.request).to_string(),
        outcome: record.state().name(),
        trial: record.force == Force::Trial,
        reason: reason(record),
        why,
        key: advice.as_ref().and_then(|advice| advice.key.clone()),
        what_would_have_let_it_in: advice.map(|advice| advice.words),
        arrived: At {
            unix_s: gate.clock().unix_seconds(record.came.at),
            age_s: now.since(record.came.at).as_secs_f64(),
        },
        door: Door {
            listener: listener(record.came.listener),
            method: record.came.method.to_string(),
            path: record.came.path.to_string(),
            dialect: record.asked.as_ref().map(|asked| asked.dialect),
        },
        caller: caller(policy, record),
        request: record.asked.as_ref().map(|asked| request(policy, asked)),
        quote: record.asked.as_ref().map(|asked| Quote::new(&quoted(asked))),
        on_arrival: on_arrival(policy, record),
        demoted: record.demotion.map(|demotion| Demoted {
            from: policy.classes[demotion.from.index()].name.to_string(),
            to: policy.classes[demotion.to.index()].name.to_string(),
            by: words::rule_name(policy, demotion.rule).to_owned(),
            key: words::rule_key(demotion.rule),
        }),
        shadowed_by: record.shadowed.iter().map(|rule| words::rule_name(policy, *rule).to_owned()).collect(),
        refusal: refusal(gate, record),
        life: Life {
            queued_s: record.queued_at.map(from_arrival),
            dispatched_s: record.dispatched.map(|dispatched| from_arrival(dispatched.at)),
            waited_s: waited(record).map(Span::as_secs_f64),
            first_byte_s: record.first_byte_at.map(from_arrival),
            first_token_s: record.first_token_at.map(from_arrival),
            ended_s: record.settled.map(|settled| from_arrival(settled.at)),
            left_s: record.left_at.map(from_arrival),
        },
        picked: record
            .picked
            .as_ref()
            .map(|picked| Picked { endpoint: picked.endpoint.as_deref().map(str::to_owned), cost: picked.cost }),
        settled: record.settled.as_ref().map(|settled| end(settled, record.vacated)),
        answer: record.answered.as_ref().map(|answered| Answer {
            status: answered.status.as_u16(),
            code: answered.code,
            words: answered.words.to_string(),
            retry_after_s: answered.retry_after.map(Span::as_secs_f64),
        }),
    }
}

/// A line of it.
pub(in crate::wire) fn brief(gate: &Gate, record: &Record) -> Brief {
    let policy = gate.policy();
    let asked = record.asked.as_ref();
    let caller = record.caller.as_ref();
    Brief {
        decision: gate.decision_of(record.request).to_string(),
        age_s: gate.clock().now().since(record.came.at).as_secs_f64(),
        outcome: record.state().name(),
        reason: reason(record),
        tenant: caller.map(|caller| caller.tenant.to_string()),
        session: caller.and_then(|caller| caller.session.as_ref()).map(ToString::to_string),
        pool: asked.map(|asked| policy.pools[asked.selection.pool.index()].name.to_string()),
        class: asked.map(|asked| policy.classes[asked.selection.class.index()].name.to_string()),
        model: asked.map(|asked| asked.model.to_string()),
        path: record.came.path.to_string(),
        waited_s: waited(record).map(Span::as_secs_f64),
        input_tokens: asked.map(|asked| asked.expected.input().get()),
        output_tokens: record.settled.map(|settled| settled.usage.output().get()),
        charged: record.settled.map(|settled| settled.cost.as_f64()),
    }
}

fn reason(record: &Record) -> Option<&'static str> {
    let by_core = record.refused.as_ref().map(|refused| refused.refusal.reason.code());
    by_core.or_else(|| record.answered.as_ref().map(|answered| answered.code))
}

fn why(record: &Record) -> Option<String> {
    let by_core = record.refused.as_ref().map(|refused| refused.refusal.reason.to_string());
    by_core.or_else(|| record.answered.as_ref().map(|answered| answered.words.to_string()))
}

fn waited(record: &Record) -> Option<Span> {
    let dispatched = record.dispatched.map(|Dispatched { waited, .. }| waited);
    dispatched.or_else(|| record.refused.as_ref().map(|refused| refused.waited))
}

fn patience(asked: Option<&Asked>) -> Patience {
    asked.map_or_else(Patience::default, |asked| Patience {
        dispatch: asked.waits_for_dispatch,
        answer: asked.waits_for_answer,
    })
}

/// What would have let it in; nothing for one that was let in and answered by its upstream.
fn advice(policy: &Policy, record: &Record) -> Option<Advice> {
    let asked = record.asked.as_deref();
    if let Some(refused) = &record.refused {
        let Patience { dispatch, answer } = patience(asked);
        let until = asked.map(|asked| asked.explained.patience);
        let deadline = Deadline { until, waits_for_dispatch: dispatch, waits_for_answer: answer };
        return Some(words::by_core(policy, &refused.refusal.subject, &refused.refusal.reason, deadline));
    }
    let answered = record.answered.as_ref()?;
    Some(words::by_door(policy, answered.code, &answered.words, asked.map(|asked| asked.selection.pool)))
}

fn caller(policy: &Policy, record: &Record) -> Option<Caller> {
    let known = record.caller.as_ref()?;
    Some(Caller {
        tenant: known.tenant.to_string(),
        rule: format!("identity.tenant[{}]", known.rule),
        by: policy.identity.tenant.get(known.rule).map_or_else(String::new, source),
        key_name: known.key_name.as_deref().map(str::to_owned),
        session: known.session.as_ref().map(ToString::to_string),
        agent: agent(known.agent),
        wished_class: known.wished_class.as_deref().map(str::to_owned),
    })
}

/// A rule for the tenant, in words.
pub(super) fn source(source: &TenantSource) -> String {
    match source {
        TenantSource::ApiKey(_) => "an API key".into(),
        TenantSource::Header(name) => format!("the header {name}"),
        TenantSource::Metadata(key) => format!("Envoy's metadata {key}"),
        TenantSource::Fallback(_) => "the fallback".into(),
    }
}

pub(super) const fn agent(agent: Agent) -> &'static str {
    match agent {
        Agent::Lead => "lead",
        Agent::Sub => "sub",
    }
}

pub(super) const fn listener(listener: Listener) -> &'static str {
    match listener {
        Listener::Proxy => "proxy",
        Listener::Grpc => "grpc",
        Listener::Layer => "layer",
    }
}

fn request(policy: &Policy, asked: &Asked) -> Request {
    let selection = &asked.selection;
    Request {
        model_asked: asked.model.to_string(),
        model: selection.model.to_string(),
        pool: policy.pools[selection.pool.index()].name.to_string(),
        class: policy.classes[selection.class.index()].name.to_string(),
        weight: selection.weight.as_f64(),
        streamed: asked.streamed,
        body_bytes: asked.bytes.get(),
        waits_for_dispatch_s: asked.waits_for_dispatch.map(Span::as_secs_f64),
        waits_for_answer_s: asked.waits_for_answer.map(Span::as_secs_f64),
    }
}

fn on_arrival(policy: &Policy, record: &Record) -> Option<Found> {
    let (asked, known) = (record.asked.as_deref()?, record.caller.as_ref()?);
    let subject = Subject {
        pool: asked.selection.pool,
        class: asked.selection.class,
        tenant: known.tenant.clone(),
        session: known.session.clone(),
    };
    Some(found(policy, &subject, &asked.explained, patience(Some(asked))))
}

fn refusal(gate: &Gate, record: &Record) -> Option<Refusal> {
    let refused = record.refused.as_ref()?;
    let (retry, moment) = match refused.refusal.retry {
        Retry::At(moment) => ("at", Some(moment)),
        Retry::Unknown => ("unknown", None),
        Retry::Never => ("never", None),
    };
    Some(Refusal {
        numbers: Numbers::of(gate.policy(), refused.refusal.reason),
        after_s: refused.at.since(record.came.at).as_secs_f64(),
        waited_s: refused.waited.as_secs_f64(),
        retry,
        retry_after_s: moment.map(|moment| moment.since(refused.at).as_secs_f64()),
        retry_at_unix_s: moment.map(|moment| gate.clock().unix_seconds(moment)),
    })
}

fn end(settled: &Settled, vacated: VirtualTokens) -> End {
    let Usage { uncached_input, cached_input, cache_write, visible_output, reasoning_output } = settled.usage;
    End {
        outcome: State::Ended(settled.outcome).name(),
        usage: Buckets {
            input: uncached_input.get(),
            cached_input: cached_input.get(),
            cache_write: cache_write.get(),
            output: visible_output.get(),
            reasoning: reasoning_output.get(),
        },
        estimated: settled.estimated,
        charged: settled.cost,
        vacated,
        lasted_s: settled.lasted.as_secs_f64(),
    }
}

fn quoted(asked: &Asked) -> Quoted {
    Quoted {
        counted: asked.counted,
        counting: asked.counting,
        expected: asked.expected,
        output_cap: asked.output_cap,
        explained: asked.explained.clone(),
    }
}

impl Quote {
    pub(super) fn new(quoted: &Quoted) -> Self {
        let Quoted { counted, counting, expected, output_cap, explained } = quoted;
        Self {
            input_tokens: expected.input().get(),
            cached_input: expected.cached_input.get(),
            counted_input: counted.get(),
            counted: counting.name(),
            predicted_output: expected.output().get(),
            output_cap: output_cap.cap().map(Tokens::get),
            cost: explained.cost,
        }
    }
}
