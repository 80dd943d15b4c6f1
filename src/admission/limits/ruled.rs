//! A rule of the policy together with what is used of it, and what it says of one request.
//!
//! *Decides* whether one rate or one budget lets one request in, by the formulas of [`rate`](super::super::rate) and
//! [`budget`](super::super::budget). What is explained and what is decided come from the same words here. *Never* says
//! whom a rule concerns, which is [`limits`](super)'s.

use crate::policy::model::{Budget, Exceeded, Rate, Spent};
use crate::units::{Amount, Instant, Measure, Span, UnixTime};

use super::super::budget::Accounts;
use super::super::order::{Objection, Wait};
use super::super::rate::Buckets;
use super::super::refusal::Reason;
use super::super::request::Request;
use super::super::rule::{Owner, Rule, RuleFound, RuleLeft};

/// What a request is expected to take.
fn asked(measure: Measure, request: &Request) -> Amount {
    measure.of(&request.expected, &request.price, &request.tariff)
}

/// What it takes at least. By input alone, since a prediction may be wrong, and "never" must not be.
fn least(measure: Measure, request: &Request) -> Amount {
    measure.of(&request.expected.input_only(), &request.price, &request.tariff)
}

/// A rate, and what is used of it.
#[derive(Debug)]
pub(super) struct Limited {
    pub(super) index: u16,
    pub(super) rate: Rate,
    pub(super) buckets: Buckets,
}

impl Limited {
    pub(super) fn new(index: u16, rate: &Rate) -> Self {
        Self { index, rate: rate.clone(), buckets: Buckets::new(rate) }
    }

    pub(super) fn rule(&self) -> Rule {
        Rule::Limit(self.index)
    }

    pub(super) fn asked(&self, request: &Request) -> Amount {
        asked(self.rate.measure, request)
    }

    pub(super) fn allows(&self, now: Instant, request: &Request, owner: &Owner) -> bool {
        self.buckets.allows(owner, now, self.asked(request))
    }

    /// How it stands for a request, behind so much that waits for it already.
    pub(super) fn found(&self, now: Instant, request: &Request, owner: &Owner, before: Amount) -> RuleFound {
        let asked = self.asked(request);
        let wait = self.buckets.wait(owner, now, before, asked);
        RuleFound {
            rule: self.rule(),
            per: self.rate.per,
            measure: self.rate.measure,
            asked,
            left: self.buckets.left(owner, now) - before,
            most: self.rate.burst,
            exceeded: wait > Span::ZERO,
            wait: Some(wait),
        }
    }

    pub(super) fn left(&self, now: Instant, owner: &Owner) -> RuleLeft {
        RuleLeft {
            rule: self.rule(),
            measure: self.rate.measure,
            most: self.rate.burst,
            left: self.buckets.left(owner, now),
            whole_in: Some(self.buckets.whole_in(owner, now)),
            warning: None,
        }
    }

    /// The words for a request that it does not allow.
    pub(super) fn reason(&self, found: &RuleFound) -> Reason {
        let RuleFound { rule, per, measure, asked, left, most: burst, .. } = *found;
        Reason::RateLimited { rule, per, measure, asked, left, burst }
    }

    /// What it has against a request, and for how long; nothing where it allows it, has it wait, or only notes it.
    pub(super) fn objection(&self, now: Instant, request: &Request, owner: &Owner) -> Option<Objection> {
        if !matches!(self.rate.exceeded, Exceeded::Refuse | Exceeded::Queue) {
            return None;
        }
        let (rule, measure, burst) = (self.rule(), self.rate.measure, self.rate.burst);
        let least = least(measure, request);
        if least > burst {
            let reason = Reason::BeyondBurst { rule, measure, asked: least, burst };
            return Some(Objection { reason, wait: Wait::Forever });
        }
        if self.rate.exceeded == Exceeded::Queue || self.allows(now, request, owner) {
            return None;
        }
        let reason = self.reason(&self.found(now, request, owner, Amount::ZERO));
        Some(Objection { reason, wait: Wait::For(self.buckets.turn(owner, now, self.asked(request))) })
    }
}

/// A budget, and what is used of it.
#[derive(Debug)]
pub(super) struct Budgeted {
    pub(super) index: u16,
    pub(super) budget: Budget,
    pub(super) accounts: Accounts,
}

impl Budgeted {
    pub(super) fn new(index: u16, budget: &Budget) -> Self {
        Self { index, budget: budget.clone(), accounts: Accounts::new(budget) }
    }

    /// The calendar has come this far.
    pub(super) fn advance(&mut self, wall: UnixTime) {
        self.accounts.advance(&self.budget, wall);
    }

    pub(super) fn rule(&self) -> Rule {
        Rule::Budget(self.index)
    }

    pub(super) fn asked(&self, request: &Request) -> Amount {
        asked(self.budget.measure, request)
    }

    pub(super) fn allows(&self, request: &Request, owner: &Owner) -> bool {
        self.accounts.allows(owner, self.asked(request))
    }

    /// How it stands for a request.
    pub(super) fn found(&self, wall: UnixTime, request: &Request, owner: &Owner) -> RuleFound {
        let exceeded = !self.allows(request, owner);
        RuleFound {
            rule: self.rule(),
            per: self.budget.per,
            measure: self.budget.measure,
            asked: self.asked(request),
            left: self.accounts.left(owner),
            most: self.budget.amount,
            exceeded,
            wait: if exceeded { self.covered_in(wall, request) } else { Some(Span::ZERO) },
        }
    }

    pub(super) fn left(&self, wall: UnixTime, owner: &Owner) -> RuleLeft {
        let (most, left) = (self.budget.amount, self.accounts.left(owner));
        let used = (most - left).parts().saturating_mul(1_000_000) / most.parts().max(1);
        let warning = self.budget.warn_at.iter().rev().find(|part| used >= i128::from(part.millionths())).copied();
        let (rule, measure) = (self.rule(), self.budget.measure);
        RuleLeft { rule, measure, most, left, whole_in: self.whole_in(wall), warning }
    }

    /// What it has against a request, and for how long; nothing where it covers it or only notes it.
    pub(super) fn objection(&self, wall: UnixTime, request: &Request, owner: &Owner) -> Option<Objection> {
        let found = self.found(wall, request, owner);
        if self.budget.spent != Spent::Refuse || !found.exceeded {
            return None;
        }
        let RuleFound { rule, per, measure, asked, left, most: amount, wait, .. } = found;
        let reason = Reason::BudgetSpent { rule, per, measure, asked, left, amount };
        Some(Objection { reason, wait: wait.map_or(Wait::Forever, Wait::For) })
    }

    /// How long until its period is over; nothing where no calendar ends it.
    fn whole_in(&self, wall: UnixTime) -> Option<Span> {
        let end = self.accounts.bounds().end;
        (end < UnixTime::FAR).then(|| end.since(wall))
    }

    /// How long until it covers a request that it does not cover now; nothing where it never does.
    fn covered_in(&self, wall: UnixTime, request: &Request) -> Option<Span> {
        self.whole_in(wall).filter(|_| least(self.budget.measure, request) <= self.budget.amount)
    }
}

/// Of several rules that object the one that would last is told; never is longer than any time.
pub(super) fn longest(objections: impl Iterator<Item = Objection>) -> Result<(), Objection> {
    let wait = |objection: &Objection| match objection.wait {
        Wait::For(span) => (false, span),
        Wait::Forever | Wait::Unknown => (true, Span::ZERO),
    };
    let worst = objections.reduce(|worst, next| if wait(&next) > wait(&worst) { next } else { worst });
    worst.map_or(Ok(()), Err)
}
