//! How much goes before a newcomer, against what then does.

use proptest::prelude::*;

use crate::admission::RequestState;
use crate::policy::model::Algorithm;
use crate::units::{PoolIndex, VirtualTokens};

use super::world::{Ask, World, of, policy, vt, weight};

const TENANTS: [&str; 4] = ["a", "b", "c", "d"];
/// The dearest request that is drawn.
const DEAREST: u64 = 300 + 2 * 300;

fn cost(ask: &Ask) -> VirtualTokens {
    vt(ask.input + 2 * ask.output)
}

/// What a newcomer would find before it, but for half of itself.
fn ahead(world: &World, ask: &Ask) -> VirtualTokens {
    let found = world.engine.explain(world.now, &world.request(PoolIndex::new(0), ask)).wait.found;
    found.ahead - VirtualTokens::from_micros(cost(ask).as_micros() / 2)
}

fn queued(world: &World) -> VirtualTokens {
    let waiting = world.engine.requests().into_iter().filter(|view| view.state == RequestState::Queued);
    waiting
        .fold(VirtualTokens::ZERO, |sum, view| sum + vt(view.expected.input().get() + 2 * view.expected.output().get()))
}

/// Asks, and serves until it is the newcomer's turn: what was served before it.
fn served_before(world: &mut World, ask: &Ask) -> VirtualTokens {
    let before = queued(world);
    let newcomer = world.ask(ask);
    while world.waits(newcomer) {
        world.serve(1);
    }
    before - queued(world)
}

fn asks() -> impl Strategy<Value = Vec<Ask>> {
    let one = (0..TENANTS.len(), 1u64..=300, 1u64..=300);
    prop::collection::vec(one, 1..40).prop_map(|drawn| {
        let weights = [1.0, 2.0, 0.5, 1.0].map(weight);
        let ask = |(tenant, input, output): (usize, u64, u64)| Ask {
            input,
            output,
            weight: weights[tenant],
            ..of(TENANTS[tenant])
        };
        drawn.into_iter().map(ask).collect()
    })
}

proptest! {
    /// Nothing arrives later, so the fair order gives each other tenant what its counter is short, and at most one
    /// request more; who has less waiting gets less.
    #[test]
    fn no_more_goes_before_a_newcomer_than_is_told_and_a_request_of_each_other(
        asks in asks(), served in 0usize..20, newcomer in 0usize..40,
    ) {
        let mut world = World::new(policy());
        for ask in &asks {
            world.ask(ask);
        }
        world.serve(served);
        let ask = asks[newcomer % asks.len()].clone();
        let told = ahead(&world, &ask);
        let all = queued(&world);
        prop_assert!(told <= all, "{told} of {all}");
        let came = served_before(&mut world, &ask);
        prop_assert!(came <= told + vt(3 * DEAREST), "{came} came before, {told} was told");
    }

    /// Where everybody has more waiting than could go before, no less goes before it than is told.
    #[test]
    fn no_less_goes_before_a_newcomer_of_a_crowd(sizes in prop::collection::vec((1u64..=300, 1u64..=300), 4), own in 0usize..4, served in 0usize..12) {
        let mut world = World::new(policy());
        for (tenant, (input, output)) in TENANTS.into_iter().zip(&sizes) {
            let many = if tenant == TENANTS[own] { served + 4 } else { 4_000 / usize::try_from(input + 2 * output).expect("small") * 4 + 40 };
            for _ in 0..many {
                world.ask(&Ask { input: *input, output: *output, ..of(tenant) });
            }
        }
        world.serve(served);
        let ask = Ask { input: sizes[own].0, output: sizes[own].1, ..of(TENANTS[own]) };
        let told = ahead(&world, &ask);
        let came = served_before(&mut world, &ask);
        prop_assert!(came + vt(DEAREST) >= told && came <= told + vt(3 * DEAREST), "{came} came before, {told} was told");
    }
}

/// A world in which b was served much more than a and c, and all have some waiting.
fn uneven(algorithm: Algorithm) -> World {
    let mut policy = policy();
    policy.fairness.algorithm = algorithm;
    let mut world = World::new(policy);
    world.ask(&of("b"));
    for tenant in ["b", "a", "c"] {
        for _ in 0..5 {
            world.ask(&Ask { output: if tenant == "b" { 1_000 } else { 100 }, ..of(tenant) });
        }
    }
    world.serve(2);
    world
}

#[test]
fn who_received_less_has_less_before_it() {
    let world = uneven(Algorithm::Vtc);
    let [less, more] = ["a", "b"].map(|tenant| ahead(&world, &of(tenant)));
    assert!(less < more, "{less} before a, {more} before b");
    let world = uneven(Algorithm::RoundRobin);
    assert_eq!(ahead(&world, &of("a")), vt(3 * 4 * 300), "its own four, and as much of both others");
}
