//! The rates and budgets of a policy: which of them concern a request, and what is held of them for it.
//!
//! *Decides* nothing about amounts itself ([`rate`](super::rate), [`budget`](super::budget)) but whom a rule concerns and
//! when it is charged: all that concern a request are checked together, then charged together with what the request
//! is expected to use, when it joins the queue; raised when it produces more; and made true when it ends. What leaves
//! undispatched gives the whole of it back. *Owners:* users, sessions and tasks count below their tenant, so that no
//! tenant's names reach another's. *A rule that demotes* concerns only requests of classes before the one it demotes to:
//! what competes there anyway, or was sent there, does not use it up. *A rule whose request waits*
//! ([`Exceeded::Queue`]) is charged when the request is dispatched, and not before. *Never* charges one rule of a request
//! that another refuses.

mod hits;
mod ruled;
mod waiting;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::policy::Policy;
use crate::policy::model::{Bounds, Exceeded, Per, Scope, Spent};
use crate::units::{Amount, Calendar, ClassIndex, Instant, Measure, Price, Tariff, UnixTime, Usage};

use super::budget::DebitNumber;
use super::order::Objection;
use super::rate::Taking;
use super::refusal::Reason;
use super::request::Request;
use super::rule::{BudgetUse, Debit, Demotion, Keeping, Owner, Rule, RuleFound, RuleLeft};
use ruled::{Budgeted, Limited, longest};

pub use hits::{Hit, HitKind, HitOutcome, RateStanding};

/// What is held of one rule for a request.
#[derive(Clone, Debug)]
pub(super) struct Hold {
    rule: Rule,
    owner: Owner,
    period: UnixTime,
    taking: Taking,
    amount: Amount,
}

/// What is held for a request. Empty, and without memory of its own, where no rule concerns it.
pub(super) type Holds = Vec<Hold>;

/// The rates and budgets, and what is used of them.
#[derive(Debug)]
pub(super) struct Limits {
    policy: Arc<Policy>,
    rates: Vec<Limited>,
    budgets: Vec<Budgeted>,
    calendar: Calendar,
    keeping: Keeping,
    debits: u64,
    /// What waits in queues counts for nothing yet; this is how much of each rate whose requests wait.
    waiting: BTreeMap<(u16, Owner), Amount>,
    /// Grants made in this step, to be written down.
    due: Vec<Debit>,
}

impl Limits {
    pub(super) fn new(policy: &Arc<Policy>, calendar: Calendar, keeping: Keeping) -> Self {
        let mut limits = Self {
            rates: (0u16..).zip(&policy.limits).map(|(index, rate)| Limited::new(index, rate)).collect(),
            budgets: (0u16..).zip(&policy.budgets).map(|(index, budget)| Budgeted::new(index, budget)).collect(),
            policy: policy.clone(),
            calendar,
            keeping,
            debits: 0,
            waiting: BTreeMap::new(),
            due: Vec::new(),
        };
        limits.advance(Instant::EPOCH);
        limits
    }

    /// Time has come this far.
    pub(super) fn advance(&mut self, now: Instant) {
        if !self.budgets.is_empty() {
            let wall = self.calendar.at(now);
            self.budgets.iter_mut().for_each(|budgeted| budgeted.advance(wall));
        }
    }

    /// The clocks were compared anew.
    pub(super) fn synchronise(&mut self, calendar: Calendar, now: Instant) {
        self.calendar = calendar;
        self.advance(now);
    }

    /// The class a request competes in, where rules that demote send it to another.
    pub(super) fn demotion(&self, now: Instant, request: &Request) -> Option<Demotion> {
        let from = request.subject.class;
        let mut demotion: Option<Demotion> = None;
        // Each time the rank rises, so this ends.
        while let Some((rule, to)) = self.demoted_from(demotion.map_or(from, |done| done.to), now, request) {
            demotion = Some(Demotion { from, to, rule });
        }
        demotion
    }

    fn demoted_from(&self, class: ClassIndex, now: Instant, request: &Request) -> Option<(Rule, ClassIndex)> {
        let by_rate = self.rates.iter().find_map(|limited| {
            let to = limited.rate.exceeded.demotes_to()?;
            let owner = self.owner(&limited.rate.scope, limited.rate.per, Some(to), request, class)?;
            (!limited.allows(now, request, &owner)).then_some((limited.rule(), to))
        });
        by_rate.or_else(|| {
            self.budgets.iter().find_map(|budgeted| {
                let to = budgeted.budget.spent.demotes_to()?;
                let owner = self.owner(&budgeted.budget.scope, budgeted.budget.per, Some(to), request, class)?;
                (!budgeted.allows(request, &owner)).then_some((budgeted.rule(), to))
            })
        })
    }

    /// Whose use a request counts as, where a rule concerns it.
    fn owner(
        &self,
        scope: &Scope,
        per: Per,
        demotes_to: Option<ClassIndex>,
        request: &Request,
        class: ClassIndex,
    ) -> Option<Owner> {
        let rank = |class: ClassIndex| self.policy.classes[class.index()].rank;
        let subject = &request.subject;
        if demotes_to.is_some_and(|to| rank(class) >= rank(to))
            || !scope.covers(&subject.tenant, &request.model, class, subject.pool)
        {
            return None;
        }
        let tenant = || subject.tenant.clone();
        match per {
            Per::Tenant => Some(Owner::Tenant(tenant())),
            Per::User => request.user.clone().map(|user| Owner::User(tenant(), user)),
            Per::Session => subject.session.clone().map(|session| Owner::Session(tenant(), session)),
            Per::Task => request.task.clone().map(|task| Owner::Task(tenant(), task)),
            Per::Class => Some(Owner::Class(class)),
            Per::Model => Some(Owner::Model(request.model.clone())),
            Per::Pool => Some(Owner::Pool(subject.pool)),
            Per::Global => Some(Owner::Everybody),
        }
    }

    /// Every rate that concerns a request, and whose use it counts as.
    fn rates_of<'a>(&'a self, request: &'a Request) -> impl Iterator<Item = (&'a Limited, Owner)> + 'a {
        self.rates.iter().filter_map(|limited| {
            let (rate, class) = (&limited.rate, request.subject.class);
            let owner = self.owner(&rate.scope, rate.per, rate.exceeded.demotes_to(), request, class)?;
            Some((limited, owner))
        })
    }

    /// Every budget that concerns a request, and whose use it counts as.
    fn budgets_of<'a>(&'a self, request: &'a Request) -> impl Iterator<Item = (&'a Budgeted, Owner)> + 'a {
        self.budgets.iter().filter_map(|budgeted| {
            let (budget, class) = (&budgeted.budget, request.subject.class);
            let owner = self.owner(&budget.scope, budget.per, budget.spent.demotes_to(), request, class)?;
            Some((budgeted, owner))
        })
    }

    /// How every rate that concerns a request stands.
    pub(super) fn rates_found(&self, now: Instant, request: &Request) -> Vec<RuleFound> {
        let rates = self.rates_of(request);
        rates.map(|(limited, owner)| limited.found(now, request, &owner, Amount::ZERO)).collect()
    }

    /// How every budget that concerns a request stands.
    pub(super) fn budgets_found(&self, now: Instant, request: &Request) -> Vec<RuleFound> {
        let wall = self.calendar.at(now);
        self.budgets_of(request).map(|(budgeted, owner)| budgeted.found(wall, request, &owner)).collect()
    }

    /// Whether the rates let a request in. Of several that do not, the one that would last is told.
    pub(super) fn check_rates(&self, now: Instant, request: &Request) -> Result<(), Objection> {
        let rates = self.rates_of(request);
        longest(rates.filter_map(|(limited, owner)| limited.objection(now, request, &owner)))
    }

    /// Whether the budgets cover a request. Of several that do not, the one that would last is told.
    pub(super) fn check_budgets(&self, now: Instant, request: &Request) -> Result<(), Objection> {
        let (budgets, wall) = (self.budgets_of(request), self.calendar.at(now));
        longest(budgets.filter_map(|(budgeted, owner)| budgeted.objection(wall, request, &owner)))
    }

    /// A request is refused, and told when. Those who are refused by the same rate after it are told later.
    pub(super) fn told(&mut self, now: Instant, request: &Request, reason: Reason) {
        let Reason::RateLimited { rule: Rule::Limit(refusing), asked, .. } = reason else { return };
        let owner = self.rates_of(request).find(|(limited, _)| limited.index == refusing).map(|(_, owner)| owner);
        if let Some(owner) = owner {
            self.rates[usize::from(refusing)].buckets.give_turn(&owner, now, asked);
        }
    }

    /// Holds what a request is expected to use, of every rule that concerns it.
    pub(super) fn hold(&mut self, now: Instant, request: &Request) -> Holds {
        let at_once = self.rates_of(request).filter(|(limited, _)| limited.rate.exceeded != Exceeded::Queue);
        let rates: Vec<_> = at_once.map(|(limited, owner)| (limited.index, owner)).collect();
        let budgets: Vec<_> = self.budgets_of(request).map(|(budgeted, owner)| (budgeted.index, owner)).collect();
        let mut holds = Vec::with_capacity(rates.len() + budgets.len());
        for (index, owner) in rates {
            holds.push(self.hold_rate(index, owner, now, request));
        }
        for (index, owner) in budgets {
            let budgeted = &mut self.budgets[usize::from(index)];
            let (rule, amount) = (budgeted.rule(), budgeted.asked(request));
            let period = budgeted.accounts.hold(&owner, amount);
            self.keep(index, period, &owner);
            holds.push(Hold { rule, owner, period, taking: Taking::default(), amount });
        }
        holds
    }

    /// Takes what a request is expected to use of one rate.
    fn hold_rate(&mut self, index: u16, owner: Owner, now: Instant, request: &Request) -> Hold {
        let limited = &mut self.rates[usize::from(index)];
        let (rule, amount) = (limited.rule(), limited.asked(request));
        let taking = limited.buckets.take(&owner, now, amount);
        Hold { rule, owner, period: UnixTime::default(), taking, amount }
    }

    /// The rules that would have refused a request, but only note it.
    pub(super) fn shadows(&self, now: Instant, request: &Request) -> Vec<Rule> {
        let rates = self.rates_of(request).filter(|(limited, owner)| {
            limited.rate.exceeded == Exceeded::Shadow && !limited.allows(now, request, owner)
        });
        let budgets = self
            .budgets_of(request)
            .filter(|(budgeted, owner)| budgeted.budget.spent == Spent::Shadow && !budgeted.allows(request, owner));
        rates.map(|(limited, _)| limited.rule()).chain(budgets.map(|(budgeted, _)| budgeted.rule())).collect()
    }

    /// Gives back all that is held for a request that is not dispatched.
    pub(super) fn release(&mut self, now: Instant, holds: Holds) {
        for Hold { rule, owner, period, taking, amount } in holds {
            match rule {
                Rule::Limit(index) => self.rates[usize::from(index)].buckets.give_back(&owner, now, taking, amount),
                Rule::Budget(index) => {
                    let accounts = &mut self.budgets[usize::from(index)].accounts;
                    accounts.change(period, &owner, Amount::ZERO - amount);
                    accounts.close(period, &owner);
                }
            }
        }
    }

    /// A request in flight has used at least so much.
    pub(super) fn raise(&mut self, now: Instant, holds: &mut Holds, usage: &Usage, prices: (&Price, &Tariff)) {
        for hold in holds {
            let used = self.measure(hold.rule).of(usage, prices.0, prices.1);
            if used > hold.amount {
                self.change(now, hold, used);
            }
        }
    }

    /// A request in flight has ended, having used so much; or, where that is not known, what was held.
    pub(super) fn settle(&mut self, now: Instant, holds: Holds, usage: Option<&Usage>, prices: (&Price, &Tariff)) {
        for mut hold in holds {
            if let Some(usage) = usage {
                let used = self.measure(hold.rule).of(usage, prices.0, prices.1);
                self.change(now, &mut hold, used);
            }
            if let Rule::Budget(index) = hold.rule {
                self.budgets[usize::from(index)].accounts.close(hold.period, &hold.owner);
            }
        }
    }

    /// Brings a hold to an amount.
    fn change(&mut self, now: Instant, hold: &mut Hold, to: Amount) {
        let by = to - hold.amount;
        hold.amount = to;
        match hold.rule {
            Rule::Limit(index) if by.is_positive() => {
                self.rates[usize::from(index)].buckets.take(&hold.owner, now, by);
            }
            Rule::Limit(index) => {
                let buckets = &mut self.rates[usize::from(index)].buckets;
                buckets.give_back(&hold.owner, now, hold.taking, Amount::ZERO - by);
            }
            Rule::Budget(index) => {
                self.budgets[usize::from(index)].accounts.change(hold.period, &hold.owner, by);
                if by.is_positive() {
                    self.keep(index, hold.period, &hold.owner);
                }
            }
        }
    }

    fn measure(&self, rule: Rule) -> Measure {
        match rule {
            Rule::Limit(index) => self.rates[usize::from(index)].rate.measure,
            Rule::Budget(index) => self.budgets[usize::from(index)].budget.measure,
        }
    }

    /// Has what is used written down ahead, where a ledger keeps it.
    fn keep(&mut self, index: u16, period: UnixTime, owner: &Owner) {
        if self.keeping == Keeping::Memory {
            return;
        }
        let number = DebitNumber::new(self.debits + 1);
        if let Some(grant) = self.budgets[usize::from(index)].accounts.grant(period, owner, number) {
            self.debits += 1;
            let period = Bounds { start: period, end: grant.end };
            self.due.push(Debit { number, budget: index, owner: owner.clone(), period, upto: grant.upto });
        }
    }

    /// The grants made since this was last asked.
    pub(super) fn due(&mut self) -> impl Iterator<Item = Debit> {
        self.due.drain(..)
    }

    /// The last of the grants that what is held for a request is covered by.
    pub(super) fn covered_by(&self, holds: &Holds) -> Option<DebitNumber> {
        let debits = holds.iter().filter_map(|hold| match hold.rule {
            Rule::Limit(_) => None,
            Rule::Budget(index) => Some(self.budgets[usize::from(index)].accounts.debit(hold.period, &hold.owner)),
        });
        debits.max().filter(|number| *number > DebitNumber::default())
    }

    /// What was granted before a restart counts as used. What is of a period that is over, or of no budget of this
    /// policy, is not concerned.
    pub(super) fn restore(&mut self, budget: u16, period: UnixTime, owner: &Owner, upto: Amount) {
        if let Some(budgeted) = self.budgets.get_mut(usize::from(budget)) {
            budgeted.accounts.restore(period, owner, upto);
        }
    }

    /// What is left, of every rule that concerns a request.
    pub(super) fn left(&self, now: Instant, request: &Request) -> Vec<RuleLeft> {
        let wall = self.calendar.at(now);
        let rates = self.rates_of(request).map(|(limited, owner)| limited.left(now, &owner));
        rates.chain(self.budgets_of(request).map(|(budgeted, owner)| budgeted.left(wall, &owner))).collect()
    }

    /// Of every budget that anybody has used, what whoever has used most has used.
    pub(super) fn most_used(&self) -> impl Iterator<Item = (u16, Amount)> {
        self.budgets.iter().filter_map(|budgeted| Some((budgeted.index, budgeted.accounts.most_used()?)))
    }

    /// What is used of every budget.
    pub(super) fn used(&self) -> impl Iterator<Item = BudgetUse> {
        self.budgets.iter().flat_map(|Budgeted { index, accounts, .. }| {
            let of = |(owner, period, used): (&Owner, _, _)| BudgetUse {
                budget: *index,
                owner: owner.clone(),
                period,
                used,
            };
            accounts.used().map(of)
        })
    }
}
