//! A mistake in a file: where it is, which key it is about, and what is wrong.

use std::fmt;
use std::sync::Arc;

/// The most mistakes kept; a file with more is told how many more there are.
pub(super) const MOST: usize = 100;
/// The longest excerpt of a file repeated in a message, in characters.
const EXCERPT_CHARS: usize = 60;

/// A place in a text. Both count from 1, columns in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// The line.
    pub line: usize,
    /// The column.
    pub column: usize,
}

impl Position {
    /// The beginning of a text.
    pub const START: Self = Self { line: 1, column: 1 };
}

/// One mistake in one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// The file, as it was named to us.
    pub file: Arc<str>,
    /// Where in it.
    pub position: Position,
    /// The key it is about, as in `pools[0].window`; empty for the whole file.
    pub path: String,
    /// What is wrong, and how to put it right.
    pub message: String,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Position { line, column } = self.position;
        write!(f, "{}:{line}:{column}: ", self.file)?;
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.message)
    }
}

/// Every mistake found, ordered by file and then by place. Shown one a line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mistakes {
    list: Vec<Mistake>,
    unlisted: usize,
}

impl std::error::Error for Mistakes {}

impl Mistakes {
    /// None yet.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    /// Adds one. Beyond a hundred they are only counted.
    pub fn push(&mut self, mistake: Mistake) {
        if self.list.len() < MOST {
            self.list.push(mistake);
        } else {
            self.unlisted += 1;
        }
    }

    /// Adds those of another file, after those already here.
    pub fn append(&mut self, others: Self) {
        self.unlisted += others.unlisted;
        others.list.into_iter().for_each(|mistake| self.push(mistake));
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// How many there are, those only counted included.
    #[must_use]
    pub fn count(&self) -> usize {
        self.list.len() + self.unlisted
    }

    /// Those that are listed.
    pub fn iter(&self) -> std::slice::Iter<'_, Mistake> {
        self.list.iter()
    }

    /// Nothing, or all of them in the order of the file.
    ///
    /// # Errors
    /// When there are any.
    pub fn into_result(self) -> Result<(), Self> {
        if self.is_empty() { Ok(()) } else { Err(self.sorted()) }
    }

    /// In the order of the file, files staying in the order in which they came.
    #[must_use]
    pub fn sorted(mut self) -> Self {
        let mut files: Vec<Arc<str>> = Vec::new();
        for mistake in &self.list {
            if !files.contains(&mistake.file) {
                files.push(Arc::clone(&mistake.file));
            }
        }
        self.list.sort_by_key(|mistake| (files.iter().position(|file| *file == mistake.file), mistake.position));
        self
    }
}

impl<'mistakes> IntoIterator for &'mistakes Mistakes {
    type Item = &'mistakes Mistake;
    type IntoIter = std::slice::Iter<'mistakes, Mistake>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl From<Mistake> for Mistakes {
    fn from(mistake: Mistake) -> Self {
        Self { list: vec![mistake], unlisted: 0 }
    }
}

impl fmt::Display for Mistakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, mistake) in self.list.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{mistake}")?;
        }
        if self.unlisted > 0 {
            write!(f, "\n... and {} more", self.unlisted)?;
        }
        Ok(())
    }
}

/// Text from a file as a message may repeat it: quoted, control characters escaped, cut when long.
#[must_use]
pub(crate) fn excerpt(text: &str) -> String {
    match text.char_indices().nth(EXCERPT_CHARS) {
        Some((end, _)) => format!("{:?}...", &text[..end]),
        None => format!("{text:?}"),
    }
}
