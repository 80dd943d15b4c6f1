//! The rows of the admin API. Their fields are an interface: tools read them by name.
//!
//! Amounts of service are exact: written as decimals with up to six places, from integers, so that
//! `reserved = settled + refunded + live` holds in what is shown as it does in the books.

use std::collections::BTreeSet;

use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

use crate::admission::{RequestState, TenantView};
use crate::ledger::{Account, Ledger};
use crate::policy::Policy;
use crate::shell::{Gate, Seen};
use crate::units::{ClassIndex, Instant, PoolIndex, TenantId, VirtualTokens};

/// A tenant in one class of one pool.
#[derive(Debug, Serialize)]
pub(super) struct TenantRow {
    pool: String,
    tenant: String,
    class: String,
    weight: f64,
    #[serde(serialize_with = "exact")]
    virtual_tokens: VirtualTokens,
    #[serde(serialize_with = "exact")]
    charged: VirtualTokens,
    #[serde(serialize_with = "exact")]
    reserved: VirtualTokens,
    #[serde(serialize_with = "exact")]
    settled: VirtualTokens,
    #[serde(serialize_with = "exact")]
    refunded: VirtualTokens,
    #[serde(serialize_with = "exact")]
    live: VirtualTokens,
    queued_requests: u32,
    queued_tokens: u64,
    in_flight_requests: u32,
    in_flight_tokens: u64,
    admitted_total: u64,
    refused_total: u64,
    share_60s: f64,
}

/// One class's queue in one pool.
#[derive(Debug, Serialize)]
pub(super) struct QueueRow {
    pool: String,
    class: String,
    queued_requests: u32,
    queued_tokens: u64,
    queued_bytes: u64,
    eligible_tenants: usize,
    oldest_wait_s: Option<f64>,
    #[serde(serialize_with = "exact_or_null")]
    drain_rate: Option<VirtualTokens>,
    min_share: f64,
    #[serde(serialize_with = "exact")]
    owed: VirtualTokens,
}

/// One pool's window.
#[derive(Debug, Serialize)]
pub(super) struct PoolRow {
    pool: String,
    in_flight_requests: u32,
    in_flight_tokens: u64,
    window_requests: Option<u32>,
    window_tokens: Option<u64>,
    queued_requests: u32,
    queued_tokens: u64,
    #[serde(serialize_with = "exact")]
    peak_in_flight: VirtualTokens,
}

/// One request, queued or in flight.
#[derive(Debug, Serialize)]
pub(super) struct RequestRow {
    decision: String,
    pool: String,
    class: String,
    tenant: String,
    session: Option<String>,
    state: &'static str,
    age_s: f64,
    waited_s: f64,
    deadline_in_s: Option<f64>,
    input_tokens: u64,
    predicted_output: u64,
    output_tokens: u64,
}

fn pool_name(policy: &Policy, pool: PoolIndex) -> String {
    policy.pools[pool.index()].name.to_string()
}

fn class_name(policy: &Policy, class: ClassIndex) -> String {
    policy.classes[class.index()].name.to_string()
}

/// Every tenant's rows, or one's: whoever has work, a counter, an account or a count.
pub(super) fn tenants(policy: &Policy, seen: &Seen<'_>, only: Option<&TenantId>) -> Vec<TenantRow> {
    let wanted = |account: &Account| only.is_none_or(|tenant| *tenant == account.tenant);
    let views: std::collections::BTreeMap<Account, TenantView> = seen
        .engine
        .tenants()
        .into_iter()
        .map(|view| (Account { pool: view.pool, class: view.class, tenant: view.tenant.clone() }, view))
        .filter(|(account, _)| wanted(account))
        .collect();
    let mut accounts: BTreeSet<&Account> = views.keys().collect();
    accounts.extend(seen.ledger.accounts().map(|(account, _)| account).filter(|account| wanted(account)));
    accounts.extend(seen.totals.accounts().filter(|account| wanted(account)));
    accounts.into_iter().map(|account| tenant_row(policy, seen, account, views.get(account))).collect()
}

/// A tenant that the core has forgotten, since it is idle and owes nothing, weighs what the policy says and is shown
/// with what it was charged for its weight.
fn tenant_row(policy: &Policy, seen: &Seen<'_>, account: &Account, view: Option<&TenantView>) -> TenantRow {
    let (total, balance) = (seen.totals.total(account), seen.ledger.balance(account));
    let weight = view.map_or_else(|| policy.tenant(&account.tenant).weight, |view| view.weight);
    TenantRow {
        pool: pool_name(policy, account.pool),
        tenant: account.tenant.to_string(),
        class: class_name(policy, account.class),
        weight: weight.as_f64(),
        virtual_tokens: view.map_or_else(|| total.charged.over(weight), |view| view.virtual_tokens),
        charged: total.charged,
        reserved: balance.reserved,
        settled: balance.settled,
        refunded: balance.refunded,
        live: balance.live(),
        queued_requests: view.map_or(0, |view| view.queued_requests),
        queued_tokens: view.map_or(0, |view| view.queued_tokens.get()),
        in_flight_requests: view.map_or(0, |view| view.in_flight_requests),
        in_flight_tokens: view.map_or(0, |view| view.in_flight_tokens.get()),
        admitted_total: total.admitted,
        refused_total: total.refused,
        share_60s: seen.totals.share_60s(account, seen.now),
    }
}

pub(super) fn queues(policy: &Policy, seen: &Seen<'_>) -> Vec<QueueRow> {
    let row = |queue: crate::admission::QueueView| QueueRow {
        pool: pool_name(policy, queue.pool),
        class: class_name(policy, queue.class),
        queued_requests: queue.requests,
        queued_tokens: queue.tokens.get(),
        queued_bytes: queue.bytes.get(),
        eligible_tenants: queue.eligible_tenants,
        oldest_wait_s: queue.oldest_arrival.map(|since| seen.now.since(since).as_secs_f64()),
        drain_rate: queue.drain_rate,
        min_share: f64::from(queue.min_share.millionths()) / 1e6,
        owed: queue.owed,
    };
    seen.engine.queues().into_iter().map(row).collect()
}

pub(super) fn pools(policy: &Policy, seen: &Seen<'_>) -> Vec<PoolRow> {
    let queues = seen.engine.queues();
    let row = |pool: crate::admission::PoolView| {
        let window = policy.pools[pool.pool.index()].window;
        let queued = queues.iter().filter(|queue| queue.pool == pool.pool);
        PoolRow {
            pool: pool_name(policy, pool.pool),
            in_flight_requests: pool.in_flight_requests,
            in_flight_tokens: pool.in_flight_tokens.get(),
            window_requests: window.requests.cap(),
            window_tokens: window.tokens.cap().map(crate::units::Tokens::get),
            queued_requests: queued.clone().map(|queue| queue.requests).sum(),
            queued_tokens: queued.map(|queue| queue.tokens).sum::<crate::units::Tokens>().get(),
            peak_in_flight: pool.peak_in_flight,
        }
    };
    seen.engine.pools().into_iter().map(row).collect()
}

pub(super) fn requests(gate: &Gate, seen: &Seen<'_>) -> Vec<RequestRow> {
    let policy = gate.policy();
    let row = |view: crate::admission::RequestView| {
        let (state, dispatched, output) = match view.state {
            RequestState::Queued => ("queued", None, 0),
            RequestState::InFlight { since, output, .. } => ("in_flight", Some(since), output.get()),
        };
        let secs = |until: Instant| until.since(view.arrived_at).as_secs_f64();
        RequestRow {
            decision: gate.decision_of(view.request).to_string(),
            pool: pool_name(policy, view.subject.pool),
            class: class_name(policy, view.subject.class),
            tenant: view.subject.tenant.to_string(),
            session: view.subject.session.as_ref().map(ToString::to_string),
            state,
            age_s: secs(seen.now),
            waited_s: secs(dispatched.unwrap_or(seen.now)),
            deadline_in_s: view.deadline.map(|deadline| deadline.since(seen.now).as_secs_f64()),
            input_tokens: view.expected.input().get(),
            predicted_output: view.expected.output().get(),
            output_tokens: output,
        }
    };
    seen.engine.requests().into_iter().map(row).collect()
}

/// An amount as an exact decimal.
fn decimal(amount: VirtualTokens) -> String {
    let micros = amount.as_micros();
    let (sign, size) = (if micros < 0 { "-" } else { "" }, micros.unsigned_abs());
    let text = format!("{sign}{}.{:06}", size / 1_000_000, size % 1_000_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn exact<S: Serializer>(amount: &VirtualTokens, serializer: S) -> Result<S::Ok, S::Error> {
    RawValue::from_string(decimal(*amount)).map_err(serde::ser::Error::custom)?.serialize(serializer)
}

fn exact_or_null<S: Serializer>(amount: &Option<VirtualTokens>, serializer: S) -> Result<S::Ok, S::Error> {
    match amount {
        Some(amount) => exact(amount, serializer),
        None => serializer.serialize_none(),
    }
}

#[cfg(test)]
mod tests {
    use super::decimal;
    use crate::units::VirtualTokens;

    #[test]
    fn amounts_are_written_exactly() {
        let written = |micros: i128| decimal(VirtualTokens::from_micros(micros));
        assert_eq!(written(0), "0");
        assert_eq!(written(100_000_000), "100");
        assert_eq!(written(1), "0.000001");
        assert_eq!(written(-1_500_000), "-1.5");
        assert_eq!(written(123_456_789_012_345_678_901), "123456789012345.678901");
    }
}
