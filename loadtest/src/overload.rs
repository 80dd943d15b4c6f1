//! Overload for real: several times what the engine can do, through the gateway and beside it in three other ways.
//!
//! Every way gets the same requests at the same moments, over a fresh simulated engine in real time and real
//! connections. The capacity is measured first: the most good answers a second through the gateway over a sweep of
//! loads. Then the scenario is scaled until it offers so many times that; clients marked `steady` are left as they are.
//! An answer is good when all of it comes within the scenario's `answer_within` of the moment it was scheduled, so a
//! generator that falls behind makes goodput worse, never better.
//!
//! The other ways: straight to the engine; a real Envoy that limits requests per minute for every tenant, as much as
//! 85 % of the capacity divided by those whose load grows; and a real Envoy with its adaptive concurrency, set up for
//! answers that take seconds.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, ensure};
use serde::Serialize;
use tallygate::demo;
use tallygate::sim::EngineSpec;

use crate::front::{Behind, Front, Setup};
use crate::gateway::Gateway;
use crate::output;
use crate::scenario::{self, Load, Scenario};

mod judge;

use judge::{Found, Judge};

/// How much of the capacity a rate of requests is set up for, as whoever wants the engine not to be overrun would.
const RATE_HEADROOM: f64 = 0.85;

/// What is tried.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct OverloadArguments {
    /// What to offer at load 1.
    #[arg(default_value = "loadtest/scenarios/overload.yaml")]
    scenario: PathBuf,
    /// The gateway's program.
    #[arg(long, default_value = "target/release/tallygate")]
    gateway: PathBuf,
    /// The gateway's policy.
    #[arg(long, default_value = "loadtest/policies/overload.yaml")]
    policy: PathBuf,
    /// The engine's numbers; the default engine where omitted.
    #[arg(long)]
    engine: Option<PathBuf>,
    /// Envoy's program.
    #[arg(long, default_value = "envoy")]
    envoy: PathBuf,
    /// A folder with Envoy's configurations `requests_per_minute.yaml` and `adaptive_concurrency.yaml`.
    #[arg(long, default_value = "loadtest/envoy")]
    envoy_configs: PathBuf,
    /// Which ways, in this order.
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["tallygate", "nothing", "requests-per-minute", "adaptive-concurrency"])]
    ways: Vec<Way>,
    /// The loads among which the capacity is looked for.
    #[arg(long, value_delimiter = ',', default_values_t = [1.0, 1.2, 1.4, 1.7])]
    sweep: Vec<f64>,
    /// The capacity, in good answers a second, where it is known and no sweep is wanted.
    #[arg(long)]
    capacity: Option<f64>,
    /// How many times the capacity is offered.
    #[arg(long, value_delimiter = ',', default_values_t = [1.5, 3.0, 10.0])]
    times: Vec<f64>,
    /// Offer the scenario once, as it is, whatever that comes to. Needs the capacity.
    #[arg(long, requires = "capacity", conflicts_with = "times")]
    as_it_is: bool,
    /// Run all loads of the sweep, and then all ways of a load, at the same time, each over an engine of its own: for a machine that has the CPU for it,
    /// which the generator's lateness tells.
    #[arg(long)]
    at_once: bool,
    /// Where results go.
    #[arg(long)]
    out: PathBuf,
    /// Decides arrivals and lengths, the same for every way.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// A way to meet overload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
enum Way {
    /// This gateway.
    Tallygate,
    /// No admission control: straight to the engine.
    Nothing,
    /// Envoy's local rate limit, for every tenant.
    RequestsPerMinute,
    /// Envoy's adaptive concurrency.
    AdaptiveConcurrency,
}

#[derive(Debug, Serialize)]
struct Overload {
    /// The most good answers a second through the gateway over the sweep.
    capacity_per_s: f64,
    /// What the sweep found.
    sweep: Vec<Run>,
    runs: Vec<Run>,
}

#[derive(Debug, Serialize)]
struct Run {
    way: Way,
    load: f64,
    #[serde(flatten)]
    found: Found,
}

/// Measures the capacity, runs every way at every load, and judges the gateway's.
pub(crate) async fn overload(arguments: &OverloadArguments) -> anyhow::Result<ExitCode> {
    let scenario = scenario::read(&arguments.scenario)?;
    let rates = Rates::of(&scenario);
    let spec = crate::read_engine(arguments.engine.as_deref())?;
    let bench = Arc::new(Bench { arguments: arguments.clone(), scenario, spec });
    ensure!(
        arguments.as_it_is || rates.growing > 0.0,
        "{} has no open-loop client that is not steady; try --as-it-is",
        arguments.scenario.display()
    );
    std::fs::create_dir_all(&arguments.out)
        .with_context(|| format!("cannot make the folder {}", arguments.out.display()))?;
    crate::say(&format!("{}\n", Found::HEAD));
    let sweep = match arguments.capacity {
        Some(_) => Vec::new(),
        None => bench.all(arguments.sweep.iter().map(|load| (Way::Tallygate, *load)).collect(), 0.0).await?,
    };
    let measured = sweep.iter().map(|run| run.found.good_per_s).fold(0.0, f64::max);
    let capacity = arguments.capacity.unwrap_or(measured);
    ensure!(capacity > 0.0, "nothing was answered in time at any load of the sweep");
    crate::say(&format!("capacity: {capacity:.2} good answers/s\n"));
    let mut runs = Vec::new();
    let times = if arguments.as_it_is { &[1.0][..] } else { &arguments.times };
    for times in times {
        let load = if arguments.as_it_is { 1.0 } else { (times * capacity - rates.steady) / rates.growing };
        runs.extend(bench.all(arguments.ways.iter().map(|way| (*way, load)).collect(), capacity).await?);
    }
    let broken: Vec<String> =
        runs.iter().filter(|run| run.way == Way::Tallygate).flat_map(|run| run.found.broken(capacity)).collect();
    crate::say(&broken.iter().map(|what| format!("FAIL {what}\n")).collect::<String>());
    if broken.is_empty() {
        crate::say("PASS every claim about this gateway holds at every load\n");
    }
    let path = arguments.out.join("overload.json");
    let json = serde_json::to_string_pretty(&Overload { capacity_per_s: capacity, sweep, runs })?;
    std::fs::write(&path, json + "\n").with_context(|| format!("cannot write {}", path.display()))?;
    Ok(if broken.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

struct Bench {
    arguments: OverloadArguments,
    scenario: Scenario,
    spec: EngineSpec,
}

impl Bench {
    /// Several runs, one after the other or all at once.
    async fn all(self: &Arc<Self>, ways: Vec<(Way, f64)>, capacity: f64) -> anyhow::Result<Vec<Run>> {
        let (mut runs, mut under_way) = (Vec::new(), Vec::new());
        for (way, load) in ways {
            let bench = Arc::clone(self);
            let run = tokio::spawn(async move { bench.run(way, load, capacity).await });
            match self.arguments.at_once {
                true => under_way.push(run),
                false => runs.push(run.await??),
            }
        }
        for run in under_way {
            runs.push(run.await??);
        }
        Ok(runs)
    }

    /// One run: a fresh engine, and a fresh front of it.
    async fn run(&self, way: Way, load: f64, capacity: f64) -> anyhow::Result<Run> {
        let scenario = scaled(&self.scenario, load);
        let name = format!("{way:?}-{load:.2}").to_lowercase();
        let folder = self.arguments.out.join(&name);
        std::fs::create_dir_all(&folder).with_context(|| format!("cannot make the folder {}", folder.display()))?;
        let engine = demo::start(self.spec.clone(), self.arguments.seed, ([127, 0, 0, 1], 0).into()).await?;
        let direct = format!("http://{}", engine.address());
        let mut front = self.front(way, capacity, &direct, &folder).await?;
        let url = front.url().unwrap_or(direct);
        let before = (cpu_s(None), front.cpu_s());
        let began = tokio::time::Instant::now();
        let (summary, records) = crate::run_scenario(&scenario, &url, self.arguments.seed).await?;
        let took = began.elapsed().as_secs_f64();
        let cores = ((cpu_s(None) - before.0) / took, (front.cpu_s() - before.1) / took);
        front.stop().await?;
        engine.shutdown().await;
        output::write(&folder, &summary, &records)?;
        let found = Judge { scenario: &scenario, records: &records, summary: &summary, cores }.found();
        crate::say(&format!("{}\n", found.line(&name, capacity)));
        Ok(Run { way, load, found })
    }

    async fn front(&self, way: Way, capacity: f64, upstream: &str, folder: &Path) -> anyhow::Result<Before> {
        let arguments = &self.arguments;
        let growing = Rates::of(&self.scenario).tenants;
        let per_minute = (RATE_HEADROOM * capacity * 60.0 / growing).round();
        let address = upstream.trim_start_matches("http://").parse().context("the engine's own address")?;
        let envoy = async |file: &str, numbers: Vec<(&str, String)>| -> anyhow::Result<Before> {
            let config = arguments.envoy_configs.join(file);
            let (program, grpc) = (arguments.envoy.as_path(), None);
            let setup = Setup { program, config: &config, behind: Behind::Engine(address), grpc, numbers, folder };
            Ok(Before::Envoy(Front::start(&setup).await?))
        };
        match way {
            Way::Nothing => Ok(Before::Nothing),
            Way::Tallygate => {
                let log = folder.join("gateway.log");
                Ok(Before::Gateway(Gateway::start(&arguments.gateway, &arguments.policy, upstream, &log).await?))
            }
            Way::RequestsPerMinute => {
                let burst = (per_minute / 6.0).round().max(1.0);
                let rate = [("max_tokens: 10,", format!("max_tokens: {burst},"))];
                let fill = [("tokens_per_fill: 60,", format!("tokens_per_fill: {per_minute},"))];
                envoy("requests_per_minute.yaml", rate.into_iter().chain(fill).collect()).await
            }
            Way::AdaptiveConcurrency => envoy("adaptive_concurrency.yaml", Vec::new()).await,
        }
    }
}

/// What stands before the engine.
enum Before {
    Nothing,
    Gateway(Gateway),
    Envoy(Front),
}

impl Before {
    fn url(&self) -> Option<String> {
        match self {
            Self::Nothing => None,
            Self::Gateway(gateway) => Some(gateway.url()),
            Self::Envoy(front) => Some(front.url()),
        }
    }

    fn cpu_s(&mut self) -> f64 {
        match self {
            Self::Nothing => 0.0,
            Self::Gateway(gateway) => cpu_s(gateway.process()),
            Self::Envoy(front) => cpu_s(front.process()),
        }
    }

    async fn stop(self) -> anyhow::Result<()> {
        match self {
            Self::Nothing => Ok(()),
            Self::Gateway(gateway) => gateway.stop().await,
            Self::Envoy(front) => front.stop().await,
        }
    }
}

/// Seconds of CPU a process has used, this one's where none is named; 0 where the system does not say.
fn cpu_s(process: Option<u32>) -> f64 {
    const TICKS_PER_S: f64 = 100.0;
    let name = process.map_or_else(|| "self".to_owned(), |id| id.to_string());
    let stat = std::fs::read_to_string(format!("/proc/{name}/stat")).unwrap_or_default();
    // User and system time are the 14th and 15th, and the second, in brackets, may hold spaces.
    let after = stat.rsplit(')').next().unwrap_or_default();
    after.split_whitespace().skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / TICKS_PER_S
}

/// What a scenario offers at load 1, in requests a second.
struct Rates {
    growing: f64,
    steady: f64,
    /// How many tenants' loads grow.
    tenants: f64,
}

impl Rates {
    fn of(scenario: &Scenario) -> Self {
        let rate = |load: &Load| match *load {
            Load::Uniform { per_second } | Load::Poisson { per_second } => per_second,
            Load::Bursts { .. } | Load::OnOff { .. } | Load::Concurrent { .. } => 0.0,
        };
        let sum = |steady: bool| scenario.clients.iter().filter(|c| c.steady == steady).map(|c| rate(&c.load)).sum();
        let growing: std::collections::BTreeSet<&str> =
            scenario.clients.iter().filter(|client| !client.steady).map(|client| client.tenant.as_str()).collect();
        let tenants = f64::from(u32::try_from(growing.len()).unwrap_or(u32::MAX)).max(1.0);
        Self { growing: sum(false), steady: sum(true), tenants }
    }
}

/// The scenario with the rates of those that grow times this.
fn scaled(scenario: &Scenario, load: f64) -> Scenario {
    let mut scenario = scenario.clone();
    for client in scenario.clients.iter_mut().filter(|client| !client.steady) {
        match &mut client.load {
            Load::Uniform { per_second } | Load::Poisson { per_second } => *per_second *= load,
            Load::Bursts { .. } | Load::OnOff { .. } | Load::Concurrent { .. } => {}
        }
    }
    scenario
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{Load, Rates, cpu_s, scaled, scenario};

    #[test]
    fn only_those_that_grow_are_scaled() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios/overload.yaml");
        let usual = scenario::read(&path).expect("the scenario is valid");
        let (before, after) = (Rates::of(&usual), Rates::of(&scaled(&usual, 3.0)));
        assert!((after.growing - 3.0 * before.growing).abs() < 1e-9 && before.growing > 1.0);
        assert!((after.steady - before.steady).abs() < 1e-9 && before.steady > 0.0);
        assert!(usual.clients.iter().all(|client| matches!(client.load, Load::Poisson { .. })));
    }

    #[test]
    fn this_process_has_used_some_time() {
        let mut sum = 0_u64;
        while cpu_s(None) <= 0.0 {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        assert!(cpu_s(None) < 3_600.0, "{sum}");
    }
}
