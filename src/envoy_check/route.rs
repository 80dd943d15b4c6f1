//! What a route's and a connection's own bounds do to whoever waits, and to long answers.

use crate::units::Span;

use super::Expected;
use super::chain::{Ask, Chain, Exception, Filter, Route};
use super::cluster::Uses;
use super::config::Config;
use super::ext_proc::{compared, is_short};
use super::finding::Report;
use super::modes::BODY_MODES;
use super::part::Part;
use super::rules::{
    BUFFER_LIMIT, ENVOY_RETRIES, MAX_STREAM_DURATION, ROUTE_TIMEOUT, SHORT_ROUTE_TIMEOUT, SILENCE_TIMEOUT,
    STREAM_IDLE_TIMEOUT, UPSTREAM_DURATION,
};

/// What Envoy takes where nothing is set.
const ROUTE_DEFAULT: Span = Span::from_secs(15);
const IDLE_DEFAULT: Span = Span::from_secs(300);
const BUFFER_DEFAULT: u64 = 1024 * 1024;
/// No model's answers are all done by then, and most models' are.
const ANSWERS: (Span, Span) = (Span::from_secs(60), Span::from_secs(600));
/// What Envoy may try again without more work at an upstream: nothing reached it.
const UNREACHED: [&str; 3] = ["connect-failure", "refused-stream", "reset-before-request"];

/// The clusters a route sends to, and where each is named.
pub(super) fn targets<'document>(route: &Part<'document>) -> Vec<(&'document str, Part<'document>)> {
    let split = route.at("route.weighted_clusters.clusters").items();
    let split = split.iter().map(|cluster| cluster.get("name"));
    let named = [route.at("route.cluster")].into_iter().chain(split).filter(Part::is_there);
    named.map(|part| (part.text(), part)).collect()
}

/// Checks every route on which a filter asks us.
pub(super) fn check<'document>(
    config: &Config<'document>,
    chain: &Chain<'document>,
    filter: &Filter<'document>,
    ask: Ask,
    expected: &Expected,
    uses: &mut Uses<'document>,
    report: &mut Report,
) {
    let manager = &chain.manager;
    let Some(routes) = &chain.routes else {
        idle(&manager.get("stream_idle_timeout"), ask, expected, report);
        duration(&manager.at("common_http_protocol_options.max_stream_duration"), ask, expected, report);
        return;
    };
    for route in routes {
        if !filter.is_on(route) || !route.is_forwarding() {
            continue;
        }
        let action = route.route.get("route");
        idle(&action.get("idle_timeout").or(&manager.get("stream_idle_timeout")), ask, expected, report);
        let general = manager.at("common_http_protocol_options.max_stream_duration");
        duration(&action.at("max_stream_duration.max_stream_duration").or(&general), ask, expected, report);
        timeout(&action.get("timeout"), report);
        retries(&action.get("retry_policy").or(&route.host.get("retry_policy")), report);
        buffer(chain, filter, route, expected, report);
        for (name, named) in targets(&route.route) {
            uses.note_upstream(name, named, ask);
            let Some(cluster) = config.cluster_of(name) else { continue };
            let options = super::cluster::http_options(cluster);
            let most = options.at("common_http_protocol_options.max_stream_duration");
            if most.span().is_some_and(|most| most > Span::ZERO && most < ANSWERS.1) {
                report.add(&UPSTREAM_DURATION, &most, format!("is {}", most.text()));
            }
        }
    }
}

/// How long a stream may be silent.
fn idle(part: &Part<'_>, ask: Ask, expected: &Expected, report: &mut Report) {
    let set = part.span().unwrap_or(IDLE_DEFAULT);
    if set == Span::ZERO {
        return;
    }
    if ask.holds() && is_short(set, expected.longest_wait) {
        report.add(&STREAM_IDLE_TIMEOUT, part, compared(part, set, expected.longest_wait));
    } else if set < expected.begin_within {
        let (is, most) = (set.as_secs_f64(), expected.begin_within.as_secs_f64());
        let found = format!("is {is} s, and an upstream may take {most} s to begin (`--first-byte-timeout`)");
        report.add(&SILENCE_TIMEOUT, part, found);
    }
}

/// How long a stream may last.
fn duration(part: &Part<'_>, ask: Ask, expected: &Expected, report: &mut Report) {
    let Some(set) = part.span().filter(|set| *set > Span::ZERO) else { return };
    if ask.holds() && is_short(set, expected.longest_wait) {
        report.add(&MAX_STREAM_DURATION, part, compared(part, set, expected.longest_wait));
    } else if set < ANSWERS.1 {
        report.add(&UPSTREAM_DURATION, part, format!("is {}", part.text()));
    }
}

/// How long an answer may last.
fn timeout(part: &Part<'_>, report: &mut Report) {
    let set = part.span().unwrap_or(ROUTE_DEFAULT);
    let is = if part.is_there() { "is" } else { "is not set, which means" };
    let found = format!("{is} {} s", set.as_secs_f64());
    if set == Span::ZERO {
    } else if set < ANSWERS.0 {
        report.add(&ROUTE_TIMEOUT, part, found);
    } else if set < ANSWERS.1 {
        report.add(&SHORT_ROUTE_TIMEOUT, part, found);
    }
}

fn retries(policy: &Part<'_>, report: &mut Report) {
    let on = policy.get("retry_on");
    let after_work = on.text().split(',').map(str::trim).any(|when| !when.is_empty() && !UNREACHED.contains(&when));
    if after_work {
        report.add(&ENVOY_RETRIES, &on, format!("is {:?}", on.text()));
    }
}

/// How large a body can be held, where one is.
fn buffer(chain: &Chain<'_>, filter: &Filter<'_>, route: &Route<'_>, expected: &Expected, report: &mut Report) {
    let modes = match route.exception(filter.name) {
        Some(Exception::Changed(message)) if message.at("overrides.processing_mode").is_there() => {
            message.at("overrides.processing_mode")
        }
        Some(_) | None => filter.config.get("processing_mode"),
    };
    // An external authorization filter has a bound of its own, and what is streamed has none.
    if modes.get("request_body_mode").one_of(&BODY_MODES) != Some("BUFFERED") {
        return;
    }
    let places = [&route.route, &route.host];
    let fields = ["request_body_buffer_limit", "per_request_buffer_limit_bytes"];
    let own = places.iter().flat_map(|place| fields.iter().map(|field| place.get(field))).find(Part::is_there);
    let part = own.unwrap_or_else(|| chain.listener.get("per_connection_buffer_limit_bytes"));
    let most = part.number().unwrap_or(BUFFER_DEFAULT);
    if most < expected.body_most.get() {
        let is = if part.is_there() { "is" } else { "is not set, which means" };
        let found = format!("{is} {most} bytes, and Tallygate reads {}", expected.body_most.get());
        report.add(&BUFFER_LIMIT, &part, found);
    }
}
