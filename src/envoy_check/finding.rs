//! What was found, and how it is told.

use std::fmt;
use std::sync::Arc;

use crate::yaml::Position;

use super::part::Part;
use super::rules::Rule;

/// The most findings that are listed.
const MOST: usize = 200;

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Requests fail, or get through undecided, or are charged wrongly.
    Error,
    /// They will where something happens that is to be expected.
    Warning,
    /// Good to know; it may be meant so.
    Note,
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Note => "note",
        })
    }
}

/// One thing that was found.
#[derive(Clone, Debug)]
pub struct Finding {
    /// Which rule found it: its level, what will go wrong, and the fix.
    pub rule: &'static Rule,
    /// The file.
    pub file: Arc<str>,
    /// Where in the file; for what is missing, where it would stand.
    pub position: Position,
    /// The way to it, as in `static_resources.clusters[0].circuit_breakers`.
    pub path: String,
    /// What is there, in a sentence about this place.
    pub found: String,
}

impl Finding {
    /// Where it is and what is there, in one line, as editors turn into a link.
    #[must_use]
    pub fn headline(&self) -> String {
        let Position { line, column } = self.position;
        let Rule { name, level, .. } = self.rule;
        let at = if self.path.is_empty() { String::new() } else { format!("{}: ", self.path) };
        format!("{}:{line}:{column}: {level}: {at}{} [{name}]", self.file, self.found)
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Rule { harm, fix, .. } = self.rule;
        write!(f, "{}\n    what goes wrong: {harm}\n    fix: {fix}", self.headline())
    }
}

/// Everything that was found in one file.
#[derive(Clone, Debug)]
pub struct Report {
    file: Arc<str>,
    findings: Vec<Finding>,
    unlisted: usize,
}

impl Report {
    pub(super) fn of(file: &str) -> Self {
        Self { file: file.into(), findings: Vec::new(), unlisted: 0 }
    }

    /// Adds a finding. The same said twice of one place, which two ways lead to, is said once.
    pub(super) fn add(&mut self, rule: &'static Rule, part: &Part<'_>, found: impl Into<String>) {
        let (position, path, found) = (part.position(), part.path().to_owned(), found.into());
        let same = |known: &Finding| known.rule == rule && known.path == path && known.found == found;
        if self.findings.iter().any(same) {
            return;
        }
        if self.findings.len() < MOST {
            self.findings.push(Finding { rule, file: Arc::clone(&self.file), position, path, found });
        } else if rule.level == Level::Error
            && let Some(milder) = self.findings.iter().rposition(|known| known.rule.level != Level::Error)
        {
            // No number of mild findings hides an error.
            self.unlisted += 1;
            self.findings[milder] = Finding { rule, file: Arc::clone(&self.file), position, path, found };
        } else {
            self.unlisted += 1;
        }
    }

    pub(super) fn sort(&mut self) {
        self.findings.sort_by_key(|finding| (finding.rule.level, finding.position));
    }

    /// The findings, the worst first, and then in the order of the file.
    pub fn iter(&self) -> std::slice::Iter<'_, Finding> {
        self.findings.iter()
    }

    /// How many were found and are not listed.
    #[must_use]
    pub fn unlisted(&self) -> usize {
        self.unlisted
    }

    /// How many of the listed are of a level.
    #[must_use]
    pub fn count(&self, level: Level) -> usize {
        self.findings.iter().filter(|finding| finding.rule.level == level).count()
    }

    /// Whether nothing found is an error.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.count(Level::Error) == 0
    }
}

impl<'report> IntoIterator for &'report Report {
    type Item = &'report Finding;
    type IntoIter = std::slice::Iter<'report, Finding>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}
