//! A life without bodies: what Envoy read of a request is its quote, and what it read of the answer its settlement.
//!
//! Envoy's record is taken at its word where that costs nothing in accuracy that matters. Otherwise Envoy is asked for
//! the body (`mode_override`), and the request lives as it always does:
//!
//! | of the request | what is done |
//! |---|---|
//! | there is no record, or it names no model or no size | its body is read |
//! | it is not metered, or compressed | its body is read |
//! | its API is one whose caps Envoy does not read, or can ask for what is not served here (`background`) | its body is read |
//! | the policy calls its model otherwise upstream | its body is read, and changed |
//! | it is large (images, files), or so large that it could be refused for good by an estimate | its body is read |
//! | its answer is not known to leave a record (`trust.rs`) | its body is read, and usage asked for |
//! | of the answer | |
//! | an error, compressed, of an unknown kind or too large for Envoy to read | it is read as it passes |
//!
//! An answer that ends without a record is settled by estimate, for as long as it took, as if its client had left: Envoy
//! does not say which it was. The next of its kind is read.

use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderName};

use crate::observe::Source;
use crate::units::{Bytes, Limit, Tokens};

use super::super::super::exchange::{Coding, Stated, Toll};
use super::super::intake::{By, Intake, Undecided};
use super::super::message::{self, Edit, Head, Told, Vouched};
use super::super::record::RequestRecord;
use super::super::trust::Kind;
use super::{Bodies, Life, Owed, Stage, Step};
use crate::wire::dialect::{Dialect, Voice};
use crate::wire::spent::Spent;

/// Who accounts for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Account {
    /// We do, by its bodies.
    Ours,
    /// Envoy does, by its records.
    Envoys,
}

/// The largest body whose cost is taken from an estimate. What is larger is counted, not least since most of it may be
/// an image, which costs a thousandth of its size.
const ESTIMATED_MOST: Bytes = Bytes::new(256 * 1024);

/// How many bytes of a body make a token, where Envoy does not say.
const BYTES_PER_TOKEN: u64 = 4;

/// The largest answer in one piece that Envoy reads, unless it is told otherwise.
const READ_MOST: u64 = 4 * 1024 * 1024;

impl Life {
    /// Has a request decided by Envoy's record of it, or asks for its body.
    pub(super) fn by_record_or_body(&mut self, intake: Intake, edit: Edit, head: &Head, vouched: &Vouched) -> Step {
        let stated = self.stated(&intake, head, vouched);
        if matches!(intake.entered.toll, Toll::Metered { .. }) {
            let source = if stated.is_some() { Source::Record } else { Source::Parsed };
            self.gate.metrics().quoted_from(source);
        }
        match stated {
            Some(stated) => {
                self.account = Account::Envoys;
                self.asked = self.gate.clock().now();
                self.stage = Stage::Deciding(Owed::Headers(edit));
                Step::Decide(Box::new(Undecided { intake, by: By::Record(stated) }))
            }
            None => {
                self.stage = Stage::Body(Box::new(intake));
                Step::Answer(message::and_show_bodies(message::request_headers(edit, Told::default())))
            }
        }
    }

    /// What is stated of a request, where that will do.
    fn stated(&mut self, intake: &Intake, head: &Head, vouched: &Vouched) -> Option<Stated> {
        let Toll::Metered { dialect, .. } = intake.entered.toll else { return None };
        let RequestRecord { model, stream, max_output_tokens, estimated_input_tokens } = RequestRecord::of(&vouched.0)?;
        let caller = &intake.entered.identified.caller;
        let streamed = stream.unwrap_or(false);
        let kind = Kind { tenant: caller.tenant.clone(), model: model.as_str().into(), dialect, streamed };
        let recorded = self.trust.expects(&kind);
        self.kind = Some(kind);
        let length = number(&head.headers, &CONTENT_LENGTH);
        let input = Tokens::new(estimated_input_tokens.or(length.map(|length| length.div_ceil(BYTES_PER_TOKEN)))?);
        let bytes = Bytes::new(length.unwrap_or_else(|| input.times(BYTES_PER_TOKEN).get()));
        let known = matches!(dialect, Dialect::OpenAiChat | Dialect::AnthropicMessages);
        let plain = intake.entered.coding == Coding::Identity;
        // An answer that is shown needs no record.
        let settled = recorded || self.bodies == Bodies::Answers;
        if !known || !plain || !settled || bytes > ESTIMATED_MOST.min(intake.body_most) {
            return None;
        }
        let policy = self.gate.policy();
        // A model that no pool serves is refused by what is stated as well as by what is read.
        if let Some(selection) = policy.select(&caller.tenant, caller.wished_class.as_deref(), &model) {
            let most = policy.pools[selection.pool.index()].max_request_tokens;
            let too_large = most.cap().is_some_and(|most| input > most);
            if too_large || selection.model.as_str() != model {
                return None;
            }
        }
        let cap = max_output_tokens.map_or(Limit::Unlimited, |most| Limit::AtMost(Tokens::new(most)));
        Some(Stated { model, streamed, cap, input, bytes })
    }

    /// Whether Envoy will account for an answer with this head.
    pub(super) fn envoy_accounts(&self, head: &Head) -> bool {
        let says = |name, prefix: &str| {
            head.headers.get(name).and_then(|value| value.to_str().ok()).is_some_and(|value| value.starts_with(prefix))
        };
        let json = says(CONTENT_TYPE, "application/json");
        let small = number(&head.headers, &CONTENT_LENGTH).is_none_or(|length| length <= READ_MOST);
        self.account == Account::Envoys
            && self.bodies == Bodies::Recorded
            && head.status.is_success()
            && (!head.headers.contains_key(CONTENT_ENCODING) || says(CONTENT_ENCODING, "identity"))
            && (says(CONTENT_TYPE, "text/event-stream") || (json && small))
    }

    /// An answer has ended, and with it came what Envoy says.
    pub(super) fn note_record(&mut self, vouched: &Vouched) {
        let by_itself = self.reports_by_itself || self.account == Account::Envoys;
        if let Stage::Answering(_) = self.stage
            && by_itself
            && let Some(kind) = self.kind.take()
        {
            let half = matches!(Spent::recorded(&vouched.0), Spent::Nothing | Spent::Output { .. });
            self.trust.saw(kind, !half);
        }
    }

    /// The conversation is over. An answer that Envoy was to account for and has not will be read the next time.
    pub(super) fn note_unrecorded(&mut self) {
        if self.account == Account::Envoys
            && let Stage::Answering(_) = self.stage
            && let Some(kind) = self.kind.take()
        {
            self.trust.saw(kind, false);
        }
    }

    /// An answer comes to a request that never came: it is said in the words of its path.
    pub(super) fn voice_of_unheard(&mut self, path: &str) {
        if let Stage::Fresh = self.stage {
            self.voice = Voice::of(path, &HeaderMap::new());
        }
    }
}

fn number(headers: &HeaderMap, name: &HeaderName) -> Option<u64> {
    headers.get(name)?.to_str().ok()?.parse().ok()
}
