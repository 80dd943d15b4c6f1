//! What an error looks like: `{"type": "error", "error": {type, message}, "request_id"}`.

use http::StatusCode;
use serde_json::json;

use super::super::voice::ErrorBody;

/// The body of an answer of ours. The `type` is the one Anthropic uses with that status; `code` and `param` are
/// more than Anthropic says, and its SDKs keep them.
pub(in crate::wire::dialect) fn body(error: &ErrorBody<'_>) -> String {
    let ErrorBody { status, code, param, message, request_id, .. } = *error;
    let kind = match status {
        StatusCode::UNAUTHORIZED => "authentication_error",
        StatusCode::FORBIDDEN => "permission_error",
        StatusCode::NOT_FOUND => "not_found_error",
        StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
        StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
        StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
        status if status.as_u16() == 529 => "overloaded_error",
        StatusCode::GATEWAY_TIMEOUT => "timeout_error",
        status if status.is_client_error() => "invalid_request_error",
        _ => "api_error",
    };
    let error = json!({"type": kind, "message": message, "code": code, "param": param});
    json!({"type": "error", "error": error, "request_id": request_id}).to_string()
}
