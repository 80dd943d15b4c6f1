//! What a run showed, per tenant and in all.
//!
//! First-token times are measured from the moment the scenario scheduled a request, so that a generator that falls
//! behind makes them worse, never better. A request whose first token had not come when the run ended has waited *at
//! least* that long: it counts with the time it waited, and a quantile that falls on such a one is marked `≥`.
//! Throughput counts what arrived while requests were offered: input with the first token, output token by token.
//! Service is input plus twice the output, the default weights.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use crate::record::{Outcome, Record};

/// What a run showed.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Summary {
    /// How long requests were offered.
    pub(crate) offered_for_s: f64,
    /// Input and output tokens a second while requests were offered.
    pub(crate) tokens_per_s: f64,
    /// Output tokens a second while requests were offered.
    pub(crate) output_tokens_per_s: f64,
    /// Completed requests a second whose first token came in time.
    pub(crate) goodput_per_s: f64,
    /// How late the generator sent what it had scheduled.
    pub(crate) generator_late_ms: Quantiles,
    /// Streams whose chunks of text were not as many as the tokens they reported.
    pub(crate) miscounted_streams: usize,
    /// Per tenant, in the order of their names.
    pub(crate) tenants: Vec<Tenant>,
}

/// What one tenant got.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Tenant {
    pub(crate) tenant: String,
    pub(crate) offered: usize,
    pub(crate) completed: usize,
    /// By code.
    pub(crate) refused: BTreeMap<String, usize>,
    /// By message.
    pub(crate) failed: BTreeMap<String, usize>,
    pub(crate) unfinished: usize,
    pub(crate) not_sent: usize,
    /// From the scheduled moment to the first token.
    pub(crate) first_token_s: Quantiles,
    /// The median of the same, by the third of the run in which the request was scheduled.
    pub(crate) first_token_p50_by_third_s: [Option<Quantile>; 3],
    /// From the scheduled moment to the end of the answer, of those completed.
    pub(crate) answer_s: Quantiles,
    /// What the gateway says they waited, of those it says it of.
    pub(crate) queue_ms: Quantiles,
    pub(crate) input_tokens: u64,
    pub(crate) output_tokens: u64,
    /// Of all service given while requests were offered.
    pub(crate) share: f64,
    /// Completed with the first token in time, of those offered.
    pub(crate) good: usize,
}

/// A value below which a part of them lies.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Quantile {
    pub(crate) value: f64,
    /// Whether the true value is at least this, because the run ended first.
    pub(crate) at_least: bool,
}

/// The usual four. `None` where there is nothing to judge by.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Quantiles {
    pub(crate) p50: Option<Quantile>,
    pub(crate) p90: Option<Quantile>,
    pub(crate) p99: Option<Quantile>,
    pub(crate) max: Option<Quantile>,
}

impl Quantiles {
    fn of(mut values: Vec<Quantile>) -> Self {
        values.sort_by(|a, b| a.value.total_cmp(&b.value));
        let at = |part| quantile(&values, part);
        Self { p50: at(50), p90: at(90), p99: at(99), max: at(100) }
    }
}

/// The nearest-rank quantile of sorted values, in per cent.
fn quantile(sorted: &[Quantile], percent: usize) -> Option<Quantile> {
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted.get(rank.saturating_sub(1)).copied()
}

fn exact(value: f64) -> Quantile {
    Quantile { value, at_least: false }
}

/// What counts as good, and until when tokens count.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measure {
    pub(crate) offered_for: Duration,
    pub(crate) first_token_within: Duration,
}

/// Sums up.
pub(crate) fn summarise(records: &[Record], measure: Measure) -> Summary {
    let mut by_tenant: BTreeMap<&str, Vec<&Record>> = BTreeMap::new();
    for record in records {
        by_tenant.entry(&record.sender.tenant).or_default().push(record);
    }
    let all_service: u64 = records.iter().map(|record| service_in_time(record, measure)).sum();
    let input: u64 = records.iter().map(|record| input_in_time(record, measure)).sum();
    let output: u64 = records.iter().map(|record| record.output_in_time).sum();
    let tenants: Vec<Tenant> =
        by_tenant.into_iter().map(|(name, records)| tenant(name, &records, all_service, measure)).collect();
    let good: usize = tenants.iter().map(|tenant| tenant.good).sum();
    let seconds = measure.offered_for.as_secs_f64();
    let late = records
        .iter()
        .filter(|record| record.open_loop)
        .filter_map(|record| record.sent.map(|sent| sent.saturating_sub(record.scheduled)));
    let miscounted =
        records.iter().filter(|record| record.reported_output.is_some_and(|reported| reported != record.output));
    Summary {
        offered_for_s: seconds,
        tokens_per_s: ratio(input + output, seconds),
        output_tokens_per_s: ratio(output, seconds),
        goodput_per_s: ratio(good as u64, seconds),
        generator_late_ms: Quantiles::of(late.map(|late| exact(late.as_secs_f64() * 1e3)).collect()),
        miscounted_streams: miscounted.count(),
        tenants,
    }
}

fn tenant(name: &str, records: &[&Record], all_service: u64, measure: Measure) -> Tenant {
    let count = |outcome: &str| records.iter().filter(|record| record.outcome.name() == outcome).count();
    let by_detail = |outcome: &str| {
        let mut counts = BTreeMap::new();
        for record in records.iter().filter(|record| record.outcome.name() == outcome) {
            *counts.entry(record.outcome.detail().to_owned()).or_insert(0) += 1;
        }
        counts
    };
    let service: u64 = records.iter().map(|record| service_in_time(record, measure)).sum();
    let third = measure.offered_for / 3;
    let thirds = [0_u32, 1, 2].map(|index| {
        let (from, to) = (third * index, third * (index + 1));
        let inside = records.iter().filter(|record| record.scheduled >= from && record.scheduled < to);
        Quantiles::of(inside.filter_map(|record| first_token(record)).collect()).p50
    });
    let answers = records.iter().filter(|record| record.outcome == Outcome::Completed);
    Tenant {
        tenant: name.to_owned(),
        offered: records.len(),
        completed: count("completed"),
        refused: by_detail("refused"),
        failed: by_detail("failed"),
        unfinished: count("unfinished"),
        not_sent: count("not_sent"),
        first_token_s: Quantiles::of(records.iter().filter_map(|record| first_token(record)).collect()),
        first_token_p50_by_third_s: thirds,
        answer_s: Quantiles::of(
            answers
                .filter_map(|record| {
                    record.ended.map(|ended| exact((ended.saturating_sub(record.scheduled)).as_secs_f64()))
                })
                .collect(),
        ),
        queue_ms: Quantiles::of(
            records.iter().filter_map(|record| record.queue.map(|queue| exact(queue.as_secs_f64() * 1e3))).collect(),
        ),
        input_tokens: records.iter().map(|record| input_in_time(record, measure)).sum(),
        output_tokens: records.iter().map(|record| record.output_in_time).sum(),
        share: if all_service == 0 { 0.0 } else { ratio(service, all_service as f64) },
        good: records.iter().filter(|record| is_good(record, measure)).count(),
    }
}

/// From the scheduled moment to the first token, or as long as the run saw it wait.
fn first_token(record: &Record) -> Option<Quantile> {
    match (&record.outcome, record.first_token, record.ended) {
        (_, Some(first), _) => Some(exact(first.saturating_sub(record.scheduled).as_secs_f64())),
        (Outcome::Unfinished, None, Some(ended)) => {
            Some(Quantile { value: ended.saturating_sub(record.scheduled).as_secs_f64(), at_least: true })
        }
        _ => None,
    }
}

fn is_good(record: &Record, measure: Measure) -> bool {
    let in_time =
        record.first_token.is_some_and(|first| first.saturating_sub(record.scheduled) <= measure.first_token_within);
    record.outcome == Outcome::Completed && in_time
}

fn input_in_time(record: &Record, measure: Measure) -> u64 {
    if record.first_token.is_some_and(|first| first <= measure.offered_for) { record.input } else { 0 }
}

fn service_in_time(record: &Record, measure: Measure) -> u64 {
    input_in_time(record, measure) + 2 * record.output_in_time
}

#[expect(clippy::cast_precision_loss, reason = "for display and statistics only")]
fn ratio(count: u64, of: f64) -> f64 {
    count as f64 / of
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::{Measure, Quantile, summarise};
    use crate::plan::{Sender, Shot};
    use crate::record::{Outcome, Record};

    const MEASURE: Measure =
        Measure { offered_for: Duration::from_secs(30), first_token_within: Duration::from_secs(5) };

    fn record(tenant: &str, at: u64, first: Option<u64>, outcome: Outcome) -> Record {
        let sender = Sender::plain(tenant.into(), None);
        let shot = Shot { at: Duration::from_secs(at), sender: Arc::new(sender), input: 10, output: 5, attempt: 0 };
        let mut record = Record::new(&shot, true);
        record.sent = Some(shot.at + Duration::from_millis(3));
        record.first_token = first.map(Duration::from_secs);
        record.ended = Some(Duration::from_secs(40));
        record.outcome = outcome;
        if first.is_some() {
            (record.output, record.output_in_time, record.reported_output) = (5, 5, Some(5));
        }
        record
    }

    #[test]
    fn what_never_came_counts_as_at_least_the_time_it_waited() {
        let records = [
            record("a", 0, Some(1), Outcome::Completed),
            record("a", 10, None, Outcome::Unfinished),
            record("a", 20, None, Outcome::Unfinished),
        ];
        let tenant = &summarise(&records, MEASURE).tenants[0];
        assert_eq!(tenant.first_token_s.p50, Some(Quantile { value: 20.0, at_least: true }));
        assert_eq!(tenant.first_token_s.max, Some(Quantile { value: 30.0, at_least: true }));
        let thirds = tenant.first_token_p50_by_third_s.map(|third| third.expect("one each").value);
        assert!(thirds.iter().zip([1.0, 30.0, 20.0]).all(|(a, b)| (a - b).abs() < 1e-9), "{thirds:?}");
    }

    #[test]
    fn shares_are_of_service_and_refusals_are_told_by_code() {
        let refused = Outcome::Refused { status: 429, code: "tallygate_queue_full".into() };
        let records = [
            record("a", 0, Some(1), Outcome::Completed),
            record("b", 0, Some(9), Outcome::Completed),
            record("b", 1, None, refused),
            record("c", 0, Some(35), Outcome::Completed),
        ];
        let summary = summarise(&records, MEASURE);
        assert_eq!(summary.tenants[1].refused.get("tallygate_queue_full"), Some(&1));
        assert!((summary.tenants[0].share - 20.0 / 50.0).abs() < 1e-9, "10 input + 2 × 5 output of 50");
        assert_eq!(summary.tenants.iter().map(|tenant| tenant.good).collect::<Vec<_>>(), [1, 0, 0]);
        assert_eq!(summary.tenants[2].input_tokens, 0, "after the end");
        assert_eq!(summary.generator_late_ms.max.map(|late| late.value.round()), Some(3.0));
    }
}
