//! The server of the example: its model, who may ask it, and the admission layer in front.

use std::convert::Infallible;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};
use tallygate::{AdmissionLayer, Gate, Granted, Verified};

const POLICY: &str = "
version: 1
pools: [{name: echo, models: ['echo*'], window: {requests: 2, tokens: 4000}}]
limits: [{name: per-minute, per: tenant, tokens: 2000, every: 1m, when_exceeded: refuse}]
";

/// Whose key this is. A real server asks its database.
fn tenant(key: &str) -> Option<&'static str> {
    [("sk-acme", "acme"), ("sk-globex", "globex")]
        .into_iter()
        .find(|(known, _)| *known == key)
        .map(|(_, tenant)| tenant)
}

/// Finds out who calls, before the admission layer decides.
async fn authenticate(mut request: Request, next: Next) -> Response {
    let value = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    match value.and_then(|value| value.strip_prefix("Bearer ")).and_then(tenant) {
        Some(tenant) => {
            request.extensions_mut().insert(Verified(tenant.into()));
            next.run(request).await
        }
        None => (StatusCode::UNAUTHORIZED, "who are you?\n").into_response(),
    }
}

/// The model: says what it was told, word by word where it is asked to stream.
async fn chat(granted: axum::Extension<Granted>, Json(request): Json<Value>) -> Response {
    let text = request["messages"][0]["content"].as_str().unwrap_or_default();
    let text = format!("{}: {text}", granted.caller().tenant);
    let words: Vec<String> = text.split_inclusive(' ').map(str::to_owned).collect();
    let usage = json!({"prompt_tokens": 8, "completion_tokens": words.len()});
    if request["stream"] != true {
        return Json(json!({"choices": [{"message": {"content": text}}], "usage": usage})).into_response();
    }
    let delta = |word: String| json!({"choices": [{"index": 0, "delta": {"content": word}}]}).to_string();
    let last = json!({"choices": [], "usage": usage}).to_string();
    let events = words.into_iter().map(delta).chain([last, "[DONE]".into()]);
    let events = events.map(|data| Ok::<_, Infallible>(format!("data: {data}\n\n")));
    let body = Body::from_stream(Events(events));
    ([(header::CONTENT_TYPE, "text/event-stream")], body).into_response()
}

/// An iterator as the stream that axum takes.
struct Events<I>(I);

impl<I: Iterator + Unpin> futures_core::Stream for Events<I> {
    type Item = I::Item;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        _context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<I::Item>> {
        std::task::Poll::Ready(self.0.next())
    }
}

/// The server, behind a gate. What stands outside the layer is none of its business.
pub(crate) fn app(gate: Gate) -> Router {
    let model = Router::new().route("/v1/chat/completions", post(chat));
    let guarded = model.layer(AdmissionLayer::new(gate)).layer(middleware::from_fn(authenticate));
    guarded.route("/healthz", get(|| async { "ok\n" }))
}

/// The gate of this server's policy.
///
/// # Errors
/// When the policy is not valid.
pub(crate) fn gate() -> Result<Gate, Box<dyn std::error::Error>> {
    Ok(Gate::from_text(POLICY)?.start()?)
}
