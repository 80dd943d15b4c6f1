//! One metered request, from its headers to the head of its answer.
//!
//! In the order a reader would guess: who, what, how much, whether and when, then onward. Until the permit is given
//! nothing was held, so every refusal above that line leaves no trace but its count.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap};
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;

use crate::admission::{Ending, Outcome, Reported};
use crate::costing::{Encoding, count_prompt};
use crate::policy::Policy;
use crate::policy::model::{Caller, Selection};
use crate::shell::{Ask, Denied, Permit};
use crate::units::{DecisionId, Tokens};

use super::super::answer::{self, Refused};
use super::super::dialect::{AnswerForm, Dialect, Parsed, Unreadable};
use super::super::identity::identify;
use super::super::record;
use super::super::server::Body;
use super::observed::{self, Framing, Watch};
use super::{Proxy, UpstreamError, headers, patience};

/// Bodies up to this size are read where they are; larger ones on a thread that may take its time.
const READ_IN_PLACE: usize = 64 * 1024;

/// A request that was read, routed and counted.
pub(in crate::wire) struct Reading {
    pub(in crate::wire) parsed: Parsed,
    pub(in crate::wire) selection: Selection,
    pub(in crate::wire) encoding: Encoding,
    pub(in crate::wire) input: Tokens,
}

impl Proxy {
    pub(super) async fn metered(
        &self,
        decision: DecisionId,
        dialect: Dialect,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, Refused> {
        let arrived = self.gate.clock().now();
        let (head, incoming) = request.into_parts();
        let identified = identify(&self.gate.policy().identity, self.trusted, &head.headers).map_err(super::refused)?;
        record::identified(&self.gate, decision, &identified);
        let patience = patience::read(&head.headers)?;
        let held = self.bodies.read(incoming, &head.headers).await?;
        let reading = read_body(self.gate.policy(), dialect, &identified.caller, held.bytes.clone()).await?;
        let Reading { parsed, selection, encoding, input } = reading;

        let onward_body = parsed.forward(&held.bytes, selection.model.as_str());
        let pool = selection.pool;
        let form = parsed.answer;
        let dialect = dialect.name();
        let caller = identified.caller;
        let ask = Ask { decision, dialect, arrived, call: parsed.call, input, caller, selection, patience };
        let mut permit = self.gate.admit(ask).await.map_err(|denied| match denied {
            Denied::Refused(refusal) => Refused::ByCore(refusal),
            Denied::Broken => Refused::Internal,
        })?;

        let onward = self.onward(pool, &head, identified.by_key, onward_body);
        permit.sent();
        match self.upstream.send(onward, self.settings.begin_within).await {
            Ok(response) => Ok(self.answer(decision, permit, response, encoding, form)),
            Err(error) => {
                let outcome = match error {
                    UpstreamError::Unreachable(_) => Outcome::UpstreamFailed,
                    UpstreamError::TimedOut(_) => Outcome::TimedOut,
                };
                permit.settle(Ending { outcome, usage: Reported::Nothing });
                Err(error.refused())
            }
        }
    }

    /// Passes the answer on, watched to its end by the permit's side.
    fn answer(
        &self,
        decision: DecisionId,
        permit: Permit,
        response: Response<Incoming>,
        encoding: Encoding,
        form: AnswerForm,
    ) -> Response<Body> {
        let (mut head, body) = response.into_parts();
        let framing = Framing::of(&head);
        headers::clean_answer(&mut head.headers);
        answer::mark_admitted(&mut head.headers, decision, permit.waited());
        let watch = watch_for(head.status, &head.headers, encoding, form);
        if matches!(watch, Watch::Stream(_)) {
            // What is hidden makes it shorter than the upstream said.
            head.headers.remove(CONTENT_LENGTH);
        }
        Response::from_parts(
            head,
            observed::metered(body, framing, watch, permit, self.settings.idle_most).boxed_unsync(),
        )
    }
}

/// Reads, routes and counts a body, off the worker threads when that may take a while.
pub(in crate::wire) async fn read_body(
    policy: &Arc<Policy>,
    dialect: Dialect,
    caller: &Caller,
    bytes: Bytes,
) -> Result<Reading, Refused> {
    if bytes.len() <= READ_IN_PLACE {
        return read(policy, dialect, caller, &bytes);
    }
    let (policy, caller) = (policy.clone(), caller.clone());
    tokio::task::spawn_blocking(move || read(&policy, dialect, &caller, &bytes)).await.unwrap_or(Err(Refused::Internal))
}

/// How an answer is watched, by what it says it is.
pub(in crate::wire) fn watch_for(
    status: StatusCode,
    headers: &HeaderMap,
    encoding: Encoding,
    form: AnswerForm,
) -> Watch {
    let says = |name, prefix: &str| {
        headers.get(name).and_then(|value| value.to_str().ok()).is_some_and(|value| value.starts_with(prefix))
    };
    if !status.is_success() {
        Watch::failed(form)
    } else if headers.contains_key(CONTENT_ENCODING) && !says(CONTENT_ENCODING, "identity") {
        Watch::Unreadable
    } else if says(CONTENT_TYPE, "text/event-stream") {
        Watch::Stream(Box::new(form.observer(encoding)))
    } else {
        Watch::whole(form, encoding)
    }
}

/// Reads, routes and counts a body.
///
/// # Errors
/// When it is malformed, asks for what does not exist here, or names a model that no pool serves.
pub(in crate::wire) fn read(
    policy: &Policy,
    dialect: Dialect,
    caller: &Caller,
    bytes: &Bytes,
) -> Result<Reading, Refused> {
    let parsed = dialect.parse(bytes).map_err(|error| match error {
        Unreadable::Malformed(what) => Refused::Malformed(what),
        Unreadable::Unsupported(what) => Refused::Unsupported(what),
    })?;
    let selection = policy
        .select(&caller.tenant, caller.wished_class.as_deref(), &parsed.call.model)
        .ok_or_else(|| Refused::ModelNotFound(parsed.call.model.clone()))?;
    let encoding = Encoding::of(selection.model.as_str());
    let input = count_prompt(encoding, &parsed.call.prompt);
    Ok(Reading { parsed, selection, encoding, input })
}
