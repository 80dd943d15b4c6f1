//! From how the limits stand to the answer that Envoy understands.
//!
//! Every descriptor is told of the limit that stands worst for it: the one that refuses it, else the one of which the
//! smallest part is left. Headers tell of all limits the call concerns, admitted or not, as at the other doors, and a
//! refusal is the one table's, in OpenAI's shape: a rate limit call does not say which API its request is of.

use std::collections::HashMap;

use envoy_types::pb::envoy::config::core::v3::HeaderValue as Header;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitResponse;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus, RateLimit};
use envoy_types::pb::google::protobuf::value::Kind;
use envoy_types::pb::google::protobuf::{Duration, Struct, Value};
use http::HeaderMap;

use crate::admission::{Hit, HitOutcome, Left, RateStanding, Rule, RuleLeft};
use crate::policy::Policy;
use crate::policy::model::Rate;
use crate::shell::Gate;
use crate::units::{Amount, Span};

use super::super::answer::{DECISION, Refused};
use super::super::dialect::Voice;
use super::super::left;
use super::read::Asked;

/// Periods that Envoy has a word for.
const UNITS: [(u64, Unit); 7] = [
    (1, Unit::Second),
    (60, Unit::Minute),
    (3_600, Unit::Hour),
    (24 * 3_600, Unit::Day),
    (7 * 24 * 3_600, Unit::Week),
    (30 * 24 * 3_600, Unit::Month),
    (365 * 24 * 3_600, Unit::Year),
];

/// A hit, and how its limit stands.
type Told<'a> = (&'a Hit, &'a RateStanding);

/// The answer to a call.
pub(super) fn answer(gate: &Gate, asked: &Asked, standings: &[RateStanding]) -> RateLimitResponse {
    let policy = gate.policy();
    let mut rest = standings.iter();
    let told: Vec<Vec<Told<'_>>> =
        asked.descriptors.iter().map(|hits| hits.iter().zip(rest.by_ref()).collect()).collect();
    let all: Vec<Told<'_>> = told.iter().flatten().copied().collect();
    let over = all.iter().copied().filter_map(refused).max_by_key(|(_, wait)| *wait);
    let left = Left { rules: rules(&all), ..Left::default() };
    let now = gate.clock().now();
    let mut response = RateLimitResponse {
        overall_code: code(over.is_some()).into(),
        statuses: told.iter().map(|told| status(policy, told)).collect(),
        dynamic_metadata: Some(metadata(policy, &all, over.is_some())),
        ..RateLimitResponse::default()
    };
    let mut headers = HeaderMap::new();
    if let Some(((hit, standing), wait)) = over {
        let refused = Refused::OverLimit { what: words(policy, hit, standing), wait };
        let (head, body) = refused.answer(gate.no_decision(), now, Voice::OpenAi).into_parts();
        headers = head.headers;
        // What is counted here is no request, and leads to no decision.
        for id in [DECISION, Voice::OpenAi.request_id()] {
            headers.remove(id);
        }
        response.raw_body = body.into_bytes();
    }
    left::tell(&mut headers, &left, policy, Voice::OpenAi, gate.clock().calendar().at(now));
    response.response_headers_to_add = headers
        .iter()
        .map(|(name, value)| {
            let (key, raw_value) = (name.to_string(), Vec::new());
            let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
            Header { key, value, raw_value }
        })
        .collect();
    response
}

fn code(over: bool) -> Code {
    if over { Code::OverLimit } else { Code::Ok }
}

/// A hit that is refused, and for how long.
fn refused<'a>(told: Told<'a>) -> Option<(Told<'a>, Span)> {
    match told.1.outcome {
        HitOutcome::OverLimit(wait) => Some((told, wait)),
        HitOutcome::Allowed | HitOutcome::Shadowed => None,
    }
}

fn rate<'a>(policy: &'a Policy, hit: &Hit) -> &'a Rate {
    &policy.limits[usize::from(hit.limit)]
}

fn words(policy: &Policy, hit: &Hit, standing: &RateStanding) -> String {
    let RateStanding { measure, most, left, .. } = standing;
    let rate = rate(policy, hit);
    let left = if left.is_positive() { left.of(*measure).to_string() } else { "nothing".into() };
    let (name, whose) = (&rate.name, rate.per.whose());
    format!("{left} is left of the {} that {whose} may use at once by the limit {name}", most.of(*measure))
}

/// How a descriptor stands: by what refuses it, else by what is nearest to its end.
fn status(policy: &Policy, told: &[Told<'_>]) -> DescriptorStatus {
    let fullness = |(_, standing): &&Told<'_>| {
        let RateStanding { left, most, .. } = **standing;
        let part = left.parts().max(0).saturating_mul(1_000_000) / most.parts().max(1);
        (!matches!(standing.outcome, HitOutcome::OverLimit(_)), part)
    };
    let Some((hit, standing)) = told.iter().min_by_key(fullness) else {
        return DescriptorStatus { code: Code::Ok.into(), ..DescriptorStatus::default() };
    };
    let RateStanding { measure, left, whole_in, outcome, .. } = **standing;
    let rate = rate(policy, hit);
    let seconds = rate.every.as_secs_up();
    let unit = UNITS.iter().find(|(length, _)| Span::from_secs(*length) == rate.every);
    let (unit, per_unit) = match unit {
        Some((_, unit)) => (*unit, rate.amount),
        // A period without a word of its own is told by the second, rounded up.
        None => (Unit::Second, Amount::from_parts(div_up(rate.amount.parts(), i128::from(seconds.max(1))))),
    };
    let whole = |amount: Amount| u32::try_from(amount.whole(measure)).unwrap_or(u32::MAX);
    DescriptorStatus {
        code: code(matches!(outcome, HitOutcome::OverLimit(_))).into(),
        current_limit: Some(RateLimit {
            name: rate.name.to_string(),
            requests_per_unit: whole(per_unit).max(1),
            unit: unit.into(),
        }),
        limit_remaining: whole(left),
        duration_until_reset: Some(duration(whole_in)),
        ..DescriptorStatus::default()
    }
}

fn div_up(amount: i128, by: i128) -> i128 {
    amount.saturating_add(by - 1).div_euclid(by)
}

fn duration(span: Span) -> Duration {
    let nanos = span.as_nanos();
    Duration {
        seconds: i64::try_from(nanos / 1_000_000_000).unwrap_or(i64::MAX),
        nanos: i32::try_from(nanos % 1_000_000_000).unwrap_or(0),
    }
}

/// What is left of every limit the call concerns, each once; of several owners of one, of the one that has least.
fn rules(all: &[Told<'_>]) -> Vec<RuleLeft> {
    let mut rules: Vec<RuleLeft> = Vec::new();
    for (hit, standing) in all {
        let RateStanding { measure, most, left, whole_in, .. } = **standing;
        let rule = Rule::Limit(hit.limit);
        let found = RuleLeft { rule, measure, most, left, whole_in: Some(whole_in), warning: None };
        match rules.iter_mut().find(|known| known.rule == rule) {
            Some(known) if left < known.left => *known = found,
            Some(_) => {}
            None => rules.push(found),
        }
    }
    rules
}

/// What other filters and the access log may read: whether the call is over a limit, and what is left of each.
fn metadata(policy: &Policy, all: &[Told<'_>], over: bool) -> Struct {
    let value = |kind| Value { kind: Some(kind) };
    let structure = |fields: Vec<(String, Value)>| Struct { fields: fields.into_iter().collect::<HashMap<_, _>>() };
    let limits = rules(all).into_iter().filter_map(|rule| {
        let Rule::Limit(index) = rule.rule else { return None };
        let numbers = vec![
            ("limit".to_owned(), value(Kind::NumberValue(rule.most.as_f64(rule.measure)))),
            ("remaining".to_owned(), value(Kind::NumberValue(rule.left.as_f64(rule.measure)))),
        ];
        let name = policy.limits[usize::from(index)].name.to_string();
        Some((name, value(Kind::StructValue(structure(numbers)))))
    });
    structure(vec![
        ("over_limit".into(), value(Kind::BoolValue(over))),
        ("limits".into(), value(Kind::StructValue(structure(limits.collect())))),
    ])
}
