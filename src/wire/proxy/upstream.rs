//! The upstreams: where each pool's requests go, and how.

use std::time::Duration;

use http::header::CONTENT_TYPE;
use http::{HeaderMap, Request, Response, Uri};
use hyper::body::Incoming;
use hyper_util::client::legacy::connect::capture_connection;

use crate::dial::{Dialer, Keep, root};
use crate::policy::Policy;
use crate::units::PoolIndex;

use super::super::server::Body;

/// How long a connection may take to be made.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);
/// How long an unused connection is kept: less than the five seconds of uvicorn, llama.cpp and Node, or requests race its
/// end.
const IDLE_MOST: Duration = Duration::from_secs(3);

/// The upstreams of all pools.
#[derive(Clone, Debug)]
pub struct Upstream {
    connections: Connections,
    pools: Vec<Uri>,
}

#[derive(Clone, Debug)]
#[cfg_attr(test, expect(clippy::large_enum_variant, reason = "one for each gateway, and the small one is for tests"))]
enum Connections {
    Dialed(Dialer<Body>),
    /// Dials nobody: the tests' own upstream, in memory.
    #[cfg(test)]
    Memory(super::lives::Dial),
}

impl Connections {
    async fn send(&self, mut request: Request<Body>) -> Result<Response<Incoming>, UpstreamError> {
        let dialer = match self {
            Self::Dialed(dialer) => dialer,
            #[cfg(test)]
            Self::Memory(dial) => return dial.send(request).await,
        };
        let connection = capture_connection(&mut request);
        let answered = dialer.send(request).await;
        if matches!(dialer, Dialer::Plain(_))
            && answered.as_ref().is_ok_and(|answer| is_stream(answer.headers()))
            && let Some(connection) = connection.connection_metadata().as_ref()
        {
            connection.poison();
        }
        answered.map_err(|error| {
            let what = if error.is_connect() { "cannot be reached" } else { "broke the connection before it answered" };
            UpstreamError::Unreachable(format!("the upstream {what}: {}", root(&error)))
        })
    }
}

/// Whether an answer is a stream. llama.cpp's server closes the connection behind each without having said so, and the next
/// request on it would race that end; so a plain connection, which costs little to make, carries one stream and no more.
fn is_stream(headers: &HeaderMap) -> bool {
    const EVENTS: &[u8] = b"text/event-stream";
    headers.get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(EVENTS))
}

/// Why an upstream gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum UpstreamError {
    /// No connection, or one that broke before the answer began.
    #[error("{0}")]
    Unreachable(String),
}

impl Upstream {
    /// The upstreams a policy names; `default` serves the pools that name none.
    ///
    /// # Errors
    /// When a pool has no upstream, one is not an http or https address, or https is asked for and the system has no
    /// certificates to trust.
    pub fn new(policy: &Policy, default: Option<&Uri>) -> Result<Self, String> {
        let pools = policy.pools.iter().map(|pool| {
            let uri = pool.upstream.as_ref().or(default).ok_or_else(|| {
                let name = &pool.name;
                format!(
                    "pool {name:?} has no upstream: give it one in the policy, or all of them with --upstream; where \
                     Envoy sends requests on and only asks here, turn the proxy off with --proxy off"
                )
            })?;
            check(uri)?;
            Ok::<_, String>(uri.clone())
        });
        let pools: Vec<Uri> = pools.collect::<Result<_, _>>()?;
        let secure = pools.iter().any(|uri| uri.scheme_str() == Some("https"));
        let keep = Keep { connect_within: Some(CONNECT_WITHIN), idle_most: IDLE_MOST };
        let dialer = Dialer::new(secure, keep)
            .map_err(|error| format!("https upstreams need the system's certificates: {error}"))?;
        Ok(Self { connections: Connections::Dialed(dialer), pools })
    }

    /// Each pool's upstream, in the policy's order.
    pub fn addresses(&self) -> impl Iterator<Item = &Uri> {
        self.pools.iter()
    }

    /// Where a request for a path goes.
    #[must_use]
    pub fn uri(&self, pool: PoolIndex, wanted: &Uri) -> Uri {
        join(&self.pools[pool.index()], wanted)
    }

    /// Sends a request and waits for the head of its answer. Dropping the future cancels the request.
    ///
    /// # Errors
    /// When there is no answer.
    pub async fn send(&self, request: Request<Body>) -> Result<Response<Incoming>, UpstreamError> {
        self.connections.send(request).await
    }

    /// The tests' own, for every pool.
    #[cfg(test)]
    pub(super) fn in_memory(policy: &Policy, dial: super::lives::Dial) -> Self {
        let pools = policy.pools.iter().map(|_| Uri::from_static("http://upstream")).collect();
        Self { connections: Connections::Memory(dial), pools }
    }
}

fn check(uri: &Uri) -> Result<(), String> {
    let plain =
        matches!(uri.scheme_str(), Some("http" | "https")) && uri.authority().is_some() && uri.query().is_none();
    if plain {
        Ok(())
    } else {
        Err(format!("an upstream must look like http://host:port or https://host/path, not {uri}"))
    }
}

/// The wanted path below the upstream's. An upstream written with the `/v1` that clients write themselves means the
/// same as one without.
fn join(upstream: &Uri, wanted: &Uri) -> Uri {
    let path = wanted.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
    let prefix = upstream.path().trim_end_matches('/');
    let prefix = match prefix.strip_suffix("/v1") {
        Some(shorter) if path.starts_with("/v1/") => shorter,
        _ => prefix,
    };
    let mut parts = upstream.clone().into_parts();
    parts.path_and_query = format!("{prefix}{path}").parse().ok();
    Uri::from_parts(parts).unwrap_or_else(|_| upstream.clone())
}

#[cfg(test)]
mod tests {
    use http::Uri;

    use super::{check, join};

    #[test]
    fn paths_go_below_the_upstreams() {
        let joined = |upstream: &str, path: &str| {
            join(&upstream.parse::<Uri>().expect("valid"), &path.parse().expect("valid")).to_string()
        };
        assert_eq!(joined("http://a:1", "/v1/models?x=1"), "http://a:1/v1/models?x=1");
        assert_eq!(joined("https://a/", "/v1/models"), "https://a/v1/models");
        assert_eq!(joined("https://a/team/", "/v1/models"), "https://a/team/v1/models");
        assert_eq!(joined("https://a/v1", "/v1/models"), "https://a/v1/models");
        assert_eq!(joined("https://a/v1", "/health"), "https://a/v1/health");
    }

    #[test]
    fn an_upstream_is_an_address() {
        for good in ["http://127.0.0.1:8000", "https://api.example.com/v1"] {
            assert_eq!(check(&good.parse().expect("a URI")), Ok(()));
        }
        for bad in ["ftp://a", "/v1", "http://a/?x=1", "localhost:80"] {
            assert!(check(&bad.parse().expect("a URI")).is_err(), "{bad}");
        }
    }
}
