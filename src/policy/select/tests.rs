//! What the policy says of one request.

use super::super::model::Policy;
use super::super::parse;
use crate::units::{ClassIndex, TenantId, Tokens, Usage, VirtualTokens};
use crate::yaml::Mistakes;

fn policy(text: &str) -> Policy {
    parse("policy.yaml", text, |_| Err(Mistakes::none())).unwrap_or_else(|mistakes| panic!("{mistakes}"))
}

const TEXT: &str = "\
version: 1
classes:
  - {name: interactive, rank: 0}
  - {name: standard, rank: 1}
  - {name: batch, rank: 2}
cost:
  models:
    - {match: llama-70b, scale: 4}
    - {match: \"llama*\", scale: 0.5}
tenants:
  - {match: acme, weight: 4, classes: [interactive, standard, batch]}
  - {match: \"acme*\", weight: 2, classes: [interactive, batch]}
pools:
  - name: llama
    models: [\"llama*\"]
    aliases: [{from: \"gpt-4o*\", to: llama-70b}, {from: \"gpt*\", to: llama-8b}]
  - name: rest
    models: [\"mistral*\", \"gpt-3\"]
";

#[test]
fn the_first_pool_that_serves_the_model_after_its_own_aliases_gets_it() {
    let policy = policy(TEXT);
    let route = |model: &str| {
        policy.route(model).map(|(pool, model)| (policy.pools[pool.index()].name.to_string(), model.to_string()))
    };
    let found = |pool: &str, model: &str| Some((pool.to_owned(), model.to_owned()));
    assert_eq!(route("llama-3"), found("llama", "llama-3"));
    assert_eq!(route("gpt-4o-mini"), found("llama", "llama-70b"));
    // The second pool would take it as it is, but the first takes it as its alias.
    assert_eq!(route("gpt-3"), found("llama", "llama-8b"));
    assert_eq!(route("mistral-7b"), found("rest", "mistral-7b"));
    assert_eq!(route("claude"), None);
    assert!(policy.select(&"acme".into(), None, "claude").is_none());
}

#[test]
fn the_first_rule_that_fits_a_tenant_decides_its_weight() {
    let policy = policy(TEXT);
    let weight = |tenant: &str| policy.tenant(&TenantId::from(tenant)).weight.thousandths();
    assert_eq!((weight("acme"), weight("acme-dev"), weight("other")), (4_000, 2_000, 1_000));
}

#[test]
fn a_wish_reaches_only_classes_that_are_granted() {
    let policy = policy(TEXT);
    let class = |tenant: &str, wish| policy.class(policy.tenant(&TenantId::from(tenant)), wish);
    let [interactive, standard, batch] = [0, 1, 2].map(ClassIndex::new);
    assert_eq!(class("acme", Some("interactive")), interactive);
    assert_eq!(class("acme", Some("platinum")), standard, "an unknown wish is no wish");
    assert_eq!(class("acme", None), standard, "the default class where it is granted");
    assert_eq!(class("acme-dev", Some("standard")), interactive, "else the rule's first class");
    assert_eq!(class("other", Some("interactive")), standard, "a class that was not granted");
    assert_eq!(class("other", Some("batch")), batch, "one that yields to the default is granted to all");
}

#[test]
fn a_model_costs_its_scale_by_its_name_after_aliases() {
    let policy = policy(TEXT);
    let cost = |model: &str| {
        let selection = policy.select(&"acme".into(), None, model).expect("served");
        selection.price.cost(&Usage::plain(Tokens::new(10), Tokens::new(10)))
    };
    assert_eq!(cost("gpt-4o"), VirtualTokens::whole(4 * 30));
    assert_eq!(cost("llama-8b"), VirtualTokens::whole(15));
    assert_eq!(cost("mistral"), VirtualTokens::whole(30));
}
