//! What would become of a request now: who it would belong to, where it would go, what it would be quoted, and what
//! every gate would say.
//!
//! Takes the very steps a door takes, in its order, with the door's own functions, and stops where the door would
//! refuse. Nothing is queued, charged or remembered.

use bytes::Bytes;
use http::HeaderMap;
use serde::Serialize;

use crate::policy::Policy;
use crate::policy::model::{Caller, Listener, Selection};
use crate::shell::{Ask, Broken, Gate, Quoted};
use crate::units::{self, Limit};

use super::super::answer::Refused;
use super::super::dialect::Dialect;
use super::super::identity::{Identified, NoClaims, Says, below, identify, trail, trusts};
use super::super::proxy::coding::{Coding, Decoded};
use super::super::proxy::metered::{Reading, read};
use super::super::proxy::{metered_in, patience, refused};
use super::decision::{Quote, agent, listener, source};
use super::found::{self, Found, found};
use super::request::Sketch;
use super::words::{self, Advice};

/// What is known of the doors where a request would come in.
#[derive(Clone, Copy, Debug)]
pub struct Doors {
    /// Where the proxy listens.
    pub proxy: std::net::IpAddr,
    /// Where the gRPC server listens.
    pub grpc: std::net::IpAddr,
    /// The largest body that is read.
    pub body_most: units::Bytes,
}

impl Doors {
    fn trust(&self, policy: &Policy, by: Listener) -> bool {
        let bound_to = match by {
            Listener::Proxy => self.proxy,
            Listener::Grpc => self.grpc,
        };
        trusts(&policy.identity.trust, by, bound_to)
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
    weight_key: String,
    streamed: bool,
}

/// How far a request came through the door.
#[derive(Default)]
struct Progress {
    dialect: Option<Dialect>,
    identity: Option<Identity>,
    routing: Option<Routing>,
    quote: Option<Quote>,
    core: Option<Found>,
    key: Option<String>,
}

/// What would become of it now.
///
/// # Errors
/// When the core is broken.
pub fn would(gate: &Gate, doors: &Doors, sketch: &Sketch) -> Result<Would, Broken> {
    let mut progress = Progress::default();
    let outcome = through(gate, doors, sketch, &mut progress)?;
    let Progress { dialect, identity, routing, quote, core, key } = progress;
    let (verdict, reason, says, advice) = match (&outcome, &core) {
        (Err(refused), _) => {
            let said = refused.words();
            let advice = words::by_door(gate.policy(), refused.code(), &said, None);
            ("refused", Some(refused.code()), format!("{said}."), Some(advice))
        }
        (Ok(()), Some(core)) => {
            let advice = core.advice().map(|words| Advice { key, words: words.to_owned() });
            (core.verdict(), core.reason(), core.says().to_owned(), advice)
        }
        (Ok(()), None) => {
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
            listener: listener(sketch.listener),
            method: sketch.method.to_string(),
            path: sketch.path.clone(),
            dialect: dialect.map(Dialect::name),
            body_bytes: sketch.body.len(),
        },
        identity,
        routing,
        quote,
        core,
    })
}

/// Takes a request through the door as far as it comes.
fn through(
    gate: &Gate,
    doors: &Doors,
    sketch: &Sketch,
    progress: &mut Progress,
) -> Result<Result<(), Refused>, Broken> {
    let ask = match ask(gate, doors, sketch, progress) {
        Ok(Some(ask)) => ask,
        Ok(None) => return Ok(Ok(())),
        Err(refused) => return Ok(Err(refused)),
    };
    let quoted = gate.explain(&ask)?;
    let (policy, subject) = (gate.policy(), ask.subject());
    let patience = found::Patience { dispatch: ask.patience.dispatch, answer: ask.patience.answer };
    progress.quote = Some(quote(&quoted));
    progress.core = Some(found(policy, &subject, &quoted.explained, patience));
    progress.key = found::key(policy, &subject, &quoted.explained, patience);
    Ok(Ok(()))
}

fn quote(quoted: &Quoted) -> Quote {
    let Quoted { expected, output_cap, explained } = quoted;
    Quote::new(*expected, output_cap.cap(), explained.cost)
}

/// What the core would be asked; nothing where the request passes unmetered.
fn ask(gate: &Gate, doors: &Doors, sketch: &Sketch, progress: &mut Progress) -> Result<Option<Ask>, Refused> {
    let Sketch { method, path, headers, body, .. } = sketch;
    let policy = gate.policy();
    let dialect = metered_in(policy, method, path, headers, body.is_empty())?;
    progress.dialect = dialect;
    let (identity, identified) = identity(policy, doors, sketch);
    progress.identity = Some(identity);
    let Identified { caller, .. } = identified?;
    let Some(dialect) = dialect else { return Ok(None) };
    let patience = patience::read(headers)?;
    let body = plain(headers, body, doors.body_most)?;
    let Reading { parsed, selection, input, .. } = read(policy, dialect, &caller, &body)?;
    progress.routing = Some(routing(policy, &caller, &parsed.call.model, &selection, parsed.call.streamed));
    let (decision, arrived) = (gate.no_decision(), gate.clock().now());
    let (dialect, call) = (dialect.name(), parsed.call);
    Ok(Some(Ask { decision, dialect, arrived, call, input, caller, selection, patience }))
}

/// The body as it would be read, decoded.
fn plain(headers: &HeaderMap, body: &Bytes, most: units::Bytes) -> Result<Bytes, Refused> {
    let coding = Coding::of(headers)?;
    if !Limit::AtMost(most.get()).allows(body.len() as u64) {
        return Err(Refused::BodyTooLarge { most });
    }
    if coding == Coding::Identity {
        return Ok(body.clone());
    }
    match coding.decode(body.clone(), usize::try_from(most.get()).unwrap_or(usize::MAX)) {
        Decoded::Plain(bytes) => Ok(bytes),
        Decoded::TooLarge => Err(Refused::BodyTooLarge { most }),
        Decoded::Broken(why) => Err(Refused::Malformed(format!("the body is not encoded as its header says: {why}"))),
    }
}

/// Whose it would be, and what each rule says to that.
fn identity(policy: &Policy, doors: &Doors, sketch: &Sketch) -> (Identity, Result<Identified, Refused>) {
    let trusted = doors.trust(policy, sketch.listener);
    let mut rules: Vec<Rule> = trail(&policy.identity, trusted, &sketch.headers, &NoClaims)
        .map(|(index, says)| Rule {
            rule: format!("identity.tenant[{index}]"),
            by: policy.identity.tenant.get(index).map_or_else(String::new, source),
            says: match says {
                Ok(Says::Tenant(tenant)) => format!("the tenant is {tenant:?}"),
                Ok(Says::TenantByKey(tenant, Some(name))) => format!("the tenant is {tenant:?}, by its key {name:?}"),
                Ok(Says::TenantByKey(tenant, None)) => format!("the tenant is {tenant:?}"),
                Ok(Says::NoKey) => "no key is shown (Authorization: Bearer, or x-api-key)".into(),
                Ok(Says::NoHeader) => "the header is not sent".into(),
                Ok(Says::NotTrusted) => {
                    format!("headers are not believed on the {} listener (identity.trust)", listener(sketch.listener))
                }
                Ok(Says::NoClaim) => "no proxy in front vouches for it".into(),
                Err(error) => error.to_string(),
            },
        })
        .collect();
    let mut identified = identify(&policy.identity, trusted, &sketch.headers);
    if let Some(tenant) = &sketch.tenant {
        let rule = Rule {
            rule: "tenant".into(),
            by: "whoever asks for this explanation".into(),
            says: format!("the tenant is taken to be {tenant:?}"),
        };
        rules.push(rule);
        identified = below(&policy.identity, tenant.clone(), &sketch.headers);
    }
    let caller = identified.as_ref().ok().map(|identified| &identified.caller);
    let identity = Identity {
        tenant: caller.map(|caller| caller.tenant.to_string()),
        session: caller.and_then(|caller| caller.session.as_ref()).map(ToString::to_string),
        agent: caller.map_or("lead", |caller| agent(caller.agent)),
        wished_class: caller.and_then(|caller| caller.wished_class.clone()),
        headers_are_believed: trusted,
        rules,
    };
    (identity, identified.map_err(refused))
}

fn routing(policy: &Policy, caller: &Caller, asked: &str, selection: &Selection, streamed: bool) -> Routing {
    Routing {
        model_asked: asked.to_owned(),
        model: selection.model.to_string(),
        pool: policy.pools[selection.pool.index()].name.to_string(),
        pool_key: format!("pools[{}]", selection.pool.get()),
        class: policy.classes[selection.class.index()].name.to_string(),
        class_because: class_because(policy, caller, selection),
        weight: selection.weight.as_f64(),
        weight_key: words::weight_key(policy, &caller.tenant),
        streamed,
    }
}

/// Why a request competes in its class.
fn class_because(policy: &Policy, caller: &Caller, selection: &Selection) -> String {
    let rule = words::tenant_key(policy, &caller.tenant);
    let granted = &*policy.classes[selection.class.index()].name;
    let fallback = if selection.class == policy.default_class {
        "default_class".to_owned()
    } else {
        format!("the first of {rule}.classes")
    };
    match caller.wished_class.as_deref() {
        None => format!("{fallback}, since it wishes for none"),
        Some(wish) if wish == granted => format!("its wish, which {rule}.classes grants"),
        Some(wish) if policy.classes.iter().any(|class| *class.name == *wish) => {
            format!("{fallback}, since {rule}.classes does not grant its wish, {wish:?}")
        }
        Some(wish) => format!("{fallback}, since its wish, {wish:?}, is no class of this policy"),
    }
}
