//! The external processing filter: what it sends, how long it waits, what it takes back, and what a route changes.

use crate::units::{Limit, Span};

use super::Expected;
use super::chain::{Ask, Chain, EXT_PROC, Exception, Filter, asks};
use super::cluster::http_options;
use super::config::Config;
use super::finding::Report;
use super::headers;
use super::modes::{self, BODY_MODES, Eagerness, Modes};
use super::part::Part;
use super::rules::{
    AUTH_WITHHELD, EAGER_BODY, FAILS_CLOSED, FAILS_OPEN, HEADERS_SKIPPED, LOCAL_REPLIES_UNKNOWN, MESSAGE_TIMEOUT,
    METADATA_DROPPED, METADATA_WITHHELD, OVERRIDE_ALLOWED, OVERRIDE_FORBIDDEN, RECORDS_WITHHELD, REFUSALS_DISABLED,
    REQUEST_BODY_MODE, REQUEST_UNPUBLISHED, SHADOW, SHADOW_BODY, SHADOW_FAILS_CLOSED, STATUS_ON_ERROR,
    TRAILERS_SKIPPED, UPSTREAM_FILTER, USAGE_SIGNAL, USAGE_UNPUBLISHED,
};

/// Envoy's own bound where none is set.
const TIMEOUT: Span = Span::from_millis(200);
/// The longest Envoy takes.
pub(super) const TIMEOUT_MOST: Span = Span::from_secs(3600);
const HEADER_MODES: [&str; 3] = ["DEFAULT", "SEND", "SKIP"];
const AI: &str = "envoy.extensions.filters.http.ai_protocol_manager.v3.AiProtocolManager";
const RECORDS: [&str; 2] = ["envoy.ai.request_info", "envoy.ai.token_usage"];
/// The namespace that Tallygate writes.
const NAMESPACE: &str = "tallygate";

/// What holds on a route: the filter's own, or the route's in its place.
struct Settings<'document> {
    modes: Part<'document>,
    metadata: Part<'document>,
    failure: Part<'document>,
}

/// Checks one that asks us.
pub(super) fn check(config: &Config<'_>, chain: &Chain<'_>, ours: usize, expected: &Expected, report: &mut Report) {
    let Filter { name, config: filter, asks, .. } = &chain.filters[ours];
    let general = Settings {
        modes: filter.get("processing_mode"),
        metadata: filter.get("metadata_options"),
        failure: filter.get("failure_mode_allow"),
    };
    if *asks == Some(Ask::Watch) {
        let part = filter.get("observability_mode");
        report.add(&SHADOW, &part, "observability_mode is on");
    } else {
        holding(filter, expected, report);
    }
    headers::forwarded(&filter.get("forward_rules"), expected, report);
    judge(config, chain, ours, &general, expected, report);
    for route in chain.routes.iter().flatten() {
        let Some(Exception::Changed(message)) = route.exception(name) else { continue };
        let changes = message.get("overrides");
        let settings = Settings {
            modes: changes.get("processing_mode").or(&general.modes),
            metadata: changes.get("metadata_options").or(&general.metadata),
            failure: changes.get("failure_mode_allow").or(&general.failure),
        };
        judge(config, chain, ours, &settings, expected, report);
    }
}

/// What matters where a request is held, and no route can change.
fn holding(filter: &Part<'_>, expected: &Expected, report: &mut Report) {
    let timeout = filter.get("message_timeout");
    let set = timeout.span().unwrap_or(TIMEOUT);
    if is_short(set, expected.longest_wait) {
        let max = filter.get("max_message_timeout").span().unwrap_or_default();
        let no_help =
            if max > set { "; max_message_timeout does not help, since Tallygate asks for no more time" } else { "" };
        let found = format!("{}{no_help}", compared(&timeout, set, expected.longest_wait));
        report.add(&MESSAGE_TIMEOUT, &timeout, found);
    }
    let disabled = filter.get("disable_immediate_response");
    if disabled.is_on() {
        report.add(&REFUSALS_DISABLED, &disabled, "disable_immediate_response is on");
    }
    headers::mutated(&filter.get("mutation_rules"), report);
    let attributes = filter.get("response_attributes");
    if !attributes.words().contains(&"response.code_details") {
        report.add(&LOCAL_REPLIES_UNKNOWN, &attributes, "response.code_details is not among them");
    }
    let status = filter.at("status_on_error.code");
    if !filter.get("failure_mode_allow").is_on() && !status.is_there() {
        report.add(&STATUS_ON_ERROR, &filter.get("status_on_error"), "is not set: clients get 500");
    }
}

/// Whether a bound is reached while a request may still wait for its turn.
pub(super) fn is_short(bound: Span, wait: Limit<Span>) -> bool {
    match wait {
        Limit::AtMost(wait) => bound <= wait && bound < TIMEOUT_MOST,
        Limit::Unlimited => bound < TIMEOUT_MOST,
    }
}

/// A bound beside the longest wait, in words.
pub(super) fn compared(part: &Part<'_>, bound: Span, wait: Limit<Span>) -> String {
    let is = if part.is_there() { "is" } else { "is not set, which means" };
    let wait = match wait {
        Limit::AtMost(wait) => format!("a request may wait {} s", wait.as_secs_f64()),
        Limit::Unlimited => "a request may wait without a bound".to_owned(),
    };
    format!("{is} {} s, and {wait} (`max_wait`)", bound.as_secs_f64())
}

/// What holds on some route.
fn judge(
    config: &Config<'_>,
    chain: &Chain<'_>,
    ours: usize,
    settings: &Settings<'_>,
    expected: &Expected,
    report: &mut Report,
) {
    let Settings { modes, metadata, .. } = settings;
    let watches = chain.filters[ours].asks == Some(Ask::Watch);
    for field in ["request_header_mode", "response_header_mode"] {
        let mode = modes.get(field);
        if mode.one_of(&HEADER_MODES) == Some("SKIP") {
            report.add(&HEADERS_SKIPPED, &mode, "is SKIP");
        }
    }
    let body = |field: &str| modes.get(field).one_of(&BODY_MODES).unwrap_or("NONE");
    let (request, response) = (body("request_body_mode"), body("response_body_mode"));
    let overrides = chain.filters[ours].config.get("allow_mode_override");
    let published = chain.filters.iter().any(|filter| filter.kind == AI) || is_listed(metadata, RECORDS[0]);
    let without = |mode: &str| mode == "NONE" && (published || overrides.is_on());
    let trailers = modes.get("response_trailer_mode");
    let sends_trailers = trailers.one_of(&HEADER_MODES) == Some("SEND");
    if watches {
        watching(settings, [("request_body_mode", request), ("response_body_mode", response)], without, report);
    } else {
        let eager = chain.filters[ours].config.get("send_body_without_waiting_for_header_response");
        deciding(settings, (request, response), &eager, without, report);
        if !sends_trailers && !without(response) {
            report.add(&TRAILERS_SKIPPED, &trailers, "is not SEND");
        }
    }
    verified(chain, ours, &metadata.at("forwarding_namespaces.untyped"), expected, report);
    if without(request) {
        request_record(chain, ours, report);
    }
    if without(response) {
        usage_record(config, chain, &trailers, sends_trailers, report);
    }
    if without(request) {
        if !overrides.is_on() && !watches {
            report.add(&OVERRIDE_FORBIDDEN, &overrides, "is off, and bodies are not sent");
        }
    } else if overrides.is_on() {
        report.add(&OVERRIDE_ALLOWED, &overrides, "is on");
    }
    if without(request) || without(response) {
        for record in RECORDS.iter().filter(|record| !is_listed(metadata, record)) {
            let part = metadata.at("forwarding_namespaces.typed");
            report.add(&RECORDS_WITHHELD, &part, format!("{record} is not among them"));
        }
    }
}

/// What holds of a filter that only watches.
fn watching(
    settings: &Settings<'_>,
    bodies: [(&str, &str); 2],
    is_recorded: impl Fn(&str) -> bool,
    report: &mut Report,
) {
    for (field, mode) in bodies {
        if mode != "STREAMED" && !is_recorded(mode) {
            report.add(&SHADOW_BODY, &settings.modes.get(field), format!("{field} is {mode}"));
        }
    }
    if !settings.failure.is_on() {
        report.add(&SHADOW_FAILS_CLOSED, &settings.failure, "is off, and observability_mode is on");
    }
}

/// What holds of one that decides, its bodies (of requests and answers) being sent so.
fn deciding(
    settings: &Settings<'_>,
    (request, response): (&'static str, &'static str),
    eager: &Part<'_>,
    is_recorded: impl Fn(&str) -> bool,
    report: &mut Report,
) {
    let eagerness = if eager.is_on() { Eagerness::AtOnce } else { Eagerness::AfterHeaders };
    // Where nothing else reads bodies, what is left out is missing.
    let named = |mode: &'static str| if mode == "NONE" && !is_recorded(mode) { "NONE without records" } else { mode };
    let seen = Modes { request: named(request), response: named(response), eagerness };
    if let Some((rule, found)) = modes::fault(seen) {
        let part = match rule {
            rule if *rule == EAGER_BODY => eager.clone(),
            rule if *rule == REQUEST_BODY_MODE => settings.modes.get("request_body_mode"),
            _ => settings.modes.get("response_body_mode"),
        };
        report.add(rule, &part, found);
    }
    failure_mode(&settings.failure, report);
    let receiving = settings.metadata.at("receiving_namespaces.untyped");
    if !receiving.words().contains(&NAMESPACE) {
        report.add(&METADATA_DROPPED, &receiving, format!("{NAMESPACE} is not among them"));
    }
}

/// Whether a record of Envoy's reaches us, in either form.
fn is_listed(metadata: &Part<'_>, record: &str) -> bool {
    let forwarded = metadata.get("forwarding_namespaces");
    ["typed", "untyped"].iter().any(|form| forwarded.get(form).words().contains(&record))
}

/// Whether requests pass when we cannot be asked.
pub(super) fn failure_mode(failure: &Part<'_>, report: &mut Report) {
    if failure.is_on() {
        report.add(&FAILS_OPEN, failure, "is on");
    } else {
        report.add(&FAILS_CLOSED, failure, "is off");
    }
}

/// Whether what filters before ours verified reaches us under the namespaces listed.
pub(super) fn verified(chain: &Chain<'_>, ours: usize, listed: &Part<'_>, expected: &Expected, report: &mut Report) {
    let words = listed.words();
    for namespace in expected.identity_namespaces.iter().filter(|namespace| !words.contains(&namespace.as_str())) {
        report.add(&METADATA_WITHHELD, listed, format!("{namespace} is not among them, and the policy names it"));
    }
    for filter in &chain.filters[..ours] {
        let writes = filter.kind.ends_with(".JwtAuthentication")
            && filter
                .config
                .get("providers")
                .entries()
                .iter()
                .any(|(_, one)| one.get("payload_in_metadata").is_there());
        let known = words.contains(&filter.name) || expected.identity_namespaces.iter().any(|name| name == filter.name);
        if writes && !known {
            report.add(
                &AUTH_WITHHELD,
                listed,
                format!("{} writes what it verified, and is not among them", filter.name),
            );
        }
    }
}

/// Without the request's body, something before us must have read it.
fn request_record(chain: &Chain<'_>, ours: usize, report: &mut Report) {
    let reads = |filter: &Filter<'_>| {
        let publishes = |entry: &Part<'_>| entry.get("typed_config").message().0.ends_with(".RequestInfo");
        filter.kind == AI
            && filter.config.get("request_handling").is_there()
            && filter.config.get("filters").items().iter().any(publishes)
    };
    if chain.filters[..ours].iter().any(reads) {
        return;
    }
    let behind = chain.filters[ours + 1..].iter().find(|filter| reads(filter));
    match behind {
        Some(late) => {
            let found = "ai_protocol_manager stands behind Tallygate's filter";
            report.add(&REQUEST_UNPUBLISHED, &late.entry, found);
        }
        None => {
            let found = "request_body_mode is NONE, and no ai_protocol_manager reads requests";
            report.add(&REQUEST_UNPUBLISHED, &chain.filters[ours].entry, found);
        }
    }
}

/// Without the answer's body, something behind us must have read it: in the upstream's own chain.
fn usage_record(
    config: &Config<'_>,
    chain: &Chain<'_>,
    trailers: &Part<'_>,
    sends_trailers: bool,
    report: &mut Report,
) {
    if !sends_trailers {
        report.add(&USAGE_SIGNAL, trailers, "is not SEND, and the answer's body is not sent");
    }
    let usage = |message: &Part<'_>| message.at("response_handling.token_usage").is_there();
    let targets = chain.routes.iter().flatten().flat_map(|route| super::route::targets(&route.route));
    for cluster in targets.filter_map(|(name, _)| config.cluster_of(name)) {
        let filters = http_options(cluster).get("http_filters").items();
        let reader =
            filters.iter().map(|entry| config.filter(entry)).find(|(kind, message)| *kind == AI && usage(message));
        match reader {
            Some((_, message)) => {
                let signal = message.at("response_handling.token_usage.usage_signal");
                if signal.text() != "SYNTHESIZE_TRAILERS" && signal.number() != Some(1) {
                    report.add(&USAGE_SIGNAL, &signal, "is not SYNTHESIZE_TRAILERS");
                }
            }
            None => {
                let found = "response_body_mode is NONE, and the upstream's own filters publish no usage";
                report.add(&USAGE_UNPUBLISHED, cluster, found);
            }
        }
    }
}

/// The filters of clusters' own chains that ask us: they stand behind the choice of an endpoint.
pub(super) fn in_upstreams(config: &Config<'_>, expected: &Expected, report: &mut Report) {
    for cluster in config.clusters() {
        for entry in http_options(cluster).get("http_filters").items() {
            let (kind, message) = config.filter(&entry);
            if kind == EXT_PROC && asks(config, kind, &message, expected).is_some() {
                let found = format!("{} asks Tallygate from a cluster's own filters", entry.get("name").text());
                report.add(&UPSTREAM_FILTER, &entry, found);
            }
        }
    }
}
