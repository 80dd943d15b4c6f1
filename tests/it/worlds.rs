//! Properties of random worlds: whatever the policy, the clients, the engine and their luck, these hold.
//!
//! - Every request that arrives ends exactly once, every ticket is settled exactly once, nobody waits for ever.
//! - The books balance for every request and account, in exact integers, and agree with the ledger's.
//! - No eligible request waits beside a window with room for it; no cap on fan-out is exceeded.
//! - Under VTC, charged at dispatch or as it streams, jointly eligible tenants of one class stay within the bound.
//! - The same world run twice makes the same decisions.
//!
//! `TALLYGATE_CASES` says how many worlds (a full run: 10,000 or more), `TALLYGATE_SEED` where to start. A failure
//! prints the seed of its world, which alone replays it.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};

use tallygate::sim::clients::{Arrivals, Client, Lengths, generate};
use tallygate::sim::{Demand, EngineSpec, Fate, Guess, Keep, Place, Report, Setup, oracle};
use tallygate::units::{Span, Tokens, VirtualTokens};

use crate::support;

const DEFAULT_CASES: u64 = 150;

#[test]
fn properties_hold_in_random_worlds() {
    let number = |name, default| std::env::var(name).map_or(default, |text| text.parse().expect("a whole number"));
    let (cases, first): (u64, u64) = (number("TALLYGATE_CASES", DEFAULT_CASES), number("TALLYGATE_SEED", 0));
    let mut most_used: f64 = 0.0;
    let mut requests = 0;
    for seed in first..first + cases {
        let world = World::new(seed);
        let (failures, used) = world.check();
        assert!(
            failures.is_empty(),
            "TALLYGATE_SEED={seed} TALLYGATE_CASES=1: {} failures, first {:#?}\n{:#}\n{:?}",
            failures.len(),
            &failures[..failures.len().min(5)],
            world.policy,
            world.setup.engine
        );
        most_used = most_used.max(used);
        requests += world.demands.len();
    }
    println!("{cases} worlds, {requests} requests, at most {most_used:.2} of the bound used");
    assert!(cases < 100 || most_used > 0.2, "these worlds are too tame to test the bound: {most_used}");
}

struct World {
    policy: Value,
    setup: Setup,
    demands: Vec<Demand>,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let policy = policy(&mut rng);
        let place = if rng.random_bool(0.25) { Place::Engine } else { Place::Gateway };
        let guess = match rng.random_range(0..4) {
            0 => Guess::Jittered(1.0),
            1 => Guess::Scaled(rng.random_range(0.0..4.0)),
            _ => Guess::Learned,
        };
        let setup = Setup {
            policy: support::policy("random", &policy.to_string()).expect("a valid policy"),
            engine: engine(&mut rng),
            place,
            guess,
            seed,
            keep: Keep::Log,
        };
        let demands = demands(&mut rng, seed);
        Self { policy, setup, demands }
    }

    /// Everything that does not hold, and how much of the bound was used.
    fn check(&self) -> (Vec<String>, f64) {
        let run = self.setup.run(&self.demands, |_| {});
        let findings = oracle::audit(&run.facts, &self.setup.rules());
        let mut failures = run.faults.clone();
        failures.extend(findings.wrong);
        let (accounts, wrong) = oracle::books(&run.bookings, |_| false);
        failures.extend(wrong);
        let sum = |part: fn(&oracle::Totals) -> VirtualTokens| accounts.values().map(part).sum::<VirtualTokens>();
        let ours = (sum(|of| of.reserved), sum(|of| of.settled), sum(|of| of.refunded));
        if ours != (run.books.reserved, run.books.settled, run.books.refunded) {
            failures.push(format!("the ledger says {:?}, the entries {ours:?}", run.books));
        }
        if !Report::new(&self.setup, &run).books_are_exact() {
            failures.push(format!("something is held at the end, or charges and books differ: {:?}", run.books));
        }
        if run.records.iter().any(|record| record.outcome.is_none()) {
            failures.push("a request has no outcome".into());
        }
        if self.setup.run(&self.demands, |_| {}) != run {
            failures.push("the same world run again went differently".into());
        }
        if !self.is_bound_by_vtc() {
            return (failures, 0.0);
        }
        failures.extend(findings.drifts);
        (failures, findings.bound_used)
    }

    /// The baselines are bound by nothing, and charging at the end is bound by more than this.
    fn is_bound_by_vtc(&self) -> bool {
        let fairness = &self.policy["fairness"];
        fairness["algorithm"] == "vtc" && fairness["charge"] != "completion"
    }
}

fn one_of<'a>(rng: &mut StdRng, choices: &[&'a str]) -> &'a str {
    choices[rng.random_range(0..choices.len())]
}

/// Sets a key in about this part of all worlds.
fn perhaps(rng: &mut StdRng, part: f64, into: &mut Value, key: &str, value: impl FnOnce(&mut StdRng) -> Value) {
    if rng.random_bool(part) {
        into[key] = value(rng);
    }
}

const CLASSES: [&str; 3] = ["interactive", "standard", "batch"];

fn policy(rng: &mut StdRng) -> Value {
    let algorithm = one_of(rng, &["vtc", "vtc", "vtc", "vtc", "fcfs", "round_robin", "least_counter"]);
    let charge = one_of(rng, &["predicted", "predicted", "streamed", "completion"]);
    let classes = rng.random_range(1..=CLASSES.len());
    let names = &CLASSES[..classes];
    let tenant = |rng: &mut StdRng, name: &str| {
        let mut rule = json!({"match": name, "classes": names});
        perhaps(rng, 0.5, &mut rule, "weight", |rng| json!(f64::from(rng.random_range(1..=80_u32)) / 10.0));
        rule
    };
    let mut tenants: Vec<Value> = (0..3).map(|number| tenant(rng, &format!("t{number}"))).collect();
    tenants.push(tenant(rng, "*"));
    let mut fanout = json!({});
    perhaps(rng, 0.3, &mut fanout, "per_session", |rng| json!(rng.random_range(1..4)));
    perhaps(rng, 0.3, &mut fanout, "per_tenant", |rng| json!(rng.random_range(1..6)));
    let mut cost = json!({"weights": {"input": 1, "output": rng.random_range(1..5)}});
    perhaps(rng, 0.3, &mut cost, "models", |_| json!([{"match": "b", "scale": 3}]));
    let pools: Vec<Value> = match rng.random_range(0..3) {
        0 => vec![pool(rng, "a", &["a*"]), pool(rng, "b", &["b", "c"])],
        _ => vec![pool(rng, "all", &["*"])],
    };
    json!({
        "version": 1,
        "fairness": {"algorithm": algorithm, "charge": charge},
        "classes": names.iter().zip(0..).map(|(name, rank)| class(rng, name, rank)).collect::<Vec<_>>(),
        "default_class": names[rng.random_range(0..classes)],
        "tenants": tenants,
        "fanout": fanout,
        "cost": cost,
        "pools": pools,
    })
}

fn class(rng: &mut StdRng, name: &str, rank: u32) -> Value {
    let mut class = json!({"name": name, "rank": rank});
    perhaps(rng, 0.4, &mut class, "max_wait", |rng| json!(format!("{}ms", rng.random_range(500..20_000))));
    perhaps(rng, 0.4, &mut class, "min_share", |rng| json!(format!("{}%", rng.random_range(1..33))));
    class
}

fn pool(rng: &mut StdRng, name: &str, models: &[&str]) -> Value {
    let mut window = json!({});
    perhaps(rng, 0.7, &mut window, "requests", |rng| json!(rng.random_range(1..10)));
    perhaps(rng, 0.4, &mut window, "tokens", |rng| json!(rng.random_range(50..2_000)));
    let mut queue = json!({"requests": 100_000, "per_tenant_requests": 100_000, "per_session_requests": 100_000});
    perhaps(rng, 0.2, &mut queue, "requests", |rng| json!(rng.random_range(0..40)));
    perhaps(rng, 0.2, &mut queue, "tokens", |rng| json!(rng.random_range(0..5_000)));
    perhaps(rng, 0.2, &mut queue, "per_class_requests", |rng| json!(rng.random_range(0..30)));
    perhaps(rng, 0.2, &mut queue, "per_tenant_requests", |rng| json!(rng.random_range(0..20)));
    perhaps(rng, 0.2, &mut queue, "per_session_tokens", |rng| json!(rng.random_range(100..3_000)));
    let mut pool = json!({"name": name, "models": models, "window": window, "queue": queue});
    perhaps(rng, 0.2, &mut pool, "max_request_tokens", |rng| json!(rng.random_range(100..1_000)));
    pool
}

fn engine(rng: &mut StdRng) -> EngineSpec {
    serde_json::from_value(json!({
        "kv_tokens": rng.random_range(200..4_000),
        "prefill": {"batch_tokens": rng.random_range(50..2_000)},
        "admit_every_steps": rng.random_range(1..12),
        "max_sequences": rng.random_range(1..20),
    }))
    .expect("a valid engine")
}

fn demands(rng: &mut StdRng, seed: u64) -> Vec<Demand> {
    let clients: Vec<Client> = (0..rng.random_range(2..7)).map(|number| client(rng, number)).collect();
    let mut demands = generate(&clients, seed).expect("valid clients");
    for demand in &mut demands {
        demand.fate = match rng.random_range(0..20) {
            0 => Fate::LeavesAfter(Span::from_millis(rng.random_range(0..8_000))),
            1 => Fate::FailsAfter(Tokens::new(rng.random_range(0..40))),
            _ => demand.fate,
        };
    }
    demands
}

fn client(rng: &mut StdRng, number: u32) -> Client {
    let rate = rng.random_range(0.5..6.0);
    let arrivals = match rng.random_range(0..4) {
        0 => Arrivals::Uniform { rate },
        1 => Arrivals::OnOff { rate: rate * 2.0, on_s: 2.0, off_s: rng.random_range(0.5..6.0) },
        2 => Arrivals::Bursts { size: rng.random_range(1..25), every_s: rng.random_range(1.0..8.0) },
        _ => Arrivals::Poisson { rate },
    };
    let some = |rng: &mut StdRng, part, most: u32| rng.random_bool(part).then(|| rng.random_range(1..=most));
    Client {
        tenant: format!("t{}", number % rng.random_range(2..6)),
        sessions: some(rng, 0.4, 5),
        class: rng.random_bool(0.5).then(|| one_of(rng, &CLASSES).to_owned()),
        model: one_of(rng, &["a", "b", "c"]).to_owned(),
        arrivals,
        from_s: rng.random_range(0.0..8.0),
        until_s: rng.random_range(9.0..20.0),
        input: lengths(rng, 300),
        output: lengths(rng, 80),
        max_tokens: some(rng, 0.3, 100).map(u64::from),
        deadline_s: some(rng, 0.2, 15).map(f64::from),
        leaves_after_s: some(rng, 0.1, 10).map(f64::from),
        retries: some(rng, 0.3, 3).unwrap_or(0),
        told_instead_s: some(rng, 0.1, 5).map(f64::from),
        stream: rng.random_bool(0.8),
    }
}

fn lengths(rng: &mut StdRng, most: u64) -> Lengths {
    match rng.random_range(0..3) {
        0 => Lengths::Fixed(rng.random_range(0..most)),
        1 => Lengths::Uniform { least: 0, most },
        _ => Lengths::Lognormal { median: rng.random_range(1.0..40.0), sigma: 1.0, most },
    }
}
