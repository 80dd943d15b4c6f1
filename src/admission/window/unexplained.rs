//! How much of an answer's time its length does not explain.
//!
//! *Decides* nothing; estimates, for answers that come in one piece, which part of their time was spent waiting for the
//! engine. *Source:* ordinary least squares of time on input and output tokens: an answer's time is
//! `wait + input × prefill + output × step`, so the plane through recent answers meets the axis at the wait. *Formula*,
//! over at most 64 recent answers, older ones fading by eighths, `S` being centred sums of products of input i, output o
//! and time t:
//!
//! ```text
//! step    = (S_ot S_ii - S_it S_io) / (S_oo S_ii - S_io²)       prefill = (S_it S_oo - S_ot S_io) / (the same)
//! share   = (mean t - step · mean o - prefill · mean i) / mean t
//! ```
//!
//! Input is left out where it hardly differs or goes with output (a squared correlation above 15/16). Where lengths of
//! output hardly differ (a standard deviation below a quarter of the mean) this says nothing; then what an answer takes
//! for a token is held against the least it ever took, and share is what exceeds three times that. *Bound:* the share is
//! between nothing and everything; the least rises by a 4,096th an answer while it is not exceeded twice, so that what
//! was fast once is forgotten. *At start*, for the first 16 answers, it is nothing. *Never* learns from an answer without
//! output or longer than a million tokens or a day.

use crate::units::Span;

use super::adapt::Whole;

const MICRO: i128 = 1_000_000;
const MOST: i128 = 64;
const FEW: i128 = 16;
const MOST_TOKENS: u64 = 1_000_000;
const MOST_TIME: Span = Span::from_secs(86_400);
/// How much slower than at its fastest an engine is when it is full.
const SLOWER: i128 = 3;

/// Sums over recent answers; time in microseconds.
#[derive(Debug, Default)]
pub(super) struct Unexplained {
    count: i128,
    input: i128,
    output: i128,
    time: i128,
    input_input: i128,
    input_output: i128,
    input_time: i128,
    output_output: i128,
    output_time: i128,
    /// The least time a token took, in nanoseconds.
    least: Option<i128>,
}

impl Unexplained {
    pub(super) fn learn(&mut self, answer: Whole) {
        let (input, output) = (answer.input.get(), answer.output.get());
        if output == 0 || output > MOST_TOKENS || input > MOST_TOKENS || answer.lasted > MOST_TIME {
            return;
        }
        if self.count == MOST {
            self.fade();
        }
        let (input, output) = (i128::from(input), i128::from(output));
        let time = i128::from(answer.lasted.as_nanos() / 1_000);
        self.count += 1;
        self.input += input;
        self.output += output;
        self.time += time;
        self.input_input += input * input;
        self.input_output += input * output;
        self.input_time += input * time;
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

    fn fade(&mut self) {
        let sums = [
            &mut self.count,
            &mut self.input,
            &mut self.output,
            &mut self.time,
            &mut self.input_input,
            &mut self.input_output,
            &mut self.input_time,
            &mut self.output_output,
            &mut self.output_time,
        ];
        for sum in sums {
            *sum = *sum * 7 / 8;
        }
    }

    /// The share of an answer's time that is not explained, in millionths.
    pub(super) fn share(&self) -> u64 {
        if self.count < FEW || self.time == 0 {
            return 0;
        }
        let variance = self.count * self.output_output - self.output * self.output;
        let share = if 16 * variance >= self.output * self.output {
            MICRO - self.explained(variance) * MICRO / self.time
        } else {
            let pace = self.time * 1_000 / self.output;
            let least = self.least.unwrap_or(pace);
            MICRO - SLOWER * least * MICRO / pace.max(1)
        };
        u64::try_from(share.clamp(0, MICRO)).unwrap_or(0)
    }

    /// What the lengths of all the answers together explain of their time, where those of output differ by so much.
    fn explained(&self, output_output: i128) -> i128 {
        let centred = |sum: i128, one: i128, other: i128| self.count * sum - one * other;
        let output_time = centred(self.output_time, self.output, self.time);
        let input_input = centred(self.input_input, self.input, self.input);
        let input_output = centred(self.input_output, self.input, self.output);
        let input_time = centred(self.input_time, self.input, self.time);
        let (apart, most) = (output_output * input_input - input_output * input_output, output_output * input_input);
        if 16 * input_input >= self.input * self.input && 16 * apart >= most && apart > 0 {
            let of_input = input_time * output_output - output_time * input_output;
            let of_output = output_time * input_input - input_time * input_output;
            if of_input >= 0 {
                // Products of these and of sums of tokens would not fit.
                let shift = (128 - apart.leading_zeros()).saturating_sub(60);
                let sums = (of_input >> shift) * self.input + (of_output.max(0) >> shift) * self.output;
                return sums / (apart >> shift);
            }
        }
        output_time.max(0) * self.output / output_output
    }
}

#[cfg(test)]
mod tests {
    use super::{MOST_TIME, MOST_TOKENS, Unexplained, Whole};
    use crate::units::{Span, Tokens};

    fn answer(input: u64, output: u64, lasted: Span) -> Whole {
        Whole { lasted, silent: lasted, input: Tokens::new(input), output: Tokens::new(output) }
    }

    /// The share, in thousandths, of answers that waited for so many milliseconds and took a millisecond for two tokens of
    /// input and ten for one of output.
    fn share(wait: u64, lengths: impl Fn(u64) -> (u64, u64)) -> u64 {
        let mut seen = Unexplained::default();
        for number in 0..200 {
            let (input, output) = lengths(number);
            seen.learn(answer(input, output, Span::from_millis(wait + input / 2 + output * 10)));
        }
        seen.share() / 1_000
    }

    #[test]
    fn what_the_prompt_takes_is_explained_and_what_an_answer_waits_is_not() {
        // On average 500 ms for the input and 1,000 for the output.
        let apart = |number: u64| (200 + number * 7 % 17 * 100, 20 + number * 5 % 11 * 16);
        // What fades is rounded, to a few thousandths.
        assert!(share(0, apart) <= 5, "long prompts alone are no queue");
        let waited = share(1_500, apart);
        assert!((480..=520).contains(&waited), "{waited} of a thousand, half of the time was waiting");
    }

    #[test]
    fn input_that_goes_with_output_or_hardly_differs_is_left_out() {
        let together = |number: u64| (2 * (20 + number * 5 % 11 * 16), 20 + number * 5 % 11 * 16);
        assert!(share(0, together) <= 5 && (480..=520).contains(&share(1_100, together)));
        // Then what the prompt takes counts as waiting: a fifth of the time here.
        let equal = |number: u64| (500, 20 + number * 5 % 11 * 16);
        assert!((180..=220).contains(&share(0, equal)), "{}", share(0, equal));
    }

    #[test]
    fn the_largest_answers_that_are_learned_from_overflow_nothing() {
        let corners = [(0, 1), (0, MOST_TOKENS), (MOST_TOKENS, 1), (MOST_TOKENS, MOST_TOKENS)];
        for pattern in 0..256_u32 {
            let mut seen = Unexplained::default();
            for number in 0..400_usize {
                let (input, output) = corners[number % 4];
                let long = pattern >> (number % 8) & 1 == 1;
                seen.learn(answer(input, output, if long { MOST_TIME } else { Span::from_nanos(1) }));
                assert!(seen.share() <= 1_000_000);
            }
        }
    }
}
