//! Made-up clients: who sends how much, when, and of what length, all from one seed.
//!
//! Traces say what happened once; these say what might. Every client draws from a random stream of its own
//! (the seed and its place in the list), so adding a client leaves the others as they were. The kinds of
//! arrival and length are those of the VTC paper's synthetic suites, plus bursts and log-normal lengths, which
//! public traces show (squared coefficient of variation of output length 0.5-4.6).

use std::sync::Arc;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::units::{Instant, Limit, SessionId, Span, TenantId, Tokens};

use super::demand::{Demand, Fate, Then};

/// The most requests one client may send.
const MOST_REQUESTS: usize = 2_000_000;
/// The most requests a second of one client.
const MOST_RATE: f64 = 100_000.0;
/// The latest second of a workload.
const MOST_SECONDS: f64 = 1e6;
/// The longest input or output.
const MOST_TOKENS: u64 = 1_000_000_000;

/// One client of a made-up workload.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Client {
    /// Its tenant. Several clients may share one.
    pub tenant: String,
    /// Over how many sessions its requests go in turn; none when left out.
    #[serde(default)]
    pub sessions: Option<u32>,
    /// The class it wishes for.
    #[serde(default)]
    pub class: Option<String>,
    /// The model it names.
    #[serde(default)]
    pub model: String,
    /// When its requests arrive.
    pub arrivals: Arrivals,
    /// Its first second.
    #[serde(default)]
    pub from_s: f64,
    /// Its last second.
    pub until_s: f64,
    /// Input tokens of a request.
    pub input: Lengths,
    /// Output tokens of a request.
    pub output: Lengths,
    /// The most output it allows.
    #[serde(default)]
    pub max_tokens: Option<u64>,
    /// Whether its answers are streamed; otherwise each comes in one piece, at its end.
    #[serde(default = "streams")]
    pub stream: bool,
    /// How long after arriving being let through is still of use to it.
    #[serde(default)]
    pub deadline_s: Option<f64>,
    /// How long after arriving it leaves, whatever has become of the request.
    #[serde(default)]
    pub leaves_after_s: Option<f64>,
    /// How many times it tries again when refused, waiting each time as long as it is told, or when it left.
    #[serde(default)]
    pub retries: u32,
    /// Whatever the gateway tells it when it is refused, it is told to wait this long instead: the constant that
    /// others send.
    #[serde(default)]
    pub told_instead_s: Option<f64>,
}

fn streams() -> bool {
    true
}

/// When requests arrive. Rates are in requests a second.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Arrivals {
    /// Evenly spaced, from a random phase.
    Uniform {
        /// Requests a second.
        rate: f64,
    },
    /// Independently of each other.
    Poisson {
        /// Requests a second, on average.
        rate: f64,
    },
    /// Evenly spaced in the on-periods, nothing between.
    OnOff {
        /// Requests a second while on.
        rate: f64,
        /// Length of an on-period.
        on_s: f64,
        /// Length of the pause after it.
        off_s: f64,
    },
    /// At a rate that changes linearly.
    Ramp {
        /// At the start.
        from: f64,
        /// At the end.
        to: f64,
    },
    /// So many clients, each of which asks again a while after its last request ended.
    Closed {
        /// How many.
        clients: u32,
        /// Seconds from an end to the next request.
        think_s: f64,
    },
    /// Many at once, again and again.
    Bursts {
        /// Requests at once.
        size: u32,
        /// Seconds from one burst to the next.
        every_s: f64,
    },
}

/// How long something is, in tokens.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Lengths {
    /// Always this.
    Fixed(u64),
    /// Anything in a range, equally often.
    Uniform {
        /// The least.
        least: u64,
        /// The most.
        most: u64,
    },
    /// Mostly short, sometimes very long.
    Lognormal {
        /// Half are shorter.
        median: f64,
        /// Standard deviation of the logarithm.
        sigma: f64,
        /// None is longer.
        most: u64,
    },
}

/// The requests of all clients, by arrival.
///
/// # Errors
/// What is wrong with the clients, all of it.
pub fn generate(clients: &[Client], seed: u64) -> Result<Vec<Demand>, Vec<String>> {
    let wrong: Vec<String> = clients.iter().zip(1..).flat_map(|(client, place)| client.mistakes(place)).collect();
    if !wrong.is_empty() {
        return Err(wrong);
    }
    let mut demands: Vec<Demand> =
        clients.iter().zip(0..).flat_map(|(client, place)| client.demands(seed, place)).collect();
    demands.sort_by_key(|demand| demand.arrival);
    Ok(demands)
}

impl Client {
    fn mistakes(&self, place: usize) -> Vec<String> {
        let mut wrong = Vec::new();
        let mut check = |fine: bool, what: &str| {
            if !fine {
                wrong.push(format!("client {place} ({}): {what}", self.tenant));
            }
        };
        let second = |value: f64| (0.0..=MOST_SECONDS).contains(&value);
        let rate = |value: f64| value > 0.0 && value <= MOST_RATE;
        check(!self.tenant.is_empty(), "has no tenant");
        check(
            second(self.from_s) && second(self.until_s) && self.from_s < self.until_s,
            "from_s must be before until_s",
        );
        check(self.deadline_s.is_none_or(second), "deadline_s must be a number of seconds");
        check(self.leaves_after_s.is_none_or(second), "leaves_after_s must be a number of seconds");
        check(self.told_instead_s.is_none_or(second), "told_instead_s must be a number of seconds");
        check(self.sessions != Some(0), "sessions must be at least 1, or left out");
        let (fine, most) = match self.arrivals {
            Arrivals::Uniform { rate: per_s } | Arrivals::Poisson { rate: per_s } => (rate(per_s), per_s),
            Arrivals::OnOff { rate: per_s, on_s, off_s } => (rate(per_s) && on_s > 0.0 && second(off_s), per_s),
            Arrivals::Ramp { from, to } => (rate(from) && rate(to), from.max(to)),
            Arrivals::Closed { clients, think_s } => (clients > 0 && think_s > 0.0, f64::from(clients) / think_s),
            Arrivals::Bursts { size, every_s } => (size > 0 && every_s > 0.0, f64::from(size) / every_s),
        };
        check(fine, "arrivals need rates and periods above 0");
        #[expect(clippy::cast_precision_loss, reason = "a bound, not a count")]
        let most_requests = MOST_REQUESTS as f64;
        check(most * (self.until_s - self.from_s) <= most_requests, "would send more than 2,000,000 requests");
        for (what, lengths) in [("input", &self.input), ("output", &self.output)] {
            check(lengths.is_valid(), &format!("{what} lengths make no sense: {lengths:?}"));
        }
        wrong
    }

    fn demands(&self, seed: u64, place: u64) -> Vec<Demand> {
        // Odd multiplier: distinct (seed, place) give distinct streams for every place below 2³².
        let mut rng = StdRng::seed_from_u64(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(place));
        let tenant = TenantId::from(&*self.tenant);
        let class: Option<Arc<str>> = self.class.as_deref().map(Arc::from);
        let model: Arc<str> = self.model.as_str().into();
        let sessions: Vec<SessionId> = (0..self.sessions.unwrap_or_default())
            .map(|session| SessionId::from(&*format!("{}-{place}-{session}", self.tenant)))
            .collect();
        let fate = self.leaves_after_s.map_or(Fate::Patient, |secs| Fate::LeavesAfter(Span::from_secs_f64(secs)));
        let times = self.arrivals.times(&mut rng, self.until_s - self.from_s);
        let demand = |(turn, time): (usize, f64)| Demand {
            session: (!sessions.is_empty()).then(|| sessions[turn % sessions.len()].clone()),
            model: model.clone(),
            class: class.clone(),
            max_tokens: self.max_tokens.map(Tokens::new).map_or(Limit::Unlimited, Limit::AtMost),
            deadline: self.deadline_s.map(Span::from_secs_f64),
            streamed: self.stream,
            fate,
            retries: self.retries,
            told_instead: self.told_instead_s.map(Span::from_secs_f64),
            ..Demand::plain(
                Instant::from_secs_f64(self.from_s + time),
                tenant.clone(),
                self.input.draw(&mut rng),
                self.output.draw(&mut rng),
            )
        };
        let mut demands: Vec<Demand> = times.into_iter().enumerate().map(demand).collect();
        if let Arrivals::Closed { think_s, .. } = self.arrivals {
            let loops = Loop { think: Span::from_secs_f64(think_s), until: Instant::from_secs_f64(self.until_s) };
            demands.iter_mut().for_each(|first| loops.close(self, &mut rng, first));
        }
        demands
    }
}

/// What makes a client's requests follow each other.
struct Loop {
    think: Span,
    until: Instant,
}

impl Loop {
    /// Draws whatever follows a client's first request, the last first: as many as there is time to think for.
    fn close(&self, client: &Client, rng: &mut StdRng, first: &mut Demand) {
        let most = self.until.since(first.arrival).as_nanos() / self.think.as_nanos().max(1);
        for _ in 0..most {
            let (input, output) = (client.input.draw(rng), client.output.draw(rng));
            let demand = Demand { input, output, then: first.then.take(), ..first.clone() };
            first.then = Some(Arc::new(Then { think: self.think, until: self.until, demand }));
        }
    }
}

impl Arrivals {
    /// Seconds after the client's start, in order, all before `span`.
    fn times(&self, rng: &mut StdRng, span: f64) -> Vec<f64> {
        let even = |rng: &mut StdRng, rate: f64| {
            let phase = rng.random::<f64>();
            (0_u32..).map(move |count| (f64::from(count) + phase) / rate).take_while(move |time| *time < span)
        };
        match *self {
            Self::Uniform { rate } => even(rng, rate).collect(),
            Self::OnOff { rate, on_s, off_s } => even(rng, rate).filter(|time| time % (on_s + off_s) < on_s).collect(),
            Self::Poisson { rate } => after_each(span, |_| exponential(rng, rate)),
            Self::Ramp { from, to } => after_each(span, |time| 1.0 / (from + (to - from) * time / span)),
            Self::Closed { clients, think_s } => {
                let mut times: Vec<f64> = (0..clients).map(|_| rng.random::<f64>() * think_s).collect();
                times.sort_by(f64::total_cmp);
                times
            }
            Self::Bursts { size, every_s } => {
                let bursts = (0_u32..).map(|count| f64::from(count) * every_s).take_while(|time| *time < span);
                bursts.flat_map(|time| (0..size).map(move |_| time)).collect()
            }
        }
    }
}

/// Times that each follow the one before by what `gap` says of it.
fn after_each(span: f64, mut gap: impl FnMut(f64) -> f64) -> Vec<f64> {
    let mut time = gap(0.0);
    let mut times = Vec::new();
    while time < span && times.len() < MOST_REQUESTS {
        times.push(time);
        time += gap(time);
    }
    times
}

fn exponential(rng: &mut StdRng, rate: f64) -> f64 {
    -(1.0 - rng.random::<f64>()).ln() / rate
}

impl Lengths {
    fn is_valid(&self) -> bool {
        match *self {
            Self::Fixed(tokens) => tokens <= MOST_TOKENS,
            Self::Uniform { least, most } => least <= most && most <= MOST_TOKENS,
            Self::Lognormal { median, sigma, most } => {
                (1.0..=1e9).contains(&median) && (0.0..=10.0).contains(&sigma) && most <= MOST_TOKENS
            }
        }
    }

    fn draw(&self, rng: &mut StdRng) -> Tokens {
        Tokens::new(match *self {
            Self::Fixed(tokens) => tokens,
            Self::Uniform { least, most } => rng.random_range(least..=most),
            Self::Lognormal { median, sigma, most } => {
                // Box and Muller's normal variate.
                let radius = (-2.0 * (1.0 - rng.random::<f64>()).ln()).sqrt();
                let normal = radius * (std::f64::consts::TAU * rng.random::<f64>()).cos();
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "`as` saturates, and that is meant"
                )]
                let tokens = (median * (sigma * normal).exp()).round() as u64;
                tokens.clamp(1, most.max(1))
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Arrivals, Client, Lengths, generate};

    fn client(tenant: &str, arrivals: Arrivals) -> Client {
        Client {
            tenant: tenant.into(),
            sessions: None,
            class: None,
            model: String::new(),
            arrivals,
            from_s: 10.0,
            until_s: 110.0,
            input: Lengths::Uniform { least: 5, most: 9 },
            output: Lengths::Lognormal { median: 100.0, sigma: 1.0, most: 2_000 },
            max_tokens: None,
            stream: true,
            deadline_s: None,
            leaves_after_s: None,
            retries: 0,
            told_instead_s: None,
        }
    }

    #[test]
    fn every_kind_sends_at_about_its_rate_within_its_time() {
        let kinds = [
            (Arrivals::Uniform { rate: 3.0 }, 300..=300),
            (Arrivals::Poisson { rate: 30.0 }, 2_800..=3_200),
            (Arrivals::OnOff { rate: 10.0, on_s: 10.0, off_s: 30.0 }, 295..=305),
            (Arrivals::Ramp { from: 1.0, to: 9.0 }, 480..=520),
            (Arrivals::Bursts { size: 7, every_s: 20.0 }, 35..=35),
            // The first request of each; the rest follow as they end.
            (Arrivals::Closed { clients: 9, think_s: 4.0 }, 9..=9),
        ];
        for (kind, expected) in kinds {
            let demands = generate(&[client("a", kind.clone())], 1).expect("valid");
            assert!(expected.contains(&demands.len()), "{kind:?} sent {}", demands.len());
            let seconds = |at: usize| demands[at].arrival.as_secs_f64();
            assert!(seconds(0) >= 10.0 && seconds(demands.len() - 1) < 110.0, "{kind:?}");
            assert!(demands.is_sorted_by_key(|demand| demand.arrival));
        }
    }

    #[test]
    fn lengths_follow_their_distribution() {
        let demands = generate(&[client("a", Arrivals::Poisson { rate: 100.0 })], 1).expect("valid");
        assert!(demands.iter().all(|demand| (5..=9).contains(&demand.input.get())));
        let mut outputs: Vec<u64> = demands.iter().map(|demand| demand.output.get()).collect();
        outputs.sort_unstable();
        let rank = |percent: usize| outputs[demands.len() * percent / 100];
        // Median 100; one standard deviation of the logarithm up is 272, at 84 %.
        assert!((95..=105).contains(&rank(50)) && (250..=290).contains(&rank(84)), "{} {}", rank(50), rank(84));
        assert!(outputs.last() <= Some(&2_000));
    }

    #[test]
    fn the_seed_decides_and_a_new_client_disturbs_nobody() {
        let one = client("a", Arrivals::Poisson { rate: 5.0 });
        let two = client("b", Arrivals::Poisson { rate: 5.0 });
        let alone = generate(std::slice::from_ref(&one), 7).expect("valid");
        assert_eq!(alone, generate(std::slice::from_ref(&one), 7).expect("valid"));
        assert_ne!(alone, generate(std::slice::from_ref(&one), 8).expect("valid"));
        let mut both = generate(&[one, two], 7).expect("valid");
        both.retain(|demand| demand.tenant.as_str() == "a");
        assert_eq!(alone, both);
    }

    #[test]
    fn sessions_take_turns() {
        let client = Client { sessions: Some(3), ..client("a", Arrivals::Uniform { rate: 1.0 }) };
        let demands = generate(&[client], 1).expect("valid");
        assert_eq!(demands[0].session, demands[3].session);
        assert_ne!(demands[0].session, demands[1].session);
    }

    #[test]
    fn nonsense_is_refused_whole() {
        let bad = [
            client("a", Arrivals::Uniform { rate: f64::NAN }),
            client("b", Arrivals::Bursts { size: 10, every_s: 0.0 }),
            Client { until_s: 5.0, ..client("c", Arrivals::Poisson { rate: 1.0 }) },
            Client { input: Lengths::Uniform { least: 2, most: 1 }, ..client("d", Arrivals::Poisson { rate: 1.0 }) },
            client("e", Arrivals::Poisson { rate: 99_999.0 }),
        ];
        let told = generate(&bad, 1).expect_err("bad");
        for (place, tenant) in ["(a)", "(b)", "(c)", "(d)", "(e)"].iter().enumerate() {
            assert!(told.iter().any(|line| line.contains(tenant)), "client {place}: {told:?}");
        }
    }
}
