//! One metered request, from its body to the head of its answer.

use http::header::CONTENT_LENGTH;
use http::{Response, request};
use http_body_util::BodyExt;
use hyper::body::Incoming;

use crate::admission::Outcome;
use crate::units::DecisionId;

use super::super::answer::Refused;
use super::super::dialect::Voice;
use super::super::exchange::{Admitted, Arrival, Coding, REPORT, mark, prepare};
use super::super::server::Body;
use super::observed::{self, Framing};
use super::{Proxy, UpstreamError, headers};

/// A request that may hand in its body.
pub(super) struct Knock {
    pub(super) arrival: Arrival,
    pub(super) head: request::Parts,
    pub(super) body: Incoming,
    pub(super) coding: Coding,
    /// Whether the caller showed one of our keys.
    pub(super) by_key: bool,
}

impl Proxy {
    /// Has a request decided, sends it on, and passes its answer back.
    pub(super) async fn metered(&self, knock: Knock) -> Result<Response<Body>, Refused> {
        let Knock { arrival, head, body, coding, by_key } = knock;
        let decision = arrival.decision;
        let held = self.bodies.read(body, coding, &head.headers).await?;
        let (prepared, body) = prepare(self.gate.policy(), arrival, held.bytes.clone()).await?;
        let pool = prepared.pool();
        let mut admitted = prepared.admit(&self.gate).await?;

        let voice = Voice::of(head.uri.path(), &head.headers);
        let mut onward = self.onward(pool, &head, by_key, body);
        admitted.ask_for_load(onward.headers_mut());
        admitted.sent();
        match self.upstream.send(onward, self.settings.begin_within).await {
            Ok(response) => Ok(self.answer(decision, voice, admitted, response)),
            Err(error) => {
                admitted.unanswered(match error {
                    UpstreamError::Unreachable(_) => Outcome::UpstreamFailed,
                    UpstreamError::TimedOut(_) => Outcome::TimedOut,
                });
                Err(error.refused())
            }
        }
    }

    /// Passes the answer on, watched to its end by the permit's side.
    fn answer(
        &self,
        decision: DecisionId,
        voice: Voice,
        admitted: Admitted,
        response: Response<Incoming>,
    ) -> Response<Body> {
        let (mut head, body) = response.into_parts();
        let framing = Framing::of(&head);
        headers::clean_answer(&mut head.headers);
        mark(&mut head.headers, &self.gate, decision, voice, &admitted);
        let keeps_load = admitted.keeps_load();
        let meter = admitted.meter(head.status, &head.headers);
        if keeps_load {
            head.headers.remove(REPORT);
        }
        if meter.shortens() {
            // What is hidden makes it shorter than the upstream said.
            head.headers.remove(CONTENT_LENGTH);
        }
        Response::from_parts(head, observed::metered(body, framing, meter, self.settings.idle_most).boxed_unsync())
    }
}
