//! The tree as tidy sees it: every text file, and for Rust the code apart from comments, strings and tests.
//!
//! A small lexer, not a parser: it blanks comments and the insides of literals with spaces, so that line numbers
//! and brackets stay where they are and a word in a sentence is never mistaken for code.

use std::path::Path;

/// One file of the project.
#[derive(Debug)]
pub(super) struct File {
    /// Relative to the root, with `/`.
    pub(super) path: String,
    /// As it is on disk.
    pub(super) text: String,
    /// Rust only: the text with comments and the insides of literals blanked. Same length in lines.
    pub(super) code: String,
    /// Rust only: the first line (from 0) of `#[cfg(test)] mod …`, or the number of lines.
    pub(super) tests_from: usize,
}

impl File {
    pub(super) fn new(path: &str, text: &str) -> Self {
        let code = if has_extension(path, "rs") { blank(text) } else { String::new() };
        let lines = text.lines().count();
        let tests_from = if is_test_file(path) { 0 } else { inline_tests(&code).unwrap_or(lines) };
        Self { path: path.to_owned(), text: text.to_owned(), code, tests_from }
    }

    pub(super) fn is_rust(&self) -> bool {
        has_extension(&self.path, "rs")
    }

    /// The lines of code outside tests, numbered from 1.
    pub(super) fn shipped_lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.code.lines().take(self.tests_from).enumerate().map(|(index, line)| (index + 1, line))
    }

    /// The code outside tests, as one text.
    pub(super) fn shipped(&self) -> String {
        self.code.lines().take(self.tests_from).fold(String::new(), |mut all, line| {
            all.push_str(line);
            all.push('\n');
            all
        })
    }

    /// Which room of `src/` this file is in: the first directory, or the stem of a file directly in `src/`.
    pub(super) fn room(&self) -> Option<&str> {
        let inside = self.path.strip_prefix("src/")?;
        Some(inside.split_once('/').map_or_else(|| inside.trim_end_matches(".rs"), |(room, _)| room))
    }
}

pub(super) fn has_extension(path: &str, extension: &str) -> bool {
    Path::new(path).extension().is_some_and(|found| found == extension)
}

/// Tests kept in files of their own.
fn is_test_file(path: &str) -> bool {
    path.ends_with("/tests.rs")
        || path.contains("/tests/")
        || path.starts_with("tests/")
        || path.starts_with("benches/")
        || path.starts_with("loadtest/tests/")
}

fn inline_tests(code: &str) -> Option<usize> {
    let lines: Vec<&str> = code.lines().collect();
    (0..lines.len()).find(|&at| {
        lines[at].starts_with("#[cfg(test)]")
            && lines[at..].iter().take(3).any(|line| line.trim_start().starts_with("mod ") && line.contains('{'))
    })
}

/// Directories that hold no source of ours.
const SKIPPED: [&str; 8] = ["target", ".git", "out", "corpus", "artifacts", "coverage", "node_modules", "__pycache__"];
const TEXT: [&str; 15] =
    ["rs", "toml", "md", "yaml", "yml", "sh", "py", "json", "csv", "txt", "html", "css", "js", "proto", "service"];

/// Every text file under `root`, by path.
pub(super) fn walk(root: &Path) -> Vec<File> {
    let mut files = Vec::new();
    let mut pending = vec![root.to_path_buf()];
    while let Some(directory) = pending.pop() {
        let entries = std::fs::read_dir(&directory).expect("a directory of the project can be listed");
        for entry in entries {
            let path = entry.expect("an entry can be read").path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
            if path.is_dir() {
                if !SKIPPED.contains(&name.as_str()) {
                    pending.push(path);
                }
            } else if is_text(&name)
                && let Ok(text) = std::fs::read_to_string(&path)
                && !text.starts_with(GENERATED)
            {
                let relative = path.strip_prefix(root).expect("found under the root");
                files.push(File::new(&relative.to_string_lossy().replace('\\', "/"), &text));
            }
        }
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    files
}

fn is_text(name: &str) -> bool {
    // Files without an extension are scripts, the justfile and the licence.
    let plain = !name.contains('.');
    plain || TEXT.iter().any(|extension| has_extension(name, extension))
}

/// What files begin with that a tool wrote; a test compares them with what it writes.
const GENERATED: &str = "// This file is @generated";

/// Blanks comments and the insides of literals, keeping every line break and everything else in place.
pub(super) fn blank(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while at < chars.len() {
        let end = literal_or_comment(&chars, at);
        if end > at {
            out.extend(chars[at..end].iter().map(|&c| if c == '\n' { '\n' } else { ' ' }));
            at = end;
        } else {
            out.push(chars[at]);
            at += 1;
        }
    }
    out
}

/// Where the comment or literal that starts at `at` ends; `at` itself when none starts there.
fn literal_or_comment(chars: &[char], at: usize) -> usize {
    let next = chars.get(at + 1).copied();
    match (chars[at], next) {
        ('/', Some('/')) => (at..chars.len()).find(|&i| chars[i] == '\n').unwrap_or(chars.len()),
        ('/', Some('*')) => block_comment(chars, at),
        ('"', _) => string(chars, at),
        ('r', Some('"' | '#')) if !follows_word(chars, at) => raw_string(chars, at),
        ('b', Some('r')) if !follows_word(chars, at) => {
            let end = raw_string(chars, at + 1);
            if end > at + 1 { end } else { at }
        }
        ('\'', Some('\\')) => (at + 3..chars.len()).find(|&i| chars[i] == '\'').map_or(chars.len(), |i| i + 1),
        ('\'', Some(_)) if chars.get(at + 2) == Some(&'\'') => at + 3,
        _ => at,
    }
}

fn follows_word(chars: &[char], at: usize) -> bool {
    at > 0 && (chars[at - 1].is_alphanumeric() || chars[at - 1] == '_')
}

fn block_comment(chars: &[char], start: usize) -> usize {
    let (mut depth, mut at) = (0_usize, start);
    while at + 1 < chars.len() {
        match (chars[at], chars[at + 1]) {
            ('/', '*') => (depth, at) = (depth + 1, at + 2),
            ('*', '/') => {
                (depth, at) = (depth - 1, at + 2);
                if depth == 0 {
                    return at;
                }
            }
            _ => at += 1,
        }
    }
    chars.len()
}

fn string(chars: &[char], start: usize) -> usize {
    let mut at = start + 1;
    while at < chars.len() {
        match chars[at] {
            '\\' => at += 2,
            '"' => return at + 1,
            _ => at += 1,
        }
    }
    chars.len()
}

fn raw_string(chars: &[char], start: usize) -> usize {
    let hashes = chars[start + 1..].iter().take_while(|&&c| c == '#').count();
    let quote = start + 1 + hashes;
    if chars.get(quote) != Some(&'"') {
        return start; // r#identifier
    }
    let closes =
        |at: usize| chars[at] == '"' && chars[at + 1..].iter().take(hashes).filter(|&&c| c == '#').count() == hashes;
    (quote + 1..chars.len()).find(|&at| closes(at)).map_or(chars.len(), |at| at + 1 + hashes)
}

#[test]
fn literals_and_comments_are_blanked_and_code_is_not() {
    let text =
        "let a = \"tokio \\\" x\"; // todo\nlet b = 'x'; let c: &'static str = r#\"a \" b\"#; /* x /* y */ z */ end";
    let code = blank(text);
    assert_eq!(code.lines().count(), text.lines().count());
    for gone in ["tokio", "todo", "\"", "y", "z */"] {
        assert!(!code.contains(gone), "{gone:?} is left in {code:?}");
    }
    for kept in ["let a =", "&'static str", "end"] {
        assert!(code.contains(kept), "{kept:?} is missing from {code:?}");
    }
    assert_eq!(blank("let c = b'\\''; d"), "let c = b    ; d");
}

#[test]
fn tests_are_told_from_what_ships() {
    let file = File::new("src/units/x.rs", "fn a() {}\n#[cfg(test)]\nmod tests {\n  fn b() {}\n}\n");
    assert_eq!(file.shipped().trim(), "fn a() {}");
    assert_eq!(file.room(), Some("units"));
    assert_eq!(File::new("src/app.rs", "").room(), Some("app"));
    assert_eq!(File::new("src/units/tests.rs", "fn a() {}").shipped(), "");
    let declared = File::new("src/units/mod.rs", "#[cfg(test)]\nmod tests;\nfn a() {}\n");
    assert!(declared.shipped().contains("fn a"), "a declared test module hides nothing");
}
