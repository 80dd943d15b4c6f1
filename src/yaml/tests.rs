//! One text, every mistake, exact words; and no text at all can break the reader.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Mistakes, Position, load};

#[derive(Debug, Deserialize, JsonSchema, PartialEq)]
#[serde(deny_unknown_fields)]
#[schemars(extend("x-later" = ["breaker"]))]
struct Pool {
    name: String,
    #[serde(default)]
    window: Option<Window>,
    #[serde(default)]
    kind: Kind,
    #[serde(default)]
    #[schemars(extend("x-later" = [true]))]
    cached: bool,
}

#[derive(Debug, Deserialize, JsonSchema, PartialEq)]
#[serde(deny_unknown_fields)]
struct Window {
    #[serde(default)]
    tokens: Option<u32>,
    #[serde(default)]
    ratio: f64,
}

#[derive(Debug, Default, Deserialize, JsonSchema, PartialEq)]
#[serde(rename_all = "snake_case")]
enum Kind {
    /// The first.
    #[default]
    Fixed,
    /// The second.
    Moving,
}

#[derive(Debug, Deserialize, JsonSchema, PartialEq)]
#[serde(rename_all = "snake_case")]
#[schemars(extend("x-later" = ["metadata"]))]
enum Source {
    Header(String),
    Fallback(u8),
}

#[derive(Debug, Deserialize, JsonSchema, PartialEq)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
enum Client {
    Poisson { rate: f64 },
    Closed { concurrency: u32 },
}

#[derive(Debug, Deserialize, JsonSchema, PartialEq)]
#[serde(untagged)]
enum Either {
    Number(u32),
    Names(Vec<String>),
}

#[derive(Debug, Deserialize, JsonSchema, PartialEq)]
#[serde(deny_unknown_fields)]
struct File {
    version: u32,
    #[serde(default)]
    pools: Vec<Pool>,
    #[serde(default)]
    sources: Vec<Source>,
    #[serde(default)]
    clients: Vec<Client>,
    #[serde(default)]
    either: Option<Either>,
    #[serde(default)]
    names: BTreeMap<String, u32>,
}

fn mistakes(text: &str) -> String {
    match load::<File>("f.yaml", text) {
        Ok(loaded) => panic!("accepted: {:?}", loaded.value),
        Err(mistakes) => mistakes.to_string(),
    }
}

#[test]
fn a_good_text_becomes_its_value_and_knows_where_it_stands() {
    let text = "version: 1\npools:\n  - name: a\n    window: {tokens: 7, ratio: 2}\n    kind: moving\nsources:\n  - header: x\n  - {fallback: 3}\nclients:\n  - {type: poisson, rate: 1.5}\neither: [p, q]\nnames: {a/b: 1}\n";
    let loaded = load::<File>("f.yaml", text).expect("good");
    assert_eq!(loaded.value.pools[0].window, Some(Window { tokens: Some(7), ratio: 2.0 }));
    assert_eq!(loaded.value.pools[0].kind, Kind::Moving);
    assert_eq!(loaded.value.sources, [Source::Header("x".into()), Source::Fallback(3)]);
    assert_eq!(loaded.value.clients, [Client::Poisson { rate: 1.5 }]);
    assert_eq!(loaded.value.either, Some(Either::Names(vec!["p".into(), "q".into()])));
    assert_eq!(loaded.positions.position_of("/pools/0/window/tokens"), Position { line: 4, column: 22 });
    assert_eq!(loaded.positions.position_of("/names/a~1b"), Position { line: 12, column: 14 });
    // What was left out stands where its surroundings stand.
    assert_eq!(loaded.positions.position_of("/pools/0/queue/tokens"), Position { line: 3, column: 5 });
    let mistake = loaded.positions.mistake("/pools/0/window", "is odd");
    assert_eq!(mistake.to_string(), "f.yaml:4:13: pools[0].window: is odd");
}

#[test]
fn every_mistake_is_told_at_once_in_the_order_of_the_text() {
    let text = "\
pools:
  - nam: a
    window: {tokens: -1, ratio: high}
    kind: movin
    breaker: {failures: 5}
    cached: true
  - name: 12
    window: {tokens: 5000000000}
    cached: yes
  - just text
sources:
  - metadata: x
  - headers: x
  - {header: x, fallback: 3}
  - fallback: 300
clients:
  - {type: poison, rate: 1}
  - {rate: 1}
  - {type: closed, concurrency: '3', extra: 1}
either: {a: 1}
names: {a: b, c: 1_000}
versoin: 1
";
    let expected = "\
f.yaml:1:1: the key `version` is missing
f.yaml:2:5: pools[0].nam: is not a known key; did you mean `name`?
f.yaml:2:5: pools[0]: the key `name` is missing
f.yaml:3:22: pools[0].window.tokens: must be at least 0, not -1
f.yaml:3:33: pools[0].window.ratio: expected a number, found the text \"high\"
f.yaml:4:11: pools[0].kind: expected one of fixed, moving, found the text \"movin\"; did you mean `moving`?
f.yaml:5:5: pools[0].breaker: is not available in this build; remove the key
f.yaml:6:13: pools[0].cached: true is not available in this build
f.yaml:7:11: pools[1].name: expected text, found the number 12; to make it text, write \"12\" in quotes
f.yaml:8:22: pools[1].window.tokens: must be at most 4294967295, not 5000000000
f.yaml:9:13: pools[1].cached: expected true or false, found the text \"yes\"; write true
f.yaml:10:5: pools[2]: expected a mapping, found the text \"just text\"
f.yaml:12:5: sources[0].metadata: is not available in this build; remove the key
f.yaml:13:5: sources[1].headers: is not a known key; did you mean `header`?
f.yaml:14:5: sources[2]: expected exactly one of the keys `header`, `fallback`, found 2
f.yaml:15:15: sources[3].fallback: must be at most 255, not 300
f.yaml:17:12: clients[0].type: expected one of poisson, closed, found the text \"poison\"
f.yaml:18:5: clients[1]: the key `type` is missing
f.yaml:19:33: clients[2].concurrency: expected a whole number, found the text \"3\"; write it without quotes
f.yaml:19:38: clients[2].extra: is not a known key; known here: type, concurrency
f.yaml:20:9: either: expected a whole number or a list, found a mapping
f.yaml:21:12: names.a: expected a whole number, found the text \"b\"
f.yaml:21:18: names.c: expected a whole number, found the text \"1_000\"; write 1000
f.yaml:22:1: versoin: is not a known key; did you mean `version`?";
    assert_eq!(mistakes(text), expected);
}

#[test]
fn what_is_outside_the_language_is_refused_where_it_stands() {
    let cases = [
        ("", "1:1: is empty; it needs `version` at least"),
        ("- 1\n", "1:1: expected a mapping, found a list"),
        ("version: 1\nversion: 2\n", "2:1: version: is given twice; first on line 1"),
        ("version: &a 1\n", "1:10: version: anchors (&name) are not accepted; write the value out"),
        ("version: !!int 1\n", "1:10: version: tags (!name) are not accepted; to make a value text, put it in quotes"),
        (
            "version: .inf\n",
            "1:10: version: \".inf\": infinity is not a usable value; to have no limit, leave the key out",
        ),
        (
            "version: 18446744073709551616\n",
            "1:10: version: \"18446744073709551616\": the number is too large; the largest is 18446744073709551615; if it is text, put it in quotes",
        ),
        ("version: 1\npools:\n", "2:6: pools: has no value; give it one, or leave the key out"),
        ("version: 1\n---\nversion: 1\n", "3:1: a second document begins here; a file holds one"),
        ("version: 1\n<<: {pools: []}\n", "2:1: merge keys (<<) are not accepted; write the keys out"),
        ("version: 1\n? [a]\n: b\n", "2:3: a key must be text"),
        ("version: 1\n\"\": b\n", "2:1: a key must not be empty"),
    ];
    for (text, expected) in cases {
        assert_eq!(mistakes(text), format!("f.yaml:{expected}"), "{text}");
    }
    let alias = mistakes("version: &a 1\nnames: {x: *a}\n");
    assert!(alias.contains("f.yaml:2:12: names.x: aliases (*name) are not accepted"), "{alias}");
    let broken = mistakes("version: [1\n");
    assert_eq!(broken, "f.yaml:2:1: version: is not YAML: while parsing a flow sequence, expected ',' or ']'");
}

#[test]
fn size_depth_and_number_are_bounded() {
    let deep = |levels| format!("version: {}", "[".repeat(levels));
    assert!(mistakes(&deep(100)).contains("nested deeper than 64 levels"));
    assert!(mistakes(&deep(100_000)).contains("is not YAML: recursion limit exceeded"));
    let wide = format!("[{}]", "1,".repeat(super::MAX_NODES));
    assert!(mistakes(&wide).contains("more than the 200000 values"));
    assert!(mistakes(&"#".repeat(super::MAX_BYTES + 1)).contains("larger than"));
    let long_key = format!("version: 1\n{}: 1\n", "k".repeat(257));
    assert!(mistakes(&long_key).contains("longer than 256 characters"));
    let many = mistakes(&(0..500).map(|key| format!("k{key}: 1\n")).collect::<String>());
    assert_eq!(many.lines().count(), 101);
    assert!(many.ends_with("... and 401 more"), "{many}");
}

#[test]
fn a_message_repeats_no_control_characters() {
    let shown = mistakes("version: \"\\e[31m\\n\"\n\"a\\nb\": 1\n");
    assert_eq!(shown.lines().count(), 2, "{shown}");
    assert!(!shown.contains('\u{1b}'), "{shown}");
}

#[test]
fn broken_utf8_is_told_where_it_begins() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("f.yaml");
    std::fs::write(&path, b"version: 1\n\xc3\xa4: \xff\n").expect("writable");
    let error = super::read(&path).expect_err("not UTF-8").to_string();
    assert!(error.ends_with("f.yaml:2:4: is not UTF-8 text from here on"), "{error}");
    let error = super::read(&directory.path().join("none")).expect_err("absent").to_string();
    assert!(error.contains("none:1:1: cannot be read: "), "{error}");
}

/// Every mistake stands on a line of the text, and in it or just behind it.
fn assert_inside(mistakes: &Mistakes, text: &str) {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text).replace("\r\n", "\n");
    let lines: Vec<&str> = text.split(['\n', '\r']).collect();
    for mistake in mistakes {
        let Position { line, column } = mistake.position;
        assert!((1..=lines.len()).contains(&line), "{mistake} outside {} lines", lines.len());
        assert!((1..=lines[line - 1].chars().count() + 1).contains(&column), "{mistake} outside its line");
    }
}

/// Text that is nearly YAML: pieces of the language in any order.
fn nearly_yaml() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "version",
        ": ",
        "1",
        "\n",
        "  ",
        "- ",
        "[",
        "]",
        "{",
        "}",
        ", ",
        "pools",
        "name",
        "&a ",
        "*a",
        "!!str ",
        "|",
        ">-",
        "'",
        "\"",
        "#",
        "? ",
        "<<",
        "~",
        "\t",
        "---\n",
        "...\n",
        "%YAML 1.2\n",
        "é",
        "\r\n",
        "\\x",
        "sources",
        "header",
        "either",
        "clients",
        "type",
        "poisson",
        "-1e9",
        "\u{feff}",
        "\u{2028}",
        "\0",
    ]);
    prop::collection::vec(piece, 0..60).prop_map(|pieces| pieces.concat())
}

/// The same cases on every run.
fn seeded() -> ProptestConfig {
    ProptestConfig { cases: 1_000, rng_seed: RngSeed::Fixed(1), failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(seeded())]

    #[test]
    fn no_bytes_break_the_reader(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let text = String::from_utf8_lossy(&bytes);
        if let Err(mistakes) = load::<File>("f.yaml", &text) {
            assert_inside(&mistakes, &text);
        }
    }

    #[test]
    fn no_near_yaml_breaks_the_reader(text in nearly_yaml()) {
        if let Err(mistakes) = load::<File>("f.yaml", &text) {
            assert_inside(&mistakes, &text);
        }
    }

    #[test]
    fn json_is_yaml_and_means_the_same(value in json_value()) {
        prop_assert_eq!(load::<Value>("f.json", &value.to_string()).expect("JSON").value, value);
    }
}

/// Any JSON without doubles, whose printed form need not be the shortest.
fn json_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "[ -~]{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 40, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::btree_map("[a-z]{1,6}", inner, 0..5).prop_map(|map| json!(map)),
        ]
    })
}

#[test]
fn what_is_left_without_its_mistakes_can_still_be_judged() {
    let text =
        "version: 1\nnonsense: 2\npools:\n  - {name: a, breaker: 1, kind: odd, cached: true}\nnames: {a: x, b: 2}\n";
    let partly = super::load_partly::<File>("f.yaml", text);
    assert_eq!(partly.mistakes.count(), 5, "{}", partly.mistakes);
    let left = partly.loaded.expect("enough is left").value;
    assert_eq!(left.pools, [Pool { name: "a".into(), window: None, kind: Kind::Fixed, cached: false }]);
    assert_eq!(left.names, BTreeMap::from([("b".into(), 2)]));

    // A list under a misspelt name, or of the wrong type, would be missed by what refers to it.
    for text in
        ["version: 1\npolls: [{name: a}]\n", "version: 1\npools: {name: a}\n", "version: 1\npools: [{name: 1}]\n"]
    {
        let partly = super::load_partly::<File>("f.yaml", text);
        assert!(partly.loaded.is_none() && partly.mistakes.count() == 1, "{}", partly.mistakes);
    }
}
