//! Watches an answer on its way to the client, and settles its request once.
//!
//! | what happens | settled as | for |
//! |---|---|---|
//! | a stream's final event, or the end of an answer | completed | the usage reported, else what was counted |
//! | it is dropped behind the final event | closed after final | the same |
//! | it is dropped before it | client aborted | what was counted |
//! | a stream ends early, or with an error in it | upstream failed | what was counted |
//! | the answer was an error (4xx, 5xx) | upstream failed | nothing, unless usage is reported |
//! | a door settles it as broken or timed out | as the door says | what was counted |

use bytes::Bytes;
use http::{HeaderMap, StatusCode};

use crate::admission::{Ending, Heard, Outcome};
use crate::shell::Permit;
use crate::units::{Tokens, VirtualTokens};

use super::super::dialect::grpc;
use super::super::spent::Spent;
use super::prepare::Admitted;
use super::watch::Watch;

/// The core is told of progress in steps of so many tokens.
const PROGRESS_STEP: u64 = 8;

/// An answer's bytes on their way, and the permit they are settled by.
///
/// Dropped before the end, it settles for what was counted: somebody left.
pub(in crate::wire) struct Meter {
    watch: Watch,
    permit: Option<Permit>,
    told: Tokens,
    /// What the head of the answer said.
    heard: Option<Heard>,
    /// Whether its body ended by itself.
    closed: bool,
}

impl Meter {
    /// Watches the answer to a request that is paid for, whose head said this.
    pub(super) fn new(watch: Watch, permit: Permit, heard: Heard) -> Self {
        Self { watch, permit: Some(permit), told: Tokens::ZERO, heard: Some(heard), closed: false }
    }

    /// Lets an answer pass that costs nothing.
    pub(in crate::wire) fn unmetered() -> Self {
        Self::uncharged(Watch::Unreadable)
    }

    /// Watches an answer that nobody is charged for yet.
    pub(super) fn uncharged(watch: Watch) -> Self {
        Self { watch, permit: None, told: Tokens::ZERO, heard: None, closed: false }
    }

    /// From now on somebody is charged for it, also for what has passed.
    pub(in crate::wire) fn charge_to(&mut self, admitted: Admitted, status: StatusCode, headers: &HeaderMap) {
        let (permit, heard) = admitted.into_charge(status, headers);
        (self.permit, self.heard) = (Some(permit), Some(heard));
        self.pass(Bytes::new());
    }

    /// Its body ended by itself. What it came to is settled when somebody says so.
    pub(in crate::wire) fn close(&mut self) {
        let _held_back = self.watch.finish();
        self.closed = true;
    }

    /// Settles for how it ended: by itself, or before that.
    pub(in crate::wire) fn settle_as_closed(&mut self) {
        let outcome = match (self.closed, self.watch.is_whole()) {
            (true, _) => self.watch.outcome(),
            (false, true) => Outcome::ClosedAfterFinal,
            (false, false) => Outcome::ClientAborted,
        };
        self.settle(outcome);
    }

    /// Settles, unless that was done, and tells what the request came to.
    pub(in crate::wire) fn settle(&mut self, outcome: Outcome) -> Option<VirtualTokens> {
        let permit = self.permit.take()?;
        let usage = self.watch.usage(&permit);
        permit.used_from(self.watch.source(&usage));
        permit.settle(Ending { outcome, usage, heard: self.heard })
    }

    /// Somebody who sees the answer says that it began.
    pub(in crate::wire) fn begins(&mut self) {
        if let Some(permit) = &mut self.permit {
            permit.began();
        }
    }

    /// The answer ended somewhere else, where this was read of it: what the request came to.
    pub(in crate::wire) fn ended(&mut self, spent: Spent) -> Option<VirtualTokens> {
        let (permit, outcome) = (self.permit.take()?, Outcome::Completed);
        let usage = spent.reported(&permit, outcome);
        permit.settle(Ending { outcome, usage, heard: self.heard })
    }

    /// Takes note of the next bytes and returns what is to be shown of them.
    pub(in crate::wire) fn pass(&mut self, data: Bytes) -> Bytes {
        let shown = self.watch.push(data);
        if let Some(permit) = &mut self.permit {
            permit.began();
            let output = self.watch.output_so_far();
            let step = Tokens::new(if self.told == Tokens::ZERO { 1 } else { PROGRESS_STEP });
            if output >= self.told + step {
                self.told = output;
                permit.progress(output);
            }
        }
        shown
    }

    /// Takes note of what the head or the end of the answer says of how a call went (gRPC), where the service tells its
    /// cost.
    pub(in crate::wire) fn hear(&mut self, headers: &HeaderMap) {
        if let (Watch::Told { .. }, Some(heard)) = (&self.watch, &mut self.heard)
            && let Some(status) = grpc::status(headers)
        {
            heard.status = status;
        }
        self.watch.judge(self.heard);
    }

    /// Whether the whole answer was produced although its body has not ended.
    pub(in crate::wire) fn is_whole(&self) -> bool {
        self.watch.is_whole()
    }

    /// Whether its final event has come, so that the client lacks nothing any more.
    pub(in crate::wire) fn is_final(&self) -> bool {
        self.watch.is_final()
    }

    /// Whether it is a stream that is not at its end.
    pub(in crate::wire) fn is_open(&self) -> bool {
        self.watch.is_open()
    }

    /// Whether the client may see less than the upstream sends, so that no length can be promised.
    pub(in crate::wire) fn shortens(&self) -> bool {
        matches!(self.watch, Watch::Stream(_))
    }

    /// The body ended by itself: what was held back of it, and what the request came to.
    pub(in crate::wire) fn end(&mut self) -> (Bytes, Option<VirtualTokens>) {
        let rest = self.watch.finish();
        (rest, self.settle(self.watch.outcome()))
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        let outcome = if self.watch.is_whole() { Outcome::ClosedAfterFinal } else { Outcome::ClientAborted };
        self.settle(outcome);
    }
}
