//! Tells whoever remembers decisions what the doors know of a request, and answers in the upstream's place.
//!
//! Both doors say the same things at the same points of a request's life, so what is remembered does not depend on
//! the door. Nothing here decides.

use http::{HeaderMap, Method, Response};

use crate::observe::decisions::{Answered, Came, Known};
use crate::policy::model::Listener;
use crate::shell::Gate;
use crate::units::DecisionId;

use super::super::answer::{self, Refused};
use super::super::dialect::Voice;
use super::super::identity::Identified;
use super::super::left;
use super::prepare::Admitted;

/// A request came.
pub(in crate::wire) fn came(gate: &Gate, decision: DecisionId, listener: Listener, method: &Method, path: &str) {
    let came = Came { at: gate.clock().now(), listener, method: method.clone(), path: path.into() };
    gate.decisions().open(decision.request, came);
}

/// Whatever is decided of it changes nothing.
pub(in crate::wire) fn on_trial(gate: &Gate, decision: DecisionId) {
    gate.decisions().on_trial(decision.request);
}

/// It passed without being metered.
pub(in crate::wire) fn passed(gate: &Gate, decision: DecisionId) {
    gate.decisions().passed(decision.request);
}

/// Its caller was found out.
pub(in crate::wire) fn identified(gate: &Gate, decision: DecisionId, identified: &Identified) {
    let caller = &identified.caller;
    let known = Known {
        tenant: caller.tenant.clone(),
        session: caller.session.clone(),
        agent: caller.agent,
        wished_class: caller.wished_class.as_deref().map(Box::from),
        rule: identified.rule,
        key_name: identified.key_name.clone(),
    };
    gate.decisions().identified(decision.request, known);
}

/// Marks the answer to a request that was let through: which decision it was, how long it had waited, and what is left
/// of the limits that concern it.
pub(in crate::wire) fn mark(
    headers: &mut HeaderMap,
    gate: &Gate,
    decision: DecisionId,
    voice: Voice,
    admitted: &Admitted,
) {
    answer::mark_admitted(headers, decision, admitted.waited());
    let now = gate.clock().calendar().at(gate.clock().now());
    left::tell(headers, admitted.left(), gate.policy(), voice, now);
}

/// Counts a refusal that the core did not make, remembers any, and puts it into the caller's words.
pub(in crate::wire) fn refuse(gate: &Gate, decision: DecisionId, voice: Voice, refused: &Refused) -> Response<String> {
    let (code, now) = (refused.code(), gate.clock().now());
    if !matches!(refused, Refused::ByCore(_)) {
        gate.metrics().rejected(code);
        tracing::debug!(target: "tallygate::decision", %decision, reason = code, "answered by the door");
    }
    let mut answer = refused.answer(decision, now, voice);
    if let Refused::ByCore(refusal) = refused {
        left::tell(answer.headers_mut(), &refusal.left, gate.policy(), voice, gate.clock().calendar().at(now));
    }
    let (words, retry_after) = (refused.words().into(), refused.told_wait(decision, now));
    let answered = Answered { at: now, status: refused.status(voice), code, words, retry_after };
    gate.decisions().answered(decision.request, answered);
    answer
}

/// A request on its way through a door. Dropped before it is done, its client has left.
pub(in crate::wire) struct Passing<'a> {
    gate: &'a Gate,
    decision: Option<DecisionId>,
}

impl<'a> Passing<'a> {
    pub(in crate::wire) fn new(gate: &'a Gate, decision: DecisionId) -> Self {
        Self { gate, decision: Some(decision) }
    }

    /// It was answered, or handed on.
    pub(in crate::wire) fn done(mut self) {
        self.decision = None;
    }
}

impl Drop for Passing<'_> {
    fn drop(&mut self) {
        if let Some(decision) = self.decision {
            self.gate.decisions().left(decision.request, self.gate.clock().now());
        }
    }
}
