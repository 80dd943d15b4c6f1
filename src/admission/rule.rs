//! What a limit or a budget is to a request: which rule, whose use, what is left.

use crate::policy::model::{Bounds, Per};
use crate::units::{
    Amount, ClassIndex, Measure, Model, PoolIndex, SessionId, Share, Span, TaskId, TenantId, UnixTime, UserId,
};

use super::budget::DebitNumber;

/// A rule of the policy, by its position in its list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rule {
    /// Of `limits`.
    Limit(u16),
    /// Of `budgets`.
    Budget(u16),
}

/// Whose use counts together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Owner {
    /// A tenant's.
    Tenant(TenantId),
    /// A user's of a tenant.
    User(TenantId, UserId),
    /// A session's of a tenant.
    Session(TenantId, SessionId),
    /// A task's of a tenant.
    Task(TenantId, TaskId),
    /// A class's.
    Class(ClassIndex),
    /// A model's.
    Model(Model),
    /// A pool's.
    Pool(PoolIndex),
    /// Everybody's.
    Everybody,
}

/// A grant of a budget that has to be written down before what it covers may be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Debit {
    /// Its number. Greater than that of any before it.
    pub number: DebitNumber,
    /// Of which of the policy's budgets.
    pub budget: u16,
    /// To whom.
    pub owner: Owner,
    /// In which period.
    pub period: Bounds,
    /// How much in all since the period began. Never less than before.
    pub upto: Amount,
}

/// Who keeps what budgets have granted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Keeping {
    /// Nobody but the core: a restart begins anew.
    #[default]
    Memory,
    /// A ledger, which is told by [`Effect::Debit`](super::Effect::Debit) ahead of use.
    Ledger,
}

/// How a rule stands for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleFound {
    /// Which.
    pub rule: Rule,
    /// Whose use it counts together.
    pub per: Per,
    /// What it counts.
    pub measure: Measure,
    /// What the request is expected to take of it.
    pub asked: Amount,
    /// What is left of it now; less than nothing where there is a debt.
    pub left: Amount,
    /// The most there can be: a rate's burst, a budget's whole.
    pub most: Amount,
    /// Whether the request exceeds it.
    pub exceeded: bool,
    /// How long until it would not; nothing where no time helps.
    pub wait: Option<Span>,
}

/// What is left of a rule, for whoever asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleLeft {
    /// Which.
    pub rule: Rule,
    /// What it counts.
    pub measure: Measure,
    /// The most there can be: a rate's burst, a budget's whole.
    pub most: Amount,
    /// What is left; less than nothing where there is a debt.
    pub left: Amount,
    /// How long until there is the most again; nothing where that never is.
    pub whole_in: Option<Span>,
    /// The greatest part used from which on a warning is due, where one is.
    pub warning: Option<Share>,
}

/// A request that competes in another class than it asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demotion {
    /// The class it would have competed in.
    pub from: ClassIndex,
    /// The class it competes in.
    pub to: ClassIndex,
    /// The rule that sent it there last.
    pub rule: Rule,
}

/// What is used of a budget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BudgetUse {
    /// Of which of the policy's budgets.
    pub budget: u16,
    /// Whose.
    pub owner: Owner,
    /// The start of the period.
    pub period: UnixTime,
    /// How much, with what is held for requests that have not ended.
    pub used: Amount,
}
