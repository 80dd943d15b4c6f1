//! How gRPC says how a call went: a number in `grpc-status`, in the trailers, or in the head of an answer without any.
//!
//! Its numbers and HTTP's are put into each other's place as Google's API guide does (`google/rpc/code.proto`), so that
//! the one table of answers, and the rules about an upstream's failures, need to know HTTP's alone.

use std::fmt::Write as _;

use http::StatusCode;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};

use crate::units::Status;

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
/// When a client may try again, in milliseconds (gRPC's A6); below zero it is not to.
const PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");
const RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");

/// Each of gRPC's numbers with HTTP's, the one to answer with first.
const NUMBERS: [(u16, u16); 19] = [
    (0, 200),
    (3, 400),
    (16, 401),
    (7, 403),
    (5, 404),
    (10, 409),
    (8, 413),
    (8, 429),
    (1, 499),
    (13, 500),
    (12, 501),
    (14, 502),
    (14, 503),
    (14, 529),
    (4, 504),
    (6, 409),
    (9, 400),
    (11, 400),
    (15, 500),
];

/// Whether a request is a call of gRPC's.
pub(in crate::wire) fn is_call(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    kind.and_then(|kind| kind.strip_prefix("application/grpc")).is_some_and(|rest| !rest.starts_with("-web"))
}

/// How a call went, where this says so.
pub(in crate::wire) fn status(headers: &HeaderMap) -> Option<Status> {
    let number = headers.get(GRPC_STATUS)?.to_str().ok()?.trim().parse::<u16>().ok()?;
    let http = match number {
        // Not too large for us, as the table has it for what we answer: too much of something.
        8 => 429,
        14 => 503,
        number => NUMBERS.iter().find(|(grpc, _)| *grpc == number).map_or(500, |(_, http)| *http),
    };
    Some(Status::new(http))
}

/// The number by which gRPC says what HTTP says by a status.
pub(in crate::wire) fn number(status: StatusCode) -> u16 {
    NUMBERS.iter().find(|(_, http)| *http == status.as_u16()).map_or(2, |(grpc, _)| *grpc)
}

/// Writes that a call failed.
pub(in crate::wire) fn fail(headers: &mut HeaderMap, status: StatusCode, message: &str) {
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert(GRPC_STATUS, HeaderValue::from(number(status)));
    headers.insert(GRPC_MESSAGE, percent_encoded(message));
    let pushback = headers.get(RETRY_AFTER_MS).filter(|_| headers.contains_key(RETRY_AFTER)).cloned();
    headers.insert(PUSHBACK, pushback.unwrap_or(HeaderValue::from_static("-1")));
}

/// A message as gRPC wants it: what is not plain ASCII, and `%`, by its bytes in hexadecimal.
fn percent_encoded(message: &str) -> HeaderValue {
    let mut encoded = String::with_capacity(message.len());
    for byte in message.bytes() {
        match byte {
            b' '..=b'~' if byte != b'%' => encoded.push(char::from(byte)),
            byte => write!(encoded, "%{byte:02X}").expect("a string takes all"),
        }
    }
    HeaderValue::try_from(encoded).expect("printable ASCII is a legal header value")
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

    use super::{fail, is_call, number, status};

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(name, text)| (HeaderName::from_static(name), HeaderValue::from_static(text))).collect()
    }

    #[test]
    fn a_call_is_known_by_its_content_type() {
        for (kind, call) in [
            ("application/grpc", true),
            ("application/grpc+proto", true),
            ("application/grpc-web", false),
            ("application/json", false),
        ] {
            assert_eq!(is_call(&headers(&[("content-type", kind)])), call, "{kind}");
        }
    }

    #[test]
    fn every_number_means_something_in_http() {
        for (number, http) in [
            ("0", 200),
            ("1", 499),
            ("3", 400),
            ("4", 504),
            ("8", 429),
            ("9", 400),
            ("13", 500),
            ("14", 503),
            ("99", 500),
        ] {
            let told = status(&headers(&[("grpc-status", number)])).expect("it says");
            assert_eq!(told.get(), http, "{number}");
        }
        assert_eq!(status(&headers(&[("grpc-status", "x")])), None);
        assert_eq!(status(&HeaderMap::new()), None);
    }

    #[test]
    fn every_status_that_is_answered_with_has_a_number_of_its_own_kind() {
        let answered = [(200, 0), (400, 3), (401, 16), (403, 7), (404, 5), (413, 8), (429, 8), (500, 13)];
        let upstream = [(502, 14), (503, 14), (504, 4), (529, 14)];
        for (http, grpc) in answered.into_iter().chain(upstream) {
            assert_eq!(number(StatusCode::from_u16(http).expect("a status")), grpc, "{http}");
        }
        assert_eq!(number(StatusCode::IM_A_TEAPOT), 2, "unknown");
    }

    #[test]
    fn a_failure_is_told_with_when_to_come_back() {
        let mut soon = headers(&[("retry-after", "2"), ("retry-after-ms", "1500")]);
        fail(&mut soon, StatusCode::TOO_MANY_REQUESTS, "wait – 5 %");
        assert_eq!(
            (&soon["grpc-status"], &soon["grpc-retry-pushback-ms"]),
            (&"8".parse().unwrap(), &"1500".parse().unwrap())
        );
        assert_eq!(soon["grpc-message"], "wait %E2%80%93 5 %25");
        let mut never = HeaderMap::new();
        fail(&mut never, StatusCode::NOT_FOUND, "no");
        assert_eq!(
            (&never["grpc-status"], &never["grpc-retry-pushback-ms"]),
            (&"5".parse().unwrap(), &"-1".parse().unwrap())
        );
    }
}
