//! What a client does once its request has ended: it tries again, goes on with what it wants next, or is done.

use super::{Demand, Desk, Instant, Record, RequestId, Span, State, number};

impl Desk<'_> {
    /// Those who decided to come back since this was last asked.
    pub(in crate::sim::world) fn take_returning(&mut self) -> Vec<usize> {
        std::mem::take(&mut self.returning)
    }

    /// The client tries again, or asks for what it wants next.
    pub(super) fn again_or_next(&mut self, now: Instant, index: usize, told: Option<Span>) {
        match self.demands[index].again(now, told) {
            Some(again) => self.come_back(again),
            None => self.ask_next(now, index),
        }
    }

    /// The client of a request that ended for good asks for what it wants next.
    pub(super) fn ask_next(&mut self, now: Instant, index: usize) {
        if let Some(next) = self.demands[index].then.as_ref().and_then(|then| then.after(now)) {
            self.come_back(next);
        }
    }

    fn come_back(&mut self, again: Demand) {
        let index = self.demands.len();
        self.records.push(Record::ahead(&again, RequestId::new(number(index))));
        self.states.push(State::Ahead);
        self.demands.to_mut().push(again);
        self.returning.push(index);
    }
}
