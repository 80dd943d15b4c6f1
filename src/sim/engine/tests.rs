use std::collections::VecDeque;

use super::{Job, JobId, Progress, SimEngine, Supply, Watch};
use crate::sim::spec::EngineSpec;
use crate::units::{Instant, Span, Tokens};

fn job(id: u64, input: u64, output: u64) -> Job {
    Job::new(JobId(id), Tokens::new(input), Tokens::new(output))
}

fn run(engine: &mut SimEngine) -> Vec<Progress> {
    let mut out = Vec::new();
    while let Some(at) = engine.next_event() {
        engine.advance(at, &mut out);
    }
    out
}

#[test]
fn one_job_takes_its_prefill_and_one_step_a_token() {
    let spec = EngineSpec::default();
    let mut engine = SimEngine::new(spec.clone());
    engine.submit(Instant::EPOCH, job(1, 100, 3)).expect("fits");
    let out = run(&mut engine);
    let mut at = Instant::EPOCH + spec.prefill_span(Tokens::new(100));
    let mut expected = vec![];
    for output in 1..=3 {
        expected.push(Progress { at, id: JobId(1), output: Tokens::new(output), finished: output == 3 });
        at = at + spec.decode_span(1, Tokens::new(100 + output));
    }
    assert_eq!(out, expected);
    assert_eq!((engine.running(), engine.waiting(), engine.resident_tokens()), (0, 0, Tokens::ZERO));
    assert_eq!((engine.admitted_tokens(), engine.waiting_tokens()), (Tokens::ZERO, Tokens::ZERO));
}

#[test]
fn a_newcomer_waits_for_the_next_look_at_the_queue() {
    let mut engine = SimEngine::new(EngineSpec::default());
    engine.submit(Instant::EPOCH, job(1, 10, 100)).expect("fits");
    engine.submit(Instant::EPOCH, job(2, 10, 5)).expect("fits");
    let out = run(&mut engine);
    let first = out.iter().position(|progress| progress.id == JobId(2)).expect("served");
    // Job 1's prefill and ten decode steps come first.
    assert_eq!(first, 11);
}

#[test]
fn memory_is_tested_at_its_peak_and_the_head_is_never_overtaken() {
    // 250 in, 250 out: the first three peak at 500 each. The fourth would need 2,000 at once, the small one
    // behind it would fit, and must wait all the same.
    let spec = EngineSpec { kv_tokens: Tokens::new(1_900), ..EngineSpec::default() };
    let mut engine = SimEngine::new(spec);
    for id in 0..4 {
        engine.enqueue(job(id, 250, 250)).expect("fits alone");
    }
    engine.enqueue(job(9, 1, 1)).expect("fits alone");
    engine.start_own_step(Instant::EPOCH);
    assert_eq!((engine.running(), engine.waiting()), (3, 2));
    assert_eq!(engine.waiting_tokens(), Tokens::new(502));
    assert_eq!(engine.admitted_tokens(), Tokens::new(1_500));
    let out = run(&mut engine);
    let first = |id| out.iter().find(|progress| progress.id == JobId(id)).expect("served").at;
    assert_eq!(first(3), first(9), "both enter with the next mini-batch");
    assert!(out.iter().filter(|progress| progress.finished).count() == 5);
}

#[test]
fn memory_is_never_exceeded_and_stays_well_used() {
    let spec = EngineSpec::default();
    let mut engine = SimEngine::new(spec.clone());
    for id in 0..400 {
        engine.enqueue(job(id, 1 + id * 37 % 900, 1 + id * 53 % 700)).expect("fits alone");
    }
    engine.start_own_step(Instant::EPOCH);
    let (mut out, mut most) = (Vec::new(), Tokens::ZERO);
    while let Some(at) = engine.next_event() {
        engine.advance(at, &mut out);
        most = most.max(engine.resident_tokens());
        assert!(engine.resident_tokens() < spec.kv_tokens);
    }
    assert!(most > Tokens::new(9_000), "only {most} of 10,000 were ever used");
    assert_eq!(out.iter().filter(|progress| progress.finished).count(), 400);
}

#[test]
fn a_mini_batch_is_bounded_and_a_longer_input_goes_alone() {
    let mut engine = SimEngine::new(EngineSpec::default());
    for (id, input) in [(1, 4_000), (2, 2_000), (3, 1_000), (4, 73)] {
        engine.enqueue(job(id, input, 2)).expect("fits alone");
    }
    engine.start_own_step(Instant::EPOCH);
    assert_eq!(engine.running(), 1);
    let firsts: Vec<_> = run(&mut engine).into_iter().filter(|p| p.output == Tokens::new(1)).collect();
    let same = |a: usize, b: usize| firsts[a].at == firsts[b].at;
    assert!(!same(0, 1) && same(1, 2) && !same(2, 3), "{firsts:?}");
}

#[test]
fn what_can_never_fit_is_refused_at_once() {
    let mut engine = SimEngine::new(EngineSpec::default());
    assert!(engine.submit(Instant::EPOCH, job(1, 9_000, 1_000)).is_err());
    assert!(engine.submit(Instant::EPOCH, job(1, u64::MAX, u64::MAX)).is_err());
    assert!(engine.submit(Instant::EPOCH, job(1, 9_999, 0)).is_err());
    assert!(engine.next_event().is_none());
    engine.submit(Instant::EPOCH, job(2, 9_000, 999)).expect("just fits");
    assert_eq!(run(&mut engine).len(), 999);
}

#[test]
fn a_cancelled_job_leaves_wherever_it_stands() {
    let spec = EngineSpec::default();
    let mut engine = SimEngine::new(spec);
    engine.submit(Instant::EPOCH, job(1, 10, 50)).expect("fits");
    engine.submit(Instant::EPOCH, job(2, 10, 50)).expect("fits");
    assert_eq!(engine.cancel(JobId(2)), Some(Tokens::ZERO), "while queued");
    assert_eq!(engine.cancel(JobId(1)), Some(Tokens::ZERO), "while its prefill runs");
    assert_eq!(engine.cancel(JobId(1)), None);
    assert!(run(&mut engine).is_empty());
    engine.submit(Instant::EPOCH, job(3, 10, 50)).expect("fits");
    let mut out = Vec::new();
    for _ in 0..4 {
        engine.advance(engine.next_event().expect("running"), &mut out);
    }
    assert_eq!(engine.cancel(JobId(3)), Some(Tokens::new(4)), "while it decodes");
    assert_eq!((engine.resident_tokens(), engine.admitted_tokens(), engine.running()), (Tokens::ZERO, Tokens::ZERO, 0));
}

#[test]
fn only_what_is_watched_is_reported_and_the_rest_can_be_asked_for() {
    let mut engine = SimEngine::new(EngineSpec::default());
    let watched = |id, watch| Job { watch, ..job(id, 10, 6) };
    engine.enqueue(watched(1, Watch::Ends)).expect("fits");
    engine.enqueue(watched(2, Watch::Every)).expect("fits");
    engine.start_own_step(Instant::EPOCH);
    let mut out = Vec::new();
    for _ in 0..3 {
        engine.advance(engine.next_event().expect("running"), &mut out);
    }
    let asked = engine.progress(Instant::EPOCH).map(|p| (p.id.0, p.output.get())).collect::<Vec<_>>();
    assert_eq!(asked, [(1, 3), (2, 3)]);
    out.extend(run(&mut engine));
    let seen = |id| out.iter().filter(|p| p.id == JobId(id)).map(|p| p.output.get()).collect::<Vec<_>>();
    assert_eq!((seen(1), seen(2)), (vec![1, 6], vec![1, 2, 3, 4, 5, 6]));
}

#[test]
fn a_job_without_output_ends_with_its_prefill() {
    let mut engine = SimEngine::new(EngineSpec::default());
    engine.submit(Instant::EPOCH, job(1, 10, 0)).expect("fits");
    let out = run(&mut engine);
    assert_eq!((out.len(), out[0].output, out[0].finished), (1, Tokens::ZERO, true));
}

/// Hands out jobs and counts how often it is asked.
struct Counted(VecDeque<Job>, usize);

impl Supply for Counted {
    fn head(&mut self) -> Option<Job> {
        self.1 += 1;
        self.0.head()
    }
    fn take(&mut self) -> Option<Job> {
        self.0.take()
    }
}

#[test]
fn somebody_else_may_decide_the_order() {
    let mut engine = SimEngine::new(EngineSpec::default());
    let mut supply = Counted([job(7, 10, 2), job(5, 10, 2)].into(), 0);
    engine.start_step(Instant::EPOCH, &mut supply);
    assert_eq!((engine.running(), supply.1), (2, 3));
    let mut out = Vec::new();
    engine.end_step(&mut out);
    assert_eq!(out.iter().map(|p| p.id.0).collect::<Vec<_>>(), [7, 5]);
}

#[test]
fn a_late_caller_gets_the_steps_at_the_times_they_ended() {
    let run_with = |gap: Span| {
        let mut engine = SimEngine::new(EngineSpec::default());
        engine.submit(Instant::EPOCH, job(1, 10, 40)).expect("fits");
        let (mut now, mut out) = (Instant::EPOCH, Vec::new());
        while engine.next_event().is_some() {
            now = now + gap;
            engine.advance(now, &mut out);
        }
        out
    };
    assert_eq!(run_with(Span::from_millis(1)), run_with(Span::from_secs(100)));
}
