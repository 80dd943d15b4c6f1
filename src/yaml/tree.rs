//! The positioned tree: what a text says, and where it says it.
//!
//! Positions live in the nodes and not in a table of paths: a table's paths could together be far larger than
//! the text, the tree cannot. A part is named by a JSON Pointer such as `/pools/0/window`.

use std::fmt::Write;
use std::sync::Arc;

use serde_json::Value;

use super::mistake::{Mistake, Position, excerpt};
use super::trail::{Step, Trail};

/// A node of the text.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) position: Position,
    pub(super) content: Content,
}

/// What a node holds.
#[derive(Clone, Debug)]
pub(super) enum Content {
    /// Null, a boolean, a number or text; never a list or an object.
    Scalar(Value),
    List(Vec<Node>),
    Map(Vec<Entry>),
    /// Already reported; nothing more is to be said of it.
    Refused,
}

/// A key and its value.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) position: Position,
    pub(super) value: Node,
}

impl Node {
    /// The value of the key, in a mapping that has it.
    pub(super) fn get(&self, key: &str) -> Option<&Self> {
        match &self.content {
            Content::Map(entries) => entries.iter().find(|entry| entry.key == key).map(|entry| &entry.value),
            Content::Scalar(_) | Content::List(_) | Content::Refused => None,
        }
    }

    /// The part one step of a JSON Pointer further.
    fn child(&self, step: &str) -> Option<&Self> {
        match &self.content {
            Content::List(nodes) => step.parse().ok().and_then(|index: usize| nodes.get(index)),
            Content::Map(_) => self.get(step),
            Content::Scalar(_) | Content::Refused => None,
        }
    }

    /// As JSON, positions left behind. Refused values are left out.
    pub(super) fn to_json(&self) -> Value {
        match &self.content {
            Content::Scalar(value) => value.clone(),
            Content::List(nodes) => nodes.iter().map(Self::to_json).collect(),
            Content::Map(entries) => {
                let kept = entries.iter().filter(|entry| !matches!(entry.value.content, Content::Refused));
                Value::Object(kept.map(|entry| (entry.key.clone(), entry.value.to_json())).collect())
            }
            Content::Refused => Value::Null,
        }
    }

    /// Takes a key and its value out. The items of lists stay, since taking one out would renumber the others.
    pub(super) fn remove(&mut self, trail: &Trail) {
        let Some((Step::Key(last), before)) = trail.steps().split_last() else { return };
        let mut node = self;
        for step in before {
            let next = match (&mut node.content, step) {
                (Content::List(nodes), Step::Index(index)) => nodes.get_mut(*index),
                (Content::Map(entries), Step::Key(key)) => {
                    entries.iter_mut().find(|entry| entry.key == *key).map(|entry| &mut entry.value)
                }
                _ => None,
            };
            let Some(next) = next else { return };
            node = next;
        }
        if let Content::Map(entries) = &mut node.content {
            entries.retain(|entry| entry.key != *last);
        }
    }

    /// In words, for a message.
    pub(super) fn describe(&self) -> String {
        match &self.content {
            Content::Scalar(Value::Bool(value)) => format!("{value}"),
            Content::Scalar(Value::Number(number)) => format!("the number {number}"),
            Content::Scalar(Value::String(text)) => format!("the text {}", excerpt(text)),
            Content::Scalar(_) | Content::Refused => "nothing".into(),
            Content::List(_) => "a list".into(),
            Content::Map(_) => "a mapping".into(),
        }
    }
}

/// Where each part of a text stands.
#[derive(Clone, Debug)]
pub struct Positions {
    file: Arc<str>,
    root: Node,
}

impl Positions {
    pub(super) fn new(file: Arc<str>, root: Node) -> Self {
        Self { file, root }
    }

    pub(super) fn root(&self) -> &Node {
        &self.root
    }

    pub(super) fn root_mut(&mut self) -> &mut Node {
        &mut self.root
    }

    /// The file these are positions in.
    #[must_use]
    pub fn file(&self) -> &str {
        &self.file
    }

    /// Where the value at a JSON Pointer (`/pools/0/window`) stands. For a part that was left out, where the
    /// nearest part around it stands.
    #[must_use]
    pub fn position_of(&self, pointer: &str) -> Position {
        let mut node = &self.root;
        for step in steps(pointer) {
            match node.child(&step) {
                Some(next) => node = next,
                None => break,
            }
        }
        node.position
    }

    /// The steps of a pointer, numbers being positions where the text has a list.
    fn trail(&self, pointer: &str) -> Trail {
        let mut trail = Trail::default();
        let mut node = Some(&self.root);
        for step in steps(pointer) {
            match (node.map(|node| &node.content), step.parse()) {
                (Some(Content::List(_)), Ok(index)) => trail.push_index(index),
                _ => trail.push_key(&step),
            }
            node = node.and_then(|node| node.child(&step));
        }
        trail
    }

    /// A mistake about the value at a JSON Pointer.
    #[must_use]
    pub fn mistake(&self, pointer: &str, message: impl Into<String>) -> Mistake {
        Mistake {
            file: Arc::clone(&self.file),
            position: self.position_of(pointer),
            path: self.trail(pointer).to_string(),
            message: message.into(),
        }
    }
}

/// The steps of a JSON Pointer, unescaped.
fn steps(pointer: &str) -> impl Iterator<Item = String> {
    pointer.split('/').skip(1).map(|step| step.replace("~1", "/").replace("~0", "~"))
}

/// The JSON Pointer of a place serde complained about.
pub(super) fn pointer_of(path: &serde_path_to_error::Path) -> String {
    use serde_path_to_error::Segment;
    let mut pointer = String::new();
    for segment in path {
        match segment {
            Segment::Seq { index } => {
                let _ = write!(pointer, "/{index}");
            }
            Segment::Map { key } => {
                let _ = write!(pointer, "/{}", key.replace('~', "~0").replace('/', "~1"));
            }
            // An enum's variant is no step of the text unless it is also a key, and what could not be named
            // ends what can be pointed at.
            Segment::Enum { variant } => {
                let _ = write!(pointer, "/{variant}");
            }
            Segment::Unknown => break,
        }
    }
    pointer
}
