//! How long a client waits, as its headers tell.
//!
//! `x-tallygate-deadline-ms` is meant for us and must be right, and there once; a number too large for us is as long as
//! we can count. `x-envoy-expected-rq-timeout-ms`,
//! `x-stainless-read-timeout` and `x-stainless-timeout` (both in seconds) are others' words, as is `x-stainless-retry-count`, which says whether it waited before;
//! what cannot be read in them says nothing.

use http::HeaderMap;

use crate::admission::Attempt;
use crate::shell::Patience;
use crate::units::Span;

use super::super::answer::Refused;

const OURS: &str = "x-tallygate-deadline-ms";
const ENVOY: &str = "x-envoy-expected-rq-timeout-ms";
const STAINLESS: [&str; 2] = ["x-stainless-read-timeout", "x-stainless-timeout"];
const RETRIES: &str = "x-stainless-retry-count";

/// Reads the headers.
///
/// # Errors
/// When our own header is not a whole number of milliseconds, or comes more than once.
pub(super) fn read(headers: &HeaderMap) -> Result<Patience, Refused> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
    let millis = |text: &str| text.parse().ok().map(Span::from_millis);
    let malformed = |what: &str| Refused::Malformed(format!("the header {OURS} {what}"));
    let dispatch = match headers.get_all(OURS).iter().count() {
        0 => None,
        1 => Some(
            text(OURS)
                .and_then(saturating_millis)
                .ok_or_else(|| malformed("must be a whole number of milliseconds"))?,
        ),
        count => return Err(malformed(&format!("must come once, not {count} times"))),
    };
    let envoy = text(ENVOY).and_then(millis);
    let stainless = STAINLESS.iter().filter_map(|name| text(name)?.parse().ok());
    let stainless = stainless.filter(|secs: &f64| secs.is_finite() && *secs > 0.0).map(Span::from_secs_f64);
    let attempt = match text(RETRIES).and_then(|text| text.parse::<u32>().ok()) {
        None => Attempt::Unsaid,
        Some(0) => Attempt::First,
        Some(_) => Attempt::Again,
    };
    Ok(Patience { dispatch, answer: envoy.into_iter().chain(stainless).min(), attempt })
}

/// So many milliseconds; as many as there can be where the digits say more.
fn saturating_millis(digits: &str) -> Option<Span> {
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| Span::from_millis(digits.parse().unwrap_or(u64::MAX)))
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderName, HeaderValue};

    use super::{Refused, read};
    use crate::admission::Attempt;
    use crate::shell::Patience;
    use crate::units::Span;

    fn patience(pairs: &[(&'static str, &'static str)]) -> Option<Patience> {
        let headers: HeaderMap =
            pairs.iter().map(|(name, text)| (HeaderName::from_static(name), HeaderValue::from_static(text))).collect();
        read(&headers).ok()
    }

    #[test]
    fn the_sooner_of_what_is_told_counts() {
        let (dispatch, answer) = (Some(Span::from_millis(1_500)), Some(Span::from_secs(600)));
        let found = patience(&[("x-tallygate-deadline-ms", "1500"), ("x-stainless-read-timeout", "600.0")]);
        assert_eq!(found, Some(Patience { dispatch, answer, attempt: Attempt::Unsaid }));
        let found = patience(&[("x-envoy-expected-rq-timeout-ms", "2000"), ("x-stainless-read-timeout", "600")]);
        assert_eq!(found, Some(Patience { answer: Some(Span::from_secs(2)), ..Patience::default() }));
        let found = patience(&[("x-stainless-timeout", "600"), ("x-stainless-read-timeout", "3.5")]);
        assert_eq!(found, Some(Patience { answer: Some(Span::from_millis(3_500)), ..Patience::default() }));
        let found = patience(&[("x-stainless-timeout", "60")]);
        assert_eq!(found, Some(Patience { answer: Some(Span::from_secs(60)), ..Patience::default() }));
    }

    #[test]
    fn our_header_comes_once_and_a_huge_number_is_as_long_as_can_be() {
        for huge in ["18446744073709551615", "99999999999999999999999999"] {
            let found = patience(&[("x-tallygate-deadline-ms", huge)]);
            let dispatch = Some(Span::from_millis(u64::MAX));
            assert_eq!(found, Some(Patience { dispatch, ..Patience::default() }), "{huge}");
        }
        let mut headers = HeaderMap::new();
        for value in ["1500", "1500"] {
            headers.append("x-tallygate-deadline-ms", HeaderValue::from_static(value));
        }
        let message = "the header x-tallygate-deadline-ms must come once, not 2 times";
        assert_eq!(read(&headers), Err(Refused::Malformed(message.into())));
    }

    #[test]
    fn others_words_may_be_unreadable_ours_must_not() {
        for odd in ["NaN", "-1", "0", "None", "inf", ""] {
            assert_eq!(patience(&[("x-stainless-read-timeout", odd)]), Some(Patience::default()), "{odd}");
        }
        for odd in ["-1", "+1", "1.5", "soon", ""] {
            assert_eq!(patience(&[("x-tallygate-deadline-ms", odd)]), None, "{odd}");
        }
    }
}
