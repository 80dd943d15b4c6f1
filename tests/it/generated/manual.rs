//! `docs/policy.md`: every key in tables, one a mapping.

use std::fmt::Write;

use serde_json::Value;

use super::schema::{Node, flow};

const HEAD: &str = "\
# The policy file

<!-- Generated from src/policy/form. After changing that, run: UPDATE_GENERATED=1 cargo test --test it generated -->

";

/// A mapping's default that is longer than this is left to its keys' own.
const WIDEST_DEFAULT: usize = 60;

const READING: &str = "\
A policy is one YAML 1.2 document of at most 1 MiB, without anchors, aliases, merge keys and tags. A key that is given
twice or has no value is an error. `tallygate check PATH` tells all mistakes of a file at once, each with its line and
column. `policies/default.yaml` is the default policy with every key in it; `policies/schema.json` lets an editor
complete and check keys as they are typed (begin the file with
`# yaml-language-server: $schema=schema.json`).

";

const KEY_FILES: &str = "\
## Files of API keys

What `identity.tenant[].api_key` names, relative to the policy file:

```yaml
keys:
  - {sha256: 2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824, tenant: acme, name: ci}
```

`sha256` is the SHA-256 of the key in hex, as `printf %s \"$KEY\" | sha256sum` prints it; the key itself is written down
nowhere. `tenant` is whose it is. `name` is what its owner calls it, for logs, and may be left out.
";

pub(super) fn render(schema: &Value) -> String {
    let root = Node::root(schema);
    let mut page = String::from(HEAD);
    let _ = writeln!(page, "{}\n", root.description());
    page.push_str(READING);
    let mut later = Vec::new();
    section(&mut page, root, "", &mut later);
    page.push_str(KEY_FILES);
    page.push_str(
        "\n## Not available in this build\n\nNamed in the plan, and refused by name until they do something: ",
    );
    let _ = writeln!(page, "{}.", later.join(", "));
    page
}

/// One mapping's keys, and then the mappings below it.
fn section(page: &mut String, node: Node<'_>, path: &str, later: &mut Vec<String>) {
    let name = if path.is_empty() { "Top level".to_owned() } else { format!("`{path}`") };
    let _ = writeln!(page, "## {name}\n");
    if let Some(says) = node.of_mapping().filter(|_| !path.is_empty()) {
        let _ = writeln!(page, "{says}\n");
    }
    page.push_str("| key | type | default | meaning |\n|---|---|---|---|\n");
    for (kind, meaning) in node.kinds() {
        let _ = writeln!(page, "| `{kind}` | text | | {} |", cell(&meaning));
    }
    for (key, child) in node.keys() {
        let default = match child.get("default") {
            _ if node.is_required(key) => "required".into(),
            Some(Value::Object(keys)) if keys.is_empty() => String::new(),
            Some(value @ Value::Object(_)) if flow(value).len() > WIDEST_DEFAULT => "see below".into(),
            Some(Value::Array(values)) if values.iter().any(is_large) => "see `policies/default.yaml`".into(),
            Some(value) => format!("`{}`", flow(value)),
            None => String::new(),
        };
        let mut meaning = child.description();
        if let Some(more) = child.type_description().filter(|_| child.keys().is_empty() && child.words().is_empty()) {
            let _ = write!(meaning, " {more}");
        }
        let words = if child.words().is_empty() { Vec::new() } else { child.written() };
        for (word, what) in words {
            let _ = write!(meaning, "<br>`{word}`: {what}");
        }
        let _ = writeln!(page, "| `{key}` | {} | {} | {} |", child.type_name(), cell(&default), cell(&meaning));
        later.extend(child.later().iter().map(|value| format!("`{}: {}`", join(path, key), flow(value))));
    }
    page.push('\n');
    later.extend(node.later().iter().filter_map(|key| key.as_str()).map(|key| format!("`{}`", join(path, key))));
    for (key, child) in node.keys() {
        let below = join(path, key);
        match child.items() {
            Some(items) if !items.keys().is_empty() || !items.kinds().is_empty() => {
                section(page, items, &format!("{below}[]"), later);
            }
            Some(items) => {
                later.extend(items.later().iter().map(|value| format!("`{below}: [{}]`", flow(value))));
            }
            None if !child.keys().is_empty() => section(page, child, &below, later),
            None => {}
        }
    }
}

fn is_large(value: &Value) -> bool {
    value.as_object().is_some_and(|keys| keys.len() > 1)
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}
