//! Defaults, the effect of every key, and that no policy text can break the reader.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use serde_json::Value;

use super::super::model::{Policy, TenantSource, Trust};
use super::super::{KeysText, schema};
use super::parse;
use crate::units::{Limit, Span, TenantId, Tokens};
use crate::yaml::{Mistake, Mistakes, Position};

const KEYS: &str = "keys: [{sha256: 2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824, tenant: acme}]";

fn keys(file: &str) -> Result<KeysText, Mistakes> {
    if file == "keys.yaml" {
        return Ok(KeysText { name: file.into(), text: KEYS.into() });
    }
    let message = "cannot be read: there is no such file".into();
    Err(Mistake { file: file.into(), position: Position::START, path: String::new(), message }.into())
}

fn policy(text: &str) -> Policy {
    match parse("policy.yaml", text, keys) {
        Ok(policy) => policy,
        Err(mistakes) => panic!("{text}\n{mistakes}"),
    }
}

fn mistakes(text: &str) -> String {
    parse("policy.yaml", text, keys).expect_err("broken").to_string()
}

#[test]
fn the_version_alone_is_a_working_policy_that_protects() {
    let policy = policy("version: 1\n");
    let names: Vec<&str> = policy.classes.iter().map(|class| &*class.name).collect();
    assert_eq!(names, ["interactive", "standard", "batch"]);
    assert_eq!(policy.classes[0].max_wait, Limit::AtMost(Span::from_secs(10)));
    assert_eq!(&*policy.classes[policy.default_class.index()].name, "standard");
    let [rule] = &policy.tenants[..] else { panic!("one rule for everybody: {:?}", policy.tenants) };
    let granted: Vec<&str> = rule.classes.iter().map(|class| names[class.index()]).collect();
    assert!(rule.matches.is_everything());
    assert_eq!(granted, ["standard", "batch"]);
    let [pool] = &policy.pools[..] else { panic!("one pool: {:?}", policy.pools) };
    assert_eq!(pool.window.requests, Limit::AtMost(64));
    assert_eq!(pool.window.tokens, Limit::AtMost(Tokens::new(16_000)));
    assert!(pool.queue.pool.bytes.is_limited(), "what waits is bounded in memory");
    assert_eq!(policy.identity.trust, Trust::Loopback);
    let [TenantSource::Header(header), TenantSource::Fallback(nobody)] = &policy.identity.tenant[..] else {
        panic!("{:?}", policy.identity.tenant)
    };
    assert_eq!((header.as_str(), nobody), ("x-tenant-id", &TenantId::from("anonymous")));
    assert!(policy.select(&"anyone".into(), None, "any-model").is_some());
}

#[test]
fn a_given_window_is_unlimited_where_it_says_nothing() {
    let pool = &policy("version: 1\npools: [{name: a, window: {requests: 28}}]\n").pools[0];
    assert_eq!(pool.window.requests, Limit::AtMost(28));
    assert_eq!(pool.window.tokens, Limit::Unlimited);
}

#[test]
fn a_policy_without_the_customary_class_defaults_to_its_first() {
    let policy = policy("version: 1\nclasses: [{name: gold, rank: 3}, {name: lead, rank: 7}, {name: iron, rank: 1}]\n");
    assert_eq!(policy.default_class.index(), 0);
    // It and those that yield to it, not the one that goes before it.
    assert_eq!(policy.tenants[0].classes.iter().map(|class| class.index()).collect::<Vec<_>>(), [0, 1]);
}

#[test]
fn a_key_file_that_cannot_be_read_is_told_where_it_is_named() {
    let text = "version: 1\nidentity: {tenant: [{api_key: none.yaml}, {fallback: \"\"}]}\n";
    assert_eq!(
        mistakes(text),
        "policy.yaml:2:31: identity.tenant[0].api_key: names a file that is looked for beside the policy and cannot be \
         used: none.yaml:1:1: cannot be read: there is no such file\n\
         policy.yaml:2:54: identity.tenant[1].fallback: a tenant's name has 1 to 256 bytes and no control characters"
    );
}

/// What a key does: a text with it that means something else than without it, or one that is refused for it.
enum Effect {
    Changes(&'static str),
    IsRequiredIn(&'static str),
    Refuses(&'static str),
}

/// The same of what protects from overload.
fn effects_of_breakers() -> [(&'static str, Effect); 12] {
    use Effect::Changes;
    [
        ("retries.ratio", Changes("retries: {ratio: 9%}")),
        ("retries.floor", Changes("retries: {floor: 9}")),
        ("classes[].max_share", Changes("classes: [{name: a, rank: 0, max_share: 9%}]")),
        ("pools[].breaker.failures", Changes("pools: [{name: a, breaker: {failures: 9}}]")),
        ("pools[].breaker.ratio", Changes("pools: [{name: a, breaker: {ratio: 9%}}]")),
        ("pools[].breaker.min_requests", Changes("pools: [{name: a, breaker: {ratio: 9%, min_requests: 9}}]")),
        ("pools[].breaker.within", Changes("pools: [{name: a, breaker: {within: 9s}}]")),
        ("pools[].breaker.statuses", Changes("pools: [{name: a, breaker: {statuses: [\"503\"]}}]")),
        ("pools[].breaker.also", Changes("pools: [{name: a, breaker: {also: [timeout]}}]")),
        ("pools[].breaker.trip_for", Changes("pools: [{name: a, breaker: {trip_for: 9s}}]")),
        ("pools[].breaker.accept_retry_after", Changes("pools: [{name: a, breaker: {accept_retry_after: false}}]")),
        (
            "pools[].breaker.limited",
            Changes("pools: [{name: a, breaker: {limited: [\"429\", \"529\"], statuses: [\"500-503\"]}}]"),
        ),
    ]
}

/// The same of what the rate limit service is asked, beside one rule with all of it.
fn effects_of_hits() -> [(&'static str, Effect); 7] {
    use Effect::Changes;
    [
        (
            "rate_limit[].domain",
            Changes(
                "limits: [{name: a, per: tenant, requests: 1, every: 1s}, {name: b, per: tenant, requests: 1, every: 1s}]\nrate_limit: [{domain: e, unmatched: refuse, rules: [{limit: a, hits: asked, entries: [{key: t, is: tenant}, {key: x, value: v}]}]}]",
            ),
        ),
        (
            "rate_limit[].unmatched",
            Changes(
                "limits: [{name: a, per: tenant, requests: 1, every: 1s}, {name: b, per: tenant, requests: 1, every: 1s}]\nrate_limit: [{domain: d, unmatched: pass, rules: [{limit: a, hits: asked, entries: [{key: t, is: tenant}, {key: x, value: v}]}]}]",
            ),
        ),
        (
            "rate_limit[].rules[].limit",
            Changes(
                "limits: [{name: a, per: tenant, requests: 1, every: 1s}, {name: b, per: tenant, requests: 1, every: 1s}]\nrate_limit: [{domain: d, unmatched: refuse, rules: [{limit: b, hits: asked, entries: [{key: t, is: tenant}, {key: x, value: v}]}]}]",
            ),
        ),
        (
            "rate_limit[].rules[].hits",
            Changes(
                "limits: [{name: a, per: tenant, requests: 1, every: 1s}, {name: b, per: tenant, requests: 1, every: 1s}]\nrate_limit: [{domain: d, unmatched: refuse, rules: [{limit: a, hits: used, entries: [{key: t, is: tenant}, {key: x, value: v}]}]}]",
            ),
        ),
        (
            "rate_limit[].rules[].entries[].key",
            Changes(
                "limits: [{name: a, per: tenant, requests: 1, every: 1s}, {name: b, per: tenant, requests: 1, every: 1s}]\nrate_limit: [{domain: d, unmatched: refuse, rules: [{limit: a, hits: asked, entries: [{key: u, is: tenant}, {key: x, value: v}]}]}]",
            ),
        ),
        (
            "rate_limit[].rules[].entries[].value",
            Changes(
                "limits: [{name: a, per: tenant, requests: 1, every: 1s}, {name: b, per: tenant, requests: 1, every: 1s}]\nrate_limit: [{domain: d, unmatched: refuse, rules: [{limit: a, hits: asked, entries: [{key: t, is: tenant}, {key: x, value: w}]}]}]",
            ),
        ),
        (
            "rate_limit[].rules[].entries[].is",
            Changes(
                "limits: [{name: a, per: tenant, requests: 1, every: 1s}, {name: b, per: tenant, requests: 1, every: 1s}]\nrate_limit: [{domain: d, unmatched: refuse, rules: [{limit: a, hits: asked, entries: [{key: t, is: tenant}, {key: x, is: model}]}]}]",
            ),
        ),
    ]
}

/// One line a key of the schema; a key that is missing here, or here and not in the schema, fails the test.
fn effects() -> BTreeMap<&'static str, Effect> {
    use Effect::{Changes, IsRequiredIn, Refuses};
    let mut effects = effects_of_limits();
    effects.extend(effects_of_pools());
    effects.extend(effects_of_breakers());
    effects.extend(effects_of_hits());
    effects.extend(effects_of_callers_and_cost());
    effects.extend([
        ("version", IsRequiredIn("{}")),
        ("fairness.algorithm", Changes("fairness: {algorithm: fcfs}")),
        ("fairness.charge", Changes("fairness: {charge: streamed}")),
        ("classes[].name", Changes("classes: [{name: a, rank: 0}]")),
        ("classes[].rank", Changes("classes: [{name: a, rank: 5}]")),
        ("classes[].max_wait", Changes("classes: [{name: a, rank: 0, max_wait: 3s}]")),
        ("classes[].min_share", Changes("classes: [{name: a, rank: 0, min_share: 3%}]")),
        ("default_class", Changes("default_class: batch")),
        ("tenants[].match", Changes("tenants: [{match: a}]")),
        ("tenants[].weight", Changes("tenants: [{match: a, weight: 2}]")),
        ("tenants[].classes", Changes("tenants: [{match: a, classes: [batch]}]")),
        ("fanout.per_session", Changes("fanout: {per_session: 9}")),
        ("fanout.per_tenant", Changes("fanout: {per_tenant: 9}")),
        (
            "limits[].when_exceeded.demote",
            Changes("limits: [{name: a, requests: 1, every: 1s, when_exceeded: {demote: batch}}]"),
        ),
        (
            "budgets[].money",
            Changes(
                "cost: {models: [{match: '*', price: {input: 7, output: 8}}]}\nbudgets: [{name: a, money: 2, period: day}]",
            ),
        ),
        (
            "budgets[].when_spent.demote",
            Changes("budgets: [{name: a, requests: 1, period: day, when_spent: {demote: batch}}]"),
        ),
        (
            "cost.models[].price.cached_input",
            Changes("cost: {models: [{match: a, price: {input: 1, output: 2, cached_input: 5}}]}"),
        ),
        (
            "cost.models[].price.cache_write",
            Changes("cost: {models: [{match: a, price: {input: 1, output: 2, cache_write: 5}}]}"),
        ),
        (
            "cost.models[].price.reasoning",
            Changes("cost: {models: [{match: a, price: {input: 1, output: 2, reasoning: 5}}]}"),
        ),
        ("unmetered", Changes("unmetered: pass")),
        ("cache.enabled", Refuses("cache: {enabled: true}")),
    ]);
    effects
}

fn effects_of_pools() -> BTreeMap<&'static str, Effect> {
    use Effect::Changes;
    BTreeMap::from([
        ("pools[].name", Changes("pools: [{name: a}]")),
        ("pools[].models", Changes("pools: [{name: a, models: [m]}]")),
        ("pools[].aliases[].from", Changes("pools: [{name: a, aliases: [{from: x, to: y}]}]")),
        ("pools[].aliases[].to", Changes("pools: [{name: a, aliases: [{from: x, to: z}]}]")),
        ("pools[].upstream", Changes("pools: [{name: a, upstream: \"http://h:1/v\"}]")),
        ("pools[].window.tokens", Changes("pools: [{name: a, window: {tokens: 9}}]")),
        ("pools[].window.requests", Changes("pools: [{name: a, window: {requests: 9}}]")),
        ("pools[].window.adapt", Changes("pools: [{name: a, window: {adapt: auto}}]")),
        ("pools[].engine.metrics", Changes("pools: [{name: a, engine: {metrics: [\"http://h:1/m\"]}}]")),
        ("pools[].engine.orca", Changes("pools: [{name: a, engine: {orca: text}}]")),
        ("pools[].engine.every", Changes("pools: [{name: a, engine: {orca: text, every: 1s}}]")),
        ("pools[].engine.stale_after", Changes("pools: [{name: a, engine: {orca: text, stale_after: 1m}}]")),
        ("pools[].max_request_tokens", Changes("pools: [{name: a, max_request_tokens: 9}]")),
        ("pools[].queue.requests", Changes("pools: [{name: a, queue: {requests: 9}}]")),
        ("pools[].queue.tokens", Changes("pools: [{name: a, queue: {tokens: 9}}]")),
        ("pools[].queue.bytes", Changes("pools: [{name: a, queue: {bytes: 9}}]")),
        ("pools[].queue.per_class_requests", Changes("pools: [{name: a, queue: {per_class_requests: 9}}]")),
        ("pools[].queue.per_class_tokens", Changes("pools: [{name: a, queue: {per_class_tokens: 9}}]")),
        ("pools[].queue.per_class_bytes", Changes("pools: [{name: a, queue: {per_class_bytes: 9}}]")),
        ("pools[].queue.per_tenant_requests", Changes("pools: [{name: a, queue: {per_tenant_requests: 9}}]")),
        ("pools[].queue.per_tenant_tokens", Changes("pools: [{name: a, queue: {per_tenant_tokens: 9}}]")),
        ("pools[].queue.per_tenant_bytes", Changes("pools: [{name: a, queue: {per_tenant_bytes: 9}}]")),
        ("pools[].queue.per_session_requests", Changes("pools: [{name: a, queue: {per_session_requests: 9}}]")),
        ("pools[].queue.per_session_tokens", Changes("pools: [{name: a, queue: {per_session_tokens: 9}}]")),
        ("pools[].queue.per_session_bytes", Changes("pools: [{name: a, queue: {per_session_bytes: 9}}]")),
        ("pools[].engine.metrics", Changes("pools: [{name: a, engine: {metrics: [\"http://h:1/m\"]}}]")),
        ("pools[].engine.orca", Changes("pools: [{name: a, engine: {orca: text}}]")),
        ("pools[].engine.every", Changes("pools: [{name: a, engine: {orca: text, every: 1s}}]")),
        ("pools[].engine.stale_after", Changes("pools: [{name: a, engine: {orca: text, stale_after: 1m}}]")),
    ])
}

fn effects_of_callers_and_cost() -> BTreeMap<&'static str, Effect> {
    use Effect::Changes;
    BTreeMap::from([
        ("identity.tenant[].api_key", Changes("identity: {tenant: [{api_key: keys.yaml}]}")),
        ("identity.tenant[].header", Changes("identity: {tenant: [{header: x-team}]}")),
        ("identity.tenant[].fallback", Changes("identity: {tenant: [{fallback: guests}]}")),
        ("identity.tenant[].metadata", Changes("identity: {tenant: [{metadata: envoy.filters.http.jwt_authn/sub}]}")),
        ("identity.trust", Changes("identity: {trust: [proxy]}")),
        ("identity.session[].header", Changes("identity: {session: [{header: x-run}]}")),
        ("identity.session[].sub_agent", Changes("identity: {session: [{header: x-run, sub_agent: x-agent}]}")),
        ("identity.session[].parent", Changes("identity: {session: [{header: x-run, parent: x-parent-run}]}")),
        ("identity.class[].header", Changes("identity: {class: [{header: x-class}]}")),
        ("identity.class_not_granted", Changes("identity: {class_not_granted: refuse}")),
        ("cost.weights.input", Changes("cost: {weights: {input: 3}}")),
        ("cost.weights.cached_input", Changes("cost: {weights: {cached_input: 3}}")),
        ("cost.weights.cache_write", Changes("cost: {weights: {cache_write: 3}}")),
        ("cost.weights.output", Changes("cost: {weights: {output: 3}}")),
        ("cost.weights.reasoning", Changes("cost: {weights: {reasoning: 3}}")),
        ("cost.models[].match", Changes("cost: {models: [{match: a, scale: 2}]}")),
        ("cost.models[].scale", Changes("cost: {models: [{match: a, scale: 3}]}")),
        ("cost.effort.none", Changes("cost: {effort: {none: 9}}")),
        ("cost.effort.minimal", Changes("cost: {effort: {minimal: 9}}")),
        ("cost.effort.low", Changes("cost: {effort: {low: 9}}")),
        ("cost.effort.medium", Changes("cost: {effort: {medium: 9}}")),
        ("cost.effort.high", Changes("cost: {effort: {high: 9}}")),
        ("cost.effort.xhigh", Changes("cost: {effort: {xhigh: 9}}")),
        ("cost.effort.max", Changes("cost: {effort: {max: 9}}")),
        ("identity.user[].header", Changes("identity: {user: [{header: x-person}]}")),
        ("identity.user[].metadata", Changes("identity: {user: [{metadata: envoy.filters.http.jwt_authn/sub}]}")),
        ("identity.task[].header", Changes("identity: {task: [{header: x-run}]}")),
        ("identity.task[].metadata", Changes("identity: {task: [{metadata: envoy.filters.http.jwt_authn/run}]}")),
        ("cost.models[].price.input", Changes("cost: {models: [{match: a, price: {input: 5, output: 2}}]}")),
        ("cost.models[].price.output", Changes("cost: {models: [{match: a, price: {input: 1, output: 5}}]}")),
    ])
}

fn effects_of_limits() -> BTreeMap<&'static str, Effect> {
    use Effect::Changes;
    BTreeMap::from([
        ("limits[].name", Changes("limits: [{name: b, requests: 1, every: 1s}]")),
        ("limits[].per", Changes("limits: [{name: a, per: session, requests: 1, every: 1s}]")),
        ("limits[].requests", Changes("limits: [{name: a, requests: 2, every: 1s}]")),
        ("limits[].tokens", Changes("limits: [{name: a, tokens: 2, every: 1s}]")),
        ("limits[].input_tokens", Changes("limits: [{name: a, input_tokens: 2, every: 1s}]")),
        ("limits[].output_tokens", Changes("limits: [{name: a, output_tokens: 2, every: 1s}]")),
        ("limits[].service", Changes("limits: [{name: a, service: 2, every: 1s}]")),
        ("limits[].every", Changes("limits: [{name: a, requests: 1, every: 2s}]")),
        ("limits[].burst", Changes("limits: [{name: a, requests: 1, every: 1s, burst: 3}]")),
        ("limits[].tenants", Changes("limits: [{name: a, requests: 1, every: 1s, tenants: [a]}]")),
        ("limits[].models", Changes("limits: [{name: a, requests: 1, every: 1s, models: [a]}]")),
        ("limits[].classes", Changes("limits: [{name: a, requests: 1, every: 1s, classes: [batch]}]")),
        ("limits[].pools", Changes("limits: [{name: a, requests: 1, every: 1s, pools: [default]}]")),
        ("budgets[].name", Changes("budgets: [{name: b, requests: 1, period: day}]")),
        ("budgets[].per", Changes("budgets: [{name: a, per: user, requests: 1, period: day}]")),
        ("budgets[].requests", Changes("budgets: [{name: a, requests: 2, period: day}]")),
        ("budgets[].tokens", Changes("budgets: [{name: a, tokens: 2, period: day}]")),
        ("budgets[].service", Changes("budgets: [{name: a, service: 2, period: day}]")),
        ("budgets[].period", Changes("budgets: [{name: a, requests: 1, period: task}]")),
        ("budgets[].zone", Changes("budgets: [{name: a, requests: 1, period: day, zone: Europe/Berlin}]")),
        ("budgets[].warn_at", Changes("budgets: [{name: a, requests: 1, period: day, warn_at: [10%]}]")),
        ("budgets[].tenants", Changes("budgets: [{name: a, requests: 1, period: day, tenants: [a]}]")),
        ("budgets[].models", Changes("budgets: [{name: a, requests: 1, period: day, models: [a]}]")),
        ("budgets[].classes", Changes("budgets: [{name: a, requests: 1, period: day, classes: [batch]}]")),
        ("budgets[].pools", Changes("budgets: [{name: a, requests: 1, period: day, pools: [default]}]")),
    ])
}

#[test]
fn every_key_of_the_schema_has_an_effect_or_is_refused() {
    let schema = schema();
    let mut keys = BTreeSet::new();
    leaves(&schema, &schema, "", &mut keys);
    let effects = effects();
    let tested: BTreeSet<String> = effects.keys().map(|key| (*key).to_owned()).collect();
    assert_eq!(keys, tested, "the keys of the schema on the left, those tested on the right");

    // Two texts that differ in one key must differ in meaning; the keys beside it are the same in both, so the
    // meanings of all texts and of the default differ from each other.
    let mut meanings = BTreeMap::from([(format!("{:?}", policy("version: 1")), "nothing")]);
    for (key, effect) in effects {
        match effect {
            Effect::Changes(text) => {
                let meaning = format!("{:?}", policy(&format!("version: 1\n{text}\n")));
                let twin = meanings.insert(meaning, key);
                assert_eq!(twin, None, "{key} changes no more than {twin:?}");
            }
            Effect::IsRequiredIn(text) => {
                assert!(mistakes(text).contains(&format!("the key `{key}` is missing")), "{key}");
            }
            Effect::Refuses(text) => {
                let told = mistakes(&format!("version: 1\n{text}\n"));
                assert!(told.contains("is not available in this build"), "{key}: {told}");
            }
        }
    }
}

/// The paths of all keys that hold something else than more keys.
fn leaves(root: &Value, schema: &Value, path: &str, found: &mut BTreeSet<String>) {
    if let Some(pointer) = schema.get("$ref").and_then(Value::as_str) {
        return leaves(root, root.pointer(&pointer[1..]).expect("defined"), path, found);
    }
    // A mapping that may be left out.
    let present = |form: &&Value| form.get("type").and_then(Value::as_str) != Some("null");
    if let Some(form) = schema.get("anyOf").and_then(Value::as_array).and_then(|forms| forms.iter().find(present)) {
        return leaves(root, form, path, found);
    }
    let forms = schema.get("oneOf").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let mappings = forms.iter().chain([schema]).filter_map(|form| form.get("properties")?.as_object());
    let before = found.len();
    for (key, schema) in mappings.flatten() {
        let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        leaves(root, schema, &path, found);
    }
    if let Some(items) = schema.get("items") {
        let in_items = format!("{path}[]");
        leaves(root, items, &in_items, found);
        if found.remove(&in_items) {
            found.insert(path.to_owned());
        }
    } else if found.len() == before {
        found.insert(path.to_owned());
    }
}

#[test]
fn what_the_plan_names_and_no_build_does_yet_is_refused_by_name() {
    let told = mistakes("version: 1\ncache: {enabled: true}\n");
    assert!(
        told.starts_with("policy.yaml:2:18: cache.enabled: ") && told.contains("not available in this build"),
        "{told}"
    );
    assert_eq!(told.lines().count(), 1, "{told}");
}

/// A policy's text with some of its pieces replaced by others.
fn nearly_a_policy() -> impl Strategy<Value = String> {
    let lines: Vec<String> = effects()
        .into_values()
        .map(|effect| match effect {
            Effect::Changes(text) | Effect::IsRequiredIn(text) | Effect::Refuses(text) => text.to_owned(),
        })
        .chain(["version: 1".into(), "classes: []".into(), "tenants: [{match: \"*\"}, {match: b}]".into()])
        .collect();
    let swaps = prop::sample::select(vec![
        "9",
        "0",
        "-1",
        "1e300",
        "a",
        "\"*\"",
        "\"\"",
        "99999999999",
        "[]",
        "{}",
        "true",
        "3s",
        "150%",
        "50%",
        "http://",
        "http://@",
        "é",
        "x y",
        "%",
        "1d 1h",
        "99999999999999999999y",
        "header",
        "default",
    ]);
    let line = (prop::sample::select(lines), prop::option::of((swaps, any::<prop::sample::Index>())));
    prop::collection::vec(line, 0..8).prop_map(|lines| {
        let lines = lines.into_iter().map(|(line, swap)| {
            let Some((swap, at)) = swap else { return line };
            let mut words: Vec<&str> = line.split_inclusive([' ', '[', '{', '}', ']', ',']).collect();
            let at = at.index(words.len());
            words[at] = swap;
            words.concat()
        });
        lines.map(|line| line + "\n").collect()
    })
}

/// The same cases on every run.
fn seeded() -> ProptestConfig {
    ProptestConfig { cases: 1_000, rng_seed: RngSeed::Fixed(1), failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(seeded())]

    #[test]
    fn no_policy_text_breaks_the_reader(text in nearly_a_policy(), head in prop::bool::weighted(0.9)) {
        let text = if head { format!("version: 1\n{text}") } else { text };
        if let Err(mistakes) = parse("policy.yaml", &text, keys) {
            let lines: Vec<&str> = text.split('\n').collect();
            for mistake in &mistakes {
                let Position { line, column } = mistake.position;
                prop_assert!((1..=lines.len()).contains(&line), "{}", mistake);
                prop_assert!((1..=lines[line - 1].chars().count() + 1).contains(&column), "{}", mistake);
            }
        }
    }
}

#[test]
fn a_limit_or_budget_that_cannot_be_meant_is_told_where_and_why() {
    for (text, place, words) in [
        ("limits: [{name: a, every: 1s}]", "2:10: limits[0]", "give one of requests, tokens, input_tokens"),
        ("limits: [{name: a, requests: 1, tokens: 2, every: 1s}]", "2:41: limits[0].tokens", "an entry of its own"),
        ("limits: [{name: a, requests: 1, every: 0s}]", "2:40: limits[0].every", "longer than nothing"),
        ("limits: [{name: a, requests: 1, every: 60d}]", "2:40: limits[0].every", "use a budget"),
        (
            "limits: [{name: a, per: class, requests: 1, every: 1s, when_exceeded: queue}]",
            "2:71: limits[0].when_exceeded",
            "count per tenant or session",
        ),
        (
            "limits: [{name: a, requests: 1, every: 1s, when_exceeded: {demote: low}}]",
            "2:68: limits[0].when_exceeded.demote",
            "there are: interactive, standard, batch",
        ),
        ("limits: [{name: a, requests: 1, every: 1s, pools: [x]}]", "2:52: limits[0].pools[0]", "there are: default"),
        ("budgets: [{name: a, period: day}]", "2:11: budgets[0]", "give one of requests, tokens, service, money"),
        ("budgets: [{name: a, tokens: 1, period: day, zone: Mars}]", "2:51: budgets[0].zone", "Europe/Berlin"),
        ("budgets: [{name: a, money: 1, period: day}]", "2:28: budgets[0].money", "needs a price for every model"),
        (
            "budgets: [{name: a, tokens: 1, period: session, per: tenant}]",
            "2:54: budgets[0].per",
            "counts per session; leave this out",
        ),
        ("budgets: [{name: a, tokens: 1, period: day, warn_at: [90%, 80%]}]", "2:54: budgets[0].warn_at", "must rise"),
        (
            "budgets: [{name: a, tokens: 1, period: day}, {name: a, tokens: 2, period: day}]",
            "2:53: budgets[1].name",
            "given twice",
        ),
    ] {
        let told = mistakes(&format!("version: 1\n{text}\n"));
        assert!(told.starts_with(&format!("policy.yaml:{place}: ")) && told.contains(words), "{text}: {told}");
    }
}
