use std::num::NonZeroU32;

use super::{Effort, PredictKey, Predictor};
use crate::policy::model::EffortFactors;
use crate::units::{Limit, Model, TenantId, TokenWeight, Tokens};

fn key(tenant: &str) -> PredictKey {
    PredictKey::plain(TenantId::from(tenant), Model::from("m"))
}

fn teach(predictor: &mut Predictor, key: &PredictKey, actual: u64, times: usize) {
    for _ in 0..times {
        let predicted = predictor.predict(key);
        predictor.learn(key, predicted, Tokens::new(actual));
    }
}

#[test]
fn before_anything_is_known_it_says_256_within_the_cap_and_times_the_choices() {
    let predictor = Predictor::new(EffortFactors::NEUTRAL);
    assert_eq!(predictor.predict(&key("a")), Tokens::new(256));
    let capped = PredictKey { cap: Limit::AtMost(Tokens::new(100)), ..key("a") };
    assert_eq!(predictor.predict(&capped), Tokens::new(100));
    let several = PredictKey { choices: NonZeroU32::new(3).expect("three"), ..capped };
    assert_eq!(predictor.predict(&several), Tokens::new(300));
    let none = PredictKey { cap: Limit::AtMost(Tokens::ZERO), ..key("a") };
    assert_eq!(predictor.predict(&none), Tokens::ZERO);
}

#[test]
fn the_mean_is_shrunk_through_every_level_exactly_as_written() {
    let mut predictor = Predictor::new(EffortFactors::NEUTRAL);
    teach(&mut predictor, &key("a"), 100, 1);
    let shrunk = |sum: f64, count: f64, broader: f64| (sum + 3.0 * broader) / (count + 3.0);
    let global = shrunk(100.0, 1.0, 256.0);
    let model = shrunk(100.0, 1.0, global);
    let tenant = shrunk(100.0, 1.0, model);
    let narrow = shrunk(100.0, 1.0, tenant);
    let predict = |key: &PredictKey| {
        let tokens = u32::try_from(predictor.predict(key).get()).expect("small");
        f64::from(tokens)
    };
    assert!((predict(&key("a")) - narrow).abs() <= 0.5);
    assert!((predict(&key("stranger")) - model).abs() <= 0.5, "a stranger gets the model's mean");
    let elsewhere = PredictKey { model: Model::from("other"), ..key("a") };
    assert!((predict(&elsewhere) - global).abs() <= 0.5, "another model gets everybody's mean");
    let longer = PredictKey { cap: Limit::AtMost(Tokens::new(4_000)), ..key("a") };
    assert!((predict(&longer) - tenant).abs() <= 0.5, "another cap bucket gets the tenant's mean");
}

#[test]
fn each_tenant_gets_its_own_mean_and_change_is_followed() {
    let mut predictor = Predictor::new(EffortFactors::NEUTRAL);
    teach(&mut predictor, &key("short"), 20, 60);
    teach(&mut predictor, &key("long"), 900, 60);
    assert!(predictor.predict(&key("short")) < Tokens::new(60));
    assert!(predictor.predict(&key("long")) > Tokens::new(800));
    teach(&mut predictor, &key("short"), 900, 200);
    assert!(predictor.predict(&key("short")) > Tokens::new(850), "a mean of fifty follows within two hundred");
}

#[test]
fn effort_multiplies_by_the_policys_factor_until_there_is_history() {
    let factor = |value| TokenWeight::new(value).expect("valid");
    let efforts = EffortFactors { none: factor(0.3), high: factor(2.0), ..EffortFactors::NEUTRAL };
    let mut predictor = Predictor::new(efforts);
    assert_eq!(predictor.predict(&PredictKey { effort: Effort::Max, ..key("a") }), Tokens::new(256));
    let high = PredictKey { effort: Effort::High, ..key("a") };
    let none = PredictKey { effort: Effort::None, ..key("a") };
    assert_eq!(predictor.predict(&high), Tokens::new(512));
    assert_eq!(predictor.predict(&none), Tokens::new(77));
    teach(&mut predictor, &high, 300, 50);
    let learnt = predictor.predict(&high);
    assert!((Tokens::new(290)..Tokens::new(310)).contains(&learnt), "{learnt} is not doubled again");
}

#[test]
fn names_in_the_providers_apis_are_known() {
    for (name, effort) in [("none", Effort::None), ("minimal", Effort::Minimal), ("xhigh", Effort::XHigh)] {
        assert_eq!(Effort::named(name), Some(effort));
    }
    assert_eq!(Effort::named("extreme"), None);
}

#[test]
fn ever_new_tenants_do_not_grow_it_and_fall_back_when_forgotten() {
    let mut predictor = Predictor::with_most_keys(10, EffortFactors::NEUTRAL);
    teach(&mut predictor, &key("old"), 5_000, 1);
    let known = predictor.predict(&key("old"));
    for stranger in 0..1_000 {
        teach(&mut predictor, &key(&format!("stranger-{stranger}")), 10, 1);
    }
    assert_eq!((predictor.tenants.iter().count(), predictor.narrow.iter().count()), (10, 10));
    let forgotten = predictor.predict(&key("old"));
    assert!(forgotten < known && forgotten == predictor.predict(&key("never seen")));
}

#[test]
fn equal_histories_give_equal_predictions_and_its_error_is_reported() {
    let run = || {
        let mut predictor = Predictor::new(EffortFactors::NEUTRAL);
        for step in 0..500_u64 {
            let key = key(["a", "b", "c"][usize::try_from(step % 3).expect("small")]);
            let predicted = predictor.predict(&key);
            predictor.learn(&key, predicted, Tokens::new(step * 7_919 % 900 + 1));
        }
        predictor
    };
    let (one, two) = (run(), run());
    assert_eq!(one.predict(&key("b")), two.predict(&key("b")));
    let accuracy = one.accuracy();
    assert_eq!(accuracy, two.accuracy());
    assert_eq!((accuracy.overall.count, accuracy.models.len()), (500, 1));
    assert!(accuracy.overall.bias.abs() < 60.0 && accuracy.overall.mean_absolute_error > 100.0);
}

#[test]
fn one_report_teaches_no_more_than_the_cap_or_a_million() {
    let mut predictor = Predictor::new(EffortFactors::NEUTRAL);
    let capped = PredictKey { cap: Limit::AtMost(Tokens::new(50)), ..key("a") };
    predictor.learn(&capped, Tokens::new(50), Tokens::new(u64::MAX));
    assert!(predictor.predict(&key("b")) <= Tokens::new(256), "others' answers are no longer for it");
    predictor.learn(&key("a"), Tokens::new(50), Tokens::new(u64::MAX));
    assert!(predictor.predict(&key("b")) < Tokens::new(1_000_000));
}
