//! The end of a request whose answer nobody here saw pass, as others tell of it.
//!
//! What is told is settled as a door that watches would settle it, as far as that can be known:
//!
//! | what is told | settled as | for |
//! |---|---|---|
//! | a whole answer | completed | the usage reported, else the prediction |
//! | nothing was sent upstream | as it ended | nothing |
//! | an error of the upstream's, or no answer | upstream failed | nothing, unless usage is reported |
//! | the client left, or a time-out | client aborted, timed out | the usage reported, else input and what can have been produced since the answer began |
//! | the upstream broke off | upstream failed | the same |

use http::{HeaderMap, StatusCode};

use crate::admission::{Ending, Outcome, Reported};
use crate::observe::{Lessor, Source};
use crate::shell::{Full, LeaseId, Leases, NotLive, Permit};
use crate::units::{Instant, Tokens, Usage, VirtualTokens};

use super::super::answer::Refused;
use super::super::dialect::is_believable;
use super::heard::heard;
use super::prepare::Admitted;

/// What is told of a request that ended.
#[derive(Clone, Debug)]
pub(in crate::wire) struct Unwatched {
    /// How it ended.
    pub(in crate::wire) outcome: Outcome,
    /// How far it had come.
    pub(in crate::wire) reach: Reach,
    /// The head of the upstream's answer; nothing where none came.
    pub(in crate::wire) head: Option<(StatusCode, HeaderMap)>,
    /// How often a proxy had tried before.
    pub(in crate::wire) further_attempts: u32,
    /// What it used, as the upstream reported.
    pub(in crate::wire) usage: Spent,
}

/// How far a request had come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::wire) enum Reach {
    /// Nothing of it was sent upstream.
    Unsent,
    /// It was sent upstream, and nothing of an answer came.
    Sent,
    /// A good answer has been coming since then.
    Answered(Instant),
}

/// What is told of usage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::wire) enum Spent {
    /// Nothing.
    #[default]
    Nothing,
    /// So many tokens, each figure with its parts.
    Tokens {
        /// Of input, cached and written to the cache too; nothing where it is not told.
        input: Option<Tokens>,
        /// Of those, read from a cache.
        cached: Tokens,
        /// Of those, written to a cache.
        written: Tokens,
        /// Of output, reasoning too.
        output: Tokens,
        /// Of those, reasoning.
        reasoning: Tokens,
    },
}

impl Spent {
    fn reported(self, permit: &Permit, outcome: Outcome) -> Reported {
        let Self::Tokens { input, cached, written, output, reasoning } = self else { return Reported::Nothing };
        let usage = match input {
            _ if reasoning > output => None,
            Some(input) if cached + written > input => None,
            Some(input) => Some(Usage {
                uncached_input: input.saturating_sub(cached + written),
                cached_input: cached,
                cache_write: written,
                ..Usage::default()
            }),
            None => Some(permit.expected()),
        };
        let produced =
            |usage| Usage { reasoning_output: reasoning, visible_output: output.saturating_sub(reasoning), ..usage };
        let Some(usage) = usage.map(produced).filter(is_believable) else {
            permit.disbelieved();
            return Reported::Nothing;
        };
        let final_word = input.is_some() && (outcome.is_complete() || outcome == Outcome::UpstreamFailed);
        if final_word { Reported::Final(usage) } else { Reported::Counted(usage) }
    }
}

impl Unwatched {
    /// Whether it tells what was used.
    pub(in crate::wire) fn reports_usage(&self) -> bool {
        self.usage != Spent::Nothing
    }

    /// Settles the lease of the request, and tells what it came to.
    ///
    /// # Errors
    /// When the lease does not run; then nothing changes.
    pub(in crate::wire) fn settle(
        self,
        leases: &Leases,
        teller: Lessor,
        lease: LeaseId,
    ) -> Result<Option<VirtualTokens>, NotLive> {
        leases.settle(teller, lease, |permit| self.ending(permit))
    }

    fn ending(self, permit: &mut Permit) -> Ending {
        let Self { outcome, reach, head, further_attempts, usage } = self;
        let heard = head.map(|(status, headers)| {
            let heard = heard(status, &headers, permit.unix_now());
            crate::admission::Heard { further_attempts: heard.further_attempts.max(further_attempts), ..heard }
        });
        let usage = match reach {
            Reach::Unsent => Reported::Final(Usage::default()),
            Reach::Sent => usage.reported(permit, outcome),
            Reach::Answered(since) => {
                permit.began_since(since);
                usage.reported(permit, outcome)
            }
        };
        permit.used_from(if matches!(usage, Reported::Nothing) { Source::Estimated } else { Source::Record });
        Ending { outcome, usage, heard }
    }
}

impl Admitted {
    /// It goes on now, and others will tell of its end by the name returned.
    ///
    /// # Errors
    /// When no more can be kept count of.
    pub(in crate::wire) fn lease(self, leases: &Leases, lessor: Lessor) -> Result<LeaseId, Refused> {
        leases.hold(lessor, self.into_permit()).map_err(|Full| Refused::NoLease)
    }
}
