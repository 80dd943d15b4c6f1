//! The load generator: offers a scenario to a gateway, open-loop, and reports what each tenant got.
//!
//! `run` offers one scenario to any OpenAI-compatible address. `engine` runs the simulated engine alone. `compare`
//! puts a gateway between the two, once under each algorithm, and judges isolation and throughput. Everything is
//! bounded in count and time, and speaks to the addresses it is given and to nothing else.

mod client;
mod compare;
mod front;
mod gateway;
mod output;
mod overload;
mod picker;
mod plan;
mod record;
mod report;
mod retry;
mod run;
mod scenario;
mod token;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::{Parser, Subcommand};
use tallygate::demo;
use tallygate::sim::EngineSpec;
use tallygate::yaml;

/// Open-loop load for OpenAI-compatible gateways.
#[derive(Debug, Parser)]
#[command(version, about)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Offer a scenario and report what each tenant got.
    Run(RunArguments),
    /// Run the simulated engine alone, until interrupted.
    Engine {
        /// Where to listen.
        #[arg(long, default_value = "127.0.0.1:8000")]
        addr: SocketAddr,
        /// The engine's numbers; the default engine where omitted.
        #[arg(long)]
        engine: Option<PathBuf>,
        /// Decides the lengths of answers that the client leaves open.
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Offer a scenario through a gateway under vtc and under fcfs, and judge the difference.
    Compare(compare::CompareArguments),
    /// Offer several times what the engine can do, through a gateway and beside it in other ways, and judge what comes.
    Overload(overload::OverloadArguments),
}

#[derive(Debug, clap::Args)]
struct RunArguments {
    /// The gateway, as `http://host:port`.
    #[arg(long)]
    url: String,
    /// What to offer.
    #[arg(long)]
    scenario: PathBuf,
    /// Where `summary.json` and `requests.csv` go.
    #[arg(long)]
    out: PathBuf,
    /// Decides arrivals and lengths.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

#[tokio::main]
async fn main() -> ExitCode {
    let done = match Arguments::parse().command {
        Command::Run(arguments) => offer(&arguments).await,
        Command::Engine { addr, engine, seed } => serve_engine(addr, engine.as_deref(), seed).await,
        Command::Compare(arguments) => compare::compare(&arguments).await,
        Command::Overload(arguments) => overload::overload(&arguments).await,
    };
    done.unwrap_or_else(|error| {
        say_error(&error);
        ExitCode::FAILURE
    })
}

async fn offer(arguments: &RunArguments) -> anyhow::Result<ExitCode> {
    let scenario = scenario::read(&arguments.scenario)?;
    let (summary, records) = run_scenario(&scenario, &arguments.url, arguments.seed).await?;
    output::write(&arguments.out, &summary, &records)?;
    say(&output::table(&summary));
    let failed = summary.tenants.iter().any(|tenant| !tenant.failed.is_empty() || tenant.not_sent > 0);
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Offers a scenario and sums up.
async fn run_scenario(
    scenario: &scenario::Scenario,
    url: &str,
    seed: u64,
) -> anyhow::Result<(report::Summary, Vec<record::Record>)> {
    let plan = plan::draw(scenario, seed)?;
    let bounds = run::Bounds {
        drain: scenario.drain.0,
        most_outstanding: scenario.most_outstanding,
        most_records: 2 * scenario::MOST_REQUESTS,
    };
    let target = client::Target::new(url, &scenario.model, scenario.duration.0)?;
    let records = run::run(plan, target, bounds).await;
    let measure =
        report::Measure { offered_for: scenario.duration.0, first_token_within: scenario.first_token_within.0 };
    Ok((report::summarise(&records, measure), records))
}

async fn serve_engine(address: SocketAddr, engine: Option<&Path>, seed: u64) -> anyhow::Result<ExitCode> {
    let running = demo::start(read_engine(engine)?, seed, address)
        .await
        .with_context(|| format!("cannot listen on {address}"))?;
    say(&format!("the simulated engine listens on http://{}\n", running.address()));
    tokio::signal::ctrl_c().await.context("cannot wait for an interrupt")?;
    running.shutdown().await;
    Ok(ExitCode::SUCCESS)
}

fn read_engine(path: Option<&Path>) -> anyhow::Result<EngineSpec> {
    let Some(path) = path else { return Ok(EngineSpec::default()) };
    Ok(yaml::load::<EngineSpec>(&path.display().to_string(), &yaml::read(path)?)?.value)
}

#[expect(clippy::print_stdout, reason = "the report is this command's output")]
fn say(text: &str) {
    print!("{text}");
}

#[expect(clippy::print_stderr, reason = "errors go to standard error")]
fn say_error(error: &anyhow::Error) {
    eprintln!("error: {error:#}");
}
