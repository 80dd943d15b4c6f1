//! The adaptive window beside fixed ones and Gradient2: throughput, the engine's queue and evenness, in one table.
//!
//! One configuration (`adapt: auto`, no caps) on every workload, and once more where answers come in one piece and the
//! engine's gauges are read. The workloads and the trace stand beside the project, so these tests say loudly that they
//! were skipped where they are not there. By default the paper's engine and the windows that are compared with; with
//! `TALLYGATE_FULL=1` also half and twice the memory, an engine that looks at its queue at every step, each with the
//! best fixed window that can be found in hindsight, and three more seeds. `docs/window.md` quotes what is printed.

use std::path::Path;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tallygate::sim::clients::{Arrivals, Client, Lengths, generate};
use tallygate::sim::measure::{Grid, Measures};
use tallygate::sim::{
    Demand, EngineSpec, Guess, Keep, LOAD_BIN, Load, Outcome, Place, Record, Report, Run, Setup, Slowdown, trace,
};
use tallygate::units::{Instant, Span, Tokens};
use tallygate::yaml;

use crate::support::{self, made, shared};

/// How a run is limited: its name, where it is decided, and the pool's window.
type Limited<'a> = (&'a str, Place, &'a str);

const UNLIMITED: Limited<'static> = ("unlimited", Place::Gateway, "{requests: 1000000}");
const ADAPTIVE: Limited<'static> = ("adapt: auto", Place::Gateway, "{adapt: auto}");
const GAUGES: Limited<'static> = (
    "adapt: auto, gauges",
    Place::Gateway,
    "{adapt: auto}\n  engine: {metrics: [\"http://engine:8000/metrics\"], every: 2s, stale_after: 10s}",
);
const RIVALS: [Limited<'static>; 3] = [
    ("28 requests", Place::Gateway, "{requests: 28}"),
    ("16,000 tokens", Place::Gateway, "{tokens: 16000}"),
    ("Gradient2", Place::Gradient2, "{requests: 1000000}"),
];

/// What every workload must come to: of the throughput of an unlimited window, and of the tokens dispatched.
const LEAST_PACE: f64 = 0.97;
const MOST_QUEUED: f64 = 0.10;
const MOST_ARENA_DIFF: f64 = 235.0;
const MOST_OVERLOAD_DIFF: f64 = 32.0;
const SETTLED_S: f64 = 30.0;

/// What it must come to where answers come in one piece and the gauges are read every other second; and after a switch
/// from short requests to long ones, when the engine's queue is what was dispatched between two readings.
const LEAST_PACE_AT_ONCE: f64 = 0.95;
const MOST_QUEUED_AT_ONCE: f64 = 0.10;
const MOST_QUEUED_AT_ONCE_SWITCHED: f64 = 0.15;

const MADE: [&str; 5] = ["len_64_64", "len_256_256", "len_512_32", "len_32_512", "overload8"];

struct Workload {
    name: String,
    demands: Vec<Demand>,
    /// From when on requests of another mix arrive, the start included.
    changes: Vec<f64>,
}

fn setup(limited: &Limited<'_>, engine: EngineSpec, classes: &str) -> Setup {
    let (name, place, window) = *limited;
    let text = format!(
        "version: 1\n\
         classes: [{classes}]\n\
         default_class: standard\n\
         tenants: [{{match: \"*\"}}]\n\
         pools:\n\
         - name: chat\n  \
           window: {window}\n  \
           queue: {{requests: 10000000, tokens: 1000000000000, per_tenant_requests: 10000000, \
                    per_session_requests: 10000000}}\n"
    );
    let policy = support::policy(name, &text).expect("a valid policy");
    Setup { policy, engine, place, guess: Guess::Learned, seed: 1, keep: Keep::Records }
}

const PATIENT: &str = "{name: standard, rank: 0}";

fn run(setup: &Setup, demands: &[Demand]) -> Run {
    let run = setup.run(demands, |_| {});
    assert_eq!(run.faults, Vec::<String>::new());
    assert!(Report::new(setup, &run).books_are_exact());
    run
}

fn engine(workloads: &Path, change: impl FnOnce(&mut EngineSpec)) -> EngineSpec {
    let text = std::fs::read_to_string(workloads.join("a10g-7b.yaml")).expect("readable");
    let mut engine = yaml::load::<EngineSpec>("a10g-7b.yaml", &text).expect("a valid engine").value;
    change(&mut engine);
    engine
}

fn client(tenant: u32, rate: f64, span: (f64, f64), input: u64, output: u64) -> Client {
    Client {
        tenant: format!("client-{tenant:02}"),
        sessions: None,
        class: None,
        model: String::new(),
        arrivals: Arrivals::Uniform { rate },
        from_s: span.0,
        until_s: span.1,
        input: Lengths::Fixed(input),
        output: Lengths::Fixed(output),
        max_tokens: None,
        stream: true,
        deadline_s: None,
        leaves_after_s: None,
        retries: 0,
        told_instead_s: None,
    }
}

/// Four clients whose requests are short, then write much, then read much, always more than the engine can do.
fn switch(seed: u64) -> Workload {
    let phases = [(6.0, (0.0, 150.0), 64, 64), (0.36, (150.0, 300.0), 32, 512), (1.8, (300.0, 450.0), 512, 32)];
    let clients = |tenant| phases.map(|(rate, span, input, output)| client(tenant, rate, span, input, output));
    let clients: Vec<Client> = (0..4).flat_map(clients).collect();
    let demands = generate(&clients, seed).expect("valid clients");
    Workload { name: "switch".into(), demands, changes: vec![0.0, 150.0, 300.0] }
}

fn workloads(workloads: &Path, arena: &Path, seed: u64) -> Vec<Workload> {
    let folder = made(workloads, seed);
    let read = |path: &Path| trace::read(path).expect("a valid trace").demands;
    let made = MADE.map(|name| Workload {
        name: name.to_owned(),
        demands: read(&folder.path().join(format!("{name}.csv"))),
        changes: vec![0.0],
    });
    let mut all: Vec<Workload> = made.into();
    all.push(switch(seed));
    if seed == 42 {
        let name = "vtc-arena-27".to_owned();
        all.push(Workload { name, demands: read(arena), changes: vec![0.0] });
    }
    all
}

/// One line of the table.
struct Row {
    pace: f64,
    queued: f64,
    avg_diff: f64,
    /// Seconds from the start or a change until the engine is busy and its queue short for good, the worst of them.
    settled: f64,
}

fn row(workload: &Workload, limited: &Limited<'_>, engine: &EngineSpec, unlimited: f64) -> (Row, Run) {
    let run = run(&setup(limited, engine.clone(), PATIENT), &workload.demands);
    let measures = Measures::of(&run.records, &Grid::default());
    assert_eq!(measures.ended(Outcome::Completed), workload.demands.len(), "everything completes");
    // What waits here is still of the old mix; the engine sees the new one when its first request is let through.
    let seen = |change: &f64| {
        let new = run.records.iter().filter(|record| record.arrival >= Instant::from_secs_f64(*change));
        let first = new.filter_map(|record| record.dispatched).min().expect("something is dispatched");
        first.since(Instant::EPOCH).as_secs_f64()
    };
    let changes: Vec<f64> = workload.changes.iter().map(seen).collect();
    let last = run.records.iter().filter_map(|record| record.dispatched).max().expect("something is dispatched");
    let until = last.since(Instant::EPOCH).as_secs_f64();
    let ends = changes.iter().skip(1).chain([&until]);
    let settled = changes.iter().zip(ends).map(|(from, until)| settled(&run.load, *from, *until));
    let row = Row {
        pace: measures.tokens_per_s / unlimited,
        queued: run.engine_queue_share,
        avg_diff: measures.avg_diff,
        settled: settled.fold(0.0, f64::max),
    };
    (row, run)
}

fn print(engine: &str, workload: &Workload, limited: &Limited<'_>, row: &Row) {
    println!(
        "| {engine} | {} | {} | {:.1} | {:.1} | {:.0} | {:.0} |",
        workload.name,
        limited.0,
        row.pace * 100.0,
        row.queued * 100.0,
        row.avg_diff,
        row.settled
    );
}

/// After how long every ten seconds until the end have the engine's queue at 15 % of what is dispatched or less, and
/// four fifths running of what runs at the median.
fn settled(load: &[Load], from: f64, until: f64) -> f64 {
    let bins = bins(load, from, until);
    let mut sorted: Vec<f64> = bins.iter().map(|load| load.admitted).collect();
    sorted.sort_by(f64::total_cmp);
    let Some(median) = sorted.get(sorted.len() / 2).copied() else { return 0.0 };
    let good = |load: &Load| queued(&[*load]) <= 0.15 && load.admitted >= 0.8 * median;
    let settled = bins.iter().rposition(|load| !good(load)).map_or(0, |bad| bad + 1);
    (0..settled).map(|_| LOAD_BIN.as_secs_f64()).sum()
}

/// The bins that begin in a time.
fn bins(load: &[Load], from: f64, until: f64) -> &[Load] {
    let nth = |secs: f64| {
        let bins = Span::from_secs_f64(secs).as_nanos() / LOAD_BIN.as_nanos();
        usize::try_from(bins).expect("small").min(load.len())
    };
    &load[nth(from)..nth(until)]
}

/// The share of what is dispatched that the engine has not admitted.
fn queued(load: &[Load]) -> f64 {
    let (waiting, admitted) = load.iter().fold((0.0, 0.0), |sum, load| (sum.0 + load.waiting, sum.1 + load.admitted));
    waiting / (waiting + admitted)
}

fn is_full() -> bool {
    std::env::var_os("TALLYGATE_FULL").is_some()
}

#[test]
fn one_configuration_keeps_every_engine_busy_and_its_queue_short() {
    let (Some(folder), Some(arena)) = (shared("workloads"), shared("traces/vtc-arena-27.csv")) else { return };
    let spec = engine(&folder, |_| {});
    println!("| engine | workload | window | tokens/s % | queue % | avg diff | settled s |");
    for seed in if is_full() { vec![42, 1, 2, 3] } else { vec![42] } {
        let label = if seed == 42 { "as published".to_owned() } else { format!("as published, seed {seed}") };
        for workload in workloads(&folder, &arena, seed) {
            let (free, _) = row(&workload, &UNLIMITED, &spec, 1.0);
            let unlimited = free.pace;
            print(&label, &workload, &UNLIMITED, &Row { pace: 1.0, ..free });
            for rival in RIVALS.iter().filter(|_| seed == 42) {
                print(&label, &workload, rival, &row(&workload, rival, &spec, unlimited).0);
            }
            let (found, run) = row(&workload, &ADAPTIVE, &spec, unlimited);
            print(&label, &workload, &ADAPTIVE, &found);
            assert!(!run.window_moves.is_empty(), "the window moves and says so");
            if seed != 42 {
                continue;
            }
            let name = &workload.name;
            assert!(found.pace >= LEAST_PACE, "{name}: {} of the unlimited throughput", found.pace);
            assert!(found.queued <= MOST_QUEUED, "{name}: {} of the tokens wait in the engine", found.queued);
            let most_diff = match name.as_str() {
                "vtc-arena-27" => MOST_ARENA_DIFF,
                "overload8" => MOST_OVERLOAD_DIFF,
                _ => f64::INFINITY,
            };
            assert!(found.avg_diff <= most_diff, "{name}: average difference {}", found.avg_diff);
            let most = match name.as_str() {
                // The trace is not always more than the engine can do, so there is no moment from which it is busy.
                "vtc-arena-27" => f64::INFINITY,
                _ => SETTLED_S,
            };
            assert!(found.settled <= most, "{name}: settled after {} s", found.settled);
        }
    }
}

/// Answers in one piece do not show when they begin; what the engine says of its queue does as well.
#[test]
fn what_the_engine_says_keeps_its_queue_short_where_nothing_is_streamed() {
    let (Some(folder), Some(arena)) = (shared("workloads"), shared("traces/vtc-arena-27.csv")) else { return };
    let mut engines = vec![("as published", engine(&folder, |_| {}))];
    if is_full() {
        engines.extend(other_engines(&folder));
    }
    println!("| engine | workload, at once | window | tokens/s % | queue % | avg diff | settled s |");
    let of_each = |(label, spec): (_, EngineSpec)| {
        workloads(&folder, &arena, 42).into_iter().map(move |workload| (label, spec.clone(), workload))
    };
    for (label, spec, mut workload) in engines.into_iter().flat_map(of_each) {
        workload.demands.iter_mut().for_each(|demand| demand.streamed = false);
        let unlimited = row(&workload, &UNLIMITED, &spec, 1.0).0.pace;
        print(label, &workload, &ADAPTIVE, &row(&workload, &ADAPTIVE, &spec, unlimited).0);
        let (found, _) = row(&workload, &GAUGES, &spec, unlimited);
        print(label, &workload, &GAUGES, &found);
        if label != "as published" {
            continue;
        }
        let name = &workload.name;
        let most = if name == "switch" { MOST_QUEUED_AT_ONCE_SWITCHED } else { MOST_QUEUED_AT_ONCE };
        assert!(found.pace >= LEAST_PACE_AT_ONCE, "{name}: {} of the unlimited throughput", found.pace);
        assert!(found.queued <= most, "{name}: {} of the tokens wait in the engine", found.queued);
    }
}

/// The fixed window that comes out best on an engine and a workload: with throughput and queue as they must be, the one
/// that is most even; where there is none, the most throughput with such a queue.
fn best_fixed(workload: &Workload, spec: &EngineSpec, unlimited: f64) -> (String, Row) {
    let memory = spec.kv_tokens.get();
    let tokens = (90..140).step_by(5).map(|part| format!("{{tokens: {}}}", memory * part / 100));
    let requests =
        (4..60).step_by(4).map(|of_10_000| format!("{{requests: {}}}", (of_10_000 * memory).div_ceil(10_000)));
    let tried = tokens.chain(requests).map(|window| {
        let found = row(workload, &("fixed", Place::Gateway, &window), spec, unlimited).0;
        (window, found)
    });
    let short = tried.filter(|(_, found)| found.queued <= MOST_QUEUED);
    let rank = |found: &Row| if found.pace >= LEAST_PACE { (1.0, -found.avg_diff) } else { (0.0, found.pace) };
    short.max_by(|one, other| rank(&one.1).partial_cmp(&rank(&other.1)).expect("numbers")).expect("some keep it short")
}

fn other_engines(workloads: &Path) -> [(&'static str, EngineSpec); 3] {
    let memory = |tokens: u64| engine(workloads, move |spec| spec.kv_tokens = Tokens::new(tokens));
    let every_step = engine(workloads, |spec| spec.admit_every_steps = 1);
    [("half the memory", memory(5_000)), ("twice", memory(20_000)), ("every step", every_step)]
}

#[test]
fn other_engines_need_no_other_configuration() {
    let (Some(folder), Some(arena)) = (shared("workloads"), shared("traces/vtc-arena-27.csv")) else { return };
    if !is_full() {
        eprintln!("SKIPPED: other engines are measured with TALLYGATE_FULL=1");
        return;
    }
    for (label, spec) in other_engines(&folder) {
        for workload in workloads(&folder, &arena, 42) {
            let name = &workload.name;
            let unlimited = row(&workload, &UNLIMITED, &spec, 1.0).0.pace;
            let (best, hindsight) = best_fixed(&workload, &spec, unlimited);
            print(label, &workload, &(&best, Place::Gateway, ""), &hindsight);
            let (found, _) = row(&workload, &ADAPTIVE, &spec, unlimited);
            print(label, &workload, &ADAPTIVE, &found);
            // What is aimed at on the published engine is not quite reached on these; docs/window.md says where.
            assert!(found.pace >= 0.90 && found.queued <= MOST_QUEUED, "{label}, {name}: {}", found.pace);
        }
    }
}

/// The trace with every arrival moved by up to a second, so that no number hangs on one order of arrivals: the mean of
/// five is what is aimed at. With less memory it is half a hundredth of the throughput less, with more it is hardly more
/// than the engine can do, and no window keeps it even.
#[test]
fn the_trace_shaken_comes_to_the_same_on_average() {
    const SEEDS: std::ops::RangeInclusive<u64> = 1..=5;
    let (Some(folder), Some(arena)) = (shared("workloads"), shared("traces/vtc-arena-27.csv")) else { return };
    let still = trace::read(&arena).expect("a valid trace").demands;
    let engines = [("as published", engine(&folder, |_| {}))].into_iter().chain(other_engines(&folder));
    println!("| engine | workload | window | tokens/s % | queue % | avg diff | settled s |");
    for (label, spec) in engines.take(if is_full() { usize::MAX } else { 1 }) {
        let rows: Vec<Row> = SEEDS
            .map(|seed| {
                let name = format!("vtc-arena-27, shaken {seed}");
                let workload = Workload { name, demands: shaken(&still, seed), changes: vec![0.0] };
                let unlimited = row(&workload, &UNLIMITED, &spec, 1.0).0.pace;
                let (found, _) = row(&workload, &ADAPTIVE, &spec, unlimited);
                print(label, &workload, &ADAPTIVE, &found);
                found
            })
            .collect();
        let mean = |of: fn(&Row) -> f64| rows.iter().map(of).sum::<f64>() / 5.0;
        let (pace, queued, diff) = (mean(|row| row.pace), mean(|row| row.queued), mean(|row| row.avg_diff));
        println!(
            "| {label} | mean of five | adapt: auto | {:.1} | {:.1} | {diff:.0} | – |",
            pace * 100.0,
            queued * 100.0
        );
        let (least, most) = match label {
            "half the memory" => (LEAST_PACE - 0.01, MOST_ARENA_DIFF),
            "twice" => (LEAST_PACE, f64::INFINITY),
            _ => (LEAST_PACE, MOST_ARENA_DIFF),
        };
        assert!(pace >= least && queued <= MOST_QUEUED && diff <= most, "{label}: {pace}, {queued}, {diff}");
    }
}

/// Every demand up to a second earlier or later.
fn shaken(demands: &[Demand], seed: u64) -> Vec<Demand> {
    let mut rng = StdRng::seed_from_u64(seed);
    let moved = |demand: &Demand| {
        let arrival = demand.arrival.since(Instant::EPOCH).as_secs_f64() + rng.random_range(-1.0..1.0);
        Demand { arrival: Instant::from_secs_f64(arrival.max(0.0)), ..demand.clone() }
    };
    let mut demands: Vec<Demand> = demands.iter().map(moved).collect();
    demands.sort_by_key(|demand| demand.arrival);
    demands
}

/// Half the speed for a minute, while an eighth more is offered than the engine can do at full speed: hardly anybody is
/// left to expire, and two mean answers after, the engine does as much as before with as short a queue.
#[test]
fn an_engine_at_half_speed_for_a_minute_starts_no_storm() {
    const SLOW: (f64, f64) = (120.0, 180.0);
    let at = Instant::from_secs_f64;
    let slowdown = Slowdown { from: at(SLOW.0), until: at(SLOW.1), factor: 2_000 };
    let spec = EngineSpec { slowdowns: vec![slowdown], ..EngineSpec::default() };
    let clients: Vec<Client> = (0..8).map(|tenant| client(tenant, 0.26, (0.0, 360.0), 256, 256)).collect();
    let demands = generate(&clients, 7).expect("valid clients");
    println!("| window | span s | completed a minute | refused at once | expired | engine's queue % | running |");
    for limited in [("28 requests", Place::Gateway, "{requests: 28}"), ADAPTIVE] {
        let run = run(&setup(&limited, spec.clone(), "{name: standard, rank: 0, max_wait: 20s}"), &demands);
        let lasted: Vec<f64> = run
            .records
            .iter()
            .filter_map(|record| Some(record.finished?.since(record.dispatched?).as_secs_f64()))
            .collect();
        let period = lasted.iter().sum::<f64>() / f64::from(u32::try_from(lasted.len()).expect("few"));
        let back = (SLOW.1 + 2.0 * period, SLOW.1 + 2.0 * period + 60.0);
        let spans = [(60.0, 120.0), SLOW, back].map(|span| {
            let seen = Seen::of(&run, span);
            println!(
                "| {} | {:.0}-{:.0} | {} | {} | {} | {:.1} | {:.0} |",
                limited.0,
                span.0,
                span.1,
                seen.completed,
                seen.refused,
                seen.expired,
                seen.queued * 100.0,
                seen.running
            );
            seen
        });
        if limited.0 != ADAPTIVE.0 {
            continue;
        }
        let [before, during, after] = spans;
        let all = during.completed + during.refused + during.expired;
        // Who waited when the engine became slow had been promised more.
        assert!(during.expired * 5 <= all, "{} of {all} expired: a storm", during.expired);
        assert!(after.expired * 20 <= after.completed + after.refused + after.expired, "{} expired", after.expired);
        assert!(during.queued <= 0.15 && after.queued <= 0.10, "{} and {}", during.queued, after.queued);
        assert!(after.completed * 100 >= before.completed * 95, "{} after {}", after.completed, before.completed);
        assert!((after.running / before.running - 1.0).abs() <= 0.1, "{} after {}", after.running, before.running);
    }
}

/// What was seen of a run in a while: how requests ended in it, and what the engine held.
struct Seen {
    completed: usize,
    refused: usize,
    expired: usize,
    queued: f64,
    /// Tokens admitted by the engine, on average.
    running: f64,
}

impl Seen {
    fn of(run: &Run, (from, until): (f64, f64)) -> Self {
        let within = |moment: Option<Instant>| {
            moment
                .is_some_and(|moment| Instant::from_secs_f64(from) <= moment && moment < Instant::from_secs_f64(until))
        };
        let ended = |outcome: Outcome| {
            let moment = |record: &Record| if outcome == Outcome::Completed { record.finished } else { record.decided };
            run.records.iter().filter(|record| record.outcome == Some(outcome) && within(moment(record))).count()
        };
        let load = bins(&run.load, from, until);
        Self {
            completed: ended(Outcome::Completed),
            refused: ended(Outcome::Refused),
            expired: ended(Outcome::Expired),
            queued: queued(load),
            running: load.iter().map(|load| load.admitted).sum::<f64>()
                / (f64::from(u32::try_from(load.len()).expect("few")) * LOAD_BIN.as_secs_f64()),
        }
    }
}
