//! The gRPC server that Envoy and others connect to, and what it says of its own health.
//!
//! Its limits are those of many requests on few connections. Every request in flight or waiting is one stream for its
//! whole life, where the usual bound is 200. All streams of a connection share one flow-control window, so bodies are
//! taken in at once and the window is wide. A message holds a whole body, where the usual bound is 4 MiB. A
//! connection on which nothing comes back is given up, so that an Envoy that vanished gives its slots back.

use std::convert::Infallible;
use std::time::Duration;

use axum::response::IntoResponse;
use http::Request;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::server::NamedService;
use tonic::service::RoutesBuilder;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use crate::units::Bytes;

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

/// The services of one gRPC server.
#[derive(Debug)]
pub struct Services {
    routes: RoutesBuilder,
    reporter: HealthReporter,
    names: Vec<&'static str>,
}

impl Default for Services {
    fn default() -> Self {
        let (reporter, health) = tonic_health::server::health_reporter();
        let mut routes = RoutesBuilder::default();
        routes.add_service(health);
        Self { routes, reporter, names: Vec::new() }
    }
}

impl Services {
    /// Adds a service, which is asked for its health by its full name.
    #[must_use]
    pub fn with<S>(mut self, service: S) -> Self
    where
        S: Service<Request<Body>, Error = Infallible> + NamedService + Clone + Send + Sync + 'static,
        S::Response: IntoResponse,
        S::Future: Send + 'static,
    {
        self.names.push(S::NAME);
        self.routes.add_service(service);
        self
    }
}

impl Services {
    /// Tells whoever asks what services of ours there are, and what their messages mean, from a descriptor.
    ///
    /// Both versions of reflection are spoken: `grpcurl` and the libraries ask by either.
    #[must_use]
    pub fn reflecting(mut self, descriptor: &'static [u8]) -> Self {
        let about = || {
            tonic_reflection::server::Builder::configure()
                .register_encoded_file_descriptor_set(descriptor)
                .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        };
        // A descriptor that cannot be read is a fault of the build, which a test would find.
        self.routes.add_service(about().build_v1().expect("a valid descriptor"));
        self.routes.add_service(about().build_v1alpha().expect("a valid descriptor"));
        self
    }
}

/// The largest message that is read: a body, and what is said around it.
pub(in crate::wire) fn message_most(body_most: Bytes) -> usize {
    const AROUND: u64 = 1024 * 1024;
    usize::try_from(body_most.get() + AROUND).unwrap_or(usize::MAX)
}

/// Serves until it goes down. Dropping the future cuts it off.
pub async fn serve(listener: TcpListener, going_down: GoingDown, services: Services) {
    let Services { routes, reporter, names } = services;
    for name in &names {
        reporter.set_service_status(*name, ServingStatus::Serving).await;
    }
    let stopping = async move {
        going_down.announced.cancelled().await;
        for name in names.into_iter().chain([""]) {
            reporter.set_service_status(name, ServingStatus::NotServing).await;
        }
        going_down.stopped.cancelled().await;
    };
    let served = Server::builder()
        .max_concurrent_streams(MOST_STREAMS)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .http2_keepalive_interval(Some(KEEPALIVE.0))
        .http2_keepalive_timeout(Some(KEEPALIVE.1))
        .add_routes(routes.routes())
        .serve_with_incoming_shutdown(TcpIncoming::from(listener).with_nodelay(Some(true)), stopping)
        .await;
    if let Err(error) = served {
        tracing::error!(%error, "the gRPC server ended");
    }
}
