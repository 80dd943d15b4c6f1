//! What an error looks like: `{"error": {code, message, status, details}}`, as Google's APIs have it.

use http::StatusCode;
use serde_json::json;

use super::super::voice::ErrorBody;

/// The body of an answer of ours: Google's name for the status, our code as an `ErrorInfo`, and when to come back as a
/// `RetryInfo`.
pub(in crate::wire::dialect) fn body(error: &ErrorBody<'_>) -> String {
    let ErrorBody { status, code, message, request_id, retry_after, .. } = *error;
    let name = match status {
        StatusCode::UNAUTHORIZED => "UNAUTHENTICATED",
        StatusCode::FORBIDDEN => "PERMISSION_DENIED",
        StatusCode::NOT_FOUND => "NOT_FOUND",
        StatusCode::TOO_MANY_REQUESTS => "RESOURCE_EXHAUSTED",
        StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE => "UNAVAILABLE",
        StatusCode::GATEWAY_TIMEOUT => "DEADLINE_EXCEEDED",
        status if status.is_client_error() => "INVALID_ARGUMENT",
        _ => "INTERNAL",
    };
    let mut details = vec![
        json!({"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": code, "domain": "tallygate"}),
        json!({"@type": "type.googleapis.com/google.rpc.RequestInfo", "requestId": request_id}),
    ];
    if let Some(span) = retry_after {
        let millis = span.as_millis_up().max(1);
        let delay = format!("{}.{:03}s", millis / 1_000, millis % 1_000);
        details.push(json!({"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": delay}));
    }
    json!({"error": {"code": status.as_u16(), "message": message, "status": name, "details": details}}).to_string()
}
