//! Token-fair admission control for LLM gateways.
//!
//! Tallygate decides *whether and when* a request may use a scarce pool of LLM serving capacity: it keeps a tally of the
//! tokens each tenant has received, holds what cannot run yet in bounded queues, lets through whoever has received
//! least, and refuses the rest early with an honest time to come back. The `tallygate` program puts it into a reverse
//! proxy and behind Envoy. This library puts it into your own server: [`AdmissionLayer`] is a tower layer for any service
//! of `http` requests (axum, tonic, hyper).
//!
//! # In front of a service
//!
//! A [`Gate`] is the core of one policy; every layer with a clone of it shares its queues and limits.
//!
//! ```
//! use std::convert::Infallible;
//!
//! use bytes::Bytes;
//! use http::{Request, Response};
//! use http_body_util::Full;
//! use tallygate::{AdmissionLayer, Body, Gate};
//! use tower::{ServiceBuilder, ServiceExt, service_fn};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let policy = "
//! version: 1
//! identity: {tenant: [{header: x-tenant-id}]}
//! limits: [{name: one-a-minute, per: tenant, requests: 1, every: 1m, when_exceeded: refuse}]
//! ";
//! let gate = Gate::from_text(policy)?.start()?; // or Gate::from_file("policy.yaml")?.start()?
//!
//! // Whatever serves the model. It finds out who calls, and how long the request waited, from `tallygate::Granted`.
//! let model = service_fn(|request: Request<Body>| async move {
//!     let granted = request.extensions().get::<tallygate::Granted>().expect("it was let through");
//!     assert_eq!(granted.caller().tenant.as_str(), "acme");
//!     let answer = r#"{"choices": [{"message": {"content": "Hello!"}}],
//!                      "usage": {"prompt_tokens": 8, "completion_tokens": 2}}"#;
//!     Ok::<_, Infallible>(Response::new(Full::<Bytes>::from(answer)))
//! });
//!
//! // Only trusted callers reach this service, so the header of the policy may name the tenant.
//! let layer = AdmissionLayer::new(gate.clone()).trusting_headers();
//! let service = ServiceBuilder::new().layer(layer).service(model);
//!
//! let ask = || {
//!     let body = r#"{"model": "m", "messages": [{"role": "user", "content": "Hello"}]}"#;
//!     let request = Request::post("/v1/chat/completions").header("x-tenant-id", "acme");
//!     request.body(Full::<Bytes>::from(body)).expect("a request")
//! };
//! let answered = service.clone().oneshot(ask()).await?;
//! assert_eq!((answered.status().as_u16(), &answered.headers()["x-tallygate-queue-ms"]), (200, &"0".parse()?));
//! drop(answered); // The permit lives as long as the body.
//!
//! // The refusal is an answer in the caller's dialect, not an error.
//! let refused = service.oneshot(ask()).await?;
//! assert_eq!((refused.status().as_u16(), &refused.headers()["x-tallygate-reason"]), (429, &"rate_limited".parse()?));
//! assert!(refused.headers().contains_key("retry-after"));
//! # Ok(())
//! # }
//! ```
//!
//! Requests of the OpenAI, Anthropic and other APIs are read by themselves ([`wire::dialect`]). For a service that
//! speaks something else, an [`Appraise`] says what a request costs, and [`Granted::used`] what it came to. Who calls is
//! found out by the policy's `identity` rules, or by a layer of yours in front that puts [`Verified`] into the request.
//! `examples/axum` and `examples/tonic` are whole servers; `docs/tower.md` tells the rest.
//!
//! # The rooms
//!
//! `ARCHITECTURE.md` says how the program is made: [`admission`] is the core, a machine without clock, task or IO;
//! [`shell`] drives it in real time; [`wire`] holds the doors; [`policy`] is what an operator writes.

pub mod admission;
pub mod app;
pub mod cli;
pub mod costing;
pub mod demo;
mod dial;
pub mod engines;
pub mod envoy_check;
pub mod ledger;
pub mod observe;
pub mod policy;
pub mod settings;
pub mod shell;
pub mod sim;
pub mod store;
pub mod units;
pub mod wire;
pub mod yaml;

pub use shell::{Gate, GateBuilder, GateError};
pub use wire::tower::{
    Admission, AdmissionLayer, Appraise, Body, ByHead, Granted, Unfailing, UnfailingLayer, Verified, Work,
};
