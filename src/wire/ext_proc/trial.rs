//! A trial: Envoy tells everything and waits for nothing (`observability_mode`). Decides as if, and changes nothing.
//!
//! The request is on its way whatever is decided, so nothing is answered, changed or hidden, and no error is made. What
//! would have become of it is worked out in the same core, with the same queue, window, limits and books:
//!
//! | what the core says | what is done |
//! |---|---|
//! | it goes | it holds its place until its answer has really ended, and is charged for that |
//! | it waits for so long | as if it had run later by that: it holds its place until so long after its real end |
//! | it is refused, on arrival or later | it holds and costs nothing, and is counted with the reason |
//!
//! A request refused here has really run, so a trial's engine is busier than the core believes, and waits and refusals
//! under overload are told too low rather than too high. Usage is not asked for on a client's behalf: an answer that tells
//! none is counted by its text. A conversation that breaks before its end is a client that left.
//!
//! *Bound:* one task for each request that waits or runs, as the policy's queues and windows allow, and bodies within the
//! memory that all requests share; a body for which there is none is not judged, and counted so. It never waits on
//! Envoy's behalf: messages are taken as they come.

use std::pin::Pin;

use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use tokio::sync::oneshot;
use tonic::codegen::tokio_stream::StreamExt;

use crate::admission::Outcome;
use crate::policy::model::Listener;
use crate::shell::Gate;
use crate::units::{self, DecisionId, Span};

use super::super::answer::Refused;
use super::super::dialect::Voice;
use super::super::exchange::{
    self, Admitted, Entered, Here, Kept, Lens, Memory, Meter, Prepared, RequestHead, enter, read_here,
};
use super::Questions;
use super::message::{Asked, Head, HttpHeaders, ProcessingRequest, Vouched};

type Deciding = Pin<Box<dyn Future<Output = Result<Admitted, Refused>> + Send>>;

/// One request on trial.
pub(super) struct Trial {
    pub(super) gate: Gate,
    pub(super) memory: Memory,
    pub(super) trusted: bool,
    pub(super) body_most: units::Bytes,
    pub(super) decision: DecisionId,
    pub(super) questions: Questions,
    /// Told when Envoy has said all there is, and whether it waited for nothing all the while.
    pub(super) heard: oneshot::Sender<Heard>,
}

/// What was heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// Everything, and nobody waits.
    All,
    /// A message that wants an answer.
    Question,
}

/// How far it has come.
enum Stage {
    /// Its body comes.
    Body(Box<Came>),
    /// It would be decided, or is.
    Asked(Box<Asking>),
    /// Nothing is to be known of it any more.
    Done,
}

/// A request and what there is of its body.
struct Came {
    entered: Entered,
    path: Box<str>,
    arrived: units::Instant,
    body: Vec<u8>,
    _kept: Kept,
}

/// A request of which the core was asked.
struct Asking {
    lens: Lens,
    deciding: Option<Deciding>,
    meter: Option<Meter>,
    waited: Span,
    head: Option<Head>,
    admitted: Option<Admitted>,
}

impl Trial {
    /// Watches a request to its end.
    pub(super) async fn watch(self, first: ProcessingRequest) {
        let Self { gate, memory, trusted, body_most, decision, mut questions, heard } = self;
        let mut trial = Watching { gate, memory, trusted, body_most, decision, stage: Stage::Done };
        trial.take(first).await;
        // Whatever is said is read, so that Envoy never waits for room.
        let mut all = Heard::All;
        while let Some(Ok(question)) = trial.next(&mut questions).await {
            if !question.observability_mode {
                all = Heard::Question;
                break;
            }
            trial.take(question).await;
        }
        // Nobody may be left to be told.
        let _gone = heard.send(all);
        trial.finish().await;
    }
}

struct Watching {
    gate: Gate,
    memory: Memory,
    trusted: bool,
    body_most: units::Bytes,
    decision: DecisionId,
    stage: Stage,
}

impl Watching {
    /// The next message; meanwhile the core may decide.
    async fn next(&mut self, questions: &mut Questions) -> Option<Result<ProcessingRequest, tonic::Status>> {
        loop {
            let Stage::Asked(asking) = &mut self.stage else { return questions.next().await };
            let Some(deciding) = &mut asking.deciding else { return questions.next().await };
            let verdict = tokio::select! {
                question = questions.next() => return question,
                verdict = deciding => verdict,
            };
            self.decided(verdict);
        }
    }

    async fn take(&mut self, message: ProcessingRequest) {
        let vouched = Vouched(message.metadata_context.unwrap_or_default());
        match message.request {
            Some(Asked::RequestHeaders(headers)) => {
                if let Err(refused) = self.request_headers(headers, &vouched) {
                    self.refuse(&refused);
                }
            }
            Some(Asked::RequestBody(body)) => self.request_body(&body.body, body.end_of_stream).await,
            Some(Asked::ResponseHeaders(headers)) => self.response_headers(headers),
            Some(Asked::ResponseBody(body)) => {
                self.with_meter(|meter| drop(meter.pass(Bytes::from(body.body))));
                if body.end_of_stream {
                    self.with_meter(Meter::close);
                }
            }
            Some(Asked::ResponseTrailers(_)) => self.with_meter(Meter::close),
            Some(Asked::RequestTrailers(_)) | None => {}
        }
    }

    fn request_headers(&mut self, headers: HttpHeaders, vouched: &Vouched) -> Result<(), Refused> {
        let bodiless = headers.end_of_stream;
        let head = Head::read(headers)?;
        exchange::came(&self.gate, self.decision, Listener::Grpc, &head.method, &head.path);
        exchange::on_trial(&self.gate, self.decision);
        let seen = RequestHead { method: &head.method, path: &head.path, headers: &head.headers, bodiless };
        let entered = enter(self.gate.policy(), self.trusted, seen, vouched)?;
        exchange::identified(&self.gate, self.decision, &entered.identified);
        if bodiless {
            exchange::passed(&self.gate, self.decision);
            return Ok(());
        }
        let length = head.headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        match self.memory.take_now(Memory::needed(length, entered.coding, self.body_most)) {
            Ok(_kept) => {
                let (arrived, body) = (self.gate.clock().now(), Vec::new());
                self.stage =
                    Stage::Body(Box::new(Came { entered, path: head.path.as_str().into(), arrived, body, _kept }));
            }
            Err(_full) => self.gate.metrics().tried("unread", "memory"),
        }
        Ok(())
    }

    async fn request_body(&mut self, part: &[u8], ended: bool) {
        let Stage::Body(came) = &mut self.stage else { return };
        if (came.body.len() + part.len()) as u64 > self.body_most.get() {
            return self.refuse(&Refused::BodyTooLarge { most: self.body_most });
        }
        came.body.extend_from_slice(part);
        if ended && let Stage::Body(came) = std::mem::replace(&mut self.stage, Stage::Done) {
            match read(self.gate.clone(), self.decision, *came, self.body_most).await {
                Ok(Some(prepared)) => self.ask(prepared),
                Ok(None) => exchange::passed(&self.gate, self.decision),
                Err(refused) => self.refuse(&refused),
            }
        }
    }

    fn ask(&mut self, prepared: Prepared) {
        let (gate, lens) = (self.gate.clone(), prepared.lens());
        let deciding: Deciding = Box::pin(async move { prepared.admit(&gate).await });
        let (waited, deciding) = (Span::ZERO, Some(deciding));
        let asking = Asking { lens, deciding, meter: None, waited, head: None, admitted: None };
        self.stage = Stage::Asked(Box::new(asking));
    }

    fn decided(&mut self, verdict: Result<Admitted, Refused>) {
        match (verdict, &mut self.stage) {
            (Ok(mut admitted), Stage::Asked(asking)) => {
                asking.deciding = None;
                asking.waited = admitted.waited();
                let verdict = if asking.waited == Span::ZERO { "admitted" } else { "waited" };
                self.gate.metrics().tried(verdict, "");
                admitted.sent();
                match (&mut asking.meter, &asking.head) {
                    (Some(meter), Some(head)) => meter.charge_to(admitted, head.status, &head.headers),
                    _ => asking.admitted = Some(admitted),
                }
            }
            (Ok(admitted), Stage::Body(_) | Stage::Done) => drop(admitted),
            (Err(refused), _) => self.refuse(&refused),
        }
    }

    fn response_headers(&mut self, headers: HttpHeaders) {
        let ended = headers.end_of_stream;
        let Ok(head) = Head::read(headers) else { return };
        if let Stage::Body(_) = self.stage {
            // Envoy does not tell how it is set up in this mode, so that is seen by what is missing.
            tracing::warn!("an answer came before the request's body: on trial request_body_mode must be STREAMED");
            self.stage = Stage::Done;
            self.gate.metrics().tried("unread", "body");
        }
        let Stage::Asked(asking) = &mut self.stage else { return };
        let mut meter = asking.lens.meter(head.status, &head.headers);
        if let Some(admitted) = asking.admitted.take() {
            meter.charge_to(admitted, head.status, &head.headers);
        }
        if ended {
            meter.close();
        }
        (asking.meter, asking.head) = (Some(meter), Some(head));
    }

    fn with_meter(&mut self, act: impl FnOnce(&mut Meter)) {
        if let Stage::Asked(asking) = &mut self.stage
            && let Some(meter) = &mut asking.meter
        {
            act(meter);
        }
    }

    /// It would have been refused.
    fn refuse(&mut self, refused: &Refused) {
        self.stage = Stage::Done;
        self.gate.metrics().tried("refused", refused.code());
        // What would have been answered is remembered, and said to nobody.
        let _unsaid = exchange::refuse(&self.gate, self.decision, Voice::OpenAi, refused);
    }

    /// Envoy says no more. What would still wait waits on, and what would have begun later ends later.
    async fn finish(mut self) {
        let ended = self.gate.clock().now();
        if let Stage::Asked(asking) = &mut self.stage
            && let Some(deciding) = asking.deciding.take()
        {
            let verdict = deciding.await;
            self.decided(verdict);
        }
        if let Stage::Asked(asking) = self.stage {
            let Asking { meter, waited, admitted, .. } = *asking;
            let clock = *self.gate.clock();
            clock.sleep_until(ended + waited).await;
            match (meter, admitted) {
                (Some(mut meter), _) => meter.settle_as_closed(),
                // No answer ever came.
                (None, Some(admitted)) => admitted.unanswered(Outcome::ClientAborted),
                (None, None) => {}
            }
        } else {
            self.gate.decisions().left(self.decision.request, ended);
        }
    }
}

/// Reads a body as it would be read; nothing where it costs nothing.
async fn read(gate: Gate, decision: DecisionId, came: Came, most: units::Bytes) -> Result<Option<Prepared>, Refused> {
    let Came { entered, path, arrived, body, .. } = came;
    let here = Here { decision, arrived, path, body: body.into() };
    read_here(gate.policy(), most, entered, here).await.map(|onward| onward.prepared)
}
