//! The window: how much may be dispatched and unfinished.
//!
//! *Decides* whether the head of a pool may go now. *Formula:* `requests + 1 ≤ cap` and `tokens + need ≤ cap`,
//! where a request's need is its input plus reserved output, or what it has really produced where that is
//! more, counted for its whole life: its KV stays resident until the end. *Bound:* the fairness bound is
//! `2 · max(w_in · L_in, w_out · M_g)`, and `M_g` is what this window lets be in flight: much larger than the
//! engine's memory destroys isolation, too small costs throughput. *At idle* a request larger than the whole
//! window runs alone, rather than never. *At overload* the head waits and nothing overtakes it, or a stream of
//! small requests would starve a large one. *Never* takes a slot back.

use crate::policy::model;
use crate::units::{Tokens, VirtualTokens};

/// What the window says of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowFound {
    /// Requests in flight.
    pub requests: u32,
    /// Their tokens.
    pub tokens: Tokens,
    /// How much may be in flight.
    pub caps: model::Window,
    /// What the request would take of it.
    pub need: Tokens,
    /// Whether it may be dispatched now, were it its turn.
    pub fits: bool,
    /// Whether it is larger than the whole window, and so is dispatched only when nothing else is in flight.
    pub runs_alone: bool,
}

/// What is in flight in one pool, against its caps.
#[derive(Debug)]
pub(super) struct Window {
    caps: model::Window,
    requests: u32,
    tokens: Tokens,
    service: VirtualTokens,
    peak: VirtualTokens,
}

impl Window {
    pub(super) fn new(caps: model::Window) -> Self {
        Self { caps, requests: 0, tokens: Tokens::ZERO, service: VirtualTokens::ZERO, peak: VirtualTokens::ZERO }
    }

    /// Whether a request of this size may be dispatched now.
    pub(super) fn fits(&self, need: Tokens) -> bool {
        if self.requests == 0 {
            return self.caps.requests.allows(1);
        }
        self.caps.requests.allows(self.requests.saturating_add(1)) && self.caps.tokens.allows(self.tokens + need)
    }

    /// What is in flight, against the caps, for a request of this size.
    pub(super) fn found(&self, need: Tokens) -> WindowFound {
        WindowFound {
            requests: self.requests,
            tokens: self.tokens,
            caps: self.caps,
            need,
            fits: self.fits(need),
            runs_alone: !self.caps.tokens.allows(need),
        }
    }

    /// The room no request has, and all there is; where tokens are what is short, and not requests.
    pub(super) fn free_tokens(&self) -> Option<(Tokens, Tokens)> {
        let one_more = self.caps.requests.allows(self.requests.saturating_add(1));
        let all = self.caps.tokens.cap().filter(|_| one_more)?;
        Some((all.saturating_sub(self.tokens), all))
    }

    pub(super) fn take(&mut self, need: Tokens, service: VirtualTokens) {
        self.requests += 1;
        self.grow(need, service);
    }

    /// A request in flight needs this much more than was counted for it.
    pub(super) fn grow(&mut self, need: Tokens, service: VirtualTokens) {
        self.tokens += need;
        self.service += service;
        self.peak = self.peak.max(self.service);
    }

    pub(super) fn release(&mut self, need: Tokens, service: VirtualTokens) {
        self.requests -= 1;
        self.tokens = self.tokens.saturating_sub(need);
        self.service -= service;
    }

    pub(super) fn requests(&self) -> u32 {
        self.requests
    }

    pub(super) fn tokens(&self) -> Tokens {
        self.tokens
    }

    /// The most service ever in flight at once: `w_out · M_g` of the bound, or more.
    pub(super) fn peak(&self) -> VirtualTokens {
        self.peak
    }
}

#[cfg(test)]
mod tests {
    use super::{Tokens, VirtualTokens, Window, model};
    use crate::units::Limit;

    #[test]
    fn a_request_larger_than_the_window_runs_alone() {
        let mut window =
            Window::new(model::Window { tokens: Limit::AtMost(Tokens::new(10)), requests: Limit::AtMost(2) });
        let (huge, small) = (Tokens::new(11), Tokens::new(1));
        assert!(window.fits(huge));
        window.take(huge, VirtualTokens::ZERO);
        assert!(!window.fits(small));
        window.release(huge, VirtualTokens::ZERO);
        window.take(small, VirtualTokens::ZERO);
        assert!(!window.fits(huge) && window.fits(Tokens::new(9)) && !window.fits(Tokens::new(10)));
        window.take(small, VirtualTokens::ZERO);
        assert!(!window.fits(small), "the third request exceeds the cap of two");
    }
}
