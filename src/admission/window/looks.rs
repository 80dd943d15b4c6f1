//! When the engine looks at its queue, so far as that shows.
//!
//! *Decides* nothing; estimates how long after a burst of first outputs the engine certainly does not look again. *Formula:*
//! four fifths of the 10th percentile of the last 40 times from a burst to the last output before the next. *Bound:* forty
//! spans. *At start*, for the first five, it may look at any time.

use std::collections::VecDeque;

use crate::units::Span;

/// How many looks of the engine are remembered, and from how many on they say something.
const MOST: usize = 40;
const FEW: usize = 5;

/// The latest times between looks.
#[derive(Debug, Default)]
pub(super) struct Looks {
    recent: VecDeque<Span>,
    hold: Span,
}

impl Looks {
    /// The engine looked at its queue so long after the burst before.
    pub(super) fn learn(&mut self, after: Span) {
        if self.recent.len() == MOST {
            self.recent.pop_front();
        }
        self.recent.push_back(after);
        if self.recent.len() >= FEW {
            let mut sorted: Vec<Span> = self.recent.iter().copied().collect();
            sorted.sort_unstable();
            self.hold = Span::from_nanos(sorted[sorted.len() / 10].as_nanos() / 5 * 4);
        }
    }

    /// How long after a burst it does not look again.
    pub(super) fn hold(&self) -> Span {
        self.hold
    }
}
