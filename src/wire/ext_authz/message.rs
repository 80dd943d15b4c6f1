//! Envoy's question in our terms, and our answer in Envoy's.
//!
//! Headers come raw where `encode_raw_headers` is on, else two of one name are one with a comma in it. They go out as
//! `value`: this filter takes `raw_value` for nothing. Metadata comes out under the filter's own namespace.

use bytes::Bytes;
use envoy_types::pb::envoy::config::core::v3 as core;
use envoy_types::pb::envoy::service::auth::v3 as pb;
use envoy_types::pb::envoy::r#type::v3::HttpStatus;
use envoy_types::pb::google::protobuf::{Struct, Value, value::Kind};
use envoy_types::pb::google::rpc::Status as RpcStatus;
use http::header::{ACCEPT_ENCODING, CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue, TRANSFER_ENCODING};
use http::{Method, Response};
use tonic::Code;

use crate::shell::LeaseId;
use crate::units::Span;

use super::super::answer::Refused;
use super::super::exchange::{KEYS, OURS};
use super::super::front::{Head, LEASE, Vouched, without_query};

/// Whether a body came whole. Envoy's own, for us alone.
const PARTIAL: HeaderName = HeaderName::from_static("x-envoy-auth-partial-body");

/// What Envoy asks about.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) head: Head,
    pub(super) body: Bytes,
    pub(super) vouched: Vouched,
    partial: bool,
}

impl Asked {
    /// Reads it.
    ///
    /// # Errors
    /// When it is not about a request of HTTP, or a header cannot be one.
    pub(super) fn read(request: pb::CheckRequest) -> Result<Self, Refused> {
        let attributes = request.attributes.unwrap_or_default();
        let http = attributes.request.and_then(|request| request.http);
        let Some(http) = http else {
            return Err(Refused::Malformed("the question is not about a request of HTTP".into()));
        };
        let raw = http.header_map.unwrap_or_default().headers;
        let headers = if raw.is_empty() { joined(http.headers) } else { raw };
        let mut head = Head::of(headers)?;
        head.method = Method::from_bytes(http.method.as_bytes())
            .map_err(|_| Refused::Malformed("the method is not one".into()))?;
        head.path = without_query(&http.path);
        let body = Bytes::from(if http.raw_body.is_empty() { http.body.into_bytes() } else { http.raw_body });
        let partial = head.headers.get_all(PARTIAL).iter().any(|value| value.as_bytes() == b"true");
        let vouched = Vouched(attributes.metadata_context.unwrap_or_default());
        Ok(Self { head, body, vouched, partial })
    }

    /// Whether the head is all there is.
    pub(super) fn is_bodiless(&self) -> bool {
        self.body.is_empty() && self.stated().is_none_or(|length| length == 0) && !self.is_chunked()
    }

    /// Whether it has a body that did not come.
    pub(super) fn lacks_its_body(&self) -> bool {
        self.body.is_empty() && self.stated().is_some_and(|length| length > 0)
    }

    /// Whether it came with a part of its body.
    pub(super) fn is_partial(&self) -> bool {
        self.partial || self.stated().is_some_and(|length| length > self.body.len() as u64)
    }

    fn stated(&self) -> Option<u64> {
        self.head.headers.get(CONTENT_LENGTH)?.to_str().ok()?.trim().parse().ok()
    }

    fn is_chunked(&self) -> bool {
        self.head.headers.contains_key(TRANSFER_ENCODING)
    }
}

fn joined(headers: std::collections::HashMap<String, String>) -> Vec<core::HeaderValue> {
    let header = |(key, value)| core::HeaderValue { key, value, raw_value: Vec::new() };
    headers.into_iter().map(header).collect()
}

/// A request that goes on.
#[derive(Debug)]
pub(super) struct Onward {
    /// What of its head stays here.
    remove: Vec<String>,
    /// What its answer gets.
    pub(super) answer: HeaderMap,
    /// How long it had waited, where it is metered.
    pub(super) waited: Option<Span>,
    /// By what name its end is to be told, where it is metered.
    pub(super) lease: Option<LeaseId>,
}

impl Onward {
    /// What is meant for us stays here, and a key of ours.
    pub(super) fn of(head: &Head, by_key: bool) -> Self {
        let mut remove = head.beginning(OURS);
        if by_key {
            remove.extend(KEYS.iter().map(|name| name.as_str().to_owned()));
        }
        Self { remove, answer: HeaderMap::new(), waited: None, lease: None }
    }
}

/// What is told of a request, as metadata.
#[derive(Debug, Default)]
pub(super) struct Told(std::collections::HashMap<String, Value>);

impl Told {
    pub(super) fn text(mut self, key: &str, text: impl Into<String>) -> Self {
        self.0.insert(key.to_owned(), Value { kind: Some(Kind::StringValue(text.into())) });
        self
    }

    fn number(mut self, key: &str, number: f64) -> Self {
        self.0.insert(key.to_owned(), Value { kind: Some(Kind::NumberValue(number)) });
        self
    }
}

/// The request goes on.
pub(super) fn yes(onward: Onward, mut told: Told) -> pb::CheckResponse {
    let Onward { remove, answer, waited, lease } = onward;
    if let Some(waited) = waited {
        told = told.number("queue_ms", waited.as_secs_f64() * 1e3);
    }
    if let Some(lease) = lease {
        told = told.text(LEASE, lease.to_string());
    }
    // What reports usage reads answers, and cannot read compressed ones.
    let plain = HeaderMap::from_iter([(ACCEPT_ENCODING, HeaderValue::from_static("identity"))]);
    let ok = pb::OkHttpResponse {
        headers: options(&plain),
        headers_to_remove: remove,
        response_headers_to_add: options(&answer),
        ..Default::default()
    };
    response(Code::Ok, pb::check_response::HttpResponse::OkResponse(ok), told)
}

/// This is the answer, and the upstream is not asked.
pub(super) fn no(answer: Response<String>, told: Told) -> pb::CheckResponse {
    let (head, body) = answer.into_parts();
    let denied = pb::DeniedHttpResponse {
        status: Some(HttpStatus { code: i32::from(head.status.as_u16()) }),
        headers: options(&head.headers),
        body,
    };
    response(Code::PermissionDenied, pb::check_response::HttpResponse::DeniedResponse(denied), told)
}

fn response(code: Code, said: pb::check_response::HttpResponse, told: Told) -> pb::CheckResponse {
    pb::CheckResponse {
        status: Some(RpcStatus { code: code.into(), ..Default::default() }),
        dynamic_metadata: Some(Struct { fields: told.0 }),
        http_response: Some(said),
    }
}

fn options(headers: &HeaderMap) -> Vec<core::HeaderValueOption> {
    let option = |(name, value): (&HeaderName, &HeaderValue)| core::HeaderValueOption {
        header: Some(core::HeaderValue {
            key: name.as_str().to_owned(),
            value: String::from_utf8_lossy(value.as_bytes()).into_owned(),
            raw_value: Vec::new(),
        }),
        append_action: core::header_value_option::HeaderAppendAction::OverwriteIfExistsOrAdd.into(),
        ..Default::default()
    };
    headers.iter().map(option).collect()
}
