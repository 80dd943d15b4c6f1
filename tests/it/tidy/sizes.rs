//! Files that are too long, functions that are too long, tests that are not last.
//!
//! The ratchets list what is over and by how much. They may only shrink: a listed file or function that became
//! smaller must be written down smaller, and one that fits must leave the list.

use super::Finding;
use super::source::File;

const FILE_LINES: usize = 500;
const FUNCTION_LINES: usize = 70;

/// Files over the limit: path and lines without tests. Empty, and meant to stay so.
const LONG_FILES: [(&str, usize); 0] = [];
/// Functions over the limit: path, name and lines. Empty, and meant to stay so.
const LONG_FUNCTIONS: [(&str, &str, usize); 0] = [];

pub(super) fn files(files: &[File]) -> Vec<Finding> {
    ratchet_files(files, &LONG_FILES)
}

fn ratchet_files(files: &[File], ratchet: &[(&str, usize)]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in files.iter().filter(|file| file.is_rust()) {
        let lines = if file.tests_from == 0 { file.text.lines().count() } else { file.tests_from };
        let allowed = ratchet.iter().find(|(path, _)| *path == file.path).map(|(_, lines)| *lines);
        findings.extend(judge(file, 1, "file", lines, FILE_LINES, allowed));
    }
    for (path, _) in ratchet.iter().filter(|(path, _)| files.iter().all(|file| file.path != *path)) {
        findings.push(Finding::new(path, 1, "listed among the long files and is gone; shorten the list".into()));
    }
    findings
}

pub(super) fn functions(files: &[File]) -> Vec<Finding> {
    ratchet_functions(files, &LONG_FUNCTIONS)
}

fn ratchet_functions(files: &[File], ratchet: &[(&str, &str, usize)]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut met = vec![false; ratchet.len()];
    for file in files.iter().filter(|file| file.is_rust()) {
        for function in functions_of(&file.code) {
            let listed = ratchet.iter().position(|(path, name, _)| *path == file.path && *name == function.name);
            if let Some(at) = listed {
                met[at] = true;
            }
            let allowed = listed.map(|at| ratchet[at].2);
            let what = format!("fn {}", function.name);
            findings.extend(judge(file, function.line, &what, function.lines, FUNCTION_LINES, allowed));
        }
    }
    for ((path, name, _), _) in ratchet.iter().zip(met).filter(|(_, met)| !met) {
        findings.push(Finding::new(
            path,
            1,
            format!("fn {name} is listed among the long ones and is gone; shorten the list"),
        ));
    }
    findings
}

fn judge(file: &File, line: usize, what: &str, lines: usize, limit: usize, allowed: Option<usize>) -> Option<Finding> {
    let message = match allowed {
        None if lines > limit => format!("{what} has {lines} lines and the limit is {limit}; split it by rule"),
        Some(allowed) if lines > allowed => format!("{what} grew from {allowed} to {lines} lines; it may only shrink"),
        Some(allowed) if lines < allowed => format!("{what} shrank from {allowed} to {lines} lines; write that down"),
        _ => return None,
    };
    Some(file.finding(line, message))
}

struct Function {
    name: String,
    line: usize,
    lines: usize,
}

/// Every function with a body, from its `fn` to its closing brace. Works on blanked code, where brackets pair up.
fn functions_of(code: &str) -> Vec<Function> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices("fn ") {
        if code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_') {
            continue;
        }
        let name: String = code[at + 3..].chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        if name.is_empty() {
            continue;
        }
        if let Some(length) = body_end(&code[at..]) {
            let lines = code[at..at + length].matches('\n').count() + 1;
            found.push(Function { name, line: code[..at].matches('\n').count() + 1, lines });
        }
    }
    found
}

/// The length up to and with the brace that closes the body; `None` for a declaration.
fn body_end(code: &str) -> Option<usize> {
    let mut depth = 0_usize;
    let mut nested = 0_usize;
    for (at, c) in code.char_indices() {
        match c {
            '(' | '[' => nested += 1,
            ')' | ']' => nested = nested.saturating_sub(1),
            ';' if depth == 0 && nested == 0 => return None,
            '{' => depth += 1,
            '}' if depth == 1 => return Some(at + 1),
            '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    None
}

pub(super) fn tests_are_last(files: &[File]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in files.iter().filter(|file| file.is_rust()) {
        let lines: Vec<&str> = file.code.lines().collect();
        if file.tests_from == 0 || file.tests_from >= lines.len() {
            continue;
        }
        let closing = lines[file.tests_from..].iter().position(|line| *line == "}").map(|at| at + file.tests_from + 1);
        let after = closing.and_then(|from| (from..lines.len()).find(|&at| !lines[at].trim().is_empty()));
        if let Some(line) = after.filter(|&at| !lines[at].starts_with("#[cfg(test)]")) {
            findings.push(file.finding(line + 1, "code after the tests; tests come last".into()));
        }
    }
    findings
}

#[cfg(test)]
mod samples {
    use super::{File, files, functions, ratchet_files, ratchet_functions, tests_are_last};

    fn long(lines: usize) -> String {
        format!("fn f(a: [u8; 3]) -> u8 {{\n{}}}\n", "    a();\n".repeat(lines - 2))
    }

    #[test]
    fn length_is_judged_at_the_limit() {
        assert!(functions(&[File::new("src/a.rs", &long(70))]).is_empty());
        assert_eq!(functions(&[File::new("src/a.rs", &long(71))]).len(), 1);
        assert!(files(&[File::new("src/a.rs", &"x\n".repeat(500))]).is_empty());
        assert_eq!(files(&[File::new("src/a.rs", &"x\n".repeat(501))]).len(), 1);
        let tested = format!("{}#[cfg(test)]\nmod tests {{\n{}}}\n", "x\n".repeat(400), "y\n".repeat(400));
        assert!(files(&[File::new("src/a.rs", &tested)]).is_empty(), "tests do not count");
    }

    #[test]
    fn a_ratchet_only_shrinks() {
        let file = [File::new("src/a.rs", &long(80))];
        assert!(ratchet_functions(&file, &[("src/a.rs", "f", 80)]).is_empty());
        assert_eq!(ratchet_functions(&file, &[("src/a.rs", "f", 79)]).len(), 1, "grew");
        assert_eq!(ratchet_functions(&file, &[("src/a.rs", "f", 81)]).len(), 1, "shrank, not written down");
        assert_eq!(ratchet_functions(&file, &[("src/a.rs", "f", 80), ("src/a.rs", "g", 90)]).len(), 1, "gone");
        assert_eq!(ratchet_files(&file, &[("src/b.rs", 600)]).len(), 1, "gone");
    }

    #[test]
    fn declarations_and_pointers_are_not_functions() {
        let text =
            "trait T { fn a(&self) -> [u8; 2]; fn b(&self) { x() } }\ntype F = fn (u8) -> u8;\nlet s = \"fn c() {\";";
        let names: Vec<String> =
            super::functions_of(&File::new("src/a.rs", text).code).into_iter().map(|f| f.name).collect();
        assert_eq!(names, ["b"]);
    }

    #[test]
    fn code_after_tests_is_found() {
        let tests = "fn a() {}\n#[cfg(test)]\nmod tests {\n}\n";
        assert!(tests_are_last(&[File::new("src/a.rs", tests)]).is_empty());
        assert_eq!(tests_are_last(&[File::new("src/a.rs", &format!("{tests}\nfn b() {{}}\n"))]).len(), 1);
    }
}
