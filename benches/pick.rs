//! What a decision costs with 10,000 tenants and 100,000 queued requests, in time and memory.
//!
//! Run `cargo bench --bench pick`. Fills one pool's queue, then completes and dispatches one request after
//! another, so that every step is a settlement, a refund or charge, a pick and a dispatch; then measures an
//! arrival into that full tree, and what the queue weighs. Times are medians over batches, since the mean of a
//! shared machine says little. No harness crate: the subject is one large state, not a small function.

#![expect(clippy::print_stdout, reason = "the figures are this program's output")]

use std::fs;
use std::hint::black_box;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Instant as Clock;

use tallygate::admission::{
    Attempt, Effect, Ending, Engine, Input, Options, Outcome, Reported, Request, Subject, Verdict,
};
use tallygate::policy::Policy;
use tallygate::units::{Agent, Bytes, Instant, Limit, RequestId, Span, TenantId, TicketId, Tokens, Usage};

const TENANTS: u64 = 10_000;
const QUEUED: u64 = 100_000;
const WINDOW: u64 = 64;
const BATCH: u64 = 500;
const BATCHES: u64 = 100;

const POLICY: &str = "
version: 1
pools:
  - name: chat
    models: ['*']
    window: {requests: 64}
    queue: {requests: 200000, per_tenant_requests: 1000}
";

fn main() {
    let no_keys = |_: &str| unreachable!("the policy names no file of keys");
    let policy = tallygate::policy::parse("bench", POLICY, no_keys).expect("the policy above is valid");
    let mut bench = Bench::new(policy);
    let empty = resident_kib();
    let filling = Clock::now();
    for _ in 0..QUEUED + WINDOW {
        bench.arrive();
    }
    let per_arrival = filling.elapsed().as_nanos() / u128::from(QUEUED);
    let full = resident_kib();
    let mut step = Vec::new();
    let mut arrival = Vec::new();
    let mut explanation = Vec::new();
    for _ in 0..BATCHES {
        step.push(timed(|| bench.complete_oldest()));
        explanation.push(timed(|| bench.explain()));
        arrival.push(timed(|| bench.arrive()));
    }
    println!("tenants {TENANTS}, queued {QUEUED}, window {WINDOW}");
    println!("filling the queue, per arrival      {:>8.2} us (mean)", micros(per_arrival));
    println!(
        "settle + pick + dispatch            {:>8.2} us (median of {BATCHES} batches of {BATCH})",
        micros(median(step))
    );
    println!(
        "arrival into the full queue         {:>8.2} us (median of {BATCHES} batches of {BATCH})",
        micros(median(arrival))
    );
    println!(
        "explaining an arrival there         {:>8.2} us (median of {BATCHES} batches of {BATCH})",
        micros(median(explanation))
    );
    println!(
        "memory for the queue                {:>8.1} MiB, {} bytes a request",
        mib(full - empty),
        (full - empty) * 1024 / QUEUED
    );
}

struct Bench {
    engine: Engine,
    policy: Arc<Policy>,
    now: Instant,
    next: u64,
    running: std::collections::VecDeque<TicketId>,
}

impl Bench {
    fn new(policy: Policy) -> Self {
        let policy = Arc::new(policy);
        let engine = Engine::new(Arc::clone(&policy), Options::default());
        Self { engine, policy, now: Instant::EPOCH, next: 0, running: std::collections::VecDeque::new() }
    }

    fn arrive(&mut self) {
        let request = self.request();
        self.next += 1;
        self.feed(Input::Arrive(Box::new(request)));
    }

    /// What every gate says of the next request, without letting it in.
    fn explain(&mut self) {
        black_box(self.engine.explain(self.now, &self.request()));
    }

    fn request(&self) -> Request {
        let n = self.next;
        // Tenants in a scattered but fixed order, sizes from a small spread.
        let tenant = TenantId::from(format!("tenant-{}", n.wrapping_mul(7_919) % TENANTS).as_str());
        let selection = self.policy.select(&tenant, None, "model").expect("every model is served");
        Request {
            id: RequestId::new(n),
            subject: Subject { pool: selection.pool, class: selection.class, tenant, session: None },
            model: selection.model,
            user: None,
            task: None,
            weight: selection.weight,
            tariff: selection.tariff,
            price: selection.price,
            expected: Usage::plain(Tokens::new(100 + n % 400), Tokens::new(50 + n % 300)),
            output_cap: Limit::AtMost(Tokens::new(1_000)),
            agent: Agent::Lead,
            attempt: Attempt::Unsaid,
            choices: NonZeroU32::MIN,
            bytes: Bytes::new(2_000),
            deadline: None,
            streamed: true,
        }
    }

    fn complete_oldest(&mut self) {
        let ticket = self.running.pop_front().expect("the window is full");
        let ending = Ending { outcome: Outcome::Completed, usage: Reported::Nothing, heard: None };
        self.feed(Input::Settle { ticket, ending });
    }

    fn feed(&mut self, input: Input) {
        self.now = self.now + Span::from_nanos(1_000);
        for effect in black_box(self.engine.on(self.now, input)) {
            if let Effect::Answer { verdict: Verdict::Admitted(ticket), .. } = effect {
                self.running.push_back(ticket.id);
            }
        }
    }
}

fn timed(mut work: impl FnMut()) -> u128 {
    let start = Clock::now();
    for _ in 0..BATCH {
        work();
    }
    start.elapsed().as_nanos() / u128::from(BATCH)
}

fn median(mut values: Vec<u128>) -> u128 {
    values.sort_unstable();
    values[values.len() / 2]
}

#[expect(clippy::cast_precision_loss, reason = "for display")]
fn micros(nanos: u128) -> f64 {
    nanos as f64 / 1e3
}

#[expect(clippy::cast_precision_loss, reason = "for display")]
fn mib(kib: u64) -> f64 {
    kib as f64 / 1024.0
}

/// Resident memory of this process. Linux only; zero elsewhere.
fn resident_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    line.and_then(|line| line.split_whitespace().nth(1)).and_then(|kib| kib.parse().ok()).unwrap_or(0)
}
