//! Accepts connections and serves HTTP/1 on them, for the proxy and the admin API alike.
//!
//! Bounded: at most so many connections at once (the next one waits in the listener's backlog), so many bytes of
//! headers, so long for them to arrive. A connection that breaks, or whose handler panics, ends alone. Stopping lets
//! every answer under way finish; whoever stopped the server decides how long, and drops the rest.

mod patient;

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use patient::Patient;

/// Why a body cannot be finished. hyper breaks the connection then, so that nobody takes a part for the whole.
pub type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// The body of any answer.
pub type Body = UnsyncBoxBody<Bytes, BodyError>;

/// The most connections one listener holds at once.
const MOST_CONNECTIONS: usize = 16_384;
/// How long a client may take to send its headers.
const HEADERS_WITHIN: Duration = Duration::from_secs(30);
/// How long a client may read nothing while there is something for it.
const READ_WITHIN: Duration = Duration::from_secs(60);
/// The most bytes of headers.
const HEADER_BYTES: usize = 64 * 1024;
/// How long to pause when the system has no more sockets to give.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A boxed answer on its way.
pub type Answering = Pin<Box<dyn Future<Output = Response<Body>> + Send>>;

/// A connection, and its place among the most there can be.
struct Accepted {
    stream: TcpStream,
    place: OwnedSemaphorePermit,
}

async fn accept(listener: &TcpListener, places: &Arc<Semaphore>) -> Accepted {
    let place = places.clone().acquire_owned().await.expect("this semaphore is never closed");
    loop {
        match listener.accept().await {
            Ok((stream, _peer)) => return Accepted { stream, place },
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Serves until stopped; then finishes what is under way. Dropping the future cuts it off.
pub async fn serve<H>(listener: TcpListener, stop: CancellationToken, handle: H)
where
    H: Fn(Request<Incoming>) -> Answering + Clone + Send + Sync + 'static,
{
    let places = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    let graceful = GracefulShutdown::new();
    let mut connections = JoinSet::new();
    while let Some(accepted) = stop.run_until_cancelled(accept(&listener, &places)).await {
        let Accepted { stream, place } = accepted;
        // Latency matters more than packets; failing to say so only makes them fewer.
        let _slower = stream.set_nodelay(true);
        let handle = handle.clone();
        let service = service_fn(move |request| {
            let answer = handle(request);
            async move { Ok::<_, Infallible>(answer.await) }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADERS_WITHIN)
            .max_buf_size(HEADER_BYTES)
            .serve_connection(TokioIo::new(Patient::new(stream, READ_WITHIN)), service);
        let watched = graceful.watch(connection);
        connections.spawn(async move {
            if let Err(error) = watched.await {
                tracing::debug!(%error, "a connection broke");
            }
            drop(place);
        });
        // Collects the connections that ended; what a task returned has been told already.
        while connections.try_join_next().is_some() {}
    }
    drop(listener);
    graceful.shutdown().await;
}
