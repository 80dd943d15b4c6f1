//! One run: sends the plan on the clock, keeps the standing requests standing, and gathers what became of each.
//!
//! Open-loop requests are sent when the plan says, each in its own task, so a slow answer never delays the next
//! request; how late the generator itself was is in every record. After the time of offering it waits for the
//! clients that are not in the background, at most as long as the scenario says, and then drops what is left, which
//! closes the connections as a client that gives up does.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::StatusCode;
use indicatif::{ProgressBar, ProgressStyle};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until};

use crate::client::Target;
use crate::plan::{Plan, Shot, Standing, length};
use crate::record::{Outcome, Record};
use crate::retry::{self, Return, Told};

/// Records on their way to the gatherer.
const INBOX: usize = 1_024;
/// The least and the most a standing client waits after a refusal.
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// How a run is bounded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) drain: Duration,
    pub(crate) most_outstanding: u32,
    pub(crate) most_records: usize,
}

/// What a client knows at the end of one try.
struct Ended {
    outcome: Outcome,
    told: Told,
    retry_after: Option<String>,
}

/// What every task of a run shares.
#[derive(Clone)]
struct Run {
    target: Target,
    records: mpsc::Sender<Record>,
    /// Set when the run is over.
    over: watch::Receiver<bool>,
    /// Requests under way of clients that are waited for.
    awaited: Arc<watch::Sender<usize>>,
    under_way: Arc<AtomicUsize>,
}

/// Runs a plan. The records come in no particular order.
pub(crate) async fn run(plan: Plan, target: Target, bounds: Bounds) -> Vec<Record> {
    let (records, mut inbox) = mpsc::channel(INBOX);
    let (stop, over) = watch::channel(false);
    let (awaited, left) = watch::channel(0_usize);
    let run = Run { target: target.clone(), records, over, awaited: Arc::new(awaited), under_way: Arc::default() };
    let bar = progress_bar(target.offered_for());
    let gather = tokio::spawn(async move {
        let mut gathered = Vec::new();
        while let Some(record) = inbox.recv().await {
            if gathered.len() < bounds.most_records {
                gathered.push(record);
            }
        }
        gathered
    });
    let ticker = tokio::spawn(tick(bar.clone(), run.clone()));
    for standing in plan.standing {
        start_standing(&run, standing);
    }
    offer(&run, plan.shots, bounds.most_outstanding).await;
    sleep_until(target.began() + target.offered_for()).await;
    bar.set_message("waiting for answers");
    await_answers(left, bounds.drain).await;
    stop.send_replace(true);
    ticker.abort();
    bar.finish_and_clear();
    drop(run);
    gather.await.unwrap_or_default()
}

async fn await_answers(mut left: watch::Receiver<usize>, drain: Duration) {
    tokio::select! {
        // The sender lives in this run, so an error means that every task is gone: nothing left to await.
        _ = left.wait_for(|left| *left == 0) => {}
        () = sleep(drain) => {}
    }
}

/// Sends every open-loop request at its time.
async fn offer(run: &Run, shots: Vec<Shot>, most_outstanding: u32) {
    let places = Arc::new(Semaphore::new(usize::try_from(most_outstanding).unwrap_or(Semaphore::MAX_PERMITS)));
    for shot in shots {
        sleep_until(run.target.began() + shot.at).await;
        let mut record = Record::new(&shot, true);
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
            record.outcome = Outcome::NotSent;
            // The gatherer lives as long as this run.
            let _gone = run.records.send(record).await;
            continue;
        };
        let run = run.clone();
        tokio::spawn(async move {
            let seed = u64::try_from(shot.at.as_nanos()).unwrap_or(u64::MAX);
            run.to_its_end(shot, record, &mut StdRng::seed_from_u64(seed)).await;
            drop(place);
        });
    }
}

fn start_standing(run: &Run, standing: Standing) {
    let standing = Arc::new(standing);
    for stream in 0..standing.streams {
        let (run, standing) = (run.clone(), Arc::clone(&standing));
        let mut random = StdRng::seed_from_u64(standing.seed ^ u64::from(stream).rotate_left(32));
        tokio::spawn(async move {
            // Those that think do not all begin at once.
            run.pause(standing.from + standing.think.mul_f64(random.random())).await;
            while run.target.now() < standing.until && !*run.over.borrow() {
                let (input, output) = (length(&standing.input, &mut random), length(&standing.output, &mut random));
                let (at, sender) = (run.target.now(), Arc::clone(&standing.sender));
                let shot = Shot { at, sender, input, output, attempt: 0 };
                let record = Record::new(&shot, false);
                let refused = run.to_its_end(shot, record, &mut random).await;
                run.pause(refused.unwrap_or_default().max(standing.think)).await;
            }
        });
    }
}

impl Run {
    /// Sends a request, and again where its client does. Says how long to stay away where the last try was refused or
    /// failed and the client has no rules of its own for that.
    async fn to_its_end(&self, mut shot: Shot, mut record: Record, random: &mut StdRng) -> Option<Duration> {
        let asked = shot.at;
        loop {
            let ended = self.one(&shot, record).await;
            let retries = shot.sender.retries;
            let (status, told) = match &ended.outcome {
                Outcome::Refused { status, .. } => (*status, ended.told),
                // An SDK takes its own timeout, and a broken connection, for a request timeout.
                Outcome::Failed(_) | Outcome::GaveUp => (StatusCode::REQUEST_TIMEOUT.as_u16(), Told::default()),
                Outcome::Completed | Outcome::Unfinished | Outcome::NotSent => return None,
            };
            if retries == 0 {
                return Some(pause(ended.retry_after.as_deref()));
            }
            let told = Told { wait: told.wait.map(|wait| shot.sender.told_instead.unwrap_or(wait)), ..told };
            let (wait, heeded) = match retry::after(status, told, shot.attempt, retries, random.random()) {
                Return::Heeding(wait) => (wait, true),
                Return::OnItsOwn(wait) => (wait, false),
                Return::Never => return None,
            };
            self.pause(wait).await;
            if *self.over.borrow() {
                return None;
            }
            shot = Shot { at: self.target.now(), attempt: shot.attempt + 1, ..shot };
            record = Record { asked, heeded, ..Record::new(&shot, false) };
        }
    }

    /// Sends one request and reports its end, or where it stood when the run was over.
    async fn one(&self, shot: &Shot, mut record: Record) -> Ended {
        let awaited = usize::from(!shot.sender.background);
        self.awaited.send_modify(|left| *left += awaited);
        self.under_way.fetch_add(1, Ordering::Relaxed);
        let mut over = self.over.clone();
        tokio::select! {
            () = self.target.fire(shot, &mut record) => {}
            _ = over.wait_for(|over| *over) => record.ended = Some(self.target.now()),
        }
        self.under_way.fetch_sub(1, Ordering::Relaxed);
        self.awaited.send_modify(|left| *left -= awaited);
        let ended =
            Ended { outcome: record.outcome.clone(), told: record.told, retry_after: record.retry_after.clone() };
        // The gatherer lives as long as this run.
        let _gone = self.records.send(record).await;
        ended
    }

    async fn pause(&self, pause: Duration) {
        let mut over = self.over.clone();
        tokio::select! {
            () = sleep(pause) => {}
            _ = over.wait_for(|over| *over) => {}
        }
    }
}

fn pause(retry_after: Option<&str>) -> Duration {
    let told = retry_after.and_then(|seconds| seconds.parse().ok()).map(Duration::from_secs);
    told.unwrap_or(Duration::from_secs(1)).clamp(SHORTEST_PAUSE, LONGEST_PAUSE)
}

/// On standard error, and only where that is a terminal.
fn progress_bar(offered_for: Duration) -> ProgressBar {
    let bar = ProgressBar::new(offered_for.as_secs().max(1));
    let style = ProgressStyle::with_template("{bar:30} {pos:>4}/{len} s  {msg}")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    bar.set_style(style);
    bar
}

async fn tick(bar: ProgressBar, run: Run) {
    let began = Instant::now();
    loop {
        sleep(Duration::from_millis(250)).await;
        let elapsed = began.elapsed();
        bar.set_position(elapsed.min(run.target.offered_for()).as_secs());
        if elapsed <= run.target.offered_for() {
            bar.set_message(format!("{} requests under way", run.under_way.load(Ordering::Relaxed)));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::pause;

    #[test]
    fn a_standing_client_stays_away_as_long_as_it_is_told_within_reason() {
        assert_eq!(pause(Some("3")), Duration::from_secs(3));
        assert_eq!(pause(Some("0")), Duration::from_millis(100));
        assert_eq!(pause(Some("9999")), Duration::from_secs(30));
        assert_eq!(pause(None), Duration::from_secs(1));
    }
}
