//! One question to the admin API, and its answer.

use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use bytes::Bytes;
use http::{Method, Request, Uri, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;

use crate::settings::{ADMIN_TOKEN, Secret};

/// The most that is read of an answer.
const ANSWER_MOST: usize = 256 * 1024 * 1024;
/// How long an answer may take.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// What is asked.
#[derive(Debug)]
pub(super) struct Question {
    method: Method,
    path: String,
    body: String,
}

impl Question {
    pub(super) fn get(path: &str) -> Self {
        Self { method: Method::GET, path: path.to_owned(), body: String::new() }
    }

    pub(super) fn post(path: &str, body: String) -> Self {
        Self { method: Method::POST, path: path.to_owned(), body }
    }

    /// With a parameter.
    pub(super) fn with(mut self, name: &str, value: &str) -> Self {
        let sign = if self.path.contains('?') { '&' } else { '?' };
        self.path = format!("{}{sign}{name}={}", self.path, encoded(value));
        self
    }

    /// With a last segment of its path.
    pub(super) fn below(mut self, segment: &str) -> Self {
        self.path += &encoded(segment);
        self
    }

    /// Asks the API at an address.
    pub(super) async fn ask(self, base: &Uri, token: Option<&Secret>) -> anyhow::Result<Bytes> {
        if base.scheme_str() != Some("http") || base.authority().is_none() {
            bail!("--url must look like http://host:port, not {base}");
        }
        let base = base.to_string();
        let url = format!("{}{}", base.trim_end_matches('/'), self.path);
        let mut request = Request::builder().method(self.method).uri(&url);
        if let Some(token) = token {
            request = request
                .header(header::AUTHORIZATION, token.bearer().map_err(|error| anyhow!("{ADMIN_TOKEN}: {error}"))?);
        }
        let client = Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
        let asking = async {
            let response = client
                .request(request.body(Full::from(self.body))?)
                .await
                .with_context(|| format!("no gateway answers at {base}; is `tallygate serve` running?"))?;
            let status = response.status();
            let body = Limited::new(response.into_body(), ANSWER_MOST).collect().await;
            let body = body.map_err(|error| anyhow!("the answer broke off: {error}"))?.to_bytes();
            Ok::<_, anyhow::Error>((status, body))
        };
        let (status, body) = tokio::time::timeout(ANSWER_WITHIN, asking)
            .await
            .map_err(|_elapsed| anyhow!("no answer from {base} within {} s", ANSWER_WITHIN.as_secs()))??;
        if !status.is_success() {
            let said: Value = serde_json::from_slice(&body).unwrap_or_default();
            let message = said["error"]["message"].as_str().unwrap_or("it does not say why");
            bail!("{url} answered {status}: {message}");
        }
        Ok(body)
    }
}

/// Percent-encodes all but what is plain everywhere (RFC 3986, section 2.3).
fn encoded(text: &str) -> String {
    let one = |byte: u8| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => char::from(byte).to_string(),
        byte => format!("%{byte:02X}"),
    };
    text.bytes().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::Question;

    #[test]
    fn names_of_any_kind_fit_into_a_question() {
        let question = Question::get("/v1/decisions").with("tenant", "a&b é").with("limit", "5");
        assert_eq!(question.path, "/v1/decisions?tenant=a%26b%20%C3%A9&limit=5");
        assert_eq!(Question::get("/v1/decisions/").below("../x").path, "/v1/decisions/..%2Fx");
    }
}
