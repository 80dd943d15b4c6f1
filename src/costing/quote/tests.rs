use std::num::NonZeroU32;

use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use super::Quote;
use crate::costing::{Call, Counted, Effort, Experience, Fit, Prompt};
use crate::policy::model::{Caller, EffortFactors, Selection};
use crate::units::{
    Agent, Bytes, ClassIndex, Limit, Model, PoolIndex, Price, SessionId, Tariff, TenantId, TokenWeight, Tokens, Usage,
    Weight,
};

fn call(cap: Limit<Tokens>, choices: u32) -> Call {
    Call {
        model: "alias".into(),
        prompt: Prompt::default(),
        cap,
        least: Tokens::ZERO,
        choices: NonZeroU32::new(choices).expect("not zero"),
        effort: Effort::Unstated,
        streamed: false,
        bytes: Bytes::ZERO,
    }
}

fn selection() -> Selection {
    Selection {
        pool: PoolIndex::new(0),
        model: Model::from("m"),
        class: ClassIndex::new(0),
        weight: Weight::ONE,
        price: Price::new(TokenWeight::ONE, [TokenWeight::ONE; 5]),
        tariff: Tariff::default(),
    }
}

fn caller(session: Option<&str>) -> Caller {
    Caller {
        tenant: TenantId::from("acme"),
        session: session.map(SessionId::from),
        agent: Agent::Lead,
        user: None,
        task: None,
        wished_class: None,
    }
}

fn near(text: u64) -> Counted {
    Counted { fit: Fit::Near, ..Counted::exactly(Tokens::new(text)) }
}

fn unlearned() -> Experience {
    Experience::new(EffortFactors::NEUTRAL)
}

fn quote(cap: Limit<Tokens>, choices: u32, experience: &Experience) -> Quote {
    quote_within(cap, choices, experience, Limit::Unlimited)
}

fn quote_within(cap: Limit<Tokens>, choices: u32, experience: &Experience, most: Limit<Tokens>) -> Quote {
    let counted = Counted::exactly(Tokens::new(100));
    Quote::new(&call(cap, choices), counted, &caller(None), &selection(), experience, most)
}

fn quote_of(counted: Counted, session: Option<&str>, experience: &Experience, most: u64) -> Quote {
    let most = Limit::AtMost(Tokens::new(most));
    Quote::new(&call(Limit::Unlimited, 1), counted, &caller(session), &selection(), experience, most)
}

fn teach(experience: &mut Experience, quote: &Quote, usage: Usage, times: usize) {
    for _ in 0..times {
        experience.learn(&quote.basis, &quote.expected, &usage);
    }
}

fn plain(input: u64, output: u64) -> Usage {
    Usage::plain(Tokens::new(input), Tokens::new(output))
}

#[test]
fn a_prediction_never_exceeds_the_cap_of_all_choices() {
    let experience = unlearned();
    let capped = quote(Limit::AtMost(Tokens::new(50)), 3, &experience);
    assert_eq!(capped.output_cap, Limit::AtMost(Tokens::new(150)));
    assert_eq!(capped.expected.output(), Tokens::new(150));
    assert_eq!(quote(Limit::AtMost(Tokens::ZERO), 1, &experience).expected.output(), Tokens::ZERO);
    assert_eq!(quote(Limit::Unlimited, 3, &experience).output_cap, Limit::Unlimited);
}

#[test]
fn a_poisoned_predictor_never_makes_a_request_too_large() {
    let mut experience = unlearned();
    let first = quote(Limit::Unlimited, 1, &experience);
    teach(&mut experience, &first, plain(100, u64::MAX), 50);
    let within = |most: u64| {
        let most = Limit::AtMost(Tokens::new(most));
        quote_within(Limit::Unlimited, 128, &experience, most).expected.total().get()
    };
    assert_eq!((within(1_000_000), within(150), within(100)), (1_000_000, 150, 100));
    assert_eq!(within(99), 100, "the input alone is too large, and stays so");
}

#[test]
fn a_correction_never_makes_a_request_too_large_and_may_make_it_fit() {
    for (ratio, expected) in [(2, 200), (1, 100)] {
        let mut experience = unlearned();
        let first = quote_of(near(100), None, &experience, u64::MAX);
        teach(&mut experience, &first, plain(100 * ratio, 1), 200);
        let input = |most: u64| quote_of(near(100), None, &experience, most).expected.input().get();
        assert!(input(1_000).abs_diff(expected) <= 1, "{} for {expected}", input(1_000));
        assert_eq!(input(100), 100, "fits as counted, so it fits");
        assert!(input(99) > 99, "too large as counted and as corrected");
    }
    let mut experience = unlearned();
    let first = quote_of(near(100), None, &experience, u64::MAX);
    teach(&mut experience, &first, plain(50, 1), 200);
    assert!(quote_of(near(100), None, &experience, 60).expected.input() <= Tokens::new(60), "known to be smaller");
}

#[test]
fn what_a_session_had_cached_is_expected_again_and_costs_what_cached_input_costs() {
    let mut experience = unlearned();
    let counted = Counted::exactly(Tokens::new(1_000));
    let first = quote_of(counted, Some("s"), &experience, u64::MAX);
    assert_eq!(first.expected.cached_input, Tokens::ZERO);
    let cached = Usage { cached_input: Tokens::new(900), ..plain(100, 10) };
    teach(&mut experience, &first, cached, 1);
    let expected = |session, experience: &Experience| quote_of(counted, session, experience, u64::MAX).expected;
    let again = expected(Some("s"), &experience);
    assert_eq!((again.cached_input, again.uncached_input), (Tokens::new(900), Tokens::new(100)));
    let price = Price::new(TokenWeight::ONE, [1.0, 0.1, 1.0, 1.0, 1.0].map(|w| TokenWeight::new(w).expect("valid")));
    assert!(
        price.cost(&again)
            < price.cost(&Usage { cached_input: Tokens::ZERO, uncached_input: Tokens::new(1_000), ..again })
    );
    assert_eq!(expected(Some("other"), &experience).cached_input, Tokens::ZERO);
    assert_eq!(expected(None, &experience).cached_input, Tokens::ZERO);
    // Whoever leaves before the usage is told has had his discount.
    experience.unreported(&first.basis);
    assert_eq!(expected(Some("s"), &experience).cached_input, Tokens::ZERO);
}

#[test]
fn output_that_is_insisted_on_is_expected_for_every_choice() {
    let experience = unlearned();
    let forced = |least: u64| {
        let mut call = call(Limit::AtMost(Tokens::new(900)), 2);
        call.least = Tokens::new(least);
        let counted = Counted::exactly(Tokens::new(100));
        Quote::new(&call, counted, &caller(None), &selection(), &experience, Limit::Unlimited).expected.output()
    };
    assert_eq!(forced(900), Tokens::new(1_800), "all of it");
    assert_eq!(forced(1), forced(0), "less than is expected anyway");
}

#[test]
fn what_may_have_no_output_teaches_nothing_about_it() {
    let mut experience = unlearned();
    let before = quote(Limit::Unlimited, 1, &experience).expected;
    let embedding = quote(Limit::AtMost(Tokens::ZERO), 1, &experience);
    teach(&mut experience, &embedding, plain(100, 0), 50);
    assert_eq!(quote(Limit::Unlimited, 1, &experience).expected, before);
}

#[test]
fn what_was_learnt_under_the_quotes_key_changes_the_next_quote() {
    let mut experience = unlearned();
    let first = quote(Limit::Unlimited, 1, &experience);
    assert_eq!((first.expected.input(), first.basis.key.model.as_str()), (Tokens::new(100), "m"), "after aliases");
    teach(&mut experience, &first, plain(100, 10), 50);
    assert!(quote(Limit::Unlimited, 1, &experience).expected.output() < Tokens::new(20));
}

fn size() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0_u64), 1..2_000_u64, any::<u64>(), Just(u64::MAX)]
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 300, failure_persistence: None, rng_seed: RngSeed::Fixed(11), ..ProptestConfig::default()
    })]

    /// Whatever was reported before, and whatever is asked for: no panic, no output beyond the cap, cached input within
    /// the input, and nothing learnt makes a request too large.
    #[test]
    fn a_quote_keeps_its_promises(
        reports in prop::collection::vec((size(), size(), size(), size(), any::<bool>()), 0..20),
        (text, cap, least, most) in (size(), size(), size(), size()),
        choices in 1..=128_u32,
        capped in any::<bool>(),
    ) {
        let mut experience = unlearned();
        for (uncached, cached, written, output, reported) in reports {
            let quote = quote_of(near(text), Some("s"), &experience, most);
            let [uncached_input, cached_input, cache_write, visible_output] =
                [uncached, cached, written, output].map(Tokens::new);
            let usage = Usage { uncached_input, cached_input, cache_write, visible_output, ..Usage::default() };
            if reported {
                experience.learn(&quote.basis, &quote.expected, &usage);
            } else {
                experience.unreported(&quote.basis);
            }
        }
        let cap = if capped { Limit::AtMost(Tokens::new(cap)) } else { Limit::Unlimited };
        let least = Tokens::new(cap.cap().map_or(least, |cap| least.min(cap.get())));
        let call = Call { least, ..call(cap, choices) };
        let limit = Limit::AtMost(Tokens::new(most));
        let quote = Quote::new(&call, near(text), &caller(Some("s")), &selection(), &experience, limit);
        if let Limit::AtMost(most) = quote.output_cap {
            prop_assert!(quote.expected.output() <= most);
        }
        if text <= most {
            prop_assert!(quote.expected.input() <= Tokens::new(most));
        }
        prop_assert!(quote.expected.input() <= Tokens::new(text).times(3) + Tokens::new(text / 1_000_000 + 2));
        prop_assert!(quote.expected.input() + Tokens::new(text / 1_000_000 + 2) >= Tokens::new(text / 3).min(Tokens::new(most)));
    }
}
