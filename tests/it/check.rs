//! `tallygate check`: broken policies get exactly the messages recorded for them, good ones one line each.
//!
//! Every `tests/golden/policies/NAME.yaml` is a broken policy (but for files of keys, which begin with `keys`), and
//! `NAME.txt` beside it is what `tallygate check NAME.yaml` says of it. To record what it says now, run this with
//! `UPDATE_GENERATED=1` and read the difference.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::{env, fs};

use tallygate::policy;
use tallygate::units::Limit;

use crate::generated::{expect_file, root};

fn check(folder: &Path, files: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tallygate"));
    command.arg("check").args(files).current_dir(folder).output().expect("the binary was built")
}

fn text(bytes: &[u8]) -> &str {
    str::from_utf8(bytes).expect("UTF-8")
}

/// The names of a folder's policies, keys' files left out.
fn policies(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("the folder is there");
    let names = entries.map(|entry| entry.expect("readable").file_name().into_string().expect("UTF-8"));
    let mut names: Vec<String> = names.filter(|name| name.ends_with(".yaml") && !name.starts_with("keys")).collect();
    names.sort();
    names
}

#[test]
fn every_broken_policy_gets_its_messages() {
    let folder = root().join("tests/golden/policies");
    let names = policies(&folder);
    assert!(names.len() > 10, "{names:?}");
    for name in names {
        let output = check(&folder, &[&name]);
        assert_eq!(output.status.code(), Some(1), "{name} is broken");
        assert_eq!(text(&output.stdout), "", "{name}");
        expect_file(&folder.join(&name).with_extension("txt"), text(&output.stderr));
    }
}

#[test]
fn all_files_are_told_of_in_one_run() {
    let folder = root().join("tests/golden/policies");
    let output = check(&folder, &["no-version.yaml", "../../../policies/default.yaml", "absent.yaml", "empty.yaml"]);
    assert_eq!(output.status.code(), Some(1));
    let told: Vec<&str> = text(&output.stderr).lines().collect();
    assert_eq!(told.len(), 3, "{told:?}");
    assert!(told[0].starts_with("no-version.yaml:1:1: ") && told[2].starts_with("empty.yaml:1:1: "), "{told:?}");
    assert!(told[1].starts_with("absent.yaml:1:1: cannot be read: "), "{told:?}");
    assert_eq!(
        text(&output.stdout),
        "../../../policies/default.yaml: ok: 3 classes, 0 tenant rules, pool default with 64 requests and 16000 tokens \
         in flight\n"
    );
}

#[test]
fn a_command_line_without_a_file_is_an_error_of_its_own() {
    let output = check(root(), &[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("Usage: tallygate check <PATH>..."), "{}", text(&output.stderr));
}

#[test]
fn the_policies_we_ship_hold_wherever_they_are_checked_from() {
    let examples = root().join("policies/examples");
    let names = policies(&examples);
    assert!(names.len() >= 3, "{names:?}");
    for name in &names {
        for (folder, path) in [(&examples, PathBuf::from(name)), (&env::temp_dir(), examples.join(name))] {
            let output = check(folder, &[path.to_str().expect("UTF-8")]);
            assert_eq!(output.status.code(), Some(0), "{name}: {}", text(&output.stderr));
            assert_eq!(text(&output.stdout).lines().count(), 1, "{name}");
        }
    }
}

#[test]
fn the_examples_do_what_they_say() {
    let load =
        |name: &str| policy::load(&root().join("policies/examples").join(name)).unwrap_or_else(|m| panic!("{m}"));
    let weight = |policy: &policy::Policy, tenant: &str| policy.tenant(&tenant.into()).weight.as_f64();
    let same = |left: f64, right: f64| (left - right).abs() < 1e-9;

    let teams = load("two-teams.yaml");
    assert!(same(weight(&teams, "research"), 3.0) && same(weight(&teams, "support"), 1.0));
    let jobs = teams.select(&"others".into(), Some("chat"), "gpt-4o-mini").expect("served");
    assert_eq!((&*teams.classes[jobs.class.index()].name, jobs.model.as_str()), ("jobs", "llama-70b"));

    let agents = load("agents.yaml");
    assert_eq!((agents.fanout.per_session, agents.fanout.per_tenant), (Limit::AtMost(6), Limit::AtMost(24)));
    assert_eq!(agents.route("qwen-70b").map(|(pool, _)| pool.index()), Some(0));
    assert_eq!(agents.route("anything").map(|(pool, _)| pool.index()), Some(1));

    let keys = load("api-keys.yaml");
    let [policy::model::TenantSource::ApiKey(ring)] = &keys.identity.tenant[..] else { panic!("{:?}", keys.identity) };
    assert_eq!(ring.keys.len(), 2);
    assert!(same(weight(&keys, ring.keys[0].tenant.as_str()), 2.0));
}
