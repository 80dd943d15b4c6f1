//! Turns, classes and tenants.

use crate::units::{ClassIndex, Limit, Share, Weight};
use crate::yaml::did_you_mean;

use super::super::Pattern;
use super::super::model::{Algorithm, Charge, Class, Fairness, TenantRule};
use super::{Checks, all, form, values};

/// The class that unlisted requests get by custom, where a policy has it.
const CUSTOMARY_CLASS: &str = "standard";

pub(super) fn fairness(form: &form::Fairness) -> Fairness {
    let algorithm = match form.algorithm {
        form::Algorithm::Vtc => Algorithm::Vtc,
        form::Algorithm::Fcfs => Algorithm::Fcfs,
        form::Algorithm::RoundRobin => Algorithm::RoundRobin,
        form::Algorithm::LeastCounter => Algorithm::LeastCounter,
    };
    let charge = match form.charge {
        form::Charge::Predicted => Charge::Predicted,
        form::Charge::Streamed => Charge::Streamed,
        form::Charge::Completion => Charge::Completion,
    };
    Fairness { algorithm, charge }
}

impl Checks<'_> {
    pub(super) fn classes(&mut self, forms: &[form::Class]) -> Option<Vec<Class>> {
        self.repeated(forms.iter().map(|class| class.name.as_str()), "class", |index| format!("/classes/{index}/name"));
        for (index, class) in forms.iter().enumerate() {
            if let Some(other) = forms[..index].iter().find(|other| other.rank == class.rank) {
                let message = format!("rank {} is taken by class `{}`; ranks must differ", class.rank, other.name);
                self.mistake(&format!("/classes/{index}/rank"), message);
            }
        }
        let classes = forms.iter().enumerate().map(|(index, form)| self.class(index, form)).collect();
        let classes = all(classes)?;
        let owed: u64 = classes.iter().map(|class| u64::from(class.min_share.millionths())).sum();
        if owed > u64::from(whole().millionths()) {
            let message = format!("the classes' min_share add up to {}%, more than the whole", percent(owed));
            self.mistake("/classes", message);
        }
        Some(classes)
    }

    fn class(&mut self, index: usize, form: &form::Class) -> Option<Class> {
        let pointer = |key| format!("/classes/{index}/{key}");
        let name = self.gate(&pointer("name"), values::name(&form.name));
        let max_wait = match &form.max_wait {
            Some(written) => self.gate(&pointer("max_wait"), values::duration(written)).map(Limit::AtMost),
            None => Some(Limit::Unlimited),
        };
        let min_share = self.gate(&pointer("min_share"), values::percentage(&form.min_share));
        let max_share = match &form.max_share {
            Some(written) => self.gate(&pointer("max_share"), values::percentage(written)).map(Limit::AtMost),
            None => Some(Limit::Unlimited),
        };
        if let (Some(min_share), Some(Limit::AtMost(most))) = (min_share, max_share)
            && (most == Share::ZERO || most < min_share)
        {
            let message = format!("must be more than 0% and no less than the class's min_share of {min_share}");
            self.mistake(&pointer("max_share"), message);
        }
        let (max_wait, min_share, max_share) = (max_wait?, min_share?, max_share?);
        Some(Class { name: name?, rank: form.rank, max_wait, min_share, max_share })
    }

    /// Notes each ceiling that is a part of nothing.
    pub(super) fn ceilings(&mut self, form: &form::Policy) {
        let boundless = form.pools.iter().find(|pool| {
            let form::Pool { window, .. } = pool;
            window.tokens.is_none() && window.requests.is_none() && matches!(window.adapt, form::Adapt::Fixed)
        });
        let Some(pool) = boundless else { return };
        for index in 0..form.classes.len() {
            if form.classes[index].max_share.is_some() {
                let message = format!(
                    "is a part of a window, and that of pool `{}` has no bounds; give it tokens or requests, or \
                     adapt: auto",
                    pool.name
                );
                self.mistake(&format!("/classes/{index}/max_share"), message);
            }
        }
    }

    pub(super) fn default_class(&mut self, form: &form::Policy) -> Option<ClassIndex> {
        match &form.default_class {
            Some(name) => self.class_named(&form.classes, name, "/default_class"),
            None => Some(find(&form.classes, CUSTOMARY_CLASS).unwrap_or(ClassIndex::new(0))),
        }
    }

    pub(super) fn class_named(&mut self, classes: &[form::Class], name: &str, pointer: &str) -> Option<ClassIndex> {
        let found = find(classes, name);
        if found.is_none() {
            let names: Vec<&str> = classes.iter().map(|class| class.name.as_str()).collect();
            let guess = did_you_mean(name, &names);
            self.mistake(pointer, format!("there is no class of this name; there are: {}{guess}", names.join(", ")));
        }
        found
    }

    /// The rules as written, and after them one for every tenant they leave out.
    pub(super) fn tenants(&mut self, form: &form::Policy, default: Option<ClassIndex>) -> Option<Vec<TenantRule>> {
        let patterns: Vec<_> = form.tenants.iter().map(|rule| &rule.matches).collect();
        self.unreachable(&patterns, |index| format!("/tenants/{index}/match"));
        let rules = form.tenants.iter().enumerate().map(|(index, rule)| {
            let matches = self.gate(&format!("/tenants/{index}/match"), Pattern::new(&rule.matches.0));
            let weight = self.gate(&format!("/tenants/{index}/weight"), Weight::new(rule.weight));
            let classes = match &rule.classes {
                Some(names) => self.granted(&form.classes, names, index),
                None => default.map(|default| unlisted(&form.classes, default)),
            };
            Some(TenantRule { matches: matches?, weight: weight?, classes: classes?, written: true })
        });
        let mut rules = all(rules.collect())?;
        if !rules.iter().any(|rule| rule.matches.is_everything()) {
            let classes = unlisted(&form.classes, default?);
            rules.push(TenantRule { matches: Pattern::everything(), weight: Weight::ONE, classes, written: false });
        }
        Some(rules)
    }

    fn granted(&mut self, classes: &[form::Class], names: &[String], rule: usize) -> Option<Vec<ClassIndex>> {
        let pointer = |index| format!("/tenants/{rule}/classes/{index}");
        self.repeated(names.iter().map(String::as_str), "class", pointer);
        let granted = names.iter().enumerate().map(|(index, name)| self.class_named(classes, name, &pointer(index)));
        all(granted.collect())
    }
}

/// What a rule that lists no classes grants: the default class and every class that yields to it.
fn unlisted(classes: &[form::Class], default: ClassIndex) -> Vec<ClassIndex> {
    let rank = classes[default.index()].rank;
    let lower = (0u16..).zip(classes).filter(|(_, class)| class.rank > rank).map(|(index, _)| ClassIndex::new(index));
    std::iter::once(default).chain(lower).collect()
}

fn find(classes: &[form::Class], name: &str) -> Option<ClassIndex> {
    (0u16..).zip(classes).find(|(_, class)| class.name == name).map(|(index, _)| ClassIndex::new(index))
}

fn whole() -> Share {
    Share::new(1.0).expect("1 is a share")
}

fn percent(millionths: u64) -> String {
    let (whole, rest) = (millionths / 10_000, millionths % 10_000);
    if rest == 0 { whole.to_string() } else { format!("{whole}.{rest:04}").trim_end_matches('0').to_owned() }
}
