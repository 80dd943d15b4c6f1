//! Reads an answer, whole or event by event.

use serde::Deserialize;
use serde_json::Value;

use crate::costing::Encoding;
use crate::units::{Tokens, Usage};

use super::super::observer::{Show, StreamEnd, Tally};
use super::super::reply::{Fragment, Reply};

/// Reads a whole answer.
pub(in crate::wire::dialect) fn read(body: &[u8], encoding: Encoding) -> Reply {
    #[derive(Deserialize)]
    struct Answer {
        usage: Option<Value>,
        content: Option<Vec<Value>>,
    }
    let Ok(answer) = serde_json::from_slice::<Answer>(body) else { return Reply::Unreadable };
    let input = answer.usage.as_ref().and_then(|usage| read_input(usage, None));
    let usage = input.and_then(|input| read_output(answer.usage.as_ref()?, input));
    Reply::reported_or(usage, || match &answer.content {
        Some(content) => Reply::count(content.iter().filter_map(fragment), encoding),
        None => Reply::Unreadable,
    })
}

/// The three input buckets, which are disjoint already. What is not said again is as it was said before; before
/// that, the caches may go unmentioned and the input may not.
fn read_input(usage: &Value, before: Option<Usage>) -> Option<Usage> {
    let number = |name: &str| usage[name].as_u64().map(Tokens::new);
    let earlier = before.unwrap_or_default();
    Some(Usage {
        uncached_input: number("input_tokens").or(before.map(|usage| usage.uncached_input))?,
        cached_input: number("cache_read_input_tokens").unwrap_or(earlier.cached_input),
        cache_write: number("cache_creation_input_tokens").unwrap_or(earlier.cache_write),
        ..Usage::default()
    })
}

/// The output, of which thinking is a part.
fn read_output(usage: &Value, input: Usage) -> Option<Usage> {
    let output = usage["output_tokens"].as_u64().map(Tokens::new)?;
    let thinking = usage["output_tokens_details"]["thinking_tokens"].as_u64().map_or(Tokens::ZERO, Tokens::new);
    let thinking = thinking.min(output);
    Some(Usage { visible_output: output.saturating_sub(thinking), reasoning_output: thinking, ..input })
}

/// The text in a block of the content.
fn fragment(block: &Value) -> Option<Fragment<'_>> {
    match block["type"].as_str()? {
        "thinking" => block["thinking"].as_str().map(Fragment::Reasoning),
        "text" => block["text"].as_str().map(Fragment::Visible),
        _ => block["name"].as_str().map(Fragment::Visible),
    }
}

#[derive(Deserialize)]
struct Event {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    message: Value,
    #[serde(default)]
    index: Value,
    #[serde(default)]
    content_block: Value,
    #[serde(default)]
    delta: Value,
    #[serde(default)]
    usage: Value,
}

/// Notes what an event says.
pub(in crate::wire::dialect) fn observe(data: &str, tally: &mut Tally) -> Show {
    // What is not an event is not ours to judge; it passes.
    let Ok(event) = serde_json::from_str::<Event>(data) else { return Show::All };
    let index = event.index.as_u64().and_then(|index| usize::try_from(index).ok()).unwrap_or(0);
    match event.kind.as_str() {
        // Its output is a placeholder.
        "message_start" => tally.learn_input(read_input(&event.message["usage"], None)),
        "content_block_start" => {
            if let Some(fragment) = fragment(&event.content_block) {
                tally.add(index, fragment);
            }
        }
        "content_block_delta" => {
            if let Some(thinking) = event.delta["thinking"].as_str() {
                tally.add(index, Fragment::Reasoning(thinking));
            }
            let visible = event.delta["text"].as_str().or_else(|| event.delta["partial_json"].as_str());
            if let Some(visible) = visible {
                tally.add(index, Fragment::Visible(visible));
            }
        }
        "message_delta" => {
            let input = read_input(&event.usage, tally.input());
            if let Some(usage) = input.and_then(|input| read_output(&event.usage, input)) {
                tally.report(usage);
            }
        }
        "message_stop" => tally.end_as(StreamEnd::Final),
        "error" => tally.end_as(StreamEnd::Failed),
        _ => {}
    }
    Show::All
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{Reply, read};
    use crate::costing::Encoding;
    use crate::units::{Tokens, Usage};

    fn reply(answer: &Value) -> Reply {
        read(answer.to_string().as_bytes(), Encoding::O200k)
    }

    #[test]
    fn the_input_is_the_sum_of_three_buckets() {
        let usage = json!({
            "input_tokens": 30, "cache_read_input_tokens": 60, "cache_creation_input_tokens": 10,
            "output_tokens": 50, "output_tokens_details": {"thinking_tokens": 20},
        });
        let Reply::Reported(usage) = reply(&json!({"content": [], "usage": usage})) else { panic!("reported") };
        assert_eq!((usage.input(), usage.output()), (Tokens::new(100), Tokens::new(50)));
        let buckets = [usage.uncached_input, usage.cached_input, usage.cache_write, usage.reasoning_output];
        assert_eq!(buckets.map(Tokens::get), [30, 60, 10, 20]);
        let nulls = json!({"input_tokens": 0, "cache_read_input_tokens": null, "output_tokens": 0});
        assert_eq!(reply(&json!({"usage": nulls})), Reply::Reported(Usage::default()), "zero is zero");
    }

    #[test]
    fn an_answer_without_usage_is_counted() {
        let content = json!([
            {"type": "thinking", "thinking": "hello"}, {"type": "text", "text": "hello world"},
            {"type": "tool_use", "name": "hello", "input": {}},
        ]);
        let counted = Reply::Counted { visible: Tokens::new(3), reasoning: Tokens::new(1) };
        assert_eq!(reply(&json!({"content": content, "usage": {"output_tokens": 5}})), counted);
        assert_eq!(reply(&json!({"type": "error"})), Reply::Unreadable);
    }
}
