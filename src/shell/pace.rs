//! How long an upstream takes: to its first byte, and for each token after it.
//!
//! Means over recent answers, the newest weighing one eighth, per pool. Used for one thing: a client that will hang
//! up at a known moment must be dispatched early enough to have something by then. Not measured yet means nothing is
//! taken off.

use crate::units::{Span, Tokens};

/// The weight of the newest answer, as a divisor.
const SMOOTHING: u64 = 8;

/// The pace of one pool's upstream.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pace {
    first_byte: Option<Span>,
    per_token: Option<Span>,
}

impl Pace {
    /// An answer began this long after it was asked for.
    pub(super) fn began(&mut self, after: Span) {
        self.first_byte = Some(blend(self.first_byte, after));
    }

    /// A whole answer of this much output took this long.
    pub(super) fn completed(&mut self, output: Tokens, lasted: Span) {
        if let Some(per_token) = lasted.as_nanos().checked_div(output.get()) {
            self.per_token = Some(blend(self.per_token, Span::from_nanos(per_token)));
        }
    }

    /// How long a client will wait for something: the first byte of a stream, or the whole of an answer.
    pub(super) fn until_useful(&self, streamed: bool, output: Tokens) -> Span {
        if streamed {
            return self.first_byte.unwrap_or_default();
        }
        let per_token = self.per_token.unwrap_or_default().as_nanos();
        Span::from_nanos(per_token.saturating_mul(output.get()))
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
}
