//! What speaks against an upstream: who failed of late, and of how many.
//!
//! *Decides* whether a breaker's rule holds, for one tenant and for the pool. *Formulas*, over what ended within the
//! rule's time, `f` being failures and `n` requests, by tenant:
//!
//! ```text
//! a tenant   f ≥ number;                  or n ≥ at least and f ≥ part · n
//! the pool   Σ min(f, ⌈number/2⌉) ≥ number;  or Σ n ≥ at least and Σ f ≥ part · Σ n, and without the tenant that failed
//!            most still Σ n ≥ ⌈at least/2⌉ and Σ f ≥ part · Σ n
//! ```
//!
//! so that no tenant speaks for more than half of them. *Bound:* the last [`MOST_SEEN`] ends; only failures are kept
//! where no part is asked for. *Never* looks at a request that says nothing.

use std::collections::{BTreeMap, VecDeque};

use crate::policy::model::{self, FailureRatio};
use crate::units::{Instant, Span, TenantId};

/// The most ends that are looked back on.
pub(super) const MOST_SEEN: usize = 4_096;

/// What ended of late.
#[derive(Debug)]
pub(super) struct Evidence {
    within: Span,
    /// Whether what went well matters.
    keeps_good: bool,
    seen: VecDeque<Seen>,
    tenants: BTreeMap<TenantId, Count>,
}

#[derive(Debug)]
struct Seen {
    at: Instant,
    tenant: TenantId,
    failed: u32,
    /// When to come back, where its answer said so.
    told: Option<Instant>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Count {
    failed: u32,
    all: u32,
}

impl Count {
    fn plus(self, other: Self) -> Self {
        Self { failed: self.failed + other.failed, all: self.all + other.all }
    }

    fn minus(self, other: Self) -> Self {
        Self { failed: self.failed - other.failed, all: self.all - other.all }
    }

    /// Whether such a part of them failed.
    fn exceeds(self, ratio: FailureRatio) -> bool {
        let (failed, all) = (u64::from(self.failed), u64::from(self.all));
        self.failed > 0 && failed * 1_000_000 >= u64::from(ratio.share.millionths()) * all
    }
}

impl Evidence {
    pub(super) fn new(rule: Option<&model::Breaker>) -> Self {
        Self {
            within: rule.map_or(Span::ZERO, |rule| rule.within),
            keeps_good: rule.is_some_and(|rule| rule.ratio.is_some()),
            seen: VecDeque::new(),
            tenants: BTreeMap::new(),
        }
    }

    /// A tenant's request ended well.
    pub(super) fn good(&mut self, now: Instant, tenant: &TenantId) {
        if self.keeps_good {
            self.add(now, tenant, 0, None);
        }
    }

    /// A tenant's request failed, and its answer perhaps named a moment to come back.
    pub(super) fn failed(&mut self, now: Instant, tenant: &TenantId, told: Option<Instant>) {
        self.add(now, tenant, 1, told);
    }

    fn add(&mut self, now: Instant, tenant: &TenantId, failed: u32, told: Option<Instant>) {
        let oldest = Instant::from_nanos(now.as_nanos().saturating_sub(self.within.as_nanos()));
        while self.seen.front().is_some_and(|seen| seen.at < oldest || self.seen.len() >= MOST_SEEN) {
            if let Some(Seen { tenant, failed, .. }) = self.seen.pop_front() {
                self.discount(&tenant, Count { failed, all: 1 });
            }
        }
        let count = self.tenants.entry(tenant.clone()).or_default();
        *count = count.plus(Count { failed, all: 1 });
        self.seen.push_back(Seen { at: now, tenant: tenant.clone(), failed, told });
    }

    fn discount(&mut self, tenant: &TenantId, gone: Count) {
        if let Some(count) = self.tenants.get_mut(tenant) {
            *count = count.minus(gone);
            if count.all == 0 {
                self.tenants.remove(tenant);
            }
        }
    }

    /// Forgets what one tenant saw.
    pub(super) fn forget(&mut self, tenant: &TenantId) {
        self.seen.retain(|seen| seen.tenant != *tenant);
        self.tenants.remove(tenant);
    }

    pub(super) fn clear(&mut self) {
        self.seen.clear();
        self.tenants.clear();
    }

    /// The latest moment to come back that was named, to a tenant or to all, if it has not passed.
    pub(super) fn told(&self, now: Instant, tenant: Option<&TenantId>) -> Option<Instant> {
        let seen = self.seen.iter().filter(|seen| tenant.is_none_or(|tenant| seen.tenant == *tenant));
        seen.filter_map(|seen| seen.told).max().filter(|told| *told > now)
    }

    /// Whether a tenant's own requests say that the upstream fails it.
    pub(super) fn trips(&self, rule: &model::Breaker, tenant: &TenantId) -> bool {
        let count = self.tenants.get(tenant).copied().unwrap_or_default();
        rule.failures.is_some_and(|failures| count.failed >= failures)
            || rule.ratio.is_some_and(|ratio| count.all >= ratio.of_at_least && count.exceeds(ratio))
    }

    /// Whether the requests of all tenants say that the upstream fails, no tenant speaking for more than half of them.
    pub(super) fn trips_all(&self, rule: &model::Breaker) -> bool {
        let by_number = rule.failures.is_some_and(|failures| {
            let most = failures.div_ceil(2);
            let sum: u32 = self.tenants.values().map(|count| count.failed.min(most)).sum();
            sum >= failures
        });
        by_number || rule.ratio.is_some_and(|ratio| self.trips_all_by(ratio))
    }

    fn trips_all_by(&self, ratio: FailureRatio) -> bool {
        let all = self.tenants.values().fold(Count::default(), |sum, count| sum.plus(*count));
        let worst = self.tenants.values().max_by_key(|count| count.failed).copied().unwrap_or_default();
        let others = all.minus(worst);
        let half = ratio.of_at_least.div_ceil(2);
        all.all >= ratio.of_at_least && all.exceeds(ratio) && others.all >= half && others.exceeds(ratio)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::{Count, Evidence, MOST_SEEN};
    use crate::admission::tests::world::{at, breaker};
    use crate::policy::model::{self, FailureRatio};
    use crate::units::{Instant, Share, Span, TenantId};

    /// Whether the counts agree with what was seen.
    pub(in crate::admission) fn agree(evidence: &Evidence) -> bool {
        let mut counts = std::collections::BTreeMap::<&TenantId, Count>::new();
        for seen in &evidence.seen {
            let count = counts.entry(&seen.tenant).or_default();
            *count = count.plus(Count { failed: seen.failed, all: 1 });
        }
        counts.into_iter().eq(evidence.tenants.iter().map(|(tenant, count)| (tenant, *count)))
    }

    fn rule() -> model::Breaker {
        model::Breaker { failures: Some(5), within: Span::from_secs(10), ..breaker() }
    }

    fn fail(evidence: &mut Evidence, tenant: &str, times: u32, secs: f64) {
        for _ in 0..times {
            evidence.failed(at(secs), &TenantId::from(tenant), None);
        }
    }

    #[test]
    fn one_tenant_speaks_for_at_most_half_of_the_failures() {
        let rule = rule();
        let mut evidence = Evidence::new(Some(&rule));
        fail(&mut evidence, "poison", 1_000, 1.0);
        assert!(evidence.trips(&rule, &TenantId::from("poison")) && !evidence.trips_all(&rule));
        fail(&mut evidence, "a", 1, 1.0);
        assert!(!evidence.trips_all(&rule), "three of the one, one of the other");
        fail(&mut evidence, "b", 1, 1.0);
        assert!(evidence.trips_all(&rule) && !evidence.trips(&rule, &TenantId::from("a")));
        assert!(agree(&evidence));
    }

    #[test]
    fn what_is_older_than_the_rules_time_is_forgotten() {
        let rule = rule();
        let mut evidence = Evidence::new(Some(&rule));
        fail(&mut evidence, "a", 4, 0.0);
        fail(&mut evidence, "a", 1, 10.0);
        assert!(evidence.trips(&rule, &TenantId::from("a")), "ten seconds ago is within ten seconds");
        fail(&mut evidence, "a", 1, 10.1);
        assert!(!evidence.trips(&rule, &TenantId::from("a")));
        assert!(agree(&evidence));
    }

    #[test]
    fn a_part_needs_enough_requests_and_holds_without_the_worst_tenant() {
        let ratio = FailureRatio { share: Share::new(0.5).expect("valid"), of_at_least: 10 };
        let rule = model::Breaker { failures: None, ratio: Some(ratio), ..rule() };
        let mut evidence = Evidence::new(Some(&rule));
        fail(&mut evidence, "poison", 9, 1.0);
        assert!(!evidence.trips(&rule, &TenantId::from("poison")), "nine are too few");
        fail(&mut evidence, "poison", 90, 1.0);
        for _ in 0..5 {
            evidence.good(at(1.0), &TenantId::from("a"));
        }
        assert!(evidence.trips(&rule, &TenantId::from("poison")) && !evidence.trips_all(&rule));
        fail(&mut evidence, "b", 4, 1.0);
        assert!(!evidence.trips_all(&rule), "four of nine");
        fail(&mut evidence, "b", 1, 1.0);
        assert!(evidence.trips_all(&rule), "five of ten, without the worst");
        assert!(agree(&evidence));
    }

    #[test]
    fn evidence_is_bounded_and_the_latest_word_counts() {
        let rule = rule();
        let mut evidence = Evidence::new(Some(&rule));
        for number in 0..MOST_SEEN * 2 {
            evidence.failed(at(1.0), &TenantId::from(format!("t{number}").as_str()), Some(at(9.0)));
        }
        assert_eq!((evidence.seen.len(), evidence.tenants.len()), (MOST_SEEN, MOST_SEEN));
        let a = TenantId::from("a");
        evidence.failed(at(1.0), &a, Some(at(5.0)));
        assert_eq!((evidence.told(at(2.0), None), evidence.told(at(9.0), None)), (Some(at(9.0)), None::<Instant>));
        assert_eq!(evidence.told(at(2.0), Some(&a)), Some(at(5.0)));
        evidence.forget(&a);
        assert!(agree(&evidence));
    }
}
