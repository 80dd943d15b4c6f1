//! An answer as it leaves: whole, or token by token as server-sent events.
//!
//! A task per stream follows the engine and writes frames into a short bounded channel; a reader that is slow makes
//! it wait, and it then catches up in one frame. When the reader is gone the task ends, and with it the job.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::Frame;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};

use crate::units::Tokens;
use crate::wire::dialect::Dialect;

use super::apis;
use super::chat::{Rejection, UsageIn};
use super::driver::Answered;
use super::length::EndsBecause;
use super::words;

/// Frames written and not yet sent.
const FRAMES: usize = 4;

/// What stays the same through one answer.
#[derive(Clone, Debug)]
pub(super) struct Header {
    /// The API it is written for.
    pub(super) dialect: Dialect,
    /// The answer's number; its text follows from it.
    pub(super) number: u64,
    /// When it was asked for, in seconds since 1970.
    pub(super) created: u64,
    pub(super) model: String,
    pub(super) input: Tokens,
    pub(super) ending: EndsBecause,
}

impl Header {
    fn id(&self) -> String {
        format!("chatcmpl-demo-{}", self.number)
    }

    pub(super) fn usage(&self, output: Tokens) -> Value {
        json!({
            "prompt_tokens": self.input.get(),
            "completion_tokens": output.get(),
            "total_tokens": (self.input + output).get(),
        })
    }

    fn event(&self, choices: &Value, usage: Option<Value>) -> String {
        let mut chunk = json!({
            "id": self.id(), "object": "chat.completion.chunk", "created": self.created, "model": self.model,
            "choices": choices,
        });
        if let Some(usage) = usage {
            chunk["usage"] = usage;
        }
        format!("data: {chunk}\n\n")
    }
}

/// The whole answer, once there is one.
pub(super) async fn whole(header: &Header, mut answer: watch::Receiver<Answered>) -> Result<Value, Rejection> {
    let answered = *answer.wait_for(|answered| answered.finished).await.map_err(|_| super::server::stopped())?;
    if header.dialect != Dialect::OpenAiChat {
        return Ok(apis::whole(header, answered));
    }
    Ok(json!({
        "id": header.id(), "object": "chat.completion", "created": header.created, "model": header.model,
        "choices": [{
            "index": 0,
            "message": {"role": "assistant", "content": words::text(header.number, answered.output.get())},
            "logprobs": null,
            "finish_reason": header.ending.finish_reason(),
        }],
        "usage": header.usage(answered.output),
    }))
}

/// Starts a stream and returns its body.
pub(super) fn streamed(header: Header, usage: UsageIn, answer: watch::Receiver<Answered>) -> Stream {
    let (frames, body) = mpsc::channel(FRAMES);
    tokio::spawn(async move {
        tokio::select! {
            () = write(&header, usage, answer, &frames) => {}
            () = frames.closed() => {}
        }
    });
    Stream(body)
}

async fn write(
    header: &Header,
    usage: UsageIn,
    mut answer: watch::Receiver<Answered>,
    frames: &mpsc::Sender<Result<Bytes, Cut>>,
) {
    let mut sent = Tokens::ZERO;
    let mut finished = false;
    while !finished {
        let news = answer.wait_for(|answered| answered.output > sent || answered.finished).await;
        let Ok(now) = news.map(|answered| *answered) else {
            // Nothing to be done where the reader is gone too.
            let _gone = frames.send(Err(Cut)).await;
            return;
        };
        if frames.send(Ok(Bytes::from(events(header, usage, sent, now)))).await.is_err() {
            return;
        }
        (sent, finished) = (now.output, now.finished);
    }
}

/// The events from `sent` tokens to where the answer stands now.
fn events(header: &Header, usage: UsageIn, sent: Tokens, now: Answered) -> String {
    if header.dialect != Dialect::OpenAiChat {
        return apis::events(header, usage, sent, now);
    }
    let told = |output: u64| match usage {
        UsageIn::NoChunk => None,
        UsageIn::TheLast => Some(Value::Null),
        UsageIn::Every => Some(header.usage(Tokens::new(output))),
    };
    let choice = |delta: Value, finish: Option<&str>| json!([{"index": 0, "delta": delta, "logprobs": null, "finish_reason": finish}]);
    let mut text = String::new();
    if sent == Tokens::ZERO {
        text.push_str(&header.event(&choice(json!({"role": "assistant", "content": ""}), None), told(0)));
    }
    for position in sent.get()..now.output.get() {
        let delta = json!({"content": words::token(header.number, position)});
        text.push_str(&header.event(&choice(delta, None), told(position + 1)));
    }
    if now.finished {
        let finish = Some(header.ending.finish_reason());
        text.push_str(&header.event(&choice(json!({}), finish), told(now.output.get())));
        if usage != UsageIn::NoChunk {
            text.push_str(&header.event(&json!([]), Some(header.usage(now.output))));
        }
        text.push_str("data: [DONE]\n\n");
    }
    text
}

/// The engine stopped in the middle of an answer.
#[derive(Debug, thiserror::Error)]
#[error("the engine stopped in the middle of an answer")]
pub(super) struct Cut;

/// The body of a stream.
#[derive(Debug)]
pub(super) struct Stream(mpsc::Receiver<Result<Bytes, Cut>>);

impl http_body::Body for Stream {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        self.0.poll_recv(context).map(|frame| frame.map(|bytes| bytes.map(Frame::data)))
    }
}
