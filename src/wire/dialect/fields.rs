//! The members all APIs have, read alike.

use std::num::NonZeroU32;
use std::ops::Range;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::costing::Effort;
use crate::units::{Limit, Tokens};

use super::json::{Unreadable, flag, given, kind, malformed, read, span, string, whole};

/// The longest model name that is looked at.
const MAX_MODEL_NAME: usize = 256;

/// The most answers that may be asked for at once, as OpenAI's API has it.
const MAX_CHOICES: u32 = 128;

/// The most prompts or inputs in one request.
const MAX_BATCH: usize = 65_536;

/// The body as text, where it may be a JSON object.
pub(super) fn object(body: &Bytes) -> Result<&str, Unreadable> {
    let text = std::str::from_utf8(body)
        .map_err(|error| malformed(format!("the body is not UTF-8 from byte {}", error.valid_up_to())))?;
    if !text.trim_start().starts_with('{') {
        return Err(malformed("the body must be a JSON object".into()));
    }
    Ok(text)
}

/// The body as text, and the members of it that a dialect looks at.
pub(super) fn form<'a, F: Deserialize<'a>>(body: &'a Bytes) -> Result<(&'a str, F), Unreadable> {
    let text = object(body)?;
    let form = serde_json::from_str(text).map_err(|error| malformed(format!("the body: {error}")))?;
    Ok((text, form))
}

/// Refuses what is to run when nobody waits for it.
pub(super) fn in_foreground(background: Option<&RawValue>) -> Result<(), Unreadable> {
    if flag("background", background)? {
        return Err(Unreadable::Unsupported(
            "background: true is not supported, since a request must be settled when its answer ends".into(),
        ));
    }
    Ok(())
}

/// The model's name and where it stands.
pub(super) fn model(text: &str, raw: Option<&RawValue>) -> Result<(String, Range<usize>), Unreadable> {
    let raw = given(raw).ok_or_else(|| malformed("model is missing".into()))?;
    let name = string("model", raw)?;
    if name.is_empty() || name.len() > MAX_MODEL_NAME {
        let length = name.len();
        return Err(malformed(format!("model must have 1 to {MAX_MODEL_NAME} bytes, not {length}")));
    }
    Ok((name.into_owned(), span(text, raw)))
}

/// The largest of the caps given, or `None` where there is none. `-1` is llama.cpp's word for no cap.
pub(super) fn cap(caps: &[(&str, Option<&RawValue>)]) -> Result<Option<Limit<Tokens>>, Unreadable> {
    let mut most = None;
    for (path, raw) in caps {
        let Some(raw) = given(*raw) else { continue };
        if whole(path, raw)? == -1 {
            return Ok(Some(Limit::Unlimited));
        }
        most = most.max(Some(tokens(path, raw)?));
    }
    Ok(most.map(Limit::AtMost))
}

/// A number of tokens.
pub(super) fn tokens(path: &str, raw: &RawValue) -> Result<Tokens, Unreadable> {
    match whole(path, raw)? {
        negative if negative < 0 => Err(malformed(format!("{path} must not be negative: {negative}"))),
        count => Ok(Tokens::new(u64::try_from(count).unwrap_or(u64::MAX))),
    }
}

/// A number of answers; one where nothing is said.
pub(super) fn choices(path: &str, raw: Option<&RawValue>) -> Result<NonZeroU32, Unreadable> {
    let Some(raw) = given(raw) else { return Ok(NonZeroU32::MIN) };
    let n = whole(path, raw)?;
    u32::try_from(n)
        .ok()
        .filter(|n| *n <= MAX_CHOICES)
        .and_then(NonZeroU32::new)
        .ok_or_else(|| malformed(format!("{path} must be between 1 and {MAX_CHOICES}, not {n}")))
}

/// An effort this build does not know is left to the upstream, and says nothing here.
pub(super) fn effort(path: &str, raw: Option<&RawValue>) -> Result<Effort, Unreadable> {
    let Some(raw) = given(raw) else { return Ok(Effort::Unstated) };
    Ok(Effort::named(&string(path, raw)?).unwrap_or_default())
}

/// An array whose length is between one and a bound.
pub(super) fn batch<'a>(path: &str, what: &str, raw: &'a RawValue) -> Result<Vec<&'a RawValue>, Unreadable> {
    let entries: Vec<&RawValue> = read(path, raw, "an array")?;
    if entries.is_empty() || entries.len() > MAX_BATCH {
        let count = entries.len();
        return Err(malformed(format!("{path} must have 1 to {MAX_BATCH} {what}, not {count}")));
    }
    Ok(entries)
}

/// One of a batch of prompts or inputs.
pub(super) enum Entry<'a> {
    /// Text.
    Text(std::borrow::Cow<'a, str>),
    /// So many tokens, already encoded.
    Tokens(Tokens),
    /// Something else, measured as JSON.
    Json(&'a RawValue),
}

/// Reads what OpenAI calls a string, an array of strings, an array of tokens or an array of arrays of tokens.
pub(super) fn entries<'a>(path: &str, raw: &'a RawValue) -> Result<Vec<Entry<'a>>, Unreadable> {
    match kind(raw) {
        "a string" => return Ok(vec![Entry::Text(string(path, raw)?)]),
        "an array" => {}
        found => return Err(malformed(format!("{path} must be a string or an array, not {found}"))),
    }
    if raw.get()[1..].trim_start().starts_with(|first: char| first.is_ascii_digit()) {
        return Ok(vec![Entry::Tokens(encoded(path, raw)?)]);
    }
    let parts = batch(path, "entries", raw)?;
    let entry = |(at, part): (usize, &&'a RawValue)| {
        let path = format!("{path}[{at}]");
        Ok(match kind(part) {
            "a string" => Entry::Text(string(&path, part)?),
            "an array" => Entry::Tokens(encoded(&path, part)?),
            "an object" => Entry::Json(part),
            found => return Err(malformed(format!("{path} must be a string or an array of tokens, not {found}"))),
        })
    };
    parts.iter().enumerate().map(entry).collect()
}

fn encoded(path: &str, raw: &RawValue) -> Result<Tokens, Unreadable> {
    read::<Vec<u32>>(path, raw, "an array").map(|ids| Tokens::new(ids.len() as u64))
}
