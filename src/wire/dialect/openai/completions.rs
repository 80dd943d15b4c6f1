//! OpenAI Completions: `POST /v1/completions`.
//!
//! A prompt is text or tokens, one or a batch; every prompt gets `n` answers, of which `best_of` are produced. Where
//! nothing is said an answer has at most 16 tokens. With `echo` each answer repeats its prompt, which is not output
//! and is left out where output has to be counted.

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::costing::{Call, Effort};
use crate::units::{self, Limit, Tokens};
use crate::wire::dialect::Dialect;
use crate::wire::dialect::body::{AnswerForm, Echo, Parsed};
use crate::wire::dialect::content::{Kind, Reader};
use crate::wire::dialect::fields::{self, Entry};
use crate::wire::dialect::json::{Unreadable, flag, given, present};

use super::sampling;

/// The cap where none is given.
const DEFAULT_CAP: Tokens = Tokens::new(16);

/// Bytes of an encoded prompt's text to a token, where an echo of it has to be told from output.
const ECHOED_BYTES_PER_TOKEN: u64 = 4;

#[derive(Deserialize)]
struct Form<'a> {
    #[serde(borrow, default, deserialize_with = "present")]
    model: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    prompt: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    suffix: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    max_tokens: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    n: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    best_of: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    echo: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    min_tokens: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    ignore_eos: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    stream: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    stream_options: Option<&'a RawValue>,
}

/// Reads a request body.
pub(in crate::wire::dialect) fn parse(body: &Bytes) -> Result<Parsed, Unreadable> {
    let (text, form): (&str, Form<'_>) = fields::form(body)?;
    let (model, model_at) = fields::model(text, form.model)?;
    let streamed = flag("stream", form.stream)?;
    let ask_usage = sampling::ask_usage(text, streamed, form.stream_options)?;
    // Without a prompt the model begins a new document.
    let entries = given(form.prompt).map_or(Ok(Vec::new()), |raw| fields::entries("prompt", raw))?;
    let mut reader = Reader::new(|_| Kind::Unknown);
    entries.iter().for_each(|entry| reader.entry(entry));
    if let Some(suffix) = given(form.suffix) {
        reader.text("suffix", suffix)?;
    }
    let cap = fields::cap(&[("max_tokens", form.max_tokens)])?.unwrap_or(Limit::AtMost(DEFAULT_CAP));
    let each = sampling::choices(form.n, form.best_of)?;
    let batch = u32::try_from(entries.len().max(1)).unwrap_or(u32::MAX);
    let echo = flag("echo", form.echo)?;
    let returned = fields::choices("n", form.n)?;
    let call = Call {
        model,
        prompt: reader.finish(),
        cap,
        least: sampling::least(cap, form.min_tokens, form.ignore_eos)?,
        choices: each.saturating_mul(batch.try_into().expect("at least one")),
        effort: Effort::Unstated,
        streamed,
        bytes: units::Bytes::new(body.len() as u64),
    };
    let mut answer = AnswerForm::new(Dialect::OpenAiCompletions, ask_usage.is_some());
    answer.echo = echo.then(|| Echo { prompts: entries.iter().map(echoed).collect(), each: returned });
    Ok(Parsed { call, answer, model_at: Some(model_at), edits: ask_usage.into_iter().collect() })
}

/// How many bytes an answer begins with when it repeats this prompt.
fn echoed(entry: &Entry<'_>) -> usize {
    match entry {
        Entry::Text(text) => text.len(),
        Entry::Tokens(tokens) => {
            usize::try_from(tokens.get().saturating_mul(ECHOED_BYTES_PER_TOKEN)).unwrap_or(usize::MAX)
        }
        Entry::Json(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use serde_json::{Value, json};

    use super::parse;
    use crate::costing::{Encoding, InputCounter};
    use crate::units::{Limit, Tokens};
    use crate::wire::dialect::{Parsed, Reply, Unreadable};

    fn read(body: &Value) -> Parsed {
        parse(&Bytes::from(body.to_string())).expect("well formed")
    }

    #[test]
    fn every_prompt_of_a_batch_and_every_answer_tried_multiplies() {
        let plain = read(&json!({"model": "m", "prompt": "hello"})).call;
        assert_eq!((plain.cap, plain.choices.get()), (Limit::AtMost(Tokens::new(16)), 1));
        let batch = json!({"model": "m", "prompt": ["a", "b", [1, 2, 3]], "n": 2, "best_of": 5, "max_tokens": 99});
        let batch = read(&batch).call;
        assert_eq!((batch.cap, batch.choices.get()), (Limit::AtMost(Tokens::new(99)), 15));
        assert_eq!(InputCounter::of("m").count(&batch.prompt).total(), Tokens::new(5), "two letters and three tokens");
        let tokens = read(&json!({"model": "m", "prompt": [5, 6, 7]})).call;
        assert_eq!((tokens.choices.get(), tokens.prompt.tokens), (1, Tokens::new(3)));
        assert_eq!(read(&json!({"model": "m"})).call.choices.get(), 1, "a new document");
    }

    #[test]
    fn what_the_engine_is_forbidden_to_end_early_is_its_full_length() {
        let least = |extra: Value| {
            let mut body = json!({"model": "m", "prompt": "x", "max_tokens": 90});
            body.as_object_mut().expect("an object").extend(extra.as_object().expect("an object").clone());
            read(&body).call.least.get()
        };
        assert_eq!(least(json!({})), 0);
        assert_eq!(least(json!({"ignore_eos": true})), 90);
        assert_eq!(least(json!({"min_tokens": 50})), 50);
        assert_eq!(least(json!({"min_tokens": 500})), 90);
        assert_eq!(least(json!({"max_tokens": -1, "ignore_eos": true})), 0, "no cap, no length");
    }

    #[test]
    fn an_echo_is_not_output() {
        let parsed =
            read(&json!({"model": "m", "prompt": ["hello there ", "x"], "n": 2, "echo": true, "stream": true}));
        let answers = json!({"choices": [
            {"index": 1, "text": "hello there world"}, {"index": 2, "text": "x world"}, {"index": 9, "text": "world"},
        ]});
        let counted = Reply::Counted { visible: Tokens::new(3), reasoning: Tokens::ZERO };
        assert_eq!(parsed.answer.read(answers.to_string().as_bytes(), Encoding::O200k), counted);
        let mut observer = parsed.answer.observer(Encoding::O200k);
        for text in ["hello ", "there world", " world"] {
            let chunk = json!({"choices": [{"index": 1, "text": text}]});
            observer.push(&Bytes::from(format!("data: {chunk}\n\n")));
        }
        assert_eq!(observer.counted().0, Tokens::new(2));
    }

    #[test]
    fn usage_is_asked_for_and_mistakes_are_named() {
        let body = Bytes::from_static(br#"{"model":"m","prompt":"x","stream":true}"#);
        let parsed = parse(&body).expect("well formed");
        let expected = br#"{"stream_options":{"include_usage":true},"model":"m","prompt":"x","stream":true}"#;
        assert_eq!(&parsed.forward(&body, "m")[..], expected);
        for (name, value, expected) in [
            ("prompt", json!({}), "prompt must be a string or an array, not an object"),
            ("prompt", json!([]), "prompt must have 1 to 65536 entries, not 0"),
            ("prompt", json!(["a", true]), "prompt[1] must be a string or an array of tokens, not a boolean"),
            ("best_of", json!(0), "best_of must be between 1 and 128, not 0"),
            ("echo", json!(1), "echo must be a boolean, not a number"),
            ("suffix", json!(1), "suffix must be a string, not a number"),
        ] {
            let mut body = json!({"model": "m", "prompt": "x"});
            body[name] = value;
            let error = parse(&Bytes::from(body.to_string())).expect_err(expected);
            assert_eq!(error, Unreadable::Malformed(expected.into()));
        }
    }
}
