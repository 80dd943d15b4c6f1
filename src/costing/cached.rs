//! How much of a session's next input the upstream will find in its prefix cache.
//!
//! *Decides* how the input of a request is split into cached, written and uncached before anything is known of it.
//! An agent's request repeats nearly all of the one before, so what share of it was cached is what share of the next
//! will be: `cached = input × cached_last / input_last`, in tokens, and of the rest the share that was written to the
//! cache last time, where the upstream reports that.
//!
//! Conservative: nothing without a session and a report of its last request for the same model; never more than the
//! whole of that request, since only what was read before can be cached; nothing for a request less than half as long,
//! since a session that shrinks has begun something else. A request that ends without a report makes the session
//! forgotten, so that nobody can have one discount after the other by leaving before the usage is told.
//!
//! A split changes what is charged until the end, when usage makes it true; the window counts all input alike. It is
//! an asserted id that it goes by, and only ever the tenant's own. No clock: a cache that has expired meanwhile is
//! found out by the usage. At most [`Sessions::MOST`] sessions of all tenants; beyond that the one longest without
//! news is forgotten, and is quoted as if nothing were cached.

use crate::units::{Agent, Model, SessionId, TenantId, Tokens, Usage};

use super::recent::Recent;

/// A session's requests for one model: those of the agent that leads it, or those of the agents it started, which read
/// other things.
pub type SessionKey = (TenantId, SessionId, Agent, Model);

/// What sessions' last requests found cached.
#[derive(Clone, Debug)]
pub struct Sessions {
    last: Recent<SessionKey, Usage>,
}

impl Default for Sessions {
    fn default() -> Self {
        Self { last: Recent::new(Self::MOST) }
    }
}

impl Sessions {
    /// The most sessions remembered.
    pub const MOST: usize = 65_536;

    /// This much input, split as it will probably be found.
    #[must_use]
    pub fn split(&self, key: &SessionKey, input: Tokens) -> Usage {
        let plain = Usage { uncached_input: input, ..Usage::default() };
        let Some(last) = self.last.get(key) else { return plain };
        if input.times(2) < last.input() {
            return plain;
        }
        let cached_input = part(input, last.cached_input, last.input()).min(last.input());
        let rest = input.saturating_sub(cached_input);
        let cache_write = part(rest, last.cache_write, last.cache_write + last.uncached_input);
        Usage { cached_input, cache_write, uncached_input: rest.saturating_sub(cache_write), ..plain }
    }

    /// A request of this session came to its end and reported this.
    pub fn learn(&mut self, key: SessionKey, usage: &Usage) {
        let input = usage.input_only();
        self.last.entry(key, |last| *last = input);
    }

    /// A request of this session ended without a report.
    pub fn forget(&mut self, key: &SessionKey) {
        self.last.remove(key);
    }
}

/// `of × share / whole`, rounded down, never more than `of`.
fn part(of: Tokens, share: Tokens, whole: Tokens) -> Tokens {
    let product = u128::from(of.get()) * u128::from(share.get().min(whole.get()));
    Tokens::new(u64::try_from(product / u128::from(whole.get().max(1))).unwrap_or(u64::MAX)).min(of)
}

#[cfg(test)]
mod tests {
    use super::{SessionKey, Sessions};
    use crate::units::{Agent, Model, SessionId, TenantId, Tokens, Usage};

    fn key(session: &str) -> SessionKey {
        (TenantId::from("a"), SessionId::from(session), Agent::Lead, Model::from("m"))
    }

    fn usage(uncached: u64, cached: u64, written: u64) -> Usage {
        let [uncached_input, cached_input, cache_write] = [uncached, cached, written].map(Tokens::new);
        Usage { uncached_input, cached_input, cache_write, ..Usage::default() }
    }

    #[test]
    fn the_share_that_was_cached_is_expected_again_and_nothing_without_history() {
        let mut sessions = Sessions::default();
        let input = Tokens::new(2_000);
        assert_eq!(sessions.split(&key("s"), input), usage(2_000, 0, 0));
        sessions.learn(key("s"), &usage(40, 1_800, 160));
        assert_eq!(sessions.split(&key("s"), input), usage(40, 1_800, 160));
        assert_eq!(sessions.split(&key("s"), Tokens::new(1_000)), usage(20, 900, 80));
        assert_eq!(sessions.split(&key("other"), input), usage(2_000, 0, 0));
        let (tenant, session, _, model) = key("s");
        assert_eq!(sessions.split(&(tenant, session, Agent::Sub, model), input), usage(2_000, 0, 0));
        sessions.forget(&key("s"));
        assert_eq!(sessions.split(&key("s"), input), usage(2_000, 0, 0));
    }

    #[test]
    fn it_is_never_more_than_was_read_before_nor_anything_of_a_new_beginning() {
        let mut sessions = Sessions::default();
        sessions.learn(key("s"), &usage(0, 1_000, 0));
        assert_eq!(sessions.split(&key("s"), Tokens::new(5_000)), usage(4_000, 1_000, 0));
        assert_eq!(sessions.split(&key("s"), Tokens::new(499)), usage(499, 0, 0));
        for absurd in [usage(u64::MAX, u64::MAX, u64::MAX), usage(0, 0, 0), usage(0, u64::MAX, 1)] {
            sessions.learn(key("s"), &absurd);
            for input in [0, 1, 1_000, u64::MAX] {
                let split = sessions.split(&key("s"), Tokens::new(input));
                assert_eq!(split.input(), Tokens::new(input), "{absurd:?}");
            }
        }
    }

    #[test]
    fn ever_new_sessions_push_out_old_ones() {
        let mut sessions = Sessions::default();
        sessions.learn(key("old"), &usage(0, 1_000, 0));
        for stranger in 0..Sessions::MOST {
            sessions.learn(key(&stranger.to_string()), &usage(0, 1_000, 0));
        }
        assert_eq!(sessions.last.iter().count(), Sessions::MOST);
        assert_eq!(sessions.split(&key("old"), Tokens::new(1_000)), usage(1_000, 0, 0));
    }
}
