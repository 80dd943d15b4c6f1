//! What is under `deploy/` fits the program it deploys: its flags, its policies, its metrics, its time to go; and what
//! it is written for: schemas, and the real tools where they are there (`tests/deploy/check.py`).

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Parser;
use serde_json::Value;

use tallygate::cli::Cli;
use tallygate::policy;
use tallygate::yaml::{Document, Part};

use crate::generated::root;

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn document(path: &str) -> Document {
    Document::read(path, &read(path)).unwrap_or_else(|mistakes| panic!("{mistakes}"))
}

fn at<'document>(root: Part<'document>, path: &str) -> Part<'document> {
    path.split('.').fold(root, |part, step| {
        let next = step.parse().map_or_else(|_| part.get(step), |index: usize| part.items().nth(index));
        next.unwrap_or_else(|| panic!("there is no {step} of {path}"))
    })
}

fn words(part: Part<'_>) -> Vec<String> {
    part.items().map(|item| item.scalar().and_then(Value::as_str).expect("text").to_owned()).collect()
}

/// The value of a flag, as `--name=value`.
fn flag<'word>(words: &'word [String], name: &str) -> Option<&'word str> {
    words.iter().find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
}

/// Every way in which something under `deploy/` starts the program.
fn command_lines() -> Vec<(&'static str, Vec<String>)> {
    let deployment = document("deploy/kubernetes/base/deployment.yaml");
    let compose = document("deploy/compose/compose.yaml");
    let dockerfile = read("deploy/Dockerfile");
    let command = dockerfile.lines().find_map(|line| line.strip_prefix("CMD ")).expect("a CMD");
    let unit = read("deploy/systemd/tallygate.service");
    let start = unit.lines().find_map(|line| line.strip_prefix("ExecStart=/usr/local/bin/tallygate ")).expect("one");
    vec![
        ("deployment", words(at(deployment.root(), "spec.template.spec.containers.0.args"))),
        ("compose", words(at(compose.root(), "services.tallygate.command"))),
        ("compose's engine", words(at(compose.root(), "services.engine.command"))),
        ("image", serde_json::from_str(command).expect("JSON")),
        ("unit", start.split(' ').map(str::to_owned).collect()),
    ]
}

#[test]
fn everything_is_started_with_flags_that_there_are() {
    for (what, words) in command_lines() {
        let parsed = Cli::try_parse_from(std::iter::once("tallygate".to_owned()).chain(words));
        assert!(parsed.is_ok(), "{what}: {}", parsed.expect_err("it is none"));
    }
}

/// Every `tallygate serve --...` that a page or a comment below a folder or in a file tells to type, and where.
fn told_to_type(place: &Path, found: &mut Vec<(String, Vec<String>)>) {
    if place.is_dir() {
        let entries = fs::read_dir(place).expect("a folder").map(|entry| entry.expect("readable").path());
        return entries.for_each(|entry| told_to_type(&entry, found));
    }
    if place.extension().is_some_and(|extension| extension == "md" || extension == "yaml") {
        let text = fs::read_to_string(place).expect("readable");
        for (at, _) in text.match_indices("tallygate serve --") {
            let told = text[at..].split(['`', '\n']).next().unwrap_or_default();
            let words = told.split_whitespace().skip(1).take_while(|word| *word != "&").map(str::to_owned);
            found.push((place.display().to_string(), words.collect()));
        }
    }
}

#[test]
fn whatever_one_is_told_to_type_leads_somewhere() {
    let mut found = Vec::new();
    ["docs", "deploy", "README.md"].into_iter().for_each(|place| told_to_type(&root().join(place), &mut found));
    assert!(found.len() > 12, "{found:?}");
    for (page, words) in found {
        let parsed = Cli::try_parse_from(std::iter::once("tallygate".to_owned()).chain(words.clone()));
        assert!(parsed.is_ok(), "{page}: {words:?}: {}", parsed.expect_err("it is none"));
        let somewhere = ["--demo", "--upstream", "off", "--policy"];
        let leads = words.iter().any(|word| somewhere.contains(&word.as_str()));
        assert!(leads, "{page}: {words:?} has neither an upstream nor the proxy off");
    }
}

#[test]
fn what_goes_down_is_given_the_time_it_takes() {
    let seconds = |text: &str| humantime::parse_duration(text).expect("a duration").as_secs();
    let deployment = document("deploy/kubernetes/base/deployment.yaml");
    let pod = at(deployment.root(), "spec.template.spec");
    let number = |path| at(pod, path).scalar().and_then(Value::as_u64).expect("a number");
    let (_, arguments) = &command_lines()[0];
    let notice = seconds(flag(arguments, "--shutdown-notice").expect("it is there"));
    let grace = seconds(flag(arguments, "--shutdown-grace").expect("it is there"));
    let before = number("containers.0.lifecycle.preStop.sleep.seconds");
    let given = number("terminationGracePeriodSeconds");
    assert!(given > before + notice + grace, "{given} s for {before} + {notice} + {grace}");
    let unit = read("deploy/systemd/tallygate.service");
    let stop = unit.lines().find_map(|line| line.strip_prefix("TimeoutStopSec=")).expect("it is there");
    assert!(seconds(stop) > 60 + 1, "the grace, and the notice by default");
}

#[test]
fn the_policies_that_are_deployed_hold() {
    for file in [
        "deploy/compose/policy.yaml",
        "deploy/inference-pool/tallygate/policy.yaml",
        "deploy/kubernetes/base/policy.yaml",
        "deploy/kubernetes/overlays/two/policy.yaml",
    ] {
        policy::load(&root().join(file)).unwrap_or_else(|mistakes| panic!("{mistakes}"));
    }
}

/// Every metric that the source names, as far as a literal can tell.
fn metrics(folder: PathBuf, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("readable").path();
        if path.is_dir() {
            metrics(path, found);
        } else {
            let text = fs::read_to_string(path).expect("readable");
            found.extend(text.split('"').filter(|word| word.starts_with("tallygate_")).map(str::to_owned));
        }
    }
}

fn named_in(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    let metrics = words.filter(|word| word.starts_with("tallygate_"));
    let plain = |word: &str| {
        let parts = ["_bucket", "_sum", "_count"];
        parts.iter().find_map(|part| word.strip_suffix(part)).unwrap_or(word).to_owned()
    };
    metrics.map(plain).collect()
}

#[tokio::test]
async fn every_metric_that_is_shown_or_alerted_on_exists() {
    let (gateway, _demo) = crate::gauges::seeing_the_demo().await;
    let shown = gateway.admin().await.get("/metrics", "").await.body;
    let mut known: BTreeSet<String> =
        shown.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).map(str::to_owned).collect();
    metrics(root().join("src/observe"), &mut known);
    for file in ["deploy/compose/grafana/tallygate.json", "deploy/prometheus/rules.yaml"] {
        let named = named_in(&read(file));
        assert!(named.len() > 5, "{file} names {named:?}");
        let unknown: Vec<_> = named.difference(&known).collect();
        assert!(unknown.is_empty(), "{file} names {unknown:?}, which no gateway shows");
    }
    assert!(named_in("rate(tallygate_never_bucket[5m])").difference(&known).next().is_some());
}

/// Grafana's own file has no schema to be had: what it needs to show a panel is looked at here.
#[test]
fn every_panel_of_the_dashboard_has_something_to_show() {
    let dashboard: Value = serde_json::from_str(&read("deploy/compose/grafana/tallygate.json")).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("a list");
    let mut ids = BTreeSet::new();
    for panel in panels {
        assert!(ids.insert(panel["id"].as_u64()), "{} has an id of its own", panel["title"]);
        let place = &panel["gridPos"];
        assert!(place["x"].as_u64().zip(place["w"].as_u64()).is_some_and(|(x, w)| x + w <= 24), "{place}");
        if panel["type"] != "row" {
            let targets = panel["targets"].as_array().expect("a list");
            assert!(!targets.is_empty() && targets.iter().all(|target| target["expr"].is_string()), "{panel}");
            assert!(panel["description"].is_string(), "{} says what it shows", panel["title"]);
        }
    }
}

/// What of a folder is in the image's context, as the file beside its recipe says.
fn copy(from: &Path, to: &Path) {
    if from.is_dir() {
        fs::create_dir_all(to).expect("made");
        for entry in fs::read_dir(from).expect("a folder") {
            let name = entry.expect("readable").file_name();
            copy(&from.join(&name), &to.join(&name));
        }
    } else {
        fs::create_dir_all(to.parent().expect("inside")).expect("made");
        fs::copy(from, to).expect("copied");
    }
}

/// There is no container engine to build the image with, but there is its context: cargo finds every target in it, and
/// the source finds every file it includes.
#[test]
fn the_image_is_built_of_everything_it_takes() {
    let context = tempfile::tempdir().expect("a folder");
    let ignore = read("deploy/Dockerfile.dockerignore");
    let kept: Vec<&str> = ignore.lines().filter_map(|line| line.strip_prefix('!')).collect();
    for path in &kept {
        copy(&root().join(path), &context.path().join(path));
    }
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["metadata", "--format-version=1", "--offline", "--locked", "--no-deps"]).current_dir(context.path());
    let said = cargo.output().expect("cargo runs");
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    let metadata: Value = serde_json::from_slice(&said.stdout).expect("JSON");
    let packages = metadata["packages"].as_array().expect("a list");
    let targets = packages.iter().flat_map(|package| package["targets"].as_array().expect("a list"));
    for target in targets {
        let source = target["src_path"].as_str().expect("a path");
        assert!(Path::new(source).exists(), "{source} is not in the image's context");
    }
    let mut included = BTreeSet::new();
    includes(&root().join("src"), &mut included);
    assert!(included.contains("proto"), "{included:?}");
    let missing: Vec<_> = included.iter().filter(|folder| !kept.contains(&folder.as_str())).collect();
    assert!(missing.is_empty(), "the source includes files of {missing:?}");
}

/// The folders beside `src` of which what ships includes files.
fn includes(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("readable").path();
        if path.is_dir() {
            includes(&path, found);
            continue;
        }
        let text = fs::read_to_string(&path).expect("readable");
        let shipped = text.split("#[cfg(test)]").next().unwrap_or_default();
        for line in shipped.lines().filter(|line| line.contains("include")) {
            let quoted = line.split('"').skip(1).step_by(2);
            for file in quoted.filter(|quoted| quoted.starts_with("../../") || quoted.starts_with('/')) {
                let outside = file.trim_start_matches("../").trim_start_matches('/');
                let top = outside.split('/').next().unwrap_or_default();
                found.insert(top.to_owned());
            }
        }
    }
}

#[test]
fn manifests_fit_their_schemas_and_the_tools_that_are_there() {
    let Some(python) = std::env::var_os("TALLYGATE_PYTHON") else {
        println!("SKIPPED: TALLYGATE_PYTHON does not name a Python; tests/run installs one");
        return;
    };
    let run = Command::new(python).arg(root().join("tests/deploy/check.py")).output().expect("Python runs");
    let said = String::from_utf8_lossy(&run.stdout);
    println!("{said}");
    assert!(run.status.success(), "{said}{}", String::from_utf8_lossy(&run.stderr));
}
