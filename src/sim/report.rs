//! What a run comes to: `summary.json` for programs, an aligned page for people.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::units::{Instant, Span, TenantId, VirtualTokens};

use super::goodput::{Goodput, Since};
use super::measure::{Grid, Measures, Ttft};
use super::record::{Outcome, Record};
use super::world::{Place, Run, Setup};

/// The most tenants given a line of their own.
const MOST_LINES: usize = 30;

/// A run with its measures.
#[derive(Debug)]
pub struct Report<'a> {
    setup: &'a Setup,
    run: &'a Run,
    grid: Grid,
    measures: Measures,
    objective: Option<Span>,
}

impl<'a> Report<'a> {
    /// Measures a run, with the policy's weights of input and output.
    #[must_use]
    pub fn new(setup: &'a Setup, run: &'a Run) -> Self {
        let weights = setup.policy.cost.weights;
        let grid = Grid { w_in: weights.input.as_f64(), w_out: weights.output.as_f64(), ..Grid::default() };
        let measures = Measures::of(&run.records, &grid);
        Self { setup, run, grid, measures, objective: None }
    }

    /// The same, with the answers counted that came whole within so long of arriving.
    #[must_use]
    pub fn with_objective(self, objective: Option<Span>) -> Self {
        Self { objective, ..self }
    }

    /// Whole answers a second within the objective, over the time in which requests arrived.
    fn goodput(&self) -> Option<f64> {
        let arrivals = || self.run.records.iter().map(|record| record.arrival);
        let (first, last) = (arrivals().min()?, arrivals().max()?);
        Some(Goodput::of(&self.run.records, self.objective?, Since::Arrival).between(first, last))
    }

    /// The measures.
    #[must_use]
    pub fn measures(&self) -> &Measures {
        &self.measures
    }

    /// Whether the books are in order at the end, in exact integers: nothing is held any more, and what was
    /// settled is what the single requests were charged.
    #[must_use]
    pub fn books_are_exact(&self) -> bool {
        let charged: VirtualTokens = self.run.records.iter().filter_map(|record| record.charged).sum();
        self.run.books.live() == VirtualTokens::ZERO && self.run.books.settled == charged
    }

    /// The summary for programs.
    #[must_use]
    pub fn summary(&self) -> Value {
        let Self { run, grid, measures, .. } = self;
        let ended = |outcome| measures.ended(outcome);
        let shares: BTreeMap<&str, f64> = measures.shares.iter().map(|(name, share)| (name.as_str(), *share)).collect();
        let seconds = |span: Option<Span>| span.map(Span::as_secs_f64);
        let books = &run.books;
        json!({
            "requests": run.records.len(),
            "completed": ended(Outcome::Completed),
            "refused": ended(Outcome::Refused),
            "expired": ended(Outcome::Expired),
            "aborted": ended(Outcome::Aborted),
            "reasons": reasons(&run.records),
            "tokens_per_s": measures.tokens_per_s,
            "goodput_per_s": self.goodput(),
            "end_s": measures.end_s,
            "avg_diff": measures.avg_diff,
            "max_diff": measures.max_diff,
            "var_diff": measures.var_diff,
            "gap": measures.gap,
            "shares": shares,
            "ttft_p50": seconds(measures.ttft.p50),
            "ttft_p99": seconds(measures.ttft.p99),
            "light_ttft_p50": seconds(measures.light_ttft.p50),
            "light_ttft_p99": seconds(measures.light_ttft.p99),
            "light_ttft_mean": measures.light_ttft.mean_s,
            "engine_queue_share": run.engine_queue_share,
            "prediction": self.prediction(),
            "conservation": {
                "reserved": books.reserved.as_f64(),
                "settled": books.settled.as_f64(),
                "refunded": books.refunded.as_f64(),
                "live": books.live().as_f64(),
                "exact": self.books_are_exact(),
            },
            "measured": {
                "window_s": grid.window_s,
                "span_s": grid.span_s,
                "warmup_s": grid.warmup_s,
                "points": grid.points,
                "light_tenants": grid.light,
            },
            "admission": match self.setup.place { Place::Gateway => "gateway", Place::Engine => "engine", Place::Gradient2 => "gradient2" },
            "seed": self.setup.seed,
        })
    }

    fn prediction(&self) -> Value {
        let score = |score: &crate::costing::Score| {
            json!({
                "count": score.count,
                "mean_absolute_error": score.mean_absolute_error,
                "bias": score.bias,
                "output_p50": score.p50.get(),
                "output_p90": score.p90.get(),
                "output_p99": score.p99.get(),
            })
        };
        let accuracy = &self.run.accuracy;
        let models: BTreeMap<&str, Value> =
            accuracy.models.iter().map(|(model, of)| (model.as_str(), score(of))).collect();
        json!({ "overall": score(&accuracy.overall), "models": models })
    }

    /// The page for people.
    #[must_use]
    pub fn text(&self) -> String {
        let mut page = self.overview();
        page.push('\n');
        page.push_str(&table(&self.tenant_lines()));
        page
    }

    fn overview(&self) -> String {
        let Self { run, measures, .. } = self;
        let score = &run.accuracy.overall;
        let outcomes: Vec<String> =
            Outcome::ALL.iter().map(|outcome| format!("{} {}", measures.ended(*outcome), outcome.name())).collect();
        let reasons: Vec<String> =
            reasons(&run.records).iter().map(|(reason, count)| format!("{count} {reason}")).collect();
        let mut lines = vec![
            ("requests", format!("{}: {}", run.records.len(), outcomes.join(", "))),
            ("throughput", format!("{:.1} tokens/s until {:.1} s", measures.tokens_per_s, measures.end_s)),
            (
                "difference",
                format!("{:.1} average, {:.1} at most, virtual tokens/s", measures.avg_diff, measures.max_diff),
            ),
            ("gap", format!("{:.0} virtual tokens", measures.gap)),
            ("first token", ttft(&measures.ttft)),
            ("of the light", ttft(&measures.light_ttft)),
            (
                "engine queue",
                format!("{:.1} % of what is in flight waits in the engine", run.engine_queue_share * 100.0),
            ),
            (
                "prediction",
                format!("off by {:.0} tokens on average, bias {:+.0}", score.mean_absolute_error, score.bias),
            ),
            ("books", self.books()),
        ];
        if let (Some(goodput), Some(objective)) = (self.goodput(), self.objective) {
            lines.insert(2, ("goodput", format!("{goodput:.2} whole answers/s within {objective} of arriving")));
        }
        if !reasons.is_empty() {
            lines.insert(1, ("reasons", reasons.join(", ")));
        }
        let mut page = String::new();
        for (what, says) in lines {
            writeln!(page, "{what:<13}{says}").expect("writing to a string never fails");
        }
        for fault in &run.faults {
            writeln!(page, "FAULT        {fault}").expect("writing to a string never fails");
        }
        page
    }

    fn books(&self) -> String {
        let books = &self.run.books;
        let verdict = if self.books_are_exact() { "exact" } else { "NOT EXACT" };
        format!(
            "reserved {} = settled {} + refunded {} + live {}: {verdict}",
            books.reserved,
            books.settled,
            books.refunded,
            books.live()
        )
    }

    /// One line a tenant, those with most service first.
    fn tenant_lines(&self) -> Vec<[String; 9]> {
        let mut tenants: BTreeMap<&TenantId, Tally> = BTreeMap::new();
        for record in &self.run.records {
            tenants.entry(&record.tenant).or_default().add(record);
        }
        let share = |tenant| self.measures.shares.get(tenant).copied().unwrap_or_default();
        let mut order: Vec<_> = tenants.into_iter().collect();
        order.sort_by(|a, b| share(b.0).total_cmp(&share(a.0)).then_with(|| a.0.cmp(b.0)));
        let header = ["tenant", "requests", "done", "refused", "expired", "aborted", "share", "ttft p50", "ttft p99"];
        let mut lines = vec![header.map(str::to_owned)];
        let hidden = order.len().saturating_sub(MOST_LINES);
        lines.extend(order.into_iter().take(MOST_LINES).map(|(tenant, tally)| tally.line(tenant, share(tenant))));
        if hidden > 0 {
            let mut more = [const { String::new() }; 9];
            more[0] = format!("and {hidden} more");
            lines.push(more);
        }
        lines
    }
}

/// What became of one tenant's requests.
#[derive(Default)]
struct Tally {
    requests: usize,
    outcomes: BTreeMap<Outcome, usize>,
    waits: Vec<Span>,
}

impl Tally {
    fn add(&mut self, record: &Record) {
        self.requests += 1;
        if let Some(outcome) = record.outcome {
            *self.outcomes.entry(outcome).or_default() += 1;
        }
        if let (Some(Outcome::Completed), Some(first)) = (record.outcome, record.first_token) {
            self.waits.push(Instant::since(first, record.arrival));
        }
    }

    fn line(mut self, tenant: &TenantId, share: f64) -> [String; 9] {
        self.waits.sort_unstable();
        let rank = |percent: usize| {
            let at = (self.waits.len() * percent / 100).min(self.waits.len().saturating_sub(1));
            self.waits.get(at).map_or_else(|| "-".to_owned(), |wait| format!("{:.2} s", wait.as_secs_f64()))
        };
        let ended = |outcome| self.outcomes.get(&outcome).copied().unwrap_or_default().to_string();
        [
            shortened(tenant.as_str()),
            self.requests.to_string(),
            ended(Outcome::Completed),
            ended(Outcome::Refused),
            ended(Outcome::Expired),
            ended(Outcome::Aborted),
            format!("{:.1} %", share * 100.0),
            rank(50),
            rank(99),
        ]
    }
}

/// A name short enough for a column.
pub(super) fn shortened(name: &str) -> String {
    const MOST: usize = 24;
    if name.chars().count() <= MOST {
        return name.to_owned();
    }
    name.chars().take(MOST - 1).chain(['…']).collect()
}

fn reasons(records: &[Record]) -> BTreeMap<&'static str, usize> {
    let mut reasons = BTreeMap::new();
    for reason in records.iter().filter_map(|record| record.reason) {
        *reasons.entry(reason).or_insert(0) += 1;
    }
    reasons
}

fn ttft(ttft: &Ttft) -> String {
    match (ttft.p50, ttft.p99, ttft.max) {
        (Some(p50), Some(p99), Some(max)) => {
            let [p50, p99, max] = [p50, p99, max].map(Span::as_secs_f64);
            format!("{p50:.2} s median, {p99:.2} s p99, {max:.2} s at most")
        }
        _ => "none".to_owned(),
    }
}

/// Columns as wide as their widest cell, the first to the left and the rest to the right.
fn table<const N: usize>(lines: &[[String; N]]) -> String {
    let widths: [usize; N] =
        std::array::from_fn(|column| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or_default());
    let mut page = String::new();
    for line in lines {
        let cells = line.iter().zip(widths).enumerate().map(|(column, (cell, width))| {
            if column == 0 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        page.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        page.push('\n');
    }
    page
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{Place, Report, Setup, shortened, table};
    use crate::policy;
    use crate::sim::{Demand, EngineSpec, Guess, Keep};
    use crate::units::{Instant, TenantId, Tokens};

    #[test]
    fn the_page_names_why_requests_were_aborted() {
        let policy = policy::parse("p", "version: 1\n", |_: &str| panic!("no keys")).expect("valid");
        let setup = Setup {
            policy: Arc::new(policy),
            engine: EngineSpec::default(),
            place: Place::Gateway,
            guess: Guess::default(),
            seed: 1,
            keep: Keep::Records,
        };
        let larger_than_memory = Tokens::new(900_000);
        let demand = Demand::plain(Instant::EPOCH, TenantId::from("a"), larger_than_memory, Tokens::new(1));
        let run = setup.run(&[demand], |_| {});
        let page = Report::new(&setup, &run).text();
        assert!(page.contains("1 aborted") && page.contains("reasons      1 engine_rejected"), "{page}");
    }

    #[test]
    fn columns_line_up_whatever_is_in_them() {
        let lines = [["a", "1"], ["ßeta", "1000"], ["", ""]].map(|line| line.map(str::to_owned));
        assert_eq!(table(&lines), "a        1\nßeta  1000\n\n");
    }

    #[test]
    fn a_long_name_is_cut_at_a_character() {
        assert_eq!(shortened("short"), "short");
        assert_eq!(shortened(&"ß".repeat(30)).chars().count(), 24);
    }
}
