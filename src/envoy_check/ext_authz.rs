//! The external authorization filter: what a check carries, how long it may be held, and the access log that tells how
//! the request ended, since the filter itself sees nothing of answers.

use crate::units::Span;

use super::Expected;
use super::chain::{Chain, Exception, Filter};
use super::cluster::{is_our_address, is_ours};
use super::config::Config;
use super::ext_proc::{compared, failure_mode, is_short, verified};
use super::finding::Report;
use super::headers;
use super::part::Part;
use super::rules::{
    AUTHZ_BODY, AUTHZ_BODY_LIMIT, AUTHZ_HTTP, AUTHZ_NO_LOG, AUTHZ_TEXT, AUTHZ_TIMEOUT, LOG_FILTERED, LOG_LATE,
    SOME_UNASKED, STATUS_ON_ERROR,
};

/// Envoy's own bound where none is set.
const TIMEOUT: Span = Span::from_millis(200);
const GRPC_LOG: &str = "envoy.extensions.access_loggers.grpc.v3.HttpGrpcAccessLogConfig";
/// How often, and from how many bytes on, an access log is sent where nothing is set.
const LOG_EVERY: Span = Span::from_secs(1);
const LOG_BYTES: u64 = 16_384;
/// What is late: entries sent later than this, and not for their size before.
const LATE: Span = Span::from_millis(250);
const SOON_BYTES: u64 = 1024;

/// Checks one that asks us.
pub(super) fn check(config: &Config<'_>, chain: &Chain<'_>, ours: usize, expected: &Expected, report: &mut Report) {
    let Filter { name, config: filter, .. } = &chain.filters[ours];
    if filter.get("http_service").is_there() {
        report.add(&AUTHZ_HTTP, &filter.get("http_service"), "checks go over HTTP");
        return;
    }
    timeout(&filter.at("grpc_service.timeout"), expected, report);
    body(&filter.get("with_request_body"), expected, report);
    failure_mode(&filter.get("failure_mode_allow"), report);
    if !filter.get("failure_mode_allow").is_on() && !filter.at("status_on_error.code").is_there() {
        report.add(&STATUS_ON_ERROR, &filter.get("status_on_error"), "is not set: clients get 403");
    }
    for field in ["filter_enabled", "filter_enabled_metadata"] {
        if filter.get(field).is_there() {
            report.add(&SOME_UNASKED, &filter.get(field), format!("{field} is set"));
        }
    }
    headers::checked(filter, expected, report);
    headers::mutated(&filter.get("decoder_header_mutation_rules"), report);
    verified(chain, ours, &filter.get("metadata_context_namespaces"), expected, report);
    for route in chain.routes.iter().flatten() {
        let Some(Exception::Changed(message)) = route.exception(name) else { continue };
        let settings = message.get("check_settings");
        if settings.get("disable_request_body_buffering").is_on() {
            let part = settings.get("disable_request_body_buffering");
            report.add(&AUTHZ_BODY, &part, "disable_request_body_buffering is on");
        }
        if settings.get("with_request_body").is_there() {
            body(&settings.get("with_request_body"), expected, report);
        }
        if settings.get("grpc_service").is_there() {
            timeout(&settings.at("grpc_service.timeout"), expected, report);
        }
    }
    access_log(config, chain, expected, report);
}

fn timeout(timeout: &Part<'_>, expected: &Expected, report: &mut Report) {
    let set = timeout.span().unwrap_or(TIMEOUT);
    if is_short(set, expected.longest_wait) {
        report.add(&AUTHZ_TIMEOUT, timeout, compared(timeout, set, expected.longest_wait));
    }
}

fn body(body: &Part<'_>, expected: &Expected, report: &mut Report) {
    if !body.is_there() {
        report.add(&AUTHZ_BODY, body, "with_request_body is not set");
        return;
    }
    let most = body.get("max_request_bytes");
    let bytes = most.number().unwrap_or(0);
    let partial = body.get("allow_partial_message");
    if bytes < expected.body_most.get() && partial.is_on() {
        report.add(&AUTHZ_BODY, &partial, format!("allow_partial_message is on, and a part has {bytes} bytes"));
    } else if bytes < expected.body_most.get() {
        let found = format!("is {bytes} bytes, and Tallygate reads {}", expected.body_most.get());
        report.add(&AUTHZ_BODY_LIMIT, &most, found);
    }
    if !body.get("pack_as_bytes").is_on() {
        report.add(&AUTHZ_TEXT, &body.get("pack_as_bytes"), "is off");
    }
}

/// Whether the ends of requests are told to us, all of them and soon.
fn access_log(config: &Config<'_>, chain: &Chain<'_>, expected: &Expected, report: &mut Report) {
    let logs = chain.manager.get("access_log");
    let mut told = false;
    for log in logs.items() {
        let (kind, message) = log.get("typed_config").message();
        let service = message.at("common_config.grpc_service");
        let target = service.at("google_grpc.target_uri");
        let cluster = service.at("envoy_grpc.cluster_name").text();
        let is_to_us =
            is_ours(config, cluster, expected) || (target.is_there() && is_our_address(target.text(), expected));
        if kind != GRPC_LOG || !is_to_us {
            continue;
        }
        told = true;
        if log.get("filter").is_there() {
            report.add(&LOG_FILTERED, &log.get("filter"), "a filter leaves entries out");
        }
        let every = message.at("common_config.buffer_flush_interval");
        let bytes = message.at("common_config.buffer_size_bytes").number().unwrap_or(LOG_BYTES);
        let interval = every.span().unwrap_or(LOG_EVERY);
        if interval > LATE && bytes > SOON_BYTES {
            let found = format!("entries are sent after {} s, or {bytes} bytes of them", interval.as_secs_f64());
            report.add(&LOG_LATE, &every, found);
        }
    }
    if !told {
        report.add(&AUTHZ_NO_LOG, &logs, "no access log is sent to Tallygate");
    }
}
