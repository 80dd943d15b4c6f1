//! Goodput: whole answers a second that came while they were still wanted.
//!
//! An answer is *good* when all of it came within the objective; half an answer, or one that comes when nobody waits
//! for it any more, was work for nothing. It counts when it ends. The objective runs from the request's arrival, as a
//! client's own timeout does, or from when its client first asked, if it was refused and came back. Throughput stays high through a collapse; goodput does not, which is why overload is judged
//! by it. The least goodput over any window of a length is the least over all windows of that length that lie between
//! two moments, wherever they begin.

use crate::units::{Instant, Span};

use super::record::{Outcome, Record};

/// From when the objective runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Since {
    /// The arrival of the try that was answered.
    Arrival,
    /// The arrival of the first try.
    FirstAsked,
}

/// The moments at which good answers ended, in order.
#[derive(Clone, Debug)]
pub struct Goodput {
    ends: Vec<Instant>,
}

impl Goodput {
    /// Of a run, with this objective to the end of the answer.
    #[must_use]
    pub fn of(records: &[Record], objective: Span, since: Since) -> Self {
        let completed = records.iter().filter(|record| record.outcome == Some(Outcome::Completed));
        let from = |record: &Record| match since {
            Since::Arrival => record.arrival,
            Since::FirstAsked => record.asked,
        };
        let good = completed.filter_map(|record| record.finished.map(|end| (from(record), end)));
        Self::of_answers(good, objective)
    }

    /// Of answers that came whole: from when each one's objective runs, and when it ended.
    pub fn of_answers(answers: impl Iterator<Item = (Instant, Instant)>, objective: Span) -> Self {
        let good = answers.filter(|(from, end)| end.since(*from) <= objective);
        let mut ends: Vec<Instant> = good.map(|(_, end)| end).collect();
        ends.sort_unstable();
        Self { ends }
    }

    /// Good answers a second, of those that ended between two moments.
    #[must_use]
    pub fn between(&self, from: Instant, until: Instant) -> f64 {
        per_second(self.count(from, until), until.since(from))
    }

    /// The least good answers a second over any window of this length between two moments; those over the whole time
    /// where it is shorter than the window.
    #[must_use]
    pub fn least(&self, from: Instant, until: Instant, window: Span) -> f64 {
        if until.since(from) <= window {
            return self.between(from, until);
        }
        // The count falls only where an answer leaves the window at its start, so these starts suffice.
        let after_each = self.ends.iter().map(|end| *end + Span::from_nanos(1));
        let starts = std::iter::once(from).chain(after_each).filter(|start| *start >= from && *start + window <= until);
        let last = Instant::EPOCH + until.since(Instant::EPOCH).saturating_sub(window);
        let counts = starts.chain([last]).map(|start| self.count(start, start + window));
        per_second(counts.min().unwrap_or_default(), window)
    }

    fn count(&self, from: Instant, until: Instant) -> usize {
        let before = |at: Instant| self.ends.partition_point(|end| *end < at);
        before(until).saturating_sub(before(from))
    }
}

fn per_second(count: usize, span: Span) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX)) / span.as_secs_f64().max(1e-9)
}

#[cfg(test)]
mod tests {
    use super::Goodput;
    use crate::units::{Instant, Span};

    fn at(secs: f64) -> Instant {
        Instant::from_secs_f64(secs)
    }

    fn goodput(answers: &[(f64, f64)]) -> Goodput {
        Goodput::of_answers(answers.iter().map(|(asked, end)| (at(*asked), at(*end))), Span::from_secs(10))
    }

    #[test]
    fn only_whole_answers_within_the_objective_count_at_their_end() {
        let goodput = goodput(&[(0.0, 10.0), (0.0, 10.1), (5.0, 12.0)]);
        assert!((goodput.between(at(0.0), at(20.0)) - 0.1).abs() < 1e-9);
        assert!((goodput.between(at(10.0), at(12.0)) - 0.5).abs() < 1e-9, "the end is not in it");
    }

    #[test]
    fn the_least_window_is_found_wherever_it_begins() {
        // One a second, but for a gap from 5 to 9.
        let answers: Vec<(f64, f64)> = (0..20)
            .filter(|second| !(6..9).contains(second))
            .map(|second| (f64::from(second), f64::from(second)))
            .collect();
        let goodput = goodput(&answers);
        let least = |window| goodput.least(at(0.0), at(20.0), Span::from_secs_f64(window));
        assert!(least(3.5) < 1e-9, "just after 5 until just before 9");
        assert!((least(5.0) - 0.2).abs() < 1e-9);
        assert!((least(100.0) - 17.0 / 20.0).abs() < 1e-9, "the window is cut to what there is");
        // A gap at the end counts as well.
        let ends_early = self::goodput(&[(0.0, 0.0), (1.0, 1.0)]);
        assert!(ends_early.least(at(0.0), at(4.0), Span::from_secs(2)) < 1e-9);
    }
}
