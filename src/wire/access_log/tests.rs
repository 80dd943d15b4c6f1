//! Records as Envoy writes them, and as it does not.

use envoy_types::pb::envoy::config::core::v3::Metadata;
use envoy_types::pb::envoy::data::accesslog::v3::{
    AccessLogCommon, AccessLogType, HttpAccessLogEntry, HttpResponseProperties, ResponseFlags,
};
use envoy_types::pb::google::protobuf::{Duration, Struct, UInt32Value, Value, value::Kind};
use http::StatusCode;

use super::entry::{Read, read};
use crate::admission::Outcome;
use crate::units::{Instant, Span, Tokens};
use crate::wire::exchange::{Reach, Unwatched};
use crate::wire::spent::tests::record;
use crate::wire::spent::{Figures, Spent};

const LEASE: &str = "000000000000000000000000000000ab";

fn now() -> Instant {
    Instant::EPOCH + Span::from_secs(100)
}

fn text(text: &str) -> Value {
    Value { kind: Some(Kind::StringValue(text.into())) }
}

fn leased(lease: Value) -> Metadata {
    let fields = [("lease".to_owned(), lease)].into();
    let filter_metadata = [("envoy.filters.http.ext_authz".to_owned(), Struct { fields })].into();
    Metadata { filter_metadata, ..Metadata::default() }
}

fn millis(millis: i32) -> Option<Duration> {
    Some(Duration { seconds: i64::from(millis / 1_000), nanos: millis % 1_000 * 1_000_000 })
}

/// A whole answer: sent after 1 s, begun after 2 s, ended after 5 s.
fn whole() -> HttpAccessLogEntry {
    let common = AccessLogCommon {
        metadata: Some(leased(text(LEASE))),
        time_to_first_upstream_tx_byte: millis(1_000),
        time_to_first_upstream_rx_byte: millis(2_000),
        duration: millis(5_000),
        upstream_request_attempt_count: 1,
        access_log_type: AccessLogType::DownstreamEnd.into(),
        ..AccessLogCommon::default()
    };
    HttpAccessLogEntry { common_properties: Some(common), response: Some(status(200)), ..Default::default() }
}

fn status(code: u32) -> HttpResponseProperties {
    HttpResponseProperties { response_code: Some(UInt32Value { value: code }), ..Default::default() }
}

/// The same, changed.
fn but(change: impl FnOnce(&mut AccessLogCommon)) -> HttpAccessLogEntry {
    let mut entry = whole();
    change(entry.common_properties.as_mut().expect("it has them"));
    entry
}

fn flagged(flags: ResponseFlags) -> HttpAccessLogEntry {
    but(|common| common.response_flags = Some(flags))
}

fn end(entry: HttpAccessLogEntry) -> Unwatched {
    match read(entry, now()) {
        Read::Ended { lease, end } => {
            assert_eq!(lease.to_string(), LEASE);
            end
        }
        other => panic!("an end, not {other:?}"),
    }
}

#[test]
fn every_way_a_request_ends_is_told_apart() {
    let since = Instant::EPOCH + Span::from_secs(97);
    let left = ResponseFlags { downstream_connection_termination: true, ..Default::default() };
    let reset = ResponseFlags { downstream_remote_reset: true, ..Default::default() };
    let late = ResponseFlags { upstream_request_timeout: true, ..Default::default() };
    let broke = ResponseFlags { upstream_connection_termination: true, ..Default::default() };
    let down = ResponseFlags { no_healthy_upstream: true, ..Default::default() };
    let mut refused = whole();
    refused.response = Some(status(503));
    let unsent = |flags: Option<ResponseFlags>| {
        let mut entry = but(|common| {
            common.time_to_first_upstream_tx_byte = None;
            common.time_to_first_upstream_rx_byte = None;
            common.response_flags = flags;
        });
        entry.response = Some(status(403));
        entry
    };
    let mut unanswered = flagged(late);
    unanswered.common_properties.as_mut().expect("it has them").time_to_first_upstream_rx_byte = None;
    unanswered.response = Some(status(504));
    for (name, entry, outcome, reach, heard) in [
        ("whole", whole(), Outcome::Completed, Reach::Answered(since), Some(200)),
        ("left", flagged(left), Outcome::ClientAborted, Reach::Answered(since), Some(200)),
        ("left over HTTP/2", flagged(reset), Outcome::ClientAborted, Reach::Answered(since), Some(200)),
        ("too late", flagged(late), Outcome::TimedOut, Reach::Answered(since), Some(200)),
        ("broke off", flagged(broke), Outcome::UpstreamFailed, Reach::Answered(since), Some(200)),
        ("an error", refused, Outcome::UpstreamFailed, Reach::Sent, Some(503)),
        ("no answer in time", unanswered, Outcome::TimedOut, Reach::Sent, None),
        ("no upstream", unsent(Some(down)), Outcome::UpstreamFailed, Reach::Unsent, None),
        ("another filter refused it", unsent(None), Outcome::ClientAborted, Reach::Unsent, None),
        ("left before it went on", unsent(Some(left)), Outcome::ClientAborted, Reach::Unsent, None),
    ] {
        let end = end(entry);
        let head = end.head.as_ref().map(|(status, _)| status.as_u16());
        assert_eq!((end.outcome, end.reach, head), (outcome, reach, heard), "{name}");
        assert!(!end.reports_usage());
    }
}

#[test]
fn an_old_envoy_that_does_not_say_which_record_it_is_says_the_end() {
    let entry = but(|common| common.access_log_type = AccessLogType::NotSet.into());
    assert_eq!(end(entry).outcome, Outcome::Completed);
}

#[test]
fn records_in_between_are_signs_of_life() {
    for kind in [AccessLogType::DownstreamStart, AccessLogType::DownstreamPeriodic] {
        let entry = but(|common| common.access_log_type = kind.into());
        let Read::Alive { began, .. } = read(entry, now()) else { panic!("alive") };
        assert_eq!(began, Some(Instant::EPOCH + Span::from_secs(97)));
        let mut silent = but(|common| {
            common.access_log_type = kind.into();
            common.time_to_first_upstream_rx_byte = None;
        });
        silent.response = None;
        assert!(matches!(read(silent, now()), Read::Alive { began: None, .. }));
    }
    for kind in [AccessLogType::UpstreamEnd, AccessLogType::UpstreamPoolReady, AccessLogType::TcpConnectionEnd] {
        assert!(matches!(read(but(|common| common.access_log_type = kind.into()), now()), Read::Between));
    }
}

#[test]
fn without_a_lease_a_record_is_about_nobody_and_with_a_bad_one_unreadable() {
    assert!(matches!(read(HttpAccessLogEntry::default(), now()), Read::Unleased));
    assert!(matches!(read(but(|common| common.metadata = Some(Metadata::default())), now()), Read::Unleased));
    for bad in
        [text(""), text("x"), text(&"0".repeat(31)), Value { kind: Some(Kind::NumberValue(1.0)) }, Value::default()]
    {
        assert!(matches!(read(but(|common| common.metadata = Some(leased(bad.clone()))), now()), Read::Unreadable));
    }
}

fn with_usage(figures: Figures, status: i32) -> HttpAccessLogEntry {
    but(|common| {
        let typed = record(figures, status).typed_filter_metadata;
        common.metadata.as_mut().expect("it has one").typed_filter_metadata = typed;
    })
}

#[test]
fn usage_is_what_envoy_read_of_the_answer_or_what_tags_say() {
    let figures = Figures { input: Some(20), cached: 10, output: Some(5), ..Figures::default() };
    assert_eq!(end(with_usage(figures, 1)).usage, Spent::from(figures));
    assert_eq!(end(with_usage(Figures { cached: 21, ..figures }, 1)).usage, Spent::Disbelieved);
    assert_eq!(end(with_usage(figures, 2)).usage, Spent::Nothing, "a part may be old");
    let tagged = {
        let mut entry = with_usage(figures, 2);
        let tags = &mut entry.common_properties.as_mut().expect("it has them").custom_tags;
        tags.insert("tallygate.output_tokens".into(), "7".into());
        end(entry).usage
    };
    assert_eq!(tagged, Spent::Output { visible: Tokens::new(7), reasoning: Tokens::ZERO });
    for (input, output, told) in [
        ("20", "5", Some((Some(20), 5))),
        ("20.0", "5.000", Some((Some(20), 5))),
        ("-", "5", Some((None, 5))),
        ("20", "-", None),
        ("20", "5.5", None),
        ("20", "-5", None),
        ("20", "1e3", None),
    ] {
        let tagged = but(|common| {
            common.custom_tags.insert("tallygate.input_tokens".into(), input.into());
            common.custom_tags.insert("tallygate.output_tokens".into(), output.into());
        });
        let found = match end(tagged).usage {
            Spent::Whole(usage) => Some((Some(usage.input().get()), usage.output().get())),
            Spent::Output { visible, .. } => Some((None, visible.get())),
            Spent::Nothing | Spent::Part(_) | Spent::Disbelieved => None,
        };
        assert_eq!(found, told, "{input} {output}");
    }
}

#[test]
fn headers_that_are_logged_are_heard_and_those_that_are_none_are_not() {
    let mut entry = whole();
    let mut response = status(429);
    response.response_headers.insert("retry-after".into(), "7".into());
    response.response_headers.insert("not a name".into(), "x".into());
    response.response_headers.insert("bad-value".into(), "\n".into());
    entry.response = Some(response);
    let (code, headers) = end(entry).head.expect("it answered");
    assert_eq!((code, headers.len()), (StatusCode::TOO_MANY_REQUESTS, 1));
    assert_eq!(headers["retry-after"], "7");
}

#[test]
fn times_that_cannot_be_count_for_nothing() {
    for (first, all) in [(i64::MAX, 0), (-5, -5), (i64::MIN, i64::MAX)] {
        let entry = but(|common| {
            common.time_to_first_upstream_rx_byte = Some(Duration { seconds: first, nanos: -1 });
            common.duration = Some(Duration { seconds: all, nanos: i32::MAX });
        });
        let Reach::Answered(since) = end(entry).reach else { panic!("it answered") };
        assert!(since <= now());
    }
}
