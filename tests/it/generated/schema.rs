//! Reading the schema: references followed, forms told apart, values and types in words.

use serde_json::{Map, Value};

/// A schema together with the document that its references point into.
#[derive(Clone, Copy)]
pub(super) struct Node<'schema> {
    root: &'schema Value,
    own: &'schema Value,
}

impl<'schema> Node<'schema> {
    pub(super) fn root(schema: &'schema Value) -> Self {
        Self { root: schema, own: schema }
    }

    fn at(self, own: &'schema Value) -> Self {
        Self { own, ..self }
    }

    /// What is referred to, or this itself.
    fn target(self) -> &'schema Value {
        match self.own.get("$ref").and_then(Value::as_str) {
            Some(pointer) => self.root.pointer(&pointer[1..]).expect("defined"),
            None => self.own,
        }
    }

    /// A keyword beside a reference goes before the same one behind it.
    pub(super) fn get(self, keyword: &str) -> Option<&'schema Value> {
        self.own.get(keyword).or_else(|| self.target().get(keyword))
    }

    /// The doc comment, on one line.
    pub(super) fn description(self) -> String {
        self.get("description").and_then(Value::as_str).map(one_line).expect("every key is explained")
    }

    /// The doc comment of the type behind a reference, where it is not the key's own.
    pub(super) fn type_description(self) -> Option<String> {
        let own = self.own.get("description")?;
        let of_type = self.target().get("description").filter(|of_type| *of_type != own)?;
        of_type.as_str().map(one_line)
    }

    /// The keys of a mapping.
    pub(super) fn keys(self) -> Vec<(&'schema str, Self)> {
        let keys = self.target().get("properties").and_then(Value::as_object);
        keys.into_iter().flatten().map(|(key, schema)| (key.as_str(), self.at(schema))).collect()
    }

    pub(super) fn is_required(self, key: &str) -> bool {
        let required = self.target().get("required").and_then(Value::as_array);
        required.is_some_and(|required| required.iter().any(|name| name == key))
    }

    /// The schema of a list's entries.
    pub(super) fn items(self) -> Option<Self> {
        self.target().get("items").map(|items| self.at(items))
    }

    fn forms(self) -> impl Iterator<Item = Self> {
        self.target().get("oneOf").and_then(Value::as_array).into_iter().flatten().map(move |form| self.at(form))
    }

    /// The words that may stand here, each with its meaning.
    pub(super) fn words(self) -> Vec<(&'schema str, String)> {
        self.forms().filter_map(|form| Some((form.get("const")?.as_str()?, form.description()))).collect()
    }

    /// The kinds of a `{kind: value}` entry, each with its meaning.
    pub(super) fn kinds(self) -> Vec<(&'schema str, String)> {
        self.forms().filter_map(|form| Some((form.keys().first()?.0, form.description()))).collect()
    }

    /// The words that may stand here and the kinds of entries, each as it is written and with its meaning.
    pub(super) fn written(self) -> Vec<(String, String)> {
        let form = |form: Self| match form.get("const").and_then(Value::as_str) {
            Some(word) => Some((word.to_owned(), form.description())),
            None => form.keys().first().map(|(kind, value)| {
                let value = value.type_name();
                (format!("{{{kind}: {}}}", value.to_uppercase()), form.description())
            }),
        };
        self.forms().filter_map(form).collect()
    }

    /// What its own type says of itself, where that is a mapping.
    pub(super) fn of_mapping(self) -> Option<String> {
        self.target().get("properties")?;
        self.target().get("description").and_then(Value::as_str).map(one_line)
    }

    /// What is known by name only.
    pub(super) fn later(self) -> Vec<&'schema Value> {
        self.get("x-later").and_then(Value::as_array).into_iter().flatten().collect()
    }

    /// The type in words.
    pub(super) fn type_name(self) -> String {
        if !self.words().is_empty() {
            let written: Vec<String> = self.written().iter().map(|(word, _)| format!("`{word}`")).collect();
            return written.join(", ");
        }
        if let Some(value) = self.get("const") {
            return format!("`{value}`");
        }
        if let Some(title) = self.target().get("title").and_then(Value::as_str) {
            return title.to_owned();
        }
        match self.target().get("type").and_then(Value::as_str) {
            Some("array") => format!("list of {}", plural(&self.items().expect("a list has entries").type_name())),
            Some("object") => "mapping".into(),
            Some("boolean") => "`true`, `false`".into(),
            Some("string") => "text".into(),
            Some(kind @ ("integer" | "number")) => {
                let name = if kind == "integer" { "whole number" } else { "number" };
                let is_natural = |least: &&Value| kind == "integer" && **least == 0;
                match (self.get("minimum").filter(|least| !is_natural(least)), self.get("maximum")) {
                    (None, None) => name.into(),
                    (Some(least), None) => format!("{name}, at least {least}"),
                    (None, Some(most)) => format!("{name}, at most {most}"),
                    (Some(least), Some(most)) => format!("{name}, {least} to {most}"),
                }
            }
            _ => "mapping of one key".into(),
        }
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn plural(name: &str) -> String {
    match name {
        "text" => "texts".into(),
        "mapping of one key" => "mappings of one key".into(),
        _ if name.starts_with('`') => name.to_owned(),
        _ => format!("{name}s"),
    }
}

/// A value as YAML in one line.
pub(super) fn flow(value: &Value) -> String {
    match value {
        Value::String(text) if is_plain(text) => text.clone(),
        Value::Number(number) if number.is_f64() => {
            let text = number.to_string();
            text.strip_suffix(".0").map(str::to_owned).unwrap_or(text)
        }
        Value::Array(values) => format!("[{}]", values.iter().map(flow).collect::<Vec<_>>().join(", ")),
        Value::Object(keys) => {
            let keys: Vec<String> = keys.iter().map(|(key, value)| format!("{key}: {}", flow(value))).collect();
            format!("{{{}}}", keys.join(", "))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.to_string(),
    }
}

/// Whether a text needs no quotes: it begins with a letter, or is a duration or percentage, and holds nothing that
/// YAML gives a meaning to.
fn is_plain(text: &str) -> bool {
    let first = text.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    let last = text.bytes().last().is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'%');
    let keyword = matches!(text.to_ascii_lowercase().as_str(), "true" | "false" | "null");
    first
        && last
        && !keyword
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'%'))
}

/// The paths of all keys.
pub(super) fn keys(schema: &Value) -> Vec<String> {
    let mut found = Vec::new();
    collect(Node::root(schema), "", &mut found);
    found
}

fn collect(node: Node<'_>, path: &str, found: &mut Vec<String>) {
    for (key, child) in node.keys() {
        let path = if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
        match child.items() {
            Some(items) => collect(items, &format!("{path}[]"), found),
            None => collect(child, &path, found),
        }
        found.push(path);
    }
}

/// The default of a whole mapping, key by key.
pub(super) fn defaults(node: Node<'_>) -> Map<String, Value> {
    let with_default =
        node.keys().into_iter().filter_map(|(key, child)| Some((key.to_owned(), child.get("default")?.clone())));
    with_default.collect()
}
