//! From descriptors to hits: which of the policy's limits each concerns, whose use it is, and how much.
//!
//! A rule fits a descriptor that has exactly its entries, in any order; all rules that fit count. *Bounds:* so many
//! descriptors and entries, names as long as elsewhere, hits of a call as many as fit those.

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;

use crate::admission::{Hit, HitKind, Owner};
use crate::policy::Policy;
use crate::policy::model::{HitDomain, HitEntry, HitRule, HitValue, HitsAre, Named, Per, Unmatched};
use crate::units::{Amount, ClassIndex, Model, PoolIndex, SessionId, TaskId, TenantId, UserId};

use super::super::identity::MAX_NAME;

/// The most descriptors of one call.
const MOST_DESCRIPTORS: usize = 64;
/// The most entries of one descriptor.
const MOST_ENTRIES: usize = 32;
/// The most hits one descriptor adds: what a limit's own amount may be.
const MOST_HITS: u64 = 1_000_000_000_000_000;

/// What a call asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// Each descriptor's hits, in order; none where it concerns no limit.
    pub descriptors: Vec<Vec<Hit>>,
}

/// Why a call is an error: what is not understood, and how to put it right.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NotUnderstood(pub String);

impl Asked {
    /// All hits, in order.
    pub fn hits(&self) -> impl Iterator<Item = &Hit> {
        self.descriptors.iter().flatten()
    }
}

/// Reads a call.
///
/// # Errors
/// When it names a domain, descriptor, class or pool that the policy does not have, brings a limit of its own, or is larger
/// than is read.
pub fn asked(policy: &Policy, request: &RateLimitRequest) -> Result<Asked, NotUnderstood> {
    let RateLimitRequest { domain: name, descriptors, hits_addend } = request;
    let domain = policy.rate_limit.iter().find(|domain| *domain.name == **name).ok_or_else(|| {
        let known: Vec<&str> = policy.rate_limit.iter().map(|domain| &*domain.name).collect();
        let known = if known.is_empty() { "none".into() } else { known.join(", ") };
        NotUnderstood(format!(
            "the policy's rate_limit has no domain {:?}; it has: {known}",
            name.chars().take(MAX_NAME).collect::<String>()
        ))
    })?;
    if descriptors.is_empty() || descriptors.len() > MOST_DESCRIPTORS {
        let count = descriptors.len();
        return Err(NotUnderstood(format!("a call has 1 to {MOST_DESCRIPTORS} descriptors, not {count}")));
    }
    // Left out and zero are the same here, and mean one.
    let usual = u64::from(*hits_addend).max(1);
    let descriptors = descriptors.iter().enumerate();
    let descriptors = descriptors.map(|(index, descriptor)| {
        of_descriptor(policy, domain, descriptor, usual)
            .map_err(|NotUnderstood(what)| NotUnderstood(format!("descriptors[{index}]: {what}")))
    });
    Ok(Asked { descriptors: descriptors.collect::<Result<_, _>>()? })
}

fn of_descriptor(
    policy: &Policy,
    domain: &HitDomain,
    descriptor: &RateLimitDescriptor,
    usual: u64,
) -> Result<Vec<Hit>, NotUnderstood> {
    let RateLimitDescriptor { entries, limit, hits_addend, is_negative_hits } = descriptor;
    if limit.is_some() {
        let what = "it brings a limit of its own, and limits stand in the policy; leave its `limit` out";
        return Err(NotUnderstood(what.into()));
    }
    if entries.is_empty() || entries.len() > MOST_ENTRIES {
        return Err(NotUnderstood(format!("it has 1 to {MOST_ENTRIES} entries, not {}", entries.len())));
    }
    let hits = hits_addend.as_ref().map_or(usual, |hits| hits.value);
    if hits > MOST_HITS {
        return Err(NotUnderstood(format!("hits_addend is at most {MOST_HITS}, not {hits}")));
    }
    let mut wanted = Vec::new();
    let mut fits = false;
    for rule in &domain.rules {
        let Some(matched) = matched(rule, entries) else { continue };
        fits = true;
        if let Some(owner) = owner(policy, rule, &matched)? {
            let measure = policy.limits[usize::from(rule.limit)].measure;
            let amount = Amount::from_parts(i128::from(hits) * measure.parts());
            let kind = kind(rule.hits, hits, *is_negative_hits);
            wanted.push(Hit { limit: rule.limit, owner, amount, kind });
        }
    }
    if !fits && domain.unmatched == Unmatched::Refuse {
        let keys: Vec<String> = entries.iter().map(|entry| shown(&entry.key)).collect();
        return Err(NotUnderstood(format!(
            "no rule of the domain has exactly the entries {}; add one to the policy, or `unmatched: pass`",
            keys.join(", ")
        )));
    }
    Ok(wanted)
}

fn kind(are: HitsAre, hits: u64, negative: bool) -> HitKind {
    match (are, hits) {
        (_, 0) => HitKind::Checked,
        _ if negative => HitKind::GivenBack,
        (HitsAre::Asked, _) => HitKind::Asked,
        (HitsAre::Used, _) => HitKind::Used,
    }
}

/// Each of a rule's entries with the descriptor's, where it fits.
fn matched<'a>(rule: &'a HitRule, entries: &'a [Entry]) -> Option<Vec<(&'a HitEntry, &'a str)>> {
    if rule.entries.len() != entries.len() {
        return None;
    }
    let pair = |wanted: &'a HitEntry| {
        let found = entries.iter().find(|entry| *entry.key == *wanted.key)?;
        match &wanted.value {
            HitValue::Is(value) if **value != *found.value => None,
            HitValue::Any | HitValue::Is(_) | HitValue::Names(_) => Some((wanted, found.value.as_str())),
        }
    };
    // As many as there are, each key of the rule once: none of the descriptor's is left over but a repeated one.
    rule.entries.iter().map(pair).collect()
}

/// Whose use it is; nothing where the limit does not concern it.
fn owner(policy: &Policy, rule: &HitRule, matched: &[(&HitEntry, &str)]) -> Result<Option<Owner>, NotUnderstood> {
    let rate = &policy.limits[usize::from(rule.limit)];
    let mut names = Names::default();
    for (entry, value) in matched {
        if let HitValue::Names(named) = entry.value {
            names.read(policy, named, value).map_err(|what| NotUnderstood(format!("{}: {what}", shown(&entry.key))))?;
        }
    }
    let Names { tenant, user, session, task, class, model, pool } = names;
    // What a limit is restricted to, and counts per, its rule's entries name: the policy is not valid else.
    let concerned = rate.scope.covers(
        tenant.as_ref().unwrap_or(&TenantId::from("")),
        model.as_ref().unwrap_or(&Model::from("")),
        class.unwrap_or(ClassIndex::new(0)),
        pool.unwrap_or(PoolIndex::new(0)),
    );
    if !concerned {
        return Ok(None);
    }
    Ok(match rate.per {
        Per::Tenant => tenant.map(Owner::Tenant),
        Per::User => tenant.zip(user).map(|(tenant, user)| Owner::User(tenant, user)),
        Per::Session => tenant.zip(session).map(|(tenant, session)| Owner::Session(tenant, session)),
        Per::Task => tenant.zip(task).map(|(tenant, task)| Owner::Task(tenant, task)),
        Per::Class => class.map(Owner::Class),
        Per::Model => model.map(Owner::Model),
        Per::Pool => pool.map(Owner::Pool),
        Per::Global => Some(Owner::Everybody),
    })
}

/// What the entries of a descriptor name.
#[derive(Default)]
struct Names {
    tenant: Option<TenantId>,
    user: Option<UserId>,
    session: Option<SessionId>,
    task: Option<TaskId>,
    class: Option<ClassIndex>,
    model: Option<Model>,
    pool: Option<PoolIndex>,
}

impl Names {
    fn read(&mut self, policy: &Policy, named: Named, value: &str) -> Result<(), String> {
        let what = named.name();
        if value.is_empty() || value.len() > MAX_NAME || value.chars().any(char::is_control) {
            return Err(format!("a {what} has 1 to {MAX_NAME} bytes and no control characters"));
        }
        let unknown = |names: Vec<&str>| format!("there is no {what} {value:?}; there are: {}", names.join(", "));
        match named {
            Named::Tenant => self.tenant = Some(value.into()),
            Named::User => self.user = Some(value.into()),
            Named::Session => self.session = Some(value.into()),
            Named::Task => self.task = Some(value.into()),
            Named::Model => self.model = Some(policy.route(value).map_or_else(|| value.into(), |(_, model)| model)),
            Named::Class => {
                let found = (0..).zip(&policy.classes).find(|(_, class)| *class.name == *value);
                let names = || policy.classes.iter().map(|class| &*class.name).collect();
                self.class = Some(found.map(|(n, _)| ClassIndex::new(n)).ok_or_else(|| unknown(names()))?);
            }
            Named::Pool => {
                let found = (0..).zip(&policy.pools).find(|(_, pool)| *pool.name == *value);
                let names = || policy.pools.iter().map(|pool| &*pool.name).collect();
                self.pool = Some(found.map(|(n, _)| PoolIndex::new(n)).ok_or_else(|| unknown(names()))?);
            }
        }
        Ok(())
    }
}

/// At most a line of a key, for a message.
fn shown(key: &str) -> String {
    const SHOWN: usize = 100;
    format!("{:?}", &key[..key.floor_char_boundary(SHOWN)])
}

#[cfg(test)]
mod tests {
    use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride;
    use envoy_types::pb::google::protobuf::UInt64Value;

    use super::{
        Amount, Entry, Hit, HitKind, NotUnderstood, Owner, Policy, RateLimitDescriptor, RateLimitRequest, asked,
    };
    use crate::policy;

    const POLICY: &str = "
version: 1
pools: [{name: chat, models: ['llama*'], aliases: [{from: 'gpt*', to: llama-70b}]}]
limits:
  - {name: calls, per: tenant, requests: 10, every: 1m}
  - {name: tokens, per: tenant, tokens: 1000, every: 1m}
  - {name: sessions, per: session, requests: 5, every: 1m}
  - {name: one-model, per: model, service: 9, every: 1m, models: ['llama*']}
rate_limit:
  - domain: llm
    rules:
      - {limit: calls, entries: [{key: tenant, is: tenant}]}
      - {limit: tokens, entries: [{key: tenant, is: tenant}, {key: cost, value: tokens}]}
      - {limit: tokens, hits: asked, entries: [{key: tenant, is: tenant}, {key: estimate}]}
      - {limit: sessions, entries: [{key: tenant, is: tenant}, {key: session, is: session}]}
      - {limit: calls, entries: [{key: tenant, is: tenant}, {key: session, is: session}]}
      - {limit: one-model, entries: [{key: model, is: model}]}
      - {limit: calls, entries: [{key: tenant, is: tenant}, {key: class, is: class}]}
  - {domain: lax, unmatched: pass, rules: [{limit: calls, entries: [{key: tenant, is: tenant}]}]}
";

    fn policy() -> Policy {
        policy::parse_alone("p", POLICY).expect("a policy")
    }

    fn descriptor(entries: &[(&str, &str)]) -> RateLimitDescriptor {
        let entry = |(key, value): &(&str, &str)| Entry { key: (*key).into(), value: (*value).into() };
        RateLimitDescriptor { entries: entries.iter().map(entry).collect(), ..RateLimitDescriptor::default() }
    }

    fn request(descriptors: Vec<RateLimitDescriptor>) -> RateLimitRequest {
        RateLimitRequest { domain: "llm".into(), descriptors, hits_addend: 0 }
    }

    fn hits(request: &RateLimitRequest) -> Vec<Hit> {
        asked(&policy(), request).expect("it is understood").hits().cloned().collect()
    }

    fn wrong(request: &RateLimitRequest) -> String {
        let NotUnderstood(what) = asked(&policy(), request).expect_err("it is not understood");
        what
    }

    fn acme() -> Owner {
        Owner::Tenant("acme".into())
    }

    #[test]
    fn how_many_hits_are_meant() {
        let one = |hits_addend, own: Option<u64>, negative| {
            let mut wanted = descriptor(&[("tenant", "acme")]);
            wanted.hits_addend = own.map(|value| UInt64Value { value });
            wanted.is_negative_hits = negative;
            let found = hits(&RateLimitRequest { hits_addend, ..request(vec![wanted]) });
            (found[0].amount.parts(), found[0].kind)
        };
        assert_eq!(one(0, None, false), (1, HitKind::Asked), "zero for all is one");
        assert_eq!(one(7, None, false), (7, HitKind::Asked));
        assert_eq!(one(7, Some(3), false), (3, HitKind::Asked), "its own goes before");
        assert_eq!(one(7, Some(0), false), (0, HitKind::Checked), "its own zero only asks");
        assert_eq!(one(0, Some(3), true), (3, HitKind::GivenBack));
        assert_eq!(one(0, None, true), (1, HitKind::GivenBack));
    }

    #[test]
    fn entries_say_which_limits_and_whose() {
        let found = hits(&request(vec![descriptor(&[("cost", "tokens"), ("tenant", "acme")])]));
        let tokens = |kind| Hit { limit: 1, owner: acme(), amount: Amount::from_parts(1), kind };
        assert_eq!(found, [tokens(HitKind::Used)], "in any order; tokens are used, not asked for");
        let found = hits(&request(vec![descriptor(&[("tenant", "acme"), ("estimate", "whatever")])]));
        assert_eq!(found, [tokens(HitKind::Asked)]);
        let found = hits(&request(vec![descriptor(&[("tenant", "acme"), ("session", "s")])]));
        let owners: Vec<(u16, &Owner)> = found.iter().map(|hit| (hit.limit, &hit.owner)).collect();
        assert_eq!(owners, [(2, &Owner::Session("acme".into(), "s".into())), (0, &acme())], "all that fit");
        let found = hits(&request(vec![descriptor(&[("model", "gpt-4o")])]));
        assert_eq!(found[0].owner, Owner::Model("llama-70b".into()), "by its name after aliases");
        assert_eq!(found[0].amount, Amount::from_parts(1_000_000), "a virtual token");
        assert_eq!(hits(&request(vec![descriptor(&[("model", "claude")])])), [], "the limit does not concern it");
    }

    #[test]
    fn what_is_not_understood_is_an_error_that_says_so() {
        let acme = || descriptor(&[("tenant", "acme")]);
        let mut other = request(vec![acme()]);
        other.domain = "other".into();
        assert_eq!(wrong(&other), "the policy's rate_limit has no domain \"other\"; it has: llm, lax");
        let unknown = wrong(&request(vec![acme(), descriptor(&[("tenant", "acme"), ("typo", "x")])]));
        assert_eq!(
            unknown,
            "descriptors[1]: no rule of the domain has exactly the entries \"tenant\", \"typo\"; add one to the policy, or \
             `unmatched: pass`"
        );
        assert!(wrong(&request(vec![descriptor(&[("tenant", "acme"), ("cost", "money")])])).contains("no rule"));
        assert!(wrong(&request(vec![descriptor(&[("tenant", "acme"), ("tenant", "acme")])])).contains("no rule"));
        assert!(
            wrong(&request(vec![descriptor(&[("tenant", "")])])).contains("\"tenant\": a tenant has 1 to 256 bytes")
        );
        let class = wrong(&request(vec![descriptor(&[("tenant", "acme"), ("class", "vip")])]));
        assert!(class.contains("there is no class \"vip\"; there are: "), "{class}");
        let limit = Some(RateLimitOverride { requests_per_unit: 9, unit: 1 });
        assert!(wrong(&request(vec![RateLimitDescriptor { limit, ..acme() }])).contains("a limit of its own"));
        assert!(wrong(&request(Vec::new())).contains("1 to 64 descriptors, not 0"));
        assert!(wrong(&request(vec![acme(); 65])).contains("not 65"));
        let huge = Some(UInt64Value { value: u64::MAX });
        assert!(wrong(&request(vec![RateLimitDescriptor { hits_addend: huge, ..acme() }])).contains("hits_addend"));
        let lax = RateLimitRequest { domain: "lax".into(), ..request(vec![descriptor(&[("typo", "x")])]) };
        assert_eq!(hits(&lax), [], "where the policy lets it pass");
    }
}
