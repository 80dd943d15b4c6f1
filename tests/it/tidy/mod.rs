//! The house rules, as a test.
//!
//! A rule that only a page states is kept until the first hurried evening. These walk the tree with nothing but
//! the standard library and fail with the file, the line and the reason. Each rule is itself tested on a small bad
//! sample, so that a rule that stopped seeing anything is noticed.

mod pages;
mod sizes;
mod source;
mod walls;
mod words;

use std::fmt::Write as _;
use std::path::Path;

use source::{File, walk};

/// One thing that breaks a rule.
#[derive(Debug)]
struct Finding {
    path: String,
    line: usize,
    message: String,
}

impl Finding {
    fn new(path: &str, line: usize, message: String) -> Self {
        Self { path: path.to_owned(), line, message }
    }
}

impl File {
    fn finding(&self, line: usize, message: String) -> Finding {
        Finding::new(&self.path, line, message)
    }
}

fn hold(rule: fn(&[File]) -> Vec<Finding>) {
    let files = walk(Path::new(env!("CARGO_MANIFEST_DIR")));
    assert!(files.iter().any(|file| file.path == "src/lib.rs"), "the walk starts at the project's root");
    let mut report = String::new();
    for finding in rule(&files) {
        writeln!(report, "{}:{}: {}", finding.path, finding.line, finding.message).expect("a string takes all");
    }
    assert!(report.is_empty(), "house rules broken:\n{report}");
}

#[test]
fn rooms_import_only_what_the_table_allows() {
    hold(walls::imports);
}

#[test]
fn the_core_has_no_clock_task_io_lock_or_wire_form() {
    hold(walls::pure_rooms);
}

#[test]
fn no_file_is_too_long() {
    hold(sizes::files);
}

#[test]
fn no_function_is_too_long() {
    hold(sizes::functions);
}

#[test]
fn tests_come_last_in_a_file() {
    hold(sizes::tests_are_last);
}

#[test]
fn nothing_unfinished_is_left() {
    hold(words::leftovers);
}

#[test]
fn no_file_names_one_machine() {
    hold(words::machine_names);
}

#[test]
fn nothing_unwraps_outside_tests() {
    hold(words::unwraps);
}

#[test]
fn every_module_has_a_first_paragraph() {
    hold(pages::first_paragraphs);
}

#[test]
fn every_dependency_is_explained() {
    hold(pages::dependencies);
}

#[test]
fn pages_name_what_exists() {
    hold(pages::named_paths);
}

#[test]
fn the_architecture_page_has_every_room() {
    hold(walls::rooms);
}
