//! One record of Envoy's access log, read: which lease it is about, and how its request ended.
//!
//! Who ended it is told by Envoy's flags, in this order: the client left; a time-out; the upstream; and without a flag the
//! status tells. How far it had come is told by what was sent upstream and what came back. What it used is told by the
//! record that Envoy's own reader of answers leaves (`envoy.ai.token_usage`), or by custom tags that whoever sets Envoy up
//! fills from elsewhere.

use envoy_types::pb::envoy::config::core::v3::Metadata;
use envoy_types::pb::envoy::data::accesslog::v3::{
    AccessLogCommon, AccessLogType, HttpAccessLogEntry, HttpResponseProperties, ResponseFlags,
};
use envoy_types::pb::google::protobuf::{Duration, value::Kind};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

use crate::admission::Outcome;
use crate::shell::LeaseId;
use crate::units::{Instant, Span};

use super::super::exchange::{Reach, Unwatched};
use super::super::front::{AUTHZ, LEASE};
use super::super::spent::{Figures, Spent};

/// What the names of the custom tags that tell usage begin with.
const TAGS: &str = "tallygate.";

/// What a record says.
#[derive(Debug)]
pub(super) enum Read {
    /// A request ended.
    Ended {
        /// Whose lease it was.
        lease: LeaseId,
        /// How.
        end: Unwatched,
    },
    /// A request still runs.
    Alive {
        /// Whose lease it is.
        lease: LeaseId,
        /// Since when its answer has been coming, if it has.
        began: Option<Instant>,
    },
    /// It is about a request without a lease.
    Unleased,
    /// It is about something between a request's begin and its end.
    Between,
    /// Its lease is none.
    Unreadable,
}

/// Reads a record that came now.
pub(super) fn read(entry: HttpAccessLogEntry, now: Instant) -> Read {
    let common = entry.common_properties.unwrap_or_default();
    let lease = match lease(common.metadata.as_ref()) {
        Ok(Some(lease)) => lease,
        Ok(None) => return Read::Unleased,
        Err(()) => return Read::Unreadable,
    };
    let response = entry.response.unwrap_or_default();
    let kind = AccessLogType::try_from(common.access_log_type).unwrap_or(AccessLogType::NotSet);
    match kind {
        AccessLogType::DownstreamEnd | AccessLogType::NotSet => {
            Read::Ended { lease, end: end(&common, &response, now) }
        }
        AccessLogType::DownstreamStart | AccessLogType::DownstreamPeriodic => {
            let answered = status(&response).is_some_and(|status| status.is_success());
            Read::Alive { lease, began: began(&common, now).filter(|_| answered) }
        }
        _ => Read::Between,
    }
}

fn lease(metadata: Option<&Metadata>) -> Result<Option<LeaseId>, ()> {
    let told = metadata.and_then(|metadata| metadata.filter_metadata.get(AUTHZ)?.fields.get(LEASE));
    match told.map(|value| &value.kind) {
        None => Ok(None),
        Some(Some(Kind::StringValue(text))) => text.parse().map(Some).map_err(|_| ()),
        Some(_) => Err(()),
    }
}

fn end(common: &AccessLogCommon, response: &HttpResponseProperties, now: Instant) -> Unwatched {
    let flags = common.response_flags.unwrap_or_default();
    let status = status(response);
    let sent = common.time_to_first_upstream_tx_byte.is_some();
    let from_upstream = common.time_to_first_upstream_rx_byte.is_some();
    let good = status.is_some_and(|status| status.is_success());
    let outcome = if let Some(outcome) = flagged(&flags) {
        outcome
    } else if !sent {
        // Another filter answered in its place.
        Outcome::ClientAborted
    } else if good {
        Outcome::Completed
    } else if status.is_some() {
        Outcome::UpstreamFailed
    } else {
        Outcome::ClientAborted
    };
    let reach = match began(common, now) {
        _ if !sent => Reach::Unsent,
        Some(since) if good => Reach::Answered(since),
        _ => Reach::Sent,
    };
    let head = status.filter(|_| from_upstream).map(|status| (status, headers(response)));
    let further_attempts = common.upstream_request_attempt_count.saturating_sub(1);
    Unwatched { outcome, reach, head, further_attempts, usage: usage(common) }
}

/// Who ended it, as far as flags tell.
fn flagged(flags: &ResponseFlags) -> Option<Outcome> {
    let client =
        [flags.downstream_connection_termination, flags.downstream_remote_reset, flags.downstream_protocol_error];
    let late = [
        flags.upstream_request_timeout,
        flags.stream_idle_timeout,
        flags.duration_timeout,
        flags.upstream_max_stream_duration_reached,
    ];
    let upstream = [
        flags.failed_local_healthcheck,
        flags.no_healthy_upstream,
        flags.upstream_remote_reset,
        flags.upstream_connection_failure,
        flags.upstream_connection_termination,
        flags.upstream_overflow,
        flags.upstream_retry_limit_exceeded,
        flags.upstream_protocol_error,
        flags.no_cluster_found,
        flags.no_route_found,
        flags.dns_resolution_failure,
        flags.local_reset,
    ];
    if client.contains(&true) {
        Some(Outcome::ClientAborted)
    } else if late.contains(&true) {
        Some(Outcome::TimedOut)
    } else if upstream.contains(&true) {
        Some(Outcome::UpstreamFailed)
    } else {
        None
    }
}

fn status(response: &HttpResponseProperties) -> Option<StatusCode> {
    StatusCode::from_u16(u16::try_from(response.response_code?.value).ok()?).ok()
}

/// When the first byte of the upstream's came, by Envoy's own reckoning of how long ago that was.
fn began(common: &AccessLogCommon, now: Instant) -> Option<Instant> {
    let first = span(common.time_to_first_upstream_rx_byte.as_ref()?);
    let all = common.duration.as_ref().map_or(first, span);
    let ago = all.saturating_sub(first);
    Some(Instant::EPOCH + now.since(Instant::EPOCH).saturating_sub(ago))
}

fn span(duration: &Duration) -> Span {
    let secs = u64::try_from(duration.seconds).unwrap_or(0);
    let nanos = u64::try_from(duration.nanos).unwrap_or(0);
    Span::from_secs(secs).saturating_add(Span::from_nanos(nanos))
}

/// Those of the answer's headers that are logged.
fn headers(response: &HttpResponseProperties) -> HeaderMap {
    let header = |(name, value): (&String, &String)| Some((name.parse::<HeaderName>().ok()?, value.parse().ok()?));
    let known = response.response_headers.iter().chain(&response.response_trailers);
    known.filter_map(header).collect::<HeaderMap<HeaderValue>>()
}

fn usage(common: &AccessLogCommon) -> Spent {
    match common.metadata.as_ref().map(Spent::recorded).unwrap_or_default() {
        // A part may be old, and tags can know better.
        Spent::Nothing | Spent::Part(_) => by_tags(common),
        told => told,
    }
}

/// What custom tags tell: `tallygate.output_tokens` at least.
fn by_tags(common: &AccessLogCommon) -> Spent {
    let tag = |name: &str| common.custom_tags.get(&format!("{TAGS}{name}")).and_then(|text| number(text));
    Spent::from(Figures {
        input: tag("input_tokens"),
        cached: tag("cached_tokens").unwrap_or(0),
        written: tag("cache_write_tokens").unwrap_or(0),
        output: tag("output_tokens"),
        reasoning: tag("reasoning_tokens").unwrap_or(0),
    })
}

/// A number as metadata writes it: whole, or with nothing behind the point.
fn number(text: &str) -> Option<u64> {
    let whole = text
        .trim()
        .split_once('.')
        .map_or(text.trim(), |(whole, rest)| if rest.bytes().all(|digit| digit == b'0') { whole } else { "" });
    whole.parse().ok()
}
