//! Pools of serving capacity, as written.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::overload::example_breaker;
use super::{Breaker, Duration, Pattern};

/// A pool of serving capacity.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Pool {
    /// Its name: letters, digits, `-`, `_` and `.`.
    pub(crate) name: String,

    /// The models it serves, by their names after aliases.
    #[serde(default = "every_model")]
    #[schemars(length(min = 1, max = 1000))]
    pub(crate) models: Vec<Pattern>,

    /// Model names that are replaced before anything else, the request's own included. The first entry that fits
    /// decides.
    #[serde(default)]
    #[schemars(length(max = 1000), example = example_aliases())]
    pub(crate) aliases: Vec<Alias>,

    /// Where the reverse proxy sends requests: `http://` or `https://`, a host, and perhaps a port and a path to
    /// put before the request's. When left out: what `serve --upstream` says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", example = &"http://127.0.0.1:8000")]
    pub(crate) upstream: Option<String>,

    /// How much may be in flight at once. Much more than the engine can hold and its own queue decides who is
    /// served; too little and it idles. A key left out of a window is unlimited; with no window at all, the one
    /// shown as the default holds.
    #[serde(default = "Window::protecting")]
    pub(crate) window: Window,

    /// The largest input ever admitted, in tokens; and what a request is expected to come to in all, input and output,
    /// is counted up to this. One that is larger than the window but not than this runs alone.
    #[serde(default = "a_million")]
    #[schemars(range(min = 1))]
    pub(crate) max_request_tokens: u64,

    /// How much may wait. Beyond that, the request is refused whose tenant has most waiting for its weight.
    #[serde(default)]
    pub(crate) queue: Queue,

    /// When its upstream counts as failed, and for how long it is then left alone. When left out: that is not watched,
    /// and every request is sent however the last one fared. `{}` watches it in the way that is shown as the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Breaker", example = example_breaker())]
    pub(crate) breaker: Option<Breaker>,

    /// Where the load of its engines is read, as a second opinion beside what is seen of their answers. When left
    /// out: nowhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Engine", example = example_engine())]
    pub(crate) engine: Option<Engine>,
}

fn every_model() -> Vec<Pattern> {
    vec![Pattern("*".into())]
}

fn a_million() -> u64 {
    1_000_000
}

pub(super) fn default_pools() -> Vec<Pool> {
    vec![Pool {
        name: "default".into(),
        models: every_model(),
        aliases: Vec::new(),
        upstream: None,
        window: Window::protecting(),
        max_request_tokens: a_million(),
        queue: Queue::default(),
        breaker: None,
        engine: None,
    }]
}

/// A model name to be replaced.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Alias {
    /// Which names.
    pub(crate) from: Pattern,
    /// By what. One of the pool's `models` has to fit it.
    #[schemars(length(min = 1, max = 256))]
    pub(crate) to: String,
}

fn example_aliases() -> Vec<Alias> {
    vec![Alias { from: Pattern("gpt-4o*".into()), to: "llama-70b".into() }]
}

/// How much may be in flight at once.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Window {
    /// In tokens: input plus expected output of every request in flight, for as long as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub(crate) tokens: Option<u64>,
    /// In requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub(crate) requests: Option<u32>,
    /// How the window follows the engine.
    #[serde(default)]
    pub(crate) adapt: Adapt,
}

impl Window {
    /// What holds in a pool that says nothing about its window.
    fn protecting() -> Self {
        Self { tokens: Some(16_000), requests: Some(64), adapt: Adapt::Fixed }
    }
}

/// How the window follows the engine.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Adapt {
    /// Not at all: it stays as written.
    #[default]
    Fixed,
    /// It is found from when answers begin and end: large enough to keep the engine busy, small enough to keep its
    /// queue short. `tokens` and `requests` are then the most it may become.
    Auto,
}

/// Where the load of a pool's engines is read. What is not said, or is older than `stale_after`, is unknown: a pool is
/// never taken for idle because its gauges cannot be read.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Engine {
    /// The pages of metrics of all its engines, one each: of vLLM, SGLang, TensorRT-LLM, Triton, TGI or llama.cpp. What
    /// they say is added up, and only while all of them can be read.
    #[schemars(length(max = 64), example = example_metrics())]
    pub(crate) metrics: Vec<String>,
    /// Whether its engine is asked to report its load in a header of each answer (ORCA), and in which form. For a pool
    /// of one engine: which of several an answer came from cannot be told.
    pub(crate) orca: Orca,
    /// How often each page is read, give or take a tenth, so that many gateways do not all read at once. From `100ms`
    /// to `1m`.
    pub(crate) every: Duration,
    /// How old what was read may be before it is unknown. At least twice `every`, so that one lost reading is none.
    pub(crate) stale_after: Duration,
}

impl Default for Engine {
    fn default() -> Self {
        Self { metrics: Vec::new(), orca: Orca::Off, every: Duration("2s".into()), stale_after: Duration("10s".into()) }
    }
}

fn example_metrics() -> Vec<String> {
    vec!["http://127.0.0.1:8000/metrics".into()]
}

fn example_engine() -> Engine {
    Engine { metrics: example_metrics(), ..Engine::default() }
}

/// How an engine reports its load in a header of each answer.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Orca {
    /// It is not asked to.
    #[default]
    Off,
    /// As text, which vLLM and Triton write.
    Text,
    /// As JSON, which they write too.
    Json,
}

/// How much may wait, at four levels and in three units: requests, tokens (input plus expected output) and bytes of
/// request bodies held in memory. 0 means that nothing waits: what cannot be dispatched at once is refused.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Queue {
    /// Requests in the pool.
    pub(crate) requests: u32,
    /// Tokens in the pool.
    pub(crate) tokens: u64,
    /// Bytes in the pool.
    pub(crate) bytes: u64,
    /// Requests in each class. When left out: no cap of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(example = 4000)]
    pub(crate) per_class_requests: Option<u32>,
    /// Tokens in each class. When left out: no cap of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(example = 16_000_000)]
    pub(crate) per_class_tokens: Option<u64>,
    /// Bytes in each class. When left out: no cap of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(example = 200_000_000)]
    pub(crate) per_class_bytes: Option<u64>,
    /// Requests of each tenant in each class.
    pub(crate) per_tenant_requests: u32,
    /// Tokens of each tenant in each class. When left out: no cap of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(example = 4_000_000)]
    pub(crate) per_tenant_tokens: Option<u64>,
    /// Bytes of each tenant in each class. When left out: no cap of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(example = 50_000_000)]
    pub(crate) per_tenant_bytes: Option<u64>,
    /// Requests of each session. Where it is 2 or more, the last place stays for the agent that leads the session.
    pub(crate) per_session_requests: u32,
    /// Tokens of each session. When left out: no cap of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(example = 1_000_000)]
    pub(crate) per_session_tokens: Option<u64>,
    /// Bytes of each session. When left out: no cap of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(example = 10_000_000)]
    pub(crate) per_session_bytes: Option<u64>,
}

impl Default for Queue {
    fn default() -> Self {
        Self {
            requests: 5_000,
            tokens: 20_000_000,
            bytes: 256_000_000,
            per_class_requests: None,
            per_class_tokens: None,
            per_class_bytes: None,
            per_tenant_requests: 1_000,
            per_tenant_tokens: None,
            per_tenant_bytes: None,
            per_session_requests: 128,
            per_session_tokens: None,
            per_session_bytes: None,
        }
    }
}
