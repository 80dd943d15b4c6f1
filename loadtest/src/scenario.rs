//! What a run offers: its clients, their arrivals and lengths, read from YAML with every mistake at its place.
//!
//! A scenario is data. Open-loop clients arrive when the scenario says, whatever the gateway does, because that is
//! what users do and what makes an overload visible; closed-loop ones keep a number of requests standing, because
//! that is what a batch job does.

use std::path::{Path, PathBuf};
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use tallygate::yaml::{self, Mistakes, Positions};

/// The most requests a run may schedule, so that its records fit in memory.
pub(crate) const MOST_REQUESTS: usize = 1_000_000;
const MOST_STREAMS: u32 = 10_000;
const MOST_RATE: f64 = 10_000.0;
const MOST_TOKENS: u32 = 1_000_000;

/// A length of time as people write it: `300s`, `2m`.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(try_from = "String")]
#[schemars(with = "String")]
pub(crate) struct Time(pub(crate) Duration);

impl TryFrom<String> for Time {
    type Error = humantime::DurationError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        humantime::parse_duration(&text).map(Self)
    }
}

/// What a run offers.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Scenario {
    /// How long requests are offered.
    pub(crate) duration: Time,
    /// How long to wait afterwards for the answers of clients that are not in the background.
    #[serde(default = "thirty_seconds")]
    pub(crate) drain: Time,
    /// The model every request names.
    #[serde(default = "demo")]
    pub(crate) model: String,
    /// A first token within this counts towards goodput.
    #[serde(default = "ten_seconds")]
    pub(crate) first_token_within: Time,
    /// A whole answer within this of being asked for is a good one.
    #[serde(default = "thirty_seconds")]
    pub(crate) answer_within: Time,
    /// Requests scheduled before this do not count in what is reported of the overload.
    #[serde(default = "nothing")]
    pub(crate) warm_up: Time,
    /// Open-loop requests under way at once; those beyond are not sent and are reported.
    #[serde(default = "five_thousand")]
    pub(crate) most_outstanding: u32,
    /// Who sends what.
    #[serde(default)]
    pub(crate) clients: Vec<Client>,
    /// Requests replayed from a file, with the tenants, sessions and lengths it names.
    pub(crate) trace: Option<Trace>,
}

/// One source of requests. Several may belong to one tenant.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Client {
    /// Whom the report counts it under; sent as `x-tenant-id` unless there is an API key.
    pub(crate) tenant: String,
    /// Sent as `Authorization: Bearer`, in place of the tenant's header.
    pub(crate) api_key: Option<String>,
    /// Sent as `x-session-id`.
    pub(crate) session: Option<String>,
    /// Sent as `x-priority`.
    pub(crate) class: Option<String>,
    /// When its requests come.
    pub(crate) load: Load,
    /// Words in the prompt; the chat's markup adds a few tokens.
    pub(crate) input_tokens: Length,
    /// Tokens in the answer, exactly (`ignore_eos`).
    pub(crate) output_tokens: Length,
    /// Whether answers are streamed.
    #[serde(default = "yes")]
    pub(crate) stream: bool,
    /// Whether the run ends without waiting for this client's answers.
    #[serde(default)]
    pub(crate) background: bool,
    /// Whether `overload` leaves its rate as it is, however much the others offer.
    #[serde(default)]
    pub(crate) steady: bool,
    /// When it begins; with the run where omitted.
    #[serde(default = "nothing")]
    pub(crate) from: Time,
    /// When it ends; with the run where omitted.
    pub(crate) until: Option<Time>,
    /// How long after sending a request it gives up on it and hangs up; never where omitted.
    pub(crate) gives_up_after: Option<Time>,
    /// How many times it sends a request again that was refused or given up, by the rules of the official SDKs.
    #[serde(default)]
    pub(crate) retries: u32,
    /// What it takes the gateway to have told it to wait, whatever that was.
    pub(crate) told_instead: Option<Time>,
}

/// When requests come.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Load {
    /// Evenly spaced.
    Uniform {
        /// Requests a second.
        per_second: f64,
    },
    /// At random moments, independent of each other.
    Poisson {
        /// Requests a second, on average.
        per_second: f64,
    },
    /// Many at once, and then none for a while.
    Bursts {
        /// Requests in a burst.
        size: u32,
        /// From one burst to the next.
        every: Time,
    },
    /// Evenly spaced for a while, and then none for a while.
    OnOff {
        /// Requests a second while on.
        per_second: f64,
        /// How long it is on.
        on: Time,
        /// How long it is off.
        off: Time,
    },
    /// A number of requests standing at all times: each is followed by the next as soon as it ends.
    Concurrent {
        /// How many.
        streams: u32,
        /// How long each pauses between two requests.
        #[serde(default = "nothing")]
        think: Time,
    },
}

/// How long prompts or answers are, in tokens.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Length {
    /// Always this long.
    Fixed(u32),
    /// Anything between, ends included.
    Uniform {
        /// The shortest.
        from: u32,
        /// The longest.
        to: u32,
    },
    /// Mostly short, sometimes long, as chats are.
    Lognormal {
        /// The average.
        mean: f64,
        /// The spread of the logarithm; 0.8 is usual.
        sigma: f64,
        /// Longer ones are cut to this.
        most: u32,
    },
}

/// A file of requests: `arrival_s,tenant,session,model,input_tokens,output_tokens,…`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Trace {
    /// The file, relative to the scenario's.
    pub(crate) file: PathBuf,
    /// How many times faster than recorded.
    #[serde(default = "one")]
    pub(crate) speed: f64,
}

fn thirty_seconds() -> Time {
    Time(Duration::from_secs(30))
}
fn nothing() -> Time {
    Time(Duration::ZERO)
}
fn ten_seconds() -> Time {
    Time(Duration::from_secs(10))
}
fn demo() -> String {
    "demo".to_owned()
}
fn five_thousand() -> u32 {
    5_000
}
fn yes() -> bool {
    true
}
fn one() -> f64 {
    1.0
}

/// Reads a scenario, and the trace it names relative to itself.
pub(crate) fn read(path: &Path) -> Result<Scenario, Mistakes> {
    let mut scenario = parse(&path.display().to_string(), &yaml::read(path)?)?;
    if let (Some(trace), Some(folder)) = (&mut scenario.trace, path.parent()) {
        trace.file = folder.join(&trace.file);
    }
    Ok(scenario)
}

fn parse(name: &str, text: &str) -> Result<Scenario, Mistakes> {
    let loaded = yaml::load::<Scenario>(name, text)?;
    let mut check = Check { positions: &loaded.positions, mistakes: Mistakes::none() };
    check.scenario(&loaded.value);
    check.mistakes.into_result()?;
    Ok(loaded.value)
}

/// What a schema cannot say: values that would make no run.
struct Check<'a> {
    positions: &'a Positions,
    mistakes: Mistakes,
}

impl Check<'_> {
    fn that(&mut self, holds: bool, pointer: &str, message: &str) {
        if !holds {
            self.mistakes.push(self.positions.mistake(pointer, message.to_owned()));
        }
    }

    fn scenario(&mut self, scenario: &Scenario) {
        let day = Duration::from_secs(86_400);
        self.that(
            !scenario.duration.0.is_zero() && scenario.duration.0 <= day,
            "/duration",
            "must be between 1ns and 1d",
        );
        self.that(scenario.drain.0 <= day, "/drain", "must be at most 1d");
        self.that(scenario.warm_up.0 < scenario.duration.0, "/warm_up", "must be less than the duration");
        let something = !scenario.clients.is_empty() || scenario.trace.is_some();
        self.that(something, "", "offers nothing: name clients or a trace");
        for (index, client) in scenario.clients.iter().enumerate() {
            self.client(client, &format!("/clients/{index}"));
        }
        if let Some(trace) = &scenario.trace {
            let speed = trace.speed;
            self.that(
                speed.is_finite() && speed > 0.0 && speed <= 1e6,
                "/trace/speed",
                "must be above 0 and at most 1000000",
            );
        }
    }

    fn client(&mut self, client: &Client, at: &str) {
        for (key, value) in [("tenant", Some(&client.tenant)), ("api_key", client.api_key.as_ref())]
            .into_iter()
            .chain([("session", client.session.as_ref()), ("class", client.class.as_ref())])
        {
            let valid = value.is_none_or(|value| !value.is_empty() && http::HeaderValue::from_str(value).is_ok());
            self.that(valid, &format!("{at}/{key}"), "is sent in a header: printable ASCII, not empty");
        }
        self.load(&client.load, &format!("{at}/load"));
        let until = client.until.map_or(Duration::MAX, |until| until.0);
        self.that(client.from.0 < until, &format!("{at}/until"), "must be after `from`");
        self.length(&client.input_tokens, &format!("{at}/input_tokens"));
        self.length(&client.output_tokens, &format!("{at}/output_tokens"));
    }

    fn load(&mut self, load: &Load, at: &str) {
        let rate = |rate: f64| rate.is_finite() && rate > 0.0 && rate <= MOST_RATE;
        let told = "must be above 0 and at most 10000";
        match load {
            Load::Uniform { per_second } => self.that(rate(*per_second), &format!("{at}/uniform/per_second"), told),
            Load::Poisson { per_second } => self.that(rate(*per_second), &format!("{at}/poisson/per_second"), told),
            Load::Bursts { size, every } => {
                self.that(
                    (1..=MOST_STREAMS).contains(size),
                    &format!("{at}/bursts/size"),
                    "must be between 1 and 10000",
                );
                self.that(!every.0.is_zero(), &format!("{at}/bursts/every"), "must be more than 0s");
            }
            Load::OnOff { per_second, on, off } => {
                self.that(rate(*per_second), &format!("{at}/on_off/per_second"), told);
                self.that(!on.0.is_zero(), &format!("{at}/on_off/on"), "must be more than 0s");
                self.that(!off.0.is_zero(), &format!("{at}/on_off/off"), "must be more than 0s");
            }
            Load::Concurrent { streams, .. } => {
                let valid = (1..=MOST_STREAMS).contains(streams);
                self.that(valid, &format!("{at}/concurrent/streams"), "must be between 1 and 10000");
            }
        }
    }

    fn length(&mut self, length: &Length, at: &str) {
        let tokens = |tokens: u32| (1..=MOST_TOKENS).contains(&tokens);
        let told = "must be between 1 and 1000000";
        match length {
            Length::Fixed(fixed) => self.that(tokens(*fixed), &format!("{at}/fixed"), told),
            Length::Uniform { from, to } => {
                self.that(tokens(*from), &format!("{at}/uniform/from"), told);
                self.that(
                    tokens(*to) && from <= to,
                    &format!("{at}/uniform/to"),
                    "must be at least `from`, at most 1000000",
                );
            }
            Length::Lognormal { mean, sigma, most } => {
                let positive = mean.is_finite() && *mean >= 1.0 && *mean <= f64::from(MOST_TOKENS);
                self.that(positive, &format!("{at}/lognormal/mean"), told);
                let spread = sigma.is_finite() && *sigma > 0.0 && *sigma <= 5.0;
                self.that(spread, &format!("{at}/lognormal/sigma"), "must be above 0 and at most 5");
                self.that(tokens(*most), &format!("{at}/lognormal/most"), told);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Load, parse};

    const GOOD: &str = "\
duration: 30s
clients:
  - tenant: hog
    load: {concurrent: {streams: 40}}
    input_tokens: {fixed: 256}
    output_tokens: {fixed: 256}
    background: true
  - tenant: light
    load: {poisson: {per_second: 0.5}}
    input_tokens: {uniform: {from: 16, to: 64}}
    output_tokens: {lognormal: {mean: 100, sigma: 0.8, most: 400}}
";

    #[test]
    fn a_scenario_is_read_with_its_defaults() {
        let scenario = parse("good.yaml", GOOD).expect("valid");
        assert_eq!(scenario.drain.0.as_secs(), 30);
        assert!(matches!(scenario.clients[0].load, Load::Concurrent { streams: 40, .. }));
        assert!(scenario.clients[1].stream);
    }

    #[test]
    fn mistakes_are_told_together_and_where_they_are() {
        let bad = GOOD.replace("30s", "0s").replace("0.5", "-1").replace("from: 16", "from: 100");
        let told = parse("bad.yaml", &bad).expect_err("three mistakes").to_string();
        for place in ["bad.yaml:1:", "bad.yaml:9:", "bad.yaml:10:"] {
            assert!(told.contains(place), "{place} is missing from {told}");
        }
        let typo = parse("typo.yaml", &GOOD.replace("poisson", "poison")).expect_err("a typo").to_string();
        assert!(typo.contains("typo.yaml:9"), "{typo}");
        assert!(parse("nothing.yaml", "duration: 1s").is_err(), "offers nothing");
    }
}
