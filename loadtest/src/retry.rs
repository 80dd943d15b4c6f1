//! Whether and when a refused request is sent again: the rules of the official OpenAI and Anthropic SDKs for Python.
//!
//! Refusals with 408, 409, 429 or 500 and above are retried, at most as often as the client is set to (2 is their
//! default), unless `x-should-retry` says no. A wait that is named is kept to the millisecond where it is at most a
//! minute (one of them keeps up to two; none of ours between is ever retried, since `x-should-retry: false` goes with
//! them). Where none is named they wait `min(0.5 × 2ⁿ, 8)` seconds, less a random quarter.
//! `loadtest/sdk_rules.py` asks the real SDKs the same questions, and a test compares.

use std::time::Duration;

use http::HeaderMap;

/// The longest wait that both SDKs keep.
const LONGEST_KEPT: Duration = Duration::from_secs(60);
const FIRST_BACKOFF_S: f64 = 0.5;
const LONGEST_BACKOFF_S: f64 = 8.0;

/// What a refusal says about coming back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Told {
    /// How long to wait.
    pub(crate) wait: Option<Duration>,
    /// Whether to come back at all, where it says.
    pub(crate) should: Option<bool>,
}

/// When a client comes back.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Return {
    /// When it was told to.
    Heeding(Duration),
    /// When it thinks fit.
    OnItsOwn(Duration),
    /// Not at all.
    Never,
}

impl Told {
    /// Reads the headers as the SDKs do: `retry-after-ms` before `retry-after`, and nothing of 0 or less.
    pub(crate) fn read(headers: &HeaderMap) -> Self {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let number = |name: &str, scale: f64| text(name).and_then(|text| text.parse::<f64>().ok()).map(|n| n * scale);
        let seconds = number("retry-after-ms", 1e-3).or_else(|| number("retry-after", 1.0));
        let wait = seconds.filter(|secs| *secs > 0.0 && secs.is_finite()).map(Duration::from_secs_f64);
        let should = match text("x-should-retry") {
            Some("true") => Some(true),
            Some("false") => Some(false),
            _ => None,
        };
        Self { wait, should }
    }
}

/// What a client does after the refusal of its attempt number `attempt`, of which the first is 0. `chance` lies in
/// 0..1.
pub(crate) fn after(status: u16, told: Told, attempt: u32, retries: u32, chance: f64) -> Return {
    let retried = told.should.unwrap_or(matches!(status, 408 | 409 | 429 | 500..));
    if !retried || attempt >= retries {
        return Return::Never;
    }
    match told.wait {
        Some(wait) if wait <= LONGEST_KEPT => Return::Heeding(wait),
        _ => Return::OnItsOwn(backoff(attempt, chance)),
    }
}

/// The SDKs' own wait.
fn backoff(attempt: u32, chance: f64) -> Duration {
    let longest = (FIRST_BACKOFF_S * f64::from(attempt).exp2()).min(LONGEST_BACKOFF_S);
    Duration::from_secs_f64(longest * (1.0 - 0.25 * chance))
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Command;
    use std::time::Duration;

    use http::{HeaderMap, HeaderName, HeaderValue};
    use serde_json::{Value, json};

    use super::{Return, Told, after};

    /// Status, headers, attempt: what both SDKs are asked, and we.
    type Question = (u16, &'static [(&'static str, &'static str)], u32);

    const QUESTIONS: [Question; 12] = [
        (429, &[("retry-after", "3")], 0),
        (429, &[("retry-after", "4"), ("retry-after-ms", "3210")], 0),
        (429, &[("retry-after", "60")], 1),
        (429, &[("retry-after", "61"), ("x-should-retry", "false")], 0),
        (429, &[("retry-after", "0")], 0),
        (429, &[], 1),
        (503, &[("retry-after", "2")], 0),
        (529, &[], 0),
        (400, &[], 0),
        (413, &[], 0),
        (408, &[], 0),
        (429, &[("retry-after", "1")], 2),
    ];

    fn told(headers: &[(&'static str, &'static str)]) -> Told {
        let header = |(name, value): &(&'static str, &'static str)| {
            (HeaderName::from_static(name), HeaderValue::from_static(value))
        };
        Told::read(&headers.iter().map(header).collect::<HeaderMap>())
    }

    #[test]
    fn what_is_named_is_kept_and_the_rest_backs_off() {
        let ask = |at: usize| {
            let (status, headers, attempt) = QUESTIONS[at];
            after(status, told(headers), attempt, 2, 0.0)
        };
        assert_eq!(ask(0), Return::Heeding(Duration::from_secs(3)));
        assert_eq!(ask(1), Return::Heeding(Duration::from_millis(3_210)));
        assert_eq!(ask(3), Return::Never);
        assert_eq!(ask(4), Return::OnItsOwn(Duration::from_millis(500)));
        assert_eq!(ask(5), Return::OnItsOwn(Duration::from_secs(1)));
        assert_eq!(ask(8), Return::Never);
        assert_eq!(ask(11), Return::Never, "no retries left");
    }

    /// Asks the real SDKs.
    #[test]
    fn the_rules_are_those_of_the_official_sdks() {
        let Some(python) = std::env::var_os("TALLYGATE_PYTHON") else {
            eprintln!("SKIPPED: needs a Python with the official SDKs, in TALLYGATE_PYTHON");
            return;
        };
        let questions: Vec<Value> = QUESTIONS
            .iter()
            .map(|(status, headers, attempt)| {
                let headers: serde_json::Map<String, Value> =
                    headers.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
                json!({"status": status, "headers": headers, "attempt": attempt, "retries": 2})
            })
            .collect();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("sdk_rules.py");
        let asked = Command::new(python).arg(script).arg(Value::from(questions).to_string()).output().expect("runs");
        assert!(asked.status.success(), "{}", String::from_utf8_lossy(&asked.stderr));
        let answers: Vec<Vec<Value>> = serde_json::from_slice(&asked.stdout).expect("a list for each SDK");
        assert_eq!(answers.len(), 2, "OpenAI's and Anthropic's");
        for (sdk, answers) in answers.iter().enumerate() {
            for ((status, headers, attempt), answer) in QUESTIONS.iter().zip(answers) {
                let bounds = |chance| match after(*status, told(headers), *attempt, 2, chance) {
                    Return::Heeding(wait) | Return::OnItsOwn(wait) => Some(wait.as_secs_f64()),
                    Return::Never => None,
                };
                let same = match (answer.as_f64(), bounds(1.0), bounds(0.0)) {
                    (Some(theirs), Some(least), Some(most)) => (least - 1e-6..=most + 1e-6).contains(&theirs),
                    (None, None, None) => true,
                    _ => false,
                };
                assert!(same, "SDK {sdk}, {status} {headers:?} {attempt}: {answer}, not {:?}", bounds(0.0));
            }
        }
    }
}
