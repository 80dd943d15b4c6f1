//! YAML text to a typed value, with every mistake told at once and each at its line and column.
//!
//! A file is read in three steps. `parse` turns the text into a tree in which every node knows where it
//! stands. `check` walks that tree beside the JSON Schema of the wanted type and collects everything that does
//! not fit: unknown keys (with the nearest known one), missing keys, wrong types, values outside a list.
//! Only then does serde make the value, so its own stop-at-the-first-error manner is never what a person
//! sees. The schema comes from the same structs as the value and the manual, so the three cannot disagree.
//!
//! The language accepted is a strict part of YAML 1.2: one document, the core schema's scalars, no anchors,
//! aliases, merge keys or tags, no duplicate keys, no key without a value, no number that cannot be held
//! exactly as written or is not finite. Size, depth and number of nodes are bounded, so that no file can take
//! more than a moment or a few megabytes.
//!
//! Files that are not ours are read as a [`Document`]: larger, with anchors and aliases, and without a schema, since
//! only a part of what they say concerns us.
//!
//! A schema may say under [`LATER`] what is known by name but not built: keys of an object, or values of a
//! scalar. They are refused as such, rather than as typos. Under [`REFUSED`] it may give the answer to a key that
//! people are likely to try.

mod check;
mod document;
mod mistake;
mod parse;
mod read;
mod scalar;
mod trail;
mod tree;

#[cfg(test)]
mod tests;

use schemars::JsonSchema;
use serde::de::DeserializeOwned;

pub(crate) use check::words::did_you_mean;
pub use document::{Document, MOST_BYTES, Part};
pub use mistake::{Mistake, Mistakes, Position};
pub use read::read;
pub use tree::Positions;

/// The schema extension that lists keys or values known by name but not available in this build.
pub const LATER: &str = "x-later";
/// The schema extension that lists keys refused for a reason of their own: each with what to do instead.
pub const REFUSED: &str = "x-refused";

/// The largest text accepted, in bytes.
pub const MAX_BYTES: usize = 1 << 20;
/// The deepest nesting accepted.
pub const MAX_DEPTH: usize = 64;
/// The most nodes (scalars, lists and mappings) accepted.
pub const MAX_NODES: usize = 200_000;
/// The longest key accepted, in characters.
pub const MAX_KEY_CHARS: usize = 256;

/// A value and where each part of it stands, for checks that a schema cannot express.
#[derive(Debug)]
pub struct Loaded<T> {
    /// The value.
    pub value: T,
    /// Where each part of it stands in the text.
    pub positions: Positions,
}

/// A value as far as its text can be understood, and what is wrong with the text.
#[derive(Debug)]
pub struct Partly<T> {
    /// The value. Where there are mistakes, it is without the keys and scalars that are at fault, and only here if
    /// no list or mapping is and what is left makes a value: good for finding more mistakes, and for nothing else.
    pub loaded: Option<Loaded<T>>,
    /// The mistakes.
    pub mistakes: Mistakes,
}

/// Reads a typed value from YAML text. `source_name` is the file name that mistakes are reported under.
///
/// # Errors
/// All mistakes found, in the order in which they stand in the text.
pub fn load<T: DeserializeOwned + JsonSchema>(source_name: &str, text: &str) -> Result<Loaded<T>, Mistakes> {
    let Partly { loaded, mistakes } = load_partly(source_name, text);
    mistakes.into_result()?;
    Ok(loaded.expect("there is a value or a mistake"))
}

/// Like [`load`], for a caller with checks of its own to run on whatever can be understood, so that those mistakes
/// and these can be told together.
#[must_use]
pub fn load_partly<T: DeserializeOwned + JsonSchema>(source_name: &str, text: &str) -> Partly<T> {
    let parse::Parsed { mut positions, mut reporter } = match parse::parse(source_name, text, parse::Accepted::OURS) {
        Ok(parsed) => parsed,
        Err(mistakes) => return Partly { loaded: None, mistakes },
    };
    let schema = schemars::schema_for!(T);
    let is_whole = check::check(schema.as_value(), positions.root_mut(), &mut reporter);
    let mut mistakes = reporter.into_mistakes();
    if !is_whole {
        return Partly { loaded: None, mistakes };
    }
    match serde_path_to_error::deserialize(positions.root().to_json()) {
        Ok(value) => Partly { loaded: Some(Loaded { value, positions }), mistakes },
        Err(error) => {
            // After other mistakes it is but their echo.
            if mistakes.is_empty() {
                let pointer = tree::pointer_of(error.path());
                mistakes.push(positions.mistake(&pointer, error.into_inner().to_string()));
            }
            Partly { loaded: None, mistakes }
        }
    }
}
