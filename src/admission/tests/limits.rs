//! Rates and budgets, through the whole core.

use std::collections::BTreeMap;

use jiff::tz::TimeZone;
use proptest::prelude::*;

use super::audit::cases;
use super::world::{Ask, World, at, class, of, policy};
use crate::admission::{
    DebitNumber, Event, Input, Keeping, Level, Options, Outcome, Owner, Prospect, Reason, Reported, Restored, Retry,
    Rule,
};
use crate::policy::Policy;
use crate::policy::model::{Budget, Exceeded, Per, Period, QueueCap, Rate, Scope, Spent, Window};
use crate::units::{
    Amount, Calendar, ClassIndex, Instant, Limit, Measure, PoolIndex, RequestId, Share, Span, TenantId, Tokens,
    UnixTime, Usage,
};

fn parts(parts: i128) -> Amount {
    Amount::from_parts(parts)
}

fn rate(per: Per, measure: Measure, amount: i128, secs: u64, burst: i128) -> Rate {
    let (amount, burst, every) = (parts(amount), parts(burst), Span::from_secs(secs));
    Rate { name: "r".into(), scope: Scope::default(), per, measure, amount, every, burst, exceeded: Exceeded::Refuse }
}

fn budget(per: Per, measure: Measure, amount: i128, period: Period) -> Budget {
    let (scope, amount) = (Scope::default(), parts(amount));
    Budget { name: "b".into(), scope, per, measure, amount, period, spent: Spent::Refuse, warn_at: Vec::new() }
}

fn roomy() -> Policy {
    let mut policy = policy();
    policy.pools[0].window = Window { tokens: Limit::Unlimited, requests: Limit::AtMost(1_000) };
    policy
}

fn limited(limits: Vec<Rate>) -> Policy {
    Policy { limits, ..roomy() }
}

fn budgeted(budgets: Vec<Budget>) -> Policy {
    Policy { budgets, ..roomy() }
}

/// Why a request was refused, if it was.
fn refused(world: &World, request: RequestId) -> Option<Reason> {
    world.refusal(request).map(|refusal| refusal.reason)
}

#[test]
fn what_is_expected_is_held_and_what_was_used_is_settled_with_debt_and_refund() {
    let mut world = World::new(limited(vec![rate(Per::Tenant, Measure::Tokens, 100, 1, 1_000)]));
    let first = world.ask(&of("a"));
    let left = |world: &World, request| world.ticket(request).expect("let through").left.rules[0].left;
    assert_eq!(left(&world, first), parts(800), "200 are held");
    world.end(first, Outcome::Completed, Reported::Final(Usage::plain(Tokens::new(100), Tokens::new(20))));
    let second = world.ask(&of("a"));
    assert_eq!(left(&world, second), parts(680), "80 came back and 200 are held");
    world.progress(second, 150);
    let third = world.ask(&of("a"));
    assert_eq!(left(&world, third), parts(430), "50 more than expected were produced");
    world.end(third, Outcome::Completed, Reported::Final(Usage::plain(Tokens::new(100), Tokens::new(900))));
    let fourth = world.ask(&of("a"));
    let Some(Reason::RateLimited { left, asked, .. }) = refused(&world, fourth) else { panic!("it is refused") };
    assert_eq!((left, asked), (parts(-370), parts(200)), "a debt is kept");
    let other = world.ask(&of("b"));
    assert!(world.ticket(other).is_some(), "of another tenant");
    world.at(5.7);
    let fifth = world.ask(&of("a"));
    assert!(world.ticket(fifth).is_some(), "and paid by waiting");
}

#[test]
fn what_leaves_undispatched_gives_all_of_it_back() {
    let mut policy = limited(vec![rate(Per::Tenant, Measure::Requests, 1, 1_000, 3)]);
    policy.pools[0].window.requests = Limit::AtMost(1);
    let mut world = World::new(policy);
    let _running = world.ask(&of("a"));
    let cancelled = world.ask(&of("a"));
    let expired = world.ask(&Ask { deadline: Some(1.0), ..of("a") });
    let refused_now = world.ask(&of("a"));
    assert!(matches!(refused(&world, refused_now), Some(Reason::RateLimited { .. })));
    world.feed(Input::Cancel(cancelled));
    world.tick(1.0);
    assert!(matches!(refused(&world, expired), Some(Reason::Expired { .. })));
    for _ in 0..2 {
        let again = world.ask(&of("a"));
        assert_eq!(refused(&world, again), None);
    }
    let beyond = world.ask(&of("a"));
    assert!(matches!(refused(&world, beyond), Some(Reason::RateLimited { .. })));
}

#[test]
fn all_that_concern_a_request_are_checked_before_any_is_charged() {
    let limits = vec![
        rate(Per::Tenant, Measure::Tokens, 1, 1, 1_000),
        rate(Per::Global, Measure::Requests, 1, 60, 2),
        rate(Per::User, Measure::OutputTokens, 1, 1, 150),
    ];
    let mut world = World::new(limited(limits));
    let user = |name| Ask { user: Some(name), ..of("a") };
    let first = world.ask(&user("u"));
    assert!(world.ticket(first).is_some());
    for _ in 0..5 {
        let request = world.ask(&user("u"));
        let Some(Reason::RateLimited { rule, .. }) = refused(&world, request) else { panic!("the user is limited") };
        assert_eq!(rule, Rule::Limit(2));
    }
    let other = world.ask(&user("v"));
    let left: Vec<_> =
        world.ticket(other).expect("the others were not charged").left.rules.iter().map(|rule| rule.left).collect();
    assert_eq!(left, [parts(600), parts(0), parts(50)]);
    let nobody = world.ask(&of("b"));
    assert!(matches!(refused(&world, nobody), Some(Reason::RateLimited { rule: Rule::Limit(1), .. })));
}

#[test]
fn of_several_that_refuse_the_one_that_lasts_is_told_and_what_never_fits_is_told_at_once() {
    let limits = vec![
        rate(Per::Tenant, Measure::Requests, 1, 1, 1),
        rate(Per::Tenant, Measure::Requests, 1, 100, 1),
        rate(Per::Tenant, Measure::InputTokens, 1_000_000, 1, 500),
    ];
    let mut world = World::new(limited(limits));
    world.ask(&of("a"));
    let second = world.ask(&of("a"));
    assert!(matches!(refused(&world, second), Some(Reason::RateLimited { rule: Rule::Limit(1), .. })));
    let large = world.ask(&Ask { input: 501, ..of("a") });
    assert!(matches!(refused(&world, large), Some(Reason::BeyondBurst { rule: Rule::Limit(2), .. })));
    assert_eq!(world.refusal(large).expect("refused").retry, Retry::Never);
    let predicted = world.ask(&Ask { output: 1_000_000, ..of("b") });
    assert!(world.ticket(predicted).is_some(), "only input can be too large for good");
}

#[test]
fn a_rule_that_demotes_moves_a_request_down_and_does_not_count_it() {
    let mut policy = limited(vec![Rate {
        exceeded: Exceeded::Demote(ClassIndex::new(2)),
        ..rate(Per::Tenant, Measure::Requests, 1, 60, 2)
    }]);
    policy.classes = vec![class("high", 0, 0.0), class("middle", 1, 0.0), class("low", 2, 0.0)];
    policy.budgets = vec![Budget {
        spent: Spent::Demote(ClassIndex::new(1)),
        ..budget(Per::Tenant, Measure::Requests, 1, Period::Lifetime)
    }];
    let mut world = World::new(policy);
    let class_of = |world: &mut World| {
        let request = world.ask(&of("a"));
        world.engine.requests().iter().find(|view| view.request == request).expect("let through").subject.class.get()
    };
    let classes: Vec<_> = (0..5).map(|_| class_of(&mut world)).collect();
    assert_eq!(classes, [0, 1, 2, 2, 2]);
    let demotions = world.events.iter().filter(|event| matches!(event, Event::Demoted { .. })).count();
    assert_eq!(demotions, 4);
    world.at(60.0);
    assert_eq!(class_of(&mut world), 1, "those that were demoted used nothing up");
}

#[test]
fn a_rule_in_shadow_lets_everything_through_and_says_so() {
    let mut policy =
        limited(vec![Rate { exceeded: Exceeded::Shadow, ..rate(Per::Tenant, Measure::Requests, 1, 60, 1) }]);
    policy.budgets =
        vec![Budget { spent: Spent::Shadow, ..budget(Per::Tenant, Measure::Tokens, 300, Period::Lifetime) }];
    let mut world = World::new(policy);
    for _ in 0..3 {
        let request = world.ask(&of("a"));
        assert!(world.ticket(request).is_some());
    }
    let shadowed: Vec<_> = world
        .events
        .iter()
        .filter_map(|event| match event {
            Event::Shadowed { rule, .. } => Some(*rule),
            _ => None,
        })
        .collect();
    assert_eq!(shadowed, [Rule::Limit(0), Rule::Budget(0), Rule::Limit(0), Rule::Budget(0)]);
}

#[test]
fn a_budget_is_refused_until_its_period_ends_and_warns_before() {
    let hour = 3_600u64;
    let start = UnixTime::from_nanos(1_000 * 3_600 * 1_000_000_000).after(Span::from_secs(hour - 100));
    let calendar = Calendar::synchronised(Instant::EPOCH, start);
    let mut policy = budgeted(vec![Budget {
        warn_at: vec![Share::new(0.5).expect("valid"), Share::new(0.9).expect("valid")],
        ..budget(Per::Tenant, Measure::Tokens, 1_000, Period::Hour(TimeZone::UTC))
    }]);
    policy.budgets[0].scope.classes = vec![ClassIndex::new(0)];
    let mut world = World::keeping(policy, Options { calendar, ..Options::default() });
    let warnings: Vec<_> = (0..5)
        .map(|_| {
            let request = world.ask(&of("a"));
            let left = &world.ticket(request).expect("covered").left.rules[0];
            assert_eq!(left.whole_in, Some(Span::from_secs(100)));
            left.warning.map(|part| part.millionths())
        })
        .collect();
    assert_eq!(warnings, [None, None, Some(500_000), Some(500_000), Some(900_000)]);
    let spent = world.ask(&of("a"));
    assert!(matches!(refused(&world, spent), Some(Reason::BudgetSpent { .. })));
    let Retry::At(moment) = world.refusal(spent).expect("refused").retry else { panic!("when the hour ends") };
    assert!(moment >= at(100.0) && moment <= at(160.0), "{moment:?}");
    world.at(99.9);
    let before = world.ask(&of("a"));
    assert!(world.ticket(before).is_none());
    world.at(100.0);
    let after = world.ask(&of("a"));
    assert!(world.ticket(after).is_some(), "a new hour");
}

#[test]
fn a_ledger_is_told_ahead_of_use_and_a_restart_uses_what_it_kept() {
    let options = || Options { keeping: Keeping::Ledger, ..Options::default() };
    let all = budget(Per::Tenant, Measure::Tokens, 10_000, Period::Lifetime);
    let mut world = World::keeping(budgeted(vec![all.clone()]), options());
    let mut kept: BTreeMap<Owner, Amount> = BTreeMap::new();
    let mut last = DebitNumber::default();
    for number in 0..20 {
        let request = world.ask(&of(["a", "b"][number % 2]));
        let covered = world.ticket(request).expect("covered by the budget").covered_by.expect("and by a grant");
        world.progress(request, 130);
        if number % 3 == 0 {
            let used = Usage::plain(Tokens::new(100), Tokens::new(170));
            world.end(request, Outcome::Completed, Reported::Final(used));
        }
        for debit in std::mem::take(&mut world.debits) {
            assert!(debit.number > last);
            last = debit.number;
            let before = kept.insert(debit.owner, debit.upto);
            assert!(before.is_none_or(|before| before < debit.upto));
        }
        assert!(covered <= last);
        for used in world.engine.budgets() {
            let granted = kept[&used.owner];
            assert!(used.used <= granted && granted <= used.used + parts(100), "{used:?} {granted:?}");
        }
    }
    let mut restarted = World::keeping(budgeted(vec![all]), options());
    let restored = kept.iter().map(|(owner, upto)| {
        let period = crate::policy::model::Bounds::ALWAYS.start;
        Restored { budget: 0, owner: owner.clone(), period, upto: *upto }
    });
    restarted.feed(Input::Restore(restored.collect()));
    for (owner, upto) in &kept {
        let used = restarted.engine.budgets().into_iter().find(|used| used.owner == *owner).expect("restored");
        assert_eq!(used.used, *upto);
    }
}

#[derive(Clone, Debug)]
enum Op {
    Ask { tenant: usize, input: u64, output: u64 },
    Progress(usize, u64),
    End(usize, usize, u64, u64),
    Cancel(usize),
    Wait(u64),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (0..2usize, 0..200u64, 0..200u64).prop_map(|(tenant, input, output)| Op::Ask { tenant, input, output }),
        2 => (any::<usize>(), 0..400u64).prop_map(|(which, output)| Op::Progress(which, output)),
        4 => (any::<usize>(), 0..Outcome::ALL.len(), 0..200u64, 0..400u64).prop_map(|(a, b, c, d)| Op::End(a, b, c, d)),
        1 => any::<usize>().prop_map(Op::Cancel),
        4 => (0..3_000u64).prop_map(Op::Wait),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

    /// In any window, what was admitted and not given back is at most `rate · window + burst`, what was outstanding when
    /// it began, and what its requests turned out to take beyond what they had been expected to.
    #[test]
    fn no_window_admits_more_than_its_rate_its_burst_and_what_was_not_expected(
        amount in 1..300i128,
        burst in 1..600i128,
        slots in 1..5u32,
        ops in prop::collection::vec(op(), 1..150),
    ) {
        let mut policy = limited(vec![rate(Per::Tenant, Measure::Tokens, amount, 1, burst)]);
        policy.pools[0].window.requests = Limit::AtMost(slots);
        let mut world = World::new(policy);
        // By tenant: when each was let in to the queue, what it was expected to take, and what it took in the end.
        let mut taken: Vec<Taken> = Vec::new();
        for op in ops {
            let running: Vec<RequestId> = world.engine.flights.values().map(|flight| flight.request.id).collect();
            match op {
                Op::Ask { tenant, input, output } => {
                    let ask = Ask { input, output, ..of(["a", "b"][tenant]) };
                    let before = world.engine.explain(world.now, &world.request(PoolIndex::new(0), &ask));
                    let request = world.ask(&ask);
                    if world.refusal(request).is_none() {
                        taken.push((tenant, request, world.now, i128::from(input + output)));
                    } else if let Some(objection) = before.rates.objection
                        && let crate::admission::Wait::For(_) = objection.wait
                    {
                        let wait = before.rates.found[0].wait.expect("some time helps");
                        let then = |moment| world.engine.explain(moment, &world.request(PoolIndex::new(0), &ask));
                        let asked = then(world.now + wait);
                        prop_assert_eq!(asked.rates.objection, None, "met exactly at the instant");
                        let early = then(world.now + wait - Span::from_nanos(1));
                        prop_assert!(early.rates.objection.is_some(), "and not before");
                    }
                }
                Op::Progress(which, output) if !running.is_empty() => world.progress(running[which % running.len()], output),
                Op::End(which, outcome, input, output) if !running.is_empty() => {
                    let usage = Usage::plain(Tokens::new(input), Tokens::new(output));
                    world.end(running[which % running.len()], Outcome::ALL[outcome], Reported::Final(usage));
                }
                Op::Cancel(which) if !taken.is_empty() => world.feed(Input::Cancel(taken[which % taken.len()].1)),
                Op::Wait(millis) => {
                    world.now = world.now + Span::from_millis(millis);
                    world.feed(Input::Tick);
                }
                Op::Progress(..) | Op::End(..) | Op::Cancel(_) => {}
            }
        }
        every_window_keeps_to(&world, &taken, amount, burst)?;
    }
}

/// A request that was let into the queue: its tenant, itself, when, and what it was expected to take.
type Taken = (usize, RequestId, Instant, i128);

/// Checks the bound for the windows that begin with each request.
fn every_window_keeps_to(world: &World, taken: &[Taken], amount: i128, burst: i128) -> Result<(), TestCaseError> {
    let mut took: BTreeMap<RequestId, (i128, i128)> = BTreeMap::new();
    let mut ended: BTreeMap<RequestId, Instant> = BTreeMap::new();
    for (_, request, _, expected) in taken {
        took.insert(*request, (*expected, *expected));
    }
    for event in &world.events {
        match event {
            Event::Cancelled { at, request, .. } => {
                took.insert(*request, (0, 0));
                ended.insert(*request, *at);
            }
            Event::Settled { at, request, usage, outcome, .. } if *outcome != Outcome::Lost => {
                ended.insert(*request, *at);
                let expected = took[request].1;
                took.insert(*request, (i128::from(usage.total().get()), expected));
            }
            _ => {}
        }
    }
    for (first, (tenant, _, since, _)) in taken.iter().enumerate() {
        let outstanding = |entry: &&Taken| entry.0 == *tenant && ended.get(&entry.1).is_none_or(|end| end >= since);
        let outstanding: i128 = taken[..first].iter().filter(outstanding).map(|entry| entry.3).sum();
        let (mut admitted, mut unexpected) = (0i128, outstanding);
        for (_, request, when, _) in taken[first..].iter().filter(|entry| entry.0 == *tenant) {
            let (used, expected) = took[request];
            admitted += used;
            unexpected += (used - expected).max(0) + (expected - burst).max(0);
            let nanos = i128::from(when.since(*since).as_nanos());
            let second = 1_000_000_000;
            prop_assert!(
                (admitted - unexpected - burst) * second <= amount * nanos,
                "{admitted} in {nanos} ns, {unexpected} of them not expected"
            );
        }
    }
    Ok(())
}

#[test]
fn explain_tells_a_demotion_and_every_rule() {
    let mut policy = limited(vec![Rate {
        exceeded: Exceeded::Demote(ClassIndex::new(1)),
        ..rate(Per::Tenant, Measure::Requests, 1, 60, 1)
    }]);
    policy.classes = vec![class("high", 0, 0.0), class("low", 1, 0.0)];
    policy.budgets = vec![budget(Per::Tenant, Measure::Tokens, 250, Period::Lifetime)];
    let mut world = World::new(policy);
    world.ask(&of("a"));
    let explained = world.engine.explain(world.now, &world.request(PoolIndex::new(0), &of("a")));
    assert_eq!(explained.demotion.map(|demotion| demotion.to), Some(ClassIndex::new(1)));
    assert!(explained.rates.found.is_empty(), "what is demoted does not count");
    let [found] = explained.budgets.found[..] else { panic!("one budget concerns it") };
    assert_eq!((found.left, found.asked, found.wait), (parts(50), parts(200), None));
    assert!(
        matches!(explained.prospect(), Prospect::Refused(objection) if matches!(objection.reason, Reason::BudgetSpent { .. }))
    );
    assert_eq!(world.engine.budgets()[0].owner, Owner::Tenant(TenantId::from("a")));
}

#[test]
fn a_rule_whose_requests_wait_lets_them_go_when_it_allows_and_holds_nobody_else_back() {
    let waits = Rate { exceeded: Exceeded::Queue, ..rate(Per::Tenant, Measure::Tokens, 100, 1, 400) };
    let mut world = World::new(limited(vec![waits]));
    let (first, second) = (world.ask(&of("a")), world.ask(&of("a")));
    let large = world.ask(&Ask { output: 300, session: Some("s"), ..of("a") });
    let small = world.ask(&Ask { output: 0, session: Some("t"), ..of("a") });
    assert!(world.ticket(first).is_some() && world.ticket(second).is_some());
    assert!(world.waits(large) && world.waits(small), "what is behind waits, however small");
    let other = world.ask(&of("b"));
    assert!(world.ticket(other).is_some());
    assert_eq!(world.engine.next_wakeup(), Some(at(4.0)));
    world.tick(3.9);
    assert!(world.waits(large));
    world.tick(4.0);
    assert!(world.ticket(large).is_some() && world.waits(small));
    world.tick(5.0);
    assert!(world.ticket(small).is_some());
    assert_eq!(world.engine.next_wakeup(), None);
}

#[test]
fn what_stands_behind_one_that_waits_for_its_rate_takes_places_in_the_queue() {
    let waits = Rate { exceeded: Exceeded::Queue, ..rate(Per::Tenant, Measure::Tokens, 100, 1, 400) };
    let mut policy = limited(vec![waits]);
    policy.pools[0].queue.tenant = QueueCap { requests: Limit::AtMost(3), ..QueueCap::default() };
    let mut world = World::new(policy);
    let ask = |output| Ask { input: 1, output, ..of("a") };
    let first = world.ask(&ask(299));
    let large = world.ask(&ask(349));
    assert!(world.ticket(first).is_some() && world.waits(large));
    // The rate alone would let each of them go: two tokens, and a hundred are left.
    let behind: Vec<_> = (0..10).map(|_| world.ask(&ask(1))).collect();
    let waiting = behind.iter().filter(|request| world.waits(**request)).count();
    assert_eq!(waiting, 2, "three places, and the first is taken");
    let full = |request| matches!(refused(&world, request), Some(Reason::QueueFull { level: Level::Tenant, .. }));
    assert!(behind[2..].iter().all(|request| full(*request)));
    world.tick(2.5);
    assert!(world.ticket(large).is_some());
}

#[test]
fn what_comes_back_lets_those_go_on_who_wait_for_it_also_in_another_class() {
    let waits = Rate { exceeded: Exceeded::Queue, ..rate(Per::Tenant, Measure::Tokens, 1, 1, 400) };
    let mut policy = limited(vec![waits]);
    policy.classes.push(class("low", 1, 0.0));
    let mut world = World::new(policy);
    let first = world.ask(&Ask { output: 300, ..of("a") });
    let second = world.ask(&Ask { class: 1, ..of("a") });
    assert!(world.waits(second));
    world.end(first, Outcome::UpstreamFailed, Reported::Nothing);
    assert!(world.ticket(second).is_some());
}

#[test]
fn one_session_at_its_rate_waits_and_the_others_of_its_tenant_do_not() {
    let waits = Rate { exceeded: Exceeded::Queue, ..rate(Per::Session, Measure::Requests, 1, 10, 1) };
    let mut world = World::new(limited(vec![waits]));
    let of_session = |name| Ask { session: Some(name), ..of("a") };
    let first = world.ask(&of_session("s"));
    let second = world.ask(&of_session("s"));
    let other = world.ask(&of_session("t"));
    let none = world.ask(&of("a"));
    assert!([first, other, none].iter().all(|request| world.ticket(*request).is_some()) && world.waits(second));
    world.tick(10.0);
    assert!(world.ticket(second).is_some());
}

#[test]
fn whoever_could_not_go_in_time_is_refused_at_once_and_told_when() {
    let waits = Rate { exceeded: Exceeded::Queue, ..rate(Per::Tenant, Measure::Requests, 1, 10, 1) };
    let mut world = World::new(limited(vec![waits]));
    let within = |secs| Ask { deadline: Some(secs), ..of("a") };
    let (first, second) = (world.ask(&of("a")), world.ask(&within(15.0)));
    let third = world.ask(&within(15.0));
    assert!(world.ticket(first).is_some() && world.waits(second));
    assert!(matches!(refused(&world, third), Some(Reason::RateLimited { .. })), "{:?}", refused(&world, third));
    let Retry::At(moment) = world.refusal(third).expect("refused").retry else { panic!("it is told when") };
    assert!(moment >= at(12.5) && moment < at(17.0), "{moment:?}");
    let expired = world.ask(&within(9.0));
    assert!(matches!(refused(&world, expired), Some(Reason::RateLimited { .. })));
    let explained = world.engine.explain(world.now, &world.request(PoolIndex::new(0), &within(25.0)));
    assert_eq!((explained.wait.found.held, explained.prospect()), (Span::from_secs(20), Prospect::Queued));
}
