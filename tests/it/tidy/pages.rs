//! Pages that must keep up with the code: each module's first paragraph, and the page of dependencies.

use std::collections::BTreeSet;

use super::Finding;
use super::source::File;

/// Shorter than this an introduction says nothing.
const LEAST_PARAGRAPH: usize = 25;

pub(super) fn first_paragraphs(files: &[File]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in files.iter().filter(|file| file.is_rust()) {
        let paragraph: Vec<&str> = file
            .text
            .lines()
            .skip_while(|line| line.starts_with("#!"))
            .take_while(|line| line.starts_with("//!"))
            .collect();
        if paragraph.concat().len() < LEAST_PARAGRAPH && !is_unit_tests(file) {
            findings.push(file.finding(1, "no first paragraph: say with //! what this module does and why".into()));
        }
    }
    findings
}

/// `foo/tests.rs` and `foo/tests/` are described by `foo`.
fn is_unit_tests(file: &File) -> bool {
    file.path.starts_with("src/") && (file.path.ends_with("/tests.rs") || file.path.contains("/tests/"))
}

const PAGE: &str = "docs/dependencies.md";

pub(super) fn dependencies(files: &[File]) -> Vec<Finding> {
    let Some(page) = files.iter().find(|file| file.path == PAGE) else {
        return vec![Finding::new(PAGE, 1, "missing".into())];
    };
    let waiting_from = page.text.lines().position(|line| line.contains("waiting for the issue")).unwrap_or(usize::MAX);
    let mut listed = BTreeSet::new();
    let mut findings = Vec::new();
    let mut used = BTreeSet::new();
    for manifest in files.iter().filter(|file| file.path.ends_with("Cargo.toml")) {
        for (line, name) in dependencies_of(&manifest.text) {
            used.insert(name.to_owned());
            let entry = format!("- `{name}`: ");
            if !page.text.lines().take(waiting_from).any(|line| line.starts_with(&entry)) {
                findings.push(manifest.finding(line, format!("`{name}` has no line in {PAGE}")));
            }
        }
    }
    for (index, line) in page.text.lines().enumerate().take(waiting_from) {
        let Some(name) = line.strip_prefix("- `").and_then(|rest| rest.split('`').next()) else { continue };
        if !used.contains(name) {
            findings.push(page.finding(index + 1, format!("`{name}` is in no manifest")));
        }
        if !listed.insert(name.to_owned()) {
            findings.push(page.finding(index + 1, format!("`{name}` is listed twice")));
        }
    }
    findings
}

/// The names in every table of dependencies, apart from our own crates.
fn dependencies_of(manifest: &str) -> Vec<(usize, &str)> {
    let mut inside = false;
    let mut found = Vec::new();
    for (index, line) in manifest.lines().enumerate() {
        if let Some(table) = line.trim().strip_prefix('[') {
            inside = table.trim_end_matches(']').ends_with("dependencies");
            continue;
        }
        let name = line.split(['=', '.', ' ']).next().unwrap_or_default();
        let ours = name == "tallygate";
        if inside && !ours && !name.is_empty() && !line.starts_with('#') {
            found.push((index + 1, name));
        }
    }
    found
}

/// Whatever a page names of the project is there: the check that guards an invariant, the file to begin from.
pub(super) fn named_paths(files: &[File]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for page in files.iter().filter(|file| file.path.ends_with(".md") && file.path != "CHANGELOG.md") {
        for (index, line) in page.text.lines().enumerate() {
            for path in quoted_paths(line) {
                // A module may be a file or a folder, and moves from one to the other as it grows.
                let folder = format!("{}/", path.trim_end_matches(".rs"));
                let exists = files.iter().any(|file| file.path == path || file.path.starts_with(&folder));
                if !exists {
                    findings.push(page.finding(index + 1, format!("`{path}` is named here and does not exist")));
                }
            }
        }
    }
    findings
}

/// What stands in backticks and looks like a path into the project.
fn quoted_paths(line: &str) -> impl Iterator<Item = &str> {
    const FOLDERS: [&str; 9] =
        ["src/", "tests/", "benches/", "docs/", "deploy/", "policies/", "loadtest/", "examples/", "fuzz/"];
    line.split('`').skip(1).step_by(2).filter_map(|quoted| {
        let path = quoted.split("::").next().unwrap_or(quoted).trim_end_matches('/');
        let ours = FOLDERS.into_iter().any(|folder| path.starts_with(folder));
        (ours && !path.contains([' ', '*', '{'])).then_some(path)
    })
}

#[cfg(test)]
mod samples {
    use super::{File, dependencies, first_paragraphs, named_paths};

    #[test]
    fn a_module_without_a_first_paragraph_is_found() {
        assert_eq!(first_paragraphs(&[File::new("src/a.rs", "fn f() {}")]).len(), 1);
        assert_eq!(first_paragraphs(&[File::new("src/a.rs", "//! Things.\n")]).len(), 1, "says nothing");
        let good = "//! What this module decides, where the rule comes from, and its bound.\n";
        assert!(first_paragraphs(&[File::new("src/a.rs", good)]).is_empty());
    }

    #[test]
    fn the_page_of_dependencies_is_compared_both_ways() {
        let judge = |manifest: &str, page: &str| {
            dependencies(&[File::new("Cargo.toml", manifest), File::new("docs/dependencies.md", page)]).len()
        };
        let manifest = "[dependencies]\nserde.workspace = true\n[lints]\nworkspace = true\n";
        assert_eq!(judge(manifest, "- `serde`: wire forms.\n"), 0);
        assert_eq!(judge(manifest, ""), 1, "used and not listed");
        assert_eq!(judge(manifest, "- `serde`: wire forms.\n- `rand`: chance.\n"), 1, "listed and not used");
        assert_eq!(judge(manifest, "- `serde`: a.\n- `serde`: b.\n"), 1, "listed twice");
        assert_eq!(judge(manifest, "- `serde`: a.\n## waiting for the issue\n- `redis`: later.\n"), 0);
    }

    #[test]
    fn a_page_that_names_a_check_that_is_gone_is_found() {
        let page = File::new("ARCHITECTURE.md", "guarded by `tests/it/gone.rs` and `src/a.rs`");
        assert_eq!(named_paths(&[page, File::new("src/a.rs", "")]).len(), 1);
    }
}
