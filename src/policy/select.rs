//! What the policy says of one request: which pool, model, class, weight and price.
//!
//! Lists are searched in the policy's order and the first match decides. A wished class is granted only when
//! the tenant's rule lists it; otherwise the tenant gets the policy's default class if it may use that, else
//! the first class of its rule. A wish can therefore never reach a class that was not granted.

use crate::units::{ClassIndex, Model, PoolIndex, Price, Tariff, TenantId, TokenWeight};

use super::model::{ModelCost, NotGranted, Policy, Pool, Selection, TenantRule};

impl Policy {
    /// The rule for a tenant. There always is one: the last rule matches everyone.
    ///
    /// # Panics
    /// Never for a policy built by [`parse`](super::parse), which guarantees that last rule.
    #[must_use]
    pub fn tenant(&self, tenant: &TenantId) -> &TenantRule {
        self.tenants
            .iter()
            .find(|rule| rule.matches.matches(tenant.as_str()))
            .expect("a parsed policy ends with a tenant rule that matches everyone")
    }

    /// The pool that serves a model and the model's name after that pool's aliases; `None` when no pool does.
    #[must_use]
    pub fn route(&self, model: &str) -> Option<(PoolIndex, Model)> {
        (0u16..).zip(&self.pools).find_map(|(index, pool)| {
            let model = pool.alias(model);
            pool.models
                .iter()
                .any(|pattern| pattern.matches(model))
                .then(|| (PoolIndex::new(index), Model::from(model)))
        })
    }

    /// The price list of a model, by its name after aliases.
    #[must_use]
    pub fn price(&self, model: &Model) -> Price {
        let weights = self.cost.weights;
        let scale = self.model_cost(model).map_or(TokenWeight::ONE, |cost| cost.scale);
        Price::new(scale, [weights.input, weights.cached_input, weights.cache_write, weights.output, weights.reasoning])
    }

    /// What a model's tokens cost in money, by its name after aliases; nothing where no price is given.
    #[must_use]
    pub fn tariff(&self, model: &Model) -> Tariff {
        self.model_cost(model).and_then(|cost| cost.tariff).unwrap_or_default()
    }

    fn model_cost(&self, model: &Model) -> Option<&ModelCost> {
        self.cost.models.iter().find(|cost| cost.matches.matches(model.as_str()))
    }

    /// The class a tenant gets for its wish.
    #[must_use]
    pub fn class(&self, rule: &TenantRule, wished: Option<&str>) -> ClassIndex {
        let granted = |class: &ClassIndex| wished == Some(&*self.classes[class.index()].name);
        if let Some(class) = rule.classes.iter().find(|class| granted(class)) {
            return *class;
        }
        if rule.classes.contains(&self.default_class) { self.default_class } else { rule.classes[0] }
    }

    /// The classes a tenant may use, where it wishes for another and the policy says that such a wish is refused.
    #[must_use]
    pub fn refused_wish(&self, tenant: &TenantId, wished: Option<&str>) -> Option<Vec<&str>> {
        let wished = wished.filter(|_| self.identity.class_not_granted == NotGranted::Refuse)?;
        let granted = || self.tenant(tenant).classes.iter().map(|class| &*self.classes[class.index()].name);
        (!granted().any(|class| class == wished)).then(|| granted().collect())
    }

    /// All of the above for one request; `None` when no pool serves the model.
    #[must_use]
    pub fn select(&self, tenant: &TenantId, wished_class: Option<&str>, model: &str) -> Option<Selection> {
        let (pool, model) = self.route(model)?;
        let rule = self.tenant(tenant);
        let class = self.class(rule, wished_class);
        let (price, tariff) = (self.price(&model), self.tariff(&model));
        Some(Selection { pool, model, class, weight: rule.weight, price, tariff })
    }
}

impl Pool {
    /// The model's name after this pool's aliases.
    fn alias<'name>(&'name self, model: &'name str) -> &'name str {
        self.aliases.iter().find(|alias| alias.from.matches(model)).map_or(model, |alias| alias.to.as_str())
    }
}

#[cfg(test)]
mod tests;
