//! What would become of a request now: who it would belong to, where it would go, what it would be quoted, and what
//! every gate would say.
//!
//! Takes the very steps a door takes, in its order, with the door's own functions, and stops where the door would
//! refuse. Nothing is queued, charged or remembered.

use serde::Serialize;

use crate::policy::Policy;
use crate::policy::model::{Caller, Listener, Selection};
use crate::shell::{Ask, Broken, Gate};
use crate::units;

use super::super::answer::Refused;
use super::super::dialect::Dialect;
use super::super::exchange::{Arrival, Entered, Prepared, RequestHead, Toll, decode_here, enter, enter_as, read};
use super::super::identity::{IdentityError, NoClaims, Says, trail, trusts};
use super::decision::{Quote, agent, listener, source};
use super::found::{self, Found, found};
use super::request::Sketch;
use super::words::{self, Advice};

/// What is known of the doors where a request would come in.
#[derive(Clone, Copy, Debug)]
pub struct Doors {
    /// Where the proxy listens, if it does.
    pub proxy: Option<std::net::IpAddr>,
    /// Where the gRPC server listens.
    pub grpc: std::net::IpAddr,
    /// The largest body that is read.
    pub body_most: units::Bytes,
}

impl Doors {
    /// By which listener a request would come: the proxy where there is one, unless it is said otherwise.
    ///
    /// # Errors
    /// When there is no such listener.
    fn listener(&self, sketch: &Sketch) -> Result<Listener, Unexplained> {
        match (sketch.listener, self.proxy) {
            (Some(Listener::Proxy), None) => Err(Unexplained::NoProxy),
            (Some(named), _) => Ok(named),
            (None, Some(_)) => Ok(Listener::Proxy),
            (None, None) => Ok(Listener::Grpc),
        }
    }

    /// Whether headers may name the tenant there.
    #[must_use]
    pub fn trust(&self, policy: &Policy, by: Listener) -> bool {
        let bound_to = match by {
            Listener::Proxy => self.proxy,
            Listener::Grpc => Some(self.grpc),
            // What can be asked about is sent to one of the doors.
            Listener::Layer => None,
        };
        bound_to.is_some_and(|bound_to| trusts(&policy.identity.trust, by, bound_to))
    }
}

/// What would become of a request.
#[derive(Debug, Serialize)]
pub struct Would {
    /// `dispatched`, `queued`, `refused`, or `passed` for what is not metered.
    verdict: &'static str,
    reason: Option<&'static str>,
    /// Why, or what would happen, in a sentence.
    says: String,
    what_would_let_it_in: Option<String>,
    /// The policy's key that holds the limit.
    key: Option<String>,
    request: Sent,
    identity: Option<Identity>,
    routing: Option<Routing>,
    quote: Option<Quote>,
    core: Option<Found>,
}

#[derive(Debug, Serialize)]
struct Sent {
    listener: &'static str,
    method: String,
    path: String,
    dialect: Option<&'static str>,
    body_bytes: usize,
}

#[derive(Debug, Serialize)]
struct Identity {
    tenant: Option<String>,
    session: Option<String>,
    agent: &'static str,
    wished_class: Option<String>,
    /// Whether headers of that listener may name the tenant.
    headers_are_believed: bool,
    /// What each rule says, up to the one that decides.
    rules: Vec<Rule>,
}

#[derive(Debug, Serialize)]
struct Rule {
    rule: String,
    by: String,
    says: String,
}

#[derive(Debug, Serialize)]
struct Routing {
    model_asked: String,
    model: String,
    pool: String,
    pool_key: String,
    class: String,
    class_because: String,
    weight: f64,
    /// The policy's key that gives it; nothing where no rule is for the tenant.
    weight_key: Option<String>,
    streamed: bool,
    /// How long the client says it waits for dispatch, and for something of the answer.
    waits_for_dispatch_s: Option<f64>,
    waits_for_answer_s: Option<f64>,
}

/// What was found out on the way through the door.
#[derive(Default)]
struct Progress {
    identity: Option<Identity>,
    routing: Option<Routing>,
    quote: Option<Quote>,
    core: Option<(Found, Option<String>)>,
}

/// Why nothing can be said of a request.
#[derive(Debug, thiserror::Error)]
pub enum Unexplained {
    /// It names a listener that is not there.
    #[error("there is no proxy here (--proxy off): ask about \"listener\": \"grpc\"")]
    NoProxy,
    /// The core is broken.
    #[error(transparent)]
    Broken(#[from] Broken),
}

/// What would become of it now.
///
/// # Errors
/// When it names a listener that is not there, or the core is broken.
pub fn would(gate: &Gate, doors: &Doors, sketch: &Sketch) -> Result<Would, Unexplained> {
    let mut progress = Progress::default();
    let by = doors.listener(sketch)?;
    let stopped = match through(gate, doors, sketch, by, &mut progress) {
        Ok(Some(prepared)) => {
            examine(gate, prepared.ask(), &mut progress)?;
            None
        }
        Ok(None) => None,
        Err(refused) => Some(refused),
    };
    let Progress { identity, routing, quote, core } = progress;
    let (verdict, reason, says, advice) = match (&stopped, &core) {
        (Some(refused), _) => {
            let said = refused.words();
            let advice = words::by_door(gate.policy(), refused.code(), &said, None);
            ("refused", Some(refused.code()), format!("{said}."), Some(advice))
        }
        (None, Some((core, key))) => {
            let advice = core.advice().map(|words| Advice { key: key.clone(), words: words.to_owned() });
            (core.verdict(), core.reason(), core.says().to_owned(), advice)
        }
        (None, None) => {
            ("passed", None, "it would pass unmetered: it costs nothing and waits for nobody.".into(), None)
        }
    };
    Ok(Would {
        verdict,
        reason,
        says,
        key: advice.as_ref().and_then(|advice| advice.key.clone()),
        what_would_let_it_in: advice.map(|advice| advice.words),
        request: Sent {
            listener: listener(by),
            method: sketch.method.to_string(),
            path: sketch.path.clone(),
            dialect: Dialect::of(&sketch.method, &sketch.path).map(Dialect::name),
            body_bytes: sketch.body.len(),
        },
        identity,
        routing,
        quote,
        core: core.map(|(core, _)| core),
    })
}

/// Takes a request through the door; nothing where it passes unmetered.
fn through(
    gate: &Gate,
    doors: &Doors,
    sketch: &Sketch,
    by: Listener,
    progress: &mut Progress,
) -> Result<Option<Prepared>, Refused> {
    let policy = gate.policy();
    let Sketch { method, path, headers, body, .. } = sketch;
    let trusted = doors.trust(policy, by);
    let head = RequestHead { method, path, headers, bodiless: body.is_empty() };
    let entered = match &sketch.tenant {
        Some(tenant) => enter_as(policy, head, tenant.clone()),
        None => enter(policy, trusted, head, &NoClaims),
    };
    if !matches!(entered, Err(Refused::Unsupported(_))) {
        let caller = entered.as_ref().ok().map(|entered| &entered.identified.caller);
        progress.identity = Some(identity(policy, (by, trusted), sketch, caller));
    }
    let Entered { identified, coding, toll } = entered?;
    let Toll::Metered { dialect, patience } = toll else { return Ok(None) };
    let most = doors.body_most;
    if body.len() as u64 > most.get() {
        return Err(Refused::BodyTooLarge { most });
    }
    let body = decode_here(body.clone(), coding, most)?;
    let (decision, arrived, caller) = (gate.no_decision(), gate.clock().now(), identified.caller);
    let (prepared, _onward) =
        read(policy, Arrival { decision, arrived, dialect, path: path.as_str().into(), patience, caller }, &body)?;
    progress.routing = Some(routing(policy, prepared.ask()));
    Ok(Some(prepared))
}

/// Has it quoted, and every gate asked.
fn examine(gate: &Gate, ask: &Ask, progress: &mut Progress) -> Result<(), Broken> {
    let quoted = gate.explain(ask)?;
    let (policy, subject) = (gate.policy(), ask.subject());
    let patience = found::Patience { dispatch: ask.patience.dispatch, answer: ask.patience.answer };
    let key = found::key(policy, &subject, &quoted.explained, patience);
    progress.quote = Some(Quote::new(&quoted));
    progress.core = Some((found(policy, &subject, &quoted.explained, patience), key));
    Ok(())
}

/// Whose it would be, and what each rule says to that.
fn identity(policy: &Policy, (by, trusted): (Listener, bool), sketch: &Sketch, caller: Option<&Caller>) -> Identity {
    let mut rules: Vec<Rule> = trail(&policy.identity, trusted, &sketch.headers, &NoClaims)
        .map(|(index, says)| Rule {
            rule: format!("identity.tenant[{index}]"),
            by: policy.identity.tenant.get(index).map_or_else(String::new, source),
            says: said(says, by),
        })
        .collect();
    if let Some(tenant) = &sketch.tenant {
        rules.push(Rule {
            rule: "tenant".into(),
            by: "whoever asks for this explanation".into(),
            says: format!("the tenant is taken to be {tenant:?}"),
        });
    }
    Identity {
        tenant: caller.map(|caller| caller.tenant.to_string()),
        session: caller.and_then(|caller| caller.session.as_ref()).map(ToString::to_string),
        agent: caller.map_or("lead", |caller| agent(caller.agent)),
        wished_class: caller.and_then(|caller| caller.wished_class.clone()),
        headers_are_believed: trusted,
        rules,
    }
}

/// What a rule says of a caller, in words.
fn said(says: Result<Says, IdentityError>, by: Listener) -> String {
    match says {
        Ok(Says::TenantByKey(tenant, Some(name))) => format!("the tenant is {tenant:?}, by its key {name:?}"),
        Ok(Says::Tenant(tenant) | Says::TenantByKey(tenant, None)) => format!("the tenant is {tenant:?}"),
        Ok(Says::NoKey) => "no key is shown (Authorization: Bearer, x-api-key or x-goog-api-key)".into(),
        Ok(Says::NoHeader) => "the header is not sent".into(),
        Ok(Says::NotTrusted) => format!("headers are not believed on the {} listener (identity.trust)", listener(by)),
        Ok(Says::NoClaim) => "no proxy in front vouches for it".into(),
        Err(error) => error.to_string(),
    }
}

fn routing(policy: &Policy, ask: &Ask) -> Routing {
    let Ask { selection, caller, call, patience, .. } = ask;
    Routing {
        model_asked: call.model.clone(),
        model: selection.model.to_string(),
        pool: policy.pools[selection.pool.index()].name.to_string(),
        pool_key: format!("pools[{}]", selection.pool.get()),
        class: policy.classes[selection.class.index()].name.to_string(),
        class_because: class_because(policy, caller, selection),
        weight: selection.weight.as_f64(),
        weight_key: words::weight_key(policy, &caller.tenant),
        streamed: call.streamed,
        waits_for_dispatch_s: patience.dispatch.map(units::Span::as_secs_f64),
        waits_for_answer_s: patience.answer.map(units::Span::as_secs_f64),
    }
}

/// Why a request competes in its class.
fn class_because(policy: &Policy, caller: &Caller, selection: &Selection) -> String {
    let rule = words::tenant_key(policy, &caller.tenant);
    let grants = rule
        .as_ref()
        .map_or("what a tenant without a rule of its own may use".into(), |rule| format!("{rule}.classes"));
    let granted = &*policy.classes[selection.class.index()].name;
    let fallback = if selection.class == policy.default_class {
        "default_class".to_owned()
    } else {
        format!("the first of {grants}")
    };
    match caller.wished_class.as_deref() {
        None => format!("{fallback}, since it wishes for none"),
        Some(wish) if wish == granted => format!("its wish, which {grants} includes"),
        Some(wish) if policy.classes.iter().any(|class| *class.name == *wish) => {
            format!("{fallback}, since {grants} does not include its wish, {wish:?}")
        }
        Some(wish) => format!("{fallback}, since its wish, {wish:?}, is no class of this policy"),
    }
}
