//! Finds out who is calling: verified, or nobody.
//!
//! The policy's rules are tried in order and the first that yields a tenant decides. A header names a tenant only on
//! a trusted listener; metadata comes from Envoy itself, which is the only one that speaks to that listener. A key that is presented and not known is refused at once and never passed to the next rule,
//! or a typing mistake would turn a tenant into the anonymous one. Session and class are what the client says; they
//! only ever divide the tenant's own share. Keys are known by their SHA-256 alone.

use http::HeaderMap;
use http::header::{AUTHORIZATION, HeaderName};
use sha2::{Digest, Sha256};

use crate::policy::model::{Caller, Identity, Listener, MetadataKey, NameSource, SessionSource, TenantSource, Trust};
use crate::units::{Agent, SessionId, TaskId, TenantId, UserId};

/// The longest name a client may give anything.
pub const MAX_NAME: usize = 256;

const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");
const X_GOOG_API_KEY: HeaderName = HeaderName::from_static("x-goog-api-key");

/// Who is calling, and how that was found out.
#[derive(Clone, Debug)]
pub struct Identified {
    /// Who.
    pub caller: Caller,
    /// Whether the caller showed one of our keys, which then must not travel on.
    pub by_key: bool,
    /// Which of the policy's rules for the tenant decided, counted from zero.
    pub rule: usize,
    /// What the owner of the key calls it.
    pub key_name: Option<Box<str>>,
}

/// What one of the policy's rules says of a caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Says {
    /// This is its tenant.
    Tenant(TenantId),
    /// This is its tenant, by the key it shows, and what the key's owner calls it.
    TenantByKey(TenantId, Option<Box<str>>),
    /// Nothing: the caller shows no key.
    NoKey,
    /// Nothing: the caller does not send the header, or sends nothing in it.
    NoHeader,
    /// Nothing: the listener is not one whose headers are believed.
    NotTrusted,
    /// Nothing: no proxy before us vouches for it.
    NoClaim,
}

/// Why nobody is calling.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// A key was presented that is not known.
    #[error("the API key is not known to this gateway")]
    UnknownKey,
    /// No rule yielded a tenant; what would have.
    #[error("no tenant: {0}")]
    Unidentified(String),
    /// A header cannot be read as a name.
    #[error("{0}")]
    Malformed(String),
}

/// What a proxy before us has verified about the caller, and vouches for.
pub trait Claims {
    /// The claim at a place, if there is one.
    fn claim(&self, key: &MetadataKey) -> Option<Claim<'_>>;
}

/// One thing vouched for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim<'a> {
    /// A text, which may be a name.
    Text(&'a str),
    /// Something else, which is not.
    Other,
}

/// Nothing is vouched for: the client speaks to us directly.
#[derive(Clone, Copy, Debug)]
pub struct NoClaims;

impl Claims for NoClaims {
    fn claim(&self, _key: &MetadataKey) -> Option<Claim<'_>> {
        None
    }
}

/// Whether headers on a listener bound to this address may name the tenant.
#[must_use]
pub fn trusts(trust: &Trust, listener: Listener, bound_to: std::net::IpAddr) -> bool {
    match trust {
        Trust::Loopback => bound_to.is_loopback(),
        Trust::Listeners(named) => named.contains(&listener),
    }
}

/// Applies the identity rules to a request's headers.
///
/// # Errors
/// When no rule yields a tenant, a key is unknown, or a header is no name.
pub fn identify(rules: &Identity, trusted: bool, headers: &HeaderMap) -> Result<Identified, IdentityError> {
    identify_vouched(rules, trusted, headers, &NoClaims)
}

/// Applies the identity rules to a request's headers and to what the proxy before us vouches for.
///
/// # Errors
/// When no rule yields a tenant, a key is unknown, or a header or claim is no name.
pub fn identify_vouched(
    rules: &Identity,
    trusted: bool,
    headers: &HeaderMap,
    claims: &impl Claims,
) -> Result<Identified, IdentityError> {
    let (rule, says) = trail(rules, trusted, headers, claims).last().unwrap_or((0, Ok(Says::NoClaim)));
    let (tenant, by_key, key_name) = match says? {
        Says::Tenant(tenant) => (tenant, false, None),
        Says::TenantByKey(tenant, name) => (tenant, true, name),
        Says::NoKey | Says::NoHeader | Says::NotTrusted | Says::NoClaim => {
            return Err(IdentityError::Unidentified(wanted(rules, trusted)));
        }
    };
    Ok(Identified { by_key, rule, key_name, ..below(rules, tenant, headers, claims)? })
}

/// A caller of this tenant, with the session, user, task and wish that its headers tell, or that are vouched for.
///
/// # Errors
/// When one of them is no name.
pub fn below(
    rules: &Identity,
    tenant: TenantId,
    headers: &HeaderMap,
    claims: &impl Claims,
) -> Result<Identified, IdentityError> {
    let (session, agent) = session(headers, &rules.session)?;
    let user = first_of(&rules.user, headers, claims)?.map(UserId::from);
    let task = first_of(&rules.task, headers, claims)?.map(TaskId::from);
    let wished_class = first_name(headers, &rules.class)?.map(str::to_owned);
    let caller = Caller { tenant, session, agent, user, task, wished_class };
    Ok(Identified { caller, by_key: false, rule: 0, key_name: None })
}

/// What the policy's rules for the tenant say, one after the other, up to the one that decides or refuses.
pub fn trail(
    rules: &Identity,
    trusted: bool,
    headers: &HeaderMap,
    claims: &impl Claims,
) -> impl Iterator<Item = (usize, Result<Says, IdentityError>)> {
    let mut decided = false;
    rules.tenant.iter().enumerate().map_while(move |(index, rule)| {
        let says = (!decided).then(|| ask(rule, trusted, headers, claims))?;
        decided = matches!(says, Ok(Says::Tenant(_) | Says::TenantByKey(..)) | Err(_));
        Some((index, says))
    })
}

fn ask(rule: &TenantSource, trusted: bool, headers: &HeaderMap, claims: &impl Claims) -> Result<Says, IdentityError> {
    Ok(match rule {
        TenantSource::Metadata(key) => {
            let claim = claims.claim(key).map(|claim| claimed(key, claim)).transpose()?.flatten();
            claim.map_or(Says::NoClaim, |tenant| Says::Tenant(TenantId::from(tenant)))
        }
        TenantSource::ApiKey(ring) => match presented_key(headers)? {
            Some(key) => {
                let key = ring.lookup(&Sha256::digest(key).into()).ok_or(IdentityError::UnknownKey)?;
                Says::TenantByKey(key.tenant.clone(), key.name.as_deref().map(Box::from))
            }
            None => Says::NoKey,
        },
        TenantSource::Header(name) if trusted => {
            name_in(headers, name)?.map_or(Says::NoHeader, |tenant| Says::Tenant(TenantId::from(tenant)))
        }
        TenantSource::Header(_) => Says::NotTrusted,
        TenantSource::Fallback(tenant) => Says::Tenant(tenant.clone()),
    })
}

/// The session that the first rule with a header names, and which of its agents speaks.
///
/// A sub-agent either sends the id of its session and something that marks it, or an id of its own and its
/// session's as the parent's; both come out the same.
fn session(headers: &HeaderMap, sources: &[SessionSource]) -> Result<(Option<SessionId>, Agent), IdentityError> {
    for SessionSource { header, sub_agent, parent } in sources {
        let Some(own) = name_in(headers, header)? else { continue };
        let other = |header: &Option<HeaderName>| header.as_ref().map(|name| name_in(headers, name)).transpose();
        let parent = other(parent)?.flatten().filter(|parent| *parent != own);
        let marked = other(sub_agent)?.flatten().is_some();
        let agent = if marked || parent.is_some() { Agent::Sub } else { Agent::Lead };
        return Ok((Some(SessionId::from(parent.unwrap_or(own))), agent));
    }
    Ok((None, Agent::Lead))
}

/// What would have identified the caller, in words.
fn wanted(rules: &Identity, trusted: bool) -> String {
    let ways: Vec<String> = rules
        .tenant
        .iter()
        .filter_map(|rule| match rule {
            TenantSource::ApiKey(_) => Some("an API key (Authorization: Bearer, x-api-key or x-goog-api-key)".into()),
            TenantSource::Header(name) if trusted => Some(format!("the header {name}")),
            TenantSource::Header(name) => Some(format!("the header {name}, but only on a trusted listener")),
            TenantSource::Metadata(key) => Some(format!("what Envoy puts into its metadata as {key}")),
            TenantSource::Fallback(_) => None,
        })
        .collect();
    if ways.is_empty() { "the policy has no identity rule".into() } else { format!("send {}", ways.join(", or ")) }
}

/// The key the client shows, if it shows one.
fn presented_key(headers: &HeaderMap) -> Result<Option<&[u8]>, IdentityError> {
    let bearer = single(headers, &AUTHORIZATION)?.map(http::HeaderValue::as_bytes).and_then(|value| {
        let (scheme, key) = value.split_at_checked(7)?;
        scheme.eq_ignore_ascii_case(b"Bearer ").then(|| key.trim_ascii())
    });
    let key = match bearer {
        Some(key) => Some(key),
        None => {
            let other = match single(headers, &X_API_KEY)? {
                Some(value) => Some(value),
                None => single(headers, &X_GOOG_API_KEY)?,
            };
            other.map(|value| value.as_bytes().trim_ascii())
        }
    };
    Ok(key.filter(|key| !key.is_empty()))
}

fn first_name<'a>(headers: &'a HeaderMap, names: &[HeaderName]) -> Result<Option<&'a str>, IdentityError> {
    names.iter().find_map(|name| name_in(headers, name).transpose()).transpose()
}

fn first_of<'a>(
    sources: &[NameSource],
    headers: &'a HeaderMap,
    claims: &'a impl Claims,
) -> Result<Option<&'a str>, IdentityError> {
    let name = |source: &NameSource| match source {
        NameSource::Header(header) => name_in(headers, header),
        NameSource::Metadata(key) => claims.claim(key).map_or(Ok(None), |claim| claimed(key, claim)),
    };
    sources.iter().find_map(|source| name(source).transpose()).transpose()
}

/// The name a header gives; `None` when it is absent or empty.
fn name_in<'a>(headers: &'a HeaderMap, header: &HeaderName) -> Result<Option<&'a str>, IdentityError> {
    let Some(value) = single(headers, header)? else { return Ok(None) };
    readable(std::str::from_utf8(value.as_bytes()).ok(), &format_args!("the header {header}"))
}

/// The name a claim gives; `None` when it is empty.
fn claimed<'a>(key: &MetadataKey, claim: Claim<'a>) -> Result<Option<&'a str>, IdentityError> {
    let text = match claim {
        Claim::Text(text) => Some(text),
        Claim::Other => None,
    };
    readable(text, &format_args!("the metadata {key}"))
}

fn readable<'a>(text: Option<&'a str>, whose: &std::fmt::Arguments<'_>) -> Result<Option<&'a str>, IdentityError> {
    let name = text
        .filter(|name| !name.chars().any(char::is_control))
        .ok_or_else(|| IdentityError::Malformed(format!("{whose} must be plain UTF-8 text")))?
        .trim();
    if name.len() > MAX_NAME {
        let length = name.len();
        let what = format!("{whose} must have at most {MAX_NAME} bytes, not {length}");
        return Err(IdentityError::Malformed(what));
    }
    Ok(Some(name).filter(|name| !name.is_empty()))
}

/// A header's one value. Given twice it is refused: another hop might believe the other one.
fn single<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a http::HeaderValue>, IdentityError> {
    let mut values = headers.get_all(name).iter();
    let first = values.next();
    if values.next().is_some() {
        return Err(IdentityError::Malformed(format!("the header {name} is given more than once")));
    }
    Ok(first)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use http::{HeaderMap, HeaderName, HeaderValue};
    use sha2::{Digest, Sha256};

    use super::{IdentityError, identify};
    use crate::policy::model::{ApiKey, Identity, KeyRing, NameSource, NotGranted, SessionSource, TenantSource, Trust};
    use crate::units::{Agent, TenantId};

    const TENANT: HeaderName = HeaderName::from_static("x-tenant-id");

    fn rules(fallback: bool) -> Identity {
        let key = ApiKey { sha256: Sha256::digest(b"sk-good").into(), tenant: TenantId::from("acme"), name: None };
        let mut tenant =
            vec![TenantSource::ApiKey(Arc::new(KeyRing { keys: vec![key] })), TenantSource::Header(TENANT)];
        tenant.extend(fallback.then(|| TenantSource::Fallback(TenantId::from("anonymous"))));
        Identity {
            tenant,
            trust: Trust::Loopback,
            session: vec![
                source("x-claude-code-session-id", Some("x-claude-code-agent-id"), None),
                source("session-id", None, Some("x-parent-session-id")),
            ],
            user: vec![NameSource::Header(HeaderName::from_static("x-user-id"))],
            task: Vec::new(),
            class: vec![HeaderName::from_static("x-priority")],
            class_not_granted: NotGranted::UseDefault,
        }
    }

    fn source(id: &'static str, sub_agent: Option<&'static str>, parent: Option<&'static str>) -> SessionSource {
        let name = HeaderName::from_static;
        SessionSource { header: name(id), sub_agent: sub_agent.map(name), parent: parent.map(name) }
    }

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let value = |text: &str| HeaderValue::from_bytes(text.as_bytes()).expect("a valid value");
        pairs.iter().map(|(name, text)| (HeaderName::from_static(name), value(text))).collect()
    }

    fn tenant(fallback: bool, trusted: bool, pairs: &[(&'static str, &str)]) -> Result<String, IdentityError> {
        let identified = identify(&rules(fallback), trusted, &headers(pairs))?;
        Ok(identified.caller.tenant.as_str().to_owned())
    }

    #[test]
    fn the_first_rule_that_yields_a_tenant_decides() {
        let both = [("authorization", "Bearer sk-good"), ("x-tenant-id", "globex")];
        assert_eq!(tenant(true, true, &both), Ok("acme".into()));
        assert_eq!(tenant(true, true, &[("x-api-key", "sk-good")]), Ok("acme".into()));
        assert_eq!(tenant(true, true, &[("x-goog-api-key", "sk-good")]), Ok("acme".into()));
        assert_eq!(tenant(true, true, &[("authorization", "bearer  sk-good ")]), Ok("acme".into()));
        assert_eq!(tenant(true, true, &both[1..]), Ok("globex".into()));
        assert_eq!(tenant(true, true, &[]), Ok("anonymous".into()));
        assert_eq!(tenant(true, true, &[("x-tenant-id", "  ")]), Ok("anonymous".into()));
    }

    #[test]
    fn a_header_names_nobody_on_a_listener_that_is_not_trusted() {
        assert_eq!(tenant(true, false, &[("x-tenant-id", "globex")]), Ok("anonymous".into()));
        let error = tenant(false, false, &[("x-tenant-id", "globex")]).expect_err("nobody");
        assert!(error.to_string().contains("x-tenant-id, but only on a trusted listener"), "{error}");
    }

    #[test]
    fn an_unknown_key_is_refused_and_never_falls_through() {
        let wrong = [("authorization", "Bearer sk-bad"), ("x-tenant-id", "globex")];
        assert_eq!(tenant(true, true, &wrong), Err(IdentityError::UnknownKey));
        // Another scheme is not one of our keys, and says nothing.
        assert_eq!(tenant(true, true, &[("authorization", "Basic abc")]), Ok("anonymous".into()));
    }

    #[test]
    fn session_and_class_are_what_the_client_says() {
        let identified = identify(&rules(true), true, &headers(&[("session-id", "s1"), ("x-priority", "batch")]));
        let caller = identified.expect("anonymous").caller;
        assert_eq!(caller.session.as_ref().map(crate::units::SessionId::as_str), Some("s1"));
        assert_eq!(caller.wished_class.as_deref(), Some("batch"));
    }

    #[test]
    fn sub_agents_belong_to_the_session_that_started_them() {
        let who = |pairs: &[(&'static str, &str)]| {
            let caller = identify(&rules(true), true, &headers(pairs)).expect("anonymous").caller;
            (caller.session.map(|session| session.as_str().to_owned()), caller.agent)
        };
        let session = |id: &str| Some(id.to_owned());
        let (claude, agent) = ("x-claude-code-session-id", "x-claude-code-agent-id");
        assert_eq!(who(&[]), (None, Agent::Lead));
        assert_eq!(who(&[(claude, "s1")]), (session("s1"), Agent::Lead));
        assert_eq!(who(&[(claude, "s1"), (agent, "a7")]), (session("s1"), Agent::Sub));
        assert_eq!(who(&[(claude, "s1"), (agent, " ")]), (session("s1"), Agent::Lead), "an empty mark is none");
        assert_eq!(who(&[(agent, "a7")]), (None, Agent::Lead), "nobody's sub-agent");
        let parent = "x-parent-session-id";
        assert_eq!(who(&[("session-id", "child"), (parent, "root")]), (session("root"), Agent::Sub));
        assert_eq!(who(&[("session-id", "root"), (parent, "root")]), (session("root"), Agent::Lead));
        assert_eq!(who(&[(parent, "root")]), (None, Agent::Lead), "a parent without a child says nothing");
        // The first rule that names a session decides about its agents too.
        assert_eq!(who(&[(claude, "s1"), ("session-id", "x"), (parent, "y")]), (session("s1"), Agent::Lead));
    }

    #[test]
    fn names_are_short_plain_and_given_once() {
        let long = "x".repeat(257);
        for pairs in [
            vec![("x-tenant-id", long.as_str())],
            vec![("session-id", long.as_str())],
            vec![("x-priority", "a\tb")],
            vec![("x-tenant-id", "a"), ("x-tenant-id", "b")],
            vec![("authorization", "Bearer sk-good"), ("authorization", "Bearer sk-bad")],
        ] {
            assert!(matches!(tenant(true, true, &pairs), Err(IdentityError::Malformed(_))), "{pairs:?}");
        }
        let latin = HeaderMap::from_iter([(TENANT, HeaderValue::from_bytes(b"caf\xe9").expect("a legal value"))]);
        assert!(matches!(identify(&rules(true), true, &latin), Err(IdentityError::Malformed(_))));
    }
}
