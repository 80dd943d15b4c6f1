//! A request that was read, the body that goes upstream in its place, and how its answer is to be read.
//!
//! An edit replaces exactly the bytes of one member, so number formats, key order and members we do not know
//! survive.

use std::num::NonZeroU32;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::costing::{Call, Encoding};

use super::fields;
use super::json::present;
use super::observer::Observer;
use super::reply::Reply;
use super::{Dialect, anthropic, gemini, openai};

/// A body, read.
#[derive(Clone, Debug)]
pub struct Parsed {
    /// What it asks for.
    pub call: Call,
    /// How its answer is to be read.
    pub answer: AnswerForm,
    /// Where the model's name stands in the body; nothing where it stands in the path.
    pub(super) model_at: Option<Range<usize>>,
    pub(super) edits: Vec<Edit>,
}

/// Some bytes of a body and what stands in their place.
#[derive(Clone, Debug)]
pub(super) struct Edit {
    pub(super) at: Range<usize>,
    pub(super) with: String,
}

impl Parsed {
    /// The body for the upstream: with the model's name after aliases, and with usage asked for where it must be.
    #[must_use]
    pub fn forward(&self, body: &Bytes, model: &str) -> Bytes {
        let mut edits = self.edits.clone();
        if model != self.call.model
            && let Some(at) = self.model_at.clone()
        {
            edits.push(Edit { at, with: serde_json::Value::from(model).to_string() });
        }
        if edits.is_empty() {
            return body.clone();
        }
        replace(body, edits)
    }
}

fn replace(body: &Bytes, mut edits: Vec<Edit>) -> Bytes {
    edits.sort_by_key(|edit| edit.at.start);
    let mut edited = Vec::with_capacity(body.len() + 64);
    let mut from = 0;
    for edit in edits {
        edited.extend_from_slice(&body[from..edit.at.start]);
        edited.extend_from_slice(edit.with.as_bytes());
        from = edit.at.end;
    }
    edited.extend_from_slice(&body[from..]);
    edited.into()
}

/// The model a body names, where it is JSON and names one. For requests that are routed and not metered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// Its name, before aliases.
    pub model: String,
    at: Range<usize>,
}

impl Named {
    /// Looks for it.
    #[must_use]
    pub fn read(body: &Bytes) -> Option<Self> {
        #[derive(Deserialize)]
        struct Form<'a> {
            #[serde(borrow, default, deserialize_with = "present")]
            model: Option<&'a RawValue>,
        }
        let text = fields::object(body).ok()?;
        let form: Form<'_> = serde_json::from_str(text).ok()?;
        let (model, at) = fields::model(text, form.model).ok()?;
        Some(Self { model, at })
    }

    /// The body with another name in its place.
    #[must_use]
    pub fn forward(&self, body: &Bytes, model: &str) -> Bytes {
        if model == self.model {
            return body.clone();
        }
        replace(body, vec![Edit { at: self.at.clone(), with: serde_json::Value::from(model).to_string() }])
    }
}

/// How the answer to one request is to be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnswerForm {
    pub(super) dialect: Dialect,
    /// Whether usage was not asked for by the client and is to be hidden from it.
    pub(super) hide_usage: bool,
    /// What the answers begin with although it was not produced.
    pub(super) echo: Option<Echo>,
}

/// Answers that repeat their prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Echo {
    /// How many bytes each prompt has.
    pub(super) prompts: Arc<[usize]>,
    /// How many answers each prompt gets.
    pub(super) each: NonZeroU32,
}

impl Echo {
    /// How many bytes of an answer are not output.
    pub(super) fn length(&self, index: usize) -> usize {
        let each = usize::try_from(self.each.get()).unwrap_or(usize::MAX);
        self.prompts.get(index / each).copied().unwrap_or(0)
    }
}

impl AnswerForm {
    /// The answer to a plain request.
    #[must_use]
    pub fn new(dialect: Dialect, hide_usage: bool) -> Self {
        Self { dialect, hide_usage, echo: None }
    }

    /// Watches a streamed answer.
    #[must_use]
    pub fn observer(&self, encoding: Encoding) -> Observer {
        Observer::new(self.clone(), encoding)
    }

    /// Reads a whole answer.
    #[must_use]
    pub fn read(&self, body: &[u8], encoding: Encoding) -> Reply {
        match self.dialect {
            Dialect::OpenAiChat | Dialect::OpenAiCompletions => openai::reply::read(body, encoding, self.echo.as_ref()),
            Dialect::OpenAiEmbeddings => openai::embeddings::read(body),
            Dialect::OpenAiResponses => openai::responses::read(body, encoding),
            Dialect::AnthropicMessages => anthropic::read(body, encoding),
            Dialect::Gemini => gemini::read(body, encoding),
        }
    }

    /// Whether the client sees less of a stream than the upstream sends.
    #[must_use]
    pub fn hides(&self) -> bool {
        self.hide_usage
    }
}
