//! What would have let a request in, in words a newcomer can act on: the policy's key that holds the limit, what it
//! says now, and what the client could do instead.

use crate::admission::{Level, Reason, Rule, Subject, Unit, Until};
use crate::policy::Policy;
use crate::policy::model::{Per, Period};
use crate::units::{Amount, ClassIndex, Measure, PoolIndex, Span, TenantId};

/// What would have let a request in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Advice {
    /// The policy's key that holds the limit, where one does.
    pub(super) key: Option<String>,
    /// What would have let it in.
    pub(super) words: String,
}

/// Whose deadline it was, with the header that set it where a client did.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadline {
    pub(super) until: Option<Until>,
    pub(super) waits_for_dispatch: Option<Span>,
    pub(super) waits_for_answer: Option<Span>,
}

/// The key of a cap on what may be queued.
pub(super) fn queue_key(pool: PoolIndex, level: Level, unit: Unit) -> String {
    let level = match level {
        Level::Session => "per_session_",
        Level::Tenant => "per_tenant_",
        Level::Class => "per_class_",
        Level::Pool => "",
    };
    format!("pools[{}].queue.{level}{}", pool.get(), unit.name())
}

pub(super) fn size_key(pool: PoolIndex) -> String {
    format!("pools[{}].max_request_tokens", pool.get())
}

pub(super) fn breaker_key(pool: PoolIndex) -> String {
    format!("pools[{}].breaker", pool.get())
}

pub(super) fn wait_key(class: ClassIndex) -> String {
    format!("classes[{}].max_wait", class.get())
}

/// The key of a tenant's rule, the first that fits; nothing where the policy has none for it.
pub(super) fn tenant_key(policy: &Policy, tenant: &TenantId) -> Option<String> {
    let rule = policy.tenants.iter().position(|rule| rule.matches.matches(tenant.as_str()))?;
    policy.tenants[rule].written.then(|| format!("tenants[{rule}]"))
}

pub(super) fn weight_key(policy: &Policy, tenant: &TenantId) -> Option<String> {
    tenant_key(policy, tenant).map(|rule| format!("{rule}.weight"))
}

/// Who says how long a request may wait.
pub(super) fn deadline_from(class: ClassIndex, deadline: Deadline) -> String {
    match deadline.until {
        Some(Until::Client(_)) => {
            let by_dispatch = deadline.waits_for_dispatch.is_some_and(|dispatch| {
                // An answer is waited for longer than a dispatch that is to come before it.
                deadline.waits_for_answer.is_none_or(|answer| dispatch <= answer)
            });
            if by_dispatch {
                "the client's header x-tallygate-deadline-ms".into()
            } else {
                "the client's own time limit (x-stainless-read-timeout, x-stainless-timeout or x-envoy-expected-rq-timeout-ms), less the \
                 time an answer takes"
                    .into()
            }
        }
        Some(Until::Class(_)) => wait_key(class),
        Some(Until::Unlimited) | None => "nobody".into(),
    }
}

/// What would have let in a request that the core refused.
pub(super) fn by_core(policy: &Policy, subject: &Subject, reason: &Reason, deadline: Deadline) -> Advice {
    match *reason {
        Reason::QueueFull { level, unit, cap, queued, asked, displaced } => {
            let key = queue_key(subject.pool, level, unit);
            let numbers = Numbers { level, unit, cap, queued, asked, displaced };
            let words = queue_full(policy, subject, &key, numbers);
            Advice { key: Some(key), words }
        }
        Reason::WaitTooLong { predicted, allowed } => waited(
            subject,
            deadline,
            &format!("a limit of {predicted} or more instead of {allowed}, set by"),
            "what is queued before it is served, or when this tenant has less waiting",
        ),
        Reason::Expired { waited: span } => waited(
            subject,
            deadline,
            &format!("a limit longer than {span}, set by"),
            "there is more room in the window, or when this tenant has less waiting and in flight",
        ),
        Reason::TooLarge { tokens, most } => {
            let key = size_key(subject.pool);
            let excess = tokens.saturating_sub(most);
            let words = format!(
                "An input that is at least {excess} tokens shorter, or a {key} of {tokens} or more (now {most}). Trying \
                 the same again never helps."
            );
            Advice { key: Some(key), words }
        }
        Reason::RetryBudget { retries, allowed } => retry_budget(retries, allowed),
        Reason::BreakerTripped { level, left } => breaker_tripped(subject.pool, level, left),
        Reason::BeyondBurst { rule, measure, asked, burst } => {
            let (key, burst) = (amount_key(policy, rule), burst.of(measure));
            let words = format!(
                "A request whose input comes to less, or a {key} of {} or more (now {burst}). Trying the same again never \
                 helps.",
                asked.of(measure)
            );
            Advice { key: Some(key), words }
        }
        Reason::RateLimited { rule, per, measure, asked, left, .. } => {
            rate_limited(policy, rule, per, measure, asked - left)
        }
        Reason::BudgetSpent { rule, per, measure, asked, left, .. } => {
            budget_spent(policy, rule, per, measure, asked - left)
        }
        Reason::Draining => Advice {
            key: None,
            words: "Another gateway, or this one once it has been started again: it is shutting down and takes nobody \
                    new."
                .into(),
        },
    }
}

fn rate_limited(policy: &Policy, rule: Rule, per: Per, measure: Measure, missing: Amount) -> Advice {
    let (key, missing) = (rule_key(rule), missing.of(measure));
    let smaller = match measure {
        Measure::Requests => "",
        _ => " a smaller request, or a smaller max_tokens where the answer is what weighs;",
    };
    let words = format!(
        "Waiting until {missing} more may be used, which the time to come back tells;{smaller} less use by {} \
         before it; or a higher {} (\"{}\").",
        per.whose(),
        amount_key(policy, rule),
        rule_name(policy, rule)
    );
    Advice { key: Some(key), words }
}

fn budget_spent(policy: &Policy, rule: Rule, per: Per, measure: Measure, missing: Amount) -> Advice {
    let (key, missing) = (rule_key(rule), missing.of(measure));
    let smaller = if measure == Measure::Requests { "" } else { "; or a request that takes less" };
    let words = format!(
        "{missing} more in the budget \"{}\" that {} has, by a higher {}{}{smaller}.",
        rule_name(policy, rule),
        per.whose(),
        amount_key(policy, rule),
        next_period(policy, rule)
    );
    Advice { key: Some(key), words }
}

/// The key of a limit or a budget.
pub(super) fn rule_key(rule: Rule) -> String {
    match rule {
        Rule::Limit(index) => format!("limits[{index}]"),
        Rule::Budget(index) => format!("budgets[{index}]"),
    }
}

/// The key that says how much of it there can be at once.
fn amount_key(policy: &Policy, rule: Rule) -> String {
    let key = rule_key(rule);
    match rule {
        Rule::Limit(index) if policy.limits[usize::from(index)].burst != policy.limits[usize::from(index)].amount => {
            format!("{key}.burst")
        }
        Rule::Limit(index) => format!("{key}.{}", policy.limits[usize::from(index)].measure.name()),
        Rule::Budget(index) => format!("{key}.{}", policy.budgets[usize::from(index)].measure.name()),
    }
}

/// What the policy calls it.
pub(super) fn rule_name(policy: &Policy, rule: Rule) -> &str {
    match rule {
        Rule::Limit(index) => &policy.limits[usize::from(index)].name,
        Rule::Budget(index) => &policy.budgets[usize::from(index)].name,
    }
}

fn next_period(policy: &Policy, rule: Rule) -> String {
    match rule {
        Rule::Budget(index) if policy.budgets[usize::from(index)].period != Period::Lifetime => {
            format!(", or the next {}", policy.budgets[usize::from(index)].period.name())
        }
        Rule::Budget(_) | Rule::Limit(_) => String::new(),
    }
}

fn retry_budget(retries: u32, allowed: u32) -> Advice {
    let words = format!(
        "Fewer retries: {retries} of this tenant's in the last minute, and {allowed} may be, which is retries.floor and a \
         retries.ratio of what ended well in it. A first try, or coming back when this answer says, is no retry."
    );
    Advice { key: Some("retries".into()), words }
}

fn breaker_tripped(pool: PoolIndex, level: Level, left: Span) -> Advice {
    let key = breaker_key(pool);
    let whose = match level {
        Level::Tenant => "this tenant's requests, and no other's, were failed by the upstream",
        Level::Session | Level::Class | Level::Pool => "requests of several tenants were failed by the upstream",
    };
    let words = format!(
        "Coming back in {left} or later: {whose}, as {key} counts. An upstream that is well again is found out with one \
         request at a time."
    );
    Advice { key: Some(key), words }
}

fn waited(subject: &Subject, deadline: Deadline, limit: &str, sooner: &str) -> Advice {
    let from = deadline_from(subject.class, deadline);
    let key = matches!(deadline.until, Some(Until::Class(_))).then(|| wait_key(subject.class));
    Advice { key, words: format!("More patience: {limit} {from}. Or coming back when {sooner}.") }
}

#[derive(Clone, Copy)]
struct Numbers {
    level: Level,
    unit: Unit,
    cap: u64,
    queued: u64,
    asked: u64,
    displaced: bool,
}

fn queue_full(policy: &Policy, subject: &Subject, key: &str, numbers: Numbers) -> String {
    let Numbers { level, unit, cap, queued, asked, displaced } = numbers;
    let needed = queued.saturating_add(asked);
    let unit = unit.name();
    let weight = weight_key(policy, &subject.tenant).map_or_else(
        || "a rule of tenants that gives it a greater weight than 1".to_owned(),
        |key| format!("a greater {key}"),
    );
    if asked > cap {
        return format!(
            "A {key} of at least {asked} (now {cap}): as it is, this request may not wait even alone, and is let in only \
             when it can be dispatched at once."
        );
    }
    let excess = needed.saturating_sub(cap);
    match level {
        Level::Session | Level::Tenant => format!(
            "Fewer {unit} of this {} at once: {queued} were taken by who waits or was told to come back, and this request \
             would have added {asked}, so at least {excess} had to be served or cancelled first. Or a {key} of {needed} \
             or more (now {cap}).",
            level.name()
        ),
        Level::Class | Level::Pool if displaced => format!(
            "Fewer {unit} of this tenant's waiting, or {weight}: the {}'s queue was full, and the request that \
             leaves is the latest of whoever holds most of it for its weight. Or a {key} of more than {cap}.",
            level.name()
        ),
        Level::Class | Level::Pool => format!(
            "Less of this tenant's in the queue, or {weight}: the {}'s queue was full, and a newcomer takes the \
             place of another only where its tenant would still hold less of it for its weight. Or a {key} of {needed} \
             or more (now {cap}).",
            level.name()
        ),
    }
}

/// What would have helped a request that the door itself answered, by its code.
pub(super) fn by_door(policy: &Policy, code: &str, words: &str, pool: Option<PoolIndex>) -> Advice {
    let (key, words): (Option<String>, String) = match code {
        "unidentified" if words.contains("not known") => (
            Some("identity.tenant".into()),
            "A key that is in the file that identity.tenant names under api_key; a new key is added there by its SHA-256 \
             (printf %s \"$KEY\" | sha256sum)."
                .into(),
        ),
        "unidentified" => (
            Some("identity.tenant".into()),
            format!(
                "A caller that identity.tenant recognises: {}. Or a fallback at the end of identity.tenant.",
                words.strip_prefix("no tenant: ").unwrap_or(words)
            ),
        ),
        "class_not_granted" => (
            Some("identity.class_not_granted".into()),
            "A wish for a class that the tenant's rule lists under classes, no wish at all, or \
             identity.class_not_granted: use_default, which takes no notice of such a wish."
                .into(),
        ),
        "model_not_found" => {
            let served: Vec<String> = policy.pools.iter().map(models).collect();
            (
                Some("pools".into()),
                format!(
                    "A model that a pool serves, or the name among a pool's models or aliases. Served are: {}.",
                    served.join("; ")
                ),
            )
        }
        "malformed" => (None, "The same request with that put right; it is refused before anything is counted.".into()),
        "unsupported" if words.contains("not metered") => (
            Some("unmetered".into()),
            "A path that is metered, or unmetered: pass in the policy, which lets it through uncharged.".into(),
        ),
        "unsupported" => (None, "Another way to ask for it, as the words say; no setting allows this one.".into()),
        "too_large" => (None, "A smaller body; how many bytes are read is not the policy's to say.".into()),
        "queue_full" => {
            (None, "Coming back when other requests have ended and their bodies' memory is free, or a smaller body.".into())
        }
        "expired" => (
            None,
            "A proxy in front that waits longer than the policy's classes let a request wait (message_timeout in Envoy)."
                .into(),
        ),
        "upstream_unreachable" | "upstream_timed_out" => {
            let key = pool.map(|pool| format!("pools[{}].upstream", pool.get()));
            let whose = key.as_deref().unwrap_or("the upstream");
            let more = if code == "upstream_timed_out" { " in the time it is given (serve --first-byte-timeout)" } else { "" };
            let words = format!(
                "Nothing of this gateway's: the request was let through, and its upstream ({whose}, else serve \
                 --upstream) has to answer{more}."
            );
            (key, words)
        }
        _ => (None, "A fault of the gateway's; its log says more.".into()),
    };
    Advice { key, words }
}

fn models(pool: &crate::policy::model::Pool) -> String {
    const SHOWN: usize = 8;
    let mut names: Vec<String> = pool.models.iter().take(SHOWN).map(ToString::to_string).collect();
    if pool.models.len() > SHOWN {
        names.push("…".into());
    }
    format!("{} in pool {}", names.join(", "), pool.name)
}

#[cfg(test)]
mod tests {
    use super::by_door;
    use crate::policy;

    /// What the core refuses with; its advice is made from the reason itself.
    const OF_THE_CORE: [&str; 6] =
        ["wait_too_long", "draining", "rate_limited", "budget_spent", "retry_budget", "breaker_tripped"];

    #[test]
    fn every_reason_that_the_readme_tells_has_advice_of_its_own() {
        let policy = policy::parse("p", "version: 1\n", |_| panic!("no keys")).expect("valid");
        let readme = include_str!("../../../README.md");
        let (_, list) = readme.split_once("The reasons are ").expect("a list of the reasons");
        let (list, _) = list.split_once(". ").expect("which ends");
        let advice = |code: &str| by_door(&policy, code, "", None).words;
        let fault = advice("internal");
        let codes = list.split('`').skip(1).step_by(2).filter(|code| !OF_THE_CORE.contains(code));
        for code in codes.filter(|code| *code != "internal") {
            assert_ne!(advice(code), fault, "{code} is no fault of the gateway's");
        }
    }
}
