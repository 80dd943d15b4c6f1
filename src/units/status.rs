//! Statuses of HTTP answers, and sets of them.

use std::fmt;

/// The status of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Status(u16);

impl Status {
    /// A status by its number.
    #[must_use]
    pub const fn new(number: u16) -> Self {
        Self(number)
    }

    /// Its number.
    #[must_use]
    pub const fn get(self) -> u16 {
        self.0
    }

    /// Whether what was asked for was done (200 to 299).
    #[must_use]
    pub const fn is_success(self) -> bool {
        200 <= self.0 && self.0 <= 299
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Statuses from one to another, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusRange {
    from: Status,
    to: Status,
}

impl StatusRange {
    /// The statuses from one to another, both included; nothing where the first is greater.
    #[must_use]
    pub fn new(from: Status, to: Status) -> Option<Self> {
        (from <= to).then_some(Self { from, to })
    }

    /// Whether a status is one of them.
    #[must_use]
    pub fn contains(self, status: Status) -> bool {
        self.from <= status && status <= self.to
    }

    /// A status that two ranges share.
    #[must_use]
    pub fn shared(self, other: Self) -> Option<Status> {
        let first = self.from.max(other.from);
        (self.contains(first) && other.contains(first)).then_some(first)
    }
}

#[cfg(test)]
mod tests {
    use super::{Status, StatusRange};

    #[test]
    fn a_range_includes_both_its_ends() {
        let range = |from, to| StatusRange::new(Status::new(from), Status::new(to));
        let server = range(500, 599).expect("in order");
        assert!([500, 529, 599].into_iter().all(|status| server.contains(Status::new(status))));
        assert!(![499, 600].into_iter().any(|status| server.contains(Status::new(status))));
        assert_eq!(range(599, 500), None);
        assert_eq!(server.shared(range(429, 529).expect("in order")), Some(Status::new(500)));
        assert_eq!(server.shared(range(429, 429).expect("in order")), None);
        assert!(Status::new(204).is_success() && !Status::new(304).is_success());
    }
}
