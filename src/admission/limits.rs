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
mod waiting;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::policy::Policy;
use crate::policy::model::{Bounds, Exceeded, Per, Scope, Spent};
use crate::units::{Amount, Calendar, ClassIndex, Instant, Measure, Price, Span, Tariff, UnixTime, Usage};

use super::budget::{Accounts, DebitNumber};
use super::order::{Objection, Wait};
use super::rate::{Buckets, Taking};
use super::refusal::Reason;
use super::request::Request;
use super::rule::{BudgetUse, Debit, Demotion, Keeping, Owner, Rule, RuleFound, RuleLeft};

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
    rates: Vec<Buckets>,
    budgets: Vec<Accounts>,
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
            rates: policy.limits.iter().map(Buckets::new).collect(),
            budgets: policy.budgets.iter().map(Accounts::new).collect(),
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
            self.budgets
                .iter_mut()
                .zip(&self.policy.budgets)
                .for_each(|(accounts, budget)| accounts.advance(budget, wall));
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
        let rate = (0u16..).zip(&self.policy.limits).find_map(|(index, rate)| {
            let to = rate.exceeded.demotes_to()?;
            let owner = self.owner(&rate.scope, rate.per, Some(to), request, class)?;
            let buckets = &self.rates[usize::from(index)];
            (!buckets.allows(&owner, now, asked(rate.measure, request))).then_some((Rule::Limit(index), to))
        });
        rate.or_else(|| {
            (0u16..).zip(&self.policy.budgets).find_map(|(index, budget)| {
                let to = budget.spent.demotes_to()?;
                let owner = self.owner(&budget.scope, budget.per, Some(to), request, class)?;
                let accounts = &self.budgets[usize::from(index)];
                (!accounts.allows(&owner, asked(budget.measure, request))).then_some((Rule::Budget(index), to))
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
    fn rates_of<'a>(&'a self, request: &'a Request) -> impl Iterator<Item = (u16, Exceeded, Owner)> + 'a {
        (0u16..).zip(&self.policy.limits).filter_map(|(index, rate)| {
            let to = rate.exceeded.demotes_to();
            let owner = self.owner(&rate.scope, rate.per, to, request, request.subject.class)?;
            Some((index, rate.exceeded, owner))
        })
    }

    /// Every budget that concerns a request, and whose use it counts as.
    fn budgets_of<'a>(&'a self, request: &'a Request) -> impl Iterator<Item = (u16, Spent, Owner)> + 'a {
        (0u16..).zip(&self.policy.budgets).filter_map(|(index, budget)| {
            let to = budget.spent.demotes_to();
            let owner = self.owner(&budget.scope, budget.per, to, request, request.subject.class)?;
            Some((index, budget.spent, owner))
        })
    }

    /// How every rate that concerns a request stands.
    pub(super) fn rates_found(&self, now: Instant, request: &Request) -> Vec<RuleFound> {
        let found = self.rates_of(request).map(|(index, _, owner)| {
            let (rate, buckets) = (&self.policy.limits[usize::from(index)], &self.rates[usize::from(index)]);
            let asked = asked(rate.measure, request);
            let wait = buckets.wait(&owner, now, Amount::ZERO, asked);
            RuleFound {
                rule: Rule::Limit(index),
                per: rate.per,
                measure: rate.measure,
                asked,
                left: buckets.left(&owner, now),
                most: rate.burst,
                exceeded: wait > Span::ZERO,
                wait: Some(wait),
            }
        });
        found.collect()
    }

    /// How every budget that concerns a request stands.
    pub(super) fn budgets_found(&self, now: Instant, request: &Request) -> Vec<RuleFound> {
        let found = self.budgets_of(request).map(|(index, _, owner)| {
            let (budget, accounts) = (&self.policy.budgets[usize::from(index)], &self.budgets[usize::from(index)]);
            let (asked, left) = (asked(budget.measure, request), accounts.left(&owner));
            let exceeded = !accounts.allows(&owner, asked);
            let wait = if exceeded { self.covered_in(index, now, request) } else { Some(Span::ZERO) };
            RuleFound {
                rule: Rule::Budget(index),
                per: budget.per,
                measure: budget.measure,
                asked,
                left,
                most: budget.amount,
                exceeded,
                wait,
            }
        });
        found.collect()
    }

    fn whole_in(&self, period: Bounds, now: Instant) -> Option<Span> {
        (period.end < UnixTime::FAR).then(|| period.end.since(self.calendar.at(now)))
    }

    /// How long until a budget that does not cover a request will; nothing where it never does. By input alone, since a
    /// prediction may be wrong, and "never" must not be.
    fn covered_in(&self, index: u16, now: Instant, request: &Request) -> Option<Span> {
        let budget = &self.policy.budgets[usize::from(index)];
        let least = budget.measure.of(&request.expected.input_only(), &request.price, &request.tariff);
        self.whole_in(self.budgets[usize::from(index)].bounds(), now).filter(|_| least <= budget.amount)
    }

    /// Whether the rates let a request in. Of several that do not, the one that would last is told.
    pub(super) fn check_rates(&self, now: Instant, request: &Request) -> Result<(), Objection> {
        let mut worst: Option<(Span, Objection)> = None;
        for (index, exceeded, owner) in self.rates_of(request) {
            if !matches!(exceeded, Exceeded::Refuse | Exceeded::Queue) {
                continue;
            }
            let (rate, buckets) = (&self.policy.limits[usize::from(index)], &self.rates[usize::from(index)]);
            let (per, measure, rule) = (rate.per, rate.measure, Rule::Limit(index));
            // By input alone: a prediction may be wrong, and "never" must not be.
            let least = measure.of(&request.expected.input_only(), &request.price, &request.tariff);
            if least > rate.burst {
                let reason = Reason::BeyondBurst { rule, measure, asked: least, burst: rate.burst };
                return Err(Objection { reason, wait: Wait::Forever });
            }
            let asked = asked(measure, request);
            if exceeded == Exceeded::Queue || buckets.allows(&owner, now, asked) {
                continue;
            }
            let span = buckets.turn(&owner, now, asked);
            if worst.is_none_or(|(longest, _)| span > longest) {
                let left = buckets.left(&owner, now);
                let reason = Reason::RateLimited { rule, per, measure, asked, left, burst: rate.burst };
                worst = Some((span, Objection { reason, wait: Wait::For(span) }));
            }
        }
        worst.map_or(Ok(()), |(_, objection)| Err(objection))
    }

    /// Whether the budgets cover a request. Of several that do not, the one that would last is told.
    pub(super) fn check_budgets(&self, now: Instant, request: &Request) -> Result<(), Objection> {
        let mut worst: Option<(Option<Span>, Objection)> = None;
        for (index, spent, owner) in self.budgets_of(request) {
            let (budget, accounts) = (&self.policy.budgets[usize::from(index)], &self.budgets[usize::from(index)]);
            let (asked, left) = (asked(budget.measure, request), accounts.left(&owner));
            if spent != Spent::Refuse || accounts.allows(&owner, asked) {
                continue;
            }
            let wait = self.covered_in(index, now, request);
            // Never is longer than any time.
            if worst.is_none_or(|(longest, _)| longest.is_some_and(|longest| wait.is_none_or(|wait| wait > longest))) {
                let (rule, per, measure) = (Rule::Budget(index), budget.per, budget.measure);
                let reason = Reason::BudgetSpent { rule, per, measure, asked, left, amount: budget.amount };
                worst = Some((wait, Objection { reason, wait: wait.map_or(Wait::Forever, Wait::For) }));
            }
        }
        worst.map_or(Ok(()), |(_, objection)| Err(objection))
    }

    /// A request is refused, and told when. Those who are refused by the same rate after it are told later.
    pub(super) fn told(&mut self, now: Instant, request: &Request, reason: Reason) {
        let Reason::RateLimited { rule: Rule::Limit(refusing), asked, .. } = reason else { return };
        let owner = self.rates_of(request).find(|(index, ..)| *index == refusing).map(|(_, _, owner)| owner);
        if let Some(owner) = owner {
            self.rates[usize::from(refusing)].give_turn(&owner, now, asked);
        }
    }

    /// Holds what a request is expected to use, of every rule that concerns it.
    pub(super) fn hold(&mut self, now: Instant, request: &Request) -> Holds {
        let rates: Vec<_> = self.rates_of(request).filter(|(_, exceeded, _)| *exceeded != Exceeded::Queue).collect();
        let budgets: Vec<_> = self.budgets_of(request).collect();
        let mut holds = Vec::with_capacity(rates.len() + budgets.len());
        for (index, _, owner) in rates {
            let amount = asked(self.policy.limits[usize::from(index)].measure, request);
            let taking = self.rates[usize::from(index)].take(&owner, now, amount);
            holds.push(Hold { rule: Rule::Limit(index), owner, period: UnixTime::default(), taking, amount });
        }
        for (index, _, owner) in budgets {
            let amount = asked(self.policy.budgets[usize::from(index)].measure, request);
            let period = self.budgets[usize::from(index)].hold(&owner, amount);
            self.keep(index, period, &owner);
            holds.push(Hold { rule: Rule::Budget(index), owner, period, taking: Taking::default(), amount });
        }
        holds
    }

    /// The rules that would have refused a request, but only note it.
    pub(super) fn shadows(&self, now: Instant, request: &Request) -> Vec<Rule> {
        let rates = self.rates_of(request).filter(|(_, exceeded, _)| *exceeded == Exceeded::Shadow);
        let rates = rates.filter_map(|(index, _, owner)| {
            let asked = asked(self.policy.limits[usize::from(index)].measure, request);
            (!self.rates[usize::from(index)].allows(&owner, now, asked)).then_some(Rule::Limit(index))
        });
        let budgets = self.budgets_of(request).filter(|(_, spent, _)| *spent == Spent::Shadow);
        let budgets = budgets.filter_map(|(index, _, owner)| {
            let asked = asked(self.policy.budgets[usize::from(index)].measure, request);
            (!self.budgets[usize::from(index)].allows(&owner, asked)).then_some(Rule::Budget(index))
        });
        rates.chain(budgets).collect()
    }

    /// Gives back all that is held for a request that is not dispatched.
    pub(super) fn release(&mut self, now: Instant, holds: Holds) {
        for Hold { rule, owner, period, taking, amount } in holds {
            match rule {
                Rule::Limit(index) => self.rates[usize::from(index)].give_back(&owner, now, taking, amount),
                Rule::Budget(index) => {
                    let accounts = &mut self.budgets[usize::from(index)];
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
                self.budgets[usize::from(index)].close(hold.period, &hold.owner);
            }
        }
    }

    /// Brings a hold to an amount.
    fn change(&mut self, now: Instant, hold: &mut Hold, to: Amount) {
        let by = to - hold.amount;
        hold.amount = to;
        match hold.rule {
            Rule::Limit(index) if by.is_positive() => {
                self.rates[usize::from(index)].take(&hold.owner, now, by);
            }
            Rule::Limit(index) => {
                self.rates[usize::from(index)].give_back(&hold.owner, now, hold.taking, Amount::ZERO - by);
            }
            Rule::Budget(index) => {
                self.budgets[usize::from(index)].change(hold.period, &hold.owner, by);
                if by.is_positive() {
                    self.keep(index, hold.period, &hold.owner);
                }
            }
        }
    }

    fn measure(&self, rule: Rule) -> Measure {
        match rule {
            Rule::Limit(index) => self.policy.limits[usize::from(index)].measure,
            Rule::Budget(index) => self.policy.budgets[usize::from(index)].measure,
        }
    }

    /// Has what is used written down ahead, where a ledger keeps it.
    fn keep(&mut self, index: u16, period: UnixTime, owner: &Owner) {
        if self.keeping == Keeping::Memory {
            return;
        }
        let number = DebitNumber::new(self.debits + 1);
        if let Some(grant) = self.budgets[usize::from(index)].grant(period, owner, number) {
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
            Rule::Budget(index) => Some(self.budgets[usize::from(index)].debit(hold.period, &hold.owner)),
        });
        debits.max().filter(|number| *number > DebitNumber::default())
    }

    /// What was granted before a restart counts as used. What is of a period that is over, or of no budget of this
    /// policy, is not concerned.
    pub(super) fn restore(&mut self, budget: u16, period: UnixTime, owner: &Owner, upto: Amount) {
        if let Some(accounts) = self.budgets.get_mut(usize::from(budget)) {
            accounts.restore(period, owner, upto);
        }
    }

    /// What is left, of every rule that concerns a request.
    pub(super) fn left(&self, now: Instant, request: &Request) -> Vec<RuleLeft> {
        let rates = self.rates_of(request).map(|(index, _, owner)| {
            let (rate, buckets) = (&self.policy.limits[usize::from(index)], &self.rates[usize::from(index)]);
            RuleLeft {
                rule: Rule::Limit(index),
                measure: rate.measure,
                most: rate.burst,
                left: buckets.left(&owner, now),
                whole_in: Some(buckets.whole_in(&owner, now)),
                warning: None,
            }
        });
        let budgets = self.budgets_of(request).map(|(index, _, owner)| {
            let (budget, accounts) = (&self.policy.budgets[usize::from(index)], &self.budgets[usize::from(index)]);
            let left = accounts.left(&owner);
            let used = (budget.amount - left).parts().saturating_mul(1_000_000) / budget.amount.parts().max(1);
            let warning = budget.warn_at.iter().rev().find(|part| used >= i128::from(part.millionths())).copied();
            RuleLeft {
                rule: Rule::Budget(index),
                measure: budget.measure,
                most: budget.amount,
                left,
                whole_in: self.whole_in(accounts.bounds(), now),
                warning,
            }
        });
        rates.chain(budgets).collect()
    }

    /// Of every budget that anybody has used, what whoever has used most has used.
    pub(super) fn most_used(&self) -> impl Iterator<Item = (u16, Amount)> {
        (0u16..).zip(&self.budgets).filter_map(|(budget, accounts)| Some((budget, accounts.most_used()?)))
    }

    /// What is used of every budget.
    pub(super) fn used(&self) -> impl Iterator<Item = BudgetUse> {
        (0u16..).zip(&self.budgets).flat_map(|(budget, accounts)| {
            accounts.used().map(move |(owner, period, used)| BudgetUse { budget, owner: owner.clone(), period, used })
        })
    }
}

fn asked(measure: Measure, request: &Request) -> Amount {
    measure.of(&request.expected, &request.price, &request.tariff)
}
