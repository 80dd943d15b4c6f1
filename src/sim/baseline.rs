//! What others put in front of an engine, to hold the core against: nothing, a rate of requests, a gradient.
//!
//! A claim that admission by cost is worth its trouble is worth nothing without what it is compared with, and these
//! are compared on the same clients, the same engine and the same clock. They live here and not in the product.
//!
//! - **Nothing.** Every request goes to the engine at once, which queues first come, first served.
//! - **Requests per minute.** A bucket for every tenant, refilled evenly, that knows nothing of tokens. Whoever finds
//!   it empty is refused and told when it will have refilled.
//! - **Adaptive concurrency**, as Envoy's filter of that name computes it: for a while at `least` requests at once it
//!   takes the median latency of whole answers for the least there can be, `minRTT`; then, every `every`, from the
//!   median latency `sampleRTT` of the answers since,
//!   `gradient = clamp(minRTT × (1 + buffer) / sampleRTT, 0.5, 2)` and `limit = gradient × limit + √(gradient × limit)`,
//!   within `least` and `most`. What is over the limit is refused, without a time to come back. After `refresh`, or
//!   when the limit stood at `least` for five updates, it measures `minRTT` anew.
//!
//! Clients are those of [`Demand`]: they leave, come back and ask in closed loops as they do before the core. The
//! world is a second, small one, so that none of what it shows depends on the core's own.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use crate::costing::Predictor;
use crate::ledger::Balance;
use crate::units::{Instant, RequestId, Span, TenantId};

use super::demand::{Demand, Fate};
use super::engine::{Job, JobId, Progress, SimEngine, Watch};
use super::record::{Outcome, Record};
use super::spec::EngineSpec;
use super::world::{Run, Setup};

/// The largest rate and buffer that can be asked for.
const MOST_PER_MINUTE: f64 = 1e6;
const MOST_BUFFER: f64 = 100.0;

/// What stands in front of the engine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Baseline {
    /// Nothing: no admission control.
    Nothing,
    /// A rate of requests for every tenant.
    RequestsPerMinute {
        /// How many a tenant may send in a minute.
        per_tenant: f64,
        /// How many it may send at once, after a pause.
        burst: f64,
    },
    /// Envoy's adaptive concurrency.
    AdaptiveConcurrency(Gradient),
}

/// The settings of adaptive concurrency.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gradient {
    /// How much slower than the least latency is still fine: `0.25` for a quarter.
    pub buffer: f64,
    /// How often the limit is updated.
    pub every: Span,
    /// How often the least latency is measured anew.
    pub refresh: Span,
    /// From how many answers it is measured.
    pub samples: usize,
    /// Requests at once meanwhile, and never fewer.
    pub least: f64,
    /// Requests at once, never more.
    pub most: f64,
}

impl Default for Gradient {
    /// Envoy's own but for the times, which are made for answers of seconds: an update every ten seconds instead of
    /// every tenth of one, and a measurement of the least latency from 20 answers every ten minutes.
    fn default() -> Self {
        Self {
            buffer: 0.25,
            every: Span::from_secs(10),
            refresh: Span::from_secs(600),
            samples: 20,
            least: 3.0,
            most: 1_000.0,
        }
    }
}

impl Baseline {
    /// As [`run`], with all that is told of a run: there are no books and no predictions to speak of.
    #[must_use]
    pub fn run(self, setup: &Setup, demands: &[Demand]) -> Run {
        Run {
            records: run(self, &setup.engine, demands),
            engine_queue_share: 0.0,
            accuracy: Predictor::new(setup.policy.cost.effort).accuracy(),
            books: Balance::default(),
            facts: Vec::new(),
            bookings: Vec::new(),
            faults: Vec::new(),
            load: Vec::new(),
            window_moves: Vec::new(),
        }
    }
}

impl std::str::FromStr for Baseline {
    type Err = String;

    /// `nothing`, `requests-per-minute=N`, `adaptive-concurrency` or `adaptive-concurrency=BUFFER`.
    fn from_str(text: &str) -> Result<Self, String> {
        let (name, value) = text.split_once('=').map_or((text, None), |(name, value)| (name, Some(value)));
        let number = |most: f64| {
            let number = value.and_then(|value| value.parse::<f64>().ok());
            let valid = number.filter(|number| *number > 0.0 && *number <= most);
            valid.ok_or_else(|| format!("{text:?} needs a number above 0 and at most {most} after {name}="))
        };
        match name {
            "nothing" if value.is_none() => Ok(Self::Nothing),
            "requests-per-minute" => {
                let per_tenant = number(MOST_PER_MINUTE)?;
                Ok(Self::RequestsPerMinute { per_tenant, burst: (per_tenant / 6.0).max(1.0) })
            }
            "adaptive-concurrency" if value.is_none() => Ok(Self::AdaptiveConcurrency(Gradient::default())),
            "adaptive-concurrency" => {
                Ok(Self::AdaptiveConcurrency(Gradient { buffer: number(MOST_BUFFER)?, ..Gradient::default() }))
            }
            _ => Err(format!(
                "{text:?} is none of nothing, requests-per-minute=N, adaptive-concurrency and adaptive-concurrency=BUFFER, such as adaptive-concurrency=0.25"
            )),
        }
    }
}

/// Runs the clients against a baseline until every request has ended, and says what became of each.
#[must_use]
pub fn run(baseline: Baseline, engine: &EngineSpec, demands: &[Demand]) -> Vec<Record> {
    let mut world = World {
        gate: Gate::new(baseline),
        engine: SimEngine::new(engine.clone()),
        demands: Vec::new(),
        records: Vec::new(),
        arrivals: BinaryHeap::new(),
        departures: BinaryHeap::new(),
        now: Instant::EPOCH,
    };
    demands.iter().cloned().for_each(|demand| world.will_arrive(demand));
    while let Some(now) = world.next_event() {
        world.step(now);
    }
    world.records
}

struct World {
    gate: Gate,
    engine: SimEngine,
    demands: Vec<Demand>,
    records: Vec<Record>,
    arrivals: BinaryHeap<Reverse<(Instant, usize)>>,
    departures: BinaryHeap<Reverse<(Instant, usize)>>,
    now: Instant,
}

impl World {
    fn will_arrive(&mut self, demand: Demand) {
        let index = self.demands.len();
        let id = RequestId::new(u64::try_from(index).expect("a position in memory fits 64 bits"));
        self.records.push(Record::ahead(&demand, id));
        self.arrivals.push(Reverse((demand.arrival, index)));
        self.demands.push(demand);
    }

    fn next_event(&self) -> Option<Instant> {
        let first = |heap: &BinaryHeap<Reverse<(Instant, usize)>>| heap.peek().map(|Reverse((at, _))| *at);
        let next = [first(&self.arrivals), first(&self.departures), self.engine.next_event()];
        next.into_iter().flatten().min().map(|next| next.max(self.now))
    }

    fn step(&mut self, now: Instant) {
        self.now = now;
        if self.engine.next_event().is_some_and(|ends| ends <= now) {
            let mut produced = Vec::new();
            self.engine.end_step(&mut produced);
            produced.into_iter().for_each(|progress| self.produced(progress));
        }
        while let Some(Reverse((_, index))) = self.arrivals.peek().copied().filter(|Reverse((at, _))| *at <= now) {
            self.arrivals.pop();
            self.arrive(index);
        }
        while let Some(Reverse((_, index))) = self.departures.peek().copied().filter(|Reverse((at, _))| *at <= now) {
            self.departures.pop();
            self.leave(index);
        }
        self.engine.start_own_step(now);
    }

    fn arrive(&mut self, index: usize) {
        let demand = self.demands[index].clone();
        if let Fate::LeavesAfter(span) = demand.fate {
            self.departures.push(Reverse((self.now + span, index)));
        }
        let record = &mut self.records[index];
        record.decided = Some(self.now);
        match self.gate.arrive(self.now, &demand.tenant) {
            Answer::Refused { code, wait } => {
                record.reason = Some(code);
                record.retry_after = wait;
                record.outcome = Some(Outcome::Refused);
                self.again_or_next(index, wait);
            }
            Answer::Admitted => {
                record.dispatched = Some(self.now);
                let job = Job { watch: Watch::Ends, ..Job::new(job_id(index), demand.input, demand.produced()) };
                if self.engine.enqueue(job).is_err() {
                    self.end(index, Outcome::Aborted, Some("engine_rejected"));
                }
            }
        }
    }

    fn produced(&mut self, progress: Progress) {
        let index = usize::try_from(progress.id.0).expect("ids are positions in memory");
        self.records[index].first_token.get_or_insert(progress.at);
        if progress.finished {
            self.end(index, Outcome::Completed, None);
        }
    }

    /// A client leaves; harmless if its request has ended.
    fn leave(&mut self, index: usize) {
        if self.records[index].outcome.is_none() {
            self.engine.cancel(job_id(index));
            self.end(index, Outcome::Aborted, Some("client_left"));
        }
    }

    fn end(&mut self, index: usize, outcome: Outcome, reason: Option<&'static str>) {
        let record = &mut self.records[index];
        record.finished = Some(self.now);
        record.outcome = Some(outcome);
        record.reason = reason;
        let answered = (outcome == Outcome::Completed).then(|| self.now.since(record.arrival));
        self.gate.ended(self.now, answered);
        match reason {
            Some("client_left") => self.again_or_next(index, None),
            _ => self.ask_next(index),
        }
    }

    /// The client tries again, or asks for what it wants next.
    fn again_or_next(&mut self, index: usize, told: Option<Span>) {
        match self.demands[index].again(self.now, told) {
            Some(again) => self.will_arrive(again),
            None => self.ask_next(index),
        }
    }

    fn ask_next(&mut self, index: usize) {
        if let Some(next) = self.demands[index].then.as_ref().and_then(|then| then.after(self.now)) {
            self.will_arrive(next);
        }
    }
}

fn job_id(index: usize) -> JobId {
    JobId(u64::try_from(index).expect("a position in memory fits 64 bits"))
}

enum Answer {
    Admitted,
    Refused { code: &'static str, wait: Option<Span> },
}

enum Gate {
    Nothing,
    Buckets(Buckets),
    Concurrency(Concurrency),
}

impl Gate {
    fn new(baseline: Baseline) -> Self {
        match baseline {
            Baseline::Nothing => Self::Nothing,
            Baseline::RequestsPerMinute { per_tenant, burst } => {
                Self::Buckets(Buckets { per_second: per_tenant / 60.0, burst, levels: HashMap::new() })
            }
            Baseline::AdaptiveConcurrency(settings) => Self::Concurrency(Concurrency::new(settings)),
        }
    }

    fn arrive(&mut self, now: Instant, tenant: &TenantId) -> Answer {
        match self {
            Self::Nothing => Answer::Admitted,
            Self::Buckets(buckets) => buckets.take(now, tenant),
            Self::Concurrency(concurrency) => concurrency.arrive(),
        }
    }

    /// A request let through has ended; `answered` says how long its whole answer took, where it had one.
    fn ended(&mut self, now: Instant, answered: Option<Span>) {
        if let Self::Concurrency(concurrency) = self {
            concurrency.ended(now, answered);
        }
    }
}

struct Buckets {
    per_second: f64,
    burst: f64,
    /// What each tenant's bucket held, and when.
    levels: HashMap<TenantId, (f64, Instant)>,
}

impl Buckets {
    fn take(&mut self, now: Instant, tenant: &TenantId) -> Answer {
        let (level, at) = self.levels.entry(tenant.clone()).or_insert((self.burst, now));
        *level = (*level + now.since(*at).as_secs_f64() * self.per_second).min(self.burst);
        *at = now;
        if *level >= 1.0 {
            *level -= 1.0;
            return Answer::Admitted;
        }
        let wait = Span::from_secs_f64((1.0 - *level) / self.per_second);
        Answer::Refused { code: "rate_limited", wait: Some(wait) }
    }
}

/// How often the limit may stand at its least before the least latency is measured anew.
const MOST_AT_LEAST: u32 = 5;

struct Concurrency {
    settings: Gradient,
    in_flight: f64,
    limit: f64,
    phase: Phase,
    latencies: Vec<Span>,
    updated: Instant,
    at_least: u32,
}

enum Phase {
    /// Measuring the least latency, with the limit to go back to.
    Measuring { before: f64 },
    /// Following it, since then.
    Following { least: Span, since: Instant },
}

impl Concurrency {
    fn new(settings: Gradient) -> Self {
        let phase = Phase::Measuring { before: settings.least };
        let (limit, updated) = (settings.least, Instant::EPOCH);
        Self { settings, in_flight: 0.0, limit, phase, latencies: Vec::new(), updated, at_least: 0 }
    }

    fn arrive(&mut self) -> Answer {
        if self.in_flight + 1.0 > self.limit {
            return Answer::Refused { code: "concurrency_limited", wait: None };
        }
        self.in_flight += 1.0;
        Answer::Admitted
    }

    fn ended(&mut self, now: Instant, answered: Option<Span>) {
        self.in_flight -= 1.0;
        self.latencies.extend(answered);
        match self.phase {
            Phase::Measuring { before } => {
                if self.latencies.len() >= self.settings.samples {
                    let least = self.median().unwrap_or_default();
                    self.phase = Phase::Following { least, since: now };
                    self.limit = before;
                    self.updated = now;
                }
            }
            Phase::Following { least, since } => {
                if now.since(self.updated) >= self.settings.every {
                    self.update(now, least, since);
                }
            }
        }
    }

    fn update(&mut self, now: Instant, least: Span, since: Instant) {
        self.updated = now;
        if let Some(sample) = self.median() {
            let ratio = least.as_secs_f64() * (1.0 + self.settings.buffer) / sample.as_secs_f64().max(1e-9);
            let scaled = self.limit * ratio.clamp(0.5, 2.0);
            self.limit = (scaled + scaled.sqrt()).floor().clamp(self.settings.least, self.settings.most);
        }
        self.at_least = if self.limit > self.settings.least { 0 } else { self.at_least + 1 };
        if self.at_least >= MOST_AT_LEAST || now.since(since) >= self.settings.refresh {
            self.phase = Phase::Measuring { before: self.limit };
            self.limit = self.settings.least;
            self.at_least = 0;
        }
    }

    /// The median of the latencies since it was last asked.
    fn median(&mut self) -> Option<Span> {
        let mut latencies = std::mem::take(&mut self.latencies);
        latencies.sort_unstable();
        latencies.get(latencies.len() / 2).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::{Answer, Baseline, Buckets, Concurrency, Gradient, run};
    use crate::sim::{Demand, EngineSpec, Outcome};
    use crate::units::{Instant, Span, TenantId, Tokens};

    fn at(secs: f64) -> Instant {
        Instant::from_secs_f64(secs)
    }

    #[test]
    fn nothing_lets_everything_through_in_order() {
        let demand = |secs| Demand::plain(at(secs), TenantId::from("a"), Tokens::new(10), Tokens::new(20));
        let demands: Vec<Demand> = (0..50).map(|second| demand(f64::from(second) / 10.0)).collect();
        let records = run(Baseline::Nothing, &EngineSpec::default(), &demands);
        assert!(records.iter().all(|record| record.outcome == Some(Outcome::Completed)));
        assert!(records.is_sorted_by_key(|record| record.finished));
    }

    #[test]
    fn a_baseline_is_named_with_its_number() {
        assert_eq!("nothing".parse(), Ok(Baseline::Nothing));
        assert_eq!("requests-per-minute=60".parse(), Ok(Baseline::RequestsPerMinute { per_tenant: 60.0, burst: 10.0 }));
        let gradient = |buffer| Baseline::AdaptiveConcurrency(Gradient { buffer, ..Gradient::default() });
        assert_eq!("adaptive-concurrency".parse(), Ok(gradient(0.25)));
        assert_eq!("adaptive-concurrency=1".parse(), Ok(gradient(1.0)));
        for bad in
            ["", "nothing=1", "requests-per-minute", "requests-per-minute=0", "adaptive-concurrency=x", "gradient"]
        {
            assert!(bad.parse::<Baseline>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_bucket_gives_its_burst_and_then_its_rate_and_is_back_when_it_says() {
        let mut buckets = Buckets { per_second: 0.5, burst: 2.0, levels: Default::default() };
        let tenant = TenantId::from("a");
        let mut take = |secs| match buckets.take(at(secs), &tenant) {
            Answer::Admitted => None,
            Answer::Refused { wait, .. } => wait,
        };
        assert_eq!([take(0.0), take(0.0)], [None, None]);
        assert_eq!(take(0.0), Some(Span::from_secs(2)));
        assert_eq!(take(1.0), Some(Span::from_secs(1)));
        assert_eq!([take(2.0), take(2.0)], [None, Some(Span::from_secs(2))]);
    }

    #[test]
    fn the_gradient_grows_while_latency_is_near_the_least_and_halves_when_it_is_not() {
        let settings = Gradient { samples: 4, every: Span::from_secs(1), ..Gradient::default() };
        let mut limit = Concurrency::new(settings);
        let mut answer = |now: f64, secs: f64| {
            limit.in_flight += 1.0;
            limit.ended(at(now), Some(Span::from_secs_f64(secs)));
            limit.limit
        };
        for _ in 0..4 {
            answer(0.0, 1.0);
        }
        // 3 × 1.25 + √3.75 = 5.7; then 5 × 1.25 + √6.25 = 8.75.
        assert!((answer(1.0, 1.0) - 5.0).abs() < 1e-9);
        assert!((answer(2.0, 1.0) - 8.0).abs() < 1e-9);
        // A latency of ten times the least: half of 8, and √4 more.
        assert!((answer(3.0, 10.0) - 6.0).abs() < 1e-9);
    }
}
