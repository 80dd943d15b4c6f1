use super::{Booking, Fact, Findings, Party, Rules, What, audit, books, max_min};
use crate::units::{
    ClassIndex, Instant, Limit, PoolIndex, RequestId, SessionId, TenantId, Tokens, VirtualTokens, Weight,
};

fn party(tenant: &str, weight: f64) -> Party {
    let weight = Weight::new(weight).expect("valid");
    Party { pool: PoolIndex::new(0), class: ClassIndex::new(0), tenant: TenantId::from(tenant), session: None, weight }
}

fn joined(party: Party) -> What {
    let (input_cost, output_price) = (VirtualTokens::whole(10), VirtualTokens::whole(2));
    What::Joined { party, size: Tokens::new(20), input_cost, output_price }
}

fn served(service: u64) -> What {
    What::Served { service: VirtualTokens::whole(service), held: Tokens::new(20) }
}

fn window(requests: u32) -> Rules {
    let windows = Some(vec![(Limit::AtMost(requests), Limit::Unlimited)]);
    Rules { per_session: Limit::Unlimited, per_tenant: Limit::Unlimited, windows }
}

fn judge(rules: &Rules, log: Vec<(u64, u64, What)>) -> Findings {
    let fact = |(secs, request, what)| Fact {
        at: Instant::from_nanos(secs * 1_000_000_000),
        request: RequestId::new(request),
        what,
    };
    audit(&log.into_iter().map(fact).collect::<Vec<_>>(), rules)
}

#[test]
fn water_filling_meets_small_demands_and_divides_the_rest_by_weight() {
    let close = |got: Vec<f64>, want: &[f64]| got.iter().zip(want).all(|(got, want)| (got - want).abs() < 1e-9);
    assert!(close(max_min(100.0, &[(1.0, 10.0), (1.0, 200.0), (2.0, 200.0)]), &[10.0, 30.0, 60.0]));
    assert!(close(max_min(100.0, &[(1.0, 10.0), (1.0, 20.0)]), &[10.0, 20.0]), "demands below the capacity are met");
    assert!(close(max_min(100.0, &[(1.0, 90.0), (0.0, 90.0)]), &[90.0, 0.0]), "no weight, no share");
    assert!(max_min(100.0, &[]).is_empty());
}

/// Two tenants wait throughout while one of them is served `unfair` requests of 30 virtual tokens in a row.
fn one_sided(unfair: u64, weight: f64) -> Findings {
    let mut log = vec![(0, 1_000, joined(party("a", weight))), (0, 2_000, joined(party("b", 1.0)))];
    log.extend((0..=unfair).map(|request| (0, request, joined(party("b", 1.0)))));
    for request in 0..=unfair {
        log.push((request, request, What::Dispatched));
        log.push((request + 1, request, served(30)));
        log.push((request + 1, request, What::Ended));
    }
    log.push((unfair + 1, 1_000, What::Dispatched));
    log.push((unfair + 2, 1_000, What::Ended));
    log.push((unfair + 2, 2_000, What::Dispatched));
    log.push((unfair + 3, 2_000, What::Ended));
    judge(&window(1), log)
}

#[test]
fn a_run_within_the_bound_passes_and_one_beyond_it_does_not() {
    // M_g is one request of 20 tokens at 2 each: U = 40, the bound 80.
    let fair = one_sided(1, 1.0);
    assert_eq!((&fair.wrong, &fair.drifts), (&vec![], &vec![]));
    assert!((fair.bound_used - 60.0 / 80.0).abs() < 1e-9 && fair.most_in_flight == Tokens::new(20));
    let unfair = one_sided(2, 1.0);
    assert_eq!((unfair.wrong.len(), unfair.drifts.len()), (0, 1), "{unfair:?}");
    assert!(unfair.drifts[0].contains("drifted 90.0 apart"), "{:?}", unfair.drifts);
    // The lighter of two weights stretches the bound.
    assert!(one_sided(2, 0.5).drifts.is_empty());
}

#[test]
fn a_difference_counts_only_while_both_are_eligible() {
    // b is served at length while a has nothing waiting; then both wait and are served once.
    let mut log: Vec<(u64, u64, What)> = (0..20).map(|request| (0, request, joined(party("b", 1.0)))).collect();
    for request in 0..10 {
        log.push((request, request, What::Dispatched));
        log.push((request + 1, request, served(30)));
        log.push((request + 1, request, What::Ended));
    }
    log.push((10, 100, joined(party("a", 1.0))));
    for (turn, request) in (10..).zip([100_u64].into_iter().chain(10..20)) {
        log.push((turn, request, What::Dispatched));
        log.push((turn + 1, request, served(30)));
        log.push((turn + 1, request, What::Ended));
    }
    let found = judge(&window(1), log);
    assert_eq!((found.wrong, found.drifts), (vec![], vec![]));
}

#[test]
fn idling_beside_a_waiting_request_is_seen() {
    let log = vec![
        (0, 1, joined(party("a", 1.0))),
        (1, 1, What::Dispatched),
        (1, 2, joined(party("a", 1.0))),
        (2, 1, What::Ended),
        (2, 2, What::Dispatched),
        (3, 2, What::Ended),
    ];
    let found = judge(&window(2), log.clone());
    assert_eq!(found.wrong.len(), 2, "from 0 to 1 with nothing in flight, from 1 to 2 with one: {:?}", found.wrong);
    assert_eq!(judge(&window(1), log).wrong.len(), 1, "a window of one was full from 1 to 2");
}

#[test]
fn who_is_held_by_his_own_cap_is_not_eligible_and_breaking_it_is_seen() {
    let session = Party { session: Some(SessionId::from("s")), ..party("a", 1.0) };
    let rules = Rules { per_session: Limit::AtMost(1), ..window(2) };
    let log = vec![
        (0, 1, joined(session.clone())),
        (0, 2, joined(session)),
        (0, 1, What::Dispatched),
        (1, 1, What::Ended),
        (1, 2, What::Dispatched),
        (2, 2, What::Ended),
    ];
    assert!(judge(&rules, log.clone()).wrong.is_empty());
    assert_eq!(judge(&window(2), log.clone()).wrong.len(), 1, "without the cap the second should have gone at once");
    assert_eq!(judge(&rules, log).most_of_a_session, 1);
    let rules = Rules { per_tenant: Limit::AtMost(1), ..window(2) };
    let both = vec![
        (0, 1, joined(party("a", 1.0))),
        (0, 2, joined(party("a", 1.0))),
        (0, 1, What::Dispatched),
        (0, 2, What::Dispatched),
        (1, 1, What::Ended),
        (1, 2, What::Ended),
    ];
    assert!(judge(&rules, both).wrong[0].contains("over its cap"));
}

#[test]
fn coming_and_going_is_counted() {
    let log = vec![
        (0, 1, joined(party("a", 1.0))),
        (0, 1, What::Dispatched),
        (1, 1, What::Ended),
        (1, 1, What::Ended),
        (1, 2, What::Dispatched),
        (2, 3, joined(party("a", 1.0))),
    ];
    let found = judge(&Rules { windows: None, ..window(1) }, log);
    assert_eq!(found.wrong.len(), 3, "ended twice, never joined, still waiting: {:?}", found.wrong);
}

#[test]
fn books_that_do_not_add_up_are_seen() {
    let account = (PoolIndex::new(0), ClassIndex::new(0), TenantId::from("a"));
    let booking = |request, reserved, settled, refunded| {
        let [reserved, settled, refunded] = [reserved, settled, refunded].map(VirtualTokens::whole);
        Booking { account: account.clone(), request: RequestId::new(request), reserved, settled, refunded }
    };
    let good = [booking(1, 100, 0, 0), booking(2, 50, 0, 0), booking(1, 0, 60, 40)];
    let (totals, wrong) = books(&good, |request| request == RequestId::new(2));
    assert_eq!((wrong, totals[&account].live), (vec![], VirtualTokens::whole(50)));
    assert_eq!(books(&good, |_| false).1.len(), 1, "request 2 holds something after its end");
    let bad = [booking(1, 100, 60, 50), booking(2, 10, 0, 0)];
    let (totals, wrong) = books(&bad, |_| true);
    assert_eq!(wrong.len(), 1, "{wrong:?}");
    assert!(totals[&account].balance(), "the totals alone would hide it");
}
