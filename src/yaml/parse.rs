//! Text to tree, over the events of `saphyr-parser`.
//!
//! What is outside the accepted language is reported where it stands and parsing goes on, so that one run
//! tells all. Only what leaves the rest unreadable ends it: broken syntax, a second document, or a bound
//! reached.

use std::collections::HashMap;
use std::sync::Arc;

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, Span, StrInput};
use serde_json::Value;

use super::mistake::{Mistake, Mistakes, Position, excerpt};
use super::trail::Trail;
use super::tree::{Content, Entry, Node, Positions};
use super::{MAX_BYTES, MAX_DEPTH, MAX_KEY_CHARS, MAX_NODES, scalar};

/// What is accepted of a text.
#[derive(Clone, Copy, Debug)]
pub(super) struct Accepted {
    /// The largest, in bytes.
    pub(super) bytes: usize,
    /// The deepest nesting.
    pub(super) depth: usize,
    /// The most nodes.
    pub(super) nodes: usize,
    /// Whether a value may be named and repeated.
    pub(super) repeats: Repeats,
}

/// Anchors (`&name`) and aliases (`*name`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Repeats {
    /// They are refused.
    Refused,
    /// An alias stands for a copy, which counts like anything written out.
    Copied,
}

impl Accepted {
    /// Of files of ours.
    pub(super) const OURS: Self =
        Self { bytes: MAX_BYTES, depth: MAX_DEPTH, nodes: MAX_NODES, repeats: Repeats::Refused };
}

/// A tree, and what was wrong with the text it came from.
pub(super) struct Parsed {
    pub(super) positions: Positions,
    pub(super) reporter: Reporter,
}

/// Collects mistakes of one file and keeps their positions inside it.
pub(super) struct Reporter {
    file: Arc<str>,
    line_lengths: Vec<usize>,
    mistakes: Mistakes,
}

impl Reporter {
    fn new(file: &str, text: &str) -> Self {
        let text = text.replace("\r\n", "\n");
        let line_lengths = text.split(['\n', '\r']).map(|line| line.chars().count()).collect();
        Self { file: file.into(), line_lengths, mistakes: Mistakes::none() }
    }

    /// Adds a mistake about the part the trail leads to.
    pub(super) fn report(&mut self, position: Position, trail: &Trail, message: String) {
        self.mistakes.push(Mistake { file: Arc::clone(&self.file), position, path: trail.to_string(), message });
    }

    pub(super) fn into_mistakes(self) -> Mistakes {
        self.mistakes
    }

    /// The parser's position as one inside the text: the end of a text may be told as a line beyond it.
    fn position(&self, marker: Marker) -> Position {
        let line = marker.line().clamp(1, self.line_lengths.len());
        let column = if marker.line() > line { usize::MAX } else { marker.col() + 1 };
        Position { line, column: column.min(self.line_lengths[line - 1] + 1) }
    }
}

/// Reads the one document of a text.
pub(super) fn parse(source_name: &str, text: &str, accepted: Accepted) -> Result<Parsed, Mistakes> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if text.len() > accepted.bytes {
        let message = format!("is larger than the {} bytes that are accepted", accepted.bytes);
        let file = source_name.into();
        return Err(Mistake { file, position: Position::START, path: String::new(), message }.into());
    }
    let reporter = Reporter::new(source_name, text);
    let (events, trail) = (Parser::new_from_str(text), Trail::default());
    let mut reader = Reader { events, reporter, trail, accepted, nodes: 0, named: HashMap::new() };
    match reader.document() {
        Ok(root) => {
            let positions = Positions::new(Arc::clone(&reader.reporter.file), root);
            Ok(Parsed { positions, reporter: reader.reporter })
        }
        Err(Unreadable { position, message }) => {
            reader.reporter.report(position, &reader.trail, message);
            Err(reader.reporter.into_mistakes().sorted())
        }
    }
}

/// Why nothing after this place can be read.
struct Unreadable {
    position: Position,
    message: String,
}

/// What was probably written, by what the parser says of it.
fn hint(info: &str) -> &'static str {
    if info.contains("anchor or alias") || info.contains("unknown anchor") {
        "; a text that begins with * or & is put in quotes, as in \"*\""
    } else if info.contains("tabs") {
        "; indent with spaces"
    } else {
        ""
    }
}

struct Reader<'text> {
    events: Parser<'text, StrInput<'text>>,
    reporter: Reporter,
    trail: Trail,
    accepted: Accepted,
    nodes: usize,
    /// What aliases stand for, by the parser's number of the anchor, with how many nodes and levels it has.
    named: HashMap<usize, (Node, Size)>,
}

/// How large a node is, itself included.
#[derive(Clone, Copy, Debug)]
struct Size {
    nodes: usize,
    depth: usize,
}

impl Size {
    fn of(node: &Node) -> Self {
        let below: Vec<Self> = match &node.content {
            Content::List(nodes) => nodes.iter().map(Self::of).collect(),
            Content::Map(entries) => entries.iter().map(|entry| Self::of(&entry.value)).collect(),
            Content::Scalar(_) | Content::Refused => Vec::new(),
        };
        let deepest = below.iter().map(|size| size.depth).max().unwrap_or(0);
        // A key counts as well as its value.
        let keys = if matches!(node.content, Content::Map(_)) { below.len() } else { 0 };
        Self { nodes: 1 + keys + below.iter().map(|size| size.nodes).sum::<usize>(), depth: 1 + deepest }
    }
}

impl<'text> Reader<'text> {
    fn next(&mut self) -> Result<(Event<'text>, Span), Unreadable> {
        match self.events.next_event() {
            Some(Ok(event)) => Ok(event),
            Some(Err(error)) => {
                let position = self.reporter.position(*error.marker());
                let message = format!("is not YAML: {}{}", error.info(), hint(error.info()));
                Err(Unreadable { position, message })
            }
            None => Err(Unreadable { position: Position::START, message: "is not YAML: it ends too early".into() }),
        }
    }

    fn report(&mut self, position: Position, message: String) {
        self.reporter.report(position, &self.trail, message);
    }

    fn document(&mut self) -> Result<Node, Unreadable> {
        let mut root = None;
        loop {
            let (event, span) = self.next()?;
            match event {
                Event::Nothing | Event::StreamStart | Event::DocumentStart(_) | Event::DocumentEnd => {}
                Event::StreamEnd => {
                    let empty = Node { position: Position::START, content: Content::Scalar(Value::Null) };
                    return Ok(root.unwrap_or(empty));
                }
                event if root.is_none() => root = Some(self.node(event, span, 1)?),
                _ => {
                    let position = self.reporter.position(span.start);
                    let message = "a second document begins here; a file holds one".into();
                    return Err(Unreadable { position, message });
                }
            }
        }
    }

    fn node(&mut self, event: Event<'text>, span: Span, depth: usize) -> Result<Node, Unreadable> {
        let position = self.reporter.position(span.start);
        self.grow(position, Size { nodes: 1, depth })?;
        let (anchor, tag) = match &event {
            Event::Scalar(_, _, anchor, tag) | Event::SequenceStart(anchor, tag) | Event::MappingStart(anchor, tag) => {
                (*anchor, tag.is_some())
            }
            _ => (0, false),
        };
        let repeats = self.accepted.repeats;
        if anchor > 0 && repeats == Repeats::Refused {
            self.report(position, "anchors (&name) are not accepted; write the value out".into());
        }
        if tag {
            let message = "tags (!name) are not accepted; to make a value text, put it in quotes";
            self.report(position, message.into());
        }
        let content = match event {
            Event::Scalar(..) if tag => Content::Refused,
            Event::Scalar(text, style, ..) => self.scalar(&text, style, position),
            Event::SequenceStart(..) => self.list(depth)?,
            Event::MappingStart(..) => self.map(depth)?,
            Event::Alias(name) if repeats == Repeats::Copied => self.copy(name, position, depth)?,
            Event::Alias(_) => {
                let message = "aliases (*name) are not accepted; write the value out";
                self.report(position, message.into());
                Content::Refused
            }
            _ => return Err(Unreadable { position, message: "is not YAML: a value is missing here".into() }),
        };
        let node = Node { position, content };
        if anchor > 0 && repeats == Repeats::Copied {
            self.named.insert(anchor, (node.clone(), Size::of(&node)));
        }
        Ok(node)
    }

    /// Counts what is added at a depth, and refuses what is too much.
    fn grow(&mut self, position: Position, by: Size) -> Result<(), Unreadable> {
        let Accepted { depth, nodes, .. } = self.accepted;
        self.nodes = self.nodes.saturating_add(by.nodes);
        if by.depth > depth {
            return Err(Unreadable { position, message: format!("is nested deeper than {depth} levels") });
        }
        if self.nodes > nodes {
            return Err(Unreadable { position, message: format!("has more than the {nodes} values accepted") });
        }
        Ok(())
    }

    /// What an alias stands for.
    fn copy(&mut self, name: usize, position: Position, depth: usize) -> Result<Content, Unreadable> {
        let Some((_, size)) = self.named.get(&name) else {
            return Err(Unreadable { position, message: "is an alias of what it is itself a part of".into() });
        };
        let added = Size { nodes: size.nodes, depth: depth + size.depth };
        self.grow(position, added)?;
        Ok(self.named.get(&name).map_or(Content::Refused, |(node, _)| node.content.clone()))
    }

    fn scalar(&mut self, text: &str, style: ScalarStyle, position: Position) -> Content {
        if style != ScalarStyle::Plain {
            return Content::Scalar(Value::String(text.to_owned()));
        }
        scalar::resolve(text).map(Content::Scalar).unwrap_or_else(|message| {
            self.report(position, format!("{}: {message}", excerpt(text)));
            Content::Refused
        })
    }

    fn list(&mut self, depth: usize) -> Result<Content, Unreadable> {
        let mut nodes = Vec::new();
        loop {
            match self.next()? {
                (Event::SequenceEnd, _) => return Ok(Content::List(nodes)),
                (event, span) => {
                    self.trail.push_index(nodes.len());
                    nodes.push(self.node(event, span, depth + 1)?);
                    self.trail.pop();
                }
            }
        }
    }

    fn map(&mut self, depth: usize) -> Result<Content, Unreadable> {
        let mut entries = Vec::new();
        let mut seen: HashMap<String, Position> = HashMap::new();
        loop {
            let (event, span) = self.next()?;
            if event == Event::MappingEnd {
                return Ok(Content::Map(entries));
            }
            let position = self.reporter.position(span.start);
            let key = self.key(event, span, depth)?;
            self.trail.push_key(key.as_deref().unwrap_or("?"));
            if let Some(first) = key.as_ref().and_then(|key| seen.get(key)) {
                self.report(position, format!("is given twice; first on line {}", first.line));
            }
            let (event, span) = self.next()?;
            let value = self.node(event, span, depth + 1)?;
            self.trail.pop();
            let Some(key) = key.filter(|key| !seen.contains_key(key)) else { continue };
            seen.insert(key.clone(), position);
            entries.push(Entry { key, position, value });
        }
    }

    /// A key as text; `None` when it was reported as none.
    fn key(&mut self, event: Event<'text>, span: Span, depth: usize) -> Result<Option<String>, Unreadable> {
        let position = self.reporter.position(span.start);
        let style = if let Event::Scalar(_, style, ..) = &event { Some(*style) } else { None };
        let literal = if let Event::Scalar(text, ..) = &event { Some(text.to_string()) } else { None };
        let node = self.node(event, span, depth + 1)?;
        if matches!(node.content, Content::Refused) {
            return Ok(None);
        }
        let problem = match &literal {
            None => Some("a key must be text".to_owned()),
            Some(text) if text == "<<" && style == Some(ScalarStyle::Plain) => {
                Some("merge keys (<<) are not accepted; write the keys out".to_owned())
            }
            Some(text) if text.is_empty() => Some("a key must not be empty".to_owned()),
            Some(text) if text.chars().count() > MAX_KEY_CHARS => {
                Some(format!("a key must not be longer than {MAX_KEY_CHARS} characters"))
            }
            Some(_) => None,
        };
        Ok(match problem {
            Some(message) => {
                self.report(position, message);
                None
            }
            None => literal,
        })
    }
}
