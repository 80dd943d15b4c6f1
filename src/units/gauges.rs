//! What an engine says of its own load.
//!
//! Every field may be missing, and what is missing is unknown: an engine that renames a gauge is not idle.

use super::{Share, Tokens};

/// An engine's load as it reported it, or several engines' together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineGauges {
    /// Requests in its own queue, waiting for room.
    pub waiting: Option<u64>,
    /// Requests in its running batch.
    pub running: Option<u64>,
    /// How much of its KV memory is in use. Of several engines the fullest one's, since that is the one that will
    /// have to push requests out.
    pub kv_usage: Option<Share>,
    /// Requests it pushed out of its memory, ever since it started. Goes back to 0 when it restarts.
    pub preemptions: Option<u64>,
    /// How many tokens fit into its KV memory.
    pub kv_capacity: Option<Tokens>,
}

impl EngineGauges {
    /// What an engine says that has nothing to do. Its memory's size is not known.
    pub const IDLE: Self =
        Self { waiting: Some(0), running: Some(0), kv_usage: None, preemptions: Some(0), kv_capacity: None };

    /// Whether it says nothing at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Two engines taken as one. What one of them does not say is not known of both.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        Self {
            waiting: both(self.waiting, other.waiting, u64::saturating_add),
            running: both(self.running, other.running, u64::saturating_add),
            kv_usage: both(self.kv_usage, other.kv_usage, Ord::max),
            preemptions: both(self.preemptions, other.preemptions, u64::saturating_add),
            kv_capacity: both(self.kv_capacity, other.kv_capacity, |a, b| a + b),
        }
    }

    /// The same engine, by two reports: what this one does not say, the other may.
    #[must_use]
    pub fn or(&self, other: &Self) -> Self {
        Self {
            waiting: self.waiting.or(other.waiting),
            running: self.running.or(other.running),
            kv_usage: self.kv_usage.or(other.kv_usage),
            preemptions: self.preemptions.or(other.preemptions),
            kv_capacity: self.kv_capacity.or(other.kv_capacity),
        }
    }
}

fn both<T>(one: Option<T>, other: Option<T>, join: impl FnOnce(T, T) -> T) -> Option<T> {
    one.zip(other).map(|(one, other)| join(one, other))
}

#[cfg(test)]
mod tests {
    use super::EngineGauges;
    use crate::units::{Share, Tokens};

    #[test]
    fn several_engines_are_summed_and_what_one_hides_stays_unknown() {
        let share = |part| Share::new(part).ok();
        let one = EngineGauges {
            waiting: Some(2),
            running: Some(4),
            kv_usage: share(0.9),
            preemptions: None,
            kv_capacity: Some(Tokens::new(100)),
        };
        let other = EngineGauges { running: None, kv_usage: share(0.2), preemptions: Some(1), ..one };
        let sum = EngineGauges {
            waiting: Some(4),
            running: None,
            kv_usage: share(0.9),
            preemptions: None,
            kv_capacity: Some(Tokens::new(200)),
        };
        assert_eq!(one.and(&other), sum);
        assert_eq!(other.or(&one).running, Some(4), "another report of the same engine fills the gap");
    }
}
