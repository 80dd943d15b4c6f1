//! What one run under overload showed, from the records alone.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::Serialize;
use tallygate::sim::Goodput;
use tallygate::sim::oracle::{Bid, Verdict, Wrong, refusals};
use tallygate::units::{Instant, Span, TenantId, Tokens};

use crate::record::{Outcome, Record};
use crate::report::Summary;
use crate::scenario::Scenario;

/// Refusals that say others were ahead, by the code of the gateway and of Envoy's adaptive concurrency.
const FOR_THE_QUEUE: [&str; 3] = ["tallygate_queue_full", "tallygate_wait_too_long", "tallygate_expired"];
/// Goodput must be at least this part of its peak.
const LEAST_GOODPUT: f64 = 0.95;
/// And over any minute at least this part.
const LEAST_OF_A_MINUTE: f64 = 0.9;
const WINDOW: Span = Span::from_secs(60);
/// Of those who come back when told, at least this part is let in, and at most this comes within a tenth of a second.
const LEAST_LET_IN: f64 = 0.9;
const MOST_AT_ONCE: f64 = 0.05;
/// A refused tenant may be so far below its share of any minute, requests coming at random and whole.
const MOST_BELOW: f64 = 0.2;
/// Refusals are decided within this, at the median.
const REFUSED_WITHIN_MS: f64 = 1.0;
/// Of what the steady tenants ask, this part must be good.
const LEAST_STEADY: f64 = 0.98;
/// How long the gateway's policy lets anybody wait.
const PATIENCE: Span = Span::from_secs(5);

/// A run to be judged.
pub(super) struct Judge<'a> {
    pub(super) scenario: &'a Scenario,
    pub(super) records: &'a [Record],
    pub(super) summary: &'a Summary,
    /// Used by the generator with the engine, and by what stood before it.
    pub(super) cores: (f64, f64),
}

/// What it showed.
#[derive(Debug, Serialize)]
pub(super) struct Found {
    /// Requests a second, after the warm-up like everything here.
    pub(super) offered_per_s: f64,
    /// Answers a second that came whole and in time.
    pub(super) good_per_s: f64,
    /// The fewest of these over any minute.
    pub(super) least_good_per_s: f64,
    /// From asking to the first token of what was let through, the 99th percentile.
    pub(super) first_token_p99_s: f64,
    /// The objective for it.
    pub(super) first_token_within_s: f64,
    /// The part let through.
    pub(super) admitted: f64,
    /// Of what the steady tenants asked, the part that was good.
    pub(super) steady_good: f64,
    /// From sending to the whole refusal, at the median, as the client sees it.
    pub(super) refused_p50_ms: Option<f64>,
    /// How far below its share of any minute a tenant was that was refused for the queue while another was above.
    pub(super) below_share: f64,
    /// Windows of a minute with a refusal for the queue in them.
    pub(super) windows: usize,
    /// Of the tries that came when told, the part that was let in, where there were any.
    pub(super) let_in_on_return: Option<f64>,
    /// The largest part of these that came within one tenth of a second.
    pub(super) returns_at_once: Option<f64>,
    /// The most requests under way at once, each with a connection.
    pub(super) most_under_way: usize,
    /// How late the generator was, at the 99th percentile.
    pub(super) late_p99_ms: f64,
    /// CPUs used by the generator and the engine, which share a process.
    pub(super) generator_cores: f64,
    /// CPUs used by what stood before the engine.
    pub(super) front_cores: f64,
    /// What else became of requests, by name.
    pub(super) ended: BTreeMap<&'static str, usize>,
}

impl Judge<'_> {
    pub(super) fn found(&self) -> Found {
        let (from, until) = (self.scenario.warm_up.0, self.scenario.duration.0);
        let inside: Vec<&Record> =
            self.records.iter().filter(|record| (from..until).contains(&record.scheduled)).collect();
        let seconds = (until - from).as_secs_f64();
        let within = self.scenario.answer_within.0;
        let whole = self.records.iter().filter(|record| record.outcome == Outcome::Completed);
        let answers = whole.filter_map(|record| record.ended.map(|end| (at(record.scheduled), at(end))));
        let goodput = Goodput::of_answers(answers, within.into());
        let steady: BTreeSet<&str> =
            self.scenario.clients.iter().filter(|client| client.steady).map(|client| &*client.tenant).collect();
        let asked = inside.iter().filter(|record| steady.contains(&*record.sender.tenant));
        let (good, bad): (Vec<&&Record>, Vec<&&Record>) = asked.partition(|record| is_good(record, within));
        let wrong = self.wrong(&inside);
        let back: Vec<&&Record> = inside.iter().filter(|record| record.heeded).collect();
        let mut ended = BTreeMap::new();
        inside.iter().for_each(|record| *ended.entry(record.outcome.name()).or_insert(0) += 1);
        Found {
            offered_per_s: ratio(inside.len(), seconds),
            good_per_s: goodput.between(at(from), at(until)),
            least_good_per_s: goodput.least(at(from), at(until), WINDOW),
            first_token_p99_s: rank(inside.iter().filter_map(|record| first_token(record)), 99).unwrap_or_default(),
            first_token_within_s: self.scenario.first_token_within.0.as_secs_f64(),
            admitted: part(inside.iter().filter(|record| let_through(record)).count(), inside.len()).unwrap_or(1.0),
            steady_good: part(good.len(), good.len() + bad.len()).unwrap_or(1.0),
            refused_p50_ms: rank(inside.iter().filter_map(|record| refused_ms(record)), 50),
            below_share: wrong.part,
            windows: wrong.windows,
            let_in_on_return: part(back.iter().filter(|record| let_through(record)).count(), back.len()),
            returns_at_once: part(most_at_once(&back), back.len()),
            most_under_way: self.most_under_way(),
            late_p99_ms: self.summary.generator_late_ms.p99.map_or(0.0, |late| late.value),
            generator_cores: self.cores.0,
            front_cores: self.cores.1,
            ended,
        }
    }

    fn wrong(&self, inside: &[&Record]) -> Wrong {
        let bids: Vec<Bid> = inside.iter().filter_map(|record| bid(record)).collect();
        refusals(&bids, PATIENCE, Span::from_secs(60), Span::from_secs(1))
    }

    fn most_under_way(&self) -> usize {
        let sent = self.records.iter().filter_map(|record| record.sent.map(|sent| (sent, 1_i64)));
        let ended = self.records.iter().filter_map(|record| record.ended.map(|ended| (ended, -1)));
        let mut changes: Vec<(Duration, i64)> = sent.chain(ended).collect();
        changes.sort_unstable();
        let (mut now, mut most) = (0, 0);
        for (_, by) in changes {
            now += by;
            most = most.max(now);
        }
        usize::try_from(most).unwrap_or_default()
    }
}

fn at(time: Duration) -> Instant {
    Instant::EPOCH + Span::from(time)
}

fn is_good(record: &Record, within: Duration) -> bool {
    let in_time = record.ended.is_some_and(|end| end.saturating_sub(record.scheduled) <= within);
    record.outcome == Outcome::Completed && in_time
}

fn let_through(record: &Record) -> bool {
    !matches!(record.outcome, Outcome::Refused { .. } | Outcome::NotSent)
}

/// From asking to the first token; as long as it lasted where a request let through never got one.
fn first_token(record: &Record) -> Option<f64> {
    let came = record.first_token.or(record.ended.filter(|_| let_through(record)))?;
    Some(came.saturating_sub(record.scheduled).as_secs_f64())
}

fn refused_ms(record: &Record) -> Option<f64> {
    let (Outcome::Refused { .. }, Some(sent), Some(ended)) = (&record.outcome, record.sent, record.ended) else {
        return None;
    };
    Some(ended.saturating_sub(sent).as_secs_f64() * 1e3)
}

fn bid(record: &Record) -> Option<Bid> {
    let verdict = match &record.outcome {
        Outcome::Refused { status, code } => {
            // Envoy's own refusal of too many at once has no code.
            let queue = FOR_THE_QUEUE.contains(&code.as_str()) || *status == 503;
            queue.then_some(Verdict::RefusedForTheQueue)?
        }
        Outcome::NotSent => return None,
        _ => Verdict::LetThrough,
    };
    let decided = match verdict {
        Verdict::RefusedForTheQueue => record.ended?,
        Verdict::LetThrough => record.sent? + record.queue.unwrap_or_default(),
    };
    Some(Bid {
        asked: at(record.scheduled),
        at: at(decided),
        tenant: TenantId::from(&*record.sender.tenant),
        weight: 1.0,
        service: Tokens::new(record.input + 2 * u64::from(record.wanted)),
        verdict,
    })
}

fn most_at_once(records: &[&&Record]) -> usize {
    let mut tenths: BTreeMap<u128, usize> = BTreeMap::new();
    records.iter().for_each(|record| *tenths.entry(record.scheduled.as_millis() / 100).or_default() += 1);
    tenths.into_values().max().unwrap_or_default()
}

fn rank(values: impl Iterator<Item = f64>, percent: usize) -> Option<f64> {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_by(f64::total_cmp);
    sorted.get((sorted.len() * percent / 100).min(sorted.len().saturating_sub(1))).copied()
}

fn part(count: usize, of: usize) -> Option<f64> {
    (of > 0).then(|| ratio(count, ratio(of, 1.0)))
}

fn ratio(count: usize, of: f64) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX)) / of
}

impl Found {
    /// Above the lines.
    pub(super) const HEAD: &str = "way-load                    offered/s  good/s  of cap.  least min.  first p99  \
        admitted  steady good  refused p50  below share  under way  late p99  cores: generator+engine, front";

    pub(super) fn line(&self, name: &str, capacity: f64) -> String {
        let percent = |part: f64| format!("{:.1} %", part * 100.0);
        let of = |per_s: f64| if capacity > 0.0 { percent(per_s / capacity) } else { "-".to_owned() };
        let refused = self.refused_p50_ms.map_or_else(|| "-".to_owned(), |ms| format!("{ms:.2} ms"));
        let returns = self.let_in_on_return.map(|part| format!("; let in on return {}", percent(part)));
        let at_once = self.returns_at_once.map(|part| format!(", at once {}", percent(part)));
        format!(
            "{name:<28}{:>9.2}{:>8.2}{:>9}{:>12}{:>9.2} s{:>10}{:>13}{:>13}{:>13}{:>11}{:>7.0} ms  {:.2}, {:.2}{}{}",
            self.offered_per_s,
            self.good_per_s,
            of(self.good_per_s),
            of(self.least_good_per_s),
            self.first_token_p99_s,
            percent(self.admitted),
            percent(self.steady_good),
            refused,
            percent(self.below_share),
            self.most_under_way,
            self.late_p99_ms,
            self.generator_cores,
            self.front_cores,
            returns.unwrap_or_default(),
            at_once.unwrap_or_default(),
        )
    }

    /// Which of the claims do not hold.
    pub(super) fn broken(&self, capacity: f64) -> Vec<String> {
        let offered = self.offered_per_s / capacity;
        let good = self.good_per_s / capacity;
        let refused = self.refused_p50_ms.unwrap_or_default();
        let claims = [
            (good >= LEAST_GOODPUT, format!("goodput is {good:.3} of the capacity")),
            (
                self.first_token_p99_s <= self.first_token_within_s,
                format!(
                    "the first token's p99 is {:.2} s, not within {}",
                    self.first_token_p99_s, self.first_token_within_s
                ),
            ),
            (refused < REFUSED_WITHIN_MS, format!("a refusal takes {refused:.2} ms at the median")),
            (self.below_share <= MOST_BELOW, format!("a tenant was refused {:.3} below its share", self.below_share)),
            (
                self.let_in_on_return.is_none_or(|part| part >= LEAST_LET_IN),
                format!("{:.3} of those who came back when told were let in", self.let_in_on_return.unwrap_or(1.0)),
            ),
            (
                self.returns_at_once.is_none_or(|part| part <= MOST_AT_ONCE),
                format!("{:.3} came back within a tenth of a second", self.returns_at_once.unwrap_or(0.0)),
            ),
            (
                self.least_good_per_s / capacity >= LEAST_OF_A_MINUTE,
                format!("goodput fell to {:.3} of the capacity in a minute", self.least_good_per_s / capacity),
            ),
            (self.steady_good >= LEAST_STEADY, format!("{:.3} of the steady tenants' are good", self.steady_good)),
        ];
        let broken = claims.into_iter().filter(|(holds, _)| !holds);
        broken.map(|(_, what)| format!("at {offered:.1} times the capacity: {what}")).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::{bid, first_token, let_through, refused_ms};
    use crate::plan::{Sender, Shot};
    use crate::record::{Outcome, Record};

    fn record(outcome: Outcome) -> Record {
        let sender = Arc::new(Sender::plain("a".into(), None));
        let shot = Shot { at: Duration::from_secs(10), sender, input: 10, output: 5, attempt: 0 };
        let (sent, ended) = (Some(shot.at + Duration::from_millis(1)), Some(shot.at + Duration::from_millis(3)));
        Record { outcome, sent, ended, ..Record::new(&shot, true) }
    }

    #[test]
    fn refusals_are_timed_and_only_those_for_the_queue_are_held_against_others() {
        let refused = |status, code: &str| record(Outcome::Refused { status, code: code.into() });
        let queue = refused(429, "tallygate_queue_full");
        assert!((refused_ms(&queue).expect("refused") - 2.0).abs() < 1e-9);
        assert!(!let_through(&queue) && first_token(&queue).is_none());
        assert_eq!(bid(&queue).map(|bid| bid.service.get()), Some(20));
        assert!(bid(&refused(503, "none")).is_some(), "adaptive concurrency");
        assert!(bid(&refused(429, "none")).is_none(), "a rate says nothing of others");
    }

    #[test]
    fn who_gave_up_had_been_let_through_and_waited_as_long_as_it_did() {
        let gave_up = record(Outcome::GaveUp);
        assert!(let_through(&gave_up));
        assert!((first_token(&gave_up).expect("waited") - 0.003).abs() < 1e-9);
    }
}
