//! The server: its routes, its state, how it starts and stops.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::response::Response;
use axum::routing::{get, post};
use axum::serve::ListenerExt;
use http::{HeaderValue, StatusCode, header};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::sim::EngineSpec;
use crate::units::Tokens;
use crate::wire::dialect::Dialect;

use super::apis;
use super::chat::{self, Chat, Delivery, Rejection, answer_json, json_response};
use super::driver::{self, Engine, Load, NotTaken};
use super::length::{Lengths, Wish};
use super::{metrics, stream};

/// The largest body read.
const MOST_BODY: usize = 8 << 20;
/// The name of the one model on offer. Requests may name any.
const MODEL: &str = "demo";

/// A running simulated engine. Dropping it stops it.
#[derive(Debug)]
pub struct Demo {
    address: SocketAddr,
    engine: Engine,
    stop: watch::Sender<bool>,
    server: JoinHandle<()>,
}

impl Demo {
    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What the engine is doing, now and at every change.
    #[must_use]
    pub fn load(&self) -> watch::Receiver<Load> {
        self.engine.load()
    }

    /// Stops: streams are cut off, connections closed.
    pub async fn shutdown(self) {
        self.stop.send_replace(true);
        // Only a panic of the server makes this fail, and that has been reported.
        let _ended = self.server.await;
    }
}

#[derive(Debug)]
struct Shared {
    engine: Engine,
    kv_tokens: Tokens,
    lengths: Mutex<Lengths>,
    next: AtomicU64,
}

/// Starts a simulated engine that listens on `address`. Port 0 takes any free port.
///
/// # Errors
/// When the address cannot be listened on.
pub async fn start(spec: EngineSpec, seed: u64, address: SocketAddr) -> std::io::Result<Demo> {
    let listener = TcpListener::bind(address).await?;
    let address = listener.local_addr()?;
    let (stop, mut stopped) = watch::channel(false);
    let kv_tokens = spec.kv_tokens;
    chat::ENCODING.warm();
    let engine = driver::start(spec, stopped.clone());
    let shared =
        Shared { engine: engine.clone(), kv_tokens, lengths: Mutex::new(Lengths::new(seed)), next: AtomicU64::new(0) };
    let apis = Dialect::ALL.into_iter().fold(Router::new(), |router, dialect| {
        router.route(dialect.path(), post(async move |State(shared), request| complete(dialect, shared, request).await))
    });
    let router = apis
        .route("/v1/models", get(models))
        .route("/health", get(async || StatusCode::OK))
        .route("/metrics", get(gauges))
        .fallback(not_found)
        .method_not_allowed_fallback(not_found)
        .with_state(Arc::new(shared));
    // A token is smaller than a segment; waiting to fill one would batch them.
    let listener = listener.tap_io(|connection| {
        let _kept_slow = connection.set_nodelay(true);
    });
    let server = tokio::spawn(async move {
        let ended = axum::serve(listener, router).with_graceful_shutdown(async move {
            let _dropped = stopped.wait_for(|stopped| *stopped).await;
        });
        if let Err(error) = ended.await {
            tracing::error!(%error, "the simulated engine's server ended");
        }
    });
    Ok(Demo { address, engine, stop, server })
}

async fn complete(dialect: Dialect, shared: Arc<Shared>, request: Request) -> Response {
    match answer(dialect, &shared, request).await {
        Ok(response) => response,
        Err(rejection) if dialect == Dialect::OpenAiChat => rejection.into_response(),
        Err(rejection) => {
            let (status, body) = apis::rejected(dialect, &rejection);
            json_response(status, body)
        }
    }
}

async fn answer(dialect: Dialect, shared: &Shared, request: Request) -> Result<Response, Rejection> {
    let body = to_bytes(request.into_body(), MOST_BODY).await.map_err(|_| {
        Rejection::bad(None, format!("the body could not be read, or is longer than {MOST_BODY} bytes"))
    })?;
    let chat = match dialect {
        Dialect::OpenAiChat => chat::parse(&body)?,
        _ => apis::parse(dialect, &body)?,
    };
    let room = room(&chat, shared.kv_tokens)?;
    let length = shared.lengths.lock().unwrap_or_else(PoisonError::into_inner).next(chat.wish, room);
    let answer = shared.engine.submit(chat.input, length.tokens).await.map_err(not_taken)?;
    let header = stream::Header {
        dialect,
        number: shared.next.fetch_add(1, Ordering::Relaxed),
        created: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
        model: chat.model,
        input: chat.input,
        ending: length.ending,
    };
    if dialect == Dialect::OpenAiEmbeddings {
        // Its one step of output stands for the read-out; the answer waits for it.
        stream::whole(&header, answer).await?;
        return Ok(answer_json(StatusCode::OK, &apis::embeddings(&header, apis::inputs(&body))));
    }
    match chat.delivery {
        Delivery::Whole => Ok(answer_json(StatusCode::OK, &stream::whole(&header, answer).await?)),
        Delivery::Streamed(usage) => {
            let mut response = Response::new(Body::new(stream::streamed(header, usage, answer)));
            let headers = response.headers_mut();
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
            headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
            Ok(response)
        }
    }
}

/// How many tokens of answer the engine's memory leaves after the input.
fn room(chat: &Chat, kv_tokens: Tokens) -> Result<Tokens, Rejection> {
    let context = kv_tokens.saturating_sub(Tokens::new(1));
    let room = context.saturating_sub(chat.input);
    let asked = match chat.wish {
        Wish::Exactly(tokens) => tokens,
        Wish::UpTo(_) => Tokens::new(1),
    };
    if asked <= room {
        return Ok(room);
    }
    let message = format!(
        "This model's maximum context length is {context} tokens. However, you requested {} tokens ({} in the messages, {asked} in the completion). Please reduce the length of the messages or completion.",
        chat.input + asked,
        chat.input,
    );
    let code = Some("context_length_exceeded");
    Err(Rejection { status: StatusCode::BAD_REQUEST, message, param: Some("messages"), code })
}

fn not_taken(why: NotTaken) -> Rejection {
    match why {
        NotTaken::NeverFits(error) => Rejection::bad(Some("messages"), error.to_string()),
        NotTaken::Full => Rejection {
            status: StatusCode::SERVICE_UNAVAILABLE,
            message: "the simulated engine holds as many requests as it can".to_owned(),
            param: None,
            code: Some("engine_full"),
        },
        NotTaken::Stopped => stopped(),
    }
}

pub(super) fn stopped() -> Rejection {
    Rejection {
        status: StatusCode::SERVICE_UNAVAILABLE,
        message: "the simulated engine is stopping".to_owned(),
        param: None,
        code: Some("engine_stopping"),
    }
}

async fn models() -> Response {
    let model = json!({"id": MODEL, "object": "model", "created": 0, "owned_by": "tallygate"});
    answer_json(StatusCode::OK, &json!({"object": "list", "data": [model]}))
}

async fn gauges(State(shared): State<Arc<Shared>>) -> Response {
    let load = *shared.engine.load().borrow();
    let mut response = Response::new(Body::from(metrics::text(&load, shared.kv_tokens, MODEL)));
    let text = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, text);
    response
}

async fn not_found(request: Request) -> Response {
    let message = format!(
        "{} {} is not served here; the simulated engine has POST /v1/chat/completions, /v1/completions, /v1/embeddings, /v1/responses and /v1/messages, GET /v1/models, GET /health and GET /metrics",
        request.method(),
        request.uri().path(),
    );
    Rejection { status: StatusCode::NOT_FOUND, message, param: None, code: Some("not_found") }.into_response()
}
