//! What Envoy says about itself: how its filter is set up, and why it answers in place of the upstream.

use envoy_types::pb::envoy::extensions::filters::http::ext_proc::v3::processing_mode::BodySendMode;
use envoy_types::pb::envoy::service::ext_proc::v3::ProtocolConfiguration;
use http::StatusCode;

use super::super::answer::Refused;

/// What is wrong with the way bodies are sent, if anything.
///
/// The request's body must come in one piece, since it is read as a whole. The answer's must be shown piece by piece
/// and wait for what we say of each, since what the client did not ask for is taken out.
pub(super) fn unsupported_modes(modes: &ProtocolConfiguration) -> Option<String> {
    let wrong = |key: &str, found: i32, wanted: BodySendMode| {
        let name = |mode: BodySendMode| mode.as_str_name();
        let found = BodySendMode::try_from(found).map_or("unknown", name);
        (found != wanted.as_str_name()).then(|| format!("{key} is {found} and must be {}", wanted.as_str_name()))
    };
    wrong("request_body_mode", modes.request_body_mode, BodySendMode::Buffered)
        .or_else(|| wrong("response_body_mode", modes.response_body_mode, BodySendMode::Streamed))
        .or_else(|| {
            let eager = modes.send_body_without_waiting_for_header_response;
            eager.then(|| "send_body_without_waiting_for_header_response must be off".to_owned())
        })
}

/// What the client is told when Envoy answers before the body is there; nothing where Envoy's own words will do.
pub(super) fn before_dispatch(status: StatusCode) -> Option<Refused> {
    match status {
        StatusCode::PAYLOAD_TOO_LARGE => Some(Refused::BodyTooLargeInFront),
        StatusCode::REQUEST_TIMEOUT | StatusCode::GATEWAY_TIMEOUT => {
            Some(Refused::Malformed("the body did not arrive in time".into()))
        }
        _ => None,
    }
}

/// What the client is told when Envoy's router answers in place of the upstream, by the router's own words for why.
/// Other filters' answers are theirs.
pub(super) fn in_place_of_upstream(details: &str) -> Option<Refused> {
    const UNREACHABLE: [&str; 4] =
        ["upstream_reset_before_response_started", "no_healthy_upstream", "cluster_not_found", "no_cluster"];
    const TIMED_OUT: [&str; 4] = [
        "response_timeout",
        "upstream_per_try_timeout",
        "upstream_per_try_idle_timeout",
        "upstream_max_stream_duration_reached",
    ];
    if TIMED_OUT.iter().any(|known| details.starts_with(known)) {
        let words = format!("the upstream did not answer in the time Envoy gives it ({details})");
        return Some(Refused::UpstreamTimedOut(words));
    }
    let unreachable = UNREACHABLE.iter().any(|known| details.starts_with(known));
    unreachable.then(|| Refused::UpstreamUnreachable(format!("Envoy got no answer of the upstream ({details})")))
}

#[cfg(test)]
mod tests {
    use envoy_types::pb::envoy::extensions::filters::http::ext_proc::v3::processing_mode::BodySendMode;
    use envoy_types::pb::envoy::service::ext_proc::v3::ProtocolConfiguration;

    use super::{in_place_of_upstream, unsupported_modes};

    fn problem(request: BodySendMode, response: BodySendMode, eager: bool) -> Option<String> {
        unsupported_modes(&ProtocolConfiguration {
            request_body_mode: request.into(),
            response_body_mode: response.into(),
            send_body_without_waiting_for_header_response: eager,
        })
    }

    #[test]
    fn only_bodies_buffered_in_and_streamed_out_will_do() {
        use BodySendMode::{Buffered, FullDuplexStreamed, None as Nothing, Streamed};
        assert_eq!(problem(Buffered, Streamed, false), None);
        let wrong = problem(FullDuplexStreamed, Streamed, false).expect("refused");
        assert_eq!(wrong, "request_body_mode is FULL_DUPLEX_STREAMED and must be BUFFERED");
        let wrong = problem(Buffered, Nothing, false).expect("refused");
        assert_eq!(wrong, "response_body_mode is NONE and must be STREAMED");
        assert!(problem(Buffered, Streamed, true).is_some());
    }

    #[test]
    fn only_the_routers_answers_are_rewritten() {
        let code = |details: &str| in_place_of_upstream(details).map(|refused| refused.code());
        let reset = "upstream_reset_before_response_started{connection_failure}";
        assert_eq!(code(reset), Some("upstream_unreachable"));
        assert_eq!(code("response_timeout"), Some("upstream_timed_out"));
        assert_eq!(code("ext_authz_denied"), None);
    }
}
