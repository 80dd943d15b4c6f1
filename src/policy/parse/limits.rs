//! Limits and budgets: one amount each, of something that is known, for whom and for how long.
//!
//! What a rule's type cannot say is said here: that it counts one thing, that its class, pools and zone exist, that
//! waiting for it holds nobody else back, and that whatever is counted in money has a price.

use jiff::tz::TimeZone;

use crate::units::{Amount, ClassIndex, Measure, PoolIndex, Share, Span};
use crate::yaml::did_you_mean;

use super::super::Pattern;
use super::super::model::{Budget, Exceeded, Per, Period, Rate, Scope, Spent};
use super::{Checks, all, form, values};

/// The longest period of a rate: a longer one is a budget's.
const LONGEST_PERIOD: Span = Span::from_secs(31 * 24 * 3_600);

/// Which requests a rule concerns, as written.
struct Written<'form> {
    tenants: &'form [form::Pattern],
    models: &'form [form::Pattern],
    classes: &'form [String],
    pools: &'form [String],
}

impl Checks<'_> {
    pub(super) fn limits(&mut self, form: &form::Policy) -> Option<Vec<Rate>> {
        self.repeated(form.limits.iter().map(|limit| limit.name.as_str()), "limit", |index| {
            format!("/limits/{index}/name")
        });
        all(form.limits.iter().enumerate().map(|(index, limit)| self.limit(form, index, limit)).collect())
    }

    fn limit(&mut self, policy: &form::Policy, index: usize, form: &form::Limit) -> Option<Rate> {
        let at = format!("/limits/{index}");
        let counts = [
            (Measure::Requests, form.requests),
            (Measure::Tokens, form.tokens),
            (Measure::InputTokens, form.input_tokens),
            (Measure::OutputTokens, form.output_tokens),
            (Measure::Service, form.service),
        ];
        let counts = counts.map(|(measure, count)| (measure, count.map(|count| units(count, measure))));
        let name = self.gate(&format!("{at}/name"), values::name(&form.name));
        let counted = self.exactly_one(&at, &counts);
        let every = self.gate(&format!("{at}/every"), period(&form.every));
        let exceeded = self.exceeded(policy, &at, form);
        let (tenants, models, classes, pools) = (&form.tenants, &form.models, &form.classes, &form.pools);
        let scope = self.scope(policy, &at, &Written { tenants, models, classes, pools });
        let (measure, amount) = counted?;
        let burst = form.burst.map_or(amount, |burst| units(burst, measure));
        Some(Rate {
            name: name?,
            scope: scope?,
            per: per(form.per),
            measure,
            amount,
            every: every?,
            burst,
            exceeded: exceeded?,
        })
    }

    fn exceeded(&mut self, policy: &form::Policy, at: &str, form: &form::Limit) -> Option<Exceeded> {
        match &form.when_exceeded {
            form::WhenExceeded::Refuse => Some(Exceeded::Refuse),
            form::WhenExceeded::Shadow => Some(Exceeded::Shadow),
            form::WhenExceeded::Demote(class) => self
                .lower_class(policy, class, &form.classes, &format!("{at}/when_exceeded/demote"))
                .map(Exceeded::Demote),
            form::WhenExceeded::Queue if matches!(form.per, form::Per::Tenant | form::Per::Session) => {
                Some(Exceeded::Queue)
            }
            form::WhenExceeded::Queue => {
                let message = "only what is counted per tenant or per session can wait in its queue without holding \
                               others up; refuse, demote or shadow instead, or count per tenant or session";
                self.mistake(&format!("{at}/when_exceeded"), message);
                None
            }
        }
    }

    pub(super) fn budgets(&mut self, form: &form::Policy) -> Option<Vec<Budget>> {
        self.repeated(form.budgets.iter().map(|budget| budget.name.as_str()), "budget", |index| {
            format!("/budgets/{index}/name")
        });
        all(form.budgets.iter().enumerate().map(|(index, budget)| self.budget(form, index, budget)).collect())
    }

    fn budget(&mut self, policy: &form::Policy, index: usize, form: &form::Budget) -> Option<Budget> {
        let at = format!("/budgets/{index}");
        let counts = [
            (Measure::Requests, form.requests.map(|count| units(count, Measure::Requests))),
            (Measure::Tokens, form.tokens.map(|count| units(count, Measure::Tokens))),
            (Measure::Service, form.service.map(|count| units(count, Measure::Service))),
            (Measure::Money, form.money.map(money)),
        ];
        let name = self.gate(&format!("{at}/name"), values::name(&form.name));
        let counted = self.exactly_one(&at, &counts);
        if form.money.is_some() {
            self.every_model_has_a_price(policy, &format!("{at}/money"));
        }
        let zone = TimeZone::get(&form.zone).map_err(|_| {
            format!(
                "{:?} is no zone of the tz database; write it as in Europe/Berlin, or leave it out for UTC",
                form.zone
            )
        });
        let zone = self.gate(&format!("{at}/zone"), zone);
        let spent = match &form.when_spent {
            form::WhenSpent::Refuse => Some(Spent::Refuse),
            form::WhenSpent::Shadow => Some(Spent::Shadow),
            form::WhenSpent::Demote(class) => {
                self.lower_class(policy, class, &form.classes, &format!("{at}/when_spent/demote")).map(Spent::Demote)
            }
        };
        let warn_at = self.warnings(&at, &form.warn_at);
        let (tenants, models, classes, pools) = (&form.tenants, &form.models, &form.classes, &form.pools);
        let scope = self.scope(policy, &at, &Written { tenants, models, classes, pools });
        let per = self.counted_per(&at, form);
        let period = match (form.period, zone?) {
            (form::Period::Hour, zone) => Period::Hour(zone),
            (form::Period::Day, zone) => Period::Day(zone),
            (form::Period::Month, zone) => Period::Month(zone),
            (form::Period::Session | form::Period::Task, _) => Period::Lifetime,
        };
        let (measure, amount) = counted?;
        Some(Budget {
            name: name?,
            scope: scope?,
            per: per?,
            measure,
            amount,
            period,
            spent: spent?,
            warn_at: warn_at?,
        })
    }

    /// Whose use a budget counts together, which a period that is a life decides.
    fn counted_per(&mut self, at: &str, form: &form::Budget) -> Option<Per> {
        let whole_life = match form.period {
            form::Period::Session => form::Per::Session,
            form::Period::Task => form::Per::Task,
            form::Period::Hour | form::Period::Day | form::Period::Month => {
                return Some(per(form.per.unwrap_or_default()));
            }
        };
        if form.per.is_some_and(|written| written != whole_life) {
            let whole_life = per(whole_life).name();
            let message = format!("a budget for the life of a {whole_life} counts per {whole_life}; leave this out");
            self.mistake(&format!("{at}/per"), message);
            return None;
        }
        if form.zone != "UTC" {
            self.mistake(&format!("{at}/zone"), "has no meaning for a budget that no calendar ends; leave it out");
            return None;
        }
        Some(per(whole_life))
    }

    fn warnings(&mut self, at: &str, written: &[form::Percentage]) -> Option<Vec<Share>> {
        let parts = written.iter().enumerate();
        let parts = parts.map(|(nth, part)| self.gate(&format!("{at}/warn_at/{nth}"), values::percentage(part)));
        let parts = all(parts.collect())?;
        if !parts.is_sorted_by(|a, b| a < b) {
            self.mistake(&format!("{at}/warn_at"), "must rise from one entry to the next");
        }
        Some(parts)
    }

    /// The one amount that is written, and what it is of.
    fn exactly_one(&mut self, at: &str, counts: &[(Measure, Option<Amount>)]) -> Option<(Measure, Amount)> {
        let written: Vec<_> = counts.iter().filter_map(|(measure, count)| Some((*measure, (*count)?))).collect();
        let names = || counts.iter().map(|(measure, _)| measure.name()).collect::<Vec<_>>().join(", ");
        match written[..] {
            [one] => Some(one),
            [] => {
                self.mistake(at, format!("says not how much; give one of {}", names()));
                None
            }
            [_, (second, _), ..] => {
                let message = format!("counts one thing only; give each of {} an entry of its own", names());
                self.mistake(&format!("{at}/{}", second.name()), message);
                None
            }
        }
    }

    fn every_model_has_a_price(&mut self, policy: &form::Policy, pointer: &str) {
        let models = &policy.cost.models;
        let covers_all = models.iter().any(|model| model.matches.0.bytes().all(|byte| byte == b'*'));
        if !covers_all || models.iter().any(|model| model.price.is_none()) {
            let message = "needs a price for every model, or some would cost nothing: give each entry of cost.models \
                           its `price`, and end the list with an entry that matches \"*\"";
            self.mistake(pointer, message);
        }
    }

    /// A class to demote to, which some class that the rule concerns must come before.
    fn lower_class(&mut self, policy: &form::Policy, to: &str, concerned: &[String], at: &str) -> Option<ClassIndex> {
        let found = self.class_named(&policy.classes, to, at)?;
        let rank = policy.classes[found.index()].rank;
        let concerned = |class: &&form::Class| concerned.is_empty() || concerned.contains(&class.name);
        if !policy.classes.iter().filter(concerned).any(|class| class.rank < rank) {
            let message = format!(
                "none of the classes this rule concerns comes before `{to}`, so it would demote nobody; name a class \
                 with a greater `rank`, or refuse"
            );
            self.mistake(at, message);
        }
        Some(found)
    }

    /// Notes each model that is named and no pool serves.
    fn served(&mut self, policy: &form::Policy, models: &[form::Pattern], at: &str) {
        let serves = |pool: &form::Pool, model: &str| {
            pool.models.iter().any(|served| Pattern::new(&served.0).is_ok_and(|served| served.matches(model)))
        };
        for (nth, form::Pattern(model)) in models.iter().enumerate() {
            if !model.contains('*') && !policy.pools.iter().any(|pool| serves(pool, model)) {
                let message =
                    "no pool serves a model of this name (aliases are applied before), so it would concern nobody";
                self.mistake(&format!("{at}/models/{nth}"), message);
            }
        }
    }

    fn scope(&mut self, policy: &form::Policy, at: &str, written: &Written<'_>) -> Option<Scope> {
        self.served(policy, written.models, at);
        let mut patterns = |key: &str, written: &[form::Pattern]| {
            let patterns = written.iter().enumerate();
            let patterns =
                patterns.map(|(nth, pattern)| self.gate(&format!("{at}/{key}/{nth}"), Pattern::new(&pattern.0)));
            all(patterns.collect())
        };
        let (tenants, models) = (patterns("tenants", written.tenants), patterns("models", written.models));
        let classes = written.classes.iter().enumerate();
        let classes: Vec<Option<ClassIndex>> = classes
            .map(|(nth, class)| self.class_named(&policy.classes, class, &format!("{at}/classes/{nth}")))
            .collect();
        let pools = written.pools.iter().enumerate();
        let pools: Vec<Option<PoolIndex>> =
            pools.map(|(nth, pool)| self.pool_named(&policy.pools, pool, &format!("{at}/pools/{nth}"))).collect();
        Some(Scope { tenants: tenants?, models: models?, classes: all(classes)?, pools: all(pools)? })
    }

    fn pool_named(&mut self, pools: &[form::Pool], name: &str, pointer: &str) -> Option<PoolIndex> {
        let found = (0u16..).zip(pools).find(|(_, pool)| pool.name == name).map(|(index, _)| PoolIndex::new(index));
        if found.is_none() {
            let names: Vec<&str> = pools.iter().map(|pool| pool.name.as_str()).collect();
            let guess = did_you_mean(name, &names);
            self.mistake(pointer, format!("there is no pool of this name; there are: {}{guess}", names.join(", ")));
        }
        found
    }
}

fn units(count: u64, measure: Measure) -> Amount {
    Amount::from_parts(i128::from(count) * measure.parts())
}

#[expect(clippy::cast_possible_truncation, reason = "the schema bounds it to 1e12, and a float's `as` saturates")]
fn money(written: f64) -> Amount {
    Amount::from_parts((written * 1e6).round() as i128 * (Measure::Money.parts() / 1_000_000))
}

fn period(written: &form::Duration) -> Result<Span, String> {
    let span = values::duration(written)?;
    if span == Span::ZERO || span > LONGEST_PERIOD {
        return Err("must be longer than nothing and at most 31 days; for a longer one use a budget".into());
    }
    Ok(span)
}

fn per(form: form::Per) -> Per {
    match form {
        form::Per::Tenant => Per::Tenant,
        form::Per::User => Per::User,
        form::Per::Session => Per::Session,
        form::Per::Task => Per::Task,
        form::Per::Class => Per::Class,
        form::Per::Model => Per::Model,
        form::Per::Pool => Per::Pool,
        form::Per::Global => Per::Global,
    }
}
