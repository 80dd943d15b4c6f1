//! Every file in `tests/scenarios` is a claim, its name says which, and this runs them all.
//!
//! A scenario is data: clients, engine, policy, and what is to be expected with what margin. The world is the
//! simulator's; the judge is the oracle, which knows nothing of the core. Every scenario must also satisfy what
//! always holds: no request lost, books exact, nothing idle beside a waiting request, and the VTC bound unless
//! the scenario says that it breaks it.

use std::collections::BTreeMap;
use std::path::Path;

use schemars::JsonSchema;
use serde::Deserialize;

use tallygate::sim::clients::{Client, generate};
use tallygate::sim::measure::{Grid, shares_between};
use tallygate::sim::oracle::{self, Findings};
use tallygate::sim::{Demand, EngineSpec, Goodput, Guess, Keep, Outcome, Place, Record, Report, Run, Setup, Since};
use tallygate::units::{Instant, Span, TenantId, Tokens};
use tallygate::yaml;

use crate::support;

/// A claim to be tested.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Scenario {
    /// Why anybody would care.
    about: String,
    /// Decides whatever is left to chance.
    #[serde(default = "one")]
    seed: u64,
    /// Whether the engine's own scheduler asks the core, instead of the gateway letting through.
    #[serde(default)]
    at_engine: bool,
    /// The engine.
    #[serde(default)]
    engine: EngineSpec,
    /// The policy.
    policy: serde_json::Value,
    /// Who sends what.
    clients: Vec<Client>,
    /// What must come of it.
    expect: Vec<Expectation>,
}

fn one() -> u64 {
    1
}

/// One thing that must come of it.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Expectation {
    /// Each tenant's part of the service given in a stretch of time.
    Shares { of: BTreeMap<String, f64>, within: f64, from_s: f64, until_s: f64 },
    /// Each tenant's part is the weighted max-min share of what was given, for what it asked.
    MaxMin {
        #[serde(default)]
        weights: BTreeMap<String, f64>,
        within: f64,
        from_s: f64,
        until_s: f64,
    },
    /// How long a tenant waits for its first token: this percentile of its completed requests, in seconds.
    FirstToken { tenant: String, percentile: usize, is: Bounds },
    /// How many of a tenant's requests ended this way, and for this reason.
    Ended {
        tenant: String,
        outcome: String,
        #[serde(default)]
        reason: Option<String>,
        is: Bounds,
    },
    /// Of the requests of a tenant that came back when they were told to, the part that was let through.
    LetInOnReturn {
        tenant: String,
        /// Only those that arrived in this stretch of time.
        from_s: f64,
        until_s: f64,
        is: Bounds,
    },
    /// Of a tenant's requests that came back when told, the largest part that came within one tenth of a second.
    ReturnsAtOnce { tenant: String, is: Bounds },
    /// The longest a request waited before it was refused, in seconds.
    WaitedBeforeRefusal(Bounds),
    /// The most requests any session had in flight.
    InFlightOfASession(Bounds),
    /// The most tokens dispatched and unfinished at once.
    InFlightTokens(Bounds),
    /// Whole answers a second that came within an objective of arriving: the least over any window of a length, or
    /// over all of the stretch where none is given.
    Goodput {
        objective_s: f64,
        from_s: f64,
        until_s: f64,
        #[serde(default)]
        window_s: Option<f64>,
        is: Bounds,
    },
    /// How much of the VTC bound was used; above 1 it is broken.
    BoundUsed(Bounds),
    /// Tokens a second.
    TokensPerS(Bounds),
}

/// Between what a number must lie.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Bounds {
    #[serde(default)]
    at_least: Option<f64>,
    #[serde(default)]
    at_most: Option<f64>,
}

#[test]
fn every_scenario_holds() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios");
    let mut paths: Vec<_> = std::fs::read_dir(&folder)
        .expect("the scenarios are there")
        .map(|entry| entry.expect("readable").path())
        .collect();
    paths.sort();
    assert!(paths.len() >= 15, "only {} scenarios in {}", paths.len(), folder.display());
    let mut failures = Vec::new();
    for path in &paths {
        let name = path.file_name().expect("a file").to_string_lossy();
        failures.extend(judge(path).into_iter().map(|failure| format!("{name}: {failure}")));
    }
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

/// Runs a scenario and says what it does not satisfy.
fn judge(path: &Path) -> Vec<String> {
    let name = path.display().to_string();
    let text = std::fs::read_to_string(path).expect("readable");
    let scenario = match yaml::load::<Scenario>(&name, &text) {
        Ok(loaded) => loaded.value,
        Err(mistakes) => return vec![mistakes.to_string()],
    };
    assert!(!scenario.about.is_empty(), "{name} says nothing about itself");
    let policy = match support::policy(&name, &scenario.policy.to_string()) {
        Ok(policy) => policy,
        Err(mistakes) => return vec![mistakes],
    };
    let demands = match generate(&scenario.clients, scenario.seed) {
        Ok(demands) => demands,
        Err(mistakes) => return mistakes,
    };
    let place = if scenario.at_engine { Place::Engine } else { Place::Gateway };
    let setup =
        Setup { policy, engine: scenario.engine, place, guess: Guess::Learned, seed: scenario.seed, keep: Keep::Log };
    let run = setup.run(&demands, |_| {});
    let findings = oracle::audit(&run.facts, &setup.rules());
    let verdict = Verdict { demands: &demands, run: &run, report: Report::new(&setup, &run), findings: &findings };
    let mut failures = verdict.always();
    if !scenario.expect.iter().any(|expectation| matches!(expectation, Expectation::BoundUsed(_))) {
        failures.extend(findings.drifts.iter().cloned());
    }
    failures.extend(scenario.expect.iter().flat_map(|expectation| verdict.check(expectation)));
    failures
}

struct Verdict<'a> {
    demands: &'a [Demand],
    run: &'a Run,
    report: Report<'a>,
    findings: &'a Findings,
}

impl Verdict<'_> {
    /// What must hold whatever the scenario.
    fn always(&self) -> Vec<String> {
        let mut failures = self.run.faults.clone();
        failures.extend(self.findings.wrong.iter().cloned());
        failures.extend(oracle::books(&self.run.bookings, |_| false).1);
        if !self.report.books_are_exact() {
            failures.push(format!("the books are not exact: {:?}", self.run.books));
        }
        failures
    }

    fn check(&self, expectation: &Expectation) -> Vec<String> {
        let told = |name: &str, value: f64, bounds: &Bounds| bounds.check(name, value).into_iter().collect();
        match expectation {
            Expectation::Shares { of, within, from_s, until_s } => self.shares(of, *within, (*from_s, *until_s)),
            Expectation::MaxMin { weights, within, from_s, until_s } => {
                self.max_min(weights, *within, (*from_s, *until_s))
            }
            Expectation::FirstToken { tenant, percentile, is } => match self.first_token(tenant, *percentile) {
                Some(secs) => told(&format!("{tenant}'s p{percentile} to the first token"), secs, is),
                None => vec![format!("{tenant} completed nothing")],
            },
            Expectation::Ended { tenant, outcome, reason, is } => {
                let count = self.ended(tenant, outcome, reason.as_deref());
                told(&format!("{tenant}'s requests {outcome}"), count, is)
            }
            Expectation::LetInOnReturn { tenant, from_s, until_s, is } => {
                let at = Instant::from_secs_f64;
                let within = at(*from_s)..at(*until_s);
                let back: Vec<_> =
                    self.of(tenant).filter(|record| record.heeded && within.contains(&record.arrival)).collect();
                let let_in = back.iter().filter(|record| record.dispatched.is_some()).count();
                if back.len() < 50 {
                    return vec![format!("only {} of {tenant} came back, too few to say anything", back.len())];
                }
                let part =
                    f64::from(u32::try_from(let_in).expect("few")) / f64::from(u32::try_from(back.len()).expect("few"));
                told(&format!("the part of {tenant}'s {} let in on return", back.len()), part, is)
            }
            Expectation::ReturnsAtOnce { tenant, is } => {
                let mut tenths: BTreeMap<u64, u32> = BTreeMap::new();
                for record in self.of(tenant).filter(|record| record.heeded) {
                    *tenths.entry(record.arrival.as_nanos() / 100_000_000).or_default() += 1;
                }
                let (all, most) = (tenths.values().sum::<u32>(), tenths.values().max().copied().unwrap_or_default());
                told(
                    &format!("the largest part of {tenant}'s {all} returns at once"),
                    f64::from(most) / f64::from(all),
                    is,
                )
            }
            Expectation::WaitedBeforeRefusal(bounds) => told("wait before a refusal", self.longest_refused(), bounds),
            Expectation::InFlightOfASession(bounds) => {
                told("in flight of a session", f64::from(self.findings.most_of_a_session), bounds)
            }
            Expectation::InFlightTokens(bounds) => {
                told("tokens in flight", tokens(self.findings.most_in_flight), bounds)
            }
            Expectation::Goodput { objective_s, from_s, until_s, window_s, is } => {
                let goodput = Goodput::of(&self.run.records, Span::from_secs_f64(*objective_s), Since::Arrival);
                let (from, until) = (Instant::from_secs_f64(*from_s), Instant::from_secs_f64(*until_s));
                let window = window_s.map_or(until.since(from), Span::from_secs_f64);
                told("the least good answers a second", goodput.least(from, until, window), is)
            }
            Expectation::BoundUsed(bounds) => told("part of the bound used", self.findings.bound_used, bounds),
            Expectation::TokensPerS(bounds) => told("tokens a second", self.report.measures().tokens_per_s, bounds),
        }
    }

    fn shares(&self, expected: &BTreeMap<String, f64>, within: f64, (from, until): (f64, f64)) -> Vec<String> {
        let at = Instant::from_secs_f64;
        let shares = shares_between(&self.run.records, &Grid::default(), at(from), at(until));
        let share = |tenant: &str| shares.get(&TenantId::from(tenant)).copied().unwrap_or_default();
        expected
            .iter()
            .filter(|(tenant, expected)| (share(tenant) - **expected).abs() > within)
            .map(|(tenant, expected)| format!("{tenant}'s share is {:.4}, not {expected} ± {within}", share(tenant)))
            .collect()
    }

    /// Compares the shares with what water-filling gives for what was asked: whatever had not been served by the
    /// start, and arrived before the end.
    fn max_min(&self, weights: &BTreeMap<String, f64>, within: f64, (from, until): (f64, f64)) -> Vec<String> {
        let at = Instant::from_secs_f64;
        let mut asked: BTreeMap<&TenantId, f64> = BTreeMap::new();
        let mut given = 0.0;
        for record in self.run.records.iter().filter(|record| record.outcome == Some(Outcome::Completed)) {
            let service = tokens(record.input) + 2.0 * tokens(record.output);
            let (first, end) = (seconds(record.first_token), seconds(record.finished));
            let inside = (until.min(end) - from.max(first)).max(0.0) / (end - first).max(1e-9);
            given += service * inside;
            let before = (from.min(end) - first).max(0.0) / (end - first).max(1e-9);
            if record.arrival < at(until) {
                *asked.entry(&record.tenant).or_default() += service * (1.0 - before);
            }
        }
        let weight = |tenant: &TenantId| weights.get(tenant.as_str()).copied().unwrap_or(1.0);
        let claims: Vec<(f64, f64)> = asked.iter().map(|(tenant, asked)| (weight(tenant), *asked)).collect();
        let fair = oracle::max_min(given, &claims);
        let expected =
            asked.keys().zip(fair).map(|(tenant, fair)| (tenant.to_string(), fair / given.max(1e-9))).collect();
        self.shares(&expected, within, (from, until))
    }

    fn first_token(&self, tenant: &str, percentile: usize) -> Option<f64> {
        let completed = self.of(tenant).filter(|record| record.outcome == Some(Outcome::Completed));
        let mut waits: Vec<f64> =
            completed.map(|record| seconds(record.first_token) - record.arrival.as_secs_f64()).collect();
        waits.sort_by(f64::total_cmp);
        waits.get((waits.len() * percentile / 100).min(waits.len().saturating_sub(1))).copied()
    }

    fn ended(&self, tenant: &str, outcome: &str, reason: Option<&str>) -> f64 {
        assert!(Outcome::ALL.iter().any(|known| known.name() == outcome), "{outcome} is no outcome");
        let ended = self.of(tenant).filter(|record| record.outcome.map(Outcome::name) == Some(outcome));
        let count = ended.filter(|record| reason.is_none() || record.reason == reason).count();
        f64::from(u32::try_from(count).expect("few requests"))
    }

    fn longest_refused(&self) -> f64 {
        let refused = |record: &&Record| matches!(record.outcome, Some(Outcome::Refused | Outcome::Expired));
        let waits = self.run.records.iter().filter(refused);
        waits.map(|record| seconds(record.decided) - record.arrival.as_secs_f64()).fold(0.0, f64::max)
    }

    fn of(&self, tenant: &str) -> impl Iterator<Item = &Record> {
        assert!(self.demands.iter().any(|demand| demand.tenant.as_str() == tenant), "{tenant} sends nothing");
        self.run.records.iter().filter(move |record| record.tenant.as_str() == tenant)
    }
}

impl Bounds {
    fn check(&self, name: &str, value: f64) -> Option<String> {
        assert!(self.at_least.is_some() || self.at_most.is_some(), "{name} is not bounded, so nothing is tested");
        let low = self.at_least.filter(|least| value < *least).map(|least| format!("{name} is {value}, below {least}"));
        low.or_else(|| self.at_most.filter(|most| value > *most).map(|most| format!("{name} is {value}, above {most}")))
    }
}

fn seconds(at: Option<Instant>) -> f64 {
    at.map_or(0.0, Instant::as_secs_f64)
}

fn tokens(tokens: Tokens) -> f64 {
    f64::from(u32::try_from(tokens.get()).expect("small"))
}
