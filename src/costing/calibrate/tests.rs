use proptest::prelude::*;

use super::{Calibration, PARTS, solve};
use crate::costing::call::History;
use crate::costing::count::{Counted, Fit};
use crate::units::{Model, TenantId, Tokens};

fn near(text: u64, structured: u64, markup: u64) -> Counted {
    let [text, structured, markup] = [text, structured, markup].map(Tokens::new);
    Counted { text, structured, markup, ..Counted::default() }
}

fn model() -> Model {
    Model::from("m")
}

fn tenant(name: &str) -> TenantId {
    TenantId::from(name)
}

fn expect(calibration: &Calibration, who: &str, counted: &Counted) -> u64 {
    calibration.expect(&tenant(who), &model(), counted).get()
}

fn teach(calibration: &mut Calibration, who: &str, counted: &Counted, reported: u64, times: usize) {
    for _ in 0..times {
        let expected = calibration.expect(&tenant(who), &model(), counted);
        calibration.learn(&tenant(who), &model(), counted, expected, Tokens::new(reported));
    }
}

#[test]
fn before_anything_is_known_the_count_stands() {
    let counted = Counted { attachments: Tokens::new(85), encoded: Tokens::new(7), ..near(900, 200, 11) };
    assert_eq!(expect(&Calibration::default(), "a", &counted), counted.total().get());
}

#[test]
fn equations_are_solved() {
    let rows = [
        [4.0, 1.0, 0.0, 2.0, 0.5],
        [1.0, 3.0, 1.0, 0.0, 0.0],
        [0.0, 1.0, 5.0, 1.0, 0.0],
        [2.0, 0.0, 1.0, 6.0, 1.0],
        [0.5, 0.0, 0.0, 1.0, 2.0],
    ];
    let wanted = [1.0, -2.0, 3.0, 0.5, 7.0];
    let right = std::array::from_fn(|at| (0..PARTS).map(|other| rows[at][other] * wanted[other]).sum());
    for (found, wanted) in solve(rows, right).into_iter().zip(wanted) {
        assert!((found - wanted).abs() < 1e-9, "{found} for {wanted}");
    }
}

#[test]
fn what_a_model_charges_for_each_part_is_found_from_totals() {
    let mut calibration = Calibration::default();
    for step in 0..120_u64 {
        let (text, structured) = (100 + step * 37 % 900, if step % 3 == 0 { 50 + step * 91 % 400 } else { 0 });
        let digits = Tokens::new(if step % 2 == 0 { text / 2 } else { 0 });
        let counted = Counted { digits, ..near(text, structured, 11) };
        // 1.1 a token of text, 0.8 of JSON, and half a token more for every digit.
        let reported = (text * 11 + structured * 8) / 10 + digits.get() / 2 + 11;
        teach(&mut calibration, &format!("tenant-{}", step % 40), &counted, reported, 1);
    }
    for (counted, truth) in [
        (near(2_000, 0, 11), 2_211),
        (near(1_000, 1_000, 11), 1_911),
        (Counted { digits: Tokens::new(500), ..near(1_000, 0, 11) }, 1_361),
    ] {
        let found = expect(&calibration, "a stranger", &counted);
        assert!(found.abs_diff(truth) * 50 < truth, "{found} for {truth}");
    }
    let score = calibration.overall();
    assert!(score.expected.mean_absolute_error * 4.0 < score.counted.mean_absolute_error, "{score:?}");
    assert_eq!(calibration.models()[0].1, score, "it is the only model");
}

#[test]
fn where_the_tokenizer_is_known_only_json_is_corrected() {
    let mut calibration = Calibration::default();
    let counted = Counted { fit: Fit::Exact, ..near(1_000, 400, 11) };
    teach(&mut calibration, "a", &counted, 1_011 + 300, 30);
    assert!(expect(&calibration, "a", &counted).abs_diff(1_311) < 5);
    let plain = Counted { fit: Fit::Exact, ..near(5_000, 0, 11) };
    teach(&mut calibration, "a", &plain, 9_000, 30);
    assert_eq!(expect(&calibration, "a", &plain), 5_011, "a count that is exact is not moved by any report");
}

#[test]
fn nothing_is_learnt_of_what_was_not_counted_or_cannot_be() {
    let mut calibration = Calibration::default();
    let plain = near(1_000, 0, 11);
    let elsewhere = Counted { history: History::Upstream, ..plain };
    let pictured = Counted { attachments: Tokens::new(1_445), ..plain };
    teach(&mut calibration, "a", &elsewhere, 2_500, 30);
    teach(&mut calibration, "a", &pictured, 4_000, 30);
    for implausible in [0, 1, 150, 9_000, u64::MAX] {
        teach(&mut calibration, "a", &plain, implausible, 30);
    }
    teach(&mut calibration, "a", &Counted::default(), 500, 30);
    assert_eq!(expect(&calibration, "a", &plain), 1_011);
}

#[test]
fn whoever_poisons_a_model_moves_others_by_no_more_than_the_bound_and_not_for_long() {
    // Reports of 5.9 times and of 0.17 times the count, in hundredths.
    for ratio in [590, 17] {
        let mut calibration = Calibration::default();
        let counted = near(1_000, 300, 11);
        let total = counted.total().get();
        teach(&mut calibration, "mallory", &counted, total * ratio / 100, 500);
        let stranger = expect(&calibration, "alice", &counted);
        assert!((total / 3..=total * 3 + 1).contains(&stranger), "{stranger}");
        teach(&mut calibration, "alice", &counted, total, 10);
        let known = expect(&calibration, "alice", &counted);
        assert!(known.abs_diff(total) * 10 < total, "after ten honest reports {known} for {total}");
        // Even one who teaches one part of a count out of proportion.
        let odd = Counted { digits: Tokens::new(3), ..near(1, 1, 7_000) };
        teach(&mut calibration, "mallory", &odd, 40_000, 500);
        for other in [near(10_000, 0, 11), near(0, 9_000, 11), near(1, 0, 11)] {
            let found = expect(&calibration, "bob", &other);
            let count = other.total().get();
            assert!((count / 3..=count * 3 + 1).contains(&found), "{found} for {count}");
        }
    }
}

#[test]
fn a_change_is_followed_and_strangers_do_not_grow_it() {
    let mut calibration = Calibration::with_most_keys(10);
    let counted = near(1_000, 0, 11);
    teach(&mut calibration, "a", &counted, 1_300, 100);
    teach(&mut calibration, "a", &counted, 900, 200);
    assert!(expect(&calibration, "a", &counted).abs_diff(900) < 20);
    for stranger in 0..1_000 {
        teach(&mut calibration, &format!("stranger-{stranger}"), &counted, 1_100, 1);
    }
    assert_eq!((calibration.tenants.iter().count(), calibration.models.iter().count()), (10, 1));
}

fn counts() -> impl Strategy<Value = Counted> {
    let sizes = prop_oneof![Just(0_u64), 1..50_000_u64, Just(u64::MAX)];
    (prop::collection::vec(sizes, 7), any::<bool>(), any::<bool>()).prop_map(|(sizes, exact, stated)| {
        let [encoded, text, markup, structured, attachments, digits, wide] =
            std::array::from_fn(|at| Tokens::new(sizes[at]));
        let fit = if exact { Fit::Exact } else { Fit::Near };
        let history = if stated { History::Stated } else { History::Upstream };
        Counted { encoded, text, markup, structured, attachments, fit, digits, wide, history }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, rng_seed: proptest::test_runner::RngSeed::Fixed(7), ..ProptestConfig::default() })]

    /// Whatever is counted and reported, an expectation stays within the bound, and what is exact stays exact.
    #[test]
    fn absurd_numbers_keep_to_the_bound(lessons in prop::collection::vec((counts(), any::<u64>(), 0..3_u8), 1..40), asked in counts()) {
        let mut calibration = Calibration::default();
        for (counted, reported, kind) in &lessons {
            let reported = match kind {
                0 => *reported,
                1 => counted.total().get().saturating_mul(reported % 8),
                _ => counted.total().get() / (reported % 8 + 1),
            };
            teach(&mut calibration, "a", counted, reported, 1);
        }
        for who in ["a", "b"] {
            let found = u128::from(expect(&calibration, who, &asked));
            let corrected = match asked.fit {
                Fit::Exact => asked.structured.get().into(),
                Fit::Near => u128::from(asked.text.get()) + u128::from(asked.markup.get()) + u128::from(asked.structured.get()),
            };
            let fixed = u128::from(asked.total().get()).saturating_sub(corrected);
            // As floats have it: to within a part in a million.
            let slack = corrected / 1_000_000 + 2;
            prop_assert!(found + slack >= fixed.min(u64::MAX.into()) , "{found} below {fixed}");
            prop_assert!(found <= fixed + 3 * corrected + slack, "{found} above {fixed} + 3 × {corrected}");
        }
    }
}
