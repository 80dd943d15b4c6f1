//! A part of an Envoy configuration that may be absent, with the way to it.
//!
//! What matters most in a configuration is often what does not stand in it, so a part that is absent is a part too:
//! it has the path it would have, and the place of what is nearest around it. Protobuf's JSON form is understood as
//! Envoy understands it: keys in snake_case or lowerCamelCase, wrapped numbers as numbers, large ones as text, enums
//! by name or number, durations as `0.25s`. A `TypedStruct` is seen as the message it stands for.

use std::rc::Rc;

use serde_json::Value;

use crate::units::Span;
use crate::yaml::{self, Position};

/// The types that only wrap another.
const WRAPPERS: [&str; 2] = ["xds.type.v3.TypedStruct", "udpa.type.v1.TypedStruct"];

/// A part, or the place where it would be.
#[derive(Clone, Debug)]
pub(super) struct Part<'document> {
    node: Option<yaml::Part<'document>>,
    position: Position,
    path: Rc<str>,
}

impl<'document> Part<'document> {
    pub(super) fn root(document: &'document yaml::Document) -> Self {
        let node = document.root();
        Self { node: Some(node), position: node.position(), path: Rc::from("") }
    }

    fn below(&self, node: Option<yaml::Part<'document>>, step: &str) -> Self {
        let dot = if self.path.is_empty() || step.starts_with('[') { "" } else { "." };
        let path = format!("{}{dot}{step}", self.path).into();
        Self { node, position: node.map_or(self.position, yaml::Part::position), path }
    }

    /// The value of a field, by its name in snake_case.
    pub(super) fn get(&self, field: &str) -> Self {
        let node = self.node.and_then(|node| node.get(field).or_else(|| node.get(&camel(field))));
        self.below(node, field)
    }

    /// The field several steps further, as in `grpc_service.timeout`.
    pub(super) fn at(&self, path: &str) -> Self {
        path.split('.').fold(self.clone(), |part, field| part.get(field))
    }

    /// The items of a list.
    pub(super) fn items(&self) -> Vec<Self> {
        let nodes = self.node.into_iter().flat_map(yaml::Part::items).enumerate();
        nodes.map(|(index, node)| self.below(Some(node), &format!("[{index}]"))).collect()
    }

    /// The keys and values of a map.
    pub(super) fn entries(&self) -> Vec<(&'document str, Self)> {
        let entries = self.node.into_iter().flat_map(yaml::Part::entries);
        entries.map(|(key, node)| (key, self.below(Some(node), &format!("[{key:?}]")))).collect()
    }

    /// The message in an `Any`, which a `TypedStruct` may wrap, and its type's name without the package's owner.
    pub(super) fn message(&self) -> (&'document str, Self) {
        let (mut message, mut field) = (self.clone(), "@type");
        for _wrapped in 0..WRAPPERS.len() {
            let Some(kind) = message.get(field).word() else { break };
            let kind = kind.rsplit('/').next().unwrap_or(kind);
            if !WRAPPERS.contains(&kind) {
                return (kind, message);
            }
            let kind = message.get("type_url").word().unwrap_or_default();
            let kind = kind.rsplit('/').next().unwrap_or(kind);
            if !WRAPPERS.contains(&kind) {
                return (kind, message.get("value"));
            }
            (message, field) = (message.get("value"), "type_url");
        }
        ("", message)
    }

    /// This, or another where it is absent.
    pub(super) fn or(self, other: &Self) -> Self {
        if self.is_there() { self } else { other.clone() }
    }

    pub(super) fn is_there(&self) -> bool {
        self.node.is_some()
    }

    fn scalar(&self) -> Option<&'document Value> {
        self.node.and_then(yaml::Part::scalar)
    }

    /// Text, an enum's name included.
    pub(super) fn word(&self) -> Option<&'document str> {
        self.scalar().and_then(Value::as_str)
    }

    /// Text, or nothing at all.
    pub(super) fn text(&self) -> &'document str {
        self.word().unwrap_or_default()
    }

    pub(super) fn number(&self) -> Option<u64> {
        match self.scalar()? {
            Value::String(text) => text.parse().ok(),
            value => value.as_u64(),
        }
    }

    /// Whether it is there and true.
    pub(super) fn is_on(&self) -> bool {
        self.scalar().and_then(Value::as_bool).unwrap_or(false)
    }

    /// A duration, as in `0.25s`.
    pub(super) fn span(&self) -> Option<Span> {
        let seconds: f64 = self.word()?.strip_suffix('s')?.parse().ok()?;
        (seconds.is_finite() && seconds >= 0.0).then(|| Span::from_secs_f64(seconds))
    }

    /// The name of an enum's value, of those listed in the order of their numbers.
    pub(super) fn one_of(&self, names: &'static [&'static str]) -> Option<&'static str> {
        match (self.word(), self.number()) {
            (_, Some(number)) => usize::try_from(number).ok().and_then(|number| names.get(number)).copied(),
            (Some(word), None) => names.iter().find(|name| **name == word).copied(),
            (None, None) => None,
        }
    }

    /// The words of a list.
    pub(super) fn words(&self) -> Vec<&'document str> {
        self.items().iter().filter_map(Self::word).collect()
    }

    pub(super) fn position(&self) -> Position {
        self.position
    }

    pub(super) fn path(&self) -> &str {
        &self.path
    }
}

/// A name in lowerCamelCase.
fn camel(snake: &str) -> String {
    let mut words = snake.split('_');
    let mut camel = words.next().unwrap_or_default().to_owned();
    for word in words {
        let mut chars = word.chars();
        camel.extend(chars.next().map(|first| first.to_ascii_uppercase()));
        camel.push_str(chars.as_str());
    }
    camel
}

#[cfg(test)]
mod tests {
    use super::Part;
    use crate::units::Span;
    use crate::yaml::Document;

    #[test]
    fn protobufs_json_is_read_as_envoy_does() {
        let text = "{messageTimeout: 0.25s, max_requests: '7', mode: 2, list: [{a: x}],\n wrapped: {\"@type\": \
                    type.googleapis.com/xds.type.v3.TypedStruct, type_url: t.example/a.B, value: {c: true}}}";
        let document = Document::read("a.yaml", text).expect("YAML");
        let root = Part::root(&document);
        assert_eq!(root.get("message_timeout").span(), Some(Span::from_millis(250)));
        assert_eq!(root.get("max_requests").number(), Some(7));
        assert_eq!(root.get("mode").one_of(&["A", "B", "C"]), Some("C"));
        let absent = root.get("list").items()[0].at("b.c");
        assert_eq!((absent.path(), absent.position().line, absent.is_there()), ("list[0].b.c", 1, false));
        let (kind, message) = root.get("wrapped").message();
        assert_eq!((kind, message.get("c").is_on()), ("a.B", true));
    }
}
