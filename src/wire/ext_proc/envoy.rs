//! What Envoy says about itself: how its filter is set up, and why it answers in place of the upstream.

use envoy_types::pb::envoy::extensions::filters::http::ext_proc::v3::processing_mode::BodySendMode;
use envoy_types::pb::envoy::service::ext_proc::v3::ProtocolConfiguration;
use http::StatusCode;

use crate::envoy_check::modes::{Eagerness, Modes, fault};

use super::super::answer::Refused;

/// What Envoy shows of bodies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bodies {
    /// All of them: requests in one piece, answers as they pass.
    Shown,
    /// Answers as they pass. Of requests a record, and the body where it is asked for.
    Answers,
    /// Records of both, and the bodies where they are asked for.
    Recorded,
}

/// What is shown of bodies in these modes; `tallygate envoy-check` says the same of a configuration.
///
/// # Errors
/// When they cannot work: what is there, and the fix.
pub(super) fn bodies(modes: &ProtocolConfiguration) -> Result<Bodies, String> {
    let name = |mode: i32| BodySendMode::try_from(mode).map_or("unknown", |mode| mode.as_str_name());
    let (request, response) = (name(modes.request_body_mode), name(modes.response_body_mode));
    let at_once = modes.send_body_without_waiting_for_header_response;
    let eagerness = if at_once { Eagerness::AtOnce } else { Eagerness::AfterHeaders };
    if let Some((rule, found)) = fault(Modes { request, response, eagerness }) {
        return Err(format!("{found} [{}]. {}", rule.name, rule.fix));
    }
    Ok(match (request, response) {
        ("BUFFERED", _) => Bodies::Shown,
        (_, "STREAMED") => Bodies::Answers,
        _ => Bodies::Recorded,
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

/// What the client is told when Envoy's AI protocol manager, which stands before us, answers in its own words.
pub(super) fn before_us(details: &str) -> Option<Refused> {
    let unread = matches!(details, "ai_protocol_manager_invalid_json" | "ai_protocol_manager_schema_validation_failed");
    unread.then(|| Refused::Malformed("the body cannot be read as what this API takes".into()))
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

    use super::{Bodies, bodies, in_place_of_upstream};

    fn read(request: BodySendMode, response: BodySendMode, eager: bool) -> Result<Bodies, String> {
        bodies(&ProtocolConfiguration {
            request_body_mode: request.into(),
            response_body_mode: response.into(),
            send_body_without_waiting_for_header_response: eager,
        })
    }

    #[test]
    fn bodies_come_whole_and_piece_by_piece_or_not_at_all() {
        use BodySendMode::{Buffered, BufferedPartial, FullDuplexStreamed, None as Nothing, Streamed};
        assert_eq!(read(Buffered, Streamed, false), Ok(Bodies::Shown));
        assert_eq!(read(Nothing, Streamed, false), Ok(Bodies::Answers));
        assert_eq!(read(Nothing, Nothing, false), Ok(Bodies::Recorded));
        let wrong = read(FullDuplexStreamed, Streamed, false).expect_err("refused");
        assert!(
            wrong.starts_with("request_body_mode is FULL_DUPLEX_STREAMED and must be BUFFERED, or NONE"),
            "{wrong}"
        );
        let wrong = read(Buffered, Nothing, false).expect_err("refused");
        assert!(
            wrong.starts_with("response_body_mode is NONE and must be STREAMED [response-body-mode]. Set "),
            "{wrong}"
        );
        let wrong = read(Nothing, BufferedPartial, false).expect_err("refused");
        assert!(wrong.starts_with("response_body_mode is BUFFERED_PARTIAL and must be STREAMED or NONE ["), "{wrong}");
        assert!(read(Buffered, Streamed, true).is_err());
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
