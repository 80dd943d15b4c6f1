//! What would become of a request now, asked with `POST /v1/explain`.
//!
//! Counting a large body takes a while, so it is done off the worker threads, and by at most [`AT_ONCE`] at a time.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Json, Response};

use super::super::explain::{Sketch, Unexplained, would};
use super::{Desk, fault};

/// How many explanations are worked out at once.
pub(super) const AT_ONCE: usize = 4;

pub(super) async fn explain(State(desk): State<Arc<Desk>>, body: Result<Bytes, BytesRejection>) -> Response {
    let body = match body {
        Ok(body) => body,
        Err(rejection) => return fault(rejection.status(), &rejection.body_text()),
    };
    let sketch = match Sketch::envelope(&body) {
        Ok(sketch) => sketch,
        Err(why) => return fault(StatusCode::BAD_REQUEST, &why),
    };
    let Ok(_place) = desk.explaining.acquire().await else {
        return fault(StatusCode::SERVICE_UNAVAILABLE, "the gateway is going down");
    };
    let working = tokio::task::spawn_blocking({
        let desk = desk.clone();
        move || would(&desk.gate, &desk.about.doors, &sketch)
    });
    match working.await {
        Ok(Ok(would)) => Json(would).into_response(),
        Ok(Err(no_proxy @ Unexplained::NoProxy)) => fault(StatusCode::BAD_REQUEST, &no_proxy.to_string()),
        Ok(Err(Unexplained::Broken(broken))) => fault(StatusCode::SERVICE_UNAVAILABLE, &broken.to_string()),
        Err(_panicked) => fault(StatusCode::INTERNAL_SERVER_ERROR, "the explanation failed; see the log"),
    }
}
