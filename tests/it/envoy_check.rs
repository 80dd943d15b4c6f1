//! `tallygate envoy-check`: broken configurations get the finding that names their fault, and good ones get none.
//!
//! Each `tests/envoy_check/broken/NAME.yaml` is a good configuration with one thing changed, and says what must be found
//! that is not found in the good one: no less, and no more. Envoy itself takes nearly all of them without a word, which
//! is why there is this check; where `TALLYGATE_ENVOY` names one, that is shown too.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use tallygate::envoy_check::{Expected, RULES, check};
use tallygate::units::{Bytes, Limit, Span};
use tallygate::yaml;

use crate::door::{Client, Front, usual, within};
use crate::generated::{expect_file, root};

/// A broken configuration, as a change of a good one.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Case {
    base: String,
    edits: Vec<Edit>,
    #[serde(default)]
    policy: Option<String>,
    #[serde(default)]
    envoy: Envoy,
    finds: Vec<Find>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Edit {
    replace: String,
    with: String,
}

/// What Envoy says of it.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
enum Envoy {
    #[default]
    Accepts,
    Refuses,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Find {
    rule: String,
    at: String,
}

fn files(folder: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(root().join(folder)).expect("the folder is there");
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("readable").path()).collect();
    files.sort();
    files
}

fn case(file: &Path) -> Case {
    let text = fs::read_to_string(file).expect("readable");
    let loaded = yaml::load(&file.display().to_string(), &text).unwrap_or_else(|mistakes| panic!("{mistakes}"));
    loaded.value
}

impl Case {
    fn broken(&self) -> String {
        let mut text = fs::read_to_string(root().join(&self.base)).expect("the base is there");
        for Edit { replace, with } in &self.edits {
            assert_eq!(text.matches(replace).count(), 1, "{} has {replace:?} once", self.base);
            text = text.replace(replace, with);
        }
        text
    }
}

/// What is said of a file: whether it is good, and every finding.
fn run(file: &Path, more: &[&str]) -> (bool, Vec<(String, String, Value)>) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tallygate"));
    let output = command.arg("envoy-check").arg(file).arg("--json").args(more).output().expect("it runs");
    let said = String::from_utf8(output.stdout).expect("UTF-8");
    let errors = String::from_utf8_lossy(&output.stderr);
    let report: Value = serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}{errors}"));
    let text = |finding: &Value, key: &str| finding[key].as_str().expect("text").to_owned();
    let findings = report["findings"].as_array().expect("a list").iter();
    let findings = findings.map(|finding| (text(finding, "rule"), text(finding, "path"), finding.clone())).collect();
    assert_eq!(report["ok"].as_bool(), Some(output.status.code() == Some(0)), "{said}");
    (output.status.success(), findings)
}

#[test]
fn every_broken_configuration_gets_the_finding_that_names_its_fault() {
    let cases = files("tests/envoy_check/broken");
    assert!(cases.len() >= 20);
    let folder = tempfile::tempdir().expect("a folder");
    let mut wrong = Vec::new();
    for file in cases {
        let case = case(&file);
        let name = file.file_name().and_then(|name| name.to_str()).expect("UTF-8");
        let broken = folder.path().join(name);
        fs::write(&broken, case.broken()).expect("written");
        let policy = folder.path().join("policy.yaml");
        fs::write(folder.path().join("keys.yaml"), format!("keys: [{{sha256: \"{:064x}\", tenant: a}}]", 7))
            .expect("written");
        let mut more = Vec::new();
        if let Some(text) = &case.policy {
            fs::write(&policy, text).expect("written");
            more.extend(["--policy", policy.to_str().expect("UTF-8")]);
        }
        let before: BTreeSet<_> = run(&root().join(&case.base), &more).1.into_iter().map(|(rule, _, _)| rule).collect();
        let (is_good, findings) = run(&broken, &more);
        let mut wanted: Vec<(&str, &str)> = case.finds.iter().map(|find| (&*find.rule, &*find.at)).collect();
        for (rule, path, finding) in &findings {
            match wanted.iter().position(|(wanted, at)| wanted == rule && path.ends_with(at)) {
                Some(at) => drop(wanted.remove(at)),
                None if before.contains(rule) => {}
                None => wrong.push(format!("{name}: also {rule} at {path}: {}", finding["found"])),
            }
        }
        wrong.extend(wanted.iter().map(|(rule, at)| format!("{name}: no {rule} at ...{at}")));
        let errors = findings.iter().any(|(_, _, finding)| finding["level"] == "error");
        assert_eq!(is_good, !errors, "{name}");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_rule_has_a_configuration_that_breaks_it() {
    let found: BTreeSet<String> = files("tests/envoy_check/broken")
        .iter()
        .flat_map(|file| case(file).finds)
        .map(|find| find.rule)
        .chain(["fails-closed".to_owned()])
        .collect();
    let rules: BTreeSet<String> = RULES.iter().map(|rule| rule.name.to_owned()).collect();
    assert_eq!(found, rules);
}

#[test]
fn the_good_configurations_have_no_error_and_no_warning() {
    let good = files("tests/envoy_check/good")
        .into_iter()
        .chain(files("deploy/envoy"))
        .chain([root().join("deploy/compose/envoy.yaml")]);
    for file in good.filter(|file| file.extension().is_some_and(|extension| extension == "yaml")) {
        let (is_good, findings) = run(&file, &[]);
        let bad: Vec<_> = findings.iter().filter(|(_, _, finding)| finding["level"] != "note").collect();
        assert!(is_good && bad.is_empty(), "{}: {bad:#?}", file.display());
    }
}

/// Envoy's own check passes what this one does not: the faults are silent.
#[test]
fn envoy_takes_the_broken_configurations_without_a_word() {
    let Some(envoy) = env::var_os("TALLYGATE_ENVOY") else {
        println!("SKIPPED: TALLYGATE_ENVOY does not name an Envoy 1.40 binary; tests/run installs one");
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let said = |file: &Path| {
        let mut command = Command::new(&envoy);
        command.args(["--mode", "validate", "--log-level", "error", "-c"]).arg(file);
        let output = command.output().expect("Envoy runs");
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        (if output.status.success() { Envoy::Accepts } else { Envoy::Refuses }, told)
    };
    for file in files("tests/envoy_check/good") {
        let (verdict, told) = said(&file);
        assert_eq!(verdict, Envoy::Accepts, "{}: {told}", file.display());
    }
    for file in files("tests/envoy_check/broken") {
        let (case, broken) = (case(&file), folder.path().join("broken.yaml"));
        fs::write(&broken, case.broken()).expect("written");
        let (verdict, told) = said(&broken);
        assert_eq!(verdict, case.envoy, "{}: {told}", file.display());
    }
}

/// Whatever part of a configuration is missing or cut off, there is an answer, and it is about a place in the file.
#[test]
fn no_part_of_a_configuration_is_taken_for_granted() {
    let expected = Expected {
        clusters: Vec::new(),
        port: 9001,
        longest_wait: Limit::AtMost(Span::from_secs(600)),
        most_held: Limit::Unlimited,
        most_running: Limit::Unlimited,
        body_most: Bytes::new(32 << 20),
        begin_within: Span::from_secs(600),
        identity_headers: vec!["x-tenant-id".into()],
        identity_namespaces: vec!["envoy.filters.http.jwt_authn".into()],
    };
    let mut judged = 0;
    for file in files("tests/envoy_check/good") {
        let text = fs::read_to_string(file).expect("readable");
        let lines: Vec<&str> = text.lines().collect();
        for at in 0..lines.len() {
            let without = [&lines[..at], &lines[at + 1..]].concat().join("\n");
            for text in [without, lines[..at].join("\n")] {
                match check("envoy.yaml", &text, &expected) {
                    Ok(report) => {
                        judged += 1;
                        let last = text.lines().count().max(1);
                        for finding in &report {
                            assert!((1..=last).contains(&finding.position.line), "{finding}: of {last} lines");
                        }
                    }
                    Err(mistakes) => assert!(!mistakes.is_empty()),
                }
            }
        }
    }
    assert!(judged > 500, "{judged}");
}

/// What a running Envoy says of itself is judged as its file is.
#[tokio::test]
async fn a_dump_of_a_running_envoy_is_judged_as_its_file() {
    let (gateway, upstream) = usual().await;
    let folder = tempfile::tempdir().expect("a folder");
    let edits: [(&str, &str, &[&str]); 3] = [
        ("", "", &["fails-closed"]),
        ("message_timeout: 3600s\n                      max_", "max_", &["message-timeout", "fails-closed"]),
        ("timeout: 0s\n                http", "timeout: 9s\n                http", &["route-timeout", "fails-closed"]),
    ];
    for (from, to, wanted) in edits {
        let edit = |config: String| {
            assert!(config.contains(from));
            config.replace(from, to)
        };
        let Some(front) = Front::edited(&gateway, upstream.address(), edit).await else { return };
        let dump = front.config_dump().await;
        let file = folder.path().join("dump.json");
        fs::write(&file, dump).expect("written");
        let (_, findings) = run(&file, &[]);
        let rules: Vec<&str> = findings.iter().map(|(rule, _, _)| rule.as_str()).collect();
        assert_eq!(rules, wanted, "{findings:#?}");
    }
}

/// The shipped configuration, cut into what a control plane would deliver: a listener, its routes, and clusters.
fn delivered(folder: &Path) -> String {
    let text = fs::read_to_string(root().join("deploy/envoy/ext_proc.yaml")).expect("readable");
    let text = text.replace("port_value: 10000}", "port_value: 0}");
    let (_, resources) = text.split_once("  listeners:\n").expect("listeners");
    let (listener, clusters) = resources.split_once("  clusters:\n").expect("clusters");
    let (before, rest) = listener.split_once("                route_config:\n").expect("routes");
    let (routes, after) = rest.split_once("                http_filters:\n").expect("filters");
    let source = |file: &str| {
        let path = folder.join(file);
        format!("{{resource_api_version: V3, path_config_source: {{path: {}}}}}", path.display())
    };
    let typed = |text: &str, name: &str, kind: &str| {
        let kind = format!("    - \"@type\": type.googleapis.com/envoy.config.{kind}\n      name: {name}\n");
        text.replace(&format!("    - name: {name}\n"), &kind)
    };
    let rds = format!("                rds: {{route_config_name: llm, config_source: {}}}\n", source("routes.yaml"));
    let listener = format!("{before}{rds}                http_filters:\n{after}");
    let listener = typed(&listener, "llm", "listener.v3.Listener");
    let clusters = typed(&typed(clusters, "upstream", "cluster.v3.Cluster"), "tallygate", "cluster.v3.Cluster");
    let routes: String = routes.lines().map(|line| format!("      {}\n", line.get(18..).unwrap_or_default())).collect();
    let routes = format!("    - \"@type\": type.googleapis.com/envoy.config.route.v3.RouteConfiguration\n{routes}");
    for (file, list) in [("listeners.yaml", listener), ("clusters.yaml", clusters), ("routes.yaml", routes)] {
        fs::write(folder.join(file), format!("resources:\n{list}")).expect("written");
    }
    format!(
        "node: {{id: one, cluster: edge}}\nadmin: {{address: {{socket_address: {{address: 127.0.0.1, port_value: 0}}}}}}\n\
         dynamic_resources:\n  lds_config: {}\n  cds_config: {}\n",
        source("listeners.yaml"),
        source("clusters.yaml"),
    )
}

/// What a control plane delivers is in the dump, and is judged where it stands there; so are its files by themselves.
#[tokio::test]
async fn what_is_delivered_to_a_running_envoy_is_judged() {
    let folder = tempfile::tempdir().expect("a folder");
    let bootstrap = folder.path().join("bootstrap.yaml");
    fs::write(&bootstrap, delivered(folder.path())).expect("written");
    let (is_good, findings) = run(&folder.path().join("listeners.yaml"), &["--cluster", "tallygate"]);
    let rules: Vec<&str> = findings.iter().map(|(rule, _, _)| rule.as_str()).collect();
    assert!(is_good && rules == ["routes-elsewhere", "fails-closed"], "{findings:#?}");
    for (wrong, wanted) in [("", vec!["fails-closed"]), ("timeout: 0s", vec!["route-timeout", "fails-closed"])] {
        let file = folder.path().join("routes.yaml");
        let routes = fs::read_to_string(&file).expect("readable");
        fs::write(&file, if wrong.is_empty() { routes } else { routes.replace(wrong, "timeout: 15s") })
            .expect("written");
        let Some(dump) = dumped(&bootstrap).await else { return };
        let dumped = folder.path().join("dump.json");
        fs::write(&dumped, dump).expect("written");
        let (_, findings) = run(&dumped, &[]);
        let rules: Vec<&str> = findings.iter().map(|(rule, _, _)| rule.as_str()).collect();
        assert_eq!(rules, wanted, "{findings:#?}");
        let path = "configs[";
        assert!(findings.iter().all(|(_, at, _)| at.starts_with(path)), "{findings:#?}");
    }
}

/// The dump of an Envoy that runs a bootstrap file, once it has all it waits for; nothing where there is no Envoy.
async fn dumped(bootstrap: &Path) -> Option<String> {
    let Some(envoy) = env::var_os("TALLYGATE_ENVOY") else {
        println!("SKIPPED: TALLYGATE_ENVOY does not name an Envoy 1.40 binary; tests/run installs one");
        return None;
    };
    let address = bootstrap.with_file_name("admin");
    let _ = fs::remove_file(&address);
    let mut command = tokio::process::Command::new(envoy);
    command.args(["--disable-hot-restart", "--concurrency", "1", "--log-level", "error", "-c"]).arg(bootstrap);
    command.arg("--admin-address-path").arg(&address).kill_on_drop(true);
    let _running = command.spawn().expect("Envoy starts");
    let ready = async {
        loop {
            let written = fs::read_to_string(&address).ok().and_then(|text| text.parse().ok());
            if let Some(admin) = written {
                let mut client = Client::connect(admin).await;
                if client.get("/ready", "").await.status == 200 {
                    return Client::connect(admin).await.get("/config_dump?include_eds", "").await.body;
                }
            }
            tokio::task::yield_now().await;
        }
    };
    Some(within("Envoy to have what it waits for", ready).await)
}

#[test]
fn what_is_no_configuration_is_told_with_its_place() {
    let folder = tempfile::tempdir().expect("a folder");
    for (text, told) in [
        ("version: 1", "a.yaml:1:1: is no configuration of Envoy: it has neither `static_resources`"),
        ("static_resources: {listeners: [", "a.yaml:1:32: "),
        ("static_resources: {}\nstatic_resources: {}", "a.yaml:2:1: static_resources: is given twice"),
    ] {
        fs::write(folder.path().join("a.yaml"), text).expect("written");
        let mut command = Command::new(env!("CARGO_BIN_EXE_tallygate"));
        let output = command.args(["envoy-check", "a.yaml"]).current_dir(folder.path()).output().expect("it runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1));
        assert!(said.starts_with(told), "{said}");
    }
}

/// The page lists what the program says.
#[test]
fn the_page_of_findings_is_fresh() {
    let file = root().join("docs/envoy-check.md");
    let page = fs::read_to_string(&file).expect("the page is there");
    let (before, rest) = page.split_once("<!-- findings -->\n").expect("the page has the mark");
    let (_, after) = rest.split_once("<!-- end -->\n").expect("the page has the second mark");
    let mut table =
        String::from("<!-- findings -->\n\n| finding | level | what goes wrong | fix |\n|---|---|---|---|\n");
    for rule in RULES {
        let cell = |text: &str| text.replace('|', "\\|");
        table += &format!("| `{}` | {} | {} | {} |\n", rule.name, rule.level, cell(rule.harm), cell(rule.fix));
    }
    expect_file(&file, &format!("{before}{table}\n<!-- end -->\n{after}"));
}
