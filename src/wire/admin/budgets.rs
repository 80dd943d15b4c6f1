//! What is used of every budget, by whom, in which period.

use jiff::Timestamp;
use serde::Serialize;

use crate::admission::Owner;
use crate::policy::model::Bounds;
use crate::shell::{Broken, Gate};
use crate::units::UnixTime;

/// An account of a budget. Amounts are in the budget's own unit.
#[derive(Debug, Serialize)]
pub(super) struct BudgetRow {
    budget: String,
    per: &'static str,
    tenant: Option<String>,
    /// The user, session, task, class, model or pool it is for, where it is for one.
    of: Option<String>,
    unit: &'static str,
    amount: f64,
    /// With what is held for requests that have not ended.
    used: f64,
    left: f64,
    period: &'static str,
    /// Nothing where no calendar ends it.
    since: Option<String>,
    until: Option<String>,
}

/// Every account that something was used of, in the policy's order of budgets, the most used first.
pub(super) fn rows(gate: &Gate) -> Result<Vec<BudgetRow>, Broken> {
    let policy = gate.policy();
    let mut used = gate.look(|seen| seen.engine.budgets())?;
    used.sort_by(|a, b| (a.budget, b.used).cmp(&(b.budget, a.used)));
    let rows = used.into_iter().map(|account| {
        let budget = &policy.budgets[usize::from(account.budget)];
        let name = |class: usize| policy.classes[class].name.to_string();
        let (tenant, of) = match account.owner {
            Owner::Tenant(tenant) => (Some(tenant.to_string()), None),
            Owner::User(tenant, user) => (Some(tenant.to_string()), Some(user.to_string())),
            Owner::Session(tenant, session) => (Some(tenant.to_string()), Some(session.to_string())),
            Owner::Task(tenant, task) => (Some(tenant.to_string()), Some(task.to_string())),
            Owner::Class(class) => (None, Some(name(class.index()))),
            Owner::Model(model) => (None, Some(model.to_string())),
            Owner::Pool(pool) => (None, Some(policy.pools[pool.index()].name.to_string())),
            Owner::Everybody => (None, None),
        };
        let ends = account.period != Bounds::ALWAYS.start;
        let bounds = budget.period.around(account.period);
        BudgetRow {
            budget: budget.name.to_string(),
            per: budget.per.name(),
            tenant,
            of,
            unit: budget.measure.name(),
            amount: budget.amount.as_f64(budget.measure),
            used: account.used.as_f64(budget.measure),
            left: (budget.amount - account.used).as_f64(budget.measure),
            period: budget.period.name(),
            since: ends.then(|| stamp(bounds.start)),
            until: ends.then(|| stamp(bounds.end)),
        }
    });
    Ok(rows.collect())
}

fn stamp(moment: UnixTime) -> String {
    Timestamp::from_nanosecond(i128::from(moment.as_nanos())).unwrap_or(Timestamp::MAX).to_string()
}
