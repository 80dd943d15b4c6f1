//! What was expected, in a person's words.

use serde_json::{Map, Number, Value};

use super::super::mistake::excerpt;
use super::super::tree::{Content, Node};

/// Keys and values longer than this are not compared with others.
const LONGEST_GUESS: usize = 64;

/// The known name that a text is most like, when it is near.
pub(super) fn nearest<'known>(text: &str, known: &[&'known str]) -> Option<&'known str> {
    let length = text.chars().count();
    if length > LONGEST_GUESS {
        return None;
    }
    let distances = known.iter().map(|name| (strsim::osa_distance(text, name), *name));
    distances.min_by_key(|(distance, _)| *distance).filter(|(far, _)| *far <= (length / 3).max(1)).map(|(_, name)| name)
}

/// `; did you mean ...?` when one of the known names is near.
pub(crate) fn did_you_mean(text: &str, known: &[&str]) -> String {
    nearest(text, known).map_or_else(String::new, |name| format!("; did you mean `{name}`?"))
}

/// A key nobody knows.
pub(super) fn unknown_key(key: &str, known: &[&str]) -> String {
    match nearest(key, known) {
        Some(name) => format!("is not a known key; did you mean `{name}`?"),
        None if known.is_empty() => "is not a known key; none may stand here".into(),
        None => format!("is not a known key; known here: {}", known.join(", ")),
    }
}

/// The values of a list of literals.
pub(super) fn one_of(literals: &[&Value]) -> String {
    let shown: Vec<String> =
        literals.iter().map(|literal| literal.as_str().map_or(literal.to_string(), Into::into)).collect();
    match &shown[..] {
        [only] => only.clone(),
        _ => format!("one of {}", shown.join(", ")),
    }
}

/// The type a schema wants: by its title and example where it has them, as kinds of text do.
pub(super) fn expected_type(rules: &Map<String, Value>) -> String {
    let example = rules.get("examples").and_then(|examples| examples.get(0)).and_then(Value::as_str);
    if let (Some(title), Some(example)) = (rules.get("title").and_then(Value::as_str), example) {
        return format!("a {title} such as {example}");
    }
    let name = |name: &Value| match name.as_str() {
        Some("object") => Some("a mapping"),
        Some("array") => Some("a list"),
        Some("string") => Some("text"),
        Some("integer") => Some("a whole number"),
        Some("number") => Some("a number"),
        Some("boolean") => Some("true or false"),
        _ => None,
    };
    match rules.get("type") {
        Some(Value::Array(types)) => types.iter().filter_map(name).collect::<Vec<_>>().join(" or "),
        Some(one) => name(one).unwrap_or("nothing").to_owned(),
        None => "another value".to_owned(),
    }
}

/// How to write what was probably meant.
pub(super) fn type_hint(rules: &Map<String, Value>, node: &Node) -> String {
    let wants = |wanted: &str| match rules.get("type") {
        Some(Value::Array(types)) => types.iter().any(|name| name == wanted),
        Some(name) => name == wanted,
        None => false,
    };
    match &node.content {
        Content::Scalar(Value::Number(_) | Value::Bool(_)) if rules.contains_key("title") => String::new(),
        Content::Scalar(Value::Number(number)) if wants("integer") => whole(number),
        Content::Scalar(value @ (Value::Number(_) | Value::Bool(_))) if wants("string") => {
            format!("; to make it text, write \"{value}\" in quotes")
        }
        Content::Scalar(Value::String(text)) if wants("boolean") => match text.to_ascii_lowercase().as_str() {
            "yes" | "on" => "; write true".into(),
            "no" | "off" => "; write false".into(),
            _ => String::new(),
        },
        Content::Scalar(Value::String(text)) if wants("integer") || wants("number") => {
            let digits: String = text.chars().filter(|c| !matches!(c, '_' | ',' | ' ' | '\'')).collect();
            if digits != *text && !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) {
                format!("; write {}", excerpt(&digits).trim_matches('"'))
            } else if text.parse::<f64>().is_ok() {
                "; write it without quotes".into()
            } else if let Some(number) = thousands(text) {
                format!("; write {number}")
            } else {
                String::new()
            }
        }
        Content::Scalar(Value::String(text)) if wants("object") && has_colon_inside(text) => {
            "; put a space after the colon".into()
        }
        Content::Scalar(_) if wants("array") => "; write it as a list, in [brackets]".into(),
        Content::Scalar(_) | Content::List(_) | Content::Map(_) | Content::Refused => String::new(),
    }
}

/// `; write 1000` for a whole number that was written as another, as `1e3` is.
fn whole(number: &Number) -> String {
    let whole = number.as_f64().filter(|number| number.fract() == 0.0 && number.abs() < 1e15);
    whole.map_or_else(String::new, |number| format!("; write {number:.0}"))
}

/// What `16k` means, and `2M`.
fn thousands(text: &str) -> Option<u64> {
    let (digits, factor) = [("k", 1_000), ("K", 1_000), ("M", 1_000_000), ("m", 1_000_000), ("G", 1_000_000_000)]
        .into_iter()
        .find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, factor)))?;
    digits.parse::<u64>().ok()?.checked_mul(factor)
}

/// Whether a text looks like a key and its value, as in `version:1`.
fn has_colon_inside(text: &str) -> bool {
    let is_name =
        |name: &str| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    text.split_once(':').is_some_and(|(key, value)| is_name(key) && !value.is_empty() && !value.starts_with(' '))
}

/// Why a number is outside what the schema allows.
pub(super) fn out_of_range(rules: &Map<String, Value>, number: &Number) -> Option<String> {
    let by_format = match rules.get("format").and_then(Value::as_str) {
        Some("uint8") => Some((0, u64::from(u8::MAX))),
        Some("uint16") => Some((0, u64::from(u16::MAX))),
        Some("uint32") => Some((0, u64::from(u32::MAX))),
        Some("uint64" | "uint") => Some((0, u64::MAX)),
        Some("int32") => Some((i64::from(i32::MIN), 2_147_483_647)),
        Some("int64" | "int") => Some((i64::MIN, 9_223_372_036_854_775_807)),
        _ => None,
    };
    let stated = |keyword| rules.get(keyword).and_then(Value::as_number).cloned();
    let least = stated("minimum").or_else(|| by_format.map(|(least, _)| Number::from(least)));
    let most = stated("maximum").or_else(|| by_format.map(|(_, most)| Number::from(most)));
    let below = least.as_ref().is_some_and(|least| is_less(number, least))
        || stated("exclusiveMinimum").is_some_and(|least| !is_less(&least, number));
    let above = most.as_ref().is_some_and(|most| is_less(most, number))
        || stated("exclusiveMaximum").is_some_and(|most| !is_less(number, &most));
    if below {
        let bound = stated("exclusiveMinimum").map_or_else(
            || format!("at least {}", least.map_or_else(String::new, |least| least.to_string())),
            |least| format!("more than {least}"),
        );
        return Some(format!("must be {bound}, not {number}"));
    }
    if above {
        let bound = stated("exclusiveMaximum").map_or_else(
            || format!("at most {}", most.map_or_else(String::new, |most| most.to_string())),
            |most| format!("less than {most}"),
        );
        return Some(format!("must be {bound}, not {number}"));
    }
    None
}

/// Exact for whole numbers, which `f64` would round above 2^53.
fn is_less(left: &Number, right: &Number) -> bool {
    match (left.as_i128(), right.as_i128()) {
        (Some(left), Some(right)) => left < right,
        _ => left.as_f64() < right.as_f64(),
    }
}

/// Why a text or list is too short or too long.
pub(super) fn wrong_length(rules: &Map<String, Value>, length: usize, unit: &str) -> Option<String> {
    let (least, most) = match unit {
        "item" => ("minItems", "maxItems"),
        _ => ("minLength", "maxLength"),
    };
    let bound = |keyword| rules.get(keyword).and_then(Value::as_u64).and_then(|bound| usize::try_from(bound).ok());
    let plural = |count: usize| if count == 1 { "" } else { "s" };
    if let Some(least) = bound(least).filter(|least| length < *least) {
        return Some(format!("must have at least {least} {unit}{}, not {length}", plural(least)));
    }
    bound(most)
        .filter(|most| length > *most)
        .map(|most| format!("must have at most {most} {unit}{}, not {length}", plural(most)))
}
