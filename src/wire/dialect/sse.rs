//! Splits a stream of server-sent events, wherever the network cut it.
//!
//! Follows the HTML standard, section 9.2.6: lines end with LF, CRLF or CR; a blank line ends an event; `data` lines
//! of an event are joined with LF; a line that starts with a colon is a comment. Every event comes out with the very
//! bytes it came in with, so that what is passed on is what was received.
//!
//! Memory is bounded: an event that grows beyond [`Splitter::MAX_EVENT`] comes out in opaque pieces, unread, until
//! it ends. A blank line that ends in CR waits for the next byte, since an LF may belong to it.

use bytes::Bytes;

/// A part of the stream, in order and without gaps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// A whole event.
    Event {
        /// As received, the blank line included.
        raw: Bytes,
        /// Its data; `None` when it has none, as with comments that keep a connection alive.
        data: Option<String>,
    },
    /// A part of an event too large to be held.
    Opaque(Bytes),
}

/// Splits a stream into events.
#[derive(Debug, Default)]
pub struct Splitter {
    held: Vec<u8>,
    /// Whether the event under way has outgrown the bound.
    oversized: bool,
    line: Line,
}

/// Where in a line the next byte falls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Line {
    /// At its start.
    #[default]
    Start,
    /// Inside it.
    Inside,
    /// Behind a CR that ended a line with something in it.
    AfterCr,
    /// Behind a CR that ended a blank line, and with it the event.
    AfterBlankCr,
}

impl Splitter {
    /// The largest event that is read.
    pub const MAX_EVENT: usize = 1024 * 1024;

    /// Takes the next bytes and gives out what they complete.
    pub fn push(&mut self, chunk: &[u8]) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let mut from = 0;
        for (at, byte) in chunk.iter().enumerate() {
            if self.line == Line::AfterBlankCr {
                let end = if *byte == b'\n' { at + 1 } else { at };
                self.end_event(&chunk[from..end], &mut pieces);
                from = end;
                if *byte == b'\n' {
                    continue;
                }
            }
            match (self.line, byte) {
                (Line::Start, b'\n') => {
                    self.end_event(&chunk[from..=at], &mut pieces);
                    from = at + 1;
                }
                (Line::Start, b'\r') => self.line = Line::AfterBlankCr,
                (Line::Inside, b'\n') | (Line::AfterCr, b'\n') => self.line = Line::Start,
                (Line::Inside, b'\r') => self.line = Line::AfterCr,
                (Line::AfterCr, b'\r') => self.line = Line::AfterBlankCr,
                _ => self.line = Line::Inside,
            }
        }
        self.hold(&chunk[from..], &mut pieces);
        pieces
    }

    /// Ends the stream: what is held comes out, read as an event although its blank line is missing.
    pub fn finish(&mut self) -> Option<Piece> {
        let mut pieces = Vec::new();
        if !self.held.is_empty() {
            self.end_event(&[], &mut pieces);
        }
        pieces.pop()
    }

    fn hold(&mut self, bytes: &[u8], pieces: &mut Vec<Piece>) {
        if self.oversized || self.held.len() + bytes.len() > Self::MAX_EVENT {
            self.oversized = true;
            let mut opaque = std::mem::take(&mut self.held);
            opaque.extend_from_slice(bytes);
            if !opaque.is_empty() {
                pieces.push(Piece::Opaque(opaque.into()));
            }
        } else {
            self.held.extend_from_slice(bytes);
        }
    }

    fn end_event(&mut self, rest: &[u8], pieces: &mut Vec<Piece>) {
        self.hold(rest, pieces);
        self.line = Line::Start;
        if !std::mem::take(&mut self.oversized) {
            let raw = std::mem::take(&mut self.held);
            let data = data_of(&raw);
            pieces.push(Piece::Event { raw: raw.into(), data });
        }
    }
}

/// The data lines of an event, joined.
fn data_of(raw: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(raw);
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    let mut data: Option<String> = None;
    for line in text.split(['\n', '\r']) {
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        if field == "data" {
            let value = value.strip_prefix(' ').unwrap_or(value);
            match &mut data {
                Some(data) => {
                    data.push('\n');
                    data.push_str(value);
                }
                None => data = Some(value.to_owned()),
            }
        }
    }
    data
}

#[cfg(test)]
mod tests {
    use super::{Piece, Splitter};

    /// Everything that comes out of a stream cut as told, as (raw, data).
    fn split(parts: &[&[u8]]) -> Vec<(Vec<u8>, Option<String>)> {
        let mut splitter = Splitter::default();
        let mut pieces: Vec<Piece> = parts.iter().flat_map(|part| splitter.push(part)).collect();
        pieces.extend(splitter.finish());
        pieces
            .into_iter()
            .map(|piece| match piece {
                Piece::Event { raw, data } => (raw.to_vec(), data),
                Piece::Opaque(raw) => (raw.to_vec(), Some("opaque".into())),
            })
            .collect()
    }

    const STREAM: &str = ": hello\n\ndata: {\"a\":1}\n\nevent: x\r\ndata:two\r\ndata: lines é\r\n\r\ndata: cr\r\rid: 7\n\n\n\ndata: [DONE]\n\ndata: tail";

    #[test]
    fn events_come_out_as_they_went_in() {
        let events = split(&[STREAM.as_bytes()]);
        let data: Vec<Option<&str>> = events.iter().map(|(_, data)| data.as_deref()).collect();
        let expected =
            [None, Some("{\"a\":1}"), Some("two\nlines é"), Some("cr"), None, None, None, Some("[DONE]"), Some("tail")];
        // The two blank lines behind `id: 7` are events without anything in them.
        assert_eq!(data[..5], expected[..5]);
        assert_eq!(data[data.len() - 2..], expected[expected.len() - 2..]);
        let raw: Vec<u8> = events.iter().flat_map(|(raw, _)| raw.clone()).collect();
        assert_eq!(raw, STREAM.as_bytes());
        assert_eq!(events[2].0, "event: x\r\ndata:two\r\ndata: lines é\r\n\r\n".as_bytes());
    }

    #[test]
    fn cuts_make_no_difference() {
        let whole = split(&[STREAM.as_bytes()]);
        let bytes = STREAM.as_bytes();
        for at in 0..=bytes.len() {
            assert_eq!(split(&[&bytes[..at], &bytes[at..]]), whole, "cut at {at}");
        }
        let single: Vec<&[u8]> = bytes.chunks(1).collect();
        assert_eq!(split(&single), whole);
    }

    #[test]
    fn an_oversized_event_passes_through_unread_and_the_next_is_read() {
        let large = format!("data: {}\n\n", "x".repeat(Splitter::MAX_EVENT));
        let mut splitter = Splitter::default();
        let mut out = Vec::new();
        let mut read = Vec::new();
        for part in format!("{large}data: next\n\n").as_bytes().chunks(10_000) {
            for piece in splitter.push(part) {
                match piece {
                    Piece::Opaque(raw) => out.extend_from_slice(&raw),
                    Piece::Event { raw, data } => {
                        out.extend_from_slice(&raw);
                        read.push(data);
                    }
                }
            }
            assert!(splitter.held.len() <= Splitter::MAX_EVENT);
        }
        assert_eq!(out, format!("{large}data: next\n\n").into_bytes());
        assert_eq!(read, [Some("next".to_owned())]);
    }
}
