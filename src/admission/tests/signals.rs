//! What an autoscaler sees of a pool: at rest, through an overload, and behind it.

use super::world::{World, of, policy};
use crate::admission::{Signals, Unit};
use crate::policy::Policy;
use crate::policy::model::Window;
use crate::units::{Limit, Span, Tokens};

fn engine_of(requests: u32, tokens: Option<u64>) -> Policy {
    let mut policy = policy();
    policy.pools[0].window = Window { tokens: tokens.map(Tokens::new).into(), requests: Limit::AtMost(requests) };
    policy
}

fn signals(world: &World) -> Signals {
    world.engine.signals(world.now)[0]
}

#[test]
fn signals_rise_with_an_overload_and_fall_behind_it() {
    let mut world = World::new(engine_of(4, None));
    let rest = signals(&world);
    assert_eq!((rest.backlog, rest.wait), (Some(Span::ZERO), Some(Span::ZERO)), "nothing waits");
    assert_eq!(rest.saturation.map(|full| full.wanted), Some(0));

    // Two requests of each of four tenants a second arrive where one of each is served: twice what can be.
    let mut seen = Vec::new();
    for _second in 0..30 {
        for tenant in ["a", "b", "c", "d"] {
            world.ask(&of(tenant));
            world.ask(&of(tenant));
        }
        world.serve(4);
        world.now = world.now + Span::from_millis(600);
        seen.push(signals(&world));
    }
    let saturation = |signals: &Signals| signals.saturation.expect("the window has a cap").as_f64();
    assert!(seen.windows(2).all(|pair| saturation(&pair[0]) < saturation(&pair[1])), "it rises while load exceeds");
    let last = seen.last().expect("thirty");
    // 30 s × 4 a second wait, and 4 are in flight, of 4: what is measured is a thing one can reckon.
    assert_eq!(last.queued.requests, 30 * 8 - 30 * 4 - 4);
    assert_eq!(last.saturation.map(|full| (full.unit, full.wanted, full.window)), Some((Unit::Requests, 120, 4)));
    // 116 requests at 4 a second; a newcomer takes turns with four tenants and waits for five such requests.
    let secs = |span: Option<Span>| span.expect("measured by now").as_secs_f64();
    assert!((secs(last.backlog) - 29.0).abs() < 2.0, "{last:?}");
    assert!((secs(last.wait) - 1.25).abs() < 0.2, "{last:?}");
    assert_eq!((seen[1].queued.requests, seen[1].backlog), (4, None), "not measured yet, and so not shown");

    world.serve(1_000);
    let after = signals(&world);
    assert_eq!((after.backlog, after.wait), (Some(Span::ZERO), Some(Span::ZERO)));
    assert_eq!(after.saturation.map(|full| full.wanted), Some(0));
}

#[test]
fn the_scarcer_unit_counts_and_without_a_cap_nothing_is_said() {
    let mut world = World::new(engine_of(10, Some(1_000)));
    for _ in 0..6 {
        world.ask(&of("a"));
    }
    let full = signals(&world).saturation.expect("capped");
    assert_eq!((full.unit, full.wanted, full.window), (Unit::Tokens, 1_200, 1_000), "six of 200 tokens");
    let mut unlimited = engine_of(0, None);
    unlimited.pools[0].window = Window::default();
    let mut world = World::new(unlimited);
    world.ask(&of("a"));
    assert_eq!(signals(&world).saturation, None);
}
