//! The door for Envoy's external authorization: one question before each request, and no sight of its answer.
//!
//! The question carries the head and the body, and is held until the core decides. A yes takes a lease with it, in
//! dynamic metadata, where no client sees it; how the request ended Envoy's access log tells ([`super::access_log`]), or
//! nobody, and then the lease expires. A client that leaves while it waits cancels the question, which leaves the queue.
//!
//! This filter can change neither body nor answer. So a model is not renamed: a request that would have to be is refused.
//! Usage that the client did not ask for is not asked for either, a compressed body goes on as it came, and engines are
//! not asked for their load. `docs/envoy.md` tells what each of these costs.

mod message;

use std::net::IpAddr;
use std::sync::Arc;

use envoy_types::pb::envoy::service::auth::v3::authorization_server::{Authorization, AuthorizationServer};
use envoy_types::pb::envoy::service::auth::v3::{CheckRequest, CheckResponse};
use http::HeaderMap;
use tonic::{Request, Response, Status};

use crate::observe::Lessor;
use crate::policy::model::Listener;
use crate::settings::Door;
use crate::shell::{Gate, Leases};
use crate::units::{DecisionId, Instant, Span};

use super::answer::{self, Refused};
use super::dialect::Voice;
use super::exchange::{self, Admitted, Entered, Here, Memory, Passing, RequestHead, Taken, enter, mark, take};
use super::grpc::message_most;
use super::guard::{Panicked, guarded};
use super::identity::trusts;
use message::{Asked, Onward, Told};

/// The service Envoy asks.
#[derive(Clone, Debug)]
pub struct ExtAuthz {
    gate: Gate,
    leases: Leases,
    settings: Arc<Door>,
    trusted: bool,
    memory: Memory,
}

/// One question under way.
struct Question {
    decision: DecisionId,
    arrived: Instant,
    /// How its refusals are written.
    voice: Voice,
    /// Whose it is, once that is known.
    tenant: Option<String>,
}

/// Why there is no yes.
enum No {
    /// It is refused.
    Refused(Refused),
    /// Envoy is set up in a way that cannot work.
    Misconfigured(&'static str),
}

impl From<Refused> for No {
    fn from(refused: Refused) -> Self {
        Self::Refused(refused)
    }
}

impl ExtAuthz {
    /// A service that listens at an address. The address decides whether its headers may name the tenant.
    #[must_use]
    pub fn new(gate: Gate, leases: Leases, settings: Door, listener: IpAddr) -> Self {
        let trusted = trusts(&gate.policy().identity.trust, Listener::Grpc, listener);
        let memory = Memory::new(settings.bodies_most, settings.body_most);
        Self { gate, leases, settings: Arc::new(settings), trusted, memory }
    }

    /// The service, as a gRPC server takes it.
    #[must_use]
    pub fn into_service(self) -> AuthorizationServer<Self> {
        let most = message_most(self.settings.body_most);
        AuthorizationServer::new(self).max_decoding_message_size(most).max_encoding_message_size(most)
    }

    /// Has a request decided. Dropping the future leaves the queue.
    async fn answer(&self, request: CheckRequest) -> Result<CheckResponse, Status> {
        let (decision, arrived) = (self.gate.decision(), self.gate.clock().now());
        let passing = Passing::new(&self.gate, decision);
        let mut question = Question { decision, arrived, voice: Voice::OpenAi, tenant: None };
        let decided = self.decide(&mut question, request).await;
        passing.done();
        match decided {
            Ok(onward) => Ok(message::yes(onward, question.told())),
            Err(No::Refused(refused)) => {
                let answer = exchange::refuse(&self.gate, decision, question.voice, &refused);
                Ok(message::no(answer, question.told().text("reason", refused.code())))
            }
            Err(No::Misconfigured(problem)) => {
                tracing::error!(
                    problem,
                    "Envoy's ext_authz filter is not set up as this gateway needs it; see docs/envoy.md"
                );
                self.gate.decisions().left(decision.request, self.gate.clock().now());
                Err(Status::failed_precondition(problem))
            }
        }
    }

    async fn decide(&self, question: &mut Question, request: CheckRequest) -> Result<Onward, No> {
        let (gate, decision) = (&self.gate, question.decision);
        let asked = Asked::read(request)?;
        question.voice = Voice::of(&asked.head.path, &asked.head.headers);
        exchange::came(gate, decision, Listener::Grpc, &asked.head.method, &asked.head.path);
        let bodiless = asked.is_bodiless();
        let head =
            RequestHead { method: &asked.head.method, path: &asked.head.path, headers: &asked.head.headers, bodiless };
        let entered = enter(gate.policy(), self.trusted, head, &asked.vouched)?;
        exchange::identified(gate, decision, &entered.identified);
        question.tenant = Some(entered.identified.caller.tenant.as_str().to_owned());
        let onward = Onward::of(&asked.head, entered.identified.by_key);
        if bodiless {
            return Ok(self.free(question, onward));
        }
        if asked.lacks_its_body() {
            return Err(No::Misconfigured("the request has a body and none came: set with_request_body"));
        }
        match self.admit(question, entered, asked).await? {
            Some(admitted) => self.lease(question, onward, admitted),
            None => Ok(self.free(question, onward)),
        }
    }

    /// Has a request with a body decided; nothing where it costs nothing.
    async fn admit(&self, question: &Question, entered: Entered, asked: Asked) -> Result<Option<Admitted>, No> {
        if asked.is_partial() {
            return Err(Refused::BodyTooLargeInFront.into());
        }
        let Question { decision, arrived, .. } = *question;
        let here = Here { decision, arrived, path: asked.head.path.into(), body: asked.body };
        let (policy, most) = (self.gate.policy(), self.settings.body_most);
        let Taken { prepared, is_renamed, .. } = take(policy, &self.memory, most, entered, here).await?;
        // What is taken waits in Envoy, and not here too.
        match prepared {
            _ if is_renamed => Err(renamed().into()),
            Some(prepared) => Ok(Some(prepared.unseen().admit(&self.gate).await?)),
            None => Ok(None),
        }
    }

    fn lease(&self, question: &Question, mut onward: Onward, admitted: Admitted) -> Result<Onward, No> {
        mark(&mut onward.answer, &self.gate, question.decision, question.voice, &admitted);
        onward.waited = Some(admitted.waited());
        onward.lease = Some(admitted.lease(&self.leases, Lessor::ExtAuthz)?);
        Ok(onward)
    }

    /// It costs nothing, and passes.
    fn free(&self, question: &Question, mut onward: Onward) -> Onward {
        exchange::passed(&self.gate, question.decision);
        let mut answer = HeaderMap::new();
        answer::mark_admitted(&mut answer, question.decision, Span::ZERO);
        onward.answer = answer;
        onward
    }
}

impl Question {
    fn told(&self) -> Told {
        let told = Told::default().text("decision", self.decision.to_string());
        match &self.tenant {
            Some(tenant) => told.text("tenant", tenant),
            None => told,
        }
    }
}

/// The policy calls the model otherwise than the client, and nobody can write that into the body.
fn renamed() -> Refused {
    let what = "the policy sends this model on under another name, and Envoy asks this gateway in a way (ext_authz) that \
                cannot change a body; ask for the model by the name its upstream knows";
    Refused::Unsupported(what.into())
}

#[tonic::async_trait]
impl Authorization for ExtAuthz {
    async fn check(&self, request: Request<CheckRequest>) -> Result<Response<CheckResponse>, Status> {
        match guarded(self.answer(request.into_inner())).await {
            Ok(answer) => answer.map(Response::new),
            Err(Panicked) => Err(Status::internal("the handler failed")),
        }
    }
}

#[cfg(test)]
mod tests;
