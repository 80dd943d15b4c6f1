//! A run on paper: an aligned table for people, `summary.json` and `requests.csv` for everything else.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use serde::Serialize;

use crate::record::Record;
use crate::report::{Quantile, Summary, Tenant};

/// The table.
pub(crate) fn table(summary: &Summary) -> String {
    let mut rows = vec![
        [
            "tenant",
            "offered",
            "done",
            "refused",
            "failed",
            "open",
            "first p50",
            "p90",
            "p99",
            "max",
            "answer p50",
            "queue p50",
            "p99",
            "in tok",
            "out tok",
            "share",
        ]
        .map(str::to_owned)
        .to_vec(),
    ];
    rows.extend(summary.tenants.iter().map(row));
    let mut text = aligned(&rows);
    let late = &summary.generator_late_ms;
    let told = writeln!(
        text,
        "\nfirst token and answer in s from the scheduled moment, queue in ms as the gateway says; ≥ where the run ended first\n\
         {:.0} tokens/s ({:.0} output), {:.2} answers/s with the first token in time, over {:.0} s\n\
         generator late by p50 {} ms, p99 {} ms, max {} ms",
        summary.tokens_per_s,
        summary.output_tokens_per_s,
        summary.goodput_per_s,
        summary.offered_for_s,
        show(late.p50, 1),
        show(late.p99, 1),
        show(late.max, 1),
    );
    told.expect("a string takes all");
    if summary.miscounted_streams > 0 {
        let told = writeln!(
            text,
            "{} streams had other chunks of text than the tokens they report",
            summary.miscounted_streams
        );
        told.expect("a string takes all");
    }
    text.push_str(&reasons(summary));
    text
}

fn row(tenant: &Tenant) -> Vec<String> {
    let (first, queue) = (&tenant.first_token_s, &tenant.queue_ms);
    vec![
        tenant.tenant.clone(),
        tenant.offered.to_string(),
        tenant.completed.to_string(),
        tenant.refused.values().sum::<usize>().to_string(),
        (tenant.failed.values().sum::<usize>() + tenant.not_sent).to_string(),
        tenant.unfinished.to_string(),
        show(first.p50, 2),
        show(first.p90, 2),
        show(first.p99, 2),
        show(first.max, 2),
        show(tenant.answer_s.p50, 2),
        show(queue.p50, 0),
        show(queue.p99, 0),
        tenant.input_tokens.to_string(),
        tenant.output_tokens.to_string(),
        format!("{:.1} %", tenant.share * 100.0),
    ]
}

/// Why requests were refused or failed, where any were.
fn reasons(summary: &Summary) -> String {
    let mut text = String::new();
    for tenant in &summary.tenants {
        let refused = tenant.refused.iter().map(|(why, count)| ("refused", why.as_str(), *count));
        let failed = tenant.failed.iter().map(|(why, count)| ("failed", why.as_str(), *count));
        let unsent = (tenant.not_sent > 0).then_some(("not sent", "too many under way", tenant.not_sent));
        for (what, why, count) in refused.chain(failed).chain(unsent) {
            writeln!(text, "{}: {count} {what}: {why}", tenant.tenant).expect("a string takes all");
        }
    }
    text
}

/// A number with so many decimals, or a dash.
pub(crate) fn show(quantile: Option<Quantile>, decimals: usize) -> String {
    quantile.map_or_else(
        || "-".to_owned(),
        |quantile| format!("{}{:.decimals$}", if quantile.at_least { "≥" } else { "" }, quantile.value),
    )
}

/// Columns as wide as their widest cell: the first to the left, numbers to the right.
pub(crate) fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| {
            if column == 0 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// Writes `summary.json` and `requests.csv` into a folder, which is made where it is missing.
pub(crate) fn write(folder: &Path, summary: &Summary, records: &[Record]) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make the folder {}", folder.display()))?;
    let path = folder.join("summary.json");
    let json = serde_json::to_string_pretty(summary)?;
    std::fs::write(&path, json + "\n").with_context(|| format!("cannot write {}", path.display()))?;
    let path = folder.join("requests.csv");
    let mut csv = csv::Writer::from_path(&path).with_context(|| format!("cannot write {}", path.display()))?;
    let mut sorted: Vec<&Record> = records.iter().collect();
    sorted.sort_by_key(|record| record.scheduled);
    for (id, record) in sorted.into_iter().enumerate() {
        csv.serialize(Line::of(id, record))?;
    }
    csv.flush().with_context(|| format!("cannot write {}", path.display()))
}

#[derive(Serialize)]
struct Line<'a> {
    id: usize,
    tenant: &'a str,
    open_loop: bool,
    scheduled_s: Option<String>,
    sent_s: Option<String>,
    first_token_s: Option<String>,
    ended_s: Option<String>,
    input_tokens: u64,
    output_tokens: u64,
    outcome: &'static str,
    detail: &'a str,
    queue_ms: Option<String>,
    retry_after_s: Option<&'a str>,
    asked_s: Option<String>,
    heeded: bool,
}

impl<'a> Line<'a> {
    fn of(id: usize, record: &'a Record) -> Self {
        let seconds = |at: Option<Duration>| at.map(|at| format!("{:.4}", at.as_secs_f64()));
        Self {
            id,
            tenant: &record.sender.tenant,
            open_loop: record.open_loop,
            scheduled_s: seconds(Some(record.scheduled)),
            sent_s: seconds(record.sent),
            first_token_s: seconds(record.first_token),
            ended_s: seconds(record.ended),
            input_tokens: record.input,
            output_tokens: record.output,
            outcome: record.outcome.name(),
            detail: record.outcome.detail(),
            queue_ms: record.queue.map(|queue| format!("{:.1}", queue.as_secs_f64() * 1e3)),
            retry_after_s: record.retry_after.as_deref(),
            asked_s: seconds(Some(record.asked)),
            heeded: record.heeded,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Quantile, aligned, show};

    #[test]
    fn columns_line_up() {
        let rows = [["tenant", "n"], ["a", "12345"]].map(|row| row.map(str::to_owned).to_vec());
        assert_eq!(aligned(&rows), "tenant      n\na       12345\n");
    }

    #[test]
    fn a_lower_bound_says_so() {
        assert_eq!(show(Some(Quantile { value: 2.0, at_least: true }), 1), "≥2.0");
        assert_eq!(show(None, 1), "-");
    }
}
