//! Runs the engine model on the real clock.
//!
//! One task owns the engine. It wakes when the running step ends or a job arrives, lets the model catch up with the
//! clock, and publishes to each job how far its answer has come. A reader sees the latest state and may skip some,
//! so a slow one holds nothing up and nothing is kept for it. Each step begins when the one before it ended in the
//! model, not when a timer happened to fire, so timing does not drift.
//!
//! A job whose reader is gone is taken out at the next wake-up; while the engine has any job a step is running, so
//! that is at most one step later.

use std::collections::HashMap;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::time;

use crate::sim::{EngineSpec, Job, JobId, NeverFits, Progress, SimEngine};
use crate::units::{Instant, Span, Tokens};

/// The most jobs waiting and running; a real engine's front end is bounded too.
const MOST_JOBS: usize = 20_000;
/// Submissions on their way to the driver; a submitter waits for a place.
const INBOX: usize = 256;

/// How far an answer has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Answered {
    pub(super) output: Tokens,
    pub(super) finished: bool,
}

/// What the engine is doing, as its gauges tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Jobs running, a running prefill included.
    pub running: usize,
    /// Jobs in its queue.
    pub waiting: usize,
    /// Tokens in its memory.
    pub resident: Tokens,
    /// Input tokens of all jobs taken so far.
    pub input_total: Tokens,
    /// Output tokens produced so far.
    pub output_total: Tokens,
}

/// Why a job was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotTaken {
    NeverFits(NeverFits),
    Full,
    Stopped,
}

/// Hands jobs to the driver.
#[derive(Clone, Debug)]
pub(super) struct Engine {
    inbox: mpsc::Sender<Submission>,
    load: watch::Receiver<Load>,
}

#[derive(Debug)]
struct Submission {
    input: Tokens,
    output: Tokens,
    reply: oneshot::Sender<Result<watch::Receiver<Answered>, NotTaken>>,
}

impl Engine {
    /// Submits a job and returns where its answer can be followed. Dropping that withdraws the job.
    pub(super) async fn submit(&self, input: Tokens, output: Tokens) -> Result<watch::Receiver<Answered>, NotTaken> {
        let (reply, answer) = oneshot::channel();
        let submission = Submission { input, output, reply };
        self.inbox.send(submission).await.map_err(|_| NotTaken::Stopped)?;
        answer.await.unwrap_or(Err(NotTaken::Stopped))
    }

    pub(super) fn load(&self) -> watch::Receiver<Load> {
        self.load.clone()
    }
}

/// Starts the driver. It runs until `stop` is dropped or set, or every [`Engine`] is gone.
pub(super) fn start(spec: EngineSpec, stop: watch::Receiver<bool>) -> Engine {
    let (inbox, submissions) = mpsc::channel(INBOX);
    let (publish, load) = watch::channel(Load::default());
    let driver = Driver {
        engine: SimEngine::new(spec),
        began: time::Instant::now(),
        jobs: HashMap::new(),
        next: 0,
        load: Load::default(),
        publish,
    };
    tokio::spawn(driver.run(submissions, stop));
    Engine { inbox, load }
}

struct Driver {
    engine: SimEngine,
    began: time::Instant,
    jobs: HashMap<JobId, Reader>,
    next: u64,
    load: Load,
    publish: watch::Sender<Load>,
}

struct Reader {
    answered: Answered,
    publish: watch::Sender<Answered>,
}

impl Driver {
    async fn run(mut self, mut submissions: mpsc::Receiver<Submission>, mut stop: watch::Receiver<bool>) {
        loop {
            let wake = self.engine.next_event().map(|at| self.began + at.since(Instant::EPOCH).to_std());
            let arrived = tokio::select! {
                _ = stop.wait_for(|stopped| *stopped) => return,
                submission = submissions.recv() => match submission {
                    Some(submission) => Some(submission),
                    None => return,
                },
                () = sleep_until(wake) => None,
            };
            let now = Instant::EPOCH + Span::from(self.began.elapsed());
            self.advance(now);
            if let Some(submission) = arrived {
                self.take(now, submission);
            }
            self.publish_load();
        }
    }

    fn advance(&mut self, now: Instant) {
        let mut produced = Vec::new();
        self.engine.advance(now, &mut produced);
        for Progress { id, output, finished, .. } in produced {
            let Some(reader) = self.jobs.get_mut(&id) else { continue };
            self.load.output_total += output.saturating_sub(reader.answered.output);
            reader.answered = Answered { output, finished };
            reader.publish.send_replace(reader.answered);
            if finished {
                self.jobs.remove(&id);
            }
        }
        let engine = &mut self.engine;
        self.jobs.retain(|id, reader| {
            let gone = reader.publish.is_closed();
            if gone {
                engine.cancel(*id);
            }
            !gone
        });
    }

    fn take(&mut self, now: Instant, submission: Submission) {
        let id = JobId(self.next);
        self.next += 1;
        let taken = if self.jobs.len() >= MOST_JOBS {
            Err(NotTaken::Full)
        } else {
            let job = Job::new(id, submission.input, submission.output);
            self.engine.submit(now, job).map_err(NotTaken::NeverFits)
        };
        let answer = taken.map(|()| {
            let (publish, answer) = watch::channel(Answered::default());
            self.jobs.insert(id, Reader { answered: Answered::default(), publish });
            self.load.input_total += submission.input;
            answer
        });
        // A submitter that is gone has dropped its receiver with the reply, and is swept like any other.
        let _gone = submission.reply.send(answer);
    }

    fn publish_load(&mut self) {
        self.load.running = self.engine.running();
        self.load.waiting = self.engine.waiting();
        self.load.resident = self.engine.resident_tokens();
        self.publish.send_replace(self.load);
    }
}

async fn sleep_until(wake: Option<time::Instant>) {
    match wake {
        Some(at) => time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
