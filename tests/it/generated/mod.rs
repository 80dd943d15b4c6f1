//! What is generated from the form of a policy is what is committed: the schema, the manual, the default policy.
//!
//! The doc comments in `src/policy/form` are the only place where a key is explained. After changing one, run the
//! tests once with `UPDATE_GENERATED=1`, which rewrites the files instead of failing.

mod default_policy;
mod manual;
mod metrics;
mod proto;
mod schema;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{env, fs};

use tallygate::observe::Metrics;
use tallygate::policy;

pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Compares a file with what it should hold, or makes it so when asked to.
pub(crate) fn expect_file(path: &Path, wanted: &str) {
    if env::var_os("UPDATE_GENERATED").is_some() {
        fs::create_dir_all(path.parent().expect("a file is in a folder")).expect("the folder can be made");
        fs::write(path, wanted).expect("the file can be written");
        return;
    }
    let found = fs::read_to_string(path).unwrap_or_default();
    let differs = found.lines().zip(wanted.lines()).position(|(found, wanted)| found != wanted);
    let line = differs.unwrap_or(found.lines().count().min(wanted.lines().count()));
    assert!(
        found == wanted,
        "{} is stale from line {}; rewrite it with UPDATE_GENERATED=1\n  is:     {}\n  should: {}",
        path.display(),
        line + 1,
        found.lines().nth(line).unwrap_or("(nothing)"),
        wanted.lines().nth(line).unwrap_or("(nothing)"),
    );
}

fn at(path: &str) -> PathBuf {
    root().join(path)
}

#[test]
fn the_schema_is_current() {
    let text = serde_json::to_string_pretty(&policy::schema()).expect("a schema is JSON") + "\n";
    expect_file(&at("policies/schema.json"), &text);
}

#[test]
fn the_manual_is_current() {
    expect_file(&at("docs/policy.md"), &manual::render(&policy::schema()));
}

#[test]
fn the_page_of_metrics_is_current() {
    let policy = policy::parse("policy.yaml", "version: 1\n", |_| unreachable!("no key file is named"));
    let metrics = Metrics::new(Arc::new(policy.expect("valid"))).expect("made");
    expect_file(&at("docs/metrics.md"), &metrics::render(metrics.described()));
}

#[test]
fn the_default_policy_is_current_and_says_what_version_1_alone_says() {
    let text = default_policy::render(&policy::schema());
    expect_file(&at("policies/default.yaml"), &text);
    let meaning = |text: &str| match policy::parse("policy.yaml", text, |_| unreachable!("no key file is named")) {
        Ok(policy) => format!("{policy:#?}"),
        Err(mistakes) => panic!("{mistakes}"),
    };
    assert_eq!(meaning(&text), meaning("version: 1\n"));
}

#[test]
fn the_default_policy_names_every_key() {
    let text = default_policy::render(&policy::schema());
    for path in schema::keys(&policy::schema()) {
        let key = path.rsplit('.').next().expect("a path has a last part").trim_end_matches("[]");
        let told = text.contains(&format!("{key}: ")) || text.contains(&format!("{key}:\n"));
        assert!(told, "{path} is not in policies/default.yaml");
    }
}
