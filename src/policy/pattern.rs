//! Name patterns: literal text with `*` standing for any run of characters.

use std::fmt;

use crate::units::ParseUnitError;

/// A name pattern, matched against the whole name, case-sensitively.
#[derive(Clone, PartialEq, Eq)]
pub struct Pattern {
    text: String,
}

impl Pattern {
    /// From its written form.
    ///
    /// # Errors
    /// When it is empty.
    pub fn new(text: &str) -> Result<Self, ParseUnitError> {
        if text.is_empty() {
            return Err(ParseUnitError("a pattern must not be empty; write \"*\" to match everything".into()));
        }
        Ok(Self { text: text.to_owned() })
    }

    /// The pattern that matches everything.
    #[must_use]
    pub fn everything() -> Self {
        Self { text: "*".into() }
    }

    /// Whether it matches every name.
    #[must_use]
    pub fn is_everything(&self) -> bool {
        self.text.bytes().all(|byte| byte == b'*')
    }

    /// Whether `name` matches.
    ///
    /// Greedy with one backtrack point, so the time is at most pattern length times name length whatever the
    /// pattern.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        let (pattern, name) = (self.text.as_bytes(), name.as_bytes());
        let (mut p, mut n) = (0, 0);
        let mut star: Option<(usize, usize)> = None;
        while n < name.len() {
            if p < pattern.len() && pattern[p] == b'*' {
                star = Some((p, n));
                p += 1;
            } else if p < pattern.len() && pattern[p] == name[n] {
                p += 1;
                n += 1;
            } else if let Some((at, from)) = star {
                star = Some((at, from + 1));
                p = at + 1;
                n = from + 1;
            } else {
                return false;
            }
        }
        pattern[p..].iter().all(|byte| *byte == b'*')
    }

    /// The written form.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::Pattern;

    #[test]
    fn stars_stand_for_any_run_of_characters() {
        let hit = |pattern: &str, name: &str| Pattern::new(pattern).expect("valid").matches(name);
        assert!(hit("*", "") && hit("*", "anything"));
        assert!(hit("llama-70b*", "llama-70b-instruct") && !hit("llama-70b*", "llama-7b"));
        assert!(hit("*-mini*", "gpt-4o-mini-2024") && hit("a*b*c", "a-b-b-c") && !hit("a*b*c", "a-b"));
        assert!(hit("acme", "acme") && !hit("acme", "acme2") && !hit("acme", "ACME"));
    }

    #[test]
    fn a_hostile_pattern_is_not_slow() {
        let pattern = format!("{}b", "*a".repeat(200));
        assert!(!Pattern::new(&pattern).expect("valid").matches(&"a".repeat(5_000)));
    }
}
