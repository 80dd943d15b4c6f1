//! Isolation, judged: one scenario under vtc and under fcfs, through a real gateway over the simulated engine,
//! by its own proxy or by a real Envoy that asks it.
//!
//! The claim is issue-sized and falsifiable. Let *drain* be the time the engine takes for one full batch of the
//! background's requests, first prefill to last token, with nothing else to do. With a hog whose backlog grows all
//! the time: under vtc the median first token of every other tenant is at most one drain; under fcfs the median of
//! the last third of the run is at least half as much again as that of the first; and vtc gives at least 97 % of
//! fcfs's tokens a second. The drain is computed from the engine's own numbers by running its model.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, ensure};
use serde::Serialize;
use tallygate::demo;
use tallygate::sim::{EngineSpec, Job, JobId, SimEngine};
use tallygate::units::{Instant, Tokens};

use crate::front::{Behind, Front, Setup};
use crate::gateway::Gateway;
use crate::output::{self, show};
use crate::picker::Picker;
use crate::report::{Quantile, Summary};
use crate::scenario::{self, Length, Scenario};
use crate::token;

/// How much of fcfs's throughput vtc must give.
const LEAST_THROUGHPUT: f64 = 0.97;
/// How much fcfs's waits must have grown from the first third to the last.
const LEAST_GROWTH: f64 = 1.5;
const ALGORITHMS: [&str; 2] = ["vtc", "fcfs"];

/// What is compared.
#[derive(Debug, clap::Args)]
pub(crate) struct CompareArguments {
    /// What to offer.
    #[arg(default_value = "loadtest/scenarios/hog.yaml")]
    scenario: PathBuf,
    /// The gateway's program.
    #[arg(long, default_value = "target/release/tallygate")]
    gateway: PathBuf,
    /// A folder with `vtc.yaml` and `fcfs.yaml`.
    #[arg(long, default_value = "loadtest/policies")]
    policies: PathBuf,
    /// The engine's numbers; the default engine where omitted.
    #[arg(long)]
    engine: Option<PathBuf>,
    /// What stands between the load and the gateway's decisions.
    #[arg(long, value_enum, default_value_t = Through::Proxy)]
    through: Through,
    /// Envoy's program, for `--through envoy`.
    #[arg(long, default_value = "envoy")]
    envoy: PathBuf,
    /// Envoy's configuration; only its ports are replaced.
    #[arg(long, default_value = "deploy/envoy/ext_proc.yaml")]
    envoy_config: PathBuf,
    /// An endpoint picker's program, `examples/picker`, for a configuration that verifies callers and has one behind.
    #[arg(long)]
    picker: Option<PathBuf>,
    /// Where results go, in a folder for each algorithm.
    #[arg(long)]
    out: PathBuf,
    /// Decides arrivals and lengths, the same for both.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// The way to the gateway's decisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
enum Through {
    /// Its own reverse proxy.
    Proxy,
    /// A real Envoy that asks it, in one of the ways that are shipped.
    Envoy,
}

#[derive(Debug, Serialize)]
struct Comparison {
    /// What stood between the load and the gateway's decisions.
    through: Through,
    /// Envoy's configuration, where it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    envoy_config: Option<PathBuf>,
    /// The time the engine takes for one full batch of the background's requests.
    batch_drain_s: f64,
    /// How many requests such a batch has.
    batch_requests: usize,
    /// vtc's tokens a second divided by fcfs's.
    throughput_ratio: f64,
    tenants: Vec<Compared>,
    claims: Vec<Claim>,
}

#[derive(Debug, Serialize)]
struct Compared {
    tenant: String,
    background: bool,
    vtc_first_token_p50_s: Option<Quantile>,
    fcfs_first_token_p50_s: Option<Quantile>,
    vtc_by_third_s: [Option<Quantile>; 3],
    fcfs_by_third_s: [Option<Quantile>; 3],
}

#[derive(Debug, Serialize)]
struct Claim {
    claim: String,
    holds: bool,
}

/// Runs both and judges.
pub(crate) async fn compare(arguments: &CompareArguments) -> anyhow::Result<ExitCode> {
    ensure!(
        arguments.picker.is_none() || arguments.through == Through::Envoy,
        "--picker stands behind Envoy: say --through envoy too"
    );
    let mut scenario = scenario::read(&arguments.scenario)?;
    if arguments.picker.is_some() {
        for client in &mut scenario.clients {
            client.api_key = Some(token::token(&client.tenant));
        }
    }
    let spec = crate::read_engine(arguments.engine.as_deref())?;
    let (batch_requests, drain) = batch_drain(&spec, &scenario)?;
    let mut summaries = Vec::new();
    for algorithm in ALGORITHMS {
        let summary =
            one(arguments, &scenario, &spec, algorithm).await.with_context(|| format!("under {algorithm}"))?;
        crate::say(&format!("\n== {algorithm}\n{}", output::table(&summary)));
        summaries.push(summary);
    }
    let comparison = judge(arguments, &scenario, (batch_requests, drain), &summaries[0], &summaries[1]);
    let path = arguments.out.join("comparison.json");
    std::fs::write(&path, serde_json::to_string_pretty(&comparison)? + "\n")
        .with_context(|| format!("cannot write {}", path.display()))?;
    crate::say(&text(&comparison));
    let all_hold = comparison.claims.iter().all(|claim| claim.holds);
    Ok(if all_hold { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// One run: a fresh engine, a fresh gateway.
async fn one(
    arguments: &CompareArguments,
    scenario: &Scenario,
    spec: &EngineSpec,
    algorithm: &str,
) -> anyhow::Result<Summary> {
    let folder = arguments.out.join(algorithm);
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make the folder {}", folder.display()))?;
    let engine = demo::start(spec.clone(), arguments.seed, ([127, 0, 0, 1], 0).into()).await?;
    let policy = arguments.policies.join(format!("{algorithm}.yaml"));
    let upstream = format!("http://{}", engine.address());
    let gateway = Gateway::start(&arguments.gateway, &policy, &upstream, &folder.join("gateway.log")).await?;
    let picker = match &arguments.picker {
        Some(program) => Some(Picker::start(program, engine.address()).await?),
        None => None,
    };
    let front = match arguments.through {
        Through::Proxy => None,
        Through::Envoy => {
            let behind = match &picker {
                Some(picker) => Behind::Picker(picker.address()),
                None => Behind::Engine(engine.address()),
            };
            let (program, config, grpc) = (arguments.envoy.as_path(), &arguments.envoy_config, Some(gateway.grpc()));
            Some(Front::start(&Setup { program, config, behind, grpc, numbers: Vec::new(), folder: &folder }).await?)
        }
    };
    let url = front.as_ref().map_or_else(|| gateway.url(), Front::url);
    let (summary, records) = crate::run_scenario(scenario, &url, arguments.seed).await?;
    let tenants = gateway.tenants().await?;
    std::fs::write(folder.join("tenants.json"), tenants)?;
    if let Some(front) = front {
        front.stop().await?;
    }
    if let Some(picker) = picker {
        picker.stop().await?;
    }
    gateway.stop().await?;
    engine.shutdown().await;
    output::write(&folder, &summary, &records)?;
    Ok(summary)
}

/// How many of the background's requests the engine runs at once, and how long it takes for that many with nothing
/// else to do.
fn batch_drain(spec: &EngineSpec, scenario: &Scenario) -> anyhow::Result<(usize, Duration)> {
    let background = scenario.clients.iter().find(|client| client.background);
    let client = background.context("a comparison needs a client in the background, whose batch is drained")?;
    let (Length::Fixed(input), Length::Fixed(output)) = (&client.input_tokens, &client.output_tokens) else {
        anyhow::bail!("a comparison needs a background of fixed lengths, or one batch is not like another");
    };
    let job = |id| Job::new(JobId(id), Tokens::new((*input).into()), Tokens::new((*output).into()));
    // The most it ever runs at once, while more than it can hold keeps waiting.
    let mut engine = SimEngine::new(spec.clone());
    let enough = 4 * spec.kv_tokens.get().div_ceil(u64::from(input + output)) + 4;
    for id in 0..enough {
        engine.submit(Instant::EPOCH, job(id))?;
    }
    let mut most = engine.running();
    run_out(&mut engine, |engine| most = most.max(engine.running()));
    ensure!(most > 0, "the engine runs nothing");
    let mut engine = SimEngine::new(spec.clone());
    for id in 0..most as u64 {
        engine.submit(Instant::EPOCH, job(id))?;
    }
    let ended = run_out(&mut engine, |_| {});
    Ok((most, ended.since(Instant::EPOCH).to_std()))
}

/// Runs an engine until it is idle and says when that is.
fn run_out(engine: &mut SimEngine, mut watch: impl FnMut(&SimEngine)) -> Instant {
    let (mut now, mut produced) = (Instant::EPOCH, Vec::new());
    while let Some(next) = engine.next_event() {
        now = next;
        produced.clear();
        engine.advance(now, &mut produced);
        watch(engine);
    }
    now
}

fn judge(
    arguments: &CompareArguments,
    scenario: &Scenario,
    (batch_requests, drain): (usize, Duration),
    vtc: &Summary,
    fcfs: &Summary,
) -> Comparison {
    let drain = drain.as_secs_f64();
    let throughput_ratio = vtc.tokens_per_s / fcfs.tokens_per_s;
    let tenants: Vec<Compared> = vtc
        .tenants
        .iter()
        .zip(&fcfs.tenants)
        .map(|(vtc, fcfs)| Compared {
            tenant: vtc.tenant.clone(),
            background: scenario.clients.iter().any(|client| client.background && client.tenant == vtc.tenant),
            vtc_first_token_p50_s: vtc.first_token_s.p50,
            fcfs_first_token_p50_s: fcfs.first_token_s.p50,
            vtc_by_third_s: vtc.first_token_p50_by_third_s,
            fcfs_by_third_s: fcfs.first_token_p50_by_third_s,
        })
        .collect();
    let mut claims = Vec::new();
    for tenant in tenants.iter().filter(|tenant| !tenant.background) {
        claims.extend(claims_of(tenant, drain));
    }
    claims.push(Claim {
        claim: format!("vtc gives {:.1} % of fcfs's tokens a second (at least 97 %)", throughput_ratio * 100.0),
        holds: throughput_ratio >= LEAST_THROUGHPUT,
    });
    let through = arguments.through;
    let envoy_config = (through == Through::Envoy).then(|| arguments.envoy_config.clone());
    Comparison { through, envoy_config, batch_drain_s: drain, batch_requests, throughput_ratio, tenants, claims }
}

fn claims_of(tenant: &Compared, drain: f64) -> [Claim; 2] {
    let name = &tenant.tenant;
    let vtc = tenant.vtc_first_token_p50_s;
    let [first, _, last] = tenant.fcfs_by_third_s;
    let growth = first.zip(last).map(|(first, last)| last.value / first.value);
    [
        Claim {
            claim: format!(
                "{name}: median first token under vtc is {} s (at most one drain, {drain:.1} s)",
                show(vtc, 2)
            ),
            // A median that is only a lower bound proves nothing.
            holds: vtc.is_some_and(|median| !median.at_least && median.value <= drain),
        },
        Claim {
            claim: format!(
                "{name}: median first token under fcfs grows from {} s in the first third to {} s in the last (at least half as much again)",
                show(first, 1),
                show(last, 1),
            ),
            // A last median that is a lower bound has grown even more; a first one would flatter.
            holds: first.is_some_and(|first| !first.at_least) && growth.is_some_and(|growth| growth >= LEAST_GROWTH),
        },
    ]
}

fn text(comparison: &Comparison) -> String {
    let mut rows = vec![
        ["tenant", "vtc p50", "1st third", "2nd", "3rd", "fcfs p50", "1st third", "2nd", "3rd"]
            .map(str::to_owned)
            .to_vec(),
    ];
    for tenant in &comparison.tenants {
        let mut row = vec![tenant.tenant.clone(), show(tenant.vtc_first_token_p50_s, 2)];
        row.extend(tenant.vtc_by_third_s.iter().map(|third| show(*third, 2)));
        row.push(show(tenant.fcfs_first_token_p50_s, 2));
        row.extend(tenant.fcfs_by_third_s.iter().map(|third| show(*third, 2)));
        rows.push(row);
    }
    let mut text = format!(
        "\n== compared: first token in s\n{}\none engine batch of {} background requests drains in {:.1} s\n",
        output::aligned(&rows),
        comparison.batch_requests,
        comparison.batch_drain_s,
    );
    for Claim { claim, holds } in &comparison.claims {
        writeln!(text, "{} {claim}", if *holds { "PASS" } else { "FAIL" }).expect("a string takes all");
    }
    text
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use tallygate::sim::EngineSpec;

    use super::{Compared, Quantile, batch_drain, claims_of, scenario};

    fn compared(vtc: f64, first: f64, last: f64, at_least: bool) -> Compared {
        let quantile = |value| Some(Quantile { value, at_least: false });
        let last = Some(Quantile { value: last, at_least });
        Compared {
            tenant: "light".into(),
            background: false,
            vtc_first_token_p50_s: quantile(vtc),
            fcfs_first_token_p50_s: quantile(first),
            vtc_by_third_s: [quantile(vtc); 3],
            fcfs_by_third_s: [quantile(first), quantile(first), last],
        }
    }

    #[test]
    fn claims_fail_where_they_should() {
        let hold = |compared: &Compared| claims_of(compared, 10.0).map(|claim| claim.holds);
        assert_eq!(hold(&compared(9.0, 100.0, 200.0, true)), [true, true]);
        assert_eq!(hold(&compared(11.0, 100.0, 140.0, false)), [false, false]);
    }

    #[test]
    fn the_drain_of_the_default_engine_is_about_ten_seconds_for_the_hog() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios/hog.yaml");
        let scenario = scenario::read(&path).expect("the scenario is valid");
        let (requests, drain) = batch_drain(&EngineSpec::default(), &scenario).expect("a background of fixed lengths");
        assert!((19..=30).contains(&requests), "{requests} requests of 512 tokens in 10,000, staggered");
        assert!((8.0..16.0).contains(&drain.as_secs_f64()), "{drain:?}");
    }
}
