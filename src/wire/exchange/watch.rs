//! Reads an answer while it passes: what it used, and how it ended.
//!
//! A stream is read event by event, an answer in one piece is copied up to a bound and read at its end, and what is
//! compressed only passes. What an upstream reports counts as the final word only for an answer that came to its end;
//! a client that leaves early pays for the more of what was told in passing and what was counted.

use bytes::Bytes;
use http::StatusCode;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap};

use crate::admission::{Heard, Outcome, Reported};
use crate::costing::Encoding;
use crate::observe::Source;
use crate::shell::Permit;
use crate::units::{Tokens, Usage};

use super::super::dialect::{AnswerForm, Observer, Reply, StreamEnd};
use super::told::Told;

/// How much of a whole answer is kept to read its usage.
const WHOLE_MOST: usize = 4 * 1024 * 1024;

/// How an answer is watched.
pub(super) enum Watch {
    /// Event by event.
    Stream(Box<Observer>),
    /// A copy is kept and read at the end.
    Whole(Copy),
    /// An error of the upstream's.
    Failed(Copy),
    /// It is only passed on; the service tells what it costs.
    Told {
        /// What it tells.
        told: Told,
        /// How far the answer has come.
        stage: Stage,
    },
    /// It cannot be read, only passed on, or does not come here at all: nothing is known of it unless somebody else tells.
    Unreadable,
}

/// How far an answer has come whose cost is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// It is under way.
    Open,
    /// It came to its end.
    Ended,
    /// It says that the call failed.
    Failed,
}

/// A copy of an answer, up to a bound.
pub(super) struct Copy {
    held: Vec<u8>,
    complete: bool,
    form: AnswerForm,
    encoding: Encoding,
}

impl Copy {
    fn new(form: AnswerForm, encoding: Encoding) -> Self {
        Self { held: Vec::new(), complete: true, form, encoding }
    }

    fn add(&mut self, data: &[u8]) {
        self.complete &= self.held.len() + data.len() <= WHOLE_MOST;
        if self.complete {
            self.held.extend_from_slice(data);
        } else {
            self.held = Vec::new();
        }
    }

    fn reply(&self) -> Reply {
        if self.complete { self.form.read(&self.held, self.encoding) } else { Reply::Unreadable }
    }
}

impl Watch {
    /// How an answer is watched, by what its head says it is.
    pub(super) fn of(status: StatusCode, headers: &HeaderMap, encoding: Encoding, form: AnswerForm) -> Self {
        let says = |name, prefix: &str| {
            headers.get(name).and_then(|value| value.to_str().ok()).is_some_and(|value| value.starts_with(prefix))
        };
        if !status.is_success() {
            Self::Failed(Copy::new(form, Encoding::O200k))
        } else if headers.contains_key(CONTENT_ENCODING) && !says(CONTENT_ENCODING, "identity") {
            Self::Unreadable
        } else if says(CONTENT_TYPE, "text/event-stream") {
            Self::Stream(Box::new(form.observer(encoding)))
        } else {
            Self::Whole(Copy::new(form, encoding))
        }
    }

    /// An answer whose cost the service tells.
    pub(super) fn told(told: Told) -> Self {
        Self::Told { told, stage: Stage::Open }
    }

    /// Takes note of how a call went whose cost is told.
    pub(super) fn judge(&mut self, heard: Option<Heard>) {
        if let (Self::Told { stage, .. }, Some(heard)) = (self, heard)
            && heard.status.get() >= StatusCode::BAD_REQUEST.as_u16()
        {
            *stage = Stage::Failed;
        }
    }

    /// Takes note of the next bytes and returns what the client is to see.
    pub(super) fn push(&mut self, data: Bytes) -> Bytes {
        match self {
            Self::Stream(observer) => observer.push(&data),
            Self::Whole(copy) | Self::Failed(copy) => {
                copy.add(&data);
                data
            }
            Self::Told { .. } | Self::Unreadable => data,
        }
    }

    /// What was held back and is to be seen after all, now that nothing more comes.
    pub(super) fn finish(&mut self) -> Bytes {
        match self {
            Self::Stream(observer) => observer.finish(),
            Self::Told { stage, .. } => {
                if *stage == Stage::Open {
                    *stage = Stage::Ended;
                }
                Bytes::new()
            }
            Self::Whole(_) | Self::Failed(_) | Self::Unreadable => Bytes::new(),
        }
    }

    pub(super) fn output_so_far(&self) -> Tokens {
        match self {
            Self::Stream(observer) => observer.output_so_far(),
            Self::Told { told, .. } => told.output(),
            Self::Whole(_) | Self::Failed(_) | Self::Unreadable => Tokens::ZERO,
        }
    }

    /// Whether the whole answer was produced although its body has not ended.
    pub(super) fn is_whole(&self) -> bool {
        matches!(self, Self::Stream(observer) if matches!(observer.end(), StreamEnd::Whole | StreamEnd::Final))
    }

    /// Whether its final event has come, so that the client lacks nothing any more.
    pub(super) fn is_final(&self) -> bool {
        matches!(self, Self::Stream(observer) if observer.end() == StreamEnd::Final)
    }

    /// Whether it is a stream that is not at its end.
    pub(super) fn is_open(&self) -> bool {
        matches!(self, Self::Stream(observer) if observer.end() == StreamEnd::Open)
    }

    /// What is known of the usage.
    pub(super) fn usage(&mut self, permit: &Permit) -> Reported {
        match self {
            Self::Stream(observer) => reported(observer, permit),
            Self::Whole(copy) => match copy.reply() {
                Reply::Reported(usage) => Reported::Final(usage),
                Reply::Counted { visible, reasoning } => permit.counted(visible, reasoning),
                Reply::Disbelieved(counted) => {
                    permit.disbelieved();
                    counted.map_or(Reported::Nothing, |(visible, reasoning)| permit.counted(visible, reasoning))
                }
                Reply::Unreadable => Reported::Nothing,
            },
            Self::Failed(copy) => match copy.reply() {
                Reply::Reported(usage) => Reported::Final(usage),
                Reply::Disbelieved(_) => {
                    permit.disbelieved();
                    Reported::Nothing
                }
                Reply::Counted { .. } | Reply::Unreadable => Reported::Nothing,
            },
            Self::Told { told, stage } => match (told.usage(), *stage) {
                (Some(usage), Stage::Ended | Stage::Failed) => Reported::Final(usage),
                (Some(usage), Stage::Open) => Reported::Counted(usage),
                (None, _) if told.output() > Tokens::ZERO => permit.counted(told.output(), Tokens::ZERO),
                (None, _) => Reported::Nothing,
            },
            Self::Unreadable => Reported::Nothing,
        }
    }

    /// From where the usage is known.
    pub(super) fn source(&self, usage: &Reported) -> Source {
        match (self, usage) {
            // An error that tells no usage had none.
            (_, Reported::Final(_)) | (Self::Failed(_), _) => Source::Parsed,
            (_, Reported::Counted(_) | Reported::Nothing) => Source::Estimated,
        }
    }

    /// How a body that ended by itself ended.
    pub(super) fn outcome(&self) -> Outcome {
        match self {
            Self::Stream(_) if !self.is_whole() => Outcome::UpstreamFailed,
            Self::Failed(_) | Self::Told { stage: Stage::Failed, .. } => Outcome::UpstreamFailed,
            Self::Stream(_) | Self::Whole(_) | Self::Told { .. } | Self::Unreadable => Outcome::Completed,
        }
    }
}

/// What a stream reported, where it came to its end. Else the more of what it reported on the way and what was counted
/// of it, with the input as reported, else as expected: what an upstream says in passing is no final word, and whoever
/// leaves early is not to pay less for it.
fn reported(observer: &mut Observer, permit: &Permit) -> Reported {
    if observer.disbelieved() {
        permit.disbelieved();
    }
    if observer.end() != StreamEnd::Open
        && let Some(usage) = observer.usage()
    {
        return Reported::Final(usage);
    }
    let (visible, reasoning) = observer.counted();
    match (observer.told(), observer.input()) {
        (Some(told), _) if told.output() >= visible + reasoning => Reported::Counted(told),
        (_, Some(input)) => Reported::Counted(Usage { visible_output: visible, reasoning_output: reasoning, ..input }),
        (_, None) => permit.counted(visible, reasoning),
    }
}
