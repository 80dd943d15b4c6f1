//! Envoy's rate limit service (`envoy.service.ratelimit.v3`): the policy's limits for whoever asks by descriptors.
//!
//! Envoy Gateway and Envoy AI Gateway count requests and tokens this way, and any Envoy can (`envoy.filters.http.ratelimit`).
//! A descriptor is mapped by the policy's `rate_limit` to limits and owners ([`asked`]), all of a call is counted at once by
//! the core, and the answer tells each descriptor how its limit stands. It never waits: the filter gives it
//! 20 ms. The limits are those of the other doors, and are shared with them.
//!
//! What is not understood is an error of the call, never a silent yes: a domain or a descriptor that the policy does not
//! have, a limit of the caller's own, a class or pool that does not exist. What Envoy does with an error is its filter's
//! `failure_mode_deny`.

mod read;
mod write;

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_server::{
    RateLimitService, RateLimitServiceServer,
};
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use tonic::{Request, Response, Status};

use crate::shell::{Broken, Gate};

pub use read::{Asked, NotUnderstood, asked};

/// The service Envoy asks about rates.
#[derive(Clone, Debug)]
pub struct RateLimit {
    gate: Gate,
}

impl RateLimit {
    /// A service that counts against this gate's limits.
    #[must_use]
    pub fn new(gate: Gate) -> Self {
        Self { gate }
    }

    /// The service, as a gRPC server takes it.
    #[must_use]
    pub fn into_service(self) -> RateLimitServiceServer<Self> {
        RateLimitServiceServer::new(self)
    }

    fn decide(&self, request: &RateLimitRequest) -> Result<RateLimitResponse, Status> {
        let asked = asked(self.gate.policy(), request).map_err(|NotUnderstood(what)| Status::invalid_argument(what))?;
        let hits = asked.hits().cloned().collect();
        let standings = self.gate.count(hits).map_err(|broken: Broken| Status::unavailable(broken.to_string()))?;
        Ok(write::answer(&self.gate, &asked, &standings))
    }
}

#[tonic::async_trait]
impl RateLimitService for RateLimit {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let answer = self.decide(request.get_ref());
        if let Err(status) = &answer {
            tracing::debug!(target: "tallygate::decision", status = status.message(), "a rate limit call is an error");
        }
        answer.map(Response::new)
    }
}
