//! Members of OpenAI's completions that bound the answer and ask for its usage, the engines' own among them.

use std::borrow::Cow;
use std::num::NonZeroU32;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::costing::Effort;
use crate::units::{Limit, Tokens};
use crate::wire::dialect::body::Edit;
use crate::wire::dialect::fields;
use crate::wire::dialect::json::{Unreadable, flag, given, present, read, span};

/// The answers to expect for one prompt: `best_of` of them are produced even where only `n` come back.
pub(super) fn choices(n: Option<&RawValue>, best_of: Option<&RawValue>) -> Result<NonZeroU32, Unreadable> {
    Ok(fields::choices("n", n)?.max(fields::choices("best_of", best_of)?))
}

/// The least output of an answer: `min_tokens`, and all of the cap where `ignore_eos` forbids an earlier end.
pub(super) fn least(
    cap: Limit<Tokens>,
    min_tokens: Option<&RawValue>,
    ignore_eos: Option<&RawValue>,
) -> Result<Tokens, Unreadable> {
    let least = given(min_tokens).map_or(Ok(Tokens::ZERO), |raw| fields::tokens("min_tokens", raw))?;
    let forced = flag("ignore_eos", ignore_eos)?;
    Ok(match cap {
        Limit::AtMost(cap) if forced => cap,
        Limit::AtMost(cap) => least.min(cap),
        Limit::Unlimited => least,
    })
}

#[derive(Deserialize)]
struct TemplateKwargs<'a> {
    #[serde(borrow, default, deserialize_with = "present")]
    enable_thinking: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    thinking: Option<&'a RawValue>,
}

/// The effort that is named. Where none is, the engines' chat templates have switches that forbid thinking:
/// `enable_thinking` (Qwen, GLM) and `thinking` (DeepSeek). One that allows it says nothing of how much.
pub(super) fn effort(named: Option<&RawValue>, template: Option<&RawValue>) -> Result<Effort, Unreadable> {
    let effort = fields::effort("reasoning_effort", named)?;
    let Some(raw) = given(template).filter(|_| effort == Effort::Unstated) else { return Ok(effort) };
    let template: TemplateKwargs<'_> = read("chat_template_kwargs", raw, "an object")?;
    let switches = [template.enable_thinking, template.thinking];
    let off = switches.into_iter().flatten().any(|switch| switch.get() == "false");
    Ok(if off { Effort::None } else { Effort::Unstated })
}

#[derive(Deserialize)]
struct StreamOptions<'a> {
    #[serde(borrow, default, deserialize_with = "present")]
    include_usage: Option<&'a RawValue>,
}

/// The edit that asks for usage in a stream, where the client did not.
pub(super) fn ask_usage(text: &str, streamed: bool, options: Option<&RawValue>) -> Result<Option<Edit>, Unreadable> {
    let asked = match given(options) {
        None => false,
        Some(raw) => {
            let options: StreamOptions<'_> = read("stream_options", raw, "an object")?;
            flag("stream_options.include_usage", options.include_usage)?
        }
    };
    if streamed && !asked { asking(text, options).map(Some) } else { Ok(None) }
}

/// Asks for usage, keeping whatever other options there are.
fn asking(text: &str, options: Option<&RawValue>) -> Result<Edit, Unreadable> {
    const ASK: &str = "\"include_usage\":true";
    let Some(raw) = options else {
        let inside = text.find('{').map_or(0, |at| at + 1);
        return Ok(Edit { at: inside..inside, with: format!("\"stream_options\":{{{ASK}}},") });
    };
    let mut with = format!("{{{ASK}");
    if raw.get() != "null" {
        let others: std::collections::BTreeMap<Cow<'_, str>, &RawValue> = read("stream_options", raw, "an object")?;
        for (name, value) in others.iter().filter(|(name, _)| *name != "include_usage") {
            with.push(',');
            with.push_str(&serde_json::Value::from(name.as_ref()).to_string());
            with.push(':');
            with.push_str(value.get());
        }
    }
    with.push('}');
    Ok(Edit { at: span(text, raw), with })
}
