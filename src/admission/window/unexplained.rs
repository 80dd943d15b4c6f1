//! How much of an answer's time its length does not explain.
//!
//! *Decides* nothing; estimates, for answers that come in one piece, which part of their time was spent waiting for the
//! engine. *Source:* ordinary least squares of time on output tokens: an answer's time is `wait + output × step`, so the
//! line through recent answers meets the axis at the wait. *Formula*, over at most 64 recent answers, older ones fading
//! by eighths:
//!
//! ```text
//! step = cov(output, time) / var(output)     wait = mean time - step · mean output     share = wait / mean time
//! ```
//!
//! Where lengths hardly differ (a standard deviation below a quarter of the mean) the line says nothing; then what an
//! answer takes for a token is held against the least it ever took, and share is what exceeds three times that. *Bound:*
//! the share is between nothing and everything; the least rises by a 4,096th an answer while it is not
//! exceeded twice, so that what was fast once is forgotten. *At start*, for the first 16 answers, it is nothing. *Never* learns from an answer without output or longer
//! than a million tokens or a day. Prefill counts as wait, which is why the window allows for some.

use crate::units::Span;

use super::adapt::Whole;

const MICRO: i128 = 1_000_000;
const MOST: i128 = 64;
const FEW: i128 = 16;
const MOST_OUTPUT: u64 = 1_000_000;
const MOST_TIME: Span = Span::from_secs(86_400);
/// How much slower than at its fastest an engine is when it is full.
const SLOWER: i128 = 3;

/// Sums over recent answers; time in microseconds.
#[derive(Debug, Default)]
pub(super) struct Unexplained {
    count: i128,
    output: i128,
    time: i128,
    output_output: i128,
    output_time: i128,
    /// The least time a token took, in nanoseconds.
    least: Option<i128>,
}

impl Unexplained {
    pub(super) fn learn(&mut self, answer: Whole) {
        let output = answer.output.get();
        if output == 0 || output > MOST_OUTPUT || answer.lasted > MOST_TIME {
            return;
        }
        if self.count == MOST {
            let sums =
                [&mut self.count, &mut self.output, &mut self.time, &mut self.output_output, &mut self.output_time];
            for sum in sums {
                *sum = *sum / 8 * 7;
            }
        }
        let (output, time) = (i128::from(output), i128::from(answer.lasted.as_nanos() / 1_000));
        self.count += 1;
        self.output += output;
        self.time += time;
        self.output_output += output * output;
        self.output_time += output * time;
        if self.count >= FEW {
            let pace = self.time * 1_000 / self.output;
            self.least = Some(match self.least {
                Some(least) if pace > 2 * least => least,
                Some(least) => pace.min(least + least / 4_096),
                None => pace,
            });
        }
    }

    /// The share of an answer's time that is not explained, in millionths.
    pub(super) fn share(&self) -> u64 {
        if self.count < FEW || self.time == 0 {
            return 0;
        }
        let variance = self.count * self.output_output - self.output * self.output;
        let share = if 16 * variance >= self.output * self.output {
            let covariance = (self.count * self.output_time - self.output * self.time).max(0);
            MICRO - covariance * self.output / variance * MICRO / self.time
        } else {
            let pace = self.time * 1_000 / self.output;
            let least = self.least.unwrap_or(pace);
            MICRO - SLOWER * least * MICRO / pace.max(1)
        };
        u64::try_from(share.clamp(0, MICRO)).unwrap_or(0)
    }
}
