//! Prometheus metrics, from the core's events.
//!
//! Labels are bounded: pools, classes, reasons and outcomes by the policy and the program, tenants by
//! [`Metrics::MOST_TENANTS`], beyond which they are counted together as `other`. Gauges are read from the core when
//! somebody asks. Counters never go down, so what a refund takes back from a fair counter is not here; the service
//! settled is.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use prometheus::{CounterVec, Encoder, GaugeVec, HistogramVec, IntCounterVec, Registry, TextEncoder};

use crate::admission::{Event, Rule, Sight, Signals, Subject};
use crate::policy::Policy;
use crate::units::{ClassIndex, PoolIndex, Span, TenantId, Tokens, Usage};

use super::breakers::{BreakerGauge, Breakers};
use super::leases::{LeaseMetrics, LeaseNews, Lessor, LogEntry};
use super::maker::{Described, Maker};
use super::signals::SignalGauges;
use super::sources::{Source, Sources};

/// All metrics. Cheap to clone; clones count together.
#[derive(Clone, Debug)]
pub struct Metrics {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    policy: Arc<Policy>,
    registry: Registry,
    described: Vec<Described>,
    tenants: Mutex<HashSet<TenantId>>,
    admitted: IntCounterVec,
    refused: IntCounterVec,
    rules: Rules,
    cancelled: IntCounterVec,
    rejected: IntCounterVec,
    settled: IntCounterVec,
    estimated: IntCounterVec,
    disbelieved: IntCounterVec,
    tokens: IntCounterVec,
    service: CounterVec,
    vacated: CounterVec,
    waited: HistogramVec,
    lasted: HistogramVec,
    unknown_tickets: IntCounterVec,
    breakers: Breakers,
    leases: LeaseMetrics,
    queued_requests: GaugeVec,
    queued_tokens: GaugeVec,
    oldest_wait: GaugeVec,
    windows: WindowMetrics,
    prediction: GaugeVec,
    input_estimate: GaugeVec,
    signals: SignalGauges,
    sources: Sources,
}

/// What is told of what is in flight in the pools, and of their windows.
#[derive(Debug)]
struct WindowMetrics {
    in_flight_requests: GaugeVec,
    in_flight_tokens: GaugeVec,
    requests: GaugeVec,
    tokens: GaugeVec,
    blind: GaugeVec,
    moves: IntCounterVec,
}

impl WindowMetrics {
    fn new(maker: &Maker) -> Result<Self, prometheus::Error> {
        Ok(Self {
            in_flight_requests: maker.gauge(
                "tallygate_in_flight_requests",
                "Requests dispatched and unfinished.",
                &["pool"],
            )?,
            in_flight_tokens: maker.gauge("tallygate_in_flight_tokens", "Their tokens.", &["pool"])?,
            requests: maker.gauge(
                "tallygate_window_requests",
                "Requests that may be in flight now, as written or found.",
                &["pool"],
            )?,
            tokens: maker.gauge(
                "tallygate_window_tokens",
                "Tokens that may be in flight now, as written or found.",
                &["pool"],
            )?,
            blind: maker.gauge(
                "tallygate_window_blind",
                "1 where an adaptive window holds as it is because the engine has shown nothing for long.",
                &["pool"],
            )?,
            moves: maker.count(
                "tallygate_window_moves_total",
                "Changes of an adaptive window by an eighth or more, by cause.",
                &["pool", "cause"],
            )?,
        })
    }

    fn show(&self, pool: &str, gauge: &PoolGauge) {
        self.in_flight_requests.with_label_values(&[pool]).set(f64::from(gauge.requests));
        self.in_flight_tokens.with_label_values(&[pool]).set(shown(gauge.tokens));
        if let Some(most) = gauge.most_requests {
            self.requests.with_label_values(&[pool]).set(f64::from(most));
        }
        if let Some(most) = gauge.most_tokens {
            self.tokens.with_label_values(&[pool]).set(shown(most));
        }
        self.blind.with_label_values(&[pool]).set(f64::from(u8::from(gauge.blind)));
    }
}

/// What the gauges show of one class's queue.
#[derive(Clone, Copy, Debug)]
pub struct QueueGauge {
    /// In which pool.
    pub pool: PoolIndex,
    /// Which class.
    pub class: ClassIndex,
    /// Requests waiting.
    pub requests: u32,
    /// Their tokens.
    pub tokens: Tokens,
    /// How long the oldest of them has waited.
    pub oldest: Span,
}

/// What is in flight in one pool, and what may be.
#[derive(Clone, Copy, Debug)]
pub struct PoolGauge {
    /// Which pool.
    pub pool: PoolIndex,
    /// Requests in flight.
    pub requests: u32,
    /// Their tokens.
    pub tokens: Tokens,
    /// How many requests may be in flight now, where there is a cap.
    pub most_requests: Option<u32>,
    /// How many tokens may be in flight now, where there is a cap.
    pub most_tokens: Option<Tokens>,
    /// Whether its window adapts and nothing is known of the engine.
    pub blind: bool,
}

/// What the gauges show, as read from the core at the moment of asking.
#[derive(Clone, Debug, Default)]
pub struct Gauges {
    /// Every queue.
    pub queues: Vec<QueueGauge>,
    /// Every pool.
    pub pools: Vec<PoolGauge>,
    /// Every pool's breaker.
    pub breakers: Vec<BreakerGauge>,
    /// Every budget, and the part of it used by whoever has used most.
    pub budgets: Vec<(Rule, f64)>,
    /// Every pool's load as its engines tell it, and how much it is wanted.
    pub signals: Vec<(Signals, Sight)>,
    /// Mean absolute error and mean error of the output prediction, in tokens.
    pub prediction_error: Vec<(&'static str, f64)>,
    /// The same of the input, as counted and as corrected.
    pub input_error: Vec<(&'static str, f64)>,
}

/// What limits and budgets did.
#[derive(Debug)]
struct Rules {
    limited: IntCounterVec,
    shadowed: IntCounterVec,
    demoted: IntCounterVec,
    hits: IntCounterVec,
    used: GaugeVec,
}

impl Rules {
    fn new(maker: &Maker) -> Result<Self, prometheus::Error> {
        let with = ["pool", "class", "tenant", "rule"];
        Ok(Self {
            limited: maker.count(
                "tallygate_limited_total",
                "Requests refused by a limit or a budget, by its name.",
                &with,
            )?,
            shadowed: maker.count(
                "tallygate_shadowed_total",
                "Requests that a limit or a budget would have refused, were it not in shadow.",
                &with,
            )?,
            hits: maker.count(
                "tallygate_hits_total",
                "Hits that the rate limit service was told, by the limit, what was to be done, and what came of it.",
                &["rule", "kind", "outcome"],
            )?,
            demoted: maker.count(
                "tallygate_demoted_total",
                "Requests that a limit or a budget sent to another class.",
                &["pool", "from", "to", "tenant", "rule"],
            )?,
            used: maker.gauge(
                "tallygate_budget_used_most",
                "The part of a budget used by whoever has used most of it in its period.",
                &["budget"],
            )?,
        })
    }
}

impl Metrics {
    /// The most tenants that are counted by name.
    pub const MOST_TENANTS: usize = 500;

    /// All metrics at zero.
    ///
    /// # Errors
    /// Never in practice: names are fixed, valid and distinct.
    pub fn new(policy: Arc<Policy>) -> Result<Self, prometheus::Error> {
        let maker = Maker::default();
        let who = &["pool", "class", "tenant"][..];
        let with = |more: &'static str| ["pool", "class", "tenant", more];
        let queue = &["pool", "class"][..];
        let mut inner = Inner {
            admitted: maker.count("tallygate_admitted_total", "Requests let through.", who)?,
            refused: maker.count("tallygate_refused_total", "Requests refused by the core.", &with("reason"))?,
            rules: Rules::new(&maker)?,
            cancelled: maker.count("tallygate_cancelled_total", "Requests whose client left the queue.", who)?,
            rejected: maker.count(
                "tallygate_rejected_total",
                "Requests answered by the door itself: malformed, unidentified, upstream unreachable and the like.",
                &["reason"],
            )?,
            settled: maker.count("tallygate_settled_total", "Requests let through that ended.", &with("outcome"))?,
            estimated: maker.count(
                "tallygate_estimated_usage_total",
                "Requests settled by estimate because the upstream reported no usage.",
                &["pool", "outcome"],
            )?,
            disbelieved: maker.count(
                "tallygate_disbelieved_usage_total",
                "Requests whose upstream reported a usage that cannot be, treated as missing.",
                &["pool"],
            )?,
            tokens: maker.count("tallygate_tokens_total", "Tokens settled.", &with("bucket"))?,
            service: maker.amount("tallygate_service_virtual_tokens_total", "Virtual tokens settled.", who)?,
            vacated: maker.amount(
                "tallygate_vacated_virtual_tokens_total",
                "Service that could not be given while room stood empty before requests that then did not use it.",
                who,
            )?,
            waited: maker.histogram("tallygate_queue_seconds", "Time from arrival to dispatch.", queue)?,
            lasted: maker.histogram(
                "tallygate_request_seconds",
                "Time from dispatch to the end.",
                &["pool", "class", "outcome"],
            )?,
            unknown_tickets: maker.count(
                "tallygate_unknown_tickets_total",
                "Reports on tickets that are not live.",
                &[],
            )?,
            breakers: Breakers::new(&maker)?,
            leases: LeaseMetrics::new(&maker)?,
            queued_requests: maker.gauge("tallygate_queued_requests", "Requests waiting.", queue)?,
            queued_tokens: maker.gauge("tallygate_queued_tokens", "Tokens waiting.", queue)?,
            oldest_wait: maker.gauge("tallygate_oldest_wait_seconds", "How long the oldest has waited.", queue)?,
            windows: WindowMetrics::new(&maker)?,
            prediction: maker.error("tallygate_prediction_error_tokens", "Error of the output prediction.")?,
            input_estimate: maker
                .error("tallygate_input_error_tokens", "Error of the input expected, and of the bare count of it.")?,
            signals: SignalGauges::new(&maker)?,
            sources: Sources::new(&maker)?,
            tenants: Mutex::new(HashSet::new()),
            policy,
            registry: Registry::new(),
            described: Vec::new(),
        };
        (inner.registry, inner.described) = maker.finish();
        Ok(Self { inner: Arc::new(inner) })
    }

    /// What each metric is, by name.
    #[must_use]
    pub fn described(&self) -> &[Described] {
        &self.inner.described
    }

    /// Counts an event of the core.
    pub fn note(&self, event: &Event) {
        let inner = &*self.inner;
        match event {
            Event::Dispatched { subject, waited, .. } => {
                let [pool, class, tenant] = inner.who(subject);
                inner.admitted.with_label_values(&[pool, class, tenant]).inc();
                inner.waited.with_label_values(&[pool, class]).observe(waited.as_secs_f64());
            }
            Event::Refused { refusal, .. } => {
                let [pool, class, tenant] = inner.who(&refusal.subject);
                inner.refused.with_label_values(&[pool, class, tenant, refusal.reason.code()]).inc();
                if let Some(rule) = refusal.reason.rule() {
                    inner.rules.limited.with_label_values(&[pool, class, tenant, inner.rule(rule)]).inc();
                }
            }
            Event::Cancelled { subject, .. } => {
                inner.cancelled.with_label_values(&inner.who(subject)).inc();
            }
            Event::Settled { subject, outcome, usage, estimated, cost, lasted, .. } => {
                let [pool, class, tenant] = inner.who(subject);
                inner.settled.with_label_values(&[pool, class, tenant, outcome.name()]).inc();
                inner.lasted.with_label_values(&[pool, class, outcome.name()]).observe(lasted.as_secs_f64());
                inner.service.with_label_values(&[pool, class, tenant]).inc_by(cost.as_f64().max(0.0));
                for (bucket, tokens) in buckets(usage) {
                    inner.tokens.with_label_values(&[pool, class, tenant, bucket]).inc_by(tokens.get());
                }
                if *estimated {
                    inner.estimated.with_label_values(&[pool, outcome.name()]).inc();
                }
            }
            Event::Vacated { subject, amount, .. } => {
                inner.vacated.with_label_values(&inner.who(subject)).inc_by(amount.as_f64().max(0.0));
            }
            Event::WindowMoved { pool, found, .. } => {
                inner.windows.moves.with_label_values(&[inner.pool(*pool), found.cause.name()]).inc();
            }
            Event::UnknownTicket { .. } => inner.unknown_tickets.with_label_values::<&str>(&[]).inc(),
            Event::Breaker { pool, tenant, stage, .. } => {
                inner.breakers.shifted(inner.pool(*pool), tenant.as_ref(), *stage);
            }
            Event::Demoted { subject, demotion, .. } => {
                let [pool, _, tenant] = inner.who(subject);
                let (from, to) = (inner.class(demotion.from), inner.class(demotion.to));
                inner.rules.demoted.with_label_values(&[pool, from, to, tenant, inner.rule(demotion.rule)]).inc();
            }
            Event::Shadowed { subject, rule, .. } => {
                let [pool, class, tenant] = inner.who(subject);
                inner.rules.shadowed.with_label_values(&[pool, class, tenant, inner.rule(*rule)]).inc();
            }
            Event::Hit { limit, kind, outcome, .. } => {
                let rule = inner.rule(Rule::Limit(*limit));
                inner.rules.hits.with_label_values(&[rule, kind.name(), outcome.name()]).inc();
            }
            Event::Queued { .. } | Event::Charged { .. } => {}
        }
    }

    /// Counts an answer of the door's own.
    pub fn rejected(&self, reason: &str) {
        self.inner.rejected.with_label_values(&[reason]).inc();
    }

    /// Counts a batch of grants that was to be written.
    pub fn ledger_written(&self, written: bool) {
        let result = if written { "written" } else { "failed" };
        self.inner.signals.ledger.with_label_values(&[result]).inc();
    }

    /// Counts a reading of what an engine says of its load.
    pub fn engine_read(&self, pool: PoolIndex, read: bool) {
        let result = if read { "read" } else { "failed" };
        self.inner.signals.reads.with_label_values(&[self.inner.pool(pool), result]).inc();
    }

    /// Counts what would have become of a request that went on whatever was decided: `admitted`, `waited`, `refused` with
    /// a reason, or `unread` with what was missing.
    pub fn tried(&self, verdict: &str, reason: &str) {
        self.inner.sources.tried(verdict, reason);
    }

    /// Counts from where it is known what a request asks for.
    pub fn quoted_from(&self, source: Source) {
        self.inner.sources.quoted(source);
    }

    /// Counts from where it is known what an answer used.
    pub fn used_from(&self, source: Source) {
        self.inner.sources.used(source);
    }

    /// Counts a request whose upstream reported a usage that cannot be.
    pub fn disbelieved(&self, pool: PoolIndex) {
        self.inner.disbelieved.with_label_values(&[self.inner.pool(pool)]).inc();
    }

    /// Counts what happened to a lease.
    pub fn lease(&self, lessor: Lessor, news: LeaseNews) {
        self.inner.leases.note(lessor, news);
    }

    /// Counts a record of Envoy's access log.
    pub fn log_entry(&self, entry: LogEntry) {
        self.inner.leases.entry(entry);
    }

    /// Everything in Prometheus' text format.
    ///
    /// # Errors
    /// When a metric cannot be encoded, which none of these can fail to be.
    pub fn render(&self, gauges: &Gauges) -> Result<String, prometheus::Error> {
        let inner = &*self.inner;
        for queue in &gauges.queues {
            let place = [inner.pool(queue.pool), inner.class(queue.class)];
            inner.queued_requests.with_label_values(&place).set(f64::from(queue.requests));
            inner.queued_tokens.with_label_values(&place).set(shown(queue.tokens));
            inner.oldest_wait.with_label_values(&place).set(queue.oldest.as_secs_f64());
        }
        for gauge in &gauges.pools {
            inner.windows.show(inner.pool(gauge.pool), gauge);
        }
        for gauge in &gauges.breakers {
            inner.breakers.show(inner.pool(gauge.pool), gauge);
        }
        for (budget, used) in &gauges.budgets {
            inner.rules.used.with_label_values(&[inner.rule(*budget)]).set(*used);
        }
        for (signals, sight) in &gauges.signals {
            inner.signals.show(inner.pool(signals.pool), signals, sight);
        }
        for (measure, error) in &gauges.prediction_error {
            inner.prediction.with_label_values(&[*measure]).set(*error);
        }
        for (measure, error) in &gauges.input_error {
            inner.input_estimate.with_label_values(&[*measure]).set(*error);
        }
        let mut text = Vec::new();
        TextEncoder::new().encode(&inner.registry.gather(), &mut text)?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}

impl Inner {
    fn pool(&self, pool: PoolIndex) -> &str {
        &self.policy.pools[pool.index()].name
    }

    fn class(&self, class: ClassIndex) -> &str {
        &self.policy.classes[class.index()].name
    }

    fn rule(&self, rule: Rule) -> &str {
        match rule {
            Rule::Limit(index) => &self.policy.limits[usize::from(index)].name,
            Rule::Budget(index) => &self.policy.budgets[usize::from(index)].name,
        }
    }

    /// The labels that say whose.
    fn who<'a>(&'a self, subject: &'a Subject) -> [&'a str; 3] {
        let mut known = self.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        let named = known.contains(&subject.tenant)
            || (known.len() < Metrics::MOST_TENANTS && known.insert(subject.tenant.clone()));
        let tenant = if named { subject.tenant.as_str() } else { "other" };
        [self.pool(subject.pool), self.class(subject.class), tenant]
    }
}

#[expect(clippy::cast_precision_loss, reason = "a gauge is for looking at")]
pub(super) fn shown(tokens: Tokens) -> f64 {
    tokens.get() as f64
}

fn buckets(usage: &Usage) -> [(&'static str, Tokens); 5] {
    [
        ("input", usage.uncached_input),
        ("cached_input", usage.cached_input),
        ("cache_write", usage.cache_write),
        ("output", usage.visible_output),
        ("reasoning", usage.reasoning_output),
    ]
}
