//! A cap that may be absent.
//!
//! Zero is a legitimate cap ("nothing may queue here"), so absence is a variant of its own and never a magic
//! number.

/// The most of something that is allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Limit<T> {
    /// No cap.
    #[default]
    Unlimited,
    /// At most this much, itself included.
    AtMost(T),
}

impl<T: Copy + Ord> Limit<T> {
    /// Whether `amount` stays within the cap.
    #[must_use]
    pub fn allows(self, amount: T) -> bool {
        match self {
            Self::Unlimited => true,
            Self::AtMost(cap) => amount <= cap,
        }
    }

    /// The cap, where there is one.
    #[must_use]
    pub fn cap(self) -> Option<T> {
        match self {
            Self::Unlimited => None,
            Self::AtMost(cap) => Some(cap),
        }
    }

    /// Whether there is a cap at all.
    #[must_use]
    pub fn is_limited(self) -> bool {
        matches!(self, Self::AtMost(_))
    }
}

impl<T> From<Option<T>> for Limit<T> {
    fn from(cap: Option<T>) -> Self {
        cap.map_or(Self::Unlimited, Self::AtMost)
    }
}

#[cfg(test)]
mod tests {
    use super::Limit;

    #[test]
    fn a_cap_includes_itself_and_zero_is_a_cap() {
        assert!(Limit::AtMost(3).allows(3));
        assert!(!Limit::AtMost(3).allows(4));
        assert!(!Limit::AtMost(0).allows(1));
        assert!(Limit::Unlimited.allows(u64::MAX));
    }
}
