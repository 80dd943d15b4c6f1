//! What is left of the limits that concern a request, as headers, on answers that are let through and refused alike.
//!
//! Each reader finds the names it knows: the IETF draft's `RateLimit-Policy` and `RateLimit` for every limit there is;
//! `x-ratelimit-*` for whoever speaks to OpenAI and `anthropic-ratelimit-*` for whoever speaks to Anthropic, each of the
//! rate of which least is left; and `x-tallygate-budget` with `x-tallygate-budget-warning` for budgets, of which the
//! providers' names know nothing. A header that an upstream sent under one of these names is replaced where a limit of
//! ours has something to say in it.

use http::header::{HeaderMap, HeaderName, HeaderValue};
use jiff::Timestamp;

use crate::admission::{Left, Rule, RuleLeft};
use crate::policy::Policy;
use crate::policy::model::Period;
use crate::units::{Measure, Span, UnixTime};

use super::dialect::Voice;

const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const BUDGET: HeaderName = HeaderName::from_static("x-tallygate-budget");
const BUDGET_WARNING: HeaderName = HeaderName::from_static("x-tallygate-budget-warning");

/// Writes what is left. `now` is what the calendar says.
pub(super) fn tell(headers: &mut HeaderMap, left: &Left, policy: &Policy, voice: Voice, now: UnixTime) {
    ietf(headers, left, policy);
    match voice {
        Voice::OpenAi => openai(headers, &left.rules),
        Voice::Anthropic => anthropic(headers, &left.rules, now),
        // Neither knows names of its own.
        Voice::Gemini | Voice::Grpc => {}
    }
    budgets(headers, &left.rules, policy);
}

/// The draft `draft-ietf-httpapi-ratelimit-headers`. Its registry has units for requests and for what is in flight, and
/// none for tokens; those are told without one.
fn ietf(headers: &mut HeaderMap, left: &Left, policy: &Policy) {
    let mut quotas = Vec::new();
    let mut standing = Vec::new();
    for (name, quota) in [("tenant", left.tenant), ("session", left.session)] {
        let Some(quota) = quota else { continue };
        quotas.push(format!("\"{name}\";q={};qu=\"concurrent-requests\"", quota.cap));
        standing.push(format!("\"{name}\";r={}", quota.left));
    }
    for rule in &left.rules {
        let (name, window) = match rule.rule {
            Rule::Limit(index) => {
                let rate = &policy.limits[usize::from(index)];
                (&rate.name, Some(rate.every.as_secs_up()))
            }
            Rule::Budget(index) => {
                let budget = &policy.budgets[usize::from(index)];
                (&budget.name, usual_seconds(&budget.period))
            }
        };
        let unit = if rule.measure == Measure::Requests { ";qu=\"requests\"" } else { "" };
        let window = window.map_or(String::new(), |seconds| format!(";w={seconds}"));
        let reset = rule.whole_in.map_or(String::new(), |span| format!(";t={}", span.as_secs_up()));
        quotas.push(format!("\"{name}\";q={}{window}{unit}", rule.most.whole(rule.measure)));
        standing.push(format!("\"{name}\";r={}{reset}", rule.left.whole(rule.measure)));
    }
    if !quotas.is_empty() {
        headers.insert(RATE_LIMIT_POLICY, value(&quotas.join(", ")));
        headers.insert(RATE_LIMIT, value(&standing.join(", ")));
    }
}

/// The length of a period of the calendar as it usually is.
fn usual_seconds(period: &Period) -> Option<u64> {
    match period {
        Period::Hour(_) => Some(3_600),
        Period::Day(_) => Some(24 * 3_600),
        Period::Month(_) => Some(30 * 24 * 3_600),
        Period::Lifetime => None,
    }
}

/// Of the rates that count this, the one of which least is left.
fn tightest(rules: &[RuleLeft], measure: Measure) -> Option<&RuleLeft> {
    let rates = rules.iter().filter(|rule| matches!(rule.rule, Rule::Limit(_)) && rule.measure == measure);
    rates.min_by_key(|rule| rule.left)
}

fn openai(headers: &mut HeaderMap, rules: &[RuleLeft]) {
    for (measure, what) in [(Measure::Requests, "requests"), (Measure::Tokens, "tokens")] {
        let Some(rule) = tightest(rules, measure) else { continue };
        let reset = go_duration(rule.whole_in.unwrap_or(Span::ZERO));
        let told =
            [("limit", rule.most.whole(measure).to_string()), ("remaining", rule.left.whole(measure).to_string())];
        for (kind, text) in told.into_iter().chain([("reset", reset)]) {
            headers.insert(name(&format!("x-ratelimit-{kind}-{what}")), value(&text));
        }
    }
}

fn anthropic(headers: &mut HeaderMap, rules: &[RuleLeft], now: UnixTime) {
    let kinds = [
        (Measure::Requests, "requests"),
        (Measure::Tokens, "tokens"),
        (Measure::InputTokens, "input-tokens"),
        (Measure::OutputTokens, "output-tokens"),
    ];
    for (measure, what) in kinds {
        let Some(rule) = tightest(rules, measure) else { continue };
        let told = [
            ("limit", rule.most.whole(measure).to_string()),
            ("remaining", rule.left.whole(measure).to_string()),
            ("reset", rfc3339(now.after(rule.whole_in.unwrap_or(Span::ZERO)))),
        ];
        for (kind, text) in told {
            headers.insert(name(&format!("anthropic-ratelimit-{what}-{kind}")), value(&text));
        }
    }
}

/// What an agent's loop can plan by: how much of each budget is left, to the decimal, and when it is whole again.
fn budgets(headers: &mut HeaderMap, rules: &[RuleLeft], policy: &Policy) {
    let mut all = Vec::new();
    let mut warnings = Vec::new();
    for rule in rules {
        let Rule::Budget(index) = rule.rule else { continue };
        let (budget, measure) = (&policy.budgets[usize::from(index)], rule.measure);
        let decimal = |amount: f64| format!("{amount:.6}").trim_end_matches('0').trim_end_matches('.').to_owned();
        let (left, of) = (decimal(rule.left.as_f64(measure).max(0.0)), decimal(rule.most.as_f64(measure)));
        let reset = rule.whole_in.map_or(String::new(), |span| format!(";reset={}", span.as_secs_up()));
        let period = budget.period.name();
        all.push(format!("\"{}\";left={left};of={of};unit={};period={period}{reset}", budget.name, measure.name()));
        if let Some(part) = rule.warning {
            let percent = decimal(f64::from(part.millionths()) / 1e4);
            warnings.push(format!("\"{}\";used-over={percent};left={left}", budget.name));
        }
    }
    for (header, items) in [(BUDGET, all), (BUDGET_WARNING, warnings)] {
        if !items.is_empty() {
            headers.insert(header, value(&items.join(", ")));
        }
    }
}

/// As Go writes durations, and OpenAI its resets: `6m0s`, `51.189s`, `120ms`. Rounded up to a millisecond.
fn go_duration(span: Span) -> String {
    let millis = span.as_millis_up();
    let (hours, minutes, rest) = (millis / 3_600_000, millis / 60_000 % 60, millis % 60_000);
    if millis < 1_000 {
        return if millis == 0 { "0s".into() } else { format!("{millis}ms") };
    }
    let seconds = format!("{}.{:03}", rest / 1_000, rest % 1_000);
    let seconds = seconds.trim_end_matches('0').trim_end_matches('.');
    match (hours, minutes) {
        (0, 0) => format!("{seconds}s"),
        (0, minutes) => format!("{minutes}m{seconds}s"),
        (hours, minutes) => format!("{hours}h{minutes}m{seconds}s"),
    }
}

/// To the second, rounded up.
fn rfc3339(moment: UnixTime) -> String {
    let seconds = moment.as_nanos().div_euclid(1_000_000_000) + i64::from(moment.as_nanos() % 1_000_000_000 != 0);
    Timestamp::from_second(seconds).unwrap_or(Timestamp::MAX).to_string()
}

fn name(text: &str) -> HeaderName {
    HeaderName::try_from(text).expect("letters and dashes are a legal header name")
}

fn value(text: &str) -> HeaderValue {
    HeaderValue::try_from(text).expect("names of the policy and digits are a legal header value")
}

#[cfg(test)]
mod tests {
    use super::{HeaderMap, Left, Rule, RuleLeft, Span, UnixTime, Voice, go_duration, tell};
    use crate::admission::Quota;
    use crate::policy::{self, Policy};
    use crate::units::{Amount, Measure, Share};

    fn policy() -> Policy {
        let text = "version: 1\n\
                    limits:\n\
                    - {name: rpm, requests: 60, every: 1m}\n\
                    - {name: tpm, tokens: 1000, every: 1m, burst: 2000}\n\
                    - {name: itpm, input_tokens: 500, every: 1m}\n\
                    budgets:\n\
                    - {name: daily, tokens: 5000, period: day}\n";
        policy::parse("p", text, |_| panic!("no keys")).expect("valid")
    }

    fn rule(rule: Rule, measure: Measure, most: i128, left: i128, seconds: f64) -> RuleLeft {
        let (most, left) = (Amount::from_parts(most), Amount::from_parts(left));
        RuleLeft { rule, measure, most, left, whole_in: Some(Span::from_secs_f64(seconds)), warning: None }
    }

    fn told(left: &Left, voice: Voice) -> Vec<String> {
        let mut headers = HeaderMap::new();
        tell(&mut headers, left, &policy(), voice, UnixTime::from_nanos(1_000_000_000_000_000_000));
        let mut lines: Vec<String> =
            headers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().expect("text"))).collect();
        lines.sort();
        lines
    }

    #[test]
    fn nothing_is_told_where_there_is_no_limit() {
        assert_eq!(told(&Left::default(), Voice::OpenAi), Vec::<String>::new());
        assert_eq!(told(&Left::default(), Voice::Anthropic), Vec::<String>::new());
    }

    #[test]
    fn what_may_be_in_flight_is_told_where_a_cap_is_set() {
        let (tenant, session) = (Some(Quota { cap: 64, left: 12 }), Some(Quota { cap: 8, left: 0 }));
        let left = Left { tenant, session, rules: Vec::new() };
        assert_eq!(
            told(&left, Voice::OpenAi),
            [
                r#"ratelimit-policy: "tenant";q=64;qu="concurrent-requests", "session";q=8;qu="concurrent-requests""#,
                r#"ratelimit: "tenant";r=12, "session";r=0"#,
            ]
        );
    }

    #[test]
    fn each_reader_finds_the_names_it_knows() {
        let mut daily = rule(Rule::Budget(0), Measure::Tokens, 5_000, 250, 3_600.0);
        daily.warning = Some(Share::new(0.95).expect("valid"));
        let rules = vec![
            rule(Rule::Limit(0), Measure::Requests, 60, 59, 1.0),
            rule(Rule::Limit(1), Measure::Tokens, 2_000, -30, 121.8),
            rule(Rule::Limit(2), Measure::InputTokens, 500, 499, 0.12),
            daily,
        ];
        let left = Left { rules, ..Left::default() };
        let common = [
            r#"ratelimit-policy: "rpm";q=60;w=60;qu="requests", "tpm";q=2000;w=60, "itpm";q=500;w=60, "daily";q=5000;w=86400"#,
            r#"ratelimit: "rpm";r=59;t=1, "tpm";r=0;t=122, "itpm";r=499;t=1, "daily";r=250;t=3600"#,
            r#"x-tallygate-budget-warning: "daily";used-over=95;left=250"#,
            r#"x-tallygate-budget: "daily";left=250;of=5000;unit=tokens;period=day;reset=3600"#,
        ];
        let openai = [
            "x-ratelimit-limit-requests: 60",
            "x-ratelimit-limit-tokens: 2000",
            "x-ratelimit-remaining-requests: 59",
            "x-ratelimit-remaining-tokens: 0",
            "x-ratelimit-reset-requests: 1s",
            "x-ratelimit-reset-tokens: 2m1.8s",
        ];
        let anthropic = [
            "anthropic-ratelimit-input-tokens-limit: 500",
            "anthropic-ratelimit-input-tokens-remaining: 499",
            "anthropic-ratelimit-input-tokens-reset: 2001-09-09T01:46:41Z",
            "anthropic-ratelimit-requests-limit: 60",
            "anthropic-ratelimit-requests-remaining: 59",
            "anthropic-ratelimit-requests-reset: 2001-09-09T01:46:41Z",
            "anthropic-ratelimit-tokens-limit: 2000",
            "anthropic-ratelimit-tokens-remaining: 0",
            "anthropic-ratelimit-tokens-reset: 2001-09-09T01:48:42Z",
        ];
        let sorted = |own: &[&str]| {
            let mut lines: Vec<String> = own.iter().chain(&common).map(|line| (*line).to_owned()).collect();
            lines.sort();
            lines
        };
        assert_eq!(told(&left, Voice::OpenAi), sorted(&openai));
        assert_eq!(told(&left, Voice::Anthropic), sorted(&anthropic));
    }

    #[test]
    fn resets_are_written_as_go_writes_durations() {
        let cases =
            [(0, "0s"), (1, "1ms"), (120, "120ms"), (51_189, "51.189s"), (360_000, "6m0s"), (3_661_500, "1h1m1.5s")];
        for (millis, text) in cases {
            assert_eq!(go_duration(Span::from_millis(millis)), text);
        }
    }
}
