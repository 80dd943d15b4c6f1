//! Who may import whom, and what may not be named in the rooms that must stay pure.
//!
//! The table below is the architecture. A path that starts with `crate::` (in a `use`, a nested group or an
//! expression) or climbs out of its room with `super::` is an edge, and an edge that is not in the table fails.

use super::Finding;
use super::source::File;

/// What each room may import besides itself. `*` means everything.
const MAY_IMPORT: [(&str, &[&str]); 19] = [
    ("units", &[]),
    ("yaml", &[]),
    ("policy", &["units", "yaml"]),
    ("ledger", &["units"]),
    ("admission", &["units", "policy", "ledger"]),
    ("costing", &["units", "policy"]),
    ("dial", &[]),
    ("engines", &["units"]),
    ("envoy_check", &["units", "yaml"]),
    ("store", &["units", "ledger"]),
    ("sim", &["units", "yaml", "policy", "admission", "ledger", "costing"]),
    ("observe", &["units", "policy", "admission", "ledger"]),
    ("shell", &["units", "policy", "admission", "ledger", "costing", "dial", "engines", "observe"]),
    (
        "wire",
        &[
            "units",
            "policy",
            "admission",
            "ledger",
            "costing",
            "dial",
            "engines",
            "envoy_check",
            "observe",
            "shell",
            "settings",
        ],
    ),
    ("demo", &["units", "yaml", "costing", "sim", "wire::dialect"]),
    ("settings", &["units"]),
    ("app", &["*"]),
    ("cli", &["*"]),
    ("main", &["*"]),
];

/// Files held to less than their room: the oracle judges the core and must know nothing of it.
const STRICTER: [(&str, &[&str]); 2] = [("src/sim/oracle.rs", &["units"]), ("src/sim/oracle/", &["units"])];

/// The doors: neighbours in one room that may not lean on each other, nor what they share on any of them.
const DOORS: [&str; 7] = ["proxy", "tower", "ext_proc", "ext_authz", "access_log", "acquire", "rate_limit"];

/// Whether a file is held apart from a door of its room.
fn apart(path: &str, door: &str) -> bool {
    let of = |room: &str| path.starts_with(&format!("src/wire/{room}/"));
    // The proxy is the layer around a client, and leans on it.
    let leans = of("proxy") && door == "tower";
    !of(door) && !leans && (of("exchange") || DOORS.into_iter().any(of))
}

const CORE: [&str; 3] = ["admission", "ledger", "costing"];
const CLOCKLESS: [&str; 12] = [
    "units",
    "yaml",
    "policy",
    "ledger",
    "admission",
    "costing",
    "engines",
    "envoy_check",
    "store",
    "sim",
    "observe",
    "settings",
];

/// What the core may not name, and why.
const NOT_IN_CORE: [(&str, &str); 19] = [
    ("tokio", "the core has no tasks; the shell drives it"),
    ("std::io", "the core does no IO; it returns effects"),
    ("std::fs", "the core does no IO; it returns effects"),
    ("std::net", "the core does no IO; it returns effects"),
    ("std::env", "the core reads no environment; the policy tells it"),
    ("std::thread", "the core is single-threaded; the shell owns it"),
    ("std::process", "the core does no IO; it returns effects"),
    ("Mutex", "the core has no locks; the shell owns it"),
    ("RwLock", "the core has no locks; the shell owns it"),
    ("async fn", "the core is sync; only doors and ledger adapters wait"),
    (".await", "the core is sync; only doors and ledger adapters wait"),
    ("rand::rng", "chance is seeded, so that a run replays"),
    ("from_os_rng", "chance is seeded, so that a run replays"),
    ("Serialize", "core types have no wire form; doors translate"),
    ("Deserialize", "core types have no wire form; doors translate"),
    ("println!", "the core emits events; others print"),
    ("eprintln!", "the core emits events; others print"),
    ("tracing::", "the core emits events; others log"),
    ("prometheus", "the core emits events; others count"),
];

const CLOCKS: [(&str, &str); 4] = [
    ("Instant::now", "time is an input here; clocks are read in the shell"),
    ("SystemTime", "time is an input here; clocks are read in the shell"),
    ("tokio::time", "time is an input here; timers belong to the shell"),
    ("thread::sleep", "nothing sleeps"),
];

pub(super) fn imports(files: &[File]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in files.iter().filter(|file| file.is_rust()) {
        let Some(room) = file.room().filter(|room| *room != "lib") else { continue };
        let allowed = STRICTER
            .iter()
            .find(|(prefix, _)| file.path.starts_with(prefix))
            .map(|(_, allowed)| *allowed)
            .or_else(|| MAY_IMPORT.iter().find(|(name, _)| *name == room).map(|(_, allowed)| *allowed));
        let Some(allowed) = allowed else {
            findings.push(file.finding(1, format!("room {room:?} is not in tidy's table of who may import whom")));
            continue;
        };
        let strict = STRICTER.iter().any(|(prefix, _)| file.path.starts_with(prefix));
        for (line, path) in outward_paths(file) {
            let below = |wall: &str| path == wall || path.starts_with(&format!("{wall}::"));
            let door = DOORS.into_iter().find(|door| apart(&file.path, door) && below(&format!("wire::{door}")));
            if let Some(wall) = door.map(|door| format!("wire::{door}")) {
                findings
                    .push(file.finding(line, format!("{wall} is another door; what both need is in wire::exchange")));
            }
            let own = !strict && path.split("::").next() == Some(room);
            let own_oracle = strict && path.starts_with("sim::oracle");
            let listed =
                allowed.iter().any(|edge| *edge == "*" || path == *edge || path.starts_with(&format!("{edge}::")));
            if !(own || own_oracle || listed) {
                findings
                    .push(file.finding(line, format!("{room} may not import {path} (it may: {})", allowed.join(", "))));
            }
        }
    }
    findings
}

/// Every room of the table above has a row on the page that explains them.
pub(super) fn rooms(files: &[File]) -> Vec<Finding> {
    let page = files.iter().find(|file| file.path == "ARCHITECTURE.md");
    let rows = page.into_iter().flat_map(|page| page.text.lines()).filter(|line| line.starts_with("| `"));
    let named: Vec<&str> = rows.filter_map(|row| row.split('|').nth(1)).collect();
    let rooms = MAY_IMPORT.iter().map(|(room, _)| *room).filter(|room| *room != "main");
    let missing = rooms.filter(|room| !named.iter().any(|cell| cell.contains(&format!("`{room}`"))));
    missing.map(|room| Finding::new("ARCHITECTURE.md", 1, format!("the room `{room}` has no row"))).collect()
}

pub(super) fn pure_rooms(files: &[File]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in files.iter().filter(|file| file.is_rust()) {
        let room = file.room().unwrap_or_default();
        let clocks = CLOCKS.iter().filter(|_| CLOCKLESS.contains(&room));
        let purity = NOT_IN_CORE.iter().filter(|_| CORE.contains(&room));
        for (word, reason) in clocks.chain(purity) {
            for (line, code) in file.shipped_lines() {
                if contains_word(code, word) {
                    findings.push(file.finding(line, format!("`{word}` in {room}: {reason}")));
                }
            }
        }
    }
    findings
}

/// Whether `word` stands in `code` with no identifier running into it from the left or on to the right.
fn contains_word(code: &str, word: &str) -> bool {
    let is_ident = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(word).any(|(at, _)| {
        let open_left = word.starts_with(is_ident) && code[..at].ends_with(is_ident);
        let open_right = word.ends_with(is_ident) && code[at + word.len()..].starts_with(is_ident);
        !open_left && !open_right
    })
}

/// Every path out of the file's own room, or up to its top, in what ships, from the crate's root, with its line.
fn outward_paths(file: &File) -> Vec<(usize, String)> {
    let code = file.shipped();
    let depth = depth(&file.path);
    let mut paths = Vec::new();
    for (at, _) in code.match_indices("crate::") {
        if !code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == '$') {
            expand(at, "", &code[at + "crate::".len()..], &mut paths);
        }
    }
    for (at, _) in code.match_indices("super::") {
        if code[..at].ends_with("super::") {
            continue;
        }
        let mut rest = &code[at..];
        let mut climbed = 0;
        while let Some(higher) = rest.strip_prefix("super::") {
            (climbed, rest) = (climbed + 1, higher);
        }
        if climbed >= depth {
            expand(at, "", rest, &mut paths);
        } else if climbed + 1 == depth
            && let Some(room) = file.room()
        {
            expand(at, &format!("{room}::"), rest, &mut paths);
        }
    }
    paths.into_iter().map(|(at, path)| (code[..at].matches('\n').count() + 1, path)).collect()
}

/// How many modules lie between the crate's root and the items of this file.
fn depth(path: &str) -> usize {
    let inside = path.strip_prefix("src/").unwrap_or(path);
    let folders = inside.matches('/').count();
    if inside.ends_with("mod.rs") { folders } else { folders + 1 }
}

/// Adds the paths that `rest` begins: one, or one for each item of a group, however deeply nested.
fn expand(at: usize, prefix: &str, rest: &str, paths: &mut Vec<(usize, String)>) {
    let name: String = rest.chars().take_while(|c| c.is_alphanumeric() || matches!(c, '_' | ':')).collect();
    let path = format!("{prefix}{name}");
    let Some(group) = rest[name.len()..].strip_prefix('{') else {
        paths.push((at, path.trim_end_matches(':').to_owned()));
        return;
    };
    let mut depth = 0_usize;
    let mut starts_item = true;
    for (index, c) in group.char_indices() {
        match c {
            '}' if depth == 0 => return,
            '}' => depth -= 1,
            ',' if depth == 0 => starts_item = true,
            c if c.is_whitespace() => {}
            _ => {
                if std::mem::take(&mut starts_item) {
                    expand(at, &path, &group[index..], paths);
                }
                depth += usize::from(c == '{');
            }
        }
    }
}

#[cfg(test)]
mod samples {
    use super::{File, imports, pure_rooms, rooms};

    #[test]
    fn a_room_without_a_row_is_found() {
        let page = File::new("ARCHITECTURE.md", "| `units` | quantities | nothing |\n| `app`, `cli` | all | all |\n");
        let missing = rooms(&[page]);
        assert!(missing.iter().any(|finding| finding.message.contains("`yaml`")), "{missing:?}");
        assert!(!missing.iter().any(|finding| finding.message.contains("`cli`")), "{missing:?}");
    }

    fn import_findings(path: &str, text: &str) -> usize {
        imports(&[File::new(path, text)]).len()
    }

    #[test]
    fn doors_stand_apart_however_the_way_is_written() {
        for bad in
            ["use crate::wire::proxy::Proxy;", "use super::super::proxy;", "use super::super::{a, proxy::Proxy};"]
        {
            assert_eq!(import_findings("src/wire/ext_proc/life.rs", bad), 1, "{bad}");
            assert_eq!(import_findings("src/wire/answer.rs", &bad.replace("super::super", "super")), 0, "{bad}");
        }
        assert_eq!(import_findings("src/wire/proxy/mod.rs", "use super::{ext_proc, exchange};"), 1);
        assert_eq!(import_findings("src/wire/tower/mod.rs", "use super::{proxy, exchange};"), 1);
        assert_eq!(import_findings("src/wire/proxy/mod.rs", "use super::tower::AdmissionLayer;"), 0);
        assert_eq!(import_findings("src/wire/ext_proc/life.rs", "use super::super::proxy_protocol;"), 0);
    }

    #[test]
    fn an_edge_outside_the_table_fails_however_it_is_written() {
        for bad in [
            "use crate::policy::Policy;",
            "use crate::{units::Tokens, policy::{model, }};",
            "fn f() { crate::shell::run(); }",
            "pub use super::super::wire::x;",
        ] {
            assert_eq!(import_findings("src/ledger/memory.rs", bad), 1, "{bad}");
        }
        for good in [
            "use crate::units::{Tokens, Span};",
            "use super::entry::Entry;",
            "use crate::ledger::Entry;",
            "// crate::shell",
        ] {
            assert_eq!(import_findings("src/ledger/memory.rs", good), 0, "{good}");
        }
    }

    #[test]
    fn a_part_of_a_room_may_be_allowed_and_the_oracle_is_held_to_less() {
        assert_eq!(import_findings("src/demo/chat.rs", "use crate::wire::dialect::sse;"), 0);
        assert_eq!(import_findings("src/demo/chat.rs", "use crate::wire::{dialect::{sse, x}};"), 0);
        assert_eq!(import_findings("src/demo/chat.rs", "use crate::wire::{dialect::sse, proxy};"), 1);
        assert_eq!(import_findings("src/sim/oracle.rs", "use crate::admission::Engine;"), 1);
        assert_eq!(import_findings("src/sim/oracle.rs", "use crate::sim::world::World;"), 1);
        assert_eq!(import_findings("src/sim/oracle.rs", "use crate::units::Tokens;"), 0);
        assert_eq!(import_findings("src/attic/mod.rs", "fn f() {}"), 1, "an unknown room");
    }

    #[test]
    fn a_climb_out_of_the_room_is_an_edge_and_one_inside_it_is_not() {
        assert_eq!(import_findings("src/units/a/b.rs", "use super::super::super::wire::x;"), 1);
        assert_eq!(import_findings("src/units/a/b.rs", "use super::super::wire::x;"), 0);
    }

    #[test]
    fn clocks_tasks_and_wire_forms_are_found_in_the_core_only() {
        let found = |path: &str, text: &str| pure_rooms(&[File::new(path, text)]).len();
        for bad in [
            "let t = std::time::Instant::now();",
            "use tokio::sync::mpsc;",
            "#[derive(Serialize)]",
            "let x = rand::rng();",
            "let x = y.await;",
        ] {
            assert_eq!(found("src/admission/engine.rs", bad), 1, "{bad}");
        }
        assert_eq!(found("src/shell/clock.rs", "let t = std::time::Instant::now();"), 0);
        assert_eq!(found("src/sim/world.rs", "let t = std::time::Instant::now();"), 1);
        assert_eq!(found("src/admission/engine.rs", "// tokio\nlet s = \"tokio\"; let tokio_like = 1;"), 0);
        assert_eq!(found("src/admission/engine.rs", "#[cfg(test)]\nmod tests {\n use tokio::x;\n}"), 0);
    }
}
