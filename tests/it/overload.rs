//! Overload: what comes of an engine that is offered more than it can do, before this core and before others' ways.
//!
//! The capacity is not assumed but measured: the most good answers a second of any way at any load of a sweep. Then
//! the same clients offer 1.5, 3 and 10 times that. Beside the core stand [`Baseline`]s, each set up as whoever knows
//! the engine and the clients would: the rate of requests in three sizes and the gradient with three buffers, of which
//! the best at the overload in question is shown. `--nocapture` prints the table of `docs/overload.md`;
//! `TALLYGATE_FULL=1` makes the sweep finer and the runs longer.

use std::collections::BTreeMap;
use std::sync::Arc;

use tallygate::policy::Policy;
use tallygate::sim::clients::{Arrivals, Client, Lengths, generate};
use tallygate::sim::oracle::{Bid, Verdict, Wrong, fair_queueing, refusals};
use tallygate::sim::{
    Baseline, Demand, EngineSpec, Goodput, Gradient, Guess, Keep, Outcome, Place, Record, Report, Setup, Since,
    baseline,
};
use tallygate::units::{Instant, Span};

use crate::support;

/// An answer is good when all of it comes within this of being asked for.
const WHOLE_ANSWER: Span = Span::from_secs(30);
/// And the first token of what is admitted comes within this, at the 99th percentile.
const FIRST_TOKEN_S: f64 = 10.0;
/// A client gives up when its answer is not whole by then: nobody waits for ever for what is of no use.
const GIVES_UP_S: f64 = 30.0;
/// By how many of the largest requests a tenant may be further below its share of any minute, while it is refused for the
/// queue, than by fair queueing that knows every length, has as much room at every moment, and refuses nobody before his
/// time is over. By that a tenant with few and large requests is below it too, a little above the capacity: it has nothing
/// waiting now and then, and no fair order keeps credit for that time.
const MOST_BEYOND_BEST: f64 = 3.0;
/// With answers of known length, at ten times the capacity: by no more than the largest request.
const MOST_BELOW_KNOWN: f64 = 1.0;
/// Left out at the start, while queues fill and the predictor learns.
const WARM_UP_S: f64 = 60.0;

/// The longest anybody waits for his turn.
const MAX_WAIT: Span = Span::from_secs(5);

const POLICY: &str = "version: 1\n\
    classes: [{name: standard, rank: 0, max_wait: 5s}]\n\
    default_class: standard\n\
    tenants: [{match: \"*\"}]\n\
    pools: [{name: p, window: {tokens: 12000}}]\n";

/// What is offered at load 1: about as much as the default engine can do. Four tenants ask for equal service with
/// requests of different shapes, and two ask for little and always the same, however much the others ask.
fn clients(load: f64, longer: f64, seconds: f64) -> Vec<Client> {
    let client = |tenant: &str, rate: f64, input: (u64, u64), median: f64, most: u64| Client {
        tenant: tenant.to_owned(),
        sessions: None,
        class: None,
        model: String::new(),
        arrivals: Arrivals::Poisson { rate },
        from_s: 0.0,
        until_s: seconds,
        input: Lengths::Uniform { least: input.0, most: input.1 },
        output: Lengths::Lognormal { median: median * longer, sigma: 0.5, most },
        max_tokens: None,
        stream: true,
        deadline_s: None,
        leaves_after_s: Some(GIVES_UP_S),
        retries: 0,
        told_instead_s: None,
    };
    vec![
        client("chat-1", 1.40 * load, (20, 150), 100.0, 400),
        client("chat-2", 1.40 * load, (20, 150), 100.0, 400),
        client("reader", 0.65 * load, (200, 1_000), 40.0, 160),
        client("writer", 0.75 * load, (20, 80), 230.0, 400),
        client("light-1", 0.10, (20, 150), 100.0, 400),
        client("light-2", 0.05, (200, 1_000), 40.0, 160),
    ]
}

/// One way to meet overload.
#[derive(Clone)]
enum Way {
    Core(Arc<Policy>),
    Baseline(Baseline),
}

/// What came of one way at one load.
struct Outcomes {
    offered_per_s: f64,
    good_per_s: f64,
    first_token_p99_s: f64,
    admitted: f64,
    wrong: Wrong,
    /// What fair queueing that knows all lengths would have come to with the same room.
    at_best: Wrong,
    /// From arriving to being refused, the median.
    refused_after_s: f64,
    /// The part of the refusals that came only when the wait had been as long as it may.
    expired: f64,
    /// Of what the light tenants asked, the part whose answer was good.
    light_good: f64,
}

#[derive(Clone)]
struct Bench {
    seconds: f64,
    engine: EngineSpec,
    guess: Guess,
    /// How much longer than usual answers are.
    longer: f64,
}

impl Bench {
    fn run(&self, way: &Way, load: f64) -> Outcomes {
        let demands = generate(&clients(load, self.longer, self.seconds), 1).expect("valid clients");
        let records = match way {
            Way::Core(policy) => self.core(policy, &demands),
            Way::Baseline(baseline) => baseline::run(*baseline, &self.engine, &demands),
        };
        self.outcomes(&records)
    }

    fn core(&self, policy: &Arc<Policy>, demands: &[Demand]) -> Vec<Record> {
        let setup = Setup {
            policy: Arc::clone(policy),
            engine: self.engine.clone(),
            place: Place::Gateway,
            guess: self.guess,
            seed: 1,
            keep: Keep::Records,
        };
        let run = setup.run(demands, |_| {});
        assert_eq!(run.faults, Vec::<String>::new());
        assert!(Report::new(&setup, &run).books_are_exact());
        run.records
    }

    fn outcomes(&self, records: &[Record]) -> Outcomes {
        let (from, until) = (Instant::from_secs_f64(WARM_UP_S), Instant::from_secs_f64(self.seconds));
        let inside: Vec<&Record> = records.iter().filter(|record| (from..until).contains(&record.arrival)).collect();
        let mut first: Vec<f64> = inside.iter().filter_map(|record| first_token(record)).collect();
        first.sort_by(f64::total_cmp);
        let mut refused: Vec<f64> = inside.iter().filter_map(|record| refused_after(record)).collect();
        refused.sort_by(f64::total_cmp);
        let admitted = inside.iter().filter(|record| record.dispatched.is_some()).count();
        let bids: Vec<Bid> = inside.iter().filter_map(|record| bid(record)).collect();
        let judge = |bids: &[Bid]| refusals(bids, MAX_WAIT, Span::from_secs(60), Span::from_secs(1));
        let light: Vec<&&Record> = inside.iter().filter(|record| record.tenant.as_str().starts_with("light")).collect();
        let light_good = light.iter().filter(|record| is_good(record)).count();
        Outcomes {
            offered_per_s: ratio(inside.len(), self.seconds - WARM_UP_S),
            good_per_s: Goodput::of(records, WHOLE_ANSWER, Since::Arrival).between(from, until),
            first_token_p99_s: rank(&first, 99),
            admitted: ratio(admitted, ratio(inside.len(), 1.0)),
            wrong: judge(&bids),
            at_best: judge(&fair_queueing(&bids, MAX_WAIT)),
            refused_after_s: rank(&refused, 50),
            expired: ratio(
                inside.iter().filter(|record| record.outcome == Some(Outcome::Expired)).count(),
                ratio(refused.len().max(1), 1.0),
            ),
            light_good: ratio(light_good, ratio(light.len(), 1.0)),
        }
    }
}

fn is_good(record: &Record) -> bool {
    let whole = record.outcome == Some(Outcome::Completed);
    whole && record.finished.is_some_and(|end| end.since(record.asked) <= WHOLE_ANSWER)
}

/// From asking to the first token; as long as it lasted where an admitted request never got one.
fn first_token(record: &Record) -> Option<f64> {
    record.dispatched?;
    let came = record.first_token.or(record.finished)?;
    Some(came.since(record.asked).as_secs_f64())
}

fn refused_after(record: &Record) -> Option<f64> {
    let refused = matches!(record.outcome, Some(Outcome::Refused | Outcome::Expired));
    refused.then(|| record.decided.map(|at| at.since(record.arrival).as_secs_f64()))?
}

/// A request as the judge of refusals sees it: its service at the default weights.
fn bid(record: &Record) -> Option<Bid> {
    let refused = matches!(record.reason, Some("queue_full" | "wait_too_long" | "expired" | "concurrency_limited"));
    let verdict = match record.dispatched {
        Some(_) => Verdict::LetThrough,
        None if refused => Verdict::RefusedForTheQueue,
        None => return None,
    };
    let service = record.input + record.output + record.output;
    Some(Bid {
        asked: record.arrival,
        at: record.decided?,
        tenant: record.tenant.clone(),
        weight: 1.0,
        service,
        verdict,
    })
}

fn rank(sorted: &[f64], percent: usize) -> f64 {
    sorted.get((sorted.len() * percent / 100).min(sorted.len().saturating_sub(1))).copied().unwrap_or_default()
}

fn ratio(count: usize, of: f64) -> f64 {
    f64::from(u32::try_from(count).expect("few")) / of
}

fn core() -> Way {
    Way::Core(support::policy("overload", POLICY).expect("a valid policy"))
}

/// Every way, by name. Of those with a setting, every setting: the best is shown.
fn ways(capacity_per_s: f64) -> Vec<(&'static str, Vec<(String, Way)>)> {
    let rate = |part: f64| {
        // What the four that ask for much may send together is this part of the capacity.
        let per_tenant = part * capacity_per_s * 60.0 / 4.0;
        let limit = Baseline::RequestsPerMinute { per_tenant, burst: per_tenant / 6.0 };
        (format!("{per_tenant:.0}/min each"), Way::Baseline(limit))
    };
    let gradient = |buffer: f64| {
        let settings = Gradient { buffer, ..Gradient::default() };
        (format!("buffer {:.0} %", buffer * 100.0), Way::Baseline(Baseline::AdaptiveConcurrency(settings)))
    };
    vec![
        ("tallygate", vec![(String::new(), core())]),
        ("nothing", vec![(String::new(), Way::Baseline(Baseline::Nothing))]),
        ("requests per minute", vec![rate(1.0), rate(0.85), rate(0.7)]),
        ("adaptive concurrency", vec![gradient(0.25), gradient(1.0), gradient(2.0)]),
    ]
}

/// Every load of the sweep for the capacity, as a part of what load 1 offers.
const SWEEP: [f64; 8] = [0.8, 1.0, 1.1, 1.2, 1.3, 1.4, 1.6, 2.0];

#[test]
fn goodput_stays_at_its_peak_whatever_is_offered() {
    let full = std::env::var_os("TALLYGATE_FULL").is_some();
    let seconds = if full { 3_060.0 } else { 1_060.0 };
    let usual = Bench { seconds, engine: EngineSpec::default(), guess: Guess::Learned, longer: 1.0 };
    let unit = usual.run(&core(), 1.0).offered_per_s;
    // A rate is set up by what the core can do, which is the only capacity known before the baselines are.
    let planned = usual.sweep(&core());
    let mut failures = usual.compare("the usual answers", planned, unit);
    // Nobody changes a setting when clients begin to ask for longer answers.
    let longer = Bench { longer: 1.8, ..usual };
    failures.extend(longer.compare("answers 1.8 times as long, the settings as before", planned, unit));
    assert!(failures.is_empty(), "{failures:#?}");
}

/// What is left of shares missed is what the predictions of lengths are off by, and one request: with true lengths,
/// nobody who is refused for the queue is below its share of any minute by more than the largest request.
#[test]
fn with_known_lengths_nobody_is_refused_below_its_share_by_more_than_a_request() {
    for longer in [1.0, 1.8] {
        let known = Bench { seconds: 1_060.0, engine: EngineSpec::default(), guess: Guess::Scaled(1.0), longer };
        let wrong = known.run(&core(), 10.0).wrong;
        let largest = ratio(usize::try_from(wrong.largest.get()).expect("small"), 1.0);
        println!("answers {longer} times as long: {:.0} below, the largest request is {largest:.0}", wrong.short);
        assert!(wrong.windows > 100, "only {} windows have a refusal for the queue", wrong.windows);
        assert!(wrong.short <= MOST_BELOW_KNOWN * largest, "{wrong:?}");
    }
}

impl Bench {
    /// The most good answers a second of a way over the sweep.
    fn sweep(&self, way: &Way) -> f64 {
        SWEEP.iter().map(|load| self.run(way, *load).good_per_s).fold(0.0, f64::max)
    }

    /// Prints what comes of every way, and says which claims do not hold. `planned` is the capacity that a rate was
    /// set up for, `unit` what load 1 offers a second.
    fn compare(&self, about: &str, planned: f64, unit: f64) -> Vec<String> {
        let all = ways(planned);
        let peaks: Vec<(&str, f64)> = all
            .iter()
            .map(|(name, settings)| (*name, settings.iter().map(|(_, way)| self.sweep(way)).fold(0.0, f64::max)))
            .collect();
        let capacity = peaks.iter().map(|(_, peak)| *peak).fold(0.0, f64::max);
        let told: Vec<String> = peaks.iter().map(|(name, peak)| format!("{name} {peak:.2}")).collect();
        println!("\n{about}: capacity {capacity:.2} good answers/s, the most of {}", told.join(", "));
        println!("{}", Outcomes::HEAD);
        let mut failures = Vec::new();
        for times in [1.0, 1.5, 3.0, 10.0] {
            for (name, settings) in &all {
                let load = times * capacity / unit;
                let tried = settings.iter().map(|(setting, way)| (setting, self.run(way, load)));
                let (setting, best) =
                    tried.max_by(|a, b| a.1.good_per_s.total_cmp(&b.1.good_per_s)).expect("every way has a setting");
                println!("{}", best.line(name, capacity, setting));
                let part = best.good_per_s / capacity;
                if *name == "tallygate" && times > 1.0 {
                    failures.extend(broken(&best, part, times).into_iter().map(|what| format!("{about}, {what}")));
                } else if *name == "nothing" && times > 2.0 && part > 0.5 {
                    failures.push(format!("{about}: nothing gives {part:.2} of the peak at {times}, no overload"));
                }
            }
        }
        failures
    }
}

impl Outcomes {
    const HEAD: &str = "way                    offered    good/s   of peak  first p99  admitted  light good  below share  at best  expired  \
        setting";

    fn line(&self, name: &str, capacity: f64, setting: &str) -> String {
        format!(
            "{name:<22}{:>7.1}x{:>10.2}{:>8.1} %{:>9.2} s{:>8.1} %{:>10.1} %{:>11.1} %{:>7.1} %{:>7.1} %  {setting}",
            self.offered_per_s / capacity,
            self.good_per_s,
            self.good_per_s / capacity * 100.0,
            self.first_token_p99_s,
            self.admitted * 100.0,
            self.light_good * 100.0,
            self.wrong.part * 100.0,
            self.at_best.part * 100.0,
            self.expired * 100.0,
        )
    }
}

/// Which of the claims do not hold.
fn broken(found: &Outcomes, part: f64, times: f64) -> Vec<String> {
    let (wrong, at_best) = (&found.wrong, &found.at_best);
    let largest = ratio(usize::try_from(wrong.largest.get()).expect("small"), 1.0);
    let claims = [
        (part >= 0.95, format!("goodput is {part:.3} of the peak")),
        (found.first_token_p99_s <= FIRST_TOKEN_S, format!("first token p99 is {} s", found.first_token_p99_s)),
        (found.refused_after_s < 0.001, format!("refusals take {} s at the median", found.refused_after_s)),
        (found.light_good >= 0.98, format!("only {:.3} of the light tenants' are good", found.light_good)),
        (wrong.windows > 100, format!("only {} windows have a refusal for the queue", wrong.windows)),
        (
            wrong.short <= at_best.short + MOST_BEYOND_BEST * largest,
            format!("a tenant is refused below its share: {wrong:?}, by fair queueing {at_best:?}"),
        ),
    ];
    claims.into_iter().filter(|(holds, _)| !holds).map(|(_, what)| format!("at {times}x: {what}")).collect()
}

/// Two hundred clients in a closed loop that try again as the official SDKs do, about three times what the engine can
/// do; `told_instead_s` is a constant that they are told instead of our times.
fn storm(seconds: f64, told_instead_s: Option<f64>) -> Vec<Client> {
    let calm = clients(1.0, 1.0, seconds);
    let chat = calm.first().expect("there are clients");
    let arrivals = Arrivals::Closed { clients: 50, think_s: STORM_THINK_S };
    let tenants = ["a", "b", "c", "d"].map(str::to_owned);
    tenants
        .map(|tenant| Client { tenant, arrivals: arrivals.clone(), retries: 2, told_instead_s, ..chat.clone() })
        .into()
}

/// How long a client of the storm thinks between its requests.
const STORM_THINK_S: f64 = 2.0;

/// What came of a retry storm.
struct Storm {
    good_per_s: f64,
    /// How many times the engine's capacity first tries were, and all tries together.
    offered: (f64, f64),
    /// Of those who came back when told, the part that was let in.
    let_in: f64,
    /// The largest part of these that came within one tenth of a second.
    at_once: f64,
}

impl Storm {
    fn of(records: &[Record], seconds: f64, capacity: f64) -> Self {
        let (from, until) = (Instant::from_secs_f64(WARM_UP_S), Instant::from_secs_f64(seconds));
        let inside: Vec<&Record> = records.iter().filter(|record| (from..until).contains(&record.arrival)).collect();
        let first = inside.iter().filter(|record| record.asked == record.arrival).count();
        let back: Vec<&&Record> = inside.iter().filter(|record| record.heeded).collect();
        let let_in = back.iter().filter(|record| record.dispatched.is_some()).count();
        let mut tenths: BTreeMap<u64, usize> = BTreeMap::new();
        back.iter().for_each(|record| *tenths.entry(record.arrival.as_nanos() / 100_000_000).or_default() += 1);
        let per_s = |count: usize| ratio(count, (seconds - WARM_UP_S) * capacity);
        Self {
            good_per_s: Goodput::of(records, WHOLE_ANSWER, Since::Arrival).between(from, until),
            offered: (per_s(first), per_s(inside.len())),
            let_in: ratio(let_in, ratio(back.len(), 1.0)),
            at_once: ratio(tenths.values().max().copied().unwrap_or_default(), ratio(back.len(), 1.0)),
        }
    }
}

#[test]
fn a_retry_storm_is_spread_and_let_in_and_costs_no_goodput() {
    let bench = Bench { seconds: 600.0, engine: EngineSpec::default(), guess: Guess::Learned, longer: 1.0 };
    let Way::Core(policy) = core() else { panic!("the core is the core") };
    let only_chat = |load: f64| {
        let mut chat = clients(load, 1.0, bench.seconds);
        chat.truncate(2);
        chat
    };
    let good = |clients: &[Client]| {
        let records = bench.core(&policy, &generate(clients, 1).expect("valid clients"));
        Goodput::of(&records, WHOLE_ANSWER, Since::Arrival)
            .between(Instant::from_secs_f64(WARM_UP_S), Instant::from_secs_f64(bench.seconds))
    };
    let capacity = [2.0, 2.4, 2.8, 3.2, 3.6].map(|load| good(&only_chat(load))).into_iter().fold(0.0, f64::max);
    println!("capacity: {capacity:.2} good answers/s");
    let storms = [None, Some(1.0), Some(5.0), Some(20.0)].map(|told| {
        let records = bench.core(&policy, &generate(&storm(bench.seconds, told), 1).expect("valid clients"));
        let storm = Storm::of(&records, bench.seconds, capacity);
        let what = told.map_or_else(|| "our times".to_owned(), |told| format!("{told} s for everyone"));
        println!(
            "{what:<18} first tries {:.1}x, all {:.1}x  goodput {:.1} %  let in on return {:.1} %  at once {:.2} %",
            storm.offered.0,
            storm.offered.1,
            storm.good_per_s / capacity * 100.0,
            storm.let_in * 100.0,
            storm.at_once * 100.0,
        );
        storm
    });
    let [ours, constants @ ..] = &storms;
    // What they would ask for were nobody ever refused: an answer takes about three seconds of an idle engine.
    let would_ask = 200.0 / (STORM_THINK_S + 3.0) / capacity;
    println!("two hundred clients that are never refused would ask for {would_ask:.1} times the capacity");
    assert!(would_ask >= 3.0, "these clients would ask for {would_ask:.1} times the capacity, no storm");
    assert!(ours.let_in >= 0.9, "{:.3} of those who came back when told were let in", ours.let_in);
    assert!(ours.good_per_s >= 0.95 * capacity, "goodput is {:.2} of {capacity:.2}", ours.good_per_s);
    assert!(ours.at_once <= 0.05, "{:.3} came back within a tenth of a second", ours.at_once);
    let best = constants.iter().map(|constant| constant.let_in).fold(0.0, f64::max);
    assert!(best < 0.75, "a constant lets in {best:.2}: these clients show nothing");
}

/// What a tier in front of the pool absorbs of the load, until it is gone.
const ABSORBED: f64 = 0.6;
/// The window in which goodput must not fall.
const WINDOW: Span = Span::from_secs(60);

/// Clients of whom a tier in front absorbs six requests of ten, but for the time in which it is gone. What is left
/// then is `residual` of the capacity, so that all of it together is two and a half times as much.
fn behind_a_tier(residual: f64, gone: (f64, f64), seconds: f64) -> Vec<Client> {
    let passed = clients(residual, 1.0, seconds);
    let absorbed = clients(residual * ABSORBED / (1.0 - ABSORBED), 1.0, seconds);
    let returning = |client: Client| Client { retries: 2, ..client };
    let while_gone = |client: Client| Client { from_s: gone.0, until_s: gone.1, ..client };
    passed.into_iter().chain(absorbed.into_iter().map(while_gone)).map(returning).collect()
}

#[test]
fn a_tier_that_disappears_takes_no_goodput_with_it() {
    let bench = Bench { seconds: 660.0, engine: EngineSpec::default(), guess: Guess::Learned, longer: 1.0 };
    let capacity = bench.sweep(&core());
    let unit = bench.run(&core(), 1.0).offered_per_s;
    let gone = (180.0, 480.0);
    let (from, until) = (Instant::from_secs_f64(gone.0), Instant::from_secs_f64(gone.1));
    let demands = generate(&behind_a_tier(0.9 * capacity / unit, gone, bench.seconds), 1).expect("valid clients");
    let Way::Core(policy) = core() else { panic!("the core is the core") };
    let least = |records: &[Record]| {
        let goodput = Goodput::of(records, WHOLE_ANSWER, Since::Arrival);
        let after = Instant::from_secs_f64(gone.1 + 60.0)..Instant::from_secs_f64(bench.seconds);
        [goodput.least(from, until, WINDOW) / capacity, goodput.between(after.start, after.end) / capacity]
    };
    let asked_again = |records: &[Record]| {
        let good = Goodput::of(records, WHOLE_ANSWER, Since::FirstAsked);
        good.between(from, until) / capacity
    };
    let records = bench.core(&policy, &demands);
    println!(
        "the longest wait that was told: {:.1} s",
        records.iter().filter_map(|record| record.retry_after).max().unwrap_or_default().as_secs_f64()
    );
    println!(
        "of the goodput while it is gone, {:.1} % of the capacity came in time since first asked",
        asked_again(&records) * 100.0
    );
    let ours = least(&records);
    let nothing = least(&baseline::run(Baseline::Nothing, &bench.engine, &demands));
    println!("capacity {capacity:.2}/s; least over any minute while the tier is gone, and when it is back:");
    println!(
        "tallygate {:.1} %, {:.1} %; nothing {:.1} %, {:.1} %",
        ours[0] * 100.0,
        ours[1] * 100.0,
        nothing[0] * 100.0,
        nothing[1] * 100.0
    );
    assert!(ours[0] >= 0.9, "goodput falls to {:.3} of the capacity in some minute", ours[0]);
    assert!(nothing[0] < 0.5, "without admission it falls only to {:.3}: this shows nothing", nothing[0]);
}
