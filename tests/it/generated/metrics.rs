//! `docs/metrics.md`: every metric in one table, as Prometheus is told of it.

use std::fmt::Write;

use tallygate::observe::{Described, Metrics};

const HEAD: &str = "\
# Metrics

<!-- Generated from src/observe. After changing that, run: UPDATE_GENERATED=1 cargo test --test it generated -->

`GET /metrics` at the admin API (port 9090), in Prometheus' text format; beyond loopback with the admin token. Labels are
bounded: pools, classes, reasons and outcomes by the policy and the program, tenants to MOST_TENANTS, beyond which they are counted
together as `other`. [`deploy/prometheus/rules.yaml`](../deploy/prometheus/rules.yaml) has alerts on them,
[`deploy/compose/grafana`](../deploy/compose/grafana) a dashboard; those for autoscalers are explained in
[`autoscaling.md`](autoscaling.md), engines' in [`gauges.md`](gauges.md).

| metric | kind | labels | what |
|---|---|---|---|
";

pub(super) fn render(metrics: &[Described]) -> String {
    let mut page = HEAD.replace("MOST_TENANTS", &Metrics::MOST_TENANTS.to_string());
    for Described { name, kind, help, labels } in metrics {
        let labels: Vec<String> = labels.iter().map(|label| format!("`{label}`")).collect();
        let _ = writeln!(page, "| `{name}` | {kind} | {} | {} |", labels.join(", "), help.replace('|', "\\|"));
    }
    page
}
