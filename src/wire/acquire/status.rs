//! A refusal as a status of gRPC's.
//!
//! Code and message are those of the one table, [`super::super::answer`]. Its headers travel as trailing metadata, by the
//! same names. The details say the same once more, in the messages that libraries know: `google.rpc.ErrorInfo`, whose
//! reason and domain name the refusal, and `google.rpc.RetryInfo`, by which some of them wait by themselves.

use std::collections::HashMap;

use envoy_types::pb::google::protobuf::{Any, Duration};
use envoy_types::pb::google::rpc::Status as RpcStatus;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, Response};
use prost::Message;
use tonic::Status;
use tonic::metadata::MetadataMap;

use crate::units::{DecisionId, Instant, Span};

use super::super::answer::{Refused, rpc_code};

/// Whose the reasons are.
const DOMAIN: &str = "tallygate";

/// `google.rpc.ErrorInfo`.
#[derive(Clone, PartialEq, Message)]
struct ErrorInfo {
    #[prost(string, tag = "1")]
    reason: String,
    #[prost(string, tag = "2")]
    domain: String,
    #[prost(map = "string, string", tag = "3")]
    metadata: HashMap<String, String>,
}

/// `google.rpc.RetryInfo`.
#[derive(Clone, PartialEq, Message)]
struct RetryInfo {
    #[prost(message, optional, tag = "1")]
    retry_delay: Option<Duration>,
}

/// What is said of a refusal that is answered so over HTTP.
pub(super) fn of(refused: &Refused, answer: &Response<String>, decision: DecisionId, now: Instant) -> Status {
    let (code, message) = (rpc_code(answer.status()), refused.told(decision, now));
    let metadata = HashMap::from([("decision".to_owned(), decision.to_string())]);
    let info = ErrorInfo { reason: refused.code().to_owned(), domain: DOMAIN.to_owned(), metadata };
    let mut details = vec![any("google.rpc.ErrorInfo", &info)];
    if let Some(wait) = refused.told_wait(decision, now) {
        details.push(any("google.rpc.RetryInfo", &RetryInfo { retry_delay: Some(duration(wait)) }));
    }
    let rich = RpcStatus { code: code.into(), message: message.clone(), details };
    let mut headers: HeaderMap = answer.headers().clone();
    headers.remove(CONTENT_TYPE);
    Status::with_details_and_metadata(code, message, rich.encode_to_vec().into(), MetadataMap::from_headers(headers))
}

fn any(name: &str, message: &impl Message) -> Any {
    Any { type_url: format!("type.googleapis.com/{name}"), value: message.encode_to_vec() }
}

fn duration(span: Span) -> Duration {
    const NANOS: u64 = 1_000_000_000;
    let seconds = i64::try_from(span.as_nanos() / NANOS).unwrap_or(i64::MAX);
    Duration { seconds, nanos: i32::try_from(span.as_nanos() % NANOS).unwrap_or(0) }
}

#[cfg(test)]
mod tests {
    use envoy_types::pb::google::rpc::Status as RpcStatus;
    use prost::Message as _;
    use tonic::Code;

    use super::{ErrorInfo, RetryInfo, of};
    use crate::units::{Bytes, DecisionId, Instant, RequestId};
    use crate::wire::answer::Refused;
    use crate::wire::dialect::Voice;

    #[test]
    fn a_refusal_says_the_same_in_code_details_and_metadata() {
        let decision = DecisionId { epoch: 7, request: RequestId::new(1) };
        for (refused, code, waits) in [
            (Refused::NoMemory, Code::ResourceExhausted, true),
            (Refused::Unidentified("no tenant".into()), Code::Unauthenticated, false),
            (Refused::ModelNotFound("x".into()), Code::NotFound, false),
            (Refused::BodyTooLarge { most: Bytes::new(1) }, Code::ResourceExhausted, false),
            (Refused::Malformed("bad".into()), Code::InvalidArgument, false),
            (Refused::Internal, Code::Internal, false),
        ] {
            let now = Instant::EPOCH;
            let status = of(&refused, &refused.answer(decision, now, Voice::OpenAi), decision, now);
            assert_eq!(status.code(), code);
            let rich = RpcStatus::decode(status.details()).expect("readable");
            assert_eq!((rich.code, rich.message.as_str()), (code.into(), status.message()));
            let info = ErrorInfo::decode(rich.details[0].value.as_slice()).expect("readable");
            assert_eq!((info.reason.as_str(), info.domain.as_str()), (refused.code(), "tallygate"));
            let reason = status.metadata().get("x-tallygate-reason").and_then(|value| value.to_str().ok());
            assert_eq!(reason, Some(refused.code()));
            let told = rich.details.get(1).map(|any| RetryInfo::decode(any.value.as_slice()).expect("readable"));
            assert_eq!(told.is_some(), waits);
            assert_eq!(status.metadata().get("retry-after-ms").is_some(), waits);
            assert!(told.is_none_or(|told| told.retry_delay.is_some_and(|delay| delay.seconds >= 5)));
        }
    }
}
