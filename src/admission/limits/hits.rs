//! Hits: use of a rate by what is no request here, told from outside and answered at once.
//!
//! *Decides* whether a rate allows what a rate limit service is asked for. *How it differs* from a request: nothing is
//! queued, predicted or settled later; whoever asks says how much and whose it is. *Formulas* are those of
//! [`rate`](super::super::rate), of the same buckets: what requests use and what hits use count together. All that is
//! asked for in one call is checked together and then taken together, and where one of it is refused nothing of it is
//! taken; several of it on one bucket are checked behind each other. What has been used already is taken whatever is left
//! ([`HitKind::Used`]): a debt, which keeps later ones out until it is paid. What is given back is at most what the bucket
//! holds, so nothing is stored up. *Bound:* for each bucket and any span `w`, what is asked for and allowed comes to at
//! most `amount · w ÷ every + burst`. *Never* waits, and never touches a budget.

use std::collections::BTreeMap;

use crate::policy::model::Exceeded;
use crate::units::{Amount, Instant, Measure, Span};

use super::super::rule::Owner;
use super::Limits;
use super::ruled::Limited;

/// Use of a rate by what is no request here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hit {
    /// Of which of the policy's limits.
    pub limit: u16,
    /// Whose use it counts as.
    pub owner: Owner,
    /// How much.
    pub amount: Amount,
    /// What is to be done.
    pub kind: HitKind,
}

/// What is to be done with a hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HitKind {
    /// It is asked for, and taken where all that is asked for with it is allowed.
    Asked,
    /// Whether anything is left is asked; nothing is taken.
    Checked,
    /// It has been used already, and is taken.
    Used,
    /// It was taken and not used, and comes back.
    GivenBack,
}

impl HitKind {
    /// Its name in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Asked => "asked",
            Self::Checked => "checked",
            Self::Used => "used",
            Self::GivenBack => "given_back",
        }
    }
}

/// How a rate stands once hits on it were counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateStanding {
    /// What it counts.
    pub measure: Measure,
    /// The most there can be.
    pub most: Amount,
    /// What is left; less than nothing where there is a debt.
    pub left: Amount,
    /// How long until there is the most again.
    pub whole_in: Span,
    /// What became of the hit.
    pub outcome: HitOutcome,
}

/// What became of a hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HitOutcome {
    /// The rate allows it.
    Allowed,
    /// The rate does not, but only notes it.
    Shadowed,
    /// The rate does not; it would after this long.
    OverLimit(Span),
}

impl HitOutcome {
    /// Its name in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Shadowed => "shadowed",
            Self::OverLimit(_) => "over_limit",
        }
    }
}

impl Limits {
    /// Counts hits, and tells how the rate of each stands then. A limit that the policy does not have, or that queues or
    /// demotes, allows nothing and is not touched: whom it holds back is for requests alone to change.
    pub(in super::super) fn count(&mut self, now: Instant, hits: &[Hit]) -> Vec<RateStanding> {
        let outcomes = self.outcomes(now, hits);
        let all_allowed = !outcomes.iter().any(|outcome| matches!(outcome, HitOutcome::OverLimit(_)));
        for (hit, outcome) in hits.iter().zip(&outcomes) {
            let limited = self.rates.get_mut(usize::from(hit.limit)).filter(|limited| countable(limited));
            let Some(Limited { buckets, .. }) = limited else { continue };
            match (hit.kind, outcome) {
                (HitKind::Asked, HitOutcome::OverLimit(_)) => buckets.give_turn(&hit.owner, now, hit.amount),
                (HitKind::Asked, _) if all_allowed => drop(buckets.take(&hit.owner, now, hit.amount)),
                (HitKind::Used, _) => drop(buckets.take(&hit.owner, now, hit.amount)),
                (HitKind::GivenBack, _) => {
                    let latest = buckets.latest();
                    buckets.give_back(&hit.owner, now, latest, hit.amount);
                }
                (HitKind::Asked | HitKind::Checked, _) => {}
            }
        }
        hits.iter().zip(outcomes).map(|(hit, outcome)| self.standing(now, hit, outcome)).collect()
    }

    /// What every rate says, of hits on one bucket behind each other.
    fn outcomes(&self, now: Instant, hits: &[Hit]) -> Vec<HitOutcome> {
        let mut before: BTreeMap<(u16, &Owner), Amount> = BTreeMap::new();
        let outcome = |hit: &Hit, before: Amount| {
            let limited = self.rates.get(usize::from(hit.limit)).filter(|limited| countable(limited));
            let Some(Limited { rate, buckets, .. }) = limited else { return HitOutcome::OverLimit(Span::ZERO) };
            let (asked, wait) = match hit.kind {
                HitKind::Asked => (hit.amount, buckets.turn(&hit.owner, now, hit.amount)),
                HitKind::Checked | HitKind::Used => {
                    let least = Amount::from_parts(rate.measure.parts());
                    (least, buckets.wait(&hit.owner, now, before, least))
                }
                HitKind::GivenBack => return HitOutcome::Allowed,
            };
            let missing = buckets.wait(&hit.owner, now, before, asked);
            match rate.exceeded {
                _ if missing == Span::ZERO => HitOutcome::Allowed,
                Exceeded::Shadow => HitOutcome::Shadowed,
                Exceeded::Refuse | Exceeded::Queue | Exceeded::Demote(_) => HitOutcome::OverLimit(wait.max(missing)),
            }
        };
        let mut outcomes = Vec::with_capacity(hits.len());
        for hit in hits {
            let before = before.entry((hit.limit, &hit.owner)).or_default();
            outcomes.push(outcome(hit, *before));
            if hit.kind == HitKind::Asked {
                *before += hit.amount;
            }
        }
        outcomes
    }

    fn standing(&self, now: Instant, hit: &Hit, outcome: HitOutcome) -> RateStanding {
        match self.rates.get(usize::from(hit.limit)) {
            Some(Limited { rate, buckets, .. }) => RateStanding {
                measure: rate.measure,
                most: rate.burst,
                left: buckets.left(&hit.owner, now),
                whole_in: buckets.whole_in(&hit.owner, now),
                outcome,
            },
            None => RateStanding {
                measure: Measure::Requests,
                most: Amount::ZERO,
                left: Amount::ZERO,
                whole_in: Span::ZERO,
                outcome,
            },
        }
    }
}

/// Whether anybody but a request may use it.
fn countable(limited: &Limited) -> bool {
    matches!(limited.rate.exceeded, Exceeded::Refuse | Exceeded::Shadow)
}
