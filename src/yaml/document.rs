//! A file that somebody else defines, read as it is: parts and where they stand, and no type.
//!
//! YAML 1.2 contains JSON, so one reader does for both. Anchors and aliases are accepted, an alias being a copy that
//! counts like text written out. The bounds are those of the dump of a large proxy: [`MOST_BYTES`], 128 levels, two
//! million values.

use serde_json::Value;

use super::mistake::{Mistakes, Position};
use super::parse::{Accepted, Repeats, parse};
use super::tree::{Content, Node};

/// The largest document read, in bytes.
pub const MOST_BYTES: usize = 32 << 20;

const ACCEPTED: Accepted = Accepted { bytes: MOST_BYTES, depth: 128, nodes: 2_000_000, repeats: Repeats::Copied };

/// A document.
#[derive(Debug)]
pub struct Document {
    root: Node,
}

impl Document {
    /// Reads it. `source_name` is the file name that mistakes are reported under.
    ///
    /// # Errors
    /// When it is not YAML or JSON as the module's first paragraph says, with the places.
    pub fn read(source_name: &str, text: &str) -> Result<Self, Mistakes> {
        let mut parsed = parse(source_name, text, ACCEPTED)?;
        let root = std::mem::replace(
            parsed.positions.root_mut(),
            Node { position: Position::START, content: Content::Refused },
        );
        parsed.reporter.into_mistakes().into_result()?;
        Ok(Self { root })
    }

    /// All of it.
    #[must_use]
    pub fn root(&self) -> Part<'_> {
        Part { node: &self.root }
    }
}

/// A part of a document.
#[derive(Clone, Copy, Debug)]
pub struct Part<'document> {
    node: &'document Node,
}

impl<'document> Part<'document> {
    /// Where it stands.
    #[must_use]
    pub fn position(self) -> Position {
        self.node.position
    }

    /// The value of a key, in a mapping that has it and gives it one.
    #[must_use]
    pub fn get(self, key: &str) -> Option<Self> {
        self.node.get(key).map(|node| Part { node }).filter(|part| !matches!(part.scalar(), Some(Value::Null)))
    }

    /// The values of a list; none of anything else.
    pub fn items(self) -> impl Iterator<Item = Self> {
        let nodes: &'document [Node] = if let Content::List(nodes) = &self.node.content { nodes } else { &[] };
        nodes.iter().map(|node| Part { node })
    }

    /// The keys and values of a mapping; none of anything else.
    pub fn entries(self) -> impl Iterator<Item = (&'document str, Self)> {
        let entries = if let Content::Map(entries) = &self.node.content { entries.as_slice() } else { &[] };
        entries.iter().map(|entry| (entry.key.as_str(), Part { node: &entry.value }))
    }

    /// A scalar: null, a boolean, a number or text.
    #[must_use]
    pub fn scalar(self) -> Option<&'document Value> {
        if let Content::Scalar(value) = &self.node.content { Some(value) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::Document;

    #[test]
    fn json_is_read_with_its_places() {
        let text = "{\n\t\"a\": [1, {\"b\": \"x\\u00e9\\/\"}],\n  \"c\": null, \"d\": true}\n";
        let document = Document::read("dump.json", text).unwrap_or_else(|mistakes| panic!("{mistakes}"));
        let root = document.root();
        let b = root.get("a").and_then(|list| list.items().nth(1)).and_then(|map| map.get("b")).expect("there");
        assert_eq!(b.scalar().and_then(|value| value.as_str()), Some("x\u{e9}/"));
        assert_eq!((b.position().line, b.position().column), (2, 17));
        assert!(root.get("c").is_none(), "null is as good as absent");
        assert_eq!(root.entries().count(), 3);
    }

    #[test]
    fn an_alias_is_a_copy_and_copies_of_copies_are_bounded() {
        let text = "a: &a {x: 1}\nb: *a\n";
        let document = Document::read("a.yaml", text).unwrap_or_else(|mistakes| panic!("{mistakes}"));
        let x = document.root().get("b").and_then(|b| b.get("x"));
        assert_eq!(x.and_then(|x| x.scalar()).and_then(serde_json::Value::as_u64), Some(1));
        let mut wide = "a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n".to_owned();
        let mut deep = "a0: &a0 [1]\n".to_owned();
        for level in 1..200 {
            let below = format!("*a{}", level - 1);
            wide += &format!("a{level}: &a{level} [{}]\n", [below.as_str(); 10].join(", "));
            deep += &format!("a{level}: &a{level} [{below}]\n");
        }
        let told = |text: &str| Document::read("a.yaml", text).expect_err("too much").to_string();
        assert!(told(&wide).contains("has more than the 2000000 values"), "{}", told(&wide));
        assert!(told(&deep).contains("is nested deeper than 128 levels"), "{}", told(&deep));
        assert!(told("a: &a [*a]").contains("alias"), "{}", told("a: &a [*a]"));
    }
}
