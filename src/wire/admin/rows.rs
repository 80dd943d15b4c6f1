//! The rows of the admin API. Their fields are an interface: tools read them by name.
//!
//! Behind the gate's lock plain values are copied and nothing else, since every request waits for it; what is sorted,
//! matched and put into words is so afterwards.
//!
//! Amounts of service are exact: written as decimals with up to six places, from integers, so that
//! `reserved = settled + refunded + live` holds in what is shown as it does in the books.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::admission::{BreakerStage, RequestState, Sight, Signals, TenantView};
use crate::ledger::{Account, Balance};
use crate::observe::Total;
use crate::policy::Policy;
use crate::shell::{Broken, Gate};
use crate::units::{ClassIndex, Instant, PoolIndex, Span, TenantId, Tokens, VirtualTokens};

use super::super::exact::{exact, exact_or_null};

/// A tenant in one class of one pool.
#[derive(Debug, Serialize)]
pub(super) struct TenantRow {
    pool: String,
    tenant: String,
    class: String,
    weight: f64,
    /// Nothing for a tenant that the core has forgotten.
    #[serde(serialize_with = "exact_or_null")]
    virtual_tokens: Option<VirtualTokens>,
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
    max_share: Option<f64>,
    in_flight_requests: u32,
    in_flight_tokens: u64,
}

/// One pool's window.
#[derive(Debug, Serialize)]
pub(super) struct PoolRow {
    pool: String,
    in_flight_requests: u32,
    in_flight_tokens: u64,
    window_requests: Option<u32>,
    window_tokens: Option<u64>,
    /// Of a window that adapts: requests that may be in flight without having begun to answer.
    window_waiting: Option<u32>,
    /// Why it last changed by an eighth or more, and how long ago.
    window_cause: Option<&'static str>,
    window_changed_s: Option<f64>,
    /// The mean time of an answer, by which it adapts.
    window_period_s: Option<f64>,
    window_blind: Option<bool>,
    queued_requests: u32,
    queued_tokens: u64,
    #[serde(serialize_with = "exact")]
    peak_in_flight: VirtualTokens,
    /// Nothing where the policy sets none.
    breaker: Option<BreakerRow>,
    saturation: Option<f64>,
    backlog_s: Option<f64>,
    predicted_wait_s: Option<f64>,
    /// `seen`, `blind`, or nothing where the policy names no place to read it from.
    engine: Option<&'static str>,
    engine_age_s: Option<f64>,
    engine_waiting: Option<u64>,
    engine_running: Option<u64>,
    engine_kv_usage: Option<f64>,
    engine_preemptions: Option<u64>,
    engine_kv_tokens: Option<u64>,
    engine_faults: Vec<String>,
}

/// A pool's breaker.
#[derive(Debug, Serialize)]
struct BreakerRow {
    #[serde(flatten)]
    stage: StageRow,
    /// The tenants that are treated otherwise than the others.
    tenants: Vec<HeldBackRow>,
}

#[derive(Debug, Serialize)]
struct HeldBackRow {
    tenant: String,
    #[serde(flatten)]
    stage: StageRow,
}

/// How an upstream is treated: `serving`, `returning`, `paused`, `tripped` or `probing`.
#[derive(Debug, Serialize)]
struct StageRow {
    stage: &'static str,
    /// For how long, where that is known.
    for_s: Option<f64>,
    /// How many requests may be in flight, of those sent since it returned.
    most_requests: Option<u32>,
}

impl StageRow {
    fn new(stage: BreakerStage, now: Instant) -> Self {
        let most_requests = match stage {
            BreakerStage::Returning { most } => Some(most),
            _ => None,
        };
        Self { stage: stage.name(), for_s: stage.until().map(|until| until.since(now).as_secs_f64()), most_requests }
    }
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

pub(super) fn pool_name(policy: &Policy, pool: PoolIndex) -> String {
    policy.pools[pool.index()].name.to_string()
}

pub(super) fn class_name(policy: &Policy, class: ClassIndex) -> String {
    policy.classes[class.index()].name.to_string()
}

/// What is copied of the tenants.
struct Tenants {
    views: BTreeMap<Account, TenantView>,
    books: BTreeMap<Account, Balance>,
    totals: BTreeMap<Account, (Total, f64)>,
}

/// Every tenant's rows, or one's: whoever has work, a counter, an account or a count.
pub(super) fn tenants(gate: &Gate, only: Option<&TenantId>) -> Result<Vec<TenantRow>, Broken> {
    let wanted = |account: &Account| only.is_none_or(|tenant| *tenant == account.tenant);
    let (views, books, totals) = gate.look(|seen| {
        let books: Vec<_> = seen
            .ledger
            .accounts()
            .filter(|(account, _)| wanted(account))
            .map(|(account, balance)| (account.clone(), balance))
            .collect();
        let total = |account: &Account| (seen.totals.total(account), seen.totals.share_60s(account, seen.now));
        let totals: Vec<_> = seen
            .totals
            .accounts()
            .filter(|account| wanted(account))
            .map(|account| (account.clone(), total(account)))
            .collect();
        (seen.engine.tenants(), books, totals)
    })?;
    let account = |view: &TenantView| Account { pool: view.pool, class: view.class, tenant: view.tenant.clone() };
    let views = views.into_iter().map(|view| (account(&view), view)).filter(|(account, _)| wanted(account)).collect();
    let copy = Tenants { views, books: books.into_iter().collect(), totals: totals.into_iter().collect() };
    let accounts: BTreeSet<&Account> = copy.views.keys().chain(copy.books.keys()).chain(copy.totals.keys()).collect();
    Ok(accounts.into_iter().map(|account| tenant_row(gate.policy(), &copy, account)).collect())
}

/// A tenant that the core has forgotten, since it is idle and owes nothing, weighs what the policy says and has no
/// counter.
fn tenant_row(policy: &Policy, copy: &Tenants, account: &Account) -> TenantRow {
    let view = copy.views.get(account);
    let balance = copy.books.get(account).copied().unwrap_or_default();
    let (total, share_60s) = copy.totals.get(account).copied().unwrap_or_default();
    TenantRow {
        pool: pool_name(policy, account.pool),
        tenant: account.tenant.to_string(),
        class: class_name(policy, account.class),
        weight: view.map_or_else(|| policy.tenant(&account.tenant).weight, |view| view.weight).as_f64(),
        virtual_tokens: view.map(|view| view.virtual_tokens),
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
        share_60s,
    }
}

pub(super) fn queues(gate: &Gate) -> Result<Vec<QueueRow>, Broken> {
    let policy = gate.policy();
    let (now, queues) = gate.look(|seen| (seen.now, seen.engine.queues()))?;
    let row = |queue: crate::admission::QueueView| QueueRow {
        pool: pool_name(policy, queue.pool),
        class: class_name(policy, queue.class),
        queued_requests: queue.requests,
        queued_tokens: queue.tokens.get(),
        queued_bytes: queue.bytes.get(),
        eligible_tenants: queue.eligible_tenants,
        oldest_wait_s: queue.oldest_arrival.map(|since| now.since(since).as_secs_f64()),
        drain_rate: queue.drain_rate,
        min_share: f64::from(queue.min_share.millionths()) / 1e6,
        owed: queue.owed,
        max_share: queue.max_share.cap().map(|share| f64::from(share.millionths()) / 1e6),
        in_flight_requests: queue.in_flight_requests,
        in_flight_tokens: queue.in_flight_tokens.get(),
    };
    Ok(queues.into_iter().map(row).collect())
}

pub(super) fn pools(gate: &Gate) -> Result<Vec<PoolRow>, Broken> {
    let policy = gate.policy();
    let (now, pools, signals) = gate.look(|seen| {
        let signals = seen.engine.signals(seen.now).into_iter();
        let signals: Vec<_> = signals.map(|signals| (signals, seen.engine.sight(signals.pool, seen.now))).collect();
        (seen.now, seen.engine.pools(), signals)
    })?;
    let row = |(pool, (signals, sight)): (crate::admission::PoolView, (Signals, Sight))| {
        let (window, adapted) = (pool.caps, pool.adapted);
        let gauges = sight.gauges().copied().unwrap_or_default();
        let secs = |span: Option<Span>| span.map(Span::as_secs_f64);
        let (engine, age) = match sight {
            Sight::Unwatched => (None, None),
            Sight::Seen { age, .. } => (Some("seen"), Some(age)),
            Sight::Blind { age } => (Some("blind"), age),
        };
        PoolRow {
            pool: pool_name(policy, pool.pool),
            in_flight_requests: pool.in_flight_requests,
            in_flight_tokens: pool.in_flight_tokens.get(),
            window_requests: window.requests.cap(),
            window_tokens: window.tokens.cap().map(Tokens::get),
            window_waiting: adapted.map(|adapted| adapted.found.waiting),
            window_cause: adapted.map(|adapted| adapted.found.cause.name()),
            window_changed_s: adapted.map(|adapted| now.since(adapted.found.at).as_secs_f64()),
            window_period_s: adapted.map(|adapted| adapted.period.as_secs_f64()),
            window_blind: adapted.map(|adapted| adapted.blind),
            queued_requests: signals.queued.requests,
            queued_tokens: signals.queued.tokens.get(),
            peak_in_flight: pool.peak_in_flight,
            breaker: pool.breaker.map(|stage| BreakerRow {
                stage: StageRow::new(stage, now),
                tenants: pool
                    .held_back
                    .into_iter()
                    .map(|(tenant, stage)| HeldBackRow { tenant: tenant.to_string(), stage: StageRow::new(stage, now) })
                    .collect(),
            }),
            saturation: signals.saturation.map(|saturation| saturation.as_f64()),
            backlog_s: secs(signals.backlog),
            predicted_wait_s: secs(signals.wait),
            engine,
            engine_age_s: secs(age),
            engine_waiting: gauges.waiting,
            engine_running: gauges.running,
            engine_kv_usage: gauges.kv_usage.map(|usage| f64::from(usage.millionths()) / 1e6),
            engine_preemptions: gauges.preemptions,
            engine_kv_tokens: gauges.kv_capacity.map(Tokens::get),
            engine_faults: gate.watch_faults(pool.pool),
        }
    };
    Ok(pools.into_iter().zip(signals).map(row).collect())
}

pub(super) fn requests(gate: &Gate) -> Result<Vec<RequestRow>, Broken> {
    let policy = gate.policy();
    let (now, requests) = gate.look(|seen| (seen.now, seen.engine.requests()))?;
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
            age_s: secs(now),
            waited_s: secs(dispatched.unwrap_or(now)),
            deadline_in_s: view.deadline.map(|deadline| deadline.since(now).as_secs_f64()),
            input_tokens: view.expected.input().get(),
            predicted_output: view.expected.output().get(),
            output_tokens: output,
        }
    };
    Ok(requests.into_iter().map(row).collect())
}
