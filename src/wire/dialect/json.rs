//! Reads JSON members one at a time, so that a mistake can be named with its path.

use std::borrow::Cow;
use std::ops::Range;

use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

/// Why a body cannot be served.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// It does not say what it must; what and where.
    #[error("{0}")]
    Malformed(String),
    /// It asks for something that does not exist here.
    #[error("{0}")]
    Unsupported(String),
}

/// A member that is there, `null` included.
pub(super) fn present<'de, D: Deserializer<'de>>(from: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(from).map(Some)
}

pub(super) fn malformed(what: String) -> Unreadable {
    Unreadable::Malformed(what)
}

/// The member, unless it is absent or `null`.
pub(super) fn given(raw: Option<&RawValue>) -> Option<&RawValue> {
    raw.filter(|raw| raw.get() != "null")
}

/// Where in the text a member's value stands.
pub(super) fn span(text: &str, raw: &RawValue) -> Range<usize> {
    let start = raw.get().as_ptr() as usize - text.as_ptr() as usize;
    start..start + raw.get().len()
}

/// What kind of JSON value this is, in words.
pub(super) fn kind(raw: &RawValue) -> &'static str {
    match raw.get().as_bytes().first() {
        Some(b'{') => "an object",
        Some(b'[') => "an array",
        Some(b'"') => "a string",
        Some(b't' | b'f') => "a boolean",
        Some(b'n') => "null",
        _ => "a number",
    }
}

/// Reads a value as `T`, or says what it should have been.
pub(super) fn read<'a, T: Deserialize<'a>>(path: &str, raw: &'a RawValue, wanted: &str) -> Result<T, Unreadable> {
    serde_json::from_str(raw.get()).map_err(|error| {
        let found = kind(raw);
        if wanted == found {
            malformed(format!("{path}: {error}"))
        } else {
            malformed(format!("{path} must be {wanted}, not {found}"))
        }
    })
}

pub(super) fn string<'a>(path: &str, raw: &'a RawValue) -> Result<Cow<'a, str>, Unreadable> {
    #[derive(Deserialize)]
    struct Text<'a>(#[serde(borrow)] Cow<'a, str>);
    read::<Text<'_>>(path, raw, "a string").map(|text| text.0)
}

pub(super) fn flag(path: &str, raw: Option<&RawValue>) -> Result<bool, Unreadable> {
    given(raw).map_or(Ok(false), |raw| read(path, raw, "a boolean"))
}

pub(super) fn whole(path: &str, raw: &RawValue) -> Result<i128, Unreadable> {
    raw.get()
        .parse::<i128>()
        .map_err(|_| malformed(format!("{path} must be a whole number, not {}", shorten(raw.get()))))
}

/// At most some forty characters of what the client wrote, for a message.
pub(super) fn shorten(text: &str) -> String {
    const SHOWN: usize = 40;
    let end = text.floor_char_boundary(SHOWN);
    if end < text.len() { format!("{}…", &text[..end]) } else { text.to_owned() }
}
