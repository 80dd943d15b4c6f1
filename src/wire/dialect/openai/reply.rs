//! Reads a whole chat completion: what it says it used, and what it contains where it does not say.

use serde::Deserialize;
use serde_json::Value;

use crate::costing::Encoding;

use super::super::body::Echo;
use super::super::reply::{Fragment, Reply};
use super::usage::read_usage;

/// Reads a whole answer, of a chat or of plain completions.
pub(in super::super) fn read(body: &[u8], encoding: Encoding, echo: Option<&Echo>) -> Reply {
    #[derive(Deserialize)]
    struct Form {
        usage: Option<Value>,
        choices: Option<Vec<Choice>>,
    }
    #[derive(Deserialize)]
    struct Choice {
        index: Option<usize>,
        message: Option<Value>,
        text: Option<Value>,
    }
    let Ok(form) = serde_json::from_slice::<Form>(body) else { return Reply::Unreadable };
    Reply::reported_or(form.usage.as_ref().and_then(read_usage), || {
        let Some(choices) = &form.choices else { return Reply::Unreadable };
        let chats = choices.iter().filter_map(|choice| choice.message.as_ref()).flat_map(fragments);
        let texts = choices.iter().filter_map(|choice| {
            let text = choice.text.as_ref()?.as_str()?;
            let echoed = echo.map_or(0, |echo| echo.length(choice.index.unwrap_or(0)));
            Some(Fragment::Visible(&text[text.floor_char_boundary(echoed)..]))
        });
        Reply::count(chats.chain(texts), encoding)
    })
}

/// The texts in a message or in a stream's delta, which have the same shape.
pub(super) fn fragments(message: &Value) -> Vec<Fragment<'_>> {
    let mut found = Vec::new();
    found.extend(["content", "refusal"].iter().filter_map(|name| message[*name].as_str()).map(Fragment::Visible));
    // vLLM and DeepSeek say `reasoning_content`, newer vLLM and OpenRouter `reasoning`; never both count.
    let reasoning = message["reasoning_content"].as_str().or_else(|| message["reasoning"].as_str());
    found.extend(reasoning.map(Fragment::Reasoning));
    let calls = message["tool_calls"].as_array().into_iter().flatten().map(|call| &call["function"]);
    for function in calls.chain([&message["function_call"]]) {
        found.extend(["name", "arguments"].iter().filter_map(|name| function[*name].as_str()).map(Fragment::Visible));
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{Reply, read};
    use crate::costing::Encoding;
    use crate::units::Tokens;

    #[test]
    fn an_answer_without_usage_is_counted() {
        let body = json!({"choices": [
            {"message": {"content": "hello world", "reasoning_content": "hello"}},
            {"message": {"content": null, "tool_calls": [{"function": {"name": "hello", "arguments": "hello"}}]}},
        ]});
        let counted = Reply::Counted { visible: Tokens::new(4), reasoning: Tokens::new(1) };
        assert_eq!(read(body.to_string().as_bytes(), Encoding::O200k, None), counted);
        for unreadable in ["", "<html>", "[]", "{}", "{\"error\":{}}"] {
            assert_eq!(read(unreadable.as_bytes(), Encoding::O200k, None), Reply::Unreadable, "{unreadable}");
        }
    }
}
