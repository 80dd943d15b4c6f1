//! Mappings: the keys that may stand there, and those that must.

use serde_json::{Map, Value};

use super::super::tree::{Entry, Node};
use super::super::{LATER, REFUSED};
use super::{Checker, Part, words};

impl<'schema> Checker<'schema> {
    pub(super) fn object(&mut self, rules: &'schema Map<String, Value>, entries: &[Entry], node: &Node) {
        let properties = rules.get("properties").and_then(Value::as_object);
        let others = rules.get("additionalProperties");
        for entry in entries {
            self.trail.push_key(&entry.key);
            let own = properties.and_then(|properties| properties.get(&entry.key));
            match own.or(others) {
                Some(Value::Bool(false)) => {
                    let known: Vec<&str> = properties.into_iter().flat_map(Map::keys).map(String::as_str).collect();
                    self.unknown_key(rules, entry, &known);
                }
                Some(schema) => self.visit(schema, &entry.value),
                None => {}
            }
            self.trail.pop();
        }
        for key in rules.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str) {
            if !entries.iter().any(|entry| entry.key == key) {
                self.find(node.position, Part::Needed, format!("the key `{key}` is missing"));
            }
        }
    }

    /// A key that may not stand here: one that a later build will know, or one that nobody knows.
    pub(super) fn unknown_key(&mut self, rules: &'schema Map<String, Value>, entry: &Entry, known: &[&str]) {
        let key = entry.key.as_str();
        let later = rules.get(LATER).and_then(Value::as_array);
        let answer = rules.get(REFUSED).and_then(|refused| refused.get(key)?.as_str());
        let meant = words::nearest(key, known).and_then(|name| rules.get("properties")?.get(name));
        let (part, message) = if later.is_some_and(|later| later.iter().any(|name| name == key)) {
            (Part::Dispensable, "is not available in this build; remove the key".to_owned())
        } else if let Some(answer) = answer {
            (Part::Dispensable, answer.to_owned())
        } else {
            // Of a misspelt key, what it holds is missing elsewhere.
            (meant.map_or(Part::Dispensable, |meant| self.part(meant)), words::unknown_key(key, known))
        };
        self.find(entry.position, part, message);
    }
}
