//! Which headers travel on.
//!
//! Those that concern one connection only do not (RFC 9110, section 7.6.1). What concerns us the layer has kept already.

use http::header::{
    AUTHORIZATION, CONNECTION, CONTENT_LENGTH, EXPECT, HOST, HeaderMap, HeaderName, HeaderValue, TE, TRAILER,
    TRANSFER_ENCODING, UPGRADE,
};

use super::super::exchange::KEYS;

const HOP_BY_HOP: [HeaderName; 9] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-authenticate"),
    HeaderName::from_static("proxy-authorization"),
    HeaderName::from_static("proxy-connection"),
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
];

/// The headers of a request as the upstream is to see them. The length is the client's to write anew.
pub(super) fn for_upstream(headers: &HeaderMap) -> HeaderMap {
    let mut onward = headers.clone();
    strip(&mut onward);
    for name in [HOST, CONTENT_LENGTH, EXPECT] {
        onward.remove(name);
    }
    onward
}

/// Shows the upstream this key and no other.
pub(super) fn show_key(headers: &mut HeaderMap, key: &HeaderValue) {
    for name in KEYS {
        headers.remove(name);
    }
    headers.insert(AUTHORIZATION, key.clone());
}

/// Takes out of an answer what does not travel on.
pub(super) fn clean_answer(headers: &mut HeaderMap) {
    strip(headers);
}

fn strip(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named.into_iter().chain(HOP_BY_HOP) {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderName, HeaderValue};

    use super::{clean_answer, for_upstream, show_key};

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(name, text)| (HeaderName::from_static(name), HeaderValue::from_static(text))).collect()
    }

    fn names(headers: &HeaderMap) -> Vec<&str> {
        let mut names: Vec<&str> = headers.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn what_concerns_one_connection_stays_here() {
        let request = headers(&[
            ("host", "gateway"),
            ("connection", "close, x-hop"),
            ("x-hop", "1"),
            ("te", "trailers"),
            ("transfer-encoding", "chunked"),
            ("content-length", "5"),
            ("expect", "100-continue"),
            ("authorization", "Bearer theirs"),
            ("content-type", "application/json"),
        ]);
        assert_eq!(names(&for_upstream(&request)), ["authorization", "content-type"]);
        let mut answer = headers(&[("keep-alive", "5"), ("content-length", "5")]);
        clean_answer(&mut answer);
        assert_eq!(names(&answer), ["content-length"]);
    }

    #[test]
    fn the_upstream_is_shown_its_own_key() {
        let mut onward = headers(&[("authorization", "Bearer theirs"), ("x-api-key", "theirs")]);
        show_key(&mut onward, &HeaderValue::from_static("Bearer upstream"));
        assert_eq!(names(&onward), ["authorization"]);
        assert_eq!(onward["authorization"], "Bearer upstream");
    }
}
