//! What the head of an upstream's answer says of the upstream: its status, and after how long to come back.
//!
//! `retry-after-ms` is read first, which says it exactly, then `Retry-After`: seconds, whole or not, or a date. A date is
//! reckoned from the answer's own `Date`, where it has one, so that two clocks that differ do no harm. What cannot be
//! read, and what is not after now, says nothing. And how often a proxy before the upstream tried.

use http::header::{DATE, HeaderMap, RETRY_AFTER};
use http::{HeaderName, StatusCode};

use crate::admission::Heard;
use crate::units::{Span, Status};

const RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");

/// How often an Envoy before the upstream tried, where it is told to say so (`include_attempt_count_in_response`).
const ATTEMPTS: HeaderName = HeaderName::from_static("x-envoy-attempt-count");
/// No proxy tries more often.
const MOST_ATTEMPTS: u32 = 100;

/// What a head says, at so many seconds since 1970.
pub(super) fn heard(status: StatusCode, headers: &HeaderMap, unix_now: f64) -> Heard {
    let attempts: u32 = headers
        .get(ATTEMPTS)
        .and_then(|value| value.to_str().ok())
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(1);
    Heard {
        status: Status::new(status.as_u16()),
        retry_after: retry_after(headers, unix_now),
        further_attempts: attempts.saturating_sub(1).min(MOST_ATTEMPTS),
    }
}

fn retry_after(headers: &HeaderMap, unix_now: f64) -> Option<Span> {
    let text = |name: &HeaderName| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
    let number = |text: &str| text.parse::<f64>().ok();
    let in_millis = text(&RETRY_AFTER_MS).and_then(number).map(|millis| millis / 1e3);
    let in_secs = || text(&RETRY_AFTER).and_then(number);
    let by_date = || {
        let until = date(text(&RETRY_AFTER)?)?;
        let from = text(&DATE).and_then(date).unwrap_or(unix_now);
        Some(until - from)
    };
    let secs = in_millis.or_else(in_secs).or_else(by_date)?;
    (secs.is_finite() && secs > 0.0).then(|| Span::from_secs_f64(secs))
}

/// A date in seconds since 1970.
fn date(text: &str) -> Option<f64> {
    let moment = httpdate::parse_http_date(text).ok()?;
    moment.duration_since(std::time::UNIX_EPOCH).ok().map(|since| since.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

    use super::{Heard, Span, Status, heard};

    type Pairs = &'static [(&'static str, &'static str)];

    /// Sunday, 6 November 1994, 08:49:37.
    const NOW: f64 = 784_111_777.0;

    #[test]
    fn an_upstreams_word_is_read_in_every_form_and_nonsense_says_nothing() {
        let day = Some(Span::from_secs(86_400));
        let cases: [(Pairs, Option<Span>); 14] = [
            (&[("retry-after", "20")], Some(Span::from_secs(20))),
            (&[("retry-after", " 86400 ")], day),
            (&[("retry-after", "1.5")], Some(Span::from_millis(1_500))),
            (&[("retry-after-ms", "250"), ("retry-after", "1")], Some(Span::from_millis(250))),
            (&[("retry-after-ms", "soon"), ("retry-after", "1")], Some(Span::from_secs(1))),
            (&[("retry-after", "Mon, 07 Nov 1994 08:49:37 GMT")], day),
            (
                &[("retry-after", "Mon, 07 Nov 1994 08:49:37 GMT"), ("date", "Mon, 07 Nov 1994 08:49:07 GMT")],
                Some(Span::from_secs(30)),
            ),
            (&[("retry-after", "Sun, 06 Nov 1994 08:49:30 GMT")], None),
            (&[("retry-after", "0")], None),
            (&[("retry-after", "-5")], None),
            (&[("retry-after", "NaN")], None),
            (&[("retry-after", "inf")], None),
            (&[("retry-after", "later")], None),
            (&[], None),
        ];
        for (pairs, wanted) in cases {
            let pair = |(name, value): &(&str, &str)| {
                (name.parse::<HeaderName>().expect("a name"), HeaderValue::from_str(value).expect("a value"))
            };
            let headers: HeaderMap = pairs.iter().map(pair).collect();
            let found = heard(StatusCode::SERVICE_UNAVAILABLE, &headers, NOW);
            assert_eq!(
                found,
                Heard { status: Status::new(503), retry_after: wanted, further_attempts: 0 },
                "{pairs:?}"
            );
        }
    }
    #[test]
    fn further_attempts_are_those_behind_the_first() {
        for (text, wanted) in [("1", 0), ("3", 2), ("0", 0), ("-1", 0), ("many", 0), ("4000000000", 100)] {
            let headers = HeaderMap::from_iter([(super::ATTEMPTS, HeaderValue::from_static(text))]);
            assert_eq!(heard(StatusCode::OK, &headers, NOW).further_attempts, wanted, "{text}");
        }
    }
}
