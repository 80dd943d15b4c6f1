//! The world: clients, gateway and engine on one virtual clock.
//!
//! What is real here: the policy, the predictor, the core and the books are the code that serves production
//! traffic. What is made up: the clients (a trace or generators), the engine ([`SimEngine`]) and the network,
//! which takes no time. The gateway's side (`Desk`) does exactly what a door does and is told nothing a door
//! would not be told; in particular the length of an answer reaches it only as it is produced.
//!
//! One step of the loop goes to the next moment at which anything happens, and there, in this order: engine
//! steps end, requests arrive, clients leave, the engines say what their load is, the core is woken, what it let through is handed to the engines,
//! and idle engines start their next step. The same demands, policy, engine and seed give the same run.
//!
//! Where admission happens is the caller's choice. At the *gateway*, the window decides what is let through to
//! an engine that serves it first come, first served. At the *engine*, the engine's own scheduler asks the core
//! whom to take next, with the true lengths in its memory test, which is the setting of the VTC paper.

mod desk;
mod guess;
mod scrapes;
mod supply;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use crate::admission::Found;
use crate::costing::Accuracy;
use crate::ledger::Balance;
use crate::policy::Policy;
use crate::units::{Instant, PoolIndex, Span, Tokens};

use super::demand::{Demand, Fate};
use super::engine::{Progress, SimEngine};
use super::oracle::{Booking, Fact, Rules};
use super::record::Record;
use super::spec::EngineSpec;

use desk::Desk;
pub use guess::Guess;
use scrapes::Scrapes;
use supply::CoreSupply;

/// Where admission happens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Place {
    /// In front of the engine: the pool's window decides when, the engine serves first come, first served.
    #[default]
    Gateway,
    /// In the engine's own scheduler.
    Engine,
    /// In front of the engine, with Gradient2 in the window's place, to compare with.
    Gradient2,
}

/// How much of a run is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Keep {
    /// What became of each request.
    #[default]
    Records,
    /// Also the log and the bookings, for the judge. The core is then told of every token as it is produced, and
    /// otherwise of all there are whenever it is about to decide.
    Log,
}

/// A world to be run.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The policy in force.
    pub policy: Arc<Policy>,
    /// Every pool's engine.
    pub engine: EngineSpec,
    /// Where admission happens.
    pub place: Place,
    /// Where predictions come from.
    pub guess: Guess,
    /// Decides whatever is left to chance.
    pub seed: u64,
    /// How much is kept.
    pub keep: Keep,
}

/// What came of it.
#[derive(Debug, PartialEq)]
pub struct Run {
    /// Each request's life, in the order of the demands.
    pub records: Vec<Record>,
    /// The share of the dispatched and unfinished tokens that the engines had not admitted yet, averaged over
    /// the time in which there were any.
    pub engine_queue_share: f64,
    /// What the engines held, for every [`LOAD_BIN`].
    pub load: Vec<Load>,
    /// How good the predictions were.
    pub accuracy: Accuracy,
    /// All accounts together.
    pub books: Balance,
    /// How the windows that adapt moved.
    pub window_moves: Vec<WindowMove>,
    /// The log, where it was kept.
    pub facts: Vec<Fact>,
    /// The bookings, where they were kept.
    pub bookings: Vec<Booking>,
    /// What the world saw go wrong: an answer too many, a ticket unknown, a request left standing.
    pub faults: Vec<String>,
}

/// The most of them; what comes later counts in the last.
const MOST_BINS: usize = 1_000_000;

/// How long a time one [`Load`] covers.
pub const LOAD_BIN: Span = Span::from_secs(10);

/// What was dispatched and unfinished in a while, in tokens times seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Load {
    /// Not admitted by an engine yet.
    pub waiting: f64,
    /// Admitted.
    pub admitted: f64,
}

/// A window that adapts has changed worth telling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowMove {
    /// When.
    pub at: Instant,
    /// Which pool's.
    pub pool: PoolIndex,
    /// To what, and why.
    pub found: Found,
}

impl Setup {
    /// The rules the judge needs to know.
    #[must_use]
    pub fn rules(&self) -> Rules {
        let windows = self.policy.pools.iter().map(|pool| (pool.window.requests, pool.window.tokens)).collect();
        Rules {
            per_session: self.policy.fanout.per_session,
            per_tenant: self.policy.fanout.per_tenant,
            windows: (self.place == Place::Gateway).then_some(windows),
        }
    }

    /// Runs the world until every request has ended. `watch` is told now and then how many have.
    ///
    /// # Panics
    /// When `demands` are not in the order of arrival.
    #[must_use]
    pub fn run(&self, demands: &[Demand], mut watch: impl FnMut(usize)) -> Run {
        assert!(demands.is_sorted_by_key(|demand| demand.arrival), "demands come in the order of arrival");
        let mut world = World::new(self, demands);
        while let Some(now) = world.next_event() {
            world.step(now);
            watch(world.desk.ended());
        }
        world.finish()
    }
}

struct World<'a> {
    setup: &'a Setup,
    /// The workload; who comes back is in `returns`.
    demands: &'a [Demand],
    desk: Desk<'a>,
    engines: Vec<SimEngine>,
    scrapes: Scrapes,
    arrived: usize,
    /// Clients that were refused and will come back, by when.
    returns: BinaryHeap<Reverse<(Instant, usize)>>,
    /// Clients that will leave, by when.
    departures: BinaryHeap<Reverse<(Instant, usize)>>,
    now: Instant,
    share: QueueShare,
    produced: Vec<Progress>,
}

/// The share of what is in flight that waits in the engines, averaged over the time in which there is any.
#[derive(Default)]
pub(super) struct QueueShare {
    sum: f64,
    time: f64,
    load: Vec<Load>,
}

impl QueueShare {
    /// It has been so between these moments.
    #[expect(clippy::cast_precision_loss, reason = "for statistics only")]
    pub(super) fn count(&mut self, engines: &[SimEngine], from: Instant, until: Instant) {
        let sum = |tokens: fn(&SimEngine) -> Tokens| engines.iter().map(tokens).sum();
        let waiting: Tokens = sum(SimEngine::waiting_tokens);
        let admitted: Tokens = sum(SimEngine::admitted_tokens);
        let total = waiting + admitted;
        if total.get() == 0 {
            return;
        }
        let span = until.since(from).as_secs_f64();
        self.sum += waiting.get() as f64 / total.get() as f64 * span;
        self.time += span;
        let bin = from.since(Instant::EPOCH).as_nanos() / LOAD_BIN.as_nanos();
        let bin = usize::try_from(bin).unwrap_or(usize::MAX).min(MOST_BINS);
        if self.load.len() <= bin {
            self.load.resize(bin + 1, Load::default());
        }
        self.load[bin].waiting += waiting.get() as f64 * span;
        self.load[bin].admitted += admitted.get() as f64 * span;
    }

    /// 0 where nothing was ever in flight.
    pub(super) fn average(&self) -> f64 {
        if self.time > 0.0 { self.sum / self.time } else { 0.0 }
    }
}

impl<'a> World<'a> {
    fn new(setup: &'a Setup, demands: &'a [Demand]) -> Self {
        let engines = setup.policy.pools.iter().map(|_| SimEngine::new(setup.engine.clone())).collect();
        Self {
            setup,
            demands,
            desk: Desk::new(setup, demands),
            engines,
            scrapes: Scrapes::new(&setup.policy, setup.seed),
            arrived: 0,
            returns: BinaryHeap::new(),
            departures: BinaryHeap::new(),
            now: Instant::EPOCH,
            share: QueueShare::default(),
            produced: Vec::new(),
        }
    }

    /// The next moment at which anything happens; `None` when every request has ended, or nothing is left that
    /// could end one.
    fn next_event(&self) -> Option<Instant> {
        if self.desk.ended() == self.desk.asked() {
            return None;
        }
        let arrival = self.next_arrival();
        let steps = self.engines.iter().filter_map(SimEngine::next_event);
        let departure = self.departures.peek().map(|Reverse((at, _))| *at);
        let next = steps.chain(arrival).chain(departure).chain(self.desk.next_wakeup()).min()?;
        // Reading what stands still ends nothing.
        let next = self.scrapes.next().map_or(next, |scrape| scrape.min(next));
        Some(next.max(self.now))
    }

    fn step(&mut self, now: Instant) {
        self.share.count(&self.engines, self.now, now);
        self.now = now;
        self.end_steps();
        if self.core_is_about_to_decide() {
            self.tell_progress();
        }
        while self.next_arrival().is_some_and(|arrival| arrival <= now) {
            let index = self.take_arrival();
            if let Fate::LeavesAfter(span) = self.desk.demand(index).fate {
                self.departures.push(Reverse((now + span, index)));
            }
            self.desk.arrive(now, index);
        }
        while let Some(Reverse((_, index))) = self.departures.peek().copied().filter(|Reverse((at, _))| *at <= now) {
            self.departures.pop();
            self.leave(index);
        }
        for reading in self.scrapes.read(now, &self.engines) {
            self.desk.feed(now, reading);
        }
        if self.desk.next_wakeup().is_some_and(|at| at <= now) {
            self.desk.wake(now);
        }
        self.desk.let_through(now);
        self.hand_over();
        for index in self.desk.take_returning() {
            self.returns.push(Reverse((self.desk.demand(index).arrival, index)));
        }
        for pool in (0..).map(PoolIndex::new).take(self.engines.len()) {
            self.start_step(pool);
        }
    }

    /// When somebody arrives next: of the workload, or coming back.
    fn next_arrival(&self) -> Option<Instant> {
        let new = self.demands.get(self.arrived).map(|demand| demand.arrival);
        let back = self.returns.peek().map(|Reverse((at, _))| *at);
        new.into_iter().chain(back).min()
    }

    /// Whoever arrives next.
    fn take_arrival(&mut self) -> usize {
        let new = self.demands.get(self.arrived).map(|demand| (demand.arrival, self.arrived));
        match self.returns.peek() {
            Some(Reverse((back, index))) if new.is_none_or(|(new, _)| *back < new) => {
                let index = *index;
                self.returns.pop();
                index
            }
            _ => {
                self.arrived += 1;
                self.arrived - 1
            }
        }
    }

    fn end_steps(&mut self) {
        let now = self.now;
        let ends = |engine: &SimEngine| engine.next_event().is_some_and(|ends| ends <= now);
        if self.engines.iter().any(|engine| ends(engine) && engine.is_about_to_finish_a_job()) {
            // What was produced up to the step before: an end frees a slot, and the core chooses.
            self.tell_progress();
        }
        let mut produced = std::mem::take(&mut self.produced);
        for engine in self.engines.iter_mut().filter(|engine| ends(engine)) {
            engine.end_step(&mut produced);
        }
        for progress in produced.drain(..) {
            self.pass_on(progress);
        }
        self.produced = produced;
    }

    /// Whether anything else happens now that makes the core choose. Only then must it know how far every request
    /// has come; telling it of each token as it is produced would be most of a long run's work.
    fn core_is_about_to_decide(&self) -> bool {
        let due = |at: Option<Instant>| at.is_some_and(|at| at <= self.now);
        due(self.next_arrival())
            || due(self.departures.peek().map(|Reverse((at, _))| *at))
            || due(self.desk.next_wakeup())
            || due(self.scrapes.next())
            || (self.setup.place == Place::Engine && self.engines.iter().any(SimEngine::is_about_to_admit))
    }

    fn tell_progress(&mut self) {
        if self.setup.keep == Keep::Log {
            // Every token is reported anyway.
            return;
        }
        for progress in self.engines.iter().flat_map(|engine| engine.progress(self.now)) {
            self.desk.came_to(progress);
        }
    }

    fn pass_on(&mut self, progress: Progress) {
        let pool = self.desk.pool_in_flight(desk::index(progress.id));
        if let (desk::Stream::Broken, Some(pool)) = (self.desk.produced(progress), pool) {
            self.engines[pool.index()].cancel(progress.id);
        }
    }

    /// A client leaves; harmless if its request has ended.
    fn leave(&mut self, index: usize) {
        match self.desk.pool_in_flight(index) {
            Some(pool) => {
                let produced = self.engines[pool.index()].cancel(desk::job_id(index)).unwrap_or_default();
                self.desk.abandoned(self.now, index, produced);
            }
            None => self.desk.cancelled(self.now, index),
        }
    }

    /// Hands what was let through to the engines. What one refuses has ended, which may let others through.
    fn hand_over(&mut self) {
        while let Some((pool, index)) = self.desk.next_admitted() {
            if self.desk.pool_in_flight(index).is_none() {
                // Its client left at this very moment.
                continue;
            }
            let job = self.desk.job(index);
            if self.engines[pool.index()].enqueue(job).is_err() {
                self.desk.rejected(self.now, index);
            }
        }
    }

    fn start_step(&mut self, pool: PoolIndex) {
        let engine = &mut self.engines[pool.index()];
        if engine.next_event().is_some() {
            return;
        }
        match self.setup.place {
            Place::Gateway | Place::Gradient2 => engine.start_own_step(self.now),
            Place::Engine => {
                let mut supply = CoreSupply::new(&mut self.desk, &self.setup.engine, pool, self.now);
                engine.start_step(self.now, &mut supply);
            }
        }
    }

    fn finish(self) -> Run {
        let share = self.share.average();
        self.desk.finish(share, self.share.load)
    }
}
