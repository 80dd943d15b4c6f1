//! What is lost around the question: refusals and headers, metadata, what happens when Tallygate is down, clusters, and
//! what only some ways of asking need.

use super::{Rule, error, note, warning};

/// `refusals-disabled`.
pub(in crate::envoy_check) static REFUSALS_DISABLED: Rule = error(
    "refusals-disabled",
    "Envoy takes every refusal for a failure: clients get the status of an outage with an empty body and no time to come back, or pass undecided where `failure_mode_allow` is on.",
    "Remove `disable_immediate_response`.",
);

/// `mutations-forbidden`.
pub(in crate::envoy_check) static MUTATIONS_FORBIDDEN: Rule = error(
    "mutations-forbidden",
    "What Tallygate sets and removes is dropped: keys of ours travel on to the upstream, answers come compressed and cannot be watched, clients get no limit headers.",
    "Remove `mutation_rules`: it sets x-tallygate-*, x-ratelimit-*, anthropic-ratelimit-*, ratelimit*, accept-encoding and content-length.",
);

/// `mutations-restricted`.
pub(in crate::envoy_check) static MUTATIONS_RESTRICTED: Rule = warning(
    "mutations-restricted",
    "If the expression covers one of the headers Tallygate sets or removes, that change is dropped without a word, or fails the request with `disallow_is_error`.",
    "See that it covers none of x-tallygate-*, x-ratelimit-*, anthropic-ratelimit-*, ratelimit*, retry-after*, accept-encoding, content-*, authorization.",
);

/// `headers-withheld`.
pub(in crate::envoy_check) static HEADERS_WITHHELD: Rule = error(
    "headers-withheld",
    "Tallygate does not see the headers it decides by: without `:path` and `:method` every request is refused as `unsupported`, without the caller's headers everybody is the same tenant.",
    "Remove the list, or let through `:method`, `:path`, `content-type`, `content-encoding`, and every header the policy's `identity` names.",
);

/// `metadata-dropped`.
pub(in crate::envoy_check) static METADATA_DROPPED: Rule = warning(
    "metadata-dropped",
    "Envoy drops what it is told of a request (decision, tenant, charge) without a word: access logs show nothing.",
    "List `tallygate` under `metadata_options.receiving_namespaces.untyped`.",
);

/// `metadata-withheld`.
pub(in crate::envoy_check) static METADATA_WITHHELD: Rule = error(
    "metadata-withheld",
    "The policy's `metadata:` rules find nothing, so callers fall to the next rule: everybody may become the same tenant.",
    "List the namespace under `metadata_options.forwarding_namespaces.untyped` (ext_proc) or `metadata_context_namespaces` (ext_authz).",
);

/// `auth-withheld`.
pub(in crate::envoy_check) static AUTH_WITHHELD: Rule = warning(
    "auth-withheld",
    "What this filter verified does not reach Tallygate: a policy cannot name tenants by it.",
    "List its namespace under `metadata_options.forwarding_namespaces.untyped` (ext_proc) or `metadata_context_namespaces` (ext_authz).",
);

/// `local-replies-unknown`.
pub(in crate::envoy_check) static LOCAL_REPLIES_UNKNOWN: Rule = warning(
    "local-replies-unknown",
    "An answer that Envoy makes because it got none passes as the upstream's: it is not in the client's dialect, and counts as an answer.",
    "Set `response_attributes: [response.code_details]`.",
);

/// `fails-open`.
pub(in crate::envoy_check) static FAILS_OPEN: Rule = warning(
    "fails-open",
    "While Tallygate cannot be asked, every request goes through at once and uncounted. One that waits when Tallygate dies is sent on, too.",
    "Set `failure_mode_allow: false` (rate limit: `failure_mode_deny: true`), unless this is what you want.",
);

/// `fails-closed`.
pub(in crate::envoy_check) static FAILS_CLOSED: Rule = note(
    "fails-closed",
    "While Tallygate cannot be asked, requests are refused. It is the safe choice; run at least two.",
    "Nothing, if it is meant so.",
);

/// `status-on-error`.
pub(in crate::envoy_check) static STATUS_ON_ERROR: Rule = warning(
    "status-on-error",
    "Clients get a status that their SDKs may not retry, though the outage may last a second.",
    "Set `status_on_error: {code: 503}`.",
);

/// `circuit-breaker`.
pub(in crate::envoy_check) static CIRCUIT_BREAKER: Rule = error(
    "circuit-breaker",
    "Every request that waits or runs is one stream to Tallygate. The first beyond this bound gets 500 (ext_authz: 403), or passes undecided when open.",
    "Set `circuit_breakers: {thresholds: [{max_connections: 65536, max_pending_requests: 65536, max_requests: 65536}]}` on the cluster.",
);

/// `not-http2`.
pub(in crate::envoy_check) static NOT_HTTP2: Rule = error(
    "not-http2",
    "gRPC needs HTTP/2: every request fails with 500, or passes undecided when open.",
    "Set `explicit_http_config: {http2_protocol_options: {}}` in the cluster's HttpProtocolOptions.",
);

/// `streams-cut`.
pub(in crate::envoy_check) static STREAMS_CUT: Rule = error(
    "streams-cut",
    "It bounds the streams to Tallygate: a request that waits or runs longer is cut off.",
    "Remove `max_stream_duration` from the cluster's `common_http_protocol_options`.",
);

/// `no-keepalive`.
pub(in crate::envoy_check) static NO_KEEPALIVE: Rule = warning(
    "no-keepalive",
    "A connection that died silently (a machine lost, a firewall that forgot) is noticed only after minutes; requests wait on it meanwhile.",
    "Set `http2_protocol_options: {connection_keepalive: {interval: 10s, timeout: 10s}}`.",
);

/// `no-health-check`.
pub(in crate::envoy_check) static NO_HEALTH_CHECK: Rule = note(
    "no-health-check",
    "With several Tallygates, requests still go to one that is going down, and are refused with `draining`.",
    "Add `health_checks` with `grpc_health_check: {service_name: envoy.service.ext_proc.v3.ExternalProcessor}`, unless Kubernetes takes an endpoint out itself.",
);

/// `health-service`.
pub(in crate::envoy_check) static HEALTH_SERVICE: Rule = warning(
    "health-service",
    "Tallygate does not know this service, so every endpoint counts as unhealthy: one that goes down is not told from the others, and where `healthy_panic_threshold` is 0 every request fails.",
    "Name a service that is asked for, such as `envoy.service.ext_proc.v3.ExternalProcessor`, or leave `service_name` out.",
);

/// `google-grpc`.
pub(in crate::envoy_check) static GOOGLE_GRPC: Rule = note(
    "google-grpc",
    "Circuit breakers, health checks and keepalive of clusters do not apply, and nothing of them was checked.",
    "Use `envoy_grpc` with a cluster.",
);

/// `upstream-breaker`.
pub(in crate::envoy_check) static UPSTREAM_BREAKER: Rule = warning(
    "upstream-breaker",
    "Envoy's bound comes before Tallygate's window: what was let in and charged gets 503, in the order of arrival and not of fairness.",
    "Raise `circuit_breakers` of the upstream's cluster above the policy's window, as 65536.",
);

/// `upstream-duration`.
pub(in crate::envoy_check) static UPSTREAM_DURATION: Rule = warning(
    "upstream-duration",
    "Answers are cut off in the middle after this time, though they were let in and charged.",
    "Remove `max_stream_duration` from the upstream's `common_http_protocol_options`, or set it above the longest answer.",
);

/// `usage-unpublished`.
pub(in crate::envoy_check) static USAGE_UNPUBLISHED: Rule = error(
    "usage-unpublished",
    "Without bodies Tallygate learns what an answer cost only from ai_protocol_manager, which publishes nothing in time here: every charge is a guess.",
    "Put ai_protocol_manager with `response_handling: {token_usage: {usage_signal: SYNTHESIZE_TRAILERS}}` into the upstream cluster's own `http_filters`: in the listener's chain one filter cannot stand before Tallygate on the way in and on the way out.",
);

/// `request-unpublished`.
pub(in crate::envoy_check) static REQUEST_UNPUBLISHED: Rule = warning(
    "request-unpublished",
    "No record of ai_protocol_manager says what a request asks for when Tallygate is asked, so every body is asked for one by one, which costs more than `request_body_mode: BUFFERED`.",
    "Put ai_protocol_manager with `request_handling` and its filter `envoy.http.ai_filters.request_info` before Tallygate's filter in `http_filters`.",
);

/// `override-forbidden`.
pub(in crate::envoy_check) static OVERRIDE_FORBIDDEN: Rule = error(
    "override-forbidden",
    "What cannot be decided by a record alone Tallygate asks for as a body, and Envoy ignores it: such requests fail.",
    "Set `allow_mode_override: true`, or send the bodies (`request_body_mode: BUFFERED`, `response_body_mode: STREAMED`).",
);

/// `records-withheld`.
pub(in crate::envoy_check) static RECORDS_WITHHELD: Rule = error(
    "records-withheld",
    "The records of ai_protocol_manager do not reach Tallygate: every charge is a guess.",
    "List `envoy.ai.request_info` and `envoy.ai.token_usage` under `metadata_options.forwarding_namespaces.typed`.",
);

/// `usage-signal`.
pub(in crate::envoy_check) static USAGE_SIGNAL: Rule = error(
    "usage-signal",
    "An answer without trailers of its own ends without a message to Tallygate after the record was made: its usage is never seen.",
    "Set `response_trailer_mode: SEND` on Tallygate's filter and `usage_signal: SYNTHESIZE_TRAILERS` on ai_protocol_manager.",
);

/// `shadow`.
pub(in crate::envoy_check) static SHADOW: Rule =
    note("shadow", "Nothing is held or refused: Tallygate only watches.", "Nothing, if it is meant as a trial.");

/// `shadow-body`.
pub(in crate::envoy_check) static SHADOW_BODY: Rule = error(
    "shadow-body",
    "In observability mode Envoy sends no such body at all: nothing can be counted.",
    "Set `request_body_mode: STREAMED` and `response_body_mode: STREAMED`.",
);

/// `shadow-fails-closed`.
pub(in crate::envoy_check) static SHADOW_FAILS_CLOSED: Rule = error(
    "shadow-fails-closed",
    "If Tallygate dies, Envoy cuts the clients' streams, though it only watches.",
    "Set `failure_mode_allow: true` in observability mode.",
);

/// `authz-timeout`.
pub(in crate::envoy_check) static AUTHZ_TIMEOUT: Rule = error(
    "authz-timeout",
    "Whoever waits longer for a turn gets 403, or passes undecided with `failure_mode_allow`. The default is 200 ms.",
    "Set `grpc_service.timeout` above the longest `max_wait`, as 3600s.",
);

/// `authz-http`.
pub(in crate::envoy_check) static AUTHZ_HTTP: Rule = error(
    "authz-http",
    "Tallygate answers checks over gRPC only: every request fails.",
    "Use `grpc_service` instead of `http_service`.",
);

/// `authz-body`.
pub(in crate::envoy_check) static AUTHZ_BODY: Rule = error(
    "authz-body",
    "The check comes without the whole body: model and cost cannot be read, or only of its beginning.",
    "Set `with_request_body: {max_request_bytes: 33554432, pack_as_bytes: true}`; a smaller bound only without `allow_partial_message`.",
);

/// `authz-body-limit`.
pub(in crate::envoy_check) static AUTHZ_BODY_LIMIT: Rule = warning(
    "authz-body-limit",
    "A larger body gets Envoy's plain 413 before the check.",
    "Set `with_request_body.max_request_bytes: 33554432`: 32 MiB, as Tallygate reads.",
);

/// `authz-text`.
pub(in crate::envoy_check) static AUTHZ_TEXT: Rule = warning(
    "authz-text",
    "A body that is not UTF-8 (a compressed one) is broken on its way to the check.",
    "Set `with_request_body.pack_as_bytes: true`.",
);

/// `authz-no-log`.
pub(in crate::envoy_check) static AUTHZ_NO_LOG: Rule = error(
    "authz-no-log",
    "ext_authz sees nothing of answers. Without the access log no request is ever settled: each keeps its place until its lease expires, and is charged what was predicted.",
    "Add an access log `envoy.access_loggers.http_grpc` to the same listener, sent to Tallygate's cluster.",
);

/// `log-filtered`.
pub(in crate::envoy_check) static LOG_FILTERED: Rule = warning(
    "log-filtered",
    "The answers that the filter leaves out are never settled: they keep their place until their lease expires.",
    "Remove the access log's `filter`.",
);

/// `log-late`.
pub(in crate::envoy_check) static LOG_LATE: Rule = warning(
    "log-late",
    "What is settled late holds its place meanwhile: each request occupies the window this much longer.",
    "Set `buffer_flush_interval: 0.1s` and `buffer_size_bytes: 1` on the access log's `common_config`.",
);

/// `some-unasked`.
pub(in crate::envoy_check) static SOME_UNASKED: Rule = warning(
    "some-unasked",
    "Only a part of the requests is asked about; the rest passes undecided and uncounted.",
    "Remove `filter_enabled` and `filter_enabled_metadata`.",
);

/// `rate-limit-timeout`.
pub(in crate::envoy_check) static RATE_LIMIT_TIMEOUT: Rule = warning(
    "rate-limit-timeout",
    "An answer that takes longer counts as a failure. The default is 20 ms, which a busy machine exceeds now and then.",
    "Set `timeout: 0.25s`.",
);

/// `rate-limit-idle`.
pub(in crate::envoy_check) static RATE_LIMIT_IDLE: Rule = warning(
    "rate-limit-idle",
    "The filter asks nothing: no route or virtual host has `rate_limits`.",
    "Add `rate_limits` with the actions that make the descriptors.",
);

/// `no-websocket`.
pub(in crate::envoy_check) static NO_WEBSOCKET: Rule = note(
    "no-websocket",
    "A WebSocket request gets Envoy's 403 with an empty body.",
    "Set `upgrade_configs: [{upgrade_type: websocket}]`: the request then comes as far as Tallygate, which refuses it in the client's words.",
);

/// `routes-elsewhere`.
pub(in crate::envoy_check) static ROUTES_ELSEWHERE: Rule = note(
    "routes-elsewhere",
    "Routes, their timeouts, limits and exceptions were not checked.",
    "Check a config dump of a running Envoy: `curl -s localhost:9901/config_dump?include_eds`.",
);
