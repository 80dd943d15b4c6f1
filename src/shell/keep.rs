//! Keeps what budgets grant in a store that outlives the process.
//!
//! The core grants ahead of use and says which grant covers each ticket. One task writes the grants, all that are due in
//! one batch, on a thread that may wait for the disk; a ticket whose grant is not written yet waits for it, and everything
//! else goes on. A batch that fails lets nothing through: who waits for it is answered with an error, `/readyz` says so,
//! and it is tried again every second. *Bound:* what is due is at most one grant an account, what waits is in flight. At
//! a clean end the store is told what was really used; after a crash it knows what was granted, at most a slice more.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, PoisonError};

use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use tokio::sync::{Notify, mpsc, oneshot};

use crate::admission::{BudgetUse, Debit, DebitNumber, Input, Owner, Restored};
use crate::ledger::{Grant, GrantKey, Store, StoreError};
use crate::policy::Policy;
use crate::units::{ClassIndex, Model, PoolIndex, SessionId, Span, TaskId, TenantId, UnixTime, UserId};

use super::clock::Clock;
use super::desk::Delivery;
use super::gate::{Gate, WeakGate};
use super::permit::Permit;

/// How long a period that ended is kept, for a clock that is set back.
const KEPT_AFTER_END: Span = Span::from_secs(24 * 60 * 60);
/// How often such periods are looked for.
const FORGET_EVERY: Span = Span::from_secs(60 * 60);
/// How long after a failure it is tried again.
const AGAIN_AFTER: Span = Span::from_secs(1);

/// What the desk knows of grants: those to be written, and who waits for them.
#[derive(Debug, Default)]
pub(super) struct Uncovered {
    due: BTreeMap<GrantKey, Grant>,
    last_due: DebitNumber,
    written: DebitNumber,
    waiting: Vec<(DebitNumber, Delivery)>,
}

impl Uncovered {
    pub(super) fn is_due(&self) -> bool {
        !self.due.is_empty()
    }

    /// A grant is to be written.
    pub(super) fn grant(&mut self, policy: &Policy, debit: Debit) {
        let Debit { number, budget, owner, period, upto } = debit;
        self.last_due = self.last_due.max(number);
        let key = key(policy, budget, &owner, period.start);
        self.due.insert(key.clone(), Grant { key, end: period.end, upto });
    }

    /// Whether what covers a verdict is written. If not, it waits here.
    pub(super) fn pass(&mut self, delivery: Delivery) -> Option<Delivery> {
        let needed = delivery.verdict.as_ref().ok().and_then(|(ticket, ..)| ticket.covered_by);
        match needed {
            Some(number) if number > self.written => {
                self.waiting.push((number, delivery));
                None
            }
            Some(_) | None => Some(delivery),
        }
    }

    fn take(&mut self) -> (Vec<Grant>, DebitNumber) {
        (std::mem::take(&mut self.due).into_values().collect(), self.last_due)
    }

    /// They could not be written: newer ones of the same accounts stand.
    fn give_back(&mut self, grants: Vec<Grant>) -> Vec<Delivery> {
        for grant in grants {
            self.due.entry(grant.key.clone()).or_insert(grant);
        }
        self.waiting.drain(..).map(|(_, delivery)| delivery).collect()
    }

    fn written(&mut self, upto: DebitNumber) -> Vec<Delivery> {
        self.written = self.written.max(upto);
        let covered = self.waiting.extract_if(.., |(number, _)| *number <= upto);
        covered.map(|(_, delivery)| delivery).collect()
    }
}

/// The gate's side of the task that keeps.
#[derive(Debug)]
pub(super) struct Keeper {
    work: Arc<Notify>,
    closing: mpsc::Sender<oneshot::Sender<Result<(), StoreError>>>,
    fault: Mutex<Option<String>>,
    told: DefaultDirectRateLimiter,
}

/// The task's side.
#[derive(Debug)]
pub(super) struct Keeping {
    work: Arc<Notify>,
    closing: mpsc::Receiver<oneshot::Sender<Result<(), StoreError>>>,
    store: Option<Box<dyn Store>>,
}

impl Keeper {
    pub(super) fn new() -> (Self, Keeping) {
        let (work, (closing, closed)) = (Arc::new(Notify::new()), mpsc::channel(1));
        let told = RateLimiter::direct(Quota::per_minute(NonZeroU32::MIN));
        let keeping = Keeping { work: work.clone(), closing: closed, store: None };
        (Self { work, closing, fault: Mutex::new(None), told }, keeping)
    }

    /// There is something to be written.
    pub(super) fn wake(&self) {
        self.work.notify_one();
    }

    fn went(&self, outcome: Result<(), &StoreError>) {
        let fault = outcome.err().map(ToString::to_string);
        if let Some(fault) = &fault
            && self.told.check().is_ok()
        {
            tracing::error!(fault, "what budgets grant cannot be written; requests that need it are refused");
        }
        let mut kept = self.fault.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.is_some() && fault.is_none() {
            tracing::info!("what budgets grant can be written again");
        }
        *kept = fault;
    }
}

impl Keeping {
    /// With the store to write to.
    pub(super) fn with(self, store: Box<dyn Store>) -> Self {
        Self { store: Some(store), ..self }
    }

    /// Writes what is due until the gate is closed or gone.
    pub(super) async fn go_on(mut self, gate: WeakGate, clock: Clock) {
        let mut forgotten_at = clock.now();
        let mut failed = false;
        loop {
            let pause = if failed { AGAIN_AFTER } else { FORGET_EVERY };
            tokio::select! {
                biased;
                closing = self.closing.recv() => {
                    let (Some(done), Some(gate)) = (closing, gate.upgrade()) else { return };
                    let used = gate.budgets_used();
                    let outcome = self.on_disk(move |store| store.settle(&used)).await;
                    // Whoever closes may have stopped waiting.
                    let _nobody = done.send(outcome);
                    return;
                }
                () = self.work.notified(), if !failed => {}
                () = clock.sleep(pause) => {}
            }
            let Some(gate) = gate.upgrade() else { return };
            failed = self.write(&gate).await.is_err();
            if clock.now().since(forgotten_at) >= FORGET_EVERY {
                forgotten_at = clock.now();
                let before = forgettable(&clock);
                if let Err(error) = self.on_disk(move |store| store.forget_before(before).map(drop)).await {
                    gate.ledger_went(Err(&error));
                }
            }
        }
    }

    async fn write(&mut self, gate: &Gate) -> Result<(), ()> {
        let (grants, upto) = gate.take_due();
        if grants.is_empty() {
            return Ok(());
        }
        let batch = grants.clone();
        let written = self.on_disk(move |store| store.debit(&batch)).await;
        gate.ledger_went(written.as_ref().copied());
        match written {
            Ok(()) => gate.written(upto),
            Err(_) => gate.not_written(grants),
        }
        written.map_err(|_told| ())
    }

    /// Does something with the store where waiting holds nobody up.
    async fn on_disk(
        &mut self,
        act: impl FnOnce(&mut dyn Store) -> Result<(), StoreError> + Send + 'static,
    ) -> Result<(), StoreError> {
        let gone = || StoreError {
            place: "task".into(),
            what: "it broke while writing".into(),
            fix: "restart the gateway, and report what the log says",
        };
        let mut store = self.store.take().ok_or_else(gone)?;
        let acted = tokio::task::spawn_blocking(move || {
            let outcome = act(&mut *store);
            (store, outcome)
        });
        let (store, outcome) = acted.await.map_err(|_panicked| gone())?;
        self.store = Some(store);
        outcome
    }
}

impl Gate {
    /// Counts as used what the store kept, but for budgets that this policy does not have.
    ///
    /// # Errors
    /// When the store cannot be read or written.
    pub(super) fn recall(&self, store: &mut dyn Store) -> Result<(), StoreError> {
        store.forget_before(forgettable(self.clock()))?;
        let grants = store.grants()?;
        let all = grants.len();
        let restored: Vec<Restored> = grants.into_iter().filter_map(|grant| restored(self.policy(), &grant)).collect();
        let (read, others) = (restored.len(), all - restored.len());
        tracing::info!(read, others, "what budgets granted before was read; others are of budgets the policy has not");
        // A core that was just made is not broken.
        let _broken = self.tell(Input::Restore(restored));
        Ok(())
    }

    /// Why what budgets grant cannot be written, while it cannot.
    #[must_use]
    pub fn ledger_fault(&self) -> Option<String> {
        let fault = self.keeper()?.fault.lock().unwrap_or_else(PoisonError::into_inner);
        fault.clone()
    }

    /// Tells the store what was really used, and closes it. To be called when nothing more will be.
    ///
    /// # Errors
    /// When that cannot be written; then everything granted counts as used.
    pub async fn close_ledger(&self) -> Result<(), StoreError> {
        let Some(keeper) = self.keeper() else { return Ok(()) };
        let (done, closed) = oneshot::channel();
        if keeper.closing.send(done).await.is_err() {
            return Ok(());
        }
        closed.await.unwrap_or(Ok(()))
    }

    fn ledger_went(&self, outcome: Result<(), &StoreError>) {
        self.metrics().ledger_written(outcome.is_ok());
        if let Some(keeper) = self.keeper() {
            keeper.went(outcome);
        }
    }

    fn take_due(&self) -> (Vec<Grant>, DebitNumber) {
        self.with_uncovered(Uncovered::take).unwrap_or_default()
    }

    fn written(&self, upto: DebitNumber) {
        self.deliver(self.with_uncovered(|uncovered| uncovered.written(upto)).unwrap_or_default());
    }

    /// Whoever waited is not let through: its permit is given back unused, and it is told nothing but that.
    fn not_written(&self, grants: Vec<Grant>) {
        let waiting = self.with_uncovered(|uncovered| uncovered.give_back(grants)).unwrap_or_default();
        for Delivery { to, verdict } in waiting {
            drop(to);
            drop(verdict.map(|admitted| Permit::new(self.clone(), admitted)));
        }
    }

    fn budgets_used(&self) -> Vec<Grant> {
        let policy = self.policy();
        let used = self.look(|seen| seen.engine.budgets()).unwrap_or_default();
        let grant = |BudgetUse { budget, owner, period, used }: BudgetUse| Grant {
            key: key(policy, budget, &owner, period),
            end: policy.budgets[usize::from(budget)].period.around(period).end,
            upto: used,
        };
        used.into_iter().map(grant).collect()
    }
}

/// Periods that ended before this may be forgotten.
fn forgettable(clock: &Clock) -> UnixTime {
    let now = clock.calendar().at(clock.now());
    let back = i64::try_from(KEPT_AFTER_END.as_nanos()).unwrap_or(i64::MAX);
    UnixTime::from_nanos(now.as_nanos().saturating_sub(back))
}

fn key(policy: &Policy, budget: u16, owner: &Owner, period: UnixTime) -> GrantKey {
    let rule = &policy.budgets[usize::from(budget)];
    let (budget, measure) = (rule.name.to_string(), rule.measure.name().to_owned());
    GrantKey { budget, measure, owner: written_owner(policy, owner), period }
}

/// An owner by names, as a list in JSON, which no name can break.
fn written_owner(policy: &Policy, owner: &Owner) -> String {
    let parts = match owner {
        Owner::Tenant(tenant) => vec!["tenant", tenant.as_str()],
        Owner::User(tenant, user) => vec!["user", tenant.as_str(), user.as_str()],
        Owner::Session(tenant, session) => vec!["session", tenant.as_str(), session.as_str()],
        Owner::Task(tenant, task) => vec!["task", tenant.as_str(), task.as_str()],
        Owner::Class(class) => vec!["class", &policy.classes[class.index()].name],
        Owner::Model(model) => vec!["model", model.as_str()],
        Owner::Pool(pool) => vec!["pool", &policy.pools[pool.index()].name],
        Owner::Everybody => vec!["everybody"],
    };
    serde_json::Value::from(parts).to_string()
}

/// The owner that was written so; nothing where the policy does not know it any more.
fn read_owner(policy: &Policy, text: &str) -> Option<Owner> {
    let parts: Vec<String> = serde_json::from_str(text).ok()?;
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    let position = |at: usize| u16::try_from(at).ok();
    Some(match parts[..] {
        ["tenant", tenant] => Owner::Tenant(TenantId::from(tenant)),
        ["user", tenant, user] => Owner::User(TenantId::from(tenant), UserId::from(user)),
        ["session", tenant, session] => Owner::Session(TenantId::from(tenant), SessionId::from(session)),
        ["task", tenant, task] => Owner::Task(TenantId::from(tenant), TaskId::from(task)),
        ["class", name] => {
            let at = policy.classes.iter().position(|class| &*class.name == name)?;
            Owner::Class(ClassIndex::new(position(at)?))
        }
        ["model", model] => Owner::Model(Model::from(model)),
        ["pool", name] => {
            let at = policy.pools.iter().position(|pool| &*pool.name == name)?;
            Owner::Pool(PoolIndex::new(position(at)?))
        }
        ["everybody"] => Owner::Everybody,
        _ => return None,
    })
}

fn restored(policy: &Policy, grant: &Grant) -> Option<Restored> {
    let Grant { key: GrantKey { budget, measure, owner, period }, upto, .. } = grant;
    let at = policy.budgets.iter().position(|rule| *rule.name == **budget && rule.measure.name() == measure)?;
    let owner = read_owner(policy, owner)?;
    Some(Restored { budget: u16::try_from(at).ok()?, owner, period: *period, upto: *upto })
}

#[cfg(test)]
mod tests;
