//! The gRPC server Envoy connects to, and what it says of its own health.
//!
//! Its limits are those of many requests on few connections. Every request in flight or waiting is one stream for its
//! whole life, where the usual bound is 200. All streams of a connection share one flow-control window, so bodies are
//! taken in at once and the window is wide. A message holds a whole body, where the usual bound is 4 MiB. A
//! connection on which nothing comes back is given up, so that an Envoy that vanished gives its slots back.

use std::time::Duration;

use envoy_types::pb::envoy::service::ext_proc::v3::external_processor_server::ExternalProcessorServer;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;

use super::ExtProc;

/// The most requests on one connection.
const MOST_STREAMS: u32 = 65_536;
/// How much one stream may send before it is read.
const STREAM_WINDOW: u32 = 1024 * 1024;
/// How much all streams of a connection may send before they are read.
const CONNECTION_WINDOW: u32 = 64 * 1024 * 1024;
/// How often a silent connection is asked for a sign of life, and how long it may take to give one.
const KEEPALIVE: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(10));

/// When a server goes down.
#[derive(Clone, Debug, Default)]
pub struct GoingDown {
    /// From now on it says that it is not serving; whoever asks all the same gets an answer.
    pub announced: CancellationToken,
    /// From now on it takes nothing new, and finishes what is under way.
    pub stopped: CancellationToken,
}

/// Serves until it goes down. Dropping the future cuts it off.
pub async fn serve(listener: TcpListener, going_down: GoingDown, ext_proc: ExtProc) {
    let (health, health_service) = tonic_health::server::health_reporter();
    health.set_serving::<ExternalProcessorServer<ExtProc>>().await;
    let message_most = ext_proc.message_most();
    let service = ExternalProcessorServer::new(ext_proc)
        .max_decoding_message_size(message_most)
        .max_encoding_message_size(message_most);
    let stopping = async move {
        going_down.announced.cancelled().await;
        health.set_not_serving::<ExternalProcessorServer<ExtProc>>().await;
        health.set_service_status("", tonic_health::ServingStatus::NotServing).await;
        going_down.stopped.cancelled().await;
    };
    let served = Server::builder()
        .max_concurrent_streams(MOST_STREAMS)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .http2_keepalive_interval(Some(KEEPALIVE.0))
        .http2_keepalive_timeout(Some(KEEPALIVE.1))
        .add_service(health_service)
        .add_service(service)
        .serve_with_incoming_shutdown(TcpIncoming::from(listener).with_nodelay(Some(true)), stopping)
        .await;
    if let Err(error) = served {
        tracing::error!(%error, "the gRPC server ended");
    }
}
