//! What keeps a request from being asked for, held long enough, or seen: whether a filter asks, in which order, for how
//! long, and which bodies it sends.

use super::{Rule, error, note, warning};

/// `not-asked`.
pub(in crate::envoy_check) static NOT_ASKED: Rule = error(
    "not-asked",
    "No request is held, refused or counted: everything passes as if Tallygate were not there.",
    "Add the ext_proc filter of deploy/envoy/ext_proc.yaml. If it is there, name its cluster with `--cluster NAME`: it is found by `tallygate` in the cluster's name or address, or by the port (`--port`).",
);

/// `no-cluster`.
pub(in crate::envoy_check) static NO_CLUSTER: Rule = error(
    "no-cluster",
    "Every request fails with 500 (or passes undecided with `failure_mode_allow`): there is nowhere to ask.",
    "Define the cluster, or correct the name in `grpc_service.envoy_grpc.cluster_name`.",
);

/// `filter-disabled`.
pub(in crate::envoy_check) static FILTER_DISABLED: Rule = warning(
    "filter-disabled",
    "No route turns the filter on: every request passes undecided.",
    "Remove `disabled: true`, or turn it on where models are served, with `typed_per_filter_config`.",
);

/// `route-disabled`.
pub(in crate::envoy_check) static ROUTE_DISABLED: Rule = warning(
    "route-disabled",
    "Requests of this route pass undecided and uncounted, and compete with the others for the engine.",
    "Remove it, unless the route serves no model. What needs no decision (`GET /v1/models`) Tallygate lets through by itself.",
);

/// `asked-twice`.
pub(in crate::envoy_check) static ASKED_TWICE: Rule = error(
    "asked-twice",
    "Each request is held and charged twice, and the second hold may wait for the first.",
    "Keep one filter that decides. Beside ext_authz only an ext_proc filter with `observability_mode: true` may ask too.",
);

/// `upstream-filter`.
pub(in crate::envoy_check) static UPSTREAM_FILTER: Rule = error(
    "upstream-filter",
    "The filter stands in the cluster's own chain, behind routing and load balancing: a request is asked for once an attempt, when its endpoint is already chosen, and waits there.",
    "Move it to `http_filters` of the listener.",
);

/// `auth-after`.
pub(in crate::envoy_check) static AUTH_AFTER: Rule = error(
    "auth-after",
    "Whoever is not allowed in waits and is charged like everybody else, and what this filter verifies is not there yet when Tallygate asks who calls.",
    "Move the filter before Tallygate's in `http_filters`.",
);

/// `picker-before`.
pub(in crate::envoy_check) static PICKER_BEFORE: Rule = error(
    "picker-before",
    "The endpoint is picked before the wait: when the request's turn comes the picker's view of load is as old as the wait.",
    "Move it behind Tallygate's filter: what waits has no endpoint yet.",
);

/// `owner-before`.
pub(in crate::envoy_check) static OWNER_BEFORE: Rule = warning(
    "owner-before",
    "This filter owns request bodies, as endpoint pickers do. If it picks an endpoint, it does so before the wait, and the pick is as old as the wait when the turn comes.",
    "Where it is an endpoint picker, move it behind Tallygate's filter. Otherwise nothing: Tallygate reads what it makes of the body.",
);

/// `picker-after-unread`.
pub(in crate::envoy_check) static PICKER_AFTER_UNREAD: Rule = error(
    "picker-after-unread",
    "Answers do not come to Tallygate, and this filter behind it owns their bodies: Envoy 1.40 can then lose the end of a stream, which looks whole to its client.",
    "Set `response_body_mode: STREAMED` in Tallygate's filter: requests still go by Envoy's records.",
);

/// `compressor-after`.
pub(in crate::envoy_check) static COMPRESSOR_AFTER: Rule = warning(
    "compressor-after",
    "Tallygate asks upstreams for answers that are not compressed, and answers pass the filters in reverse order: this filter hears the same and never compresses for clients. Where header changes are forbidden it compresses before Tallygate looks, and nothing of the answer can be read.",
    "Move it before Tallygate's filter in `http_filters`: it then compresses what Tallygate has seen.",
);

/// `buffer-before`.
pub(in crate::envoy_check) static BUFFER_BEFORE: Rule = warning(
    "buffer-before",
    "Larger bodies get Envoy's plain 413 before Tallygate sees them.",
    "Raise `max_request_bytes` to 33554432 (32 MiB, as Tallygate reads), or remove the filter: Tallygate's own buffers.",
);

/// `message-timeout`.
pub(in crate::envoy_check) static MESSAGE_TIMEOUT: Rule = error(
    "message-timeout",
    "Whoever waits longer for a turn gets 504 with an empty body, or passes undecided where `failure_mode_allow` is on.",
    "Set `message_timeout: 3600s`, the most Envoy takes; Tallygate bounds the wait itself (`max_wait`).",
);

/// `stream-idle-timeout`.
pub(in crate::envoy_check) static STREAM_IDLE_TIMEOUT: Rule = error(
    "stream-idle-timeout",
    "A request that waits looks idle: Envoy cuts it off with 504 before its turn comes.",
    "Set `stream_idle_timeout: 0s` (and a route's `idle_timeout`); Tallygate bounds the wait and the silence.",
);

/// `silence-timeout`.
pub(in crate::envoy_check) static SILENCE_TIMEOUT: Rule = warning(
    "silence-timeout",
    "A model that thinks for longer than this before its first token is cut off with 504, after it was let in and charged.",
    "Set it to `0s`, or above `--first-byte-timeout`.",
);

/// `max-stream-duration`.
pub(in crate::envoy_check) static MAX_STREAM_DURATION: Rule = error(
    "max-stream-duration",
    "The time includes the wait: requests are cut off while they wait.",
    "Remove it, or set it above the longest wait and the longest answer together.",
);

/// `route-timeout`.
pub(in crate::envoy_check) static ROUTE_TIMEOUT: Rule = error(
    "route-timeout",
    "Answers are cut off in the middle after this time, though they were let in and charged. (The wait for a turn does not count.)",
    "Set `timeout: 0s` on the route, or longer than the longest answer.",
);

/// `short-route-timeout`.
pub(in crate::envoy_check) static SHORT_ROUTE_TIMEOUT: Rule = warning(
    "short-route-timeout",
    "Long answers are cut off in the middle after this time, though they were let in and charged.",
    "Set `timeout: 0s` on the route, or longer than the longest answer.",
);

/// `envoy-retries`.
pub(in crate::envoy_check) static ENVOY_RETRIES: Rule = note(
    "envoy-retries",
    "Envoy tries again by itself without asking: the attempts after the first take room at the engine that no decision gave them.",
    "Leave retries to clients, which Tallygate tells when to come back, or keep `num_retries` at 1 and to `connect-failure`.",
);

/// `request-body-mode`.
pub(in crate::envoy_check) static REQUEST_BODY_MODE: Rule = error(
    "request-body-mode",
    "Cost cannot be read. Tallygate breaks off every conversation of such a filter: requests get 500, or pass undecided with `failure_mode_allow`.",
    "Set `request_body_mode: BUFFERED` (or NONE, as in deploy/envoy/body_free.yaml).",
);

/// `response-body-mode`.
pub(in crate::envoy_check) static RESPONSE_BODY_MODE: Rule = error(
    "response-body-mode",
    "What an answer cost cannot be seen. Tallygate breaks off every conversation of such a filter: requests get 500, or pass undecided with `failure_mode_allow`.",
    "Set `response_body_mode: STREAMED` (or NONE, as in deploy/envoy/body_free.yaml).",
);

/// `eager-body`.
pub(in crate::envoy_check) static EAGER_BODY: Rule = error(
    "eager-body",
    "The body would be judged before its head. Tallygate breaks off every conversation of such a filter.",
    "Remove `send_body_without_waiting_for_header_response`.",
);

/// `headers-skipped`.
pub(in crate::envoy_check) static HEADERS_SKIPPED: Rule = error(
    "headers-skipped",
    "Without the request's headers nobody is identified, and Tallygate breaks off every conversation; without the answer's a failure looks like a success, and limit headers are not set.",
    "Set `request_header_mode` and `response_header_mode` to SEND or leave them out.",
);

/// `trailers-skipped`.
pub(in crate::envoy_check) static TRAILERS_SKIPPED: Rule = warning(
    "trailers-skipped",
    "An answer that ends with trailers looks like one its client left, and is charged as such.",
    "Set `response_trailer_mode: SEND`.",
);

/// `trailers-dropped`.
pub(in crate::envoy_check) static TRAILERS_DROPPED: Rule = warning(
    "trailers-dropped",
    "HTTP/1.1 trailers are dropped before Tallygate sees them: where an answer's end is told by trailers, it is not told.",
    "Set `http_protocol_options: {enable_trailers: true}`.",
);

/// `buffer-limit`.
pub(in crate::envoy_check) static BUFFER_LIMIT: Rule = warning(
    "buffer-limit",
    "A larger body gets Envoy's plain 413: a long conversation or an image is easily over 1 MiB.",
    "Set `per_connection_buffer_limit_bytes: 33554432` on the listener, or `request_body_buffer_limit` on the virtual host or route: 32 MiB, as Tallygate reads.",
);

/// `override-allowed`.
pub(in crate::envoy_check) static OVERRIDE_ALLOWED: Rule = note(
    "override-allowed",
    "Nothing goes wrong: Tallygate asks for no other mode. But whoever answers in its place could turn it off for the rest of a request.",
    "Remove `allow_mode_override`.",
);
