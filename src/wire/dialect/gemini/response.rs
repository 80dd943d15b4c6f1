//! Reads an answer: whole, as an array of its parts, or event by event.
//!
//! Every part may tell the usage so far, and the last one counts. `promptTokenCount` includes what was cached, and
//! `candidatesTokenCount` does not include thoughts.

use serde::Deserialize;
use serde_json::Value;

use crate::costing::Encoding;
use crate::units::{Tokens, Usage};

use super::super::observer::{Show, StreamEnd, Tally};
use super::super::reply::{Fragment, Reply};

#[derive(Deserialize)]
struct Answer {
    #[serde(default)]
    candidates: Option<Vec<Candidate>>,
    #[serde(default, rename = "promptFeedback")]
    feedback: Value,
    #[serde(default, rename = "usageMetadata")]
    usage: Value,
    #[serde(default)]
    error: Value,
}

#[derive(Deserialize)]
struct Candidate {
    #[serde(default)]
    index: Value,
    #[serde(default)]
    content: Value,
    #[serde(default, rename = "finishReason")]
    finish: Value,
}

impl Answer {
    /// The texts, each with the number of its candidate.
    fn fragments(&self) -> impl Iterator<Item = (usize, Fragment<'_>)> {
        self.candidates.iter().flatten().enumerate().flat_map(|(at, candidate)| {
            let index = candidate.index.as_u64().and_then(|index| usize::try_from(index).ok()).unwrap_or(at);
            let parts = candidate.content["parts"].as_array().into_iter().flatten();
            parts.filter_map(move |part| Some((index, fragment(part)?)))
        })
    }

    /// Whether nothing more comes.
    fn is_last(&self) -> bool {
        let mut candidates = self.candidates.iter().flatten().peekable();
        let blocked = self.feedback["blockReason"].is_string();
        blocked || (candidates.peek().is_some() && candidates.all(|candidate| candidate.finish.is_string()))
    }
}

fn fragment(part: &Value) -> Option<Fragment<'_>> {
    match part["text"].as_str() {
        Some(text) if part["thought"] == true => Some(Fragment::Reasoning(text)),
        Some(text) => Some(Fragment::Visible(text)),
        None => part["functionCall"]["name"].as_str().map(Fragment::Visible),
    }
}

/// The five disjoint buckets. What a tool brought in was read like the prompt.
fn usage(usage: &Value) -> Option<Usage> {
    let number = |name: &str| usage[name].as_u64().map(Tokens::new);
    let or_none = |name: &str| number(name).unwrap_or(Tokens::ZERO);
    let prompt = number("promptTokenCount")?;
    let cached = or_none("cachedContentTokenCount").min(prompt);
    Some(Usage {
        uncached_input: prompt.saturating_sub(cached) + or_none("toolUsePromptTokenCount"),
        cached_input: cached,
        cache_write: Tokens::ZERO,
        visible_output: or_none("candidatesTokenCount"),
        reasoning_output: or_none("thoughtsTokenCount"),
    })
}

/// Reads a whole answer, or all of a stream that came as one array.
pub(in crate::wire::dialect) fn read(body: &[u8], encoding: Encoding) -> Reply {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Body {
        Parts(Vec<Answer>),
        Whole(Box<Answer>),
    }
    let answers = match serde_json::from_slice(body) {
        Ok(Body::Parts(parts)) => parts,
        Ok(Body::Whole(answer)) => vec![*answer],
        Err(_) => return Reply::Unreadable,
    };
    let reported = answers.iter().rev().find_map(|answer| usage(&answer.usage));
    Reply::reported_or(reported, || {
        if answers.iter().all(|answer| answer.candidates.is_none()) {
            return Reply::Unreadable;
        }
        Reply::count(answers.iter().flat_map(Answer::fragments).map(|(_, fragment)| fragment), encoding)
    })
}

/// Notes what an event says.
pub(in crate::wire::dialect) fn observe(data: &str, tally: &mut Tally) -> Show {
    // What is not a part of an answer is not ours to judge; it passes.
    let Ok(answer) = serde_json::from_str::<Answer>(data) else { return Show::All };
    for (index, fragment) in answer.fragments() {
        tally.add(index, fragment);
    }
    if let Some(usage) = usage(&answer.usage) {
        tally.report(usage);
    }
    if answer.error.is_object() {
        tally.end_as(StreamEnd::Failed);
    } else if answer.is_last() {
        tally.end_as(StreamEnd::Final);
    }
    Show::All
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{Reply, read};
    use crate::costing::Encoding;
    use crate::units::Tokens;

    fn reply(answer: &Value) -> Reply {
        read(answer.to_string().as_bytes(), Encoding::O200k)
    }

    #[test]
    fn the_prompt_includes_the_cache_and_the_answer_not_the_thoughts() {
        let usage = json!({"promptTokenCount": 100, "cachedContentTokenCount": 60, "candidatesTokenCount": 20,
            "thoughtsTokenCount": 30, "toolUsePromptTokenCount": 5, "totalTokenCount": 155});
        let Reply::Reported(read) = reply(&json!({"candidates": [], "usageMetadata": usage})) else {
            panic!("reported")
        };
        let buckets = [read.uncached_input, read.cached_input, read.visible_output, read.reasoning_output];
        assert_eq!(buckets.map(Tokens::get), [45, 60, 20, 30]);
    }

    #[test]
    fn of_an_array_the_last_usage_counts_and_without_one_the_texts() {
        let part = |text: &str, usage: Value| json!({"candidates": [{"content": {"parts": [{"text": text}]}}], "usageMetadata": usage});
        let first = part("hello", json!({"promptTokenCount": 7, "candidatesTokenCount": 1}));
        let last = part(" world", json!({"promptTokenCount": 7, "candidatesTokenCount": 2}));
        let Reply::Reported(usage) = reply(&json!([first, last])) else { panic!("reported") };
        assert_eq!((usage.input().get(), usage.output().get()), (7, 2));
        let thought = json!({"candidates": [{"content": {"parts": [{"text": "hello", "thought": true}]}}]});
        let counted = Reply::Counted { visible: Tokens::new(1), reasoning: Tokens::new(1) };
        assert_eq!(reply(&json!([part("hello", Value::Null), thought])), counted);
        assert_eq!(reply(&json!({"error": {"code": 500}})), Reply::Unreadable);
    }
}
