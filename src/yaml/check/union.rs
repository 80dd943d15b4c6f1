//! Values that may take one of several forms, as serde's enums do.
//!
//! To say something useful, the form that was meant has to be guessed: by the one key of a `{kind: value}`
//! mapping, by the value of a tag key that all forms share, or else by which form the value fits best.

use std::mem;

use serde_json::{Map, Value};

use super::super::tree::{Content, Entry, Node};
use super::words::{did_you_mean, expected_type, one_of};
use super::{Checker, Finding, Part};

impl<'schema> Checker<'schema> {
    /// The values of a schema that accepts nothing but a list of them.
    pub(super) fn literals(&self, schema: &'schema Value) -> Option<Vec<&'schema Value>> {
        if let Some(value) = schema.get("const") {
            return Some(vec![value]);
        }
        if let Some(values) = schema.get("enum").and_then(Value::as_array) {
            return Some(values.iter().filter(|value| !value.is_null()).collect());
        }
        let parts = super::alternatives(schema.as_object()?)?;
        let lists: Option<Vec<_>> = parts.into_iter().map(|part| self.literals(self.resolve(part))).collect();
        lists.map(|lists| lists.concat())
    }

    pub(super) fn union(&mut self, rules: &'schema Map<String, Value>, alternatives: Vec<&'schema Value>, node: &Node) {
        let forms: Vec<&'schema Value> = alternatives.into_iter().map(|form| self.resolve(form)).collect();
        if let [only] = forms[..] {
            return self.visit(only, node);
        }
        let words: Vec<&str> =
            forms.iter().filter_map(|form| self.literals(form)).flatten().filter_map(Value::as_str).collect();
        match (&node.content, kinds(&forms)) {
            (Content::Map(entries), Some(kinds)) => return self.by_kind(rules, &kinds, &words, entries, node),
            (_, Some(kinds)) if !words.is_empty() => return self.by_word(&words, &kinds, node),
            (Content::Map(_), None) => {
                if let Some(tag) = shared_tag(&forms) {
                    return self.by_tag(tag, &forms, node);
                }
            }
            _ => {}
        }
        self.by_fit(&forms, node);
    }

    /// A word, where a `{kind: value}` may stand too.
    fn by_word(&mut self, words: &[&str], kinds: &[(&str, &'schema Value)], node: &Node) {
        let found = match &node.content {
            Content::Scalar(Value::String(text)) => text.as_str(),
            _ => "",
        };
        if words.contains(&found) {
            return;
        }
        let mappings: Vec<String> = kinds.iter().map(|(kind, _)| format!("{{{kind}: ...}}")).collect();
        let hint = if kinds.iter().any(|(kind, _)| *kind == found) {
            format!("; write {{{found}: ...}}")
        } else {
            did_you_mean(found, words)
        };
        let expected = format!("{} or {}", words.join(", "), mappings.join(" or "));
        self.find(node.position, Part::Needed, format!("expected {expected}, found {}{hint}", node.describe()));
    }

    /// `{kind: value}`, where the key says which form it is.
    fn by_kind(
        &mut self,
        rules: &'schema Map<String, Value>,
        kinds: &[(&str, &'schema Value)],
        words: &[&str],
        entries: &[Entry],
        node: &Node,
    ) {
        let names: Vec<&str> = kinds.iter().map(|(name, _)| *name).collect();
        for entry in entries {
            self.trail.push_key(&entry.key);
            match kinds.iter().find(|(name, _)| *name == entry.key) {
                Some((_, schema)) => self.visit(schema, &entry.value),
                None if words.contains(&entry.key.as_str()) => {
                    let message = format!("stands alone: write {} and no mapping", entry.key);
                    self.find(entry.position, Part::Needed, message);
                }
                None => self.unknown_key(rules, entry, &names),
            }
            self.trail.pop();
        }
        if entries.len() != 1 {
            let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
            let message = format!("expected exactly one of the keys {}, found {}", names.join(", "), entries.len());
            self.find(node.position, Part::Needed, message);
        }
    }

    /// A key that every form has, each with its own value.
    fn by_tag(&mut self, tag: &str, forms: &[&'schema Value], node: &Node) {
        let value_of = |form: &&'schema Value| form["properties"][tag]["const"].clone();
        let Some(found) = node.get(tag) else {
            return self.find(node.position, Part::Needed, format!("the key `{tag}` is missing"));
        };
        let meant = forms.iter().find(|form| matches!(&found.content, Content::Scalar(it) if *it == value_of(form)));
        if let Some(form) = meant {
            return self.visit(form, node);
        }
        let values: Vec<Value> = forms.iter().map(value_of).collect();
        let message = format!("expected {}, found {}", one_of(&values.iter().collect::<Vec<_>>()), found.describe());
        self.trail.push_key(tag);
        self.find(found.position, Part::Needed, message);
        self.trail.pop();
    }

    /// The form with the fewest mistakes among those of the value's type.
    fn by_fit(&mut self, forms: &[&'schema Value], node: &Node) {
        let tried = forms.iter().filter(|form| form.as_object().is_none_or(|rules| self.has_type(rules, node)));
        let tried: Vec<&Value> = tried.copied().collect();
        let mut best: Option<Vec<Finding>> = None;
        for form in tried {
            let before = mem::take(&mut self.findings);
            self.visit(form, node);
            let findings = mem::replace(&mut self.findings, before);
            if best.as_ref().is_none_or(|best| findings.len() < best.len()) {
                best = Some(findings);
            }
        }
        match best {
            Some(findings) => self.findings.extend(findings),
            None => {
                let expected: Vec<String> =
                    forms.iter().filter_map(|form| form.as_object()).map(expected_type).collect();
                self.find(
                    node.position,
                    Part::Needed,
                    format!("expected {}, found {}", expected.join(" or "), node.describe()),
                );
            }
        }
    }
}

/// The key and value schema of each form, when all are mappings of exactly one required key.
fn kinds<'schema>(forms: &[&'schema Value]) -> Option<Vec<(&'schema str, &'schema Value)>> {
    let kind = |form: &&'schema Value| {
        let properties = form.get("properties")?.as_object()?;
        let required = form.get("required")?.as_array()?;
        let (key, schema) = properties.iter().next()?;
        (properties.len() == 1 && required.len() == 1 && schema.get("const").is_none())
            .then_some((key.as_str(), schema))
    };
    let mappings = forms.iter().filter(|form| form.get("type").and_then(Value::as_str) == Some("object"));
    mappings.map(kind).collect::<Option<Vec<_>>>().filter(|kinds| !kinds.is_empty())
}

/// The key whose value tells the forms apart, when all are mappings that have it.
fn shared_tag<'schema>(forms: &[&'schema Value]) -> Option<&'schema str> {
    let properties = |form: &'schema Value| form.get("properties").and_then(Value::as_object);
    let is_tag = |form: &'schema Value, key: &str| form["properties"][key].get("const").is_some();
    let first = properties(forms.first()?)?;
    first.keys().map(String::as_str).find(|key| forms.iter().all(|form| is_tag(form, key)))
}
