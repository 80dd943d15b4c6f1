//! Decisions and explanations as a person reads them: what and why first, then the numbers, one thing a line.
//!
//! Made from the JSON of the admin API, so that what is told here of a running gateway and of a policy file alone is
//! one and the same. Whatever text came from a client is escaped: control characters are shown, not obeyed.

use std::fmt::Write as _;
use std::time::{Duration, UNIX_EPOCH};

use serde_json::Value;

/// How wide the names of things are.
const NAMES: usize = 10;

/// A page under construction.
struct Page(String);

impl Page {
    fn new() -> Self {
        Self(String::new())
    }

    fn text(&mut self, text: &str) {
        self.0.push_str(text);
        self.0.push('\n');
    }

    /// A named line, unless there is nothing to say.
    fn line(&mut self, name: &str, text: &str) {
        if !text.is_empty() {
            writeln!(self.0, "{name:<NAMES$} {text}").expect("a string takes whatever is written");
        }
    }

    /// A line that belongs to the one before.
    fn below(&mut self, text: &str) {
        self.line("", &format!("  {text}"));
    }

    fn end(self) -> String {
        // Lines without a name begin with its width in blanks, and none ends with any.
        self.0.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
    }
}

/// What would become of a request: the answer of `POST /v1/explain`.
pub(super) fn would(answer: &Value) -> String {
    let mut page = Page::new();
    verdict(&mut page, answer, "what would let it in", "what_would_let_it_in");
    let request = &answer["request"];
    let parts = [
        format!("{} {}", plain(&request["method"]), plain(&request["path"])),
        plain(&request["dialect"]),
        format!("{} bytes", plain(&request["body_bytes"])),
        format!("by the {} listener", plain(&request["listener"])),
    ];
    page.line("request", &joined(&parts));
    identity(&mut page, &answer["identity"]);
    routing(&mut page, &answer["routing"]);
    quote(&mut page, &answer["quote"]);
    core(&mut page, &answer["core"]);
    page.end()
}

/// One decision: the answer of `GET /v1/decisions/{id}`.
pub(super) fn decision(answer: &Value) -> String {
    let mut page = Page::new();
    verdict(&mut page, answer, "what would have let it in", "what_would_have_let_it_in");
    page.line("decision", &plain(&answer["decision"]));
    let arrived = &answer["arrived"];
    page.line("arrived", &format!("{}, {} ago", moment(&arrived["unix_s"]), secs(&arrived["age_s"])));
    let door = &answer["door"];
    let parts = [
        format!("{} {}", plain(&door["method"]), plain(&door["path"])),
        plain(&door["dialect"]),
        format!("by the {} listener", plain(&door["listener"])),
    ];
    page.line("request", &joined(&parts));
    caller(&mut page, &answer["caller"]);
    asked(&mut page, &answer["request"]);
    quote(&mut page, &answer["quote"]);
    life(&mut page, answer);
    if !answer["on_arrival"].is_null() {
        page.text("");
        page.text("what the gates said when it arrived");
        core(&mut page, &answer["on_arrival"]);
    }
    page.end()
}

/// The policy in force: the answer of `GET /v1/policy`.
pub(super) fn policy(answer: &Value) -> String {
    let mut page = Page::new();
    let path = if answer["path"].is_null() { "built in".into() } else { plain(&answer["path"]) };
    page.line("policy", &path);
    page.line("version", &plain(&answer["version"]));
    page.line("loaded", &moment(&answer["loaded_unix_s"]));
    page.text("");
    let text = answer["text"].as_str().unwrap_or_default();
    text.lines().for_each(|line| page.text(&escaped(line)));
    page.end()
}

fn verdict(page: &mut Page, answer: &Value, heading: &str, advice: &str) {
    let outcome = answer.get("verdict").unwrap_or(&answer["outcome"]);
    let reason = if answer["reason"].is_null() { String::new() } else { format!(": {}", plain(&answer["reason"])) };
    page.text(&format!("{}{reason}", plain(outcome)));
    for key in ["says", "why"] {
        if !answer[key].is_null() {
            page.text(&format!("  {}", plain(&answer[key])));
        }
    }
    if !answer[advice].is_null() {
        page.text("");
        page.text(heading);
        page.text(&format!("  {}", plain(&answer[advice])));
    }
    page.text("");
}

fn identity(page: &mut Page, identity: &Value) {
    if identity.is_null() {
        return;
    }
    let tenant = if identity["tenant"].is_null() { "nobody".into() } else { plain(&identity["tenant"]) };
    page.line("tenant", &tenant);
    for rule in identity["rules"].as_array().into_iter().flatten() {
        page.below(&format!("{} ({}): {}", plain(&rule["rule"]), plain(&rule["by"]), plain(&rule["says"])));
    }
    session(page, identity);
}

fn session(page: &mut Page, of: &Value) {
    if !of["session"].is_null() {
        let agent = if of["agent"] == "sub" { ", one of its sub-agents" } else { "" };
        page.line("session", &format!("{}{agent}", plain(&of["session"])));
    }
}

fn routing(page: &mut Page, routing: &Value) {
    if routing.is_null() {
        return;
    }
    let (asked, model) = (plain(&routing["model_asked"]), plain(&routing["model"]));
    let alias = if asked == model { String::new() } else { format!(", served as {model}") };
    page.line(
        "model",
        &format!("{asked}{alias} by pool {} ({})", plain(&routing["pool"]), plain(&routing["pool_key"])),
    );
    page.line("class", &format!("{}: {}", plain(&routing["class"]), plain(&routing["class_because"])));
    let weight_key = routing["weight_key"].as_str().unwrap_or("no rule of tenants is for it");
    page.line("weight", &format!("{} ({weight_key})", number(&routing["weight"])));
    patience(page, routing);
}

/// How long the client says it waits.
fn patience(page: &mut Page, of: &Value) {
    let waits = [("dispatch", "waits_for_dispatch_s"), ("something of the answer", "waits_for_answer_s")];
    let waits = waits.iter().filter(|(_, key)| !of[*key].is_null());
    let waits: Vec<String> = waits.map(|(what, key)| format!("{} for {what}", secs(&of[*key]))).collect();
    page.line("patience", &waits.join(", "));
}

fn caller(page: &mut Page, caller: &Value) {
    if caller.is_null() {
        return;
    }
    let key = if caller["key_name"].is_null() { String::new() } else { format!(" {:?}", plain(&caller["key_name"])) };
    let by = format!("by {}{key} ({})", plain(&caller["by"]), plain(&caller["rule"]));
    page.line("tenant", &format!("{}, {by}", plain(&caller["tenant"])));
    session(page, caller);
}

fn asked(page: &mut Page, request: &Value) {
    if request.is_null() {
        return;
    }
    let (asked, model) = (plain(&request["model_asked"]), plain(&request["model"]));
    let alias = if asked == model { String::new() } else { format!(", served as {model}") };
    page.line("model", &format!("{asked}{alias} by pool {}", plain(&request["pool"])));
    page.line("class", &format!("{}, weight {}", plain(&request["class"]), number(&request["weight"])));
    patience(page, request);
}

fn quote(page: &mut Page, quote: &Value) {
    if quote.is_null() {
        return;
    }
    let cap = if quote["output_cap"].is_null() {
        String::new()
    } else {
        format!(" of at most {}", plain(&quote["output_cap"]))
    };
    let (input, output) = (plain(&quote["input_tokens"]), plain(&quote["predicted_output"]));
    let mut counted = match quote["counted"].as_str() {
        Some("exact") => "counted exactly".to_owned(),
        Some("partial") => "the upstream adds what is not here".to_owned(),
        _ => "an estimate".to_owned(),
    };
    if quote["counted_input"] != quote["input_tokens"] {
        counted = format!("{counted}, counted as {} and corrected", plain(&quote["counted_input"]));
    }
    if quote["cached_input"] != 0 {
        counted = format!("{counted}, {} of them cached", plain(&quote["cached_input"]));
    }
    let cost = number(&quote["cost"]);
    page.line("quote", &format!("{input} tokens in ({counted}), {output} expected out{cap}: cost {cost}"));
}

fn life(page: &mut Page, answer: &Value) {
    let life = &answer["life"];
    let moments = [
        ("queued", "queued_s"),
        ("dispatched", "dispatched_s"),
        ("first byte", "first_byte_s"),
        ("first token", "first_token_s"),
        ("ended", "ended_s"),
        ("left", "left_s"),
    ];
    let moments = moments.iter().filter(|(_, key)| !life[*key].is_null());
    let moments: Vec<String> = moments.map(|(what, key)| format!("{what} after {}", secs(&life[*key]))).collect();
    page.line("life", &moments.join(", "));
    let refusal = &answer["refusal"];
    if !refusal.is_null() {
        page.line("refused", &format!("after {}", secs(&refusal["after_s"])));
    }
    let settled = &answer["settled"];
    if !settled.is_null() {
        let usage = settled["usage"].as_object().into_iter().flatten();
        let usage = usage.filter(|(_, tokens)| **tokens != 0).map(|(bucket, tokens)| format!("{tokens} {bucket}"));
        let usage = joined(&usage.collect::<Vec<_>>());
        let word = if settled["estimated"] == true { "estimated" } else { "as reported" };
        let usage = if usage.is_empty() { "nothing".into() } else { usage };
        page.line("settled", &format!("{usage} ({word}): charged {}", number(&settled["charged"])));
    }
    let given = &answer["answer"];
    if !given.is_null() {
        let wait = &given["retry_after_s"];
        let wait = if wait.is_null() { String::new() } else { format!(", to come back in {}", secs(wait)) };
        page.line("answered", &format!("{}{wait}", plain(&given["status"])));
    }
}

/// What the core says: its gates, then what holds for them all.
fn core(page: &mut Page, core: &Value) {
    if core.is_null() {
        return;
    }
    page.text("");
    for gate in core["gates"].as_array().into_iter().flatten() {
        page.line(&plain(&gate["gate"]), &format!("{:<8} {}", plain(&gate["verdict"]), plain(&gate["says"])));
        for cap in gate["numbers"]["caps"].as_array().into_iter().flatten() {
            page.below(&filled(cap));
        }
    }
    for (name, key) in [("window", "window"), ("fan-out", "fanout"), ("turn", "turn")] {
        page.line(name, &plain(&core[key]["says"]));
    }
}

/// How full a part of the queue is.
fn filled(cap: &Value) -> String {
    let kept = match cap["kept"].as_u64() {
        None | Some(0) => String::new(),
        Some(kept) => format!(" ({kept} of them kept for who was told to come back)"),
    };
    let mark = if cap["exceeded"] == true { ", which is too much" } else { "" };
    let [key, unit, most, queued, asked] = ["key", "unit", "cap", "queued", "asked"].map(|name| plain(&cap[name]));
    format!("{key}: {queued} of {most} {unit} taken{kept}, this would add {asked}{mark}")
}

fn joined(parts: &[String]) -> String {
    let parts: Vec<&str> = parts.iter().map(String::as_str).filter(|part| !part.is_empty()).collect();
    parts.join(", ")
}

/// A value as text; nothing for null.
fn plain(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => escaped(text),
        other => other.to_string(),
    }
}

fn escaped(text: &str) -> String {
    text.chars().flat_map(|c| if c.is_control() { c.escape_debug().collect::<Vec<_>>() } else { vec![c] }).collect()
}

/// A number without a fraction of nothing.
fn number(value: &Value) -> String {
    match value.as_f64() {
        Some(number) if number.fract() == 0.0 => format!("{number:.0}"),
        Some(number) => format!("{number:.3}"),
        None => plain(value),
    }
}

/// A span, from seconds.
fn secs(value: &Value) -> String {
    let secs = value.as_f64().unwrap_or_default();
    if secs < 1.0 { format!("{:.1} ms", secs * 1e3) } else { format!("{secs:.1} s") }
}

/// A moment, from seconds since 1970.
fn moment(value: &Value) -> String {
    let since = Duration::try_from_secs_f64(value.as_f64().unwrap_or_default()).unwrap_or_default();
    UNIX_EPOCH.checked_add(since).map_or_else(String::new, |at| humantime::format_rfc3339_seconds(at).to_string())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{decision, policy};

    #[test]
    fn what_clients_wrote_is_shown_and_not_obeyed() {
        let page = decision(&json!({
            "outcome": "refused", "reason": "malformed", "why": "x\u{1b}[31mred\nline", "arrived": {"unix_s": 0, "age_s": 1},
            "door": {"method": "POST", "path": "/é", "listener": "proxy"},
        }));
        assert!(page.contains("x\\u{1b}[31mred\\nline") && page.contains("/é") && !page.contains('\u{1b}'), "{page}");
        assert!(page.contains("arrived    1970-01-01T00:00:00Z, 1.0 s ago\n"), "{page}");
    }

    #[test]
    fn a_policy_keeps_its_lines() {
        let page = policy(&json!({"path": null, "version": "abc", "loaded_unix_s": 1.0, "text": "version: 1\n# ä\n"}));
        assert!(page.starts_with("policy     built in\n") && page.ends_with("\n\nversion: 1\n# ä\n"), "{page}");
    }
}
