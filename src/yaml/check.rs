//! A tree against the JSON Schema of the type wanted of it.
//!
//! Covers the part of JSON Schema that `schemars` writes for serde types: `$ref`, `type`, `properties`,
//! `required`, `additionalProperties`, `items`, `prefixItems`, `enum`, `const`, `oneOf`, `anyOf`, `allOf` and
//! the bounds of numbers and lengths. The point of doing it here is the messages: each names the key, says
//! what was expected in a person's words and, where it can, what was probably meant.

mod object;
mod union;
pub(super) mod words;

use serde_json::{Map, Value};

use self::words::{expected_type, one_of};
use super::LATER;
use super::mistake::{MOST, Position};
use super::parse::Reporter;
use super::trail::Trail;
use super::tree::{Content, Node};

/// Reports everything in the tree that does not fit the schema, and takes out of it what can be left out: keys
/// that may not stand there, and scalars that do not fit.
pub(super) fn check(schema: &Value, root: &mut Node, reporter: &mut Reporter) -> bool {
    let mut checker = Checker { schema, trail: Trail::default(), findings: Vec::new() };
    checker.visit(schema, root);
    let is_whole = checker.findings.iter().all(|finding| finding.part == Part::Dispensable);
    for finding in checker.findings {
        if finding.part == Part::Dispensable {
            root.remove(&finding.trail);
        }
        reporter.report(finding.position, &finding.trail, finding.message);
    }
    is_whole
}

/// Whether a text without the faulty part can still be judged.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    /// A key or scalar that may be as good as absent.
    Dispensable,
    /// A list or mapping: without it, what refers to its contents would look wrong.
    Needed,
}

/// A mistake not yet reported: alternatives are tried before it is known whose mistakes count.
struct Finding {
    position: Position,
    trail: Trail,
    message: String,
    part: Part,
}

struct Checker<'schema> {
    schema: &'schema Value,
    trail: Trail,
    findings: Vec<Finding>,
}

impl<'schema> Checker<'schema> {
    fn find(&mut self, position: Position, part: Part, message: String) {
        // Beyond what is listed, mistakes are only counted.
        let trail = if self.findings.len() < MOST { self.trail.clone() } else { Trail::default() };
        let part = if self.findings.len() < MOST { part } else { Part::Needed };
        self.findings.push(Finding { position, trail, message, part });
    }

    /// Whether a list or mapping is wanted, which others may refer to.
    fn part(&self, schema: &'schema Value) -> Part {
        let types = self.resolve(schema).get("type").map(ToString::to_string).unwrap_or_default();
        let is_scalar = ["string", "integer", "number", "boolean"].iter().any(|name| types.contains(name));
        if is_scalar || self.literals(schema).is_some() { Part::Dispensable } else { Part::Needed }
    }

    /// Follows `$ref`s to the schema itself.
    fn resolve(&self, mut schema: &'schema Value) -> &'schema Value {
        while let Some(pointer) = schema.get("$ref").and_then(Value::as_str) {
            let target = pointer.strip_prefix('#').and_then(|pointer| self.schema.pointer(pointer));
            schema = target.expect("schemars defines what it refers to");
        }
        schema
    }

    fn visit(&mut self, schema: &'schema Value, node: &Node) {
        let Value::Object(rules) = schema else {
            return; // `true`: anything fits
        };
        if matches!(node.content, Content::Refused) || !rules.keys().any(|key| is_rule(key)) {
            return;
        }
        if let Content::Scalar(Value::Null) = node.content {
            let message = match rules.get("required").and_then(|required| required.get(0)).and_then(Value::as_str) {
                _ if !self.trail.steps().is_empty() => "has no value; give it one, or leave the key out".into(),
                Some(key) => format!("is empty; it needs `{key}` at least"),
                None => "is empty".into(),
            };
            self.find(node.position, self.part(schema), message);
            return;
        }
        if self.is_later(rules, node) {
            let message = format!("{} is not available in this build", node.describe());
            self.find(node.position, Part::Dispensable, message);
            return;
        }
        if rules.contains_key("$ref") {
            self.visit(self.resolve(schema), node);
        }
        for part in rules.get("allOf").and_then(Value::as_array).into_iter().flatten() {
            self.visit(part, node);
        }
        if let Some(literals) = self.literals(schema) {
            self.literal(&literals, node);
        } else if let Some(alternatives) = alternatives(rules) {
            self.union(rules, alternatives, node);
        } else if self.has_type(rules, node) {
            self.content(rules, node);
        } else {
            let found = node.describe();
            let mut hint = words::type_hint(rules, node);
            if hint.is_empty() {
                hint = self.key_for(rules, node);
            }
            self.find(
                node.position,
                self.part(schema),
                format!("expected {}, found {found}{hint}", expected_type(rules)),
            );
        }
    }

    /// Whether the value is one of those known by name but not built.
    fn is_later(&self, rules: &Map<String, Value>, node: &Node) -> bool {
        let Content::Scalar(value) = &node.content else { return false };
        rules.get(LATER).and_then(Value::as_array).is_some_and(|later| later.contains(value))
    }

    /// `; write {adapt: auto}` for a word where a mapping is expected of which one key takes it.
    fn key_for(&self, rules: &'schema Map<String, Value>, node: &Node) -> String {
        let Content::Scalar(Value::String(text)) = &node.content else { return String::new() };
        let keys = rules.get("properties").and_then(Value::as_object).into_iter().flatten();
        let takes = |schema: &'schema Value| {
            let literals = self.literals(self.resolve(schema)).unwrap_or_default();
            literals.into_iter().any(|literal| literal.as_str() == Some(text))
        };
        let mut keys = keys.filter(|(_, schema)| takes(schema)).map(|(key, _)| key);
        match (keys.next(), keys.next()) {
            (Some(key), None) => format!("; write {{{key}: {text}}}"),
            _ => String::new(),
        }
    }

    fn literal(&mut self, literals: &[&Value], node: &Node) {
        let fits = matches!(&node.content, Content::Scalar(value) if literals.contains(&value));
        if !fits {
            let found = node.describe();
            let names: Vec<&str> = literals.iter().filter_map(|literal| literal.as_str()).collect();
            let guess = match &node.content {
                Content::Scalar(Value::String(text)) => words::did_you_mean(text, &names),
                _ => String::new(),
            };
            self.find(node.position, Part::Dispensable, format!("expected {}, found {found}{guess}", one_of(literals)));
        }
    }

    /// Whether the value is of a type the schema lists; any is, where it lists none.
    fn has_type(&self, rules: &Map<String, Value>, node: &Node) -> bool {
        let Some(types) = rules.get("type") else { return true };
        let fits = |name: &Value| match (name.as_str(), &node.content) {
            (Some("object"), Content::Map(_))
            | (Some("array"), Content::List(_))
            | (Some("string"), Content::Scalar(Value::String(_)))
            | (Some("boolean"), Content::Scalar(Value::Bool(_)))
            | (Some("number"), Content::Scalar(Value::Number(_))) => true,
            (Some("integer"), Content::Scalar(Value::Number(number))) => !number.is_f64(),
            _ => false,
        };
        types.as_array().map_or_else(|| fits(types), |types| types.iter().any(fits))
    }

    /// What holds beyond the type.
    fn content(&mut self, rules: &'schema Map<String, Value>, node: &Node) {
        match &node.content {
            Content::Map(entries) => self.object(rules, entries, node),
            Content::List(nodes) => self.list(rules, nodes, node),
            Content::Scalar(Value::Number(number)) => {
                if let Some(message) = words::out_of_range(rules, number) {
                    self.find(node.position, Part::Dispensable, message);
                }
            }
            Content::Scalar(Value::String(text)) => {
                if let Some(message) = words::wrong_length(rules, text.chars().count(), "character") {
                    self.find(node.position, Part::Dispensable, message);
                }
            }
            Content::Scalar(_) | Content::Refused => {}
        }
    }

    fn list(&mut self, rules: &'schema Map<String, Value>, nodes: &[Node], node: &Node) {
        if let Some(message) = words::wrong_length(rules, nodes.len(), "item") {
            self.find(node.position, Part::Needed, message);
        }
        let first = rules.get("prefixItems").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        for (index, item) in nodes.iter().enumerate() {
            if let Some(schema) = first.get(index).or_else(|| rules.get("items")) {
                self.trail.push_index(index);
                self.visit(schema, item);
                self.trail.pop();
            }
        }
    }
}

/// Whether a keyword restricts values; descriptions and the like do not.
fn is_rule(keyword: &str) -> bool {
    !matches!(keyword, "$schema" | "$defs" | "title" | "description" | "default" | "examples" | "deprecated")
}

/// The alternatives of a union, the absence of a value left out.
fn alternatives(rules: &Map<String, Value>) -> Option<Vec<&Value>> {
    let list = rules.get("oneOf").or_else(|| rules.get("anyOf"))?.as_array()?;
    Some(list.iter().filter(|schema| schema.get("type").and_then(Value::as_str) != Some("null")).collect())
}
