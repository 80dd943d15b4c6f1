//! The texts of a prompt, as far as they will be counted.
//!
//! Up to a bound everything is kept, and the count is exact. Beyond it a sample is: the texts are cut into pieces
//! ([`cut`]), and each piece kept stands for two of them, then four, and so on, so that what is kept is spread over all
//! of the texts and stays below the bound. Whoever begins with a quarter of a megabyte of blanks gains nothing. Which
//! piece of a group is kept is left to chance, made from all that was read so far, so the same texts give the same
//! sample and nobody can place what is dense between the pieces that are looked at.

use std::hash::{DefaultHasher, Hasher};

use crate::units::Bytes;

/// The longest piece, which is also the longest text given to the tokenizer at once.
const PIECE: usize = 2 * 1024;

/// How far back from a cut a space is looked for.
const LOOK_BACK: usize = 256;

/// Texts to be counted, or a sample of them.
///
/// Each text is a piece of its own at least: tokens never span two messages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Text {
    pieces: Vec<String>,
    /// How many bytes the pieces have.
    kept: usize,
    /// How many bytes all texts have.
    total: u64,
    /// A piece kept stands for two to the power of this.
    level: u32,
    /// The newest pieces, too few yet for one of them to be kept.
    group: Option<Group>,
    chance: u64,
}

/// Some pieces, and the one that stands for them.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Group {
    piece: String,
    of: u64,
}

impl Text {
    /// Adds a text, keeping so many bytes in all at most, give or take a piece.
    pub fn push(&mut self, text: &str, bound: usize) {
        let mut rest = text;
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(cut(rest));
            self.add(piece, bound);
            rest = after;
        }
    }

    fn add(&mut self, piece: &str, bound: usize) {
        self.total = self.total.saturating_add(piece.len() as u64);
        self.stir(piece);
        let group = match self.group.take() {
            None => Group { piece: piece.to_owned(), of: 1 },
            Some(Group { of, .. }) if self.chance.is_multiple_of(of + 1) => {
                Group { piece: piece.to_owned(), of: of + 1 }
            }
            Some(group) => Group { of: group.of + 1, ..group },
        };
        if group.of < 1 << self.level {
            self.group = Some(group);
            return;
        }
        self.kept += group.piece.len();
        self.pieces.push(group.piece);
        if self.kept > bound && self.pieces.len() > 1 {
            self.thin();
        }
    }

    /// Keeps one of every two pieces.
    fn thin(&mut self) {
        let mut pieces = std::mem::take(&mut self.pieces).into_iter();
        while let Some(first) = pieces.next() {
            let Some(second) = pieces.next() else {
                self.group = Some(Group { piece: first, of: 1 << self.level });
                break;
            };
            self.stir("");
            self.pieces.push(if self.chance.is_multiple_of(2) { first } else { second });
        }
        self.level += 1;
        self.kept = self.pieces.iter().map(String::len).sum();
    }

    fn stir(&mut self, piece: &str) {
        let mut hasher = DefaultHasher::new();
        hasher.write_u64(self.chance);
        hasher.write(piece.as_bytes());
        self.chance = hasher.finish();
    }

    /// The pieces kept.
    pub fn pieces(&self) -> impl Iterator<Item = &str> {
        self.pieces.iter().chain(self.group.as_ref().map(|group| &group.piece)).map(String::as_str)
    }

    /// How much is kept.
    #[must_use]
    pub fn kept(&self) -> Bytes {
        let group = self.group.as_ref().map_or(0, |group| group.piece.len());
        Bytes::new((self.kept + group) as u64)
    }

    /// How much was not kept.
    #[must_use]
    pub fn beyond(&self) -> Bytes {
        Bytes::new(self.total.saturating_sub(self.kept().get()))
    }
}

/// Where to cut the next piece off: all of a short text, else in front of the last single space near the bound,
/// since a token never has a space inside after a letter; else at the bound.
pub(super) fn cut(text: &str) -> usize {
    if text.len() <= PIECE {
        return text.len();
    }
    let bytes = text.as_bytes();
    (PIECE - LOOK_BACK..PIECE)
        .rev()
        .find(|at| bytes[*at] == b' ' && bytes[*at - 1].is_ascii_alphanumeric())
        .unwrap_or_else(|| text.floor_char_boundary(PIECE))
}

#[cfg(test)]
mod tests {
    use super::{PIECE, Text};
    use crate::units::Bytes;

    #[test]
    fn texts_below_the_bound_are_kept_as_they_are() {
        let mut text = Text::default();
        text.push("abcd", 10);
        text.push("é€x", 10);
        assert_eq!(text.pieces().collect::<Vec<_>>(), ["abcd", "é€x"]);
        assert_eq!((text.kept(), text.beyond()), (Bytes::new(10), Bytes::ZERO));
    }

    #[test]
    fn beyond_the_bound_the_pieces_kept_are_spread_over_everything() {
        let bound = 64 * PIECE;
        let mut text = Text::default();
        for part in 0..1_000_u32 {
            text.push(&char::from_u32(0x4e00 + part).expect("a character").to_string().repeat(PIECE / 3), bound);
            let kept = usize::try_from(text.kept().get()).expect("small");
            assert!(kept <= bound + PIECE, "{kept}");
        }
        assert_eq!(text.kept().get() + text.beyond().get(), 1_000 * (PIECE as u64 / 3 * 3));
        let mut tenths = [0; 10];
        for piece in text.pieces() {
            let part = u32::from(piece.chars().next().expect("not empty")) - 0x4e00;
            tenths[usize::try_from(part / 100).expect("small")] += 1;
        }
        assert!(tenths.iter().all(|pieces| (2..=8).contains(pieces)), "{tenths:?}");
    }
}
