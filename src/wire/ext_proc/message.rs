//! Envoy's messages in our terms, and ours in Envoy's.
//!
//! Header values travel as raw bytes, both ways. What is set replaces what was there; what is removed is removed
//! first. Metadata goes out under one namespace, which Envoy drops without a word unless its
//! `receiving_namespaces` list it.

use std::collections::HashMap;

use bytes::Bytes;
use envoy_types::pb::envoy::config::core::v3 as core;
use envoy_types::pb::envoy::extensions::filters::http::ext_proc::v3::ProcessingMode;
use envoy_types::pb::envoy::extensions::filters::http::ext_proc::v3::processing_mode::{BodySendMode, HeaderSendMode};
use envoy_types::pb::envoy::service::ext_proc::v3 as pb;
use envoy_types::pb::envoy::r#type::v3::HttpStatus;
use envoy_types::pb::google::protobuf::{Struct, Value, value::Kind};
use http::Response;
use http::header::{CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue};

use crate::observe::decisions::Picked;
use crate::units::VirtualTokens;

pub(super) use super::super::front::{Head, Vouched};
pub(super) use pb::processing_request::Request as Asked;
pub(super) use pb::processing_response::Response as Said;
pub(super) use pb::{HttpBody, HttpHeaders, ProcessingRequest, ProcessingResponse};

/// The namespace of what we tell Envoy about a request.
pub const NAMESPACE: &str = "tallygate";

/// The namespace of what endpoint pickers of the Gateway API Inference Extension say.
const PICKER: &str = "envoy.lb";

/// Under which key Envoy sends the attributes of its own filter.
const FILTER: &str = "envoy.filters.http.ext_proc";

/// The path of the request an answer is to, without the query, where Envoy was asked for `request.path`.
pub(super) fn path_asked(attributes: &HashMap<String, Struct>) -> &str {
    let path = attributes.get(FILTER).and_then(|ours| text(ours.fields.get("request.path")?));
    path.and_then(|path| path.split('?').next()).unwrap_or_default()
}

/// Why Envoy sends an answer it made itself, in its own fixed words; nothing when the answer is the upstream's, or
/// when Envoy was not asked for `response.code_details`.
pub(super) fn local_reply(attributes: &HashMap<String, Struct>) -> Option<&str> {
    let details = attributes.get(FILTER)?.fields.get("response.code_details")?;
    text(details).filter(|details| !details.is_empty() && *details != "via_upstream")
}

fn text(value: &Value) -> Option<&str> {
    match &value.kind {
        Some(Kind::StringValue(text)) => Some(text),
        _ => None,
    }
}

impl Vouched {
    /// What an endpoint picker says of a request, where its answer begins or ends with this message.
    pub(super) fn picked(&self, message: &Asked) -> Option<Picked> {
        let says = match message {
            Asked::ResponseHeaders(_) | Asked::ResponseTrailers(_) => true,
            Asked::ResponseBody(body) => body.end_of_stream,
            Asked::RequestHeaders(_) | Asked::RequestBody(_) | Asked::RequestTrailers(_) => false,
        };
        let said = &self.0.filter_metadata.get(PICKER).filter(|_| says)?.fields;
        let named = |key| said.get(key).and_then(text).filter(|endpoint| !endpoint.is_empty());
        let endpoint =
            named("x-gateway-destination-endpoint-served").or_else(|| named("x-gateway-destination-endpoint"));
        let cost = said.get("x-gateway-inference-request-cost").and_then(|value| match value.kind {
            Some(Kind::NumberValue(cost)) if cost.is_finite() => Some(cost),
            _ => None,
        });
        (endpoint.is_some() || cost.is_some()).then(|| Picked { endpoint: endpoint.map(Into::into), cost })
    }
}

/// What is told of a request, as metadata.
#[derive(Debug, Default)]
pub(super) struct Told(HashMap<String, Value>);

impl Told {
    pub(super) fn text(mut self, key: &str, text: impl Into<String>) -> Self {
        self.0.insert(key.to_owned(), Value { kind: Some(Kind::StringValue(text.into())) });
        self
    }

    pub(super) fn number(mut self, key: &str, number: f64) -> Self {
        self.0.insert(key.to_owned(), Value { kind: Some(Kind::NumberValue(number)) });
        self
    }

    /// What the request came to, in virtual tokens; nothing where that is not known.
    pub(super) fn charge(self, charge: Option<VirtualTokens>) -> Self {
        match charge {
            Some(charge) => self.number("charge", charge.as_f64()),
            None => self,
        }
    }

    fn into_metadata(self) -> Option<Struct> {
        if self.0.is_empty() {
            return None;
        }
        let ours = Value { kind: Some(Kind::StructValue(Struct { fields: self.0 })) };
        Some(Struct { fields: HashMap::from([(NAMESPACE.to_owned(), ours)]) })
    }
}

/// Changes to the headers of a request or an answer.
#[derive(Debug, Default)]
pub(super) struct Edit {
    pub(super) set: HeaderMap,
    pub(super) remove: Vec<String>,
}

impl Edit {
    fn into_mutation(self) -> Option<pb::HeaderMutation> {
        if self.set.is_empty() && self.remove.is_empty() {
            return None;
        }
        Some(pb::HeaderMutation { set_headers: options(&self.set), remove_headers: self.remove })
    }
}

fn options(headers: &HeaderMap) -> Vec<core::HeaderValueOption> {
    let option = |(name, value): (&HeaderName, &HeaderValue)| core::HeaderValueOption {
        header: Some(core::HeaderValue {
            key: name.as_str().to_owned(),
            value: String::new(),
            raw_value: value.as_bytes().to_owned(),
        }),
        append_action: core::header_value_option::HeaderAppendAction::OverwriteIfExistsOrAdd.into(),
        ..Default::default()
    };
    headers.iter().map(option).collect()
}

/// What becomes of a body, or of a part of one.
#[derive(Debug)]
pub(super) enum Content {
    /// It goes on as it is.
    Kept,
    /// This goes on in its place.
    Replaced(Bytes),
}

impl Content {
    /// What becomes of a body that came so and goes on so.
    pub(super) fn changed(came: &Bytes, onward: Bytes) -> Self {
        if *came == onward { Self::Kept } else { Self::Replaced(onward) }
    }

    fn into_mutation(self) -> Option<pb::BodyMutation> {
        let mutation = match self {
            Self::Kept => return None,
            Self::Replaced(bytes) if bytes.is_empty() => pb::body_mutation::Mutation::ClearBody(true),
            Self::Replaced(bytes) => pb::body_mutation::Mutation::Body(bytes.into()),
        };
        Some(pb::BodyMutation { mutation: Some(mutation) })
    }
}

fn common(edit: Edit, content: Content) -> pb::CommonResponse {
    pb::CommonResponse {
        header_mutation: edit.into_mutation(),
        body_mutation: content.into_mutation(),
        ..Default::default()
    }
}

fn response(said: Said, told: Told) -> Box<ProcessingResponse> {
    Box::new(ProcessingResponse { dynamic_metadata: told.into_metadata(), response: Some(said), ..Default::default() })
}

/// The request's headers go on, so changed.
pub(super) fn request_headers(edit: Edit, told: Told) -> Box<ProcessingResponse> {
    let headers = pb::HeadersResponse { response: Some(common(edit, Content::Kept)) };
    response(Said::RequestHeaders(headers), told)
}

/// The same message, which also asks for the bodies that are still to come: the request's in one piece, the answer's as
/// it passes. Heeded only with an answer to headers, and where `allow_mode_override` is on.
pub(super) fn and_show_bodies(mut message: Box<ProcessingResponse>) -> Box<ProcessingResponse> {
    message.mode_override = Some(ProcessingMode {
        request_header_mode: HeaderSendMode::Send.into(),
        response_header_mode: HeaderSendMode::Send.into(),
        request_body_mode: BodySendMode::Buffered.into(),
        response_body_mode: BodySendMode::Streamed.into(),
        request_trailer_mode: HeaderSendMode::Skip.into(),
        response_trailer_mode: HeaderSendMode::Send.into(),
    });
    message
}

/// The request goes on to the upstream, with these headers set. A replaced body needs its new length beside it, or Envoy refuses it.
pub(super) fn request_body(set: HeaderMap, content: Content, told: Told) -> Box<ProcessingResponse> {
    let mut edit = Edit { set, remove: Vec::new() };
    if let Content::Replaced(bytes) = &content {
        edit.set.insert(CONTENT_LENGTH, HeaderValue::from(bytes.len()));
    }
    response(Said::RequestBody(pb::BodyResponse { response: Some(common(edit, content)) }), told)
}

/// The same message, and the request goes on to this path, where it is another.
pub(super) fn and_to(mut message: Box<ProcessingResponse>, path: Option<String>) -> Box<ProcessingResponse> {
    let said = match &mut message.response {
        Some(Said::RequestHeaders(said)) => said.response.as_mut(),
        Some(Said::RequestBody(said)) => said.response.as_mut(),
        _ => None,
    };
    if let (Some(common), Some(path)) = (said, path) {
        let header = core::HeaderValue { key: ":path".into(), value: String::new(), raw_value: path.into_bytes() };
        let append_action = core::header_value_option::HeaderAppendAction::OverwriteIfExistsOrAdd.into();
        let option = core::HeaderValueOption { header: Some(header), append_action, ..Default::default() };
        common.header_mutation.get_or_insert_default().set_headers.push(option);
    }
    message
}

/// The request's trailers go on.
pub(super) fn request_trailers() -> Box<ProcessingResponse> {
    response(Said::RequestTrailers(pb::TrailersResponse::default()), Told::default())
}

/// The answer's headers go on, so changed.
pub(super) fn response_headers(edit: Edit, told: Told) -> Box<ProcessingResponse> {
    let headers = pb::HeadersResponse { response: Some(common(edit, Content::Kept)) };
    response(Said::ResponseHeaders(headers), told)
}

/// A part of the answer's body goes on.
pub(super) fn response_body(content: Content, told: Told) -> Box<ProcessingResponse> {
    let body = pb::BodyResponse { response: Some(common(Edit::default(), content)) };
    response(Said::ResponseBody(body), told)
}

/// The answer's trailers go on.
pub(super) fn response_trailers(told: Told) -> Box<ProcessingResponse> {
    response(Said::ResponseTrailers(pb::TrailersResponse::default()), told)
}

/// This is the answer, and the upstream is not asked. Whatever of ours an answer already has is removed.
pub(super) fn immediate(answer: Response<String>, code: &str, told: Told) -> Box<ProcessingResponse> {
    let (head, body) = answer.into_parts();
    let immediate = pb::ImmediateResponse {
        status: Some(HttpStatus { code: i32::from(head.status.as_u16()) }),
        headers: Some(pb::HeaderMutation { set_headers: options(&head.headers), remove_headers: Vec::new() }),
        body: body.into_bytes(),
        details: format!("tallygate_{code}"),
        ..Default::default()
    };
    response(Said::ImmediateResponse(immediate), told)
}
