//! One request's life under Envoy, as a machine: a message in, what to do out. No socket, no task, no timer.
//!
//! | Envoy tells | we do |
//! |---|---|
//! | request headers | find out who calls; let them go on without what is ours, or refuse |
//! | request headers, with a record of the body that will do | have it decided: the answer to them is held until then |
//! | request body | have it decided: the answer to this message is held until then, while reading on |
//! | response headers, none of the request having been sent | Envoy answers itself: say it in the client's dialect |
//! | response headers | note how the answer is to be watched |
//! | response body, trailers | watch, hide what was not asked for, settle at the end |
//! | response trailers, with a record of the usage | settle for that |
//! | nothing more | settle for what was seen |
//!
//! How a request ended is read off as the proxy does: an answer whose last part came is complete if its final event
//! came, and failed upstream if not; one that Envoy answers in place of the upstream failed upstream. Envoy ends the
//! conversation in the same way when a client leaves and when an upstream breaks in the middle of an answer. Both
//! are taken for a client that left, and both pay for what was seen.
//!
//! The permit lives in here. However the machine ends, be it dropped in a panic, the permit is settled once.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, HeaderMap};
use tonic::Status;

use crate::admission::Outcome;
use crate::policy::model::Listener;
use crate::settings::{Door, Picker};
use crate::shell::Gate;
use crate::units::{DecisionId, Instant, Span};

use super::super::answer::{self, Refused};
use super::super::dialect::Voice;
use super::super::exchange::{self, Admitted, Meter, OURS, REPORT, RequestHead, enter};
use super::super::spent::Spent;
use super::envoy::{Bodies, before_dispatch, before_us, bodies, in_place_of_upstream};
use super::intake::{By, Decided, Intake, Undecided, onward};
use super::message::{
    self, Asked, Content, Edit, Head, HttpBody, HttpHeaders, ProcessingRequest, ProcessingResponse, Told, Vouched,
};
use super::trust::{Kind, Trust};
use recorded::Account;

/// What to do next.
#[derive(Debug)]
pub(super) enum Step {
    /// Answer the message, and wait for the next.
    Answer(Box<ProcessingResponse>),
    /// Answer the message; Envoy asks nothing more.
    LastAnswer(Box<ProcessingResponse>),
    /// Have this decided, reading on, and bring back the verdict.
    Decide(Box<Undecided>),
    /// Envoy waits for nothing: watch this and what comes after it.
    Observe(Box<ProcessingRequest>),
    /// Envoy is done.
    Over,
    /// Break off. Envoy answers the client with an error, as long as it is told to fail closed.
    Fail(Status),
}

/// How far a request has come.
enum Stage {
    /// Nothing is known.
    Fresh,
    /// Its body is awaited.
    Body(Box<Intake>),
    /// It is being decided; the answer to this message is owed.
    Deciding(Owed),
    /// It went on to the upstream.
    Sent(Box<Admitted>),
    /// Its answer is passing.
    Answering(Box<Meter>),
    /// It passes, or is refused; nothing is left to do about it.
    Passing,
}

/// Which message is held until the verdict.
enum Owed {
    /// The body.
    Body,
    /// The headers, which go on so changed.
    Headers(Edit),
}

/// One request's life.
pub(super) struct Life {
    gate: Gate,
    settings: Arc<Door>,
    trust: Arc<Trust>,
    trusted: bool,
    /// What Envoy shows of bodies by itself.
    bodies: Bodies,
    /// Who accounts for this request.
    account: Account,
    /// What its answer is like, where Envoy recorded the request.
    kind: Option<Kind>,
    /// Whether its answer tells its usage although we did not ask for it.
    reports_by_itself: bool,
    decision: DecisionId,
    /// How its refusals are written.
    voice: Voice,
    /// Whose it is, once that is known.
    tenant: String,
    /// When its body was handed in to be decided.
    asked: Instant,
    stage: Stage,
}

impl Life {
    /// A request about which nothing is known yet.
    pub(super) fn new(gate: Gate, settings: Arc<Door>, trust: Arc<Trust>, trusted: bool) -> Self {
        let (decision, asked) = (gate.decision(), gate.clock().now());
        Self {
            gate,
            settings,
            trust,
            trusted,
            bodies: Bodies::Shown,
            account: Account::Ours,
            kind: None,
            reports_by_itself: false,
            decision,
            voice: Voice::OpenAi,
            tenant: String::new(),
            asked,
            stage: Stage::Fresh,
        }
    }

    /// How long Envoy may say nothing now before the request is given up.
    pub(super) fn silence(&self) -> Option<Span> {
        match self.stage {
            Stage::Fresh | Stage::Body(_) => Some(self.settings.body_within),
            // The core decides how long a request waits.
            Stage::Deciding(_) => None,
            // Nothing comes before the end. How long that may take is Envoy's to say.
            Stage::Answering(_) if self.account == Account::Envoys => None,
            Stage::Sent(_) => Some(self.settings.begin_within),
            Stage::Answering(_) | Stage::Passing => Some(self.settings.idle_most),
        }
    }

    /// Takes a message of Envoy's.
    pub(super) fn on(&mut self, message: ProcessingRequest) -> Step {
        if message.observability_mode {
            return match self.stage {
                Stage::Fresh => Step::Observe(Box::new(message)),
                // Something may be held by now, and ending well would let it through.
                _ => Step::Fail(Status::invalid_argument("observability_mode came on in the middle")),
            };
        }
        match message.protocol_config.as_ref().map(bodies) {
            Some(Err(problem)) => return misconfigured(&problem),
            Some(Ok(shown)) => self.bodies = shown,
            // Only the first message tells.
            None => {}
        }
        let vouched = Vouched(message.metadata_context.unwrap_or_default());
        if let Some(picked) = message.request.as_ref().and_then(|request| vouched.picked(request)) {
            if self.bodies == Bodies::Recorded {
                self.trust.warn_of_picker();
            }
            exchange::picked(&self.gate, self.decision, picked);
        }
        let done = match message.request {
            Some(Asked::RequestHeaders(headers)) => self.request_headers(headers, &vouched),
            Some(Asked::RequestBody(body)) => Ok(self.request_body(body)),
            Some(Asked::RequestTrailers(_)) => Ok(Step::Answer(message::request_trailers())),
            Some(Asked::ResponseHeaders(headers)) => {
                self.voice_of_unheard(message::path_asked(&message.attributes));
                self.response_headers(headers, message::local_reply(&message.attributes))
            }
            Some(Asked::ResponseBody(body)) => Ok(self.response_body(body)),
            Some(Asked::ResponseTrailers(_)) => Ok(self.response_trailers(&vouched)),
            None => Ok(Step::Fail(Status::invalid_argument("a message without a request"))),
        };
        done.unwrap_or_else(|refused| self.refuse(&refused))
    }

    fn request_headers(&mut self, headers: HttpHeaders, vouched: &Vouched) -> Result<Step, Refused> {
        if !matches!(self.stage, Stage::Fresh) {
            return Ok(Step::Fail(Status::invalid_argument("request headers came twice")));
        }
        let bodiless = headers.end_of_stream;
        let head = Head::read(headers)?;
        self.voice = Voice::of(&head.path, &head.headers);
        exchange::came(&self.gate, self.decision, Listener::Grpc, &head.method, &head.path);
        let seen = RequestHead { method: &head.method, path: &head.path, headers: &head.headers, bodiless };
        let entered = enter(self.gate.policy(), self.trusted, seen, vouched)?;
        exchange::identified(&self.gate, self.decision, &entered.identified);
        entered.identified.caller.tenant.as_str().clone_into(&mut self.tenant);
        let edit = onward(&head, &entered, self.settings.picker);
        if bodiless {
            exchange::passed(&self.gate, self.decision);
            self.stage = Stage::Passing;
            return Ok(Step::Answer(message::request_headers(edit, Told::default())));
        }
        let (decision, arrived) = (self.decision, self.gate.clock().now());
        let (path, query) = (head.path.as_str().into(), head.query.as_str().into());
        let intake = Intake { decision, arrived, path, query, entered, body_most: self.settings.body_most };
        match self.bodies {
            Bodies::Shown => {
                self.stage = Stage::Body(Box::new(intake));
                Ok(Step::Answer(message::request_headers(edit, Told::default())))
            }
            Bodies::Answers | Bodies::Recorded => Ok(self.by_record_or_body(intake, edit, &head, vouched)),
        }
    }

    fn request_body(&mut self, body: HttpBody) -> Step {
        match std::mem::replace(&mut self.stage, Stage::Deciding(Owed::Body)) {
            Stage::Body(intake) => {
                self.asked = self.gate.clock().now();
                Step::Decide(Box::new(Undecided { intake: *intake, by: By::Body(body.body.into()) }))
            }
            _ => Step::Fail(Status::invalid_argument("a request body came out of turn; it must come in one piece")),
        }
    }

    /// Takes the verdict on a request.
    pub(super) fn decided(&mut self, verdict: Result<Decided, Refused>) -> Step {
        let Stage::Deciding(owed) = std::mem::replace(&mut self.stage, Stage::Passing) else {
            return Step::Fail(Status::internal("a verdict came out of turn"));
        };
        let goes_on = |mut set: HeaderMap, path, body, told| {
            let message = match owed {
                Owed::Body => message::request_body(set, body, told),
                Owed::Headers(mut edit) => {
                    set.extend(std::mem::take(&mut edit.set));
                    message::request_headers(Edit { set, ..edit }, told)
                }
            };
            message::and_to(message, path)
        };
        match verdict {
            Ok(Decided { body, path, admitted: Some(mut admitted) }) => {
                admitted.sent();
                self.reports_by_itself = admitted.reports_by_itself();
                let told = self.told().number("queue_ms", admitted.waited().as_secs_f64() * 1e3);
                let mut set = HeaderMap::new();
                admitted.ask_for_load(&mut set);
                if self.settings.picker == Picker::Told {
                    admitted.tell_picker(self.gate.policy(), &mut set);
                }
                self.stage = Stage::Sent(Box::new(admitted));
                Step::Answer(goes_on(set, path, body, told))
            }
            Ok(Decided { body, path: _, admitted: None }) => {
                exchange::passed(&self.gate, self.decision);
                Step::Answer(goes_on(HeaderMap::new(), None, body, self.told()))
            }
            Err(refused) => self.refuse(&refused),
        }
    }

    fn response_headers(&mut self, headers: HttpHeaders, local: Option<&str>) -> Result<Step, Refused> {
        let ended = headers.end_of_stream;
        let head = Head::read(headers)?;
        let remove = head.beginning(OURS);
        match std::mem::replace(&mut self.stage, Stage::Passing) {
            // Another filter answers before the request came to us.
            Stage::Fresh => {
                if let Some(refused) = local.and_then(before_us) {
                    return Err(refused);
                }
                let edit = Edit { set: HeaderMap::new(), remove };
                Ok(Step::Answer(message::response_headers(edit, Told::default())))
            }
            Stage::Passing => {
                let mut set = HeaderMap::new();
                answer::mark_admitted(&mut set, self.decision, Span::ZERO);
                Ok(Step::Answer(message::response_headers(Edit { set, remove }, self.told())))
            }
            // Envoy answers before the body is there.
            Stage::Body(_) => match before_dispatch(head.status) {
                Some(refused) => Err(refused),
                None if local.is_none() && self.bodies != Bodies::Shown => Ok(misconfigured(
                    "a request went on although its body was asked for: allow_mode_override must be true",
                )),
                None => Ok(Step::Answer(message::response_headers(Edit::default(), self.told()))),
            },
            // Envoy answers while the request waits: it waits no longer. The decision is dropped, which leaves the
            // queue.
            Stage::Deciding(_) => Err(Refused::HeldTooLong { waited: self.gate.clock().now().since(self.asked) }),
            Stage::Sent(admitted) => self.answered(*admitted, &head, remove, local, ended),
            Stage::Answering(_) => Ok(Step::Fail(Status::invalid_argument("response headers came twice"))),
        }
    }

    fn answered(
        &mut self,
        admitted: Admitted,
        head: &Head,
        mut remove: Vec<String>,
        local: Option<&str>,
        ended: bool,
    ) -> Result<Step, Refused> {
        if let Some(refused) = local.and_then(in_place_of_upstream) {
            admitted.unanswered(match refused {
                Refused::UpstreamTimedOut(_) => Outcome::TimedOut,
                _ => Outcome::UpstreamFailed,
            });
            return Err(refused);
        }
        let mut set = HeaderMap::new();
        exchange::mark(&mut set, &self.gate, self.decision, self.voice, &admitted);
        if admitted.keeps_load() && head.headers.contains_key(REPORT) {
            remove.push(REPORT.as_str().to_owned());
        }
        let by_envoy = !ended && self.envoy_accounts(head);
        if !by_envoy && self.account == Account::Envoys {
            self.account = Account::Ours;
        }
        let mut meter = match by_envoy {
            true => admitted.meter_unseen(head.status, &head.headers),
            false => admitted.meter(head.status, &head.headers),
        };
        if meter.shortens() {
            // What is hidden makes it shorter than the upstream said.
            remove.push(CONTENT_LENGTH.as_str().to_owned());
        }
        let mut told = self.told();
        if ended {
            let (_nothing, charge) = meter.end();
            told = told.charge(charge);
        }
        self.stage = Stage::Answering(Box::new(meter));
        let answer = message::response_headers(Edit { set, remove }, told);
        let unasked = self.bodies == Bodies::Recorded && !by_envoy;
        Ok(Step::Answer(if unasked { message::and_show_bodies(answer) } else { answer }))
    }

    fn response_body(&mut self, body: HttpBody) -> Step {
        let told = self.told();
        let Stage::Answering(meter) = &mut self.stage else {
            return Step::Answer(message::response_body(Content::Kept, Told::default()));
        };
        let (came, ended) = (Bytes::from(body.body), body.end_of_stream);
        let mut shown = meter.pass(came.clone());
        let charge = if ended {
            let (rest, charge) = meter.end();
            if !rest.is_empty() {
                shown = [shown, rest].concat().into();
            }
            charge
        } else if meter.is_whole() {
            // The slot is free, however long the upstream lingers.
            meter.settle(Outcome::Completed)
        } else {
            None
        };
        let told = if charge.is_some() { told.charge(charge) } else { Told::default() };
        Step::Answer(message::response_body(Content::changed(&came, shown), told))
    }

    fn response_trailers(&mut self, vouched: &Vouched) -> Step {
        let mut told = Told::default();
        self.note_record(vouched);
        if self.account == Account::Envoys
            && let Stage::Answering(meter) = &mut self.stage
        {
            let charge = meter.ended(Spent::recorded(&vouched.0));
            told = self.told().charge(charge);
        } else if let Stage::Answering(meter) = &mut self.stage {
            // What is still held back is an event without its end, which no client would read.
            let (_unfinished, charge) = meter.end();
            told = self.told().charge(charge);
        }
        Step::Answer(message::response_trailers(told))
    }

    /// Envoy says no more.
    pub(super) fn closed(&self) -> Step {
        match self.stage {
            // Ending well here would let the request through.
            Stage::Deciding(_) => Step::Fail(Status::cancelled("the request was not decided")),
            _ => Step::Over,
        }
    }

    /// Envoy said nothing for longer than [`Self::silence`].
    pub(super) fn timed_out(&mut self) -> Step {
        match std::mem::replace(&mut self.stage, Stage::Passing) {
            Stage::Sent(admitted) => {
                admitted.unanswered(Outcome::TimedOut);
                // Envoy takes an answer of ours for as long as there is none of the upstream's, though it asks nothing.
                return self.refuse(&Refused::UpstreamSilent { within: self.settings.begin_within });
            }
            // Nothing is missing any more and nothing is left to hide: what still comes Envoy may pass on by itself.
            Stage::Answering(meter) if meter.is_whole() => return Step::Over,
            Stage::Answering(mut meter) => {
                meter.settle(Outcome::TimedOut);
            }
            _ => {}
        }
        Step::Fail(Status::deadline_exceeded("nothing happened for too long"))
    }

    fn refuse(&mut self, refused: &Refused) -> Step {
        self.stage = Stage::Passing;
        let (code, answer) = (refused.code(), exchange::refuse(&self.gate, self.decision, self.voice, refused));
        Step::LastAnswer(message::immediate(answer, code, self.told().text("reason", code)))
    }

    fn told(&self) -> Told {
        let told = Told::default().text("decision", self.decision.to_string());
        if self.tenant.is_empty() { told } else { told.text("tenant", &self.tenant) }
    }
}

impl Drop for Life {
    /// However the conversation ended: a request that was not decided by then has been left.
    fn drop(&mut self) {
        self.note_unrecorded();
        self.gate.decisions().left(self.decision.request, self.gate.clock().now());
    }
}

/// Envoy is set up in a way that cannot work. Every request is refused, and the log says why.
fn misconfigured(problem: &str) -> Step {
    tracing::error!(problem, "Envoy's ext_proc filter is not set up as this gateway needs it; see docs/envoy-check.md");
    Step::Fail(Status::failed_precondition(problem))
}

mod recorded;
#[cfg(test)]
mod streams;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod unseen;
