//! Random lists of operations, after each of which every index is recomputed from scratch and compared.
//!
//! The tree keeps sums, orders and counts in step by hand, because a decision must not walk the queue. Here a
//! slow, obvious reckoning checks the fast one, together with what must hold at rest: nothing that fits is left
//! waiting, and the books hold exactly what waits and runs.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::world::{Ask, World, breaker, class, of, policy, weight};
use crate::admission::own::Own;
use crate::admission::pool::{Pool, Slots};
use crate::admission::queue::{Load, capped_units, per_weight};
use crate::admission::tree::{Slot, Waiting};
use crate::admission::vtc::Node;
use crate::admission::{
    Attempt, BreakerStage, Engine, Event, Hit, HitKind, Input, Outcome, Owner, Reported, RequestState, Source,
};
use crate::policy::Policy;
use crate::policy::model::{
    Adapt, Algorithm, Breaker, Budget, Charge, Exceeded, FailureRatio, Fanout, Per, Period, QueueCap, QueueCaps, Rate,
    Retries, Scope, Spent, UpstreamsWord, Window,
};
use crate::units::{
    Agent, Amount, Bytes, ClassIndex, EngineGauges, Limit, Measure, PoolIndex, RequestId, Share, Span, Status,
    TicketId, Tokens, Usage, VirtualTokens,
};

#[derive(Clone, Debug)]
pub(super) enum Op {
    Ask {
        tenant: usize,
        session: usize,
        agent: Agent,
        attempt: Attempt,
        class: u16,
        input: u64,
        output: u64,
        weight: u32,
        deadline: Option<u16>,
        streamed: bool,
    },
    Cancel(u8),
    Progress(u8, u64),
    Began(u8, u16),
    Settle(u8, usize, usize, u64),
    SettleAgain(u8),
    Hear(u8, usize, u16, Option<u8>),
    Grant,
    Gauges(u8, u64),
    Hit(usize, i128, HitKind),
    Drain,
    Flush,
    Wait(u16),
}

const TENANTS: [&str; 5] = ["a", "b", "c", "d", "e"];
const SESSIONS: [Option<&str>; 4] = [None, Some("s"), Some("t"), Some("u")];

pub(super) fn op() -> impl Strategy<Value = Op> {
    let ask = (
        0..TENANTS.len(),
        (0..SESSIONS.len(), prop::sample::select(vec![Agent::Lead, Agent::Sub])),
        prop::sample::select(vec![Attempt::Unsaid, Attempt::First, Attempt::Again]),
        0..3u16,
        0..300u64,
        0..300u64,
        1..5u32,
        proptest::option::of(0..8_000u16),
        any::<bool>(),
    );
    prop_oneof![
        8 => ask.prop_map(|(tenant, (session, agent), attempt, class, input, output, weight, deadline, streamed)| Op::Ask { tenant, session, agent, attempt, class, input, output, weight, deadline, streamed }),
        1 => any::<u8>().prop_map(Op::Cancel),
        3 => (any::<u8>(), 0..700u64).prop_map(|(which, output)| Op::Progress(which, output)),
        1 => (any::<u8>(), 0..4_000u16).prop_map(|(which, ago)| Op::Began(which, ago)),
        6 => (any::<u8>(), 0..Outcome::ALL.len(), 0..3usize, 0..700u64).prop_map(|(a, b, c, d)| Op::Settle(a, b, c, d)),
        1 => any::<u8>().prop_map(Op::SettleAgain),
        4 => (any::<u8>(), 0..Outcome::ALL.len(), prop::sample::select(vec![200, 400, 429, 500, 503]), proptest::option::of(0..10u8))
            .prop_map(|(which, outcome, status, retry_after)| Op::Hear(which, outcome, status, retry_after)),
        1 => Just(Op::Grant),
        1 => (any::<u8>(), 0..100u64).prop_map(|(source, waiting)| Op::Gauges(source, waiting)),
        2 => (0..TENANTS.len(), 0..500i128, prop::sample::select(vec![HitKind::Asked, HitKind::Checked, HitKind::Used, HitKind::GivenBack]))
            .prop_map(|(tenant, amount, kind)| Op::Hit(tenant, amount, kind)),
        3 => (0..4_000u16).prop_map(Op::Wait),
        1 => Just(Op::Flush),
    ]
}

prop_compose! {
    fn any_cap()(requests in proptest::option::of(0..12u32), tokens in proptest::option::of(0..4_000u64), bytes in proptest::option::of(0..20_000u64)) -> QueueCap {
        QueueCap { requests: requests.into(), tokens: tokens.map(Tokens::new).into(), bytes: bytes.map(Bytes::new).into() }
    }
}

prop_compose! {
    fn any_breaker()(
        failures in proptest::option::of(1..4u32),
        share in 1..5u32,
        within in 1..10u64,
        trip_for in 1..6u64,
        accepted in any::<bool>(),
    ) -> Breaker {
        let ratio = FailureRatio { share: Share::new(f64::from(share) * 0.2).expect("valid"), of_at_least: 2 };
        Breaker {
            failures,
            ratio: failures.is_none().then_some(ratio),
            within: Span::from_secs(within),
            trip_for: Span::from_secs(trip_for),
            retry_after: if accepted { UpstreamsWord::Accepted } else { UpstreamsWord::Ignored },
            ..breaker()
        }
    }
}

prop_compose! {
    fn any_rate()(
        per in prop::sample::select(vec![Per::Tenant, Per::Session, Per::Class, Per::Pool, Per::Global]),
        measure in prop::sample::select(vec![Measure::Requests, Measure::Tokens, Measure::InputTokens, Measure::OutputTokens, Measure::Service]),
        amount in 1..2_000i128,
        every in 1..10u64,
        burst in 1..2_000i128,
        exceeded in prop::sample::select(vec![Exceeded::Refuse, Exceeded::Shadow, Exceeded::Queue, Exceeded::Demote(ClassIndex::new(2))]),
    ) -> Rate {
        let waits = matches!(per, Per::Tenant | Per::Session);
        let exceeded = if exceeded == Exceeded::Queue && !waits { Exceeded::Refuse } else { exceeded };
        let scale = if measure == Measure::Requests { 100 } else { 1 };
        let of = |amount: i128| Amount::from_parts((amount / scale).max(1) * measure.parts());
        let (amount, burst) = (of(amount), of(burst));
        Rate { name: "rate".into(), scope: Scope::default(), per, measure, amount, every: Span::from_secs(every), burst, exceeded }
    }
}

prop_compose! {
    fn any_budget()(
        amount in 1..20_000i128,
        spent in prop::sample::select(vec![Spent::Refuse, Spent::Shadow]),
    ) -> Budget {
        let measure = Measure::Service;
        let amount = Amount::from_parts(amount * measure.parts());
        Budget { name: "all".into(), scope: Scope::default(), per: Per::Global, measure, amount, period: Period::Lifetime, spent, warn_at: Vec::new() }
    }
}

prop_compose! {
    pub(super) fn any_policy()(
        algorithm in prop::sample::select(vec![Algorithm::Vtc, Algorithm::Fcfs, Algorithm::RoundRobin, Algorithm::LeastCounter]),
        charge in prop::sample::select(vec![Charge::Predicted, Charge::Streamed, Charge::Completion]),
        requests in proptest::option::of(1..6u32),
        tokens in proptest::option::of(1..2_000u64),
        adapts in any::<bool>(),
        caps in (any_cap(), any_cap(), any_cap(), any_cap()),
        capped in any::<bool>(),
        fanout in (proptest::option::of(1..3u32), proptest::option::of(1..4u32)),
        max_wait in proptest::option::of(0..20u64),
        size in proptest::option::of(300..600u64),
        shares in (0..3u32, 0..3u32),
        breaker in proptest::option::weighted(0.7, any_breaker()),
        ceiling in proptest::option::of(1..4u32),
        retries in proptest::option::of((0..3u32, 1..4u32)),
        limits in (prop::collection::vec(any_rate(), 0..3), prop::collection::vec(any_budget(), 0..3)),
    ) -> Policy {
        let mut policy = policy();
        policy.fairness.algorithm = algorithm;
        policy.fairness.charge = charge;
        policy.pools[0].adapt = if adapts { Adapt::Auto } else { Adapt::Fixed };
        policy.classes = vec![class("x", 1, f64::from(shares.0) * 0.2), class("y", 0, 0.0), class("z", 2, f64::from(shares.1) * 0.1)];
        (policy.limits, policy.budgets) = limits;
        policy.classes[2].max_wait = max_wait.map(Span::from_secs).into();
        policy.fanout = Fanout { per_session: fanout.0.into(), per_tenant: fanout.1.into() };
        if let Some(tenths) = ceiling {
            policy.classes[0].max_share = Limit::AtMost(Share::new(0.4 + f64::from(tenths) * 0.1).expect("valid"));
        }
        policy.retries = retries.map(|(tenths, floor)| Retries {
            ratio: Share::new(f64::from(tenths) * 0.1).expect("valid"),
            floor,
        });
        let pool = &mut policy.pools[0];
        pool.window = Window { requests: requests.into(), tokens: tokens.map(Tokens::new).into() };
        pool.breaker = breaker;
        pool.max_request_tokens = size.map(Tokens::new).into();
        if capped {
            pool.queue = QueueCaps { pool: caps.0, class: caps.1, tenant: caps.2, session: caps.3 };
        }
        policy
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_index_agrees_with_a_slow_reckoning(
        policy in any_policy(),
        granted in prop::bool::weighted(0.1),
        drain_at in proptest::option::of(0..200usize),
        ops in prop::collection::vec(op(), 1..200),
    ) {
        let slots = if granted { Slots::Granted } else { Slots::Window };
        let mut world = World::with(policy, slots);
        for (number, op) in ops.into_iter().enumerate() {
            if drain_at == Some(number) {
                apply(&mut world, &Op::Drain);
            }
            apply(&mut world, &op);
            audit(&world)?;
        }
        end_everything(&mut world)?;
    }
}

/// How many random worlds: few by default, more where the environment asks for it.
pub(super) fn cases() -> u32 {
    std::env::var("TALLYGATE_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(200)
}

/// What an operation asks for, where it asks.
pub(super) fn asked(world: &World, op: &Op) -> Option<Ask> {
    let Op::Ask { tenant, session, agent, attempt, class, input, output, weight: heavy, deadline, streamed } = *op
    else {
        return None;
    };
    Some(Ask {
        session: SESSIONS[session],
        agent,
        attempt,
        class,
        input,
        output,
        weight: weight(f64::from(heavy)),
        deadline: deadline.map(|millis| world.now.as_secs_f64() + f64::from(millis) / 1e3),
        streamed,
        ..of(TENANTS[tenant])
    })
}

pub(super) fn apply(world: &mut World, op: &Op) {
    match *op {
        Op::Ask { .. } => {
            if let Some(ask) = asked(world, op) {
                world.ask(&ask);
            }
        }
        Op::Cancel(which) => {
            if let Some(request) = pick(&world.engine, which, true) {
                world.feed(Input::Cancel(request));
            }
        }
        Op::Progress(which, output) => {
            if let Some(request) = pick(&world.engine, which, false) {
                world.progress(request, output);
            }
        }
        Op::Began(which, ago) => pick(&world.engine, which, false).map_or((), |request| world.began(request, ago)),
        Op::Settle(which, outcome, reported, output) => {
            if let Some(request) = pick(&world.engine, which, false) {
                let usage = Usage::plain(Tokens::new(output / 2), Tokens::new(output));
                let reported = [Reported::Nothing, Reported::Counted(usage), Reported::Final(usage)][reported];
                world.end(request, Outcome::ALL[outcome], reported);
            }
        }
        Op::Hear(which, outcome, status, retry_after) => {
            if let Some(request) = pick(&world.engine, which, false) {
                let retry_after = retry_after.map(f64::from);
                world.hear_ending(request, Outcome::ALL[outcome], Status::new(status), retry_after);
            }
        }
        Op::SettleAgain(which) => {
            world.settle(TicketId::new(1_000_000 + u64::from(which)), Outcome::Completed, Reported::Nothing);
        }
        Op::Grant => world.feed(Input::Grant(PoolIndex::new(0))),
        Op::Gauges(source, waiting) => {
            let source = if source % 3 == 0 { Source::Header } else { Source::Page(usize::from(source % 3)) };
            let gauges = EngineGauges { waiting: Some(waiting), ..EngineGauges::default() };
            let pool = PoolIndex::new(0);
            world.feed(Input::Gauges { pool, source, taken_at: world.now, gauges });
        }
        Op::Hit(tenant, amount, kind) => {
            let (owner, amount) = (Owner::Tenant(TENANTS[tenant].into()), Amount::from_parts(amount));
            world.feed(Input::Count(vec![Hit { limit: 0, owner, amount, kind }]));
        }
        Op::Drain => world.feed(Input::Drain),
        Op::Flush => world.feed(Input::Flush),
        Op::Wait(millis) => {
            world.now = world.now + Span::from_millis(u64::from(millis));
            world.feed(Input::Tick);
        }
    }
}

fn pick(engine: &Engine, which: u8, queued: bool) -> Option<RequestId> {
    let wanted = engine.requests().into_iter().filter(|view| matches!(view.state, RequestState::Queued) == queued);
    let wanted: Vec<_> = wanted.collect();
    if wanted.is_empty() { None } else { Some(wanted[usize::from(which) % wanted.len()].request) }
}

fn audit(world: &World) -> Result<(), TestCaseError> {
    let engine = &world.engine;
    let pool = &engine.pools[0];
    prop_assert_eq!(pool.ready(), None, "what fits is not left waiting");
    let flights = engine.flights.values();
    prop_assert_eq!(pool.window.requests() as usize, engine.flights.len());
    prop_assert_eq!(pool.window.tokens(), flights.clone().map(|flight| flight.need).sum());
    let held: VirtualTokens = pool.tree.waiting.iter().map(|(_, waiting)| waiting.cost).sum();
    let running: VirtualTokens = flights.clone().map(|flight| flight.reserved).sum();
    prop_assert_eq!(world.total().live(), held + running, "the books hold what waits and runs");
    let spent = Amount::from_parts((world.total().settled + world.total().live()).as_micros());
    for kept in engine.budgets() {
        prop_assert_eq!(kept.used, spent, "a budget of all service is used by what is settled and what is held");
    }
    let deadlines: BTreeSet<_> = pool.tree.waiting.iter().map(|(_, waiting)| waiting.deadline).collect();
    let next = deadlines.first().copied().filter(|deadline| *deadline < crate::units::Instant::FAR);
    let unheld = pool.tree.next_unheld();
    prop_assert!(unheld.is_none_or(|until| until > world.now), "what is held back no longer goes on");
    let view = &engine.pools()[0];
    let stages = view.breaker.into_iter().chain(view.held_back.iter().map(|(_, stage)| *stage));
    let turns = stages.filter_map(BreakerStage::until).min();
    let next = next.into_iter().chain(unheld).chain(pool.opens_at()).chain(turns).min();
    pool.window.audit().map_err(TestCaseError::fail)?;
    prop_assert_eq!(engine.next_wakeup(), next);
    prop_assert!(next.is_none_or(|moment| moment > world.now), "what is over is gone");
    prop_assert!(pool.breaker.agrees(&engine.flights));
    prop_assert!(probes_in_flight(world) <= 1, "never two probes at once");
    audit_tree(world, engine, pool)
}

/// How many of what was sent since the pool is probed run, as the events tell.
fn probes_in_flight(world: &World) -> usize {
    let turned = world.events.iter().rposition(|event| matches!(event, Event::Breaker { tenant: None, .. }));
    let Some(since) =
        turned.filter(|last| matches!(world.events[*last], Event::Breaker { stage: BreakerStage::Probing, .. }))
    else {
        return 0;
    };
    let sent = world.events[since..].iter().filter_map(|event| match event {
        Event::Dispatched { ticket, .. } => Some(*ticket),
        _ => None,
    });
    sent.filter(|ticket| world.engine.flights.contains_key(ticket)).count()
}

fn audit_tree(world: &World, engine: &Engine, pool: &Pool) -> Result<(), TestCaseError> {
    let tree = &pool.tree;
    let own = Own::new(&engine.fanout, &engine.limits, world.now);
    let sum = |keep: &dyn Fn(&Waiting) -> bool| {
        let kept = tree.waiting.iter().filter(|(_, waiting)| keep(waiting));
        kept.fold((Load::default(), VirtualTokens::ZERO), |(load, cost), (_, waiting)| {
            (load.plus(waiting.load()), cost + waiting.cost)
        })
    };
    prop_assert!(crate::admission::promise::tests::agree(&pool.promises));
    prop_assert_eq!(tree.queued, sum(&|_| true).0);
    for (position, node) in tree.classes.iter().enumerate() {
        prop_assert_eq!((node.queued, node.queued_cost), sum(&|waiting| waiting.place.class.index() == position));
        let eligible =
            tree.tenants.iter().filter(|(_, tenant)| tenant.class.index() == position && tenant.member.is_eligible());
        let weights: u64 = eligible.clone().map(|(_, tenant)| u64::from(tenant.member.weight().thousandths())).sum();
        prop_assert_eq!((node.contest.eligible_count(), node.contest.eligible_weight()), (eligible.count(), weights));
        let flying = engine.flights.values().filter(|flight| flight.place.class.index() == position);
        let in_flight = flying.fold(Load::default(), |load, flight| load.plus(Load::of(flight.need, Bytes::ZERO)));
        prop_assert_eq!(node.in_flight, in_flight);
        let rests = pool.breaker.stage().is_some_and(|stage| stage.until().is_some());
        prop_assert_eq!(node.drain.is_backlogged(), node.contest.first().is_some() && !rests);
    }
    for (key, tenant) in &tree.tenants {
        prop_assert_eq!((tenant.queued, tenant.queued_cost), sum(&|waiting| waiting.place.tenant == key));
        let flying = engine.flights.values().filter(|flight| flight.place.tenant == key);
        let in_flight = flying.fold(Load::default(), |load, flight| load.plus(Load::of(flight.need, Bytes::ZERO)));
        prop_assert_eq!(tenant.in_flight, in_flight);
        let blocked = engine.fanout.blocks_tenant(&tenant.name) || pool.breaker.bars(&tenant.name);
        let head = tenant.contest.first().and_then(|session| tree.sessions[session].next());
        let head = head.map(|(_, _, slot)| &tree.waiting[slot].request);
        let held = head.and_then(|request| own.holds_tenant(request));
        prop_assert_eq!(tenant.held_until.filter(|_| !blocked), held.filter(|_| !blocked));
        let may = !blocked && head.is_some() && held.is_none();
        prop_assert_eq!(
            tenant.member.is_eligible(),
            may,
            "eligible means: something queued that nothing of its own blocks"
        );
        for session in tenant.sessions.values() {
            let node = &tree.sessions[*session];
            prop_assert_eq!((node.queued, node.queued_cost), sum(&|waiting| waiting.place.session == *session));
            let next = next_of_session(engine, pool, *session);
            prop_assert_eq!(node.next().map(|(_, _, slot)| slot), next);
            let held = next.and_then(|slot| own.holds_session(&tree.waiting[slot].request));
            prop_assert_eq!(node.held_until, held);
            prop_assert_eq!(node.member.is_eligible(), next.is_some() && held.is_none());
        }
    }
    audit_heaviest(pool)?;
    audit_order(engine, pool)
}

/// Whose turn an obvious reckoning says it is within a session.
fn next_of_session(engine: &Engine, pool: &Pool, session: Node) -> Option<Slot> {
    let name = pool.tree.sessions[session].name.as_ref();
    let tenant = pool.tree.tenants.iter().find(|(_, tenant)| tenant.sessions.values().any(|node| *node == session));
    let tenant = &tenant.expect("every session is some tenant's").1.name;
    let flying = |agent: Agent, place: Option<Node>| {
        let of_session = engine.flights.values().filter(move |flight| {
            let subject = &flight.request.subject;
            subject.tenant == *tenant && subject.session.as_ref() == name && flight.request.agent == agent
        });
        of_session.filter(|flight| place.is_none_or(|place| flight.place.session == place)).count()
    };
    let (leads, sub_agents) = (flying(Agent::Lead, None), flying(Agent::Sub, None));
    let cap = engine.policy.fanout.per_session.cap().filter(|_| name.is_some()).map(|cap| cap as usize);
    let may = |agent| match (cap, agent) {
        (None, _) => true,
        (Some(cap), Agent::Sub) if cap >= 2 => leads + sub_agents < cap && sub_agents < cap - 1,
        (Some(cap), _) => leads + sub_agents < cap,
    };
    let lead_first = flying(Agent::Lead, Some(session)) == 0;
    let waiting = pool.tree.waiting.iter().filter(|(_, waiting)| waiting.place.session == session);
    let waiting = waiting.filter(|(_, waiting)| may(waiting.request.agent));
    let order = |waiting: &Waiting| {
        let after = lead_first && waiting.request.agent == Agent::Sub;
        (after, waiting.deadline, waiting.number)
    };
    waiting.min_by_key(|(_, waiting)| order(waiting)).map(|(slot, _)| slot)
}

/// Whoever would leave a full queue first is who an obvious search would name.
fn audit_heaviest(pool: &Pool) -> Result<(), TestCaseError> {
    for (position, class) in pool.tree.classes.iter().enumerate() {
        for unit in capped_units(&pool.caps.pool).chain(capped_units(&pool.caps.class)) {
            let queued = pool
                .tree
                .tenants
                .iter()
                .filter(|(_, tenant)| tenant.class.index() == position && !tenant.queued.is_empty());
            let mut expected: Vec<_> =
                queued.map(|(key, tenant)| (per_weight(tenant.queued, unit, tenant.member.weight()), key)).collect();
            expected.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
            prop_assert_eq!(class.heaviest.descending(unit).collect::<Vec<_>>(), expected);
        }
    }
    for (key, _) in &pool.tree.tenants {
        let own = pool.tree.waiting.iter().filter(|(_, waiting)| waiting.place.tenant == key);
        let latest = own.map(|(_, waiting)| waiting.deadline).max();
        prop_assert_eq!(pool.tree.by_latest_deadline(key).next().map(|slot| pool.tree.waiting[slot].deadline), latest);
    }
    Ok(())
}

/// The head of every contest is who an obvious search would put first.
fn audit_order(engine: &Engine, pool: &Pool) -> Result<(), TestCaseError> {
    if engine.policy.fairness.algorithm == Algorithm::Fcfs {
        return Ok(());
    }
    for (position, class) in pool.tree.classes.iter().enumerate() {
        let eligible = pool
            .tree
            .tenants
            .iter()
            .filter(|(_, tenant)| tenant.class.index() == position && tenant.member.is_eligible());
        let least = eligible.map(|(_, tenant)| tenant.member.v()).min();
        prop_assert_eq!(class.contest.first().map(|first| pool.tree.tenants[first].member.v()), least);
    }
    Ok(())
}

/// Settles whatever runs until nothing is left, and checks that every request was answered exactly once.
fn end_everything(world: &mut World) -> Result<(), TestCaseError> {
    let mut answers: BTreeMap<RequestId, usize> = BTreeMap::new();
    world.feed(Input::Flush);
    while let Some(request) = pick(&world.engine, 0, false) {
        world.end(request, Outcome::Completed, Reported::Nothing);
    }
    for event in &world.events {
        match event {
            Event::Dispatched { request, .. } | Event::Cancelled { request, .. } => {
                *answers.entry(*request).or_default() += 1;
            }
            Event::Refused { refusal, .. } => *answers.entry(refusal.request).or_default() += 1,
            _ => {}
        }
    }
    prop_assert_eq!(answers.len() as u64, world.asked());
    prop_assert!(answers.values().all(|count| *count == 1), "every request is decided exactly once");
    let total = world.total();
    prop_assert_eq!(total.live(), VirtualTokens::ZERO);
    prop_assert_eq!(world.engine.pools()[0].in_flight_tokens, Tokens::ZERO);
    prop_assert!(world.engine.requests().is_empty());
    Ok(())
}

#[test]
fn the_audit_can_fail() {
    // The audit itself must be able to fail: a world with a queued request disagrees with an empty one.
    let mut world = World::new(policy());
    world.ask(&of("a"));
    world.ask(&of("b"));
    assert!(audit(&world).is_ok());
    world.books = crate::ledger::Memory::new();
    assert!(audit(&world).is_err());
}
