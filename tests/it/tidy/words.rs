//! Words that may not be left behind: unfinished business, unwraps, and names of one particular machine.

use super::Finding;
use super::source::{File, has_extension};

/// Left-overs, in Rust code (comments and literals apart) with the reason.
const IN_CODE: [(&str, &str); 6] = [
    ("todo!", "nothing unfinished is committed"),
    ("unimplemented!", "nothing unfinished is committed"),
    ("dbg!", "a debugging aid"),
    ("#[ignore", "a test that does not run proves nothing; long ones ask TALLYGATE_CASES or run in --full"),
    ("allow(dead_code", "code that nothing calls is removed"),
    ("allow(unused", "what nothing uses is removed"),
];

/// Left-overs anywhere in Rust, comments included.
const IN_TEXT: [(&str, &str); 3] =
    [("FIXME", "fix it, or write an issue"), ("TODO", "do it, or write an issue"), ("XXX", "say what is meant")];

/// Names of one machine or one network, in any file. Hosts are written in two parts, so that a plain search for them
/// finds nothing here either.
const ANYWHERE: [(&str, &str); 6] = [
    ("/work/", "a path of one machine"),
    ("/root/", "a path of one machine"),
    ("/home/", "a path of one machine"),
    (concat!("static.", "crates.io"), "a registry host; cargo knows where crates are"),
    (concat!("pypi", ".org"), "a registry host; pip knows where packages are"),
    (concat!("pythonhosted", ".org"), "a registry host; pip knows where packages are"),
];

pub(super) fn leftovers(files: &[File]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in files.iter().filter(|file| file.is_rust() && !is_tidy(file)) {
        findings.extend(find(file, &file.code, &IN_CODE));
        findings.extend(find(file, &file.text, &IN_TEXT));
    }
    findings
}

pub(super) fn machine_names(files: &[File]) -> Vec<Finding> {
    let judged = |file: &&File| !is_tidy(file) && !has_extension(&file.path, "lock");
    files.iter().filter(judged).flat_map(|file| find(file, &file.text, &ANYWHERE)).collect()
}

pub(super) fn unwraps(files: &[File]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in files.iter().filter(|file| file.is_rust()) {
        for (line, code) in file.shipped_lines() {
            if code.contains(".unwrap()") || code.contains(".unwrap_err()") {
                findings.push(
                    file.finding(
                        line,
                        "unwrap outside tests: return an error, or expect(\"why it cannot fail\")".into(),
                    ),
                );
            }
        }
    }
    findings
}

/// Tidy itself names every banned word.
fn is_tidy(file: &File) -> bool {
    file.path.starts_with("tests/it/tidy")
}

fn find(file: &File, text: &str, banned: &[(&str, &str)]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (index, line) in text.lines().enumerate() {
        for (word, reason) in banned.iter().filter(|(word, _)| line.contains(word)) {
            findings.push(file.finding(index + 1, format!("`{word}`: {reason}")));
        }
    }
    findings
}

#[cfg(test)]
mod samples {
    use super::{File, leftovers, machine_names, unwraps};

    #[test]
    fn each_leftover_is_found_and_a_mention_is_not() {
        for bad in ["fn f() { todo!() }", "#[ignore]", "#![allow(dead_code)]", "// FIXME later", "dbg!(x)"] {
            assert_eq!(leftovers(&[File::new("src/a.rs", bad)]).len(), 1, "{bad}");
        }
        assert!(leftovers(&[File::new("src/a.rs", "// not a dbg! in code\nlet s = \"todo!\";")]).is_empty());
    }

    #[test]
    fn a_path_of_one_machine_is_found_in_any_file() {
        assert_eq!(machine_names(&[File::new("README.md", "cd /root/tallygate")]).len(), 1);
        assert_eq!(machine_names(&[File::new("docs/a.md", "see /home/someone")]).len(), 1);
        assert!(machine_names(&[File::new("README.md", "cd tallygate")]).is_empty());
    }

    #[test]
    fn unwraps_are_for_tests() {
        assert_eq!(unwraps(&[File::new("src/a.rs", "let a = b.unwrap();")]).len(), 1);
        assert!(unwraps(&[File::new("tests/it/a.rs", "let a = b.unwrap();")]).is_empty());
        assert!(unwraps(&[File::new("src/a.rs", "let a = b.unwrap_or(1);")]).is_empty());
    }
}
