//! Every rule, in one table: how bad what it finds is, what will go wrong, and the fix. The page docs/envoy-check.md is
//! made of it, and so are the messages; the door's log shares the words where it finds the same at run time.

mod around;
mod passing;

use super::finding::Level;

pub(super) use around::*;
pub(super) use passing::*;

/// A rule.
#[derive(Debug, PartialEq, Eq)]
pub struct Rule {
    /// Its name, which messages and the page have.
    pub name: &'static str,
    /// How bad it is.
    pub level: Level,
    /// What will go wrong.
    pub harm: &'static str,
    /// What to do about it.
    pub fix: &'static str,
}

const fn error(name: &'static str, harm: &'static str, fix: &'static str) -> Rule {
    Rule { name, level: Level::Error, harm, fix }
}

const fn warning(name: &'static str, harm: &'static str, fix: &'static str) -> Rule {
    Rule { name, level: Level::Warning, harm, fix }
}

const fn note(name: &'static str, harm: &'static str, fix: &'static str) -> Rule {
    Rule { name, level: Level::Note, harm, fix }
}

/// All of them, in the order of the page.
pub const RULES: [&Rule; 68] = [
    &NOT_ASKED,
    &NO_CLUSTER,
    &FILTER_DISABLED,
    &ROUTE_DISABLED,
    &ASKED_TWICE,
    &UPSTREAM_FILTER,
    &AUTH_AFTER,
    &PICKER_BEFORE,
    &OWNER_BEFORE,
    &PICKER_AFTER_UNREAD,
    &COMPRESSOR_AFTER,
    &BUFFER_BEFORE,
    &MESSAGE_TIMEOUT,
    &STREAM_IDLE_TIMEOUT,
    &SILENCE_TIMEOUT,
    &MAX_STREAM_DURATION,
    &ROUTE_TIMEOUT,
    &SHORT_ROUTE_TIMEOUT,
    &ENVOY_RETRIES,
    &REQUEST_BODY_MODE,
    &RESPONSE_BODY_MODE,
    &EAGER_BODY,
    &HEADERS_SKIPPED,
    &TRAILERS_SKIPPED,
    &TRAILERS_DROPPED,
    &BUFFER_LIMIT,
    &OVERRIDE_ALLOWED,
    &REFUSALS_DISABLED,
    &MUTATIONS_FORBIDDEN,
    &MUTATIONS_RESTRICTED,
    &HEADERS_WITHHELD,
    &METADATA_DROPPED,
    &METADATA_WITHHELD,
    &AUTH_WITHHELD,
    &LOCAL_REPLIES_UNKNOWN,
    &FAILS_OPEN,
    &FAILS_CLOSED,
    &STATUS_ON_ERROR,
    &CIRCUIT_BREAKER,
    &NOT_HTTP2,
    &STREAMS_CUT,
    &NO_KEEPALIVE,
    &NO_HEALTH_CHECK,
    &HEALTH_SERVICE,
    &GOOGLE_GRPC,
    &UPSTREAM_BREAKER,
    &UPSTREAM_DURATION,
    &USAGE_UNPUBLISHED,
    &REQUEST_UNPUBLISHED,
    &OVERRIDE_FORBIDDEN,
    &RECORDS_WITHHELD,
    &USAGE_SIGNAL,
    &SHADOW,
    &SHADOW_BODY,
    &SHADOW_FAILS_CLOSED,
    &AUTHZ_TIMEOUT,
    &AUTHZ_HTTP,
    &AUTHZ_BODY,
    &AUTHZ_BODY_LIMIT,
    &AUTHZ_TEXT,
    &AUTHZ_NO_LOG,
    &LOG_FILTERED,
    &LOG_LATE,
    &SOME_UNASKED,
    &RATE_LIMIT_TIMEOUT,
    &RATE_LIMIT_IDLE,
    &NO_WEBSOCKET,
    &ROUTES_ELSEWHERE,
];

#[cfg(test)]
mod tests {
    use super::RULES;

    #[test]
    fn every_rule_is_in_the_table_under_a_name_of_its_own() {
        let declared = [include_str!("around.rs"), include_str!("passing.rs")].concat();
        let declared = declared.lines().filter(|line| line.contains(") static ")).count();
        assert_eq!(RULES.len(), declared);
        let names: std::collections::BTreeSet<_> = RULES.iter().map(|rule| rule.name).collect();
        assert_eq!(names.len(), RULES.len());
    }
}
