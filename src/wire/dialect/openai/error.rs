//! What an error looks like: `{"error": {message, type, param, code}}`, as the SDKs read it.

use http::StatusCode;
use serde_json::json;

use super::super::voice::ErrorBody;

/// The body of an answer of ours. The `code` is ours; the `type` is the one OpenAI uses with that status.
pub(in super::super) fn body(error: &ErrorBody<'_>) -> String {
    let ErrorBody { status, code, param, message, .. } = *error;
    let kind = match status {
        StatusCode::UNAUTHORIZED => "authentication_error",
        StatusCode::FORBIDDEN => "permission_error",
        StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
        status if status.is_client_error() => "invalid_request_error",
        _ => "server_error",
    };
    json!({"error": {"message": message, "type": kind, "param": param, "code": code}}).to_string()
}
