//! How long an upstream takes: to the first byte of a stream, and for the tokens of an answer that comes at once.
//!
//! Means over recent answers, per pool. Used for one thing: a client that will hang up at a known moment must be
//! dispatched early enough to have something by then. The time for a token is that of all recent answers over all their
//! tokens, so that an answer of a word, which takes its time too, does not count as much as one of a page. Not measured
//! yet means nothing is taken off.

use crate::units::{Span, Tokens};

/// The weight of the newest first byte, as a divisor.
const SMOOTHING: u64 = 8;
/// Halve the sums beyond this, so that old answers fade. Longer than the longest answers of reasoning.
const MOST_TOKENS: u64 = 100_000;

/// The pace of one pool's upstream.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pace {
    first_byte: Option<Span>,
    /// The output of recent answers, and how long they took.
    output: u64,
    lasted: Span,
}

impl Pace {
    /// A stream began this long after it was asked for.
    pub(super) fn began(&mut self, after: Span) {
        self.first_byte = Some(blend(self.first_byte, after));
    }

    /// A whole answer of this much output took this long.
    pub(super) fn completed(&mut self, output: Tokens, lasted: Span) {
        // One answer, however it is reported, never outweighs all before it.
        if output == Tokens::ZERO || output.get() > MOST_TOKENS {
            return;
        }
        self.output += output.get();
        self.lasted = self.lasted.saturating_add(lasted);
        if self.output > MOST_TOKENS {
            self.output /= 2;
            self.lasted = Span::from_nanos(self.lasted.as_nanos() / 2);
        }
    }

    /// How long a client will wait for something: the first byte of a stream, or the whole of an answer.
    pub(super) fn until_useful(&self, streamed: bool, output: Tokens) -> Span {
        if streamed {
            return self.first_byte.unwrap_or_default();
        }
        let nanos = u128::from(self.lasted.as_nanos()) * u128::from(output.get());
        let nanos = nanos.checked_div(u128::from(self.output)).unwrap_or_default();
        Span::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

fn blend(mean: Option<Span>, newest: Span) -> Span {
    let Some(mean) = mean else { return newest };
    Span::from_nanos(mean.as_nanos() - mean.as_nanos() / SMOOTHING)
        .saturating_add(Span::from_nanos(newest.as_nanos() / SMOOTHING))
}

#[cfg(test)]
mod tests {
    use super::Pace;
    use crate::units::{Span, Tokens};

    #[test]
    fn nothing_measured_takes_nothing_off() {
        let mut pace = Pace::default();
        pace.completed(Tokens::ZERO, Span::from_secs(9));
        assert_eq!(pace.until_useful(true, Tokens::new(5)), Span::ZERO);
        assert_eq!(pace.until_useful(false, Tokens::new(5)), Span::ZERO);
    }

    #[test]
    fn a_stream_is_useful_from_its_first_byte_and_an_answer_at_its_end() {
        let mut pace = Pace::default();
        pace.began(Span::from_secs(1));
        pace.began(Span::from_secs(9));
        assert_eq!(pace.until_useful(true, Tokens::new(1_000)), Span::from_secs(2));
        pace.completed(Tokens::new(100), Span::from_secs(2));
        assert_eq!(pace.until_useful(false, Tokens::new(1_000)), Span::from_secs(20));
    }

    #[test]
    fn an_answer_of_a_word_says_little_of_one_of_a_page() {
        let mut pace = Pace::default();
        for _ in 0..20 {
            pace.completed(Tokens::new(500), Span::from_secs(10));
        }
        for _ in 0..10 {
            pace.completed(Tokens::new(1), Span::from_secs(1));
        }
        let page = pace.until_useful(false, Tokens::new(4_300));
        assert!(page < Span::from_secs(95), "86 s without them, {page} with");
        pace.completed(Tokens::new(u64::MAX), Span::from_secs(1));
        assert_eq!(pace.until_useful(false, Tokens::new(4_300)), page, "no answer is as long");
    }

    #[test]
    fn long_answers_teach_too() {
        let mut pace = Pace::default();
        pace.completed(Tokens::new(60_000), Span::from_secs(600));
        assert_eq!(pace.until_useful(false, Tokens::new(1_000)), Span::from_secs(10));
    }

    #[test]
    fn what_lasted_longer_before_fades() {
        let mut pace = Pace::default();
        (0..100).for_each(|_| pace.completed(Tokens::new(1_000), Span::from_secs(100)));
        (0..500).for_each(|_| pace.completed(Tokens::new(1_000), Span::from_secs(10)));
        assert!(pace.until_useful(false, Tokens::new(1_000)) < Span::from_secs(12));
    }
}
