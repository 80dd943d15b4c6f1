//! The measures of the VTC paper, from what became of each request.
//!
//! What it computes (symbols as in the paper, times in seconds, service in virtual tokens):
//!
//! - the service of a completed request is `w_in × input + w_out × output`, spread evenly over the time from
//!   its first to its last token;
//! - around each of the grid's points (28.5 s apart from 58.5 s on, by default) a window of 60 s gives every
//!   tenant `y_u`, the service it received there, and `demand_u`, the service its arrivals there asked for;
//! - `diff = Σ_u min(max_v y_v − y_u, |demand_u − y_u|) / window`: how far the others lag behind the best
//!   served, as far as they wanted more;
//! - `gap` is the largest difference of two tenants' service since the end of the warm-up, over the points;
//! - tokens per second are all tokens of completed requests over the time of the last completion.
//!
//! The grid is the paper's (600 s, 20 intervals, 30 s warm-up), so that numbers can be held against its
//! tables; a longer run is measured over its first ten minutes. Requests that produced all their output in
//! one moment have no spread and count in no window. The weights are the paper's 1 and 2, or a caller's.

use std::collections::BTreeMap;

use crate::units::{Instant, Span, TenantId, Tokens};

use super::record::{Outcome, Record};

/// The grid the differences are taken on, and the weights of service.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Grid {
    /// Width of the window around each point, in seconds.
    pub window_s: f64,
    /// Length of the grid, in seconds.
    pub span_s: f64,
    /// What is left out at its start, in seconds.
    pub warmup_s: f64,
    /// Intervals it is divided into.
    pub points: u32,
    /// Weight of an input token.
    pub w_in: f64,
    /// Weight of an output token.
    pub w_out: f64,
    /// How many tenants with the fewest requests count as light.
    pub light: usize,
}

impl Default for Grid {
    fn default() -> Self {
        Self { window_s: 60.0, span_s: 600.0, warmup_s: 30.0, points: 20, w_in: 1.0, w_out: 2.0, light: 20 }
    }
}

/// What a run comes to.
#[derive(Clone, Debug, PartialEq)]
pub struct Measures {
    /// The largest windowed difference, in virtual tokens a second.
    pub max_diff: f64,
    /// Its mean over the grid.
    pub avg_diff: f64,
    /// Its variance over the grid.
    pub var_diff: f64,
    /// The largest accumulated difference between two tenants, in virtual tokens.
    pub gap: f64,
    /// Tokens of completed requests a second.
    pub tokens_per_s: f64,
    /// When the last one completed, in seconds.
    pub end_s: f64,
    /// How many requests ended each way.
    pub outcomes: BTreeMap<Outcome, usize>,
    /// Time to the first token of completed requests.
    pub ttft: Ttft,
    /// The same, of the tenants with the fewest requests.
    pub light_ttft: Ttft,
    /// Each tenant's part of the service of completed requests.
    pub shares: BTreeMap<TenantId, f64>,
}

/// Time from arrival to first token; `None` when nothing completed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Ttft {
    /// Median.
    pub p50: Option<Span>,
    /// 99th percentile.
    pub p99: Option<Span>,
    /// Longest.
    pub max: Option<Span>,
    /// Mean, in seconds.
    pub mean_s: Option<f64>,
}

impl Measures {
    /// Measures a run.
    #[must_use]
    pub fn of(records: &[Record], grid: &Grid) -> Self {
        let served: Vec<Served<'_>> = records.iter().filter_map(|record| Served::of(record, grid)).collect();
        let tenants: BTreeMap<&TenantId, usize> = served.iter().map(|served| (served.tenant, 0)).collect();
        let tenants: BTreeMap<&TenantId, usize> = tenants.into_keys().zip(0..).collect();
        let windows = Windows::of(&served, &tenants, grid);
        let end_s = served.iter().map(|served| served.end).fold(0.0, f64::max);
        let tokens: f64 = served.iter().map(|served| served.tokens).sum();
        let diffs: Vec<f64> = windows.iter().map(|window| window.diff(grid)).collect();
        let mean = mean(&diffs);
        let mut outcomes = BTreeMap::new();
        for outcome in records.iter().filter_map(|record| record.outcome) {
            *outcomes.entry(outcome).or_insert(0) += 1;
        }
        let light = light_tenants(records, grid.light);
        let ttft = |keep: &dyn Fn(&Served<'_>) -> bool| Ttft::of(served.iter().filter(|served| keep(served)));
        Self {
            max_diff: diffs.iter().copied().fold(0.0, f64::max),
            avg_diff: mean,
            var_diff: mean_of(diffs.iter().map(|diff| (diff - mean).powi(2))),
            gap: windows.iter().map(Window::gap).fold(0.0, f64::max),
            tokens_per_s: if end_s > 0.0 { tokens / end_s } else { 0.0 },
            end_s,
            outcomes,
            ttft: ttft(&|_| true),
            light_ttft: ttft(&|served| light.contains(&served.tenant)),
            shares: shares(&served, &tenants, 0.0, end_s),
        }
    }

    /// How many requests ended this way.
    #[must_use]
    pub fn ended(&self, outcome: Outcome) -> usize {
        self.outcomes.get(&outcome).copied().unwrap_or_default()
    }
}

/// Each tenant's part of the service given between two moments.
#[must_use]
pub fn shares_between(records: &[Record], grid: &Grid, from: Instant, to: Instant) -> BTreeMap<TenantId, f64> {
    let served: Vec<Served<'_>> = records.iter().filter_map(|record| Served::of(record, grid)).collect();
    let tenants: BTreeMap<&TenantId, usize> = served.iter().map(|served| (served.tenant, 0)).collect();
    shares(&served, &tenants, from.as_secs_f64(), to.as_secs_f64())
}

fn shares(served: &[Served<'_>], tenants: &BTreeMap<&TenantId, usize>, from: f64, to: f64) -> BTreeMap<TenantId, f64> {
    let mut sums: BTreeMap<TenantId, f64> = tenants.keys().map(|tenant| ((*tenant).clone(), 0.0)).collect();
    for served in served {
        if let Some(sum) = sums.get_mut(served.tenant) {
            *sum += served.rate(1e-9) * overlap(from, to, served.first, served.end);
        }
    }
    let total: f64 = sums.values().sum();
    let total = if total > 0.0 { total } else { 1.0 };
    sums.into_iter().map(|(tenant, sum)| (tenant, sum / total)).collect()
}

/// A completed request.
struct Served<'a> {
    tenant: &'a TenantId,
    arrival: f64,
    first: f64,
    end: f64,
    waited: Span,
    service: f64,
    tokens: f64,
}

impl<'a> Served<'a> {
    fn of(record: &'a Record, grid: &Grid) -> Option<Self> {
        if record.outcome != Some(Outcome::Completed) {
            return None;
        }
        let (first, end) = (record.first_token?, record.finished?);
        let (input, output) = (as_f64(record.input), as_f64(record.output));
        Some(Self {
            tenant: &record.tenant,
            arrival: record.arrival.as_secs_f64(),
            first: first.as_secs_f64(),
            end: end.as_secs_f64(),
            waited: first.since(record.arrival),
            service: grid.w_in * input + grid.w_out * output,
            tokens: input + output,
        })
    }

    /// Service a second while it produces, a production shorter than `least` seconds counted as that long.
    fn rate(&self, least: f64) -> f64 {
        self.service / (self.end - self.first).max(least)
    }
}

/// What every tenant received and asked for around one point of the grid.
#[derive(Clone)]
struct Window {
    from: f64,
    to: f64,
    since: f64,
    until: f64,
    received: Vec<f64>,
    demanded: Vec<f64>,
    accumulated: Vec<f64>,
}

struct Windows;

impl Windows {
    fn of(served: &[Served<'_>], tenants: &BTreeMap<&TenantId, usize>, grid: &Grid) -> Vec<Window> {
        let step = (grid.span_s - grid.warmup_s) / f64::from(grid.points);
        let empty = vec![0.0; tenants.len()];
        let mut windows: Vec<Window> = (1..grid.points)
            .map(|point| step * f64::from(point) + grid.warmup_s)
            .map(|middle| Window {
                from: middle - grid.window_s / 2.0,
                to: middle + grid.window_s / 2.0,
                since: grid.warmup_s,
                until: middle,
                received: empty.clone(),
                demanded: empty.clone(),
                accumulated: empty.clone(),
            })
            .collect();
        for served in served.iter().filter(|served| served.end - served.first >= 1e-5) {
            let tenant = tenants[served.tenant];
            for window in &mut windows {
                window.add(tenant, served);
            }
        }
        windows
    }
}

impl Window {
    fn add(&mut self, tenant: usize, served: &Served<'_>) {
        if (self.from..=self.to).contains(&served.arrival) {
            self.demanded[tenant] += served.service;
        }
        let rate = served.rate(0.0);
        self.received[tenant] += rate * overlap(self.from, self.to, served.first, served.end);
        self.accumulated[tenant] += rate * overlap(self.since, self.until, served.first, served.end);
    }

    fn diff(&self, grid: &Grid) -> f64 {
        let best = self.received.iter().copied().fold(0.0, f64::max);
        let lag = |(received, demanded): (&f64, &f64)| (best - received).min((demanded - received).abs());
        self.received.iter().zip(&self.demanded).map(lag).sum::<f64>() / grid.window_s
    }

    fn gap(&self) -> f64 {
        let most = self.accumulated.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let least = self.accumulated.iter().copied().fold(f64::INFINITY, f64::min);
        if most > least { most - least } else { 0.0 }
    }
}

impl Ttft {
    fn of<'a>(served: impl Iterator<Item = &'a Served<'a>>) -> Self {
        let mut waits: Vec<Span> = served.map(|served| served.waited).collect();
        if waits.is_empty() {
            return Self::default();
        }
        waits.sort_unstable();
        let rank = |percent: usize| (waits.len() * percent / 100).min(waits.len() - 1);
        Self {
            p50: Some(waits[rank(50)]),
            p99: Some(waits[rank(99)]),
            max: waits.last().copied(),
            mean_s: Some(mean_of(waits.iter().map(|wait| wait.as_secs_f64()))),
        }
    }
}

/// The tenants with the fewest requests, of equal ones those that came first.
fn light_tenants(records: &[Record], most: usize) -> Vec<&TenantId> {
    let mut counts: BTreeMap<&TenantId, (usize, usize)> = BTreeMap::new();
    for (place, record) in records.iter().enumerate() {
        counts.entry(&record.tenant).or_insert((0, place)).0 += 1;
    }
    let mut tenants: Vec<_> = counts.into_iter().map(|(tenant, order)| (order, tenant)).collect();
    tenants.sort_unstable();
    tenants.into_iter().take(most).map(|(_, tenant)| tenant).collect()
}

fn overlap(from: f64, to: f64, first: f64, end: f64) -> f64 {
    (to.min(end) - from.max(first)).max(0.0)
}

fn mean(values: &[f64]) -> f64 {
    mean_of(values.iter().copied())
}

fn mean_of(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "no run has 2⁵³ requests")]
    let count = values.len().max(1) as f64;
    values.sum::<f64>() / count
}

#[expect(clippy::cast_precision_loss, reason = "no request has 2⁵³ tokens")]
fn as_f64(tokens: Tokens) -> f64 {
    tokens.get() as f64
}

#[cfg(test)]
mod tests {
    use super::{Grid, Measures, shares_between};
    use crate::sim::record::{Outcome, Record};
    use crate::units::{Instant, RequestId, Span, TenantId, Tokens};

    fn served(tenant: &str, arrival: f64, first: f64, end: f64, input: u64, output: u64) -> Record {
        let at = |secs| Some(Instant::from_secs_f64(secs));
        Record {
            id: RequestId::new(0),
            arrival: Instant::from_secs_f64(arrival),
            asked: Instant::from_secs_f64(arrival),
            tenant: TenantId::from(tenant),
            session: None,
            class: None,
            input: Tokens::new(input),
            output: Tokens::new(output),
            outcome: Some(Outcome::Completed),
            reason: None,
            decided: at(arrival),
            dispatched: at(arrival),
            first_token: at(first),
            finished: at(end),
            predicted: None,
            charged: None,
            retry_after: None,
            heeded: false,
        }
    }

    fn close(left: f64, right: f64) -> bool {
        (left - right).abs() < 1e-6 * right.abs().max(1.0)
    }

    #[test]
    fn service_is_spread_over_production_and_lag_counts_as_far_as_there_was_demand() {
        // One request of 6,000 virtual tokens over the whole 600 s: 10 a second, in every window. Another
        // asks for 300 at 300 s and gets all of it within its window.
        let grid = Grid::default();
        let records = [served("a", 0.0, 0.0, 600.0, 0, 3_000), served("b", 300.0, 300.0, 310.0, 100, 100)];
        let measures = Measures::of(&records, &grid);
        // Around then, b received as much as it asked for in each window that holds all of it, so its lag is
        // zero there and the rest of a's demand never was in the window: |0 − 600| and max − own = 0 for a.
        // Where b has nothing it asked for nothing.
        assert!(close(measures.gap, 10.0 * (571.5 - 30.0) - 300.0), "{}", measures.gap);
        assert!(measures.max_diff < 1e-9, "{measures:?}");
        assert!(close(measures.shares[&TenantId::from("b")], 300.0 / 6_300.0));
        assert!(close(measures.tokens_per_s, 3_200.0 / 600.0));
    }

    #[test]
    fn an_unserved_demand_is_a_difference() {
        // b asks at 58.5 s and is served an hour later; a receives 10 a second. In the windows around 58.5 s
        // and 87 s (28.5–88.5 and 57–117) b lags by min(600, 300) / 60 = 5.
        let records = [served("a", 0.0, 0.0, 600.0, 0, 3_000), served("b", 58.5, 4_000.0, 4_010.0, 100, 100)];
        let measures = Measures::of(&records, &Grid::default());
        assert!(close(measures.max_diff, 5.0), "{}", measures.max_diff);
        assert!(close(measures.avg_diff, 2.0 * 5.0 / 19.0));
        assert_eq!(measures.ttft.p99, Some(Span::from_secs_f64(4_000.0 - 58.5)));
        assert_eq!(measures.ttft.p50, Some(Span::from_secs_f64(4_000.0 - 58.5)), "rank int(0.5 × 2), as published");
    }

    #[test]
    fn shares_of_a_part_of_the_run_count_only_that_part() {
        let records = [served("a", 0.0, 0.0, 10.0, 0, 100), served("b", 0.0, 5.0, 15.0, 0, 100)];
        let at = Instant::from_secs_f64;
        let shares = shares_between(&records, &Grid::default(), at(0.0), at(10.0));
        assert!(close(shares[&TenantId::from("a")], 2.0 / 3.0));
    }

    #[test]
    fn a_run_in_which_nothing_completed_has_measures_too() {
        let refused = Record { outcome: Some(Outcome::Refused), ..served("a", 0.0, 0.0, 0.0, 1, 1) };
        let measures = Measures::of(&[refused], &Grid::default());
        assert_eq!((measures.ended(Outcome::Refused), measures.ended(Outcome::Completed)), (1, 0));
        assert!(measures.avg_diff.abs() < 1e-12 && measures.ttft.p50.is_none() && measures.shares.is_empty());
    }
}
