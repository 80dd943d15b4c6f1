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
use crate::units::{Instant, Usage, VirtualTokens};

use super::super::answer::Refused;
use super::super::spent::Spent;
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

impl Spent {
    /// What a request that ended so is settled for; says where it is known from, and counts what is disbelieved.
    pub(super) fn reported(self, permit: &Permit, outcome: Outcome) -> Reported {
        let is_final = outcome.is_complete() || outcome == Outcome::UpstreamFailed;
        let reported = match self {
            Self::Whole(usage) if is_final => Reported::Final(usage),
            Self::Whole(usage) | Self::Part(usage) => Reported::Counted(usage),
            Self::Output { visible, reasoning } => permit.counted(visible, reasoning),
            Self::Disbelieved => {
                permit.disbelieved();
                Reported::Nothing
            }
            Self::Nothing => Reported::Nothing,
        };
        permit.used_from(if reported == Reported::Nothing { Source::Estimated } else { Source::Record });
        reported
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
            Reach::Unsent => {
                permit.used_from(Source::Record);
                Reported::Final(Usage::default())
            }
            Reach::Sent => usage.reported(permit, outcome),
            Reach::Answered(since) => {
                permit.began_since(since);
                usage.reported(permit, outcome)
            }
        };
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
