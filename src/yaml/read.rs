//! Reading a file's text, with every way that can fail told as a mistake in that file.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use super::MAX_BYTES;
use super::mistake::{Mistake, Mistakes, Position};

/// The text of a file.
///
/// # Errors
/// When it cannot be read, is larger than [`MAX_BYTES`], or is not UTF-8.
pub fn read(path: &Path) -> Result<String, Mistakes> {
    let name = path.display().to_string();
    let mistake = |position, message| {
        Mistakes::from(Mistake { file: name.as_str().into(), position, path: String::new(), message })
    };
    let mut bytes = Vec::new();
    let limit = MAX_BYTES as u64 + 1;
    File::open(path)
        .and_then(|file| file.take(limit).read_to_end(&mut bytes))
        .map_err(|error| mistake(Position::START, format!("cannot be read: {error}")))?;
    if bytes.len() > MAX_BYTES {
        return Err(mistake(Position::START, format!("is larger than the {MAX_BYTES} bytes that are accepted")));
    }
    if bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]) {
        return Err(mistake(Position::START, "looks like UTF-16; save it as UTF-8".into()));
    }
    String::from_utf8(bytes).map_err(|error| {
        let good = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        mistake(end_of(&String::from_utf8_lossy(good)), "is not UTF-8 text from here on".into())
    })
}

/// The position just after a text.
fn end_of(text: &str) -> Position {
    let last_line = text.rsplit('\n').next().unwrap_or(text);
    Position { line: text.matches('\n').count() + 1, column: last_line.chars().count() + 1 }
}
