use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::super::gate::tests::ask;
use super::{Gate, Grant, GrantKey, Owner, Store, StoreError, read_owner, written_owner};
use crate::observe::{Decisions, Keep, Metrics};
use crate::policy::{Policy, parse};
use crate::shell::{Denied, Patience, Permit};
use crate::units::{Bytes, ClassIndex, Model, PoolIndex, SessionId, Span, TaskId, TenantId, UnixTime, UserId};

fn policy(text: &str) -> Policy {
    parse("policy.yaml", &format!("version: 1\n{text}\n"), |_| unreachable!("no keys")).expect("valid")
}

#[test]
fn owners_are_written_by_name_and_read_back_whatever_is_in_them() {
    let before = policy("pools: [{name: a, models: [x]}, {name: b}]");
    let (tenant, odd) = (TenantId::from("acme"), "\"],[\u{7}é/\\");
    for owner in [
        Owner::Tenant(TenantId::from(odd)),
        Owner::User(tenant.clone(), UserId::from(odd)),
        Owner::Session(tenant.clone(), SessionId::from(odd)),
        Owner::Task(tenant, TaskId::from("")),
        Owner::Class(ClassIndex::new(2)),
        Owner::Model(Model::from("m")),
        Owner::Pool(PoolIndex::new(1)),
        Owner::Everybody,
    ] {
        let written = written_owner(&before, &owner);
        assert_eq!(read_owner(&before, &written), Some(owner), "{written}");
    }
    // Positions move with the policy, names do not.
    let after = policy("pools: [{name: b, models: [x]}, {name: c}]");
    let second = written_owner(&before, &Owner::Pool(PoolIndex::new(1)));
    assert_eq!(read_owner(&after, &second), Some(Owner::Pool(PoolIndex::new(0))));
    assert_eq!(read_owner(&after, &written_owner(&before, &Owner::Pool(PoolIndex::new(0)))), None, "it is gone");
    for bad in ["", "{}", "[]", "[\"tenant\"]", "[\"nobody\",\"a\"]", "[1]"] {
        assert_eq!(read_owner(&after, bad), None, "{bad}");
    }
}

/// A store that can be told to fail.
#[derive(Debug, Default)]
struct Disk {
    grants: BTreeMap<GrantKey, Grant>,
    full: Arc<AtomicBool>,
    writes: Arc<AtomicU64>,
}

impl Store for Disk {
    fn grants(&self) -> Result<Vec<Grant>, StoreError> {
        Ok(self.grants.values().cloned().collect())
    }

    fn debit(&mut self, grants: &[Grant]) -> Result<(), StoreError> {
        if self.full.load(Ordering::SeqCst) {
            return Err(StoreError { place: "disk".into(), what: "it is full".into(), fix: "make room" });
        }
        self.writes.fetch_add(1, Ordering::SeqCst);
        self.grants.extend(grants.iter().map(|grant| (grant.key.clone(), grant.clone())));
        Ok(())
    }

    fn settle(&mut self, used: &[Grant]) -> Result<(), StoreError> {
        self.debit(used)
    }

    fn forget_before(&mut self, _moment: UnixTime) -> Result<u64, StoreError> {
        Ok(0)
    }
}

/// A hundred requests a tenant, granted one by one.
fn gate(disk: Disk) -> Gate {
    let policy = Arc::new(policy("budgets: [{name: all, per: tenant, requests: 100, period: month}]"));
    let metrics = Metrics::new(policy.clone()).expect("valid metrics");
    let decisions = Decisions::new(Keep { most: 10, bytes: Bytes::new(100_000) });
    Gate::start_keeping(policy, metrics, decisions, (1, 7), Box::new(disk)).expect("it is read")
}

async fn admitted(gate: &Gate) -> Result<Permit, Denied> {
    gate.admit(ask(gate, "acme", Patience::default())).await
}

#[tokio::test(start_paused = true)]
async fn nothing_passes_that_is_not_written_and_all_of_it_once_it_can_be() {
    let disk = Disk::default();
    let (full, writes) = (disk.full.clone(), disk.writes.clone());
    let gate = gate(disk);
    let first = admitted(&gate).await.expect("it is written");
    assert_eq!(writes.load(Ordering::SeqCst), 1, "before it was let through");
    drop(first);

    full.store(true, Ordering::SeqCst);
    let denied = loop {
        // What is granted ahead may still cover one.
        match admitted(&gate).await {
            Ok(permit) => drop(permit),
            Err(denied) => break denied,
        }
    };
    assert!(matches!(denied, Denied::Broken), "{denied:?}");
    assert_eq!(gate.ledger_fault().as_deref(), Some("the ledger disk: it is full; make room"));
    assert!(
        gate.look(|seen| seen.engine.pools()[0].in_flight_requests).is_ok_and(|flying| flying == 0),
        "none is stuck"
    );

    full.store(false, Ordering::SeqCst);
    while gate.ledger_fault().is_some() {
        gate.clock().sleep(Span::from_millis(100)).await;
    }
    drop(admitted(&gate).await.expect("it is written again"));
    gate.close_ledger().await.expect("written");
    gate.close_ledger().await.expect("closing twice does no harm");
}

#[tokio::test(start_paused = true)]
async fn whoever_leaves_while_its_grant_is_written_holds_nothing() {
    let gate = gate(Disk::default());
    let asking = admitted(&gate);
    let mut asking = Box::pin(asking);
    let once = std::future::poll_fn(|context| std::task::Poll::Ready(asking.as_mut().poll(context).is_pending()));
    assert!(once.await, "it waits for the disk");
    drop(asking);
    gate.idle().await.expect("not broken");
}
