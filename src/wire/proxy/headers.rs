//! Which headers travel on.
//!
//! Those that concern one connection only do not (RFC 9110, section 7.6.1), nor those that concern us: everything
//! named `x-tallygate-…` is read here or means nothing, in either direction, so that nobody can speak for us. The
//! upstream is asked not to compress, since what is compressed cannot be watched.

use http::header::{
    ACCEPT_ENCODING, AUTHORIZATION, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, EXPECT, HOST, HeaderMap, HeaderName,
    HeaderValue, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};

use super::super::exchange::{KEYS, OURS};

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

/// The headers of a request as the upstream is to see them. A key of ours stays here.
pub(super) fn for_upstream(headers: &HeaderMap, our_key: bool) -> HeaderMap {
    let mut onward = headers.clone();
    strip(&mut onward);
    // A body was decoded on its way in.
    for name in [HOST, CONTENT_LENGTH, CONTENT_ENCODING, EXPECT] {
        onward.remove(name);
    }
    if our_key {
        remove_keys(&mut onward);
    }
    onward.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    onward
}

/// Shows the upstream this key and no other.
pub(super) fn show_key(headers: &mut HeaderMap, key: &HeaderValue) {
    remove_keys(headers);
    headers.insert(AUTHORIZATION, key.clone());
}

fn remove_keys(headers: &mut HeaderMap) {
    for name in KEYS {
        headers.remove(name);
    }
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
    let ours = headers.keys().filter(|name| name.as_str().starts_with(OURS)).cloned();
    let going: Vec<HeaderName> = ours.chain(named).chain(HOP_BY_HOP).collect();
    for name in going {
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
    fn what_concerns_one_connection_or_us_stays_here() {
        let request = headers(&[
            ("host", "gateway"),
            ("connection", "close, x-hop"),
            ("x-hop", "1"),
            ("te", "trailers"),
            ("transfer-encoding", "chunked"),
            ("content-length", "5"),
            ("expect", "100-continue"),
            ("content-encoding", "gzip"),
            ("accept-encoding", "gzip, br"),
            ("x-tallygate-deadline-ms", "5"),
            ("x-tallygate-forged", "1"),
            ("authorization", "Bearer theirs"),
            ("content-type", "application/json"),
        ]);
        let onward = for_upstream(&request, false);
        assert_eq!(names(&onward), ["accept-encoding", "authorization", "content-type"]);
        assert_eq!(onward["accept-encoding"], "identity");
        let mut answer = headers(&[("x-tallygate-decision", "forged"), ("keep-alive", "5"), ("content-length", "5")]);
        clean_answer(&mut answer);
        assert_eq!(names(&answer), ["content-length"]);
    }

    #[test]
    fn our_key_never_reaches_the_upstream() {
        let request = headers(&[("authorization", "Bearer ours"), ("x-api-key", "ours")]);
        let mut onward = for_upstream(&request, true);
        assert_eq!(names(&onward), ["accept-encoding"]);
        show_key(&mut onward, &HeaderValue::from_static("Bearer upstream"));
        assert_eq!(onward["authorization"], "Bearer upstream");
    }
}
