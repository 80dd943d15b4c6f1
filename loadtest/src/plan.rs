//! When which request is sent, decided before the run from the seed alone.
//!
//! Each client draws from its own seeded stream, so adding one does not change the others, and a run repeats
//! exactly but for the gateway's own timing.

use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde::Deserialize;

use crate::scenario::{Length, Load, MOST_REQUESTS, Scenario, Trace};

/// Who sends a request, as far as headers and the report go.
#[derive(Debug)]
pub(crate) struct Sender {
    pub(crate) tenant: String,
    pub(crate) api_key: Option<String>,
    pub(crate) session: Option<String>,
    pub(crate) class: Option<String>,
    pub(crate) streamed: bool,
    pub(crate) background: bool,
    pub(crate) gives_up_after: Option<Duration>,
    pub(crate) retries: u32,
    pub(crate) told_instead: Option<Duration>,
}

impl Sender {
    /// A patient one that streams and does not try again.
    pub(crate) fn plain(tenant: String, session: Option<String>) -> Self {
        Self {
            tenant,
            api_key: None,
            session,
            class: None,
            streamed: true,
            background: false,
            gives_up_after: None,
            retries: 0,
            told_instead: None,
        }
    }
}

/// One request to be sent.
#[derive(Clone, Debug)]
pub(crate) struct Shot {
    /// When, after the run's start.
    pub(crate) at: Duration,
    pub(crate) sender: Arc<Sender>,
    pub(crate) input: u32,
    pub(crate) output: u32,
    /// Which try this is; 0 is the first.
    pub(crate) attempt: u32,
}

/// Requests that keep standing.
#[derive(Debug)]
pub(crate) struct Standing {
    pub(crate) sender: Arc<Sender>,
    pub(crate) streams: u32,
    pub(crate) think: Duration,
    pub(crate) from: Duration,
    pub(crate) until: Duration,
    pub(crate) input: Length,
    pub(crate) output: Length,
    pub(crate) seed: u64,
}

/// Everything a run sends.
#[derive(Debug)]
pub(crate) struct Plan {
    /// Open-loop requests, by time.
    pub(crate) shots: Vec<Shot>,
    /// Closed-loop clients.
    pub(crate) standing: Vec<Standing>,
}

/// Draws a plan.
pub(crate) fn draw(scenario: &Scenario, seed: u64) -> anyhow::Result<Plan> {
    let mut plan = Plan { shots: Vec::new(), standing: Vec::new() };
    for (index, client) in (0_u64..).zip(&scenario.clients) {
        let sender = Arc::new(Sender {
            tenant: client.tenant.clone(),
            api_key: client.api_key.clone(),
            session: client.session.clone(),
            class: client.class.clone(),
            streamed: client.stream,
            background: client.background,
            gives_up_after: client.gives_up_after.map(|time| time.0),
            retries: client.retries,
            told_instead: client.told_instead.map(|time| time.0),
        });
        let seed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(index);
        let from = client.from.0;
        let until = client.until.map_or(scenario.duration.0, |until| until.0.min(scenario.duration.0));
        if let Load::Concurrent { streams, think } = client.load {
            let (input, output) = (client.input_tokens.clone(), client.output_tokens.clone());
            plan.standing.push(Standing { sender, streams, think: think.0, from, until, input, output, seed });
            continue;
        }
        let mut random = StdRng::seed_from_u64(seed);
        for at in arrivals(&client.load, until.saturating_sub(from), &mut random) {
            let (input, output) =
                (length(&client.input_tokens, &mut random), length(&client.output_tokens, &mut random));
            plan.shots.push(Shot { at: from + at, sender: Arc::clone(&sender), input, output, attempt: 0 });
            ensure!(plan.shots.len() <= MOST_REQUESTS, "the scenario schedules more than {MOST_REQUESTS} requests");
        }
    }
    if let Some(trace) = &scenario.trace {
        replay(trace, scenario.duration.0, &mut plan.shots)?;
    }
    plan.shots.sort_by_key(|shot| shot.at);
    Ok(plan)
}

/// The moments of one open-loop client.
fn arrivals(load: &Load, duration: Duration, random: &mut StdRng) -> Vec<Duration> {
    let end = duration.as_secs_f64();
    let evenly = |from: f64, until: f64, rate: f64| {
        std::iter::successors(Some(0_u32), |n| n.checked_add(1))
            .map(move |n| from + f64::from(n) / rate)
            .take_while(move |at| *at < until)
    };
    let moments: Vec<f64> = match *load {
        Load::Uniform { per_second } => evenly(0.0, end, per_second).take(MOST_REQUESTS + 1).collect(),
        Load::Poisson { per_second } => {
            // Gaps are exponential: −ln(1 − u) / rate, and 1 − u is never zero.
            let mut gap = || -(1.0 - random.random::<f64>()).ln() / per_second;
            let first = gap();
            std::iter::successors(Some(first), |at| Some(at + gap()))
                .take_while(|at| *at < end)
                .take(MOST_REQUESTS + 1)
                .collect()
        }
        Load::Bursts { size, every } => evenly(0.0, end, 1.0 / every.0.as_secs_f64())
            .flat_map(|at| std::iter::repeat_n(at, usize::try_from(size).unwrap_or(usize::MAX)))
            .take(MOST_REQUESTS + 1)
            .collect(),
        Load::OnOff { per_second, on, off } => evenly(0.0, end, 1.0 / (on.0 + off.0).as_secs_f64())
            .flat_map(|from| evenly(from, end.min(from + on.0.as_secs_f64()), per_second))
            .take(MOST_REQUESTS + 1)
            .collect(),
        Load::Concurrent { .. } => Vec::new(),
    };
    moments.into_iter().map(Duration::from_secs_f64).collect()
}

/// One length.
pub(crate) fn length(length: &Length, random: &mut StdRng) -> u32 {
    match *length {
        Length::Fixed(tokens) => tokens,
        Length::Uniform { from, to } => random.random_range(from..=to),
        Length::Lognormal { mean, sigma, most } => {
            // Box-Muller for the normal part; μ = ln mean − σ²/2 makes `mean` the mean.
            let (u, v): (f64, f64) = (random.random(), random.random());
            let z = (-2.0 * (1.0 - u).ln()).sqrt() * (std::f64::consts::TAU * v).cos();
            let tokens = (mean.ln() - sigma * sigma / 2.0 + sigma * z).exp().round();
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "positive, and `as` saturates")]
            let tokens = tokens as u32;
            tokens.clamp(1, most)
        }
    }
}

#[derive(Deserialize)]
struct Row {
    arrival_s: f64,
    tenant: String,
    #[serde(default)]
    session: Option<String>,
    input_tokens: u32,
    output_tokens: u32,
}

fn replay(trace: &Trace, duration: Duration, shots: &mut Vec<Shot>) -> anyhow::Result<()> {
    let name = trace.file.display();
    let file = std::fs::File::open(&trace.file).with_context(|| format!("cannot open the trace {name}"))?;
    rows(file, trace.speed, duration, shots).with_context(|| format!("in the trace {name}"))
}

fn rows(file: impl Read, speed: f64, duration: Duration, shots: &mut Vec<Shot>) -> anyhow::Result<()> {
    for (number, row) in (2..).zip(csv::Reader::from_reader(file).into_deserialize()) {
        let row: Row = row.with_context(|| format!("line {number}"))?;
        if !(row.arrival_s.is_finite() && row.arrival_s >= 0.0) {
            bail!("line {number}: arrival_s must be at least 0, not {}", row.arrival_s);
        }
        if http::HeaderValue::from_str(&row.tenant).is_err() {
            bail!("line {number}: the tenant {:?} cannot be sent in a header", row.tenant);
        }
        let at = Duration::from_secs_f64(row.arrival_s / speed);
        if at >= duration {
            continue;
        }
        let session = row.session.filter(|session| !session.is_empty());
        shots.push(Shot {
            at,
            sender: Arc::new(Sender::plain(row.tenant, session)),
            input: row.input_tokens.max(1),
            output: row.output_tokens.max(1),
            attempt: 0,
        });
        ensure!(shots.len() <= MOST_REQUESTS, "more than {MOST_REQUESTS} requests");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rand::SeedableRng;
    use rand::rngs::StdRng;

    use super::{Load, Shot, arrivals, rows};
    use crate::scenario::Time;

    fn count(load: &Load, seconds: u64) -> Vec<Duration> {
        arrivals(load, Duration::from_secs(seconds), &mut StdRng::seed_from_u64(1))
    }

    #[test]
    fn arrivals_have_the_rate_and_the_shape_they_say() {
        assert_eq!(count(&Load::Uniform { per_second: 2.0 }, 10).len(), 20);
        let poisson = count(&Load::Poisson { per_second: 5.0 }, 1_000);
        assert!((4_800..5_200).contains(&poisson.len()), "{}", poisson.len());
        assert_eq!(poisson, count(&Load::Poisson { per_second: 5.0 }, 1_000), "the seed decides");
        let time = |seconds| Time(Duration::from_secs(seconds));
        let bursts = count(&Load::Bursts { size: 3, every: time(4) }, 10);
        assert_eq!(bursts.iter().map(Duration::as_secs).collect::<Vec<_>>(), [0, 0, 0, 4, 4, 4, 8, 8, 8]);
        let on_off = count(&Load::OnOff { per_second: 1.0, on: time(2), off: time(3) }, 10);
        assert_eq!(on_off.iter().map(Duration::as_secs).collect::<Vec<_>>(), [0, 1, 5, 6]);
    }

    #[test]
    fn a_trace_is_replayed_at_its_speed_and_a_bad_line_is_named() {
        let mut shots: Vec<Shot> = Vec::new();
        let good =
            "arrival_s,tenant,session,model,input_tokens,output_tokens,prefix_id\n4,a,,m,10,20,\n90,b,s,m,1,2,\n";
        rows(good.as_bytes(), 2.0, Duration::from_secs(10), &mut shots).expect("valid");
        assert_eq!(shots.len(), 1, "the second comes after the end");
        assert_eq!((shots[0].at, shots[0].input, shots[0].output), (Duration::from_secs(2), 10, 20));
        let bad = "arrival_s,tenant,input_tokens,output_tokens\n1,a,10,20\n-1,a,10,20\n";
        let error = rows(bad.as_bytes(), 1.0, Duration::from_secs(10), &mut shots).expect_err("negative");
        assert!(error.to_string().contains("line 3"), "{error}");
    }
}
