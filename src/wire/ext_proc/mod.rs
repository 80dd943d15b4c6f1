//! The door for Envoy: its external processing filter asks here about every request, and shows every answer.
//!
//! Envoy opens one gRPC stream for each HTTP request. `life.rs` is what is done about one, as a machine without
//! sockets; this file moves messages between it and the stream. While a request waits for its turn the stream is
//! read on, so that a client that leaves, or an Envoy that gives up, takes its request out of the queue at once.
//!
//! Nothing gets through by accident. Envoy lets a request through when its stream ends well before it is answered.
//! So the stream of answers ends well only where the machine says so; a panic, a lost task or a broken core end it
//! with an error, which a filter with `failure_mode_allow: false` turns into a 500.

mod envoy;
mod intake;
mod life;
#[cfg(test)]
mod lives;
mod message;
mod record;
mod trial;
mod trust;

use std::future::Future;
use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use envoy_types::pb::envoy::service::ext_proc::v3::external_processor_server::{
    ExternalProcessor, ExternalProcessorServer,
};
use tonic::codegen::tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status, Streaming};

use crate::policy::model::Listener;
use crate::settings::Door;
use crate::shell::Gate;
use crate::units::Bytes;

use super::answer::Refused;
use super::exchange::Memory;
use super::grpc::message_most;
use super::identity::trusts;
use intake::Decided;
use life::{Life, Step};
use message::{ProcessingRequest, ProcessingResponse};
use tokio::sync::oneshot;
use trial::{Heard, Trial};
use trust::Trust;

pub use message::NAMESPACE;

/// The service Envoy asks.
#[derive(Clone, Debug)]
pub struct ExtProc {
    gate: Gate,
    settings: Arc<Door>,
    trusted: bool,
    memory: Memory,
    trust: Arc<Trust>,
}

impl ExtProc {
    /// A service that listens at an address. The address decides whether its headers may name the tenant.
    #[must_use]
    pub fn new(gate: Gate, settings: Door, listener: IpAddr) -> Self {
        let trusted = trusts(&gate.policy().identity.trust, Listener::Grpc, listener);
        let memory = Memory::new(settings.bodies_most, settings.body_most);
        Self { gate, settings: Arc::new(settings), trusted, memory, trust: Arc::default() }
    }

    /// The service, as a gRPC server takes it.
    #[must_use]
    pub fn into_service(self) -> ExternalProcessorServer<Self> {
        let most = message_most(self.settings.body_most);
        ExternalProcessorServer::new(self).max_decoding_message_size(most).max_encoding_message_size(most)
    }
}

#[tonic::async_trait]
impl ExternalProcessor for ExtProc {
    type ProcessStream = Answers;

    async fn process(&self, request: Request<Streaming<ProcessingRequest>>) -> Result<Response<Answers>, Status> {
        Ok(Response::new(self.talk(Box::pin(request.into_inner()))))
    }
}

impl ExtProc {
    /// One request's conversation, as it is asked.
    fn talk(&self, questions: Questions) -> Answers {
        let life = Life::new(self.gate.clone(), self.settings.clone(), self.trust.clone(), self.trusted);
        let (gate, memory) = (self.gate.clone(), self.memory.clone());
        let body_most = self.settings.body_most;
        let talk = Box::new(Talk { life, questions, deciding: None, gate, memory, body_most, trusted: self.trusted });
        Answers { next: Some(Box::pin(talk.next())) }
    }
}

/// What Envoy says, in order.
type Questions = Pin<Box<dyn Stream<Item = Result<ProcessingRequest, Status>> + Send>>;

type Deciding = Pin<Box<dyn Future<Output = Result<Decided, Refused>> + Send>>;

/// One request's conversation with Envoy.
struct Talk {
    life: Life,
    questions: Questions,
    deciding: Option<Deciding>,
    gate: Gate,
    memory: Memory,
    body_most: Bytes,
    trusted: bool,
}

/// What comes next in a conversation.
enum Next {
    /// An answer, and the conversation goes on.
    Answer(Box<ProcessingResponse>, Box<Talk>),
    /// The last answer.
    LastAnswer(Box<ProcessingResponse>),
    /// It ended well.
    Over,
    /// It ended otherwise.
    Failed(Status),
}

impl Talk {
    /// Moves on until there is something to say.
    async fn next(mut self: Box<Self>) -> Next {
        loop {
            let step = match &mut self.deciding {
                Some(deciding) => tokio::select! {
                    verdict = deciding => {
                        self.deciding = None;
                        self.life.decided(verdict)
                    }
                    question = self.questions.next() => self.asked(question.transpose()),
                },
                None => {
                    let asking = self.questions.next();
                    match self.life.silence() {
                        Some(most) => match tokio::time::timeout(most.to_std(), asking).await {
                            Ok(question) => self.asked(question.transpose()),
                            Err(_elapsed) => self.life.timed_out(),
                        },
                        None => {
                            let question = asking.await;
                            self.asked(question.transpose())
                        }
                    }
                }
            };
            match step {
                Step::Observe(first) => return self.observe(*first).await,
                Step::Answer(answer) => return Next::Answer(answer, self),
                Step::LastAnswer(answer) => return Next::LastAnswer(answer),
                Step::Decide(undecided) => {
                    self.deciding = Some(Box::pin(undecided.decide(self.gate.clone(), self.memory.clone())));
                }
                Step::Over => return Next::Over,
                Step::Fail(status) => return Next::Failed(status),
            }
        }
    }

    /// Watches a request that Envoy does not wait with, and says nothing.
    async fn observe(self: Box<Self>, first: ProcessingRequest) -> Next {
        let Self { questions, gate, memory, body_most, trusted, .. } = *self;
        let (heard, all) = oneshot::channel();
        let decision = gate.decision();
        let trial = Trial { gate, memory, trusted, body_most, decision, questions, heard };
        // It goes on when Envoy closes the stream, which is no end of what would have been.
        tokio::spawn(trial.watch(first));
        match all.await {
            Ok(Heard::Question) => Next::Failed(Status::invalid_argument("observability_mode went off in the middle")),
            // However else it ends, it ends well: an error could cost the request.
            Ok(Heard::All) | Err(_) => Next::Over,
        }
    }

    fn asked(&mut self, question: Result<Option<ProcessingRequest>, Status>) -> Step {
        match question {
            Ok(Some(question)) => self.life.on(question),
            Ok(None) => self.life.closed(),
            // Envoy, or the connection to it, is gone: nobody reads what is said.
            Err(status) => Step::Fail(status),
        }
    }
}

/// The stream of answers. It owns the conversation: dropped, it takes everything with it.
pub struct Answers {
    next: Option<Pin<Box<dyn Future<Output = Next> + Send>>>,
}

impl std::fmt::Debug for Answers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Answers").field("ended", &self.next.is_none()).finish()
    }
}

impl Stream for Answers {
    type Item = Result<ProcessingResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Some(next) = &mut self.next else { return Poll::Ready(None) };
        let polled = catch_unwind(AssertUnwindSafe(|| next.as_mut().poll(context)));
        let said = match polled {
            Ok(poll) => ready!(poll),
            Err(_panic) => Next::Failed(Status::internal("the handler failed")),
        };
        let (item, next) = match said {
            Next::Answer(answer, talk) => (Some(Ok(*answer)), Some(Box::pin(talk.next()) as _)),
            Next::LastAnswer(answer) => (Some(Ok(*answer)), None),
            Next::Over => (None, None),
            Next::Failed(status) => (Some(Err(status)), None),
        };
        self.next = next;
        Poll::Ready(item)
    }
}
