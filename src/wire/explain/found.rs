//! What the core finds of a request, as rows and sentences.

use serde::Serialize;

use crate::admission::{
    Explanation, Finding, Fullness, Gate, Objection, Prospect, QueueFound, RuleFound, Size, Standing, Subject, Wait,
    WaitFound, WindowFound,
};
use crate::policy::Policy;
use crate::units::{Limit, Span, Tokens, VirtualTokens};

use super::super::exact::{exact, exact_or_null};
use super::overload::{self, BreakerRow, RetriesRow};
use super::words::{self, Deadline};

/// Everything the core says of a request.
#[derive(Debug, Serialize)]
pub(super) struct Found {
    /// `dispatched`, `queued` or `refused`.
    verdict: &'static str,
    reason: Option<&'static str>,
    says: String,
    what_would_let_it_in: Option<String>,
    /// The class it competes in instead of the one it asked for, where a limit or a budget says so.
    demoted_to: Option<String>,
    gates: Vec<GateRow>,
    window: WindowRow,
    fanout: FanoutRow,
    turn: TurnRow,
}

/// What one gate says.
#[derive(Debug, Serialize)]
struct GateRow {
    gate: &'static str,
    /// `passes` or `refuses`.
    verdict: &'static str,
    reason: Option<&'static str>,
    says: String,
    /// How long until it may be otherwise, before jitter.
    retry_after_s: Option<f64>,
    numbers: Numbers,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Numbers {
    Drain { draining: bool },
    Retries(RetriesRow),
    Breaker(BreakerRow),
    Size { input_tokens: u64, most: Option<u64>, key: String },
    Rules { rules: Vec<RuleRow> },
    Queue { at_once: bool, displaces: u32, caps: Vec<CapRow> },
    Wait(WaitRow),
}

/// How a limit or a budget stands.
#[derive(Debug, Serialize)]
struct RuleRow {
    key: String,
    name: String,
    per: &'static str,
    unit: &'static str,
    /// What the request is expected to take of it.
    asked: f64,
    /// What is left of it; less than nothing where there is a debt.
    left: f64,
    /// The most there can be at once.
    most: f64,
    exceeded: bool,
    /// How long until the request would not exceed it; nothing where no time helps.
    allowed_in_s: Option<f64>,
}

#[derive(Debug, Serialize)]
struct CapRow {
    level: &'static str,
    unit: &'static str,
    key: String,
    cap: u64,
    /// With what is kept for those who were refused and told to come back.
    queued: u64,
    kept: u64,
    asked: u64,
    exceeded: bool,
}

#[derive(Debug, Serialize)]
struct WaitRow {
    #[serde(serialize_with = "exact")]
    ahead: VirtualTokens,
    weight: f64,
    weights_of_all: f64,
    #[serde(serialize_with = "exact_or_null")]
    rate_per_s: Option<VirtualTokens>,
    /// How long limits whose requests wait would hold it back.
    held_by_limits_s: f64,
    predicted_s: Option<f64>,
    allowed_s: Option<f64>,
    allowed_by: String,
}

#[derive(Debug, Serialize)]
struct WindowRow {
    says: String,
    requests: u32,
    most_requests: Option<u32>,
    tokens: u64,
    most_tokens: Option<u64>,
    needs_tokens: u64,
    fits: bool,
    runs_alone: bool,
}

#[derive(Debug, Serialize)]
struct FanoutRow {
    says: String,
    tenant_in_flight: Option<u32>,
    tenant_most: Option<u32>,
    session_in_flight: Option<u32>,
    session_of_sub_agents: Option<u32>,
    session_most: Option<u32>,
    waits_for_own: bool,
}

#[derive(Debug, Serialize)]
struct TurnRow {
    says: String,
    next: bool,
    class_is_at_its_ceiling: bool,
    min_share: f64,
    #[serde(serialize_with = "exact")]
    class_is_owed: VirtualTokens,
    class_is_due: bool,
    tenant: StandingRow,
    session: Option<StandingRow>,
}

#[derive(Debug, Serialize)]
struct StandingRow {
    #[serde(serialize_with = "exact")]
    counter: VirtualTokens,
    #[serde(serialize_with = "exact")]
    level: VirtualTokens,
    eligible: usize,
    first: bool,
}

/// What the core says, put into words for a subject of a policy.
pub(super) fn found(policy: &Policy, subject: &Subject, explained: &Explanation, patience: Patience) -> Found {
    let subject = &competing(subject, explained);
    let deadline = patience.deadline(explained);
    let (verdict, objection) = match explained.prospect() {
        Prospect::Dispatched => ("dispatched", None),
        Prospect::Queued => ("queued", None),
        Prospect::Refused(objection) => ("refused", Some(objection)),
    };
    let says = objection.map_or_else(|| going(explained), |objection| format!("{}.", objection.reason));
    Found {
        verdict,
        reason: objection.map(|objection| objection.reason.code()),
        says,
        what_would_let_it_in: objection
            .map(|objection| words::by_core(policy, subject, &objection.reason, deadline).words),
        demoted_to: explained.demotion.map(|demotion| policy.classes[demotion.to.index()].name.to_string()),
        gates: explained.objections().map(|(gate, _)| row(policy, gate, subject, explained, deadline)).collect(),
        window: window(subject, &explained.window),
        fanout: fanout(explained),
        turn: turn(explained),
    }
}

/// The policy's key that holds the limit a request would be refused for, where one does.
pub(super) fn key(policy: &Policy, subject: &Subject, explained: &Explanation, patience: Patience) -> Option<String> {
    match explained.prospect() {
        Prospect::Refused(objection) => {
            let subject = &competing(subject, explained);
            words::by_core(policy, subject, &objection.reason, patience.deadline(explained)).key
        }
        Prospect::Dispatched | Prospect::Queued => None,
    }
}

/// The subject in the class it competes in.
fn competing(subject: &Subject, explained: &Explanation) -> Subject {
    let class = explained.demotion.map_or(subject.class, |demotion| demotion.to);
    Subject { class, ..subject.clone() }
}

impl Found {
    pub(super) fn verdict(&self) -> &'static str {
        self.verdict
    }

    pub(super) fn reason(&self) -> Option<&'static str> {
        self.reason
    }

    pub(super) fn says(&self) -> &str {
        &self.says
    }

    pub(super) fn advice(&self) -> Option<&str> {
        self.what_would_let_it_in.as_deref()
    }
}

/// How long a client said it waits.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Patience {
    pub(super) dispatch: Option<Span>,
    pub(super) answer: Option<Span>,
}

impl Patience {
    fn deadline(self, explained: &Explanation) -> Deadline {
        Deadline { until: Some(explained.patience), waits_for_dispatch: self.dispatch, waits_for_answer: self.answer }
    }
}

fn going(explained: &Explanation) -> String {
    if explained.prospect() == Prospect::Dispatched {
        return "it would be dispatched at once.".into();
    }
    let wait = match explained.wait.found.predicted {
        Some(predicted) => format!("for about {predicted}"),
        None => "for how long is not known, since nothing measured yet says how fast its class is served".into(),
    };
    match explained.queue.found.displaces {
        0 => format!("it would wait its turn, {wait}."),
        1 => format!("it would wait its turn, {wait}; another request would have to leave the queue for it."),
        count => {
            format!("it would wait its turn, {wait}; {count} other requests would have to leave the queue for it.")
        }
    }
}

fn row(policy: &Policy, gate: Gate, subject: &Subject, explained: &Explanation, deadline: Deadline) -> GateRow {
    let (name, objection, says, numbers) = match gate {
        Gate::Drain => {
            let Finding { found: draining, objection } = explained.drain;
            let says = if draining { "the gateway is shutting down" } else { "the gateway takes new requests" };
            ("drain", objection, says.into(), Numbers::Drain { draining })
        }
        Gate::Retries => {
            let Finding { found, objection } = explained.retries;
            let (says, row) = overload::retries(found);
            ("retries", objection, says, Numbers::Retries(row))
        }
        Gate::Breaker => {
            let Finding { found, objection } = explained.breaker;
            let (says, row) = overload::breaker(subject, found, explained.at);
            ("breaker", objection, says, Numbers::Breaker(row))
        }
        Gate::Size => {
            let Finding { found, objection } = explained.size;
            let (says, numbers) = size(subject, found);
            ("size", objection, says, numbers)
        }
        Gate::Rates => {
            let Finding { found, objection } = &explained.rates;
            let (says, numbers) = rules(policy, found, "limit");
            ("rates", *objection, says, numbers)
        }
        Gate::Budgets => {
            let Finding { found, objection } = &explained.budgets;
            let (says, numbers) = rules(policy, found, "budget");
            ("budgets", *objection, says, numbers)
        }
        Gate::Queue => {
            let Finding { found, objection } = &explained.queue;
            let (says, numbers) = queue(subject, found);
            ("queue", *objection, says, numbers)
        }
        Gate::Wait => {
            let Finding { found, objection } = explained.wait;
            let at_once = explained.queue.found.at_once;
            let (says, numbers) = wait(subject, found, deadline, at_once);
            ("wait", objection, says, numbers)
        }
    };
    GateRow {
        gate: name,
        verdict: if objection.is_some() { "refuses" } else { "passes" },
        reason: objection.map(|objection| objection.reason.code()),
        says: objection.map_or(says, |objection| objection.reason.to_string()),
        retry_after_s: objection.and_then(retry_after),
        numbers,
    }
}

fn retry_after(objection: Objection) -> Option<f64> {
    match objection.wait {
        Wait::For(span) => Some(span.as_secs_f64()),
        Wait::Unknown | Wait::Forever => None,
    }
}

fn size(subject: &Subject, found: Size) -> (String, Numbers) {
    let key = words::size_key(subject.pool);
    let most = found.most.cap();
    let says = match most {
        Some(most) => format!("its input is {} tokens, of at most {most} ({key})", found.input),
        None => format!("its input is {} tokens, and there is no limit", found.input),
    };
    (says, Numbers::Size { input_tokens: found.input.get(), most: most.map(Tokens::get), key })
}

fn rules(policy: &Policy, found: &[RuleFound], what: &str) -> (String, Numbers) {
    let exceeded: Vec<&str> =
        found.iter().filter(|rule| rule.exceeded).map(|rule| words::rule_name(policy, rule.rule)).collect();
    let says = match (found.len(), exceeded.len()) {
        (0, _) => format!("no {what} concerns it"),
        (1, 0) => format!("the one {what} that concerns it allows it"),
        (count, 0) => format!("all {count} {what}s that concern it allow it"),
        (_, _) => format!("it exceeds the {what} {}, which does not refuse for it", exceeded.join(" and ")),
    };
    let row = |rule: &RuleFound| RuleRow {
        key: words::rule_key(rule.rule),
        name: words::rule_name(policy, rule.rule).to_owned(),
        per: rule.per.name(),
        unit: rule.measure.name(),
        asked: rule.asked.as_f64(rule.measure),
        left: rule.left.as_f64(rule.measure),
        most: rule.most.as_f64(rule.measure),
        exceeded: rule.exceeded,
        allowed_in_s: rule.wait.map(Span::as_secs_f64),
    };
    (says, Numbers::Rules { rules: found.iter().map(row).collect() })
}

fn queue(subject: &Subject, found: &QueueFound) -> (String, Numbers) {
    let caps = found.levels.iter().flat_map(|level| caps(subject, level, found)).collect();
    let says = match (found.at_once, found.displaces) {
        (true, _) => "there is room and nobody waits, so it need not queue".into(),
        (false, 0) => "it has to wait, and there is room in the queue".into(),
        (false, 1) => "it has to wait, and another that holds more would leave the queue for it".into(),
        (false, count) => format!("it has to wait, and {count} others that hold more would leave the queue for it"),
    };
    (says, Numbers::Queue { at_once: found.at_once, displaces: found.displaces, caps })
}

fn caps(subject: &Subject, level: &Fullness, found: &QueueFound) -> Vec<CapRow> {
    let row = |fill: crate::admission::Fill| CapRow {
        level: level.level.name(),
        unit: fill.unit.name(),
        key: words::queue_key(subject.pool, level.level, fill.unit),
        cap: fill.cap,
        queued: fill.queued,
        kept: level.kept.in_unit(fill.unit),
        asked: fill.asked,
        exceeded: fill.exceeds(),
    };
    level.fills(found.asked).map(row).collect()
}

fn wait(subject: &Subject, found: WaitFound, deadline: Deadline, at_once: bool) -> (String, Numbers) {
    let allowed_by = words::deadline_from(subject.class, deadline);
    let allowed = match found.allowed {
        Limit::AtMost(allowed) => format!("it may wait {allowed} ({allowed_by})"),
        Limit::Unlimited => "it may wait as long as it takes".into(),
    };
    let ahead = found.ahead;
    let says = match (at_once, found.rate, found.predicted) {
        (true, _, _) => "it need not wait".into(),
        (false, _, _) if found.held > Span::ZERO => {
            format!("a limit of its own holds it back for about {}; {allowed}", found.held)
        }
        (false, Some(rate), Some(predicted)) => format!(
            "about {ahead} virtual tokens go before it (and half of itself), and its class is served {rate} a second: about {predicted} with an \
             eighth added to be sure; {allowed}"
        ),
        (false, _, _) => format!(
            "about {ahead} virtual tokens go before it (and half of itself); how fast its class is served is not measured yet, and what is \
             not known refuses nobody; {allowed}"
        ),
    };
    let thousandths = |weight: u64| u32::try_from(weight).map_or(f64::INFINITY, f64::from) / 1e3;
    let row = WaitRow {
        ahead,
        weight: thousandths(found.weight),
        weights_of_all: thousandths(found.weights),
        rate_per_s: found.rate,
        held_by_limits_s: found.held.as_secs_f64(),
        predicted_s: found.predicted.map(Span::as_secs_f64),
        allowed_s: found.allowed.cap().map(Span::as_secs_f64),
        allowed_by,
    };
    (says, Numbers::Wait(row))
}

fn window(subject: &Subject, found: &WindowFound) -> WindowRow {
    let of = |count: String, cap: Option<String>| cap.map_or(count.clone(), |cap| format!("{count} of {cap}"));
    let key = format!("pools[{}].window", subject.pool.get());
    let need = found.need;
    let requests = of(found.requests.to_string(), found.caps.requests.cap().map(|cap| cap.to_string()));
    let tokens = of(found.tokens.to_string(), found.caps.tokens.cap().map(|cap| cap.to_string()));
    let adapts = match found.adapted {
        None => String::new(),
        Some(adapted) if adapted.blind => {
            ", which adapts, and holds as it is: the engine has shown nothing for long".to_owned()
        }
        Some(adapted) => format!(", which adapts, and last changed because {}", adapted.found.cause.words()),
    };
    let verdict = match (found.fits, found.runs_alone) {
        (true, false) => "it fits",
        (true, true) => "it is larger than the window and runs alone, which it can now",
        (false, false) => "it does not fit now",
        (false, true) => "it is larger than the window and has to wait until nothing else is in flight",
    };
    WindowRow {
        says: format!(
            "{requests} requests and {tokens} tokens are in flight ({key}{adapts}); it needs {need}: {verdict}"
        ),
        requests: found.requests,
        most_requests: found.caps.requests.cap(),
        tokens: found.tokens.get(),
        most_tokens: found.caps.tokens.cap().map(Tokens::get),
        needs_tokens: need.get(),
        fits: found.fits,
        runs_alone: found.runs_alone,
    }
}

fn fanout(explained: &Explanation) -> FanoutRow {
    let found = &explained.fanout;
    let mut parts = Vec::new();
    if let Some(tenant) = found.tenant {
        parts.push(format!(
            "its tenant has {} of {} requests in flight (fanout.per_tenant)",
            tenant.requests, tenant.cap
        ));
    }
    if let Some(session) = found.session {
        let of_sub_agents = match session.of_sub_agents {
            0 => String::new(),
            count => format!(", {count} of them its sub-agents'"),
        };
        let (requests, cap) = (session.requests, session.cap);
        parts.push(format!("its session {requests} of {cap} (fanout.per_session){of_sub_agents}"));
    }
    let ending =
        if found.waits_for_own { "it waits until one of its own ends" } else { "nothing of its own holds it back" };
    parts.push(ending.into());
    FanoutRow {
        says: parts.join("; "),
        tenant_in_flight: found.tenant.map(|tenant| tenant.requests),
        tenant_most: found.tenant.map(|tenant| tenant.cap),
        session_in_flight: found.session.map(|session| session.requests),
        session_of_sub_agents: found.session.map(|session| session.of_sub_agents),
        session_most: found.session.map(|session| session.cap),
        waits_for_own: found.waits_for_own,
    }
}

fn turn(explained: &Explanation) -> TurnRow {
    let turn = &explained.turn;
    let Standing { counter, level, eligible, .. } = turn.tenant;
    let next = match (turn.next, turn.at_ceiling) {
        (true, _) => "the next slot would be its",
        (false, true) => "its class has as much in flight as it may (classes[].max_share)",
        (false, false) => "others go before it",
    };
    let others = match eligible {
        0 => "and nobody takes turns now".to_owned(),
        _ => format!("where the least of the {eligible} that take turns is {level}"),
    };
    let owed = if turn.owed.is_positive() { format!("; its class is owed {}", turn.owed) } else { String::new() };
    TurnRow {
        says: format!("its tenant's counter would be {counter}, {others}{owed}: {next}"),
        next: turn.next,
        class_is_at_its_ceiling: turn.at_ceiling,
        min_share: f64::from(turn.min_share.millionths()) / 1e6,
        class_is_owed: turn.owed,
        class_is_due: turn.class_is_due,
        tenant: standing(turn.tenant),
        session: turn.session.map(standing),
    }
}

fn standing(found: Standing) -> StandingRow {
    let Standing { counter, level, eligible, first } = found;
    StandingRow { counter, level, eligible, first }
}
