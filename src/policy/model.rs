//! The policy as the rest of the program sees it: valid by construction.
//!
//! Every value here has passed its gate. Names are resolved to positions, percentages and durations are
//! typed, and what was omitted carries its default, so nothing downstream checks a policy again. Only
//! [`parse`](super::parse) builds one.

mod limits;
mod overload;
mod rate_limit;

use std::sync::Arc;

use crate::units::{
    Agent, Bytes, ClassIndex, Limit, Model, PoolIndex, Price, SessionId, Share, Span, Tariff, TaskId, TenantId,
    TokenWeight, Tokens, UserId, Weight,
};

use super::pattern::Pattern;

pub use limits::{Bounds, Budget, Exceeded, Per, Period, Rate, Scope, Spent};
pub use overload::{Breaker, FailureRatio, FailureSign, Retries, UpstreamsWord};
pub use rate_limit::{HitDomain, HitEntry, HitRule, HitValue, HitsAre, Named, Unmatched};

/// A whole policy.
#[derive(Clone, Debug)]
pub struct Policy {
    /// Who a request belongs to.
    pub identity: Identity,
    /// What tokens cost.
    pub cost: Cost,
    /// How turns are given.
    pub fairness: Fairness,
    /// Priority classes, in the policy's order. Never empty.
    pub classes: Vec<Class>,
    /// The class of a request that names none its tenant may use.
    pub default_class: ClassIndex,
    /// Tenant rules; the first that matches decides. Never empty; the last matches everyone.
    pub tenants: Vec<TenantRule>,
    /// Pools, in the policy's order; the first with a matching model serves a request. Never empty.
    pub pools: Vec<Pool>,
    /// Caps on requests in flight at once.
    pub fanout: Fanout,
    /// Rates, in the policy's order.
    pub limits: Vec<Rate>,
    /// Budgets, in the policy's order.
    pub budgets: Vec<Budget>,
    /// What the rate limit service is asked.
    pub rate_limit: Vec<HitDomain>,
    /// How many of a tenant's requests may be retries; nothing where that is not limited.
    pub retries: Option<Retries>,
    /// What becomes of requests that are not metered.
    pub unmetered: Unmetered,
}

/// What becomes of a request that has a body and is not metered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmetered {
    /// It is refused.
    Refuse,
    /// It passes, uncharged.
    Pass,
}

/// Where tenant, session and wished class are read from. The first rule that yields a value decides.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Rules for the tenant, in order.
    pub tenant: Vec<TenantSource>,
    /// Listeners whose headers may name the tenant.
    pub trust: Trust,
    /// Where a session id may come from, in order.
    pub session: Vec<SessionSource>,
    /// Where a user's name may come from, in order.
    pub user: Vec<NameSource>,
    /// Where a task's id may come from, in order.
    pub task: Vec<NameSource>,
    /// Headers that may carry a wished class, in order.
    pub class: Vec<http::HeaderName>,
    /// What becomes of a request that wishes for a class its tenant may not use.
    pub class_not_granted: NotGranted,
}

/// What becomes of a request that wishes for a class its tenant may not use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NotGranted {
    /// It competes in the tenant's own default class.
    #[default]
    UseDefault,
    /// It is refused.
    Refuse,
}

/// One way to learn the session, and whether one of its sub-agents speaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionSource {
    /// The header that carries its id.
    pub header: http::HeaderName,
    /// A header that only sub-agents of the session send.
    pub sub_agent: Option<http::HeaderName>,
    /// A header in which a sub-agent with an id of its own names the session it belongs to.
    pub parent: Option<http::HeaderName>,
}

/// One way to learn a name below the tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NameSource {
    /// A header, which says what the client says.
    Header(http::HeaderName),
    /// A value that Envoy vouches for in the metadata of a request.
    Metadata(MetadataKey),
}

/// One way to learn the tenant.
#[derive(Clone, Debug)]
pub enum TenantSource {
    /// `Authorization: Bearer` (or `x-api-key`) looked up by its SHA-256.
    ApiKey(Arc<KeyRing>),
    /// A header, believed only on a trusted listener.
    Header(http::HeaderName),
    /// A value that Envoy vouches for in the metadata of a request.
    Metadata(MetadataKey),
    /// Everybody who got this far.
    Fallback(TenantId),
}

/// Where in Envoy's dynamic metadata a value stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetadataKey {
    /// The namespace, which is the name of the filter that wrote it.
    pub namespace: String,
    /// The fields to follow below it. Never empty.
    pub path: Vec<String>,
}

impl std::fmt::Display for MetadataKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.path.join("."))
    }
}

/// The known API keys, by SHA-256. The keys themselves are never held.
#[derive(Clone, Debug, Default)]
pub struct KeyRing {
    /// Every key's digest and owner.
    pub keys: Vec<ApiKey>,
}

/// One API key.
#[derive(Clone, Debug)]
pub struct ApiKey {
    /// SHA-256 of the key.
    pub sha256: [u8; 32],
    /// Whom it identifies.
    pub tenant: TenantId,
    /// What its owner calls it, for logs.
    pub name: Option<String>,
}

/// Which listeners' headers may name the tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trust {
    /// Those bound to a loopback address.
    Loopback,
    /// Exactly these.
    Listeners(Vec<Listener>),
}

/// A listener that requests come in by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listener {
    /// The reverse proxy's.
    Proxy,
    /// The gRPC server's, which Envoy asks.
    Grpc,
    /// None of ours: the layer inside somebody's own server.
    Layer,
}

/// What tokens cost.
#[derive(Clone, Debug)]
pub struct Cost {
    /// What a token of each bucket costs, before a model's scale.
    pub weights: TokenWeights,
    /// Models that cost more or less; the first that matches decides.
    pub models: Vec<ModelCost>,
    /// How many times the usual output to expect for a stated reasoning effort without history.
    pub effort: EffortFactors,
}

/// A factor on the predictor's prior for each reasoning effort a request may state.
#[derive(Clone, Copy, Debug)]
pub struct EffortFactors {
    /// No reasoning.
    pub none: TokenWeight,
    /// As little as possible.
    pub minimal: TokenWeight,
    /// Little.
    pub low: TokenWeight,
    /// Some.
    pub medium: TokenWeight,
    /// Much.
    pub high: TokenWeight,
    /// Very much.
    pub xhigh: TokenWeight,
    /// As much as possible.
    pub max: TokenWeight,
}

impl EffortFactors {
    /// No stated effort changes what is expected.
    pub const NEUTRAL: Self = Self {
        none: TokenWeight::ONE,
        minimal: TokenWeight::ONE,
        low: TokenWeight::ONE,
        medium: TokenWeight::ONE,
        high: TokenWeight::ONE,
        xhigh: TokenWeight::ONE,
        max: TokenWeight::ONE,
    };
}

/// Weights of the five disjoint buckets.
#[derive(Clone, Copy, Debug)]
pub struct TokenWeights {
    /// Processed input.
    pub input: TokenWeight,
    /// Input read from a cache.
    pub cached_input: TokenWeight,
    /// Input written to a cache.
    pub cache_write: TokenWeight,
    /// Visible output.
    pub output: TokenWeight,
    /// Reasoning output.
    pub reasoning: TokenWeight,
}

/// A model's cost relative to others.
#[derive(Clone, Debug)]
pub struct ModelCost {
    /// Which models, by name after aliases.
    pub matches: Pattern,
    /// How many times the weights its tokens cost.
    pub scale: TokenWeight,
    /// What its tokens cost in money, where that is said.
    pub tariff: Option<Tariff>,
}

/// How turns are given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fairness {
    /// The order among siblings.
    pub algorithm: Algorithm,
    /// When service is charged.
    pub charge: Charge,
}

/// The order among siblings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// Virtual Token Counters: the least served goes next, and idleness banks no credit.
    Vtc,
    /// First come, first served. A baseline: one tenant's backlog delays all.
    Fcfs,
    /// One request each in turn. A baseline: blind to request size.
    RoundRobin,
    /// The least served goes next, idleness banked. A baseline: who was idle may then starve the others.
    LeastCounter,
}

/// When service is charged to the counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Charge {
    /// Input and predicted output at dispatch, made true at the end.
    Predicted,
    /// Input at dispatch, output as it streams.
    Streamed,
    /// All at the end.
    Completion,
}

/// A priority class.
#[derive(Clone, Debug)]
pub struct Class {
    /// Its name, as tenants and headers use it.
    pub name: Arc<str>,
    /// Lower goes first.
    pub rank: u32,
    /// The longest a request of this class may wait for dispatch.
    pub max_wait: Limit<Span>,
    /// The part of the pool's service this class is owed while it has work, whatever its rank.
    pub min_share: Share,
    /// The most of a pool's window that it may have in flight, however idle the others are.
    pub max_share: Limit<Share>,
}

/// What one or more tenants are given.
#[derive(Clone, Debug)]
pub struct TenantRule {
    /// Which tenants.
    pub matches: Pattern,
    /// Their weight.
    pub weight: Weight,
    /// The classes they may use; the first is theirs when they wish for another. Never empty.
    pub classes: Vec<ClassIndex>,
    /// Whether the policy has it. If not it is the last, for whoever the others leave out.
    pub written: bool,
}

/// A pool of serving capacity.
#[derive(Clone, Debug)]
pub struct Pool {
    /// Its name.
    pub name: Arc<str>,
    /// Which models it serves, by name after aliases.
    pub models: Vec<Pattern>,
    /// Model names replaced before anything else; the first that matches decides.
    pub aliases: Vec<Alias>,
    /// Where the reverse proxy sends its requests, scheme and authority and an optional path prefix.
    pub upstream: Option<http::Uri>,
    /// How much may be in flight.
    pub window: Window,
    /// Whether and how the window follows the engine.
    pub adapt: Adapt,
    /// The largest input ever admitted, and the most a request is expected to come to, input and output.
    pub max_request_tokens: Limit<Tokens>,
    /// How much may wait.
    pub queue: QueueCaps,
    /// When its upstream counts as failed; nothing where that is not watched.
    pub breaker: Option<Breaker>,
    /// Where the load of its engines is read, if anywhere.
    pub engine: Option<EngineWatch>,
}

/// Where the load of a pool's engines is read. At least one way is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineWatch {
    /// The pages of metrics of all its engines, one each, no two alike.
    pub metrics: Vec<http::Uri>,
    /// In which form its one engine is asked to report its load in a header; nothing where it is not asked.
    pub orca: Option<Orca>,
    /// How often each page is read.
    pub every: Span,
    /// How old what was read may be before it is unknown.
    pub stale_after: Span,
}

impl EngineWatch {
    /// After how long a page is read for the first time: a part of the interval, by chance, so that gateways started
    /// together, and the pools of one, do not all ask at the same moment.
    #[must_use]
    pub fn first_after(&self, chance: u64) -> Span {
        Span::from_nanos(chance % self.every.as_nanos().saturating_add(1))
    }

    /// After how long it is read again: the interval give or take a tenth.
    #[must_use]
    pub fn next_after(&self, chance: u64) -> Span {
        let tenth = self.every.as_nanos() / 10;
        Span::from_nanos(self.every.as_nanos() - tenth + chance % (2 * tenth + 1))
    }
}

/// The form of a load report in a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Orca {
    /// Names and values.
    Text,
    /// A JSON object.
    Json,
}

/// A model name to be replaced.
#[derive(Clone, Debug)]
pub struct Alias {
    /// Which names.
    pub from: Pattern,
    /// By what.
    pub to: Model,
}

/// How much may be dispatched and unfinished.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// In tokens, each request counted by input plus reserved output for its whole life.
    pub tokens: Limit<Tokens>,
    /// In requests.
    pub requests: Limit<u32>,
}

/// How a window follows the engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Adapt {
    /// Not at all.
    #[default]
    Fixed,
    /// It is found from what the engine shows; the policy's caps bound it.
    Auto,
}

/// How much may wait, at four levels.
#[derive(Clone, Copy, Debug, Default)]
pub struct QueueCaps {
    /// In the whole pool.
    pub pool: QueueCap,
    /// In each class of it.
    pub class: QueueCap,
    /// Of each tenant in each class.
    pub tenant: QueueCap,
    /// Of each session.
    pub session: QueueCap,
}

/// How much may wait at one level, in three units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueCap {
    /// In requests.
    pub requests: Limit<u32>,
    /// In input plus expected output tokens.
    pub tokens: Limit<Tokens>,
    /// In request bytes held in memory.
    pub bytes: Limit<Bytes>,
}

/// Caps on requests in flight at once; the excess waits.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fanout {
    /// Of one session. A request without a session id has no session cap.
    pub per_session: Limit<u32>,
    /// Of one tenant, over all pools and classes.
    pub per_tenant: Limit<u32>,
}

/// What the policy says of one request: where it goes, what it weighs and what it costs.
#[derive(Clone, Debug)]
pub struct Selection {
    /// The pool that serves the model.
    pub pool: PoolIndex,
    /// The model after aliases.
    pub model: Model,
    /// The class granted.
    pub class: ClassIndex,
    /// The tenant's weight.
    pub weight: Weight,
    /// The model's price list in service.
    pub price: Price,
    /// The model's price list in money.
    pub tariff: Tariff,
}

/// Who is calling, as the identity rules found it.
#[derive(Clone, Debug)]
pub struct Caller {
    /// The tenant, verified.
    pub tenant: TenantId,
    /// The session the client says this belongs to.
    pub session: Option<SessionId>,
    /// Which of the session's agents the client says it is.
    pub agent: Agent,
    /// The user below the tenant, if one is named.
    pub user: Option<UserId>,
    /// The task the client says this belongs to.
    pub task: Option<TaskId>,
    /// The class the client wishes for.
    pub wished_class: Option<String>,
}
