//! OpenAI Embeddings: `POST /v1/embeddings`. Input only: nothing is generated, so nothing is predicted.

use bytes::Bytes;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::costing::{Call, Effort};
use crate::units::{self, Limit, Tokens, Usage};
use crate::wire::dialect::body::{AnswerForm, Parsed};
use crate::wire::dialect::content::{Kind, Reader};
use crate::wire::dialect::json::{Unreadable, given, malformed, present};
use crate::wire::dialect::reply::Reply;
use crate::wire::dialect::{Dialect, fields};

#[derive(Deserialize)]
struct Form<'a> {
    #[serde(borrow, default, deserialize_with = "present")]
    model: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    input: Option<&'a RawValue>,
}

/// Reads a request body.
pub(in crate::wire::dialect) fn parse(body: &Bytes) -> Result<Parsed, Unreadable> {
    let (text, form): (&str, Form<'_>) = fields::form(body)?;
    let (model, model_at) = fields::model(text, form.model)?;
    let input = given(form.input).ok_or_else(|| malformed("input is missing".into()))?;
    let mut reader = Reader::new(|_| Kind::Unknown);
    fields::entries("input", input)?.iter().for_each(|entry| reader.entry(entry));
    let call = Call {
        model,
        prompt: reader.finish(),
        cap: Limit::AtMost(Tokens::ZERO),
        least: Tokens::ZERO,
        choices: std::num::NonZeroU32::MIN,
        effort: Effort::Unstated,
        streamed: false,
        bytes: units::Bytes::new(body.len() as u64),
    };
    Ok(Parsed {
        call,
        answer: AnswerForm::new(Dialect::OpenAiEmbeddings, false),
        model_at: Some(model_at),
        edits: Vec::new(),
    })
}

/// Reads a whole answer.
pub(in crate::wire::dialect) fn read(body: &[u8]) -> Reply {
    #[derive(Deserialize)]
    struct Answer {
        usage: Option<Value>,
        data: Option<serde::de::IgnoredAny>,
    }
    let Ok(answer) = serde_json::from_slice::<Answer>(body) else { return Reply::Unreadable };
    let usage = answer.usage.unwrap_or_default();
    let input = usage["prompt_tokens"].as_u64().or_else(|| usage["total_tokens"].as_u64());
    Reply::reported_or(input.map(|input| Usage::plain(Tokens::new(input), Tokens::ZERO)), || match answer.data {
        Some(_) => Reply::Counted { visible: Tokens::ZERO, reasoning: Tokens::ZERO },
        None => Reply::Unreadable,
    })
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use serde_json::json;

    use super::{parse, read};
    use crate::costing::InputCounter;
    use crate::units::{Limit, Tokens, Usage};
    use crate::wire::dialect::{Reply, Unreadable};

    #[test]
    fn only_input_is_expected_and_reported() {
        for (input, tokens) in [(json!("hello"), 1), (json!(["hello", "world"]), 2), (json!([[1, 2], [3]]), 3)] {
            let body = Bytes::from(json!({"model": "m", "input": input}).to_string());
            let call = parse(&body).expect("well formed").call;
            assert_eq!(call.cap, Limit::AtMost(Tokens::ZERO));
            assert_eq!(InputCounter::of("m").count(&call.prompt).total(), Tokens::new(tokens));
        }
        let reported = read(br#"{"data":[],"usage":{"prompt_tokens":7,"total_tokens":7}}"#);
        assert_eq!(reported, Reply::Reported(Usage::plain(Tokens::new(7), Tokens::ZERO)));
        let silent = Reply::Counted { visible: Tokens::ZERO, reasoning: Tokens::ZERO };
        assert_eq!(read(br#"{"data":[]}"#), silent);
        assert_eq!(read(b"{}"), Reply::Unreadable);
    }

    #[test]
    fn an_input_is_required() {
        let error = parse(&Bytes::from_static(br#"{"model":"m"}"#)).expect_err("nothing to embed");
        assert_eq!(error, Unreadable::Malformed("input is missing".into()));
    }
}
