//! Sends one request and watches its answer arrive.

use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use bytes::Bytes;
use http::{Request, StatusCode, Uri, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Body, Incoming};
use hyper_util::client::legacy::Client as Pool;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::plan::Shot;
use crate::record::{Outcome, Record};
use crate::retry::Told;

/// The most read of an answer that is not a stream.
const MOST_BODY: usize = 16 << 20;
/// The longest line of a stream.
const MOST_LINE: usize = 1 << 20;

/// Words of one token each, so that a prompt has as many tokens as words.
const WORDS: [&str; 16] = [
    "time", "people", "water", "day", "part", "place", "sound", "work", "man", "year", "name", "line", "boy", "air",
    "house", "hand",
];

/// Where requests go and how time is told.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pool: Pool<HttpConnector, Full<Bytes>>,
    uri: Uri,
    model: String,
    began: Instant,
    /// Requests are offered until then, and tokens count towards throughput.
    offered_for: Duration,
}

impl Target {
    pub(crate) fn new(url: &str, model: &str, offered_for: Duration) -> anyhow::Result<Self> {
        let url = url.trim_end_matches('/');
        let uri: Uri = format!("{url}/v1/chat/completions").parse().with_context(|| format!("{url:?} is not a URL"))?;
        if uri.scheme_str() != Some("http") || uri.host().is_none() {
            bail!("{url:?} must be an http:// URL with a host");
        }
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let pool = Pool::builder(TokioExecutor::new()).build(connector);
        Ok(Self { pool, uri, model: model.to_owned(), began: Instant::now(), offered_for })
    }

    /// Time since the run began.
    pub(crate) fn now(&self) -> Duration {
        self.began.elapsed()
    }

    pub(crate) fn began(&self) -> Instant {
        self.began
    }

    pub(crate) fn offered_for(&self) -> Duration {
        self.offered_for
    }

    /// Sends a request and follows it to its end, writing down what happens as it happens, so that a caller who
    /// stops waiting still has what was seen so far.
    pub(crate) async fn fire(&self, shot: &Shot, record: &mut Record) {
        record.sent = Some(self.now());
        let ended = match shot.sender.gives_up_after {
            // Dropping the exchange closes its connection, as a client that gives up does.
            Some(patience) => tokio::time::timeout(patience, self.exchange(shot, record)).await,
            None => Ok(self.exchange(shot, record).await),
        };
        record.ended = Some(self.now());
        record.outcome = match ended {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(error)) => Outcome::Failed(format!("{error:#}")),
            Err(_) => Outcome::GaveUp,
        };
    }

    async fn exchange(&self, shot: &Shot, record: &mut Record) -> anyhow::Result<Outcome> {
        let response = self.pool.request(self.request(shot)?).await.map_err(|error| anyhow!("{}", root(&error)))?;
        let text = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        record.queue = text("x-tallygate-queue-ms")
            .and_then(|ms| ms.parse().ok())
            .map(|ms: f64| Duration::from_secs_f64(ms.max(0.0) / 1e3));
        record.retry_after = text("retry-after");
        record.told = Told::read(response.headers());
        let status = response.status();
        if status != StatusCode::OK {
            let body = whole(response.into_body()).await.unwrap_or_default();
            let code = body.pointer("/error/code").and_then(Value::as_str).unwrap_or("none").to_owned();
            return Ok(Outcome::Refused { status: status.as_u16(), code });
        }
        if shot.sender.streamed {
            self.follow(response.into_body(), record).await?;
        } else {
            let body = whole(response.into_body()).await?;
            let output = body.pointer("/usage/completion_tokens").and_then(Value::as_u64).context("no usage")?;
            self.saw(record, output);
            self.usage(record, &body);
        }
        Ok(Outcome::Completed)
    }

    fn request(&self, shot: &Shot) -> anyhow::Result<Request<Full<Bytes>>> {
        let words: Vec<&str> = WORDS.into_iter().cycle().take(usize::try_from(shot.input)?).collect();
        let mut body = json!({
            "model": self.model,
            "messages": [{"role": "user", "content": words.join(" ")}],
            "max_tokens": shot.output,
            "ignore_eos": true,
        });
        if shot.sender.streamed {
            body["stream"] = json!(true);
            body["stream_options"] = json!({"include_usage": true});
        }
        let mut request = Request::post(&self.uri)
            .header(header::CONTENT_TYPE, "application/json")
            .header("x-stainless-retry-count", shot.attempt);
        request = match &shot.sender.api_key {
            Some(key) => request.header(header::AUTHORIZATION, format!("Bearer {key}")),
            None => request.header("x-tenant-id", &shot.sender.tenant),
        };
        for (name, value) in [("x-session-id", &shot.sender.session), ("x-priority", &shot.sender.class)] {
            if let Some(value) = value {
                request = request.header(name, value);
            }
        }
        Ok(request.body(Full::from(body.to_string()))?)
    }

    /// Reads a stream of events to its end mark.
    async fn follow(&self, mut body: Incoming, record: &mut Record) -> anyhow::Result<()> {
        let mut pending: Vec<u8> = Vec::new();
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame.map_err(|error| anyhow!("cut off: {}", root(&error)))?.into_data() else { continue };
            pending.extend_from_slice(&data);
            while let Some(end) = pending.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = pending.drain(..=end).collect();
                if self.line(&line, record)? {
                    return Ok(());
                }
            }
            if pending.len() > MOST_LINE {
                bail!("a line of more than {MOST_LINE} bytes");
            }
        }
        bail!("the stream ended without [DONE]")
    }

    /// Takes one line of a stream; true at the end mark.
    fn line(&self, line: &[u8], record: &mut Record) -> anyhow::Result<bool> {
        let Some(data) = line.trim_ascii().strip_prefix(b"data:").map(<[u8]>::trim_ascii_start) else {
            return Ok(false);
        };
        if data == b"[DONE]" {
            return Ok(true);
        }
        let event: Value = serde_json::from_slice(data).context("an event that is not JSON")?;
        if let Some(error) = event.get("error") {
            bail!("an error in the stream: {error}");
        }
        let content = event.pointer("/choices/0/delta/content").and_then(Value::as_str);
        if content.is_some_and(|content| !content.is_empty()) {
            self.saw(record, 1);
        }
        self.usage(record, &event);
        Ok(false)
    }

    fn saw(&self, record: &mut Record, tokens: u64) {
        let now = self.now();
        record.first_token.get_or_insert(now);
        record.output += tokens;
        if now <= self.offered_for {
            record.output_in_time += tokens;
        }
    }

    fn usage(&self, record: &mut Record, event: &Value) {
        let count = |name: &str| event.pointer(&format!("/usage/{name}")).and_then(Value::as_u64);
        if let (Some(input), Some(output)) = (count("prompt_tokens"), count("completion_tokens")) {
            record.input = input;
            record.reported_output = Some(output);
        }
    }
}

async fn whole<B>(body: B) -> anyhow::Result<Value>
where
    B: Body,
    B::Error: std::error::Error + Send + Sync + 'static,
{
    let bytes = Limited::new(body, MOST_BODY).collect().await.map_err(|error| anyhow!("cut off: {error}"))?.to_bytes();
    serde_json::from_slice(&bytes).context("an answer that is not JSON")
}

/// The innermost cause, which is the one that says something.
fn root(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::{Record, Target};
    use crate::plan::{Sender, Shot};

    fn record() -> Record {
        let sender = Sender::plain("a".into(), None);
        Record::new(&Shot { at: Duration::ZERO, sender: Arc::new(sender), input: 5, output: 2, attempt: 0 }, true)
    }

    #[test]
    fn tokens_are_the_chunks_that_carry_text() {
        let target = Target::new("http://127.0.0.1:1", "demo", Duration::from_secs(60)).expect("a URL");
        let mut seen = record();
        for (line, ends) in [
            ("", false),
            (": a comment", false),
            (r#"data: {"choices":[{"delta":{"role":"assistant","content":""}}]}"#, false),
            (r#"data: {"choices":[{"delta":{"content":"one"}}]}"#, false),
            (r#"data: {"choices":[{"delta":{"content":" two"}}],"usage":null}"#, false),
            (r#"data: {"choices":[],"usage":{"prompt_tokens":12,"completion_tokens":2}}"#, false),
            ("data: [DONE]", true),
        ] {
            assert_eq!(target.line(line.as_bytes(), &mut seen).expect("understood"), ends, "{line}");
        }
        assert_eq!((seen.output, seen.output_in_time, seen.reported_output, seen.input), (2, 2, Some(2), 12));
        assert!(seen.first_token.is_some());
        assert!(target.line(b"data: {oops", &mut seen).is_err());
        assert!(target.line(br#"data: {"error":{"message":"x"}}"#, &mut seen).is_err());
    }

    #[test]
    fn only_plain_http_urls_are_taken() {
        for bad in ["https://127.0.0.1", "127.0.0.1:80", "not a url"] {
            assert!(Target::new(bad, "demo", Duration::ZERO).is_err(), "{bad}");
        }
    }
}
