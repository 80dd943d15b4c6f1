//! `tallygate simulate`: a policy tried on a trace, with a simulated engine, on a virtual clock.
//!
//! All mistakes in all three files are told at once. The page for people goes to standard output, and into the
//! output folder beside what became of each request, the summary for programs and the picture. A run in which
//! the books do not balance or a request is left standing is a failure: it would be a fault of Tallygate's.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::ValueEnum;
use indicatif::{ProgressBar, ProgressStyle};

use crate::policy::{self, Policy};
use crate::sim::trace::{self, Trace};
use crate::sim::{Baseline, EngineSpec, Guess, Keep, Place, Report, Run, Setup, chart, record};
use crate::units::Span;
use crate::yaml::{self, Mistakes};

use super::Outcome;

/// Try a policy on a trace, with a simulated engine, on a virtual clock
#[derive(Debug, clap::Args)]
pub(super) struct Simulate {
    /// The requests: CSV, gzipped or not, with the columns arrival_s, tenant, input_tokens and output_tokens, and
    /// optionally session, model, class, deadline_s, max_tokens, effort and cached_tokens
    #[arg(long, value_name = "FILE")]
    trace: PathBuf,

    /// The engine's memory and speed
    #[arg(long, value_name = "FILE")]
    engine: PathBuf,

    /// The policy to try
    #[arg(long, value_name = "FILE")]
    policy: PathBuf,

    /// Where admission happens: in front of the engine, or in its own scheduler
    #[arg(long, value_enum, default_value_t = At::Gateway)]
    at: At,

    /// For study, predict the true output times FACTOR, or times anything within ±FRACTION of 1, instead of what
    /// the predictor has learnt
    #[arg(long, value_name = "FACTOR|±FRACTION", allow_hyphen_values = true)]
    predict_error: Option<Guess>,

    /// Count the answers that came whole within SPAN of arriving, such as 30s
    #[arg(long, value_name = "SPAN", value_parser = humantime::parse_duration)]
    objective: Option<Duration>,

    /// For comparison, put something else in front of the engine, and not the policy: nothing,
    /// requests-per-minute=N for every tenant, or adaptive-concurrency[=BUFFER] as Envoy has it
    #[arg(long, value_name = "BASELINE", conflicts_with_all = ["at", "predict_error"])]
    baseline: Option<Baseline>,

    /// Decides whatever is left to chance
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// The folder to write requests.csv, summary.json, report.txt and service.svg to; made if it is not there
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum At {
    Gateway,
    Engine,
}

impl Simulate {
    pub(super) fn run(self) -> anyhow::Result<Outcome> {
        let mut err = io::stderr().lock();
        let (setup, trace) = match self.load() {
            Ok(loaded) => loaded,
            Err(mistakes) => {
                for mistake in mistakes {
                    writeln!(err, "{mistake}")?;
                }
                return Ok(Outcome::Failure);
            }
        };
        for note in &trace.notes {
            writeln!(err, "note: {note}")?;
        }
        let run = match self.baseline {
            Some(baseline) => baseline.run(&setup, &trace.demands),
            None => with_progress(&setup, &trace),
        };
        let report = Report::new(&setup, &run).with_objective(self.objective.map(Span::from));
        self.write(&run, &report)?;
        io::stdout().lock().write_all(report.text().as_bytes())?;
        let sound = run.faults.is_empty() && report.books_are_exact();
        Ok(if sound { Outcome::Success } else { Outcome::Failure })
    }

    /// Reads the three files, or tells what is wrong in all of them.
    fn load(&self) -> Result<(Setup, Trace), Vec<String>> {
        let mut mistakes = Vec::new();
        let policy = kept(policy::load(&self.policy), &mut mistakes);
        let engine = kept(engine(&self.engine), &mut mistakes);
        let trace = kept(trace::read(&self.trace), &mut mistakes);
        if let (Some(policy), Some(trace)) = (&policy, &trace) {
            mistakes.extend(unknown_classes(policy, trace, &self.trace));
        }
        match (policy, engine, trace) {
            _ if !mistakes.is_empty() => Err(mistakes),
            (Some(policy), Some(engine), Some(trace)) => Ok((self.setup(policy, engine), trace)),
            _ => Err(mistakes),
        }
    }

    fn setup(&self, policy: Policy, engine: EngineSpec) -> Setup {
        Setup {
            policy: Arc::new(policy),
            engine,
            place: match self.at {
                At::Gateway => Place::Gateway,
                At::Engine => Place::Engine,
            },
            guess: self.predict_error.unwrap_or_default(),
            seed: self.seed,
            keep: Keep::Records,
        }
    }

    fn write(&self, run: &Run, report: &Report<'_>) -> anyhow::Result<()> {
        fs::create_dir_all(&self.out).with_context(|| format!("cannot make the folder {}", self.out.display()))?;
        self.file("requests.csv", |out| Ok(record::write_csv(&run.records, out)?))?;
        self.file("summary.json", |out| {
            serde_json::to_writer_pretty(&mut *out, &report.summary())?;
            Ok(writeln!(out)?)
        })?;
        self.file("report.txt", |out| Ok(out.write_all(report.text().as_bytes())?))?;
        self.file("service.svg", |out| Ok(out.write_all(chart::svg(&run.records).as_bytes())?))
    }

    fn file(&self, name: &str, write: impl FnOnce(&mut BufWriter<File>) -> anyhow::Result<()>) -> anyhow::Result<()> {
        let path = self.out.join(name);
        let filled = || {
            let mut out = BufWriter::new(File::create(&path)?);
            write(&mut out)?;
            Ok::<_, anyhow::Error>(out.flush()?)
        };
        filled().with_context(|| format!("cannot write {}", path.display()))
    }
}

fn engine(path: &Path) -> Result<EngineSpec, Mistakes> {
    let text = yaml::read(path)?;
    Ok(yaml::load::<EngineSpec>(&path.display().to_string(), &text)?.value)
}

/// The classes a trace wishes for that the policy does not have.
fn unknown_classes(policy: &Policy, trace: &Trace, path: &Path) -> Vec<String> {
    const MOST: usize = 50;
    let known: Vec<&str> = policy.classes.iter().map(|class| &*class.name).collect();
    let unknown = trace.classes.iter().filter(|(class, _)| !known.contains(&&***class));
    let mistake = |(class, line): (&Arc<str>, &u64)| {
        let (path, known) = (path.display(), known.join(", "));
        format!("{path}:{line}: class {class:?} is not in the policy; there are {known}")
    };
    unknown.map(mistake).take(MOST).collect()
}

fn kept<T, E: std::fmt::Display>(read: Result<T, E>, mistakes: &mut Vec<String>) -> Option<T> {
    read.map_err(|error| mistakes.push(error.to_string())).ok()
}

/// Runs, with a bar on standard error that shows only on a terminal.
fn with_progress(setup: &Setup, trace: &Trace) -> Run {
    let total = u64::try_from(trace.demands.len()).unwrap_or(u64::MAX);
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} requests, {eta} left").ok();
    let bar = ProgressBar::new(total).with_style(style.unwrap_or_else(ProgressStyle::default_bar));
    let mut shown = 0;
    let run = setup.run(&trace.demands, |ended| {
        // A bar that is told every event would cost more than the event.
        if ended >= shown + 500 {
            shown = ended;
            bar.set_position(u64::try_from(ended).unwrap_or(u64::MAX));
        }
    });
    bar.finish_and_clear();
    run
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{trace, unknown_classes};
    use crate::policy;

    #[test]
    fn an_unknown_class_is_a_mistake_with_its_line() {
        let no_keys = |_: &str| panic!("no keys");
        let policy = policy::parse("p", "version: 1\nclasses: [{name: chat, rank: 0}]\n", no_keys).expect("valid");
        let rows =
            "arrival_s,tenant,input_tokens,output_tokens,class\n0,a,1,1,chat\n1,a,1,1,bulk\n2,a,1,1,bulk\n3,a,1,1,\n";
        let trace = trace::parse("t.csv", rows.as_bytes()).expect("well formed");
        let mistakes = unknown_classes(&policy, &trace, Path::new("t.csv"));
        assert_eq!(mistakes, ["t.csv:3: class \"bulk\" is not in the policy; there are chat"]);
    }
}
