//! Hits on rates, told from outside: what is allowed stays within the rate whatever is asked, in which order, and what
//! comes back.

use std::sync::Arc;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::admission::{Effect, Engine, Hit, HitKind, HitOutcome, Input, Keeping, Options, Owner, RateStanding, Slots};
use crate::policy;
use crate::units::{Amount, Calendar, Instant, Span};

const LIMITS: &str = "
version: 1
limits:
  - {name: calls, per: tenant, requests: 10, every: 10s, burst: 4, when_exceeded: refuse}
  - {name: tokens, per: global, tokens: 100, every: 1s, burst: 300, when_exceeded: refuse}
  - {name: noted, per: tenant, requests: 1, every: 10s, when_exceeded: shadow}
";

fn engine() -> Engine {
    let policy = policy::parse_alone("hits", LIMITS).expect("a policy");
    let options = Options { seed: 1, slots: Slots::Window, calendar: Calendar::default(), keeping: Keeping::Memory };
    Engine::new(Arc::new(policy), options)
}

fn hit(limit: u16, amount: i128, kind: HitKind) -> Hit {
    let owner = if limit == 1 { Owner::Everybody } else { Owner::Tenant("acme".into()) };
    Hit { limit, owner, amount: Amount::from_parts(amount), kind }
}

fn count(engine: &mut Engine, millis: u64, hits: &[Hit]) -> Vec<RateStanding> {
    let effects = engine.on(Instant::EPOCH + Span::from_millis(1_000 + millis), Input::Count(hits.to_vec()));
    let mut counted = effects.into_iter().filter_map(|effect| match effect {
        Effect::Counted(standings) => Some(standings),
        _ => None,
    });
    let standings = counted.next().expect("an answer");
    assert!(counted.next().is_none() && standings.len() == hits.len(), "one answer, and one place for each hit");
    standings
}

fn allowed(standings: &[RateStanding]) -> bool {
    standings.iter().all(|standing| !matches!(standing.outcome, HitOutcome::OverLimit(_)))
}

#[test]
fn all_of_a_call_is_taken_or_none() {
    use HitKind::Asked;
    let mut engine = engine();
    let both = [hit(0, 1, Asked), hit(1, 200, Asked)];
    let first = count(&mut engine, 0, &both);
    assert!(allowed(&first));
    assert_eq!((first[0].left, first[1].left), (Amount::from_parts(3), Amount::from_parts(100)));
    let second = count(&mut engine, 0, &both);
    assert_eq!(second[0].outcome, HitOutcome::Allowed);
    assert_eq!(second[1].outcome, HitOutcome::OverLimit(Span::from_secs(1)), "100 tokens are missing");
    assert_eq!(second[0].left, Amount::from_parts(3), "nothing was taken of the one that would have allowed it");
    let twice = count(&mut engine, 0, &[hit(1, 60, Asked), hit(1, 60, Asked)]);
    assert_eq!(twice[0].outcome, HitOutcome::Allowed);
    assert!(matches!(twice[1].outcome, HitOutcome::OverLimit(_)), "the second stands behind the first");
    assert_eq!(twice[1].left, Amount::from_parts(100));
}

#[test]
fn what_is_used_is_taken_and_the_debt_is_waited_for() {
    let mut engine = engine();
    assert!(allowed(&count(&mut engine, 0, &[hit(1, 0, HitKind::Checked)])));
    let used = count(&mut engine, 0, &[hit(1, 500, HitKind::Used)]);
    assert_eq!((used[0].outcome, used[0].left), (HitOutcome::Allowed, Amount::from_parts(-200)));
    let checked = count(&mut engine, 0, &[hit(1, 0, HitKind::Checked)]);
    assert_eq!(checked[0].outcome, HitOutcome::OverLimit(Span::from_millis(2_010)), "200 owed, and one to be had");
    let more = count(&mut engine, 0, &[hit(1, 100, HitKind::Used)]);
    assert!(!allowed(&more), "nothing was left, and it was taken all the same");
    assert_eq!(more[0].left, Amount::from_parts(-300));
    assert!(!allowed(&count(&mut engine, 3_000, &[hit(1, 1, HitKind::Asked)])));
    assert!(allowed(&count(&mut engine, 3_010, &[hit(1, 1, HitKind::Asked)])));
}

#[test]
fn what_comes_back_fills_a_bucket_and_no_more() {
    let mut engine = engine();
    count(&mut engine, 0, &[hit(0, 3, HitKind::Asked)]);
    let back = count(&mut engine, 0, &[hit(0, 2, HitKind::GivenBack)]);
    assert_eq!(back[0].left, Amount::from_parts(3));
    let back = count(&mut engine, 0, &[hit(0, 1_000, HitKind::GivenBack)]);
    assert_eq!(back[0].left, Amount::from_parts(4), "the burst, and nothing stored beyond it");
    assert!(!allowed(&count(&mut engine, 0, &[hit(0, 1, HitKind::Asked), hit(0, 4, HitKind::Asked)])));
}

#[test]
fn a_shadow_notes_and_a_limit_that_is_not_there_allows_nothing() {
    let mut engine = engine();
    assert_eq!(count(&mut engine, 0, &[hit(2, 1, HitKind::Asked)])[0].outcome, HitOutcome::Allowed);
    let noted = count(&mut engine, 0, &[hit(2, 1, HitKind::Asked)]);
    assert_eq!((noted[0].outcome, noted[0].left), (HitOutcome::Shadowed, Amount::from_parts(-1)));
    assert!(!allowed(&count(&mut engine, 0, &[hit(9, 1, HitKind::Asked)])));
}

/// In every window, what was asked for and allowed is within the rate; what comes back counts as never taken.
#[test]
fn no_window_holds_more_than_the_rate_and_the_burst() {
    for seed in 0..200 {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut engine = engine();
        let (mut now, mut log) = (0_u64, Vec::new());
        for _ in 0..300 {
            now += [0, 0, 7, 130, 900][rng.random_range(0..5)];
            let amount = rng.random_range(1..260);
            let kind = if rng.random_bool(0.1) { HitKind::GivenBack } else { HitKind::Asked };
            let before = count(&mut engine, now, &[hit(1, 0, HitKind::Checked)])[0].left;
            let standing = count(&mut engine, now, &[hit(1, amount, kind)])[0];
            // As the bucket has it: what was taken, or what came back.
            log.push((now, (before - standing.left).parts()));
            assert!(standing.left <= standing.most, "seed {seed}: nothing is stored beyond the burst");
            match (kind, standing.outcome) {
                (HitKind::Asked, HitOutcome::OverLimit(_)) => assert_eq!(standing.left, before, "seed {seed}"),
                (HitKind::Asked, _) => assert!(before.parts() >= amount, "seed {seed}: {before:?} left of {amount}"),
                _ => {}
            }
        }
        for first in 0..log.len() {
            let mut taken = 0;
            for (at, amount) in &log[first..] {
                taken += amount;
                let granted = i128::from(at - log[first].0) * 100 / 1_000;
                assert!(taken <= granted + 300 + 1, "seed {seed}: {taken} within {} ms", at - log[first].0);
            }
        }
    }
}
