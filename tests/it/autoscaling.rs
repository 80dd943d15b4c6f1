//! The examples for autoscalers name only what a gateway shows.

use std::collections::BTreeSet;
use std::path::Path;

/// Served by prometheus-adapter from others, by the rule beside it.
const DERIVED: [&str; 1] = ["tallygate_pool_wanted_tokens"];

fn named_in(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    words.filter(|word| word.starts_with("tallygate_") && !DERIVED.contains(word)).collect()
}

#[tokio::test]
async fn every_metric_named_for_autoscalers_is_shown_by_a_gateway() {
    let (gateway, _demo) = crate::gauges::seeing_the_demo().await;
    let metrics = gateway.admin().await.get("/metrics", "").await.body;
    let shown: BTreeSet<&str> =
        metrics.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files: Vec<_> = std::fs::read_dir(root.join("deploy/kubernetes/autoscaling"))
        .expect("the examples are there")
        .map(|entry| entry.expect("readable").path())
        .filter(|path| !path.ends_with("kustomization.yaml"))
        .collect();
    assert_eq!(files.len(), 3, "{files:?}");
    files.push(root.join("docs/autoscaling.md"));
    for file in files {
        let text = std::fs::read_to_string(&file).expect("readable");
        let named = named_in(&text);
        assert!(!named.is_empty() || text.contains(DERIVED[0]), "{} names a metric", file.display());
        let unknown: Vec<_> = named.difference(&shown).collect();
        assert!(unknown.is_empty(), "{} names {unknown:?}, which no gateway shows", file.display());
    }
    let adapter = std::fs::read_to_string(root.join("deploy/kubernetes/autoscaling/prometheus-adapter.yaml"));
    assert!(adapter.expect("readable").contains(&format!("as: {}", DERIVED[0])), "what is derived has its rule");
}
