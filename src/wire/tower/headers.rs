//! Which headers go on to the service, and which of its own come back.
//!
//! Everything named `x-tallygate-…` is read here or means nothing, in either direction, so that nobody can speak for us.
//! A key of ours stays here. A body was decoded on its way in, and the service is asked not to compress, since what is
//! compressed cannot be watched.

use http::header::{
    ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, EXPECT, HeaderMap, HeaderName, HeaderValue, TRANSFER_ENCODING,
};

use super::super::exchange::{KEYS, OURS};

/// The headers of a request whose body is held, as the service is to see them.
pub(super) fn with_body(mut headers: HeaderMap, length: usize, our_key: bool) -> HeaderMap {
    for name in [CONTENT_ENCODING, EXPECT, TRANSFER_ENCODING] {
        headers.remove(name);
    }
    if length > 0 || headers.contains_key(CONTENT_LENGTH) {
        headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
    }
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    as_it_came(headers, our_key)
}

/// The headers of a request whose body goes on as it comes.
pub(super) fn as_it_came(mut headers: HeaderMap, our_key: bool) -> HeaderMap {
    without_ours(&mut headers);
    if our_key {
        for name in KEYS {
            headers.remove(name);
        }
    }
    headers
}

/// Takes our names out of an answer.
pub(super) fn without_ours(headers: &mut HeaderMap) {
    let ours: Vec<HeaderName> = headers.keys().filter(|name| name.as_str().starts_with(OURS)).cloned().collect();
    for name in ours {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderName, HeaderValue};

    use super::{as_it_came, with_body, without_ours};

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(name, text)| (HeaderName::from_static(name), HeaderValue::from_static(text))).collect()
    }

    fn names(headers: &HeaderMap) -> Vec<&str> {
        let mut names: Vec<&str> = headers.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn what_concerns_us_or_a_body_that_is_gone_stays_here() {
        let request = headers(&[
            ("content-length", "5"),
            ("expect", "100-continue"),
            ("content-encoding", "gzip"),
            ("accept-encoding", "gzip, br"),
            ("x-tallygate-deadline-ms", "5"),
            ("x-tallygate-forged", "1"),
            ("authorization", "Bearer theirs"),
            ("content-type", "application/json"),
        ]);
        let onward = with_body(request.clone(), 7, false);
        assert_eq!(names(&onward), ["accept-encoding", "authorization", "content-length", "content-type"]);
        assert_eq!(
            (&onward["accept-encoding"], &onward["content-length"]),
            (&"identity".parse().unwrap(), &"7".parse().unwrap())
        );
        let untouched = as_it_came(request, false);
        assert_eq!(
            (&untouched["accept-encoding"], &untouched["content-length"]),
            (&"gzip, br".parse().unwrap(), &"5".parse().unwrap())
        );
        let mut answer = headers(&[("x-tallygate-decision", "forged"), ("content-length", "5")]);
        without_ours(&mut answer);
        assert_eq!(names(&answer), ["content-length"]);
    }

    #[test]
    fn our_key_never_reaches_the_service() {
        let request = headers(&[("authorization", "Bearer ours"), ("x-api-key", "ours")]);
        assert_eq!(names(&with_body(request.clone(), 0, true)), ["accept-encoding"]);
        assert_eq!(names(&as_it_came(request, true)), Vec::<&str>::new());
    }
}
