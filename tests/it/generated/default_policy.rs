//! `policies/default.yaml`: every key with its explanation and its default.
//!
//! A key that has no default is there as a comment, with an example.

use std::fmt::Write;

use serde_json::{Map, Value};

use super::schema::{Node, defaults, flow};

/// The widest line.
const WIDTH: usize = 110;

pub(super) fn render(schema: &Value) -> String {
    let root = Node::root(schema);
    let mut page = Page(String::new());
    page.comment(0, "The default policy: what `version: 1` alone means, with every key explained.");
    page.comment(0, "");
    page.comment(0, &root.description());
    page.comment(0, "");
    page.comment(
        0,
        "Check a policy with `tallygate check PATH`. The same keys as a table: docs/policy.md. This file is generated.",
    );
    page.0.push('\n');
    page.0.push_str("version: 1\n");
    page.mapping(root, &defaults(root), 0);
    page.0
}

struct Page(String);

impl Page {
    fn comment(&mut self, indent: usize, text: &str) {
        for line in wrapped(text, WIDTH - indent - 2) {
            let _ = writeln!(self.0, "{}", format!("{:indent$}# {line}", "").trim_end());
        }
    }

    /// One of several things that may stand here, and what it means.
    fn bullet(&mut self, indent: usize, name: &str, meaning: &str) {
        for (index, line) in wrapped(&format!("{name}: {meaning}"), WIDTH - indent - 4).iter().enumerate() {
            let lead = if index == 0 { "- " } else { "  " };
            let _ = writeln!(self.0, "{:indent$}# {lead}{line}", "");
        }
    }

    fn line(&mut self, indent: usize, text: &str) {
        let _ = writeln!(self.0, "{:indent$}{text}", "");
    }

    fn mapping(&mut self, node: Node<'_>, values: &Map<String, Value>, indent: usize) {
        let is_airy = node.keys().iter().any(|(_, child)| child.description().len() > WIDTH);
        for (index, (key, child)) in node.keys().into_iter().filter(|(key, _)| *key != "version").enumerate() {
            if is_airy && (index > 0 || indent == 0) {
                self.0.push('\n');
            }
            self.explain(child, indent);
            match values.get(key) {
                Some(value) => self.entry(key, child, value, indent),
                None => {
                    let example = child.get("examples").and_then(|examples| examples.get(0));
                    let example = example.unwrap_or_else(|| panic!("{key} has neither a default nor an example"));
                    self.line(indent, &format!("# {key}: {}", flow(example)));
                }
            }
        }
    }

    fn explain(&mut self, node: Node<'_>, indent: usize) {
        self.comment(indent, &node.description());
        for (word, meaning) in node.words() {
            self.bullet(indent, word, &meaning);
        }
        for later in node.later().iter().filter(|later| !node.words().is_empty() && later.is_string()) {
            self.bullet(indent, &flow(later), "not available in this build.");
        }
    }

    fn entry(&mut self, key: &str, node: Node<'_>, value: &Value, indent: usize) {
        match value {
            Value::Object(values) if !node.keys().is_empty() => {
                // A key with nothing but comments under it would have no value.
                let lead = if values.is_empty() { "# " } else { "" };
                self.line(indent, &format!("{lead}{key}:"));
                self.mapping(node, values, indent + 2);
            }
            Value::Array(values) if node.items().is_some_and(is_mapping) => {
                let items = node.items().expect("just looked at");
                self.list(key, items, values, indent);
                if values.is_empty() {
                    let example = node.get("examples").and_then(|examples| examples.get(0)).and_then(Value::as_array);
                    self.comment(indent, "For example:");
                    self.line(indent, &format!("# {key}:"));
                    for entry in example.unwrap_or_else(|| panic!("{key} is empty and has no example")) {
                        self.line(indent, &format!("#   - {}", flow(entry)));
                    }
                }
            }
            _ => self.line(indent, &format!("{key}: {}", flow(value))),
        }
    }

    fn list(&mut self, key: &str, items: Node<'_>, values: &[Value], indent: usize) {
        let is_deep = items.keys().iter().any(|(_, child)| !child.keys().is_empty());
        if let ([Value::Object(only)], true) = (values, is_deep) {
            self.line(indent, &format!("{key}:"));
            return self.block_entry(items, only, indent + 2);
        }
        for (kind, meaning) in items.kinds() {
            self.bullet(indent, kind, &meaning);
        }
        for (part, child) in items.keys() {
            let choice = if child.words().is_empty() { String::new() } else { format!(" {}.", child.type_name()) };
            self.bullet(indent, part, &(child.description() + &choice.replace('`', "")));
        }
        if values.is_empty() {
            return self.line(indent, &format!("{key}: []"));
        }
        self.line(indent, &format!("{key}:"));
        for value in values {
            self.line(indent + 2, &format!("- {}", flow(value)));
        }
    }

    /// An entry with each of its keys explained, the dash before the first.
    fn block_entry(&mut self, items: Node<'_>, values: &Map<String, Value>, indent: usize) {
        let mut inner = Self(String::new());
        inner.mapping(items, values, indent + 2);
        let mut dashed = false;
        for line in inner.0.lines() {
            let is_first_key = !dashed && !line.trim_start().starts_with('#');
            if is_first_key {
                dashed = true;
                let _ = writeln!(self.0, "{:indent$}- {}", "", line.trim_start());
            } else {
                self.0.push_str(line);
                self.0.push('\n');
            }
        }
    }
}

/// Lines of at most this many bytes, a longer word getting one of its own.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ').filter(|word| !word.is_empty()) {
        let line = lines.last_mut().expect("there is one from the start");
        if !line.is_empty() && line.len() + 1 + word.len() > width {
            lines.push(word.to_owned());
        } else {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines
}

/// Whether entries are mappings, so that their keys want explaining.
fn is_mapping(items: Node<'_>) -> bool {
    !items.keys().is_empty() || !items.kinds().is_empty()
}
