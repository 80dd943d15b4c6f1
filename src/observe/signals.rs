//! Gauges of each pool for whoever scales it, and of what its engines say.
//!
//! What is not known is not shown: a gauge that vanishes makes an autoscaler keep what it has, where a zero would make
//! it take engines away. What each means is defined in `admission/signals.rs` and `admission/gauges.rs`.

use prometheus::{GaugeVec, IntCounterVec};

use crate::admission::{Sight, Signals};
use crate::units::{Share, Span, Tokens};

use super::maker::Maker;
use super::metrics::shown;

/// The gauges of pools.
#[derive(Debug)]
pub(super) struct SignalGauges {
    /// Readings of what engines say, by how they went.
    pub(super) reads: IntCounterVec,
    /// Batches of grants written, by how they went.
    pub(super) ledger: IntCounterVec,
    saturation: GaugeVec,
    backlog: GaugeVec,
    wait: GaugeVec,
    queued_requests: GaugeVec,
    queued_tokens: GaugeVec,
    blind: GaugeVec,
    age: GaugeVec,
    waiting: GaugeVec,
    running: GaugeVec,
    kv_usage: GaugeVec,
    preemptions: GaugeVec,
    kv_capacity: GaugeVec,
}

impl SignalGauges {
    pub(super) fn new(maker: &Maker) -> Result<Self, prometheus::Error> {
        let gauge = |name: &str, help: &str| maker.gauge(&format!("tallygate_{name}"), help, &["pool"]);
        let reads = "Readings of what engines say of their load.";
        Ok(Self {
            ledger: maker.count("tallygate_ledger_writes_total", "Batches of budgets' grants written.", &["result"])?,
            reads: maker.count("tallygate_engine_reads_total", reads, &["pool", "result"])?,
            saturation: gauge(
                "pool_saturation",
                "What is in flight and what waits over the window, in the scarcer of tokens and requests; 1 is just full.",
            )?,
            backlog: gauge("pool_backlog_seconds", "How long all that waits takes to be let through.")?,
            wait: gauge(
                "pool_predicted_wait_seconds",
                "How long a newcomer of weight 1 in the default class would wait.",
            )?,
            queued_requests: gauge("pool_queued_requests", "Requests waiting, of all classes.")?,
            queued_tokens: gauge("pool_queued_tokens", "Tokens waiting, of all classes.")?,
            blind: gauge("engine_blind", "Whether what the engines say of their load is missing or too old.")?,
            age: gauge("engine_age_seconds", "How old the oldest of what the engines say is.")?,
            waiting: gauge("engine_waiting_requests", "Requests in the engines' own queues.")?,
            running: gauge("engine_running_requests", "Requests in the engines' running batches.")?,
            kv_usage: gauge("engine_kv_usage", "The part of its KV memory that the fullest engine uses.")?,
            preemptions: gauge("engine_preemptions", "Requests the engines pushed out, since they started.")?,
            kv_capacity: gauge("engine_kv_tokens", "Tokens that fit into the engines' KV memory.")?,
        })
    }

    /// Shows what is known of a pool, and nothing of what is not.
    pub(super) fn show(&self, pool: &str, signals: &Signals, sight: &Sight) {
        let set = |gauge: &GaugeVec, value: Option<f64>| match value {
            Some(value) => gauge.with_label_values(&[pool]).set(value),
            // It may not have been shown before.
            None => drop(gauge.remove_label_values(&[pool])),
        };
        let secs = |span: Option<Span>| span.map(Span::as_secs_f64);
        set(&self.saturation, signals.saturation.map(|saturation| saturation.as_f64()));
        set(&self.backlog, secs(signals.backlog));
        set(&self.wait, secs(signals.wait));
        set(&self.queued_requests, Some(f64::from(signals.queued.requests)));
        set(&self.queued_tokens, Some(shown(signals.queued.tokens)));
        let (blind, age) = match sight {
            Sight::Unwatched => (None, None),
            Sight::Seen { age, .. } => (Some(0.0), Some(*age)),
            Sight::Blind { age } => (Some(1.0), *age),
        };
        set(&self.blind, blind);
        set(&self.age, secs(age));
        let gauges = sight.gauges().copied().unwrap_or_default();
        let count = |count: Option<u64>| count.map(Tokens::new).map(shown);
        set(&self.waiting, count(gauges.waiting));
        set(&self.running, count(gauges.running));
        set(&self.kv_usage, gauges.kv_usage.map(share));
        set(&self.preemptions, count(gauges.preemptions));
        set(&self.kv_capacity, gauges.kv_capacity.map(shown));
    }
}

fn share(share: Share) -> f64 {
    f64::from(share.millionths()) / 1e6
}
