//! Who stands before and behind Tallygate in a chain of filters.
//!
//! Requests pass a chain from its first filter to its last, answers from the last to the first. So what verifies
//! callers comes before us, what picks an endpoint behind us, and what compresses answers before us.

use super::Expected;
use super::chain::{Ask, Chain, EXT_AUTHZ, EXT_PROC, Filter};
use super::finding::Report;
use super::rules::{AUTH_AFTER, BUFFER_BEFORE, COMPRESSOR_AFTER, PICKER_BEFORE};

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

/// Whether a filter hands an endpoint picker whole requests: it owns the body, or calls itself one.
fn is_picker(filter: &Filter<'_>) -> bool {
    let mode = filter.config.at("processing_mode.request_body_mode");
    let cluster = filter.config.at("grpc_service.envoy_grpc.cluster_name").text();
    let named = |name: &str| {
        ["epp", "endpoint-picker", "endpointpicker", "endpoint_picker"].iter().any(|part| name.contains(part))
    };
    let owns = mode.one_of(&super::modes::BODY_MODES) == Some("FULL_DUPLEX_STREAMED");
    filter.kind == EXT_PROC && filter.asks.is_none() && (owns || named(cluster) || named(filter.name))
}

/// Checks the neighbours of one filter that asks us.
pub(super) fn check(chain: &Chain<'_>, ours: usize, expected: &Expected, report: &mut Report) {
    let Filter { name: us, asks, .. } = &chain.filters[ours];
    let sees_answers = matches!(asks, Some(Ask::Process | Ask::Watch));
    for filter in &chain.filters[..ours] {
        if is_picker(filter) {
            report.add(&PICKER_BEFORE, &filter.entry, format!("{} stands before {us}", filter.name));
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
        if filter.kind == COMPRESSOR && sees_answers {
            report.add(&COMPRESSOR_AFTER, &filter.entry, format!("{} stands behind {us}", filter.name));
        }
    }
}
