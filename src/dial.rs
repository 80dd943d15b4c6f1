//! Connections to what stands behind us: upstreams, and the pages on which engines tell of their load.
//!
//! Plain where nothing asks for https, so that a host without certificates can still serve.

use std::time::Duration;

use http::{Request, Response};
use hyper::body::{Body, Incoming};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::{Client, Error};
use hyper_util::rt::{TokioExecutor, TokioTimer};

/// How connections are made and kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keep {
    /// How long one may take to be made; `None` for as long as the system tries.
    pub(crate) connect_within: Option<Duration>,
    /// How long an unused one is kept.
    pub(crate) idle_most: Duration,
}

/// Sends requests over connections that are kept and used again.
#[derive(Debug)]
pub(crate) enum Dialer<B> {
    /// To `http://` alone.
    Plain(Client<HttpConnector, B>),
    /// To `https://` too.
    Secure(Client<HttpsConnector<HttpConnector>, B>),
}

// Derived, it would ask for bodies that can be cloned.
impl<B> Clone for Dialer<B> {
    fn clone(&self) -> Self {
        match self {
            Self::Plain(client) => Self::Plain(client.clone()),
            Self::Secure(client) => Self::Secure(client.clone()),
        }
    }
}

impl<B> Dialer<B>
where
    B: Body + Send + Unpin + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    /// A dialer that has connected to nobody yet.
    ///
    /// # Errors
    /// When https is asked for and the system has no certificates to trust.
    pub(crate) fn new(secure: bool, keep: Keep) -> std::io::Result<Self> {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(keep.connect_within);
        let mut client = Client::builder(TokioExecutor::new());
        client.pool_timer(TokioTimer::new()).pool_idle_timeout(keep.idle_most);
        if !secure {
            return Ok(Self::Plain(client.build(connector)));
        }
        connector.enforce_http(false);
        let trust = HttpsConnectorBuilder::new().with_native_roots()?;
        Ok(Self::Secure(client.build(trust.https_or_http().enable_http1().wrap_connector(connector))))
    }

    /// Sends a request and waits for the head of its answer. Dropping the future cancels the request.
    ///
    /// # Errors
    /// When there is no connection, or it breaks before the head has come.
    pub(crate) async fn send(&self, request: Request<B>) -> Result<Response<Incoming>, Error> {
        match self {
            Self::Plain(client) => client.request(request).await,
            Self::Secure(client) => client.request(request).await,
        }
    }
}

/// The innermost cause, which is the one that says something.
pub(crate) fn root<'a>(error: &'a (dyn std::error::Error + 'static)) -> &'a dyn std::error::Error {
    let mut innermost = error;
    while let Some(cause) = innermost.source() {
        innermost = cause;
    }
    innermost
}
