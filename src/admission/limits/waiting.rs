//! Rates whose requests wait: whom they hold back, and for how long.
//!
//! Such a rate is charged when a request is dispatched. Until then what waits is only counted, so that a newcomer can be
//! told how long it would wait behind it. Who is skipped for it is [`own`](super::super::own)'s to say.

use crate::policy::model::{Exceeded, Per};
use crate::units::{Amount, Instant, Span};

use super::super::refusal::Reason;
use super::super::request::Request;
use super::super::rule::{Owner, Rule};
use super::ruled::Limited;
use super::{Holds, Limits};

impl Limits {
    /// Every rate whose requests wait and that concerns this one, and whose use it counts as.
    fn queues_of<'a>(&'a self, request: &'a Request) -> impl Iterator<Item = (&'a Limited, Owner)> + 'a {
        self.rates_of(request).filter(|(limited, _)| limited.rate.exceeded == Exceeded::Queue)
    }

    /// Until when rates of this kind whose requests wait hold one back, if they do.
    pub(in super::super) fn held_until(&self, now: Instant, request: &Request, per: Per) -> Option<Instant> {
        let of_kind = self.queues_of(request).filter(|(limited, _)| limited.rate.per == per);
        let waits =
            of_kind.map(|(limited, owner)| limited.buckets.wait(&owner, now, Amount::ZERO, limited.asked(request)));
        waits.max().filter(|wait| *wait > Span::ZERO).map(|wait| now + wait)
    }

    /// How long rates whose requests wait would have a newcomer wait behind what already does, and which of them.
    pub(in super::super) fn queued_wait(&self, now: Instant, request: &Request) -> Option<(Span, Reason)> {
        let waits = self.queues_of(request).map(|(limited, owner)| {
            let before = self.waiting.get(&(limited.index, owner.clone())).copied().unwrap_or_default();
            let found = limited.found(now, request, &owner, before);
            (found.wait.unwrap_or_default(), limited.reason(&found))
        });
        waits.max_by_key(|(wait, _)| *wait).filter(|(wait, _)| *wait > Span::ZERO)
    }

    /// A request waits.
    pub(in super::super) fn joins(&mut self, request: &Request) {
        self.count_waiting(request, |waiting, asked| waiting + asked);
    }

    /// A request no longer waits.
    pub(in super::super) fn leaves(&mut self, request: &Request) {
        self.count_waiting(request, |waiting, asked| waiting - asked);
    }

    fn count_waiting(&mut self, request: &Request, change: impl Fn(Amount, Amount) -> Amount) {
        let queues = self.queues_of(request);
        let queues: Vec<_> = queues.map(|(limited, owner)| ((limited.index, owner), limited.asked(request))).collect();
        for (key, asked) in queues {
            let waiting = change(self.waiting.get(&key).copied().unwrap_or_default(), asked);
            if waiting.is_positive() {
                self.waiting.insert(key, waiting);
            } else {
                self.waiting.remove(&key);
            }
        }
    }

    /// Takes, of rates whose requests wait, what one that is dispatched is expected to use. Whether there are any.
    pub(in super::super) fn hold_dispatched(&mut self, now: Instant, request: &Request, holds: &mut Holds) -> bool {
        let queues: Vec<_> = self.queues_of(request).map(|(limited, owner)| (limited.index, owner)).collect();
        let any = !queues.is_empty();
        for (index, owner) in queues {
            holds.push(self.hold_rate(index, owner, now, request));
        }
        any
    }

    /// Whether a change of what is held may hold others back, or no longer.
    pub(in super::super) fn holds_back(&self, holds: &Holds) -> bool {
        holds.iter().any(|hold| match hold.rule {
            Rule::Limit(index) => self.rates[usize::from(index)].rate.exceeded == Exceeded::Queue,
            Rule::Budget(_) => false,
        })
    }
}
