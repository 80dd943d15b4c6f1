//! Makes the prompts whose estimates are measured: the same on every run, out of the texts beside this file.

use serde_json::{Value, json};

/// What the prompts of each kind are made of.
pub(crate) const KINDS: [&str; 5] = ["english", "code", "chinese", "json", "tools"];

/// Prompts of each kind.
pub(crate) const EACH: usize = 60;

const ENGLISH: &str = include_str!("english.txt");
const CODE: &str = include_str!("code.txt");
const CHINESE: &str = include_str!("chinese.txt");
const TAGS: [&str; 3] = ["retail", "eu-west", "priority"];
const TOOLS: &str = include_str!("tools.json");

/// Chance that is the same everywhere and for ever (SplitMix64).
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % (end as u64).max(1)).unwrap_or(0)
    }

    /// Some of a text, between so many bytes and four times as many.
    fn some(&mut self, text: &str, least: usize) -> String {
        let length = (least + self.below(3 * least)).min(text.len());
        let from = text.floor_char_boundary(self.below(text.len() - length + 1));
        text[from..text.floor_char_boundary(from + length)].to_owned()
    }
}

/// A prompt's name, and the body of a chat request with it.
pub(crate) struct Prompt {
    pub(crate) kind: &'static str,
    pub(crate) name: String,
    pub(crate) body: Value,
}

/// All of them, the kinds taking turns.
pub(crate) fn all() -> Vec<Prompt> {
    let mut chance = Chance(20_261_129);
    let mut prompts = Vec::new();
    for at in 0..EACH {
        for kind in KINDS {
            let body = if kind == "tools" { tooled(&mut chance) } else { plain(kind, &mut chance) };
            prompts.push(Prompt { kind, name: format!("{kind}-{at}"), body });
        }
    }
    prompts
}

fn text(kind: &str, chance: &mut Chance) -> String {
    match kind {
        "english" => chance.some(ENGLISH, 400),
        "code" => chance.some(CODE, 400),
        "chinese" => chance.some(CHINESE, 300),
        _ => rows(chance).to_string(),
    }
}

fn rows(chance: &mut Chance) -> Value {
    let count = 3 + chance.below(25);
    (0..count)
        .map(|_| {
            json!({
                "id": format!("{:016x}", chance.next()), "amount_cents": chance.below(1_000_000), "paid": chance.below(2) == 0,
                "created_at": format!("2026-{:02}-{:02}T{:02}:15:00Z", 1 + chance.below(12), 1 + chance.below(28), chance.below(24)),
                "tags": TAGS[..chance.below(TAGS.len() + 1)], "note": null,
                "position": {"lat": chance.below(90_000) as f64 / 1e3, "lon": chance.below(180_000) as f64 / 1e3},
            })
        })
        .collect()
}

fn plain(kind: &str, chance: &mut Chance) -> Value {
    let mut messages = vec![json!({"role": "system", "content": "You are a helpful assistant. Answer briefly."})];
    for _ in 0..chance.below(3) {
        messages.push(json!({"role": "user", "content": text(kind, chance)}));
        messages.push(json!({"role": "assistant", "content": text(kind, chance)}));
    }
    messages.push(json!({"role": "user", "content": text(kind, chance)}));
    json!({"model": "m", "messages": messages})
}

/// An agent's turn: tools, then calls and their results.
fn tooled(chance: &mut Chance) -> Value {
    let known: Vec<Value> = serde_json::from_str(TOOLS).expect("a list of tools");
    let first = chance.below(known.len());
    let count = 3 + chance.below(known.len() - 2);
    let chosen = known.iter().cycle().skip(first).take(count);
    let tools: Vec<Value> = chosen.map(|tool| json!({"type": "function", "function": tool})).collect();
    let mut messages = vec![
        json!({"role": "system", "content": "You are a careful engineer. Use the tools."}),
        json!({"role": "user", "content": chance.some(ENGLISH, 100)}),
    ];
    for turn in 0..chance.below(6) {
        let id = format!("call{turn:05}");
        let name = tools[chance.below(tools.len())]["function"]["name"].clone();
        let arguments =
            json!({"path": format!("/srv/app/src/module_{}.rs", chance.below(500)), "limit": chance.below(2_000)});
        let call =
            json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments.to_string()}});
        messages.push(json!({"role": "assistant", "content": null, "tool_calls": [call]}));
        messages.push(json!({"role": "tool", "tool_call_id": id, "content": chance.some(CODE, 150)}));
    }
    if messages.len() > 2 {
        messages.push(json!({"role": "assistant", "content": chance.some(ENGLISH, 60)}));
        messages.push(json!({"role": "user", "content": chance.some(ENGLISH, 60)}));
    }
    json!({"model": "m", "messages": messages, "tools": tools})
}
