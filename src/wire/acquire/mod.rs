//! The door for whoever sends requests itself: our own gRPC admission API (`proto/tallygate/v1/admission.proto`).
//!
//! An agent loop, a batch worker or another gateway asks to be let through, sends its request, and says how that ended.
//! Asking is held until the core decides; a call that is cancelled leaves the queue. What it is let through with is a
//! lease: it says from time to time that its request still runs, or is taken for lost. What it tells of the end is believed
//! as an upstream is: a usage that cannot be counts as missing, and a second end changes nothing.
//!
//! Who calls is read from the call's metadata as from HTTP's headers, and a refusal is a status of gRPC's, from the same
//! table as every other door's.

mod message;
mod status;
#[allow(
    missing_docs,
    unreachable_pub,
    clippy::all,
    clippy::pedantic,
    clippy::unwrap_used,
    reason = "generated from the .proto; tests/it/generated compares it with what its tool writes"
)]
pub mod v1 {
    include!(concat!(env!("CARGO_MANIFEST_DIR"), "/proto/rust/tallygate.v1.rs"));
}

use std::net::IpAddr;
use std::sync::Arc;

use http::HeaderMap;
use http::header::CONTENT_TYPE;
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status};

use crate::observe::Lessor;
use crate::policy::model::Listener;
use crate::settings::Door;
use crate::shell::{Gate, Leases};
use crate::units::{DecisionId, Instant};

use super::answer::{self, Refused};
use super::dialect::Voice;
use super::exchange::{
    self, Arrival, Here, Memory, Passing, Prepared, RequestHead, Taken, Toll, enter, mark, sized, take,
};
use super::front::without_query;
use super::grpc::message_most;
use super::guard::{Panicked, guarded};
use super::identity::{NoClaims, trusts};
use message::{Asked, lease_of, patient, state};
use v1::admission_server::{Admission, AdmissionServer};

/// What reflection tells of the API: its descriptor, encoded.
pub const DESCRIPTOR: &[u8] = include_bytes!("../../../proto/rust/tallygate.v1.bin");

/// The service.
#[derive(Clone, Debug)]
pub struct Acquire {
    gate: Gate,
    leases: Leases,
    settings: Arc<Door>,
    trusted: bool,
    memory: Memory,
}

/// A request that may go on.
struct Let {
    response: v1::AcquireResponse,
    /// What its answer would get.
    headers: HeaderMap,
}

impl Acquire {
    /// A service that listens at an address. The address decides whether its metadata may name the tenant.
    #[must_use]
    pub fn new(gate: Gate, leases: Leases, settings: Door, listener: IpAddr) -> Self {
        let trusted = trusts(&gate.policy().identity.trust, Listener::Grpc, listener);
        let memory = Memory::new(settings.bodies_most, settings.body_most);
        Self { gate, leases, settings: Arc::new(settings), trusted, memory }
    }

    /// The service, as a gRPC server takes it.
    #[must_use]
    pub fn into_service(self) -> AdmissionServer<Self> {
        let most = message_most(self.settings.body_most);
        AdmissionServer::new(self).max_decoding_message_size(most).max_encoding_message_size(most)
    }

    /// Has a request decided. Dropping the future leaves the queue.
    async fn admit(
        &self,
        headers: HeaderMap,
        asked: v1::AcquireRequest,
    ) -> Result<Response<v1::AcquireResponse>, Status> {
        let (decision, arrived) = (self.gate.decision(), self.gate.clock().now());
        let passing = Passing::new(&self.gate, decision);
        let mut voice = Voice::OpenAi;
        let decided = self.decide((decision, arrived), &mut voice, &headers, asked).await;
        passing.done();
        match decided {
            Ok(Let { response, headers }) => {
                let mut response = Response::new(response);
                *response.metadata_mut() = MetadataMap::from_headers(headers);
                Ok(response)
            }
            Err(refused) => {
                let answer = exchange::refuse(&self.gate, decision, voice, &refused);
                Err(status::of(&refused, &answer, decision, self.gate.clock().now()))
            }
        }
    }

    async fn decide(
        &self,
        (decision, arrived): (DecisionId, Instant),
        voice: &mut Voice,
        headers: &HeaderMap,
        asked: v1::AcquireRequest,
    ) -> Result<Let, Refused> {
        let gate = &self.gate;
        let asked = Asked::read(asked)?;
        let path = without_query(asked.path());
        *voice = Voice::of(&path, headers);
        let method = asked.method();
        exchange::came(gate, decision, Listener::Grpc, &method, &path);
        let head = RequestHead { method: &method, path: &path, headers, bodiless: asked.is_bodiless() };
        let mut entered = enter(gate.policy(), self.trusted, head, &NoClaims)?;
        exchange::identified(gate, decision, &entered.identified);
        let patient = |patience| patient(patience, headers);
        match (asked, &mut entered.toll) {
            (Asked::Size(size), Toll::Metered { dialect, patience }) => {
                let (dialect, patience, caller) = (*dialect, patient(*patience), entered.identified.caller);
                let arrival = Arrival { decision, arrived, dialect, path: path.as_str().into(), patience, caller };
                let prepared = sized(gate.policy(), arrival, size)?;
                self.wait((decision, *voice), prepared, Vec::new()).await
            }
            (Asked::Size(_), Toll::Free) => Err(Refused::Internal),
            (Asked::Whole { body, .. }, toll) => {
                if let Toll::Metered { patience, .. } = toll {
                    *patience = patient(*patience);
                }
                let here = Here { decision, arrived, path: path.as_str().into(), body };
                let (policy, most) = (gate.policy(), self.settings.body_most);
                let Taken { prepared, changed, kept, .. } = take(policy, &self.memory, most, entered, here).await?;
                // A body that goes on as it came waits with the caller, and not here too.
                let _kept = changed.is_some().then_some(kept);
                let changed = changed.map(Vec::from).unwrap_or_default();
                match prepared {
                    Some(prepared) => self.wait((decision, *voice), prepared, changed).await,
                    None => Ok(self.free(decision, changed)),
                }
            }
        }
    }

    /// Waits for its turn.
    async fn wait(
        &self,
        (decision, voice): (DecisionId, Voice),
        prepared: Prepared,
        body: Vec<u8>,
    ) -> Result<Let, Refused> {
        let pool = self.gate.policy().pools[prepared.pool().index()].name.to_string();
        let model = prepared.ask().selection.model.as_str().to_owned();
        let admitted = prepared.unseen().admit(&self.gate).await?;
        let mut headers = HeaderMap::new();
        mark(&mut headers, &self.gate, decision, voice, &admitted);
        let waited_ms = admitted.waited().as_millis_up();
        let lease = admitted.lease(&self.leases, Lessor::Grpc)?.to_string();
        let lease_life_ms = self.leases.life().as_millis_up();
        let decision = decision.to_string();
        let response = v1::AcquireResponse { lease, lease_life_ms, decision, waited_ms, pool, model, body };
        Ok(Let { response, headers })
    }

    /// It costs nothing: there is no lease, and nothing to settle.
    fn free(&self, decision: DecisionId, body: Vec<u8>) -> Let {
        exchange::passed(&self.gate, decision);
        let mut headers = HeaderMap::new();
        answer::mark_admitted(&mut headers, decision, crate::units::Span::ZERO);
        Let { response: v1::AcquireResponse { decision: decision.to_string(), body, ..Default::default() }, headers }
    }
}

#[tonic::async_trait]
impl Admission for Acquire {
    async fn acquire(&self, request: Request<v1::AcquireRequest>) -> Result<Response<v1::AcquireResponse>, Status> {
        let (metadata, _extensions, asked) = request.into_parts();
        let mut headers = metadata.into_headers();
        // It says how this call is written, and nothing about the request it is about.
        headers.remove(CONTENT_TYPE);
        match guarded(self.admit(headers, asked)).await {
            Ok(answer) => answer,
            Err(Panicked) => Err(Status::internal("the handler failed; nothing was let through")),
        }
    }

    async fn renew(&self, request: Request<v1::RenewRequest>) -> Result<Response<v1::RenewResponse>, Status> {
        let lease = lease_of(&request.get_ref().lease)?;
        let state = state(self.leases.renew(Lessor::Grpc, lease)).into();
        Ok(Response::new(v1::RenewResponse { state }))
    }

    async fn progress(&self, request: Request<v1::ProgressRequest>) -> Result<Response<v1::ProgressResponse>, Status> {
        let v1::ProgressRequest { lease, output_tokens } = request.into_inner();
        let output = crate::units::Tokens::new(output_tokens);
        let state = state(self.leases.progress(Lessor::Grpc, lease_of(&lease)?, output)).into();
        Ok(Response::new(v1::ProgressResponse { state }))
    }

    async fn settle(&self, request: Request<v1::SettleRequest>) -> Result<Response<v1::SettleResponse>, Status> {
        let (lease, end) = message::end(request.get_ref())?;
        let settled = end.settle(&self.leases, Lessor::Grpc, lease);
        let charged = settled.ok().flatten().map_or(0.0, |charge| charge.as_f64());
        Ok(Response::new(v1::SettleResponse { state: state(settled.map(|_| ())).into(), charged }))
    }
}

#[cfg(test)]
mod tests;
