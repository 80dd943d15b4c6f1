//! The rate limit service: that every rule names a limit that can be asked from outside, and says whose use a hit is.

use std::collections::BTreeSet;

use crate::units::Measure;

use super::super::model::{Exceeded, HitDomain, HitEntry, HitRule, HitValue, HitsAre, Named, Per, Rate, Unmatched};
use super::{Checks, all, form};

impl Checks<'_> {
    /// The domains of the rate limit service, which count against these limits.
    pub(super) fn rate_limit(&mut self, form: &form::Policy, limits: &[Rate]) -> Option<Vec<HitDomain>> {
        self.repeated(form.rate_limit.iter().map(|domain| domain.domain.as_str()), "domain", |index| {
            format!("/rate_limit/{index}/domain")
        });
        let domain = |(index, written): (usize, &form::Domain)| {
            let rule = |(number, rule): (usize, &form::HitRule)| {
                self.hit_rule(&format!("/rate_limit/{index}/rules/{number}"), rule, limits)
            };
            let rules = all(written.rules.iter().enumerate().map(rule).collect());
            let unmatched = match written.unmatched {
                form::Unmatched::Refuse => Unmatched::Refuse,
                form::Unmatched::Pass => Unmatched::Pass,
            };
            Some(HitDomain { name: written.domain.as_str().into(), unmatched, rules: rules? })
        };
        all(form.rate_limit.iter().enumerate().map(domain).collect())
    }

    fn hit_rule(&mut self, at: &str, form: &form::HitRule, limits: &[Rate]) -> Option<HitRule> {
        self.repeated(form.entries.iter().map(|entry| entry.key.as_str()), "key", |index| {
            format!("{at}/entries/{index}/key")
        });
        let entry = |(index, entry): (usize, &form::HitEntry)| self.hit_entry(&format!("{at}/entries/{index}"), entry);
        let entries: Option<Vec<HitEntry>> = all(form.entries.iter().enumerate().map(entry).collect());
        let Some(place) = limits.iter().position(|rate| *rate.name == *form.limit) else {
            let names: Vec<&str> = limits.iter().map(|rate| &*rate.name).collect();
            let names = if names.is_empty() { "none; write it under `limits`".into() } else { names.join(", ") };
            self.mistake(&format!("{at}/limit"), format!("there is no limit of this name; there are: {names}"));
            return None;
        };
        let (rate, entries) = (&limits[place], entries?);
        if matches!(rate.exceeded, Exceeded::Queue | Exceeded::Demote(_)) {
            let message = "only a limit that refuses or shadows can be asked from outside: a call to the rate limit \
                           service cannot wait in a queue or compete in a class";
            self.mistake(&format!("{at}/limit"), message);
            return None;
        }
        self.names_enough(at, rate, &entries)?;
        let usual = if rate.measure == Measure::Requests { HitsAre::Asked } else { HitsAre::Used };
        let hits = form.hits.map_or(usual, |hits| match hits {
            form::HitsAre::Asked => HitsAre::Asked,
            form::HitsAre::Used => HitsAre::Used,
        });
        Some(HitRule { limit: u16::try_from(place).ok()?, entries, hits })
    }

    fn hit_entry(&mut self, at: &str, form: &form::HitEntry) -> Option<HitEntry> {
        let value = match (&form.value, form.is) {
            (None, None) => HitValue::Any,
            (Some(value), None) => HitValue::Is(value.as_str().into()),
            (None, Some(names)) => HitValue::Names(named(names)),
            (Some(_), Some(_)) => {
                self.mistake(
                    &format!("{at}/value"),
                    "a value that is always the same names nobody; leave it or `is` out",
                );
                return None;
            }
        };
        Some(HitEntry { key: form.key.as_str().into(), value })
    }

    /// Checks that the entries name what a limit counts per, and what it is restricted to.
    fn names_enough(&mut self, at: &str, rate: &Rate, entries: &[HitEntry]) -> Option<()> {
        let mut wanted: BTreeSet<Named> = match rate.per {
            Per::Tenant => [Named::Tenant].into(),
            Per::User => [Named::Tenant, Named::User].into(),
            Per::Session => [Named::Tenant, Named::Session].into(),
            Per::Task => [Named::Tenant, Named::Task].into(),
            Per::Class => [Named::Class].into(),
            Per::Model => [Named::Model].into(),
            Per::Pool => [Named::Pool].into(),
            Per::Global => BTreeSet::new(),
        };
        let restricted = [
            (rate.scope.tenants.is_empty(), Named::Tenant),
            (rate.scope.models.is_empty(), Named::Model),
            (rate.scope.classes.is_empty(), Named::Class),
            (rate.scope.pools.is_empty(), Named::Pool),
        ];
        wanted.extend(restricted.into_iter().filter(|(free, _)| !free).map(|(_, named)| named));
        let mut named: Vec<Named> = Vec::new();
        for entry in entries {
            if let HitValue::Names(name) = entry.value {
                if named.contains(&name) {
                    self.mistake(&format!("{at}/entries"), format!("two entries are the {}", name.name()));
                    return None;
                }
                named.push(name);
            }
        }
        let missing: Vec<&str> =
            wanted.iter().filter(|wanted| !named.contains(wanted)).map(|missing| missing.name()).collect();
        if missing.is_empty() {
            return Some(());
        }
        let (limit, missing) = (&rate.name, missing.join(" and the "));
        let message = format!("the limit `{limit}` must be told the {missing}; add an entry with `is`");
        self.mistake(&format!("{at}/entries"), message);
        None
    }
}

fn named(written: form::Names) -> Named {
    match written {
        form::Names::Tenant => Named::Tenant,
        form::Names::User => Named::User,
        form::Names::Session => Named::Session,
        form::Names::Task => Named::Task,
        form::Names::Class => Named::Class,
        form::Names::Model => Named::Model,
        form::Names::Pool => Named::Pool,
    }
}
