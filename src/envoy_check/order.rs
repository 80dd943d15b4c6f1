//! Who stands before and behind Tallygate in a chain of filters.
//!
//! Requests pass a chain from its first filter to its last, answers from the last to the first. So what verifies
//! callers comes before us, what picks an endpoint behind us, and what compresses answers before us.

use super::Expected;
use super::chain::{Ask, Chain, EXT_AUTHZ, EXT_PROC, Filter};
use super::finding::Report;
use super::rules::{
    AUTH_AFTER, BUFFER_BEFORE, COMPRESSOR_AFTER, OWNER_BEFORE, PICKER_AFTER_UNREAD, PICKER_BEFORE, Rule,
};

/// What verifies callers, by the type of its configuration.
const VERIFIERS: [&str; 8] = [
    "envoy.extensions.filters.http.jwt_authn.v3.JwtAuthentication",
    EXT_AUTHZ,
    "envoy.extensions.filters.http.oauth2.v3.OAuth2",
    "envoy.extensions.filters.http.basic_auth.v3.BasicAuth",
    "envoy.extensions.filters.http.api_key_auth.v3.ApiKeyAuth",
    "envoy.extensions.filters.http.rbac.v3.RBAC",
    "envoy.extensions.filters.http.gcp_authn.v3.GcpAuthnFilterConfig",
    "istio.envoy.config.filter.http.authn.v2alpha1.FilterConfig",
];
const COMPRESSOR: &str = "envoy.extensions.filters.http.compressor.v3.Compressor";
const BUFFER: &str = "envoy.extensions.filters.http.buffer.v3.Buffer";

/// Part of the names of endpoint pickers, and of those that only read bodies to route by them.
const PICKERS: [&str; 4] = ["epp", "endpoint-picker", "endpointpicker", "picker"];
const ROUTERS: [&str; 3] = ["bbr", "body-based", "body_based"];

/// How a processor is sent bodies in one direction, where it is said in a word that is known.
fn body_mode(filter: &Filter<'_>, direction: &str) -> &'static str {
    filter.config.at("processing_mode").get(direction).one_of(&super::modes::BODY_MODES).unwrap_or("NONE")
}

/// What another external processor before us is: an endpoint picker by its name, or one that owns bodies and may be.
fn owner(filter: &Filter<'_>) -> Option<&'static Rule> {
    let names = [filter.name, filter.config.at("grpc_service.envoy_grpc.cluster_name").text()];
    let named = |parts: &[&str]| names.iter().any(|name| parts.iter().any(|part| name.contains(part)));
    if filter.kind != EXT_PROC || filter.asks.is_some() || named(&ROUTERS) {
        return None;
    }
    let owns = body_mode(filter, "request_body_mode") == "FULL_DUPLEX_STREAMED";
    if named(&PICKERS) { Some(&PICKER_BEFORE) } else { owns.then_some(&OWNER_BEFORE) }
}

/// Checks the neighbours of one filter that asks us.
pub(super) fn check(chain: &Chain<'_>, ours: usize, expected: &Expected, report: &mut Report) {
    let Filter { name: us, asks, .. } = &chain.filters[ours];
    let sees_answers = matches!(asks, Some(Ask::Process | Ask::Watch));
    let reads_answers = body_mode(&chain.filters[ours], "response_body_mode") != "NONE";
    for filter in &chain.filters[..ours] {
        if let Some(rule) = owner(filter) {
            report.add(rule, &filter.entry, format!("{} stands before {us}", filter.name));
        }
        let most = filter.config.get("max_request_bytes");
        if filter.kind == BUFFER && most.number().is_some_and(|most| most < expected.body_most.get()) {
            let found = format!("{} takes at most {} bytes", filter.name, most.number().unwrap_or_default());
            report.add(&BUFFER_BEFORE, &most, found);
        }
    }
    for filter in chain.filters[ours + 1..].iter().filter(|filter| filter.asks.is_none()) {
        if VERIFIERS.contains(&filter.kind) {
            report.add(&AUTH_AFTER, &filter.entry, format!("{} stands behind {us}", filter.name));
        }
        let owns = filter.kind == EXT_PROC && body_mode(filter, "response_body_mode") == "FULL_DUPLEX_STREAMED";
        if owns && *asks == Some(Ask::Process) && !reads_answers {
            report.add(&PICKER_AFTER_UNREAD, &filter.entry, format!("{} stands behind {us}", filter.name));
        }
        if filter.kind == COMPRESSOR && sees_answers {
            report.add(&COMPRESSOR_AFTER, &filter.entry, format!("{} stands behind {us}", filter.name));
        }
    }
}
