//! When each pool's engine is asked for its load, and what it answers.
//!
//! As the policy says of real ones. A simulated engine stands for all that a pool names: what it holds is on the first
//! page, and the others say that they hold nothing.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::admission::{Input, Source};
use crate::policy::Policy;
use crate::policy::model::EngineWatch;
use crate::sim::engine::SimEngine;
use crate::units::{EngineGauges, Instant, PoolIndex};

/// Every page that is read, over and over.
pub(super) struct Scrapes(Vec<Scrape>);

struct Scrape {
    pool: PoolIndex,
    page: usize,
    watch: EngineWatch,
    due: Instant,
    chance: StdRng,
}

impl Scrapes {
    pub(super) fn new(policy: &Policy, seed: u64) -> Self {
        let watched = (0..).map(PoolIndex::new).zip(&policy.pools);
        let watched = watched.filter_map(|(pool, node)| Some((pool, node.engine.as_ref()?)));
        let pages = watched.flat_map(|(pool, watch)| (0..watch.metrics.len()).map(move |page| (pool, page, watch)));
        let scrape = |(index, (pool, page, watch)): (u64, (PoolIndex, usize, &EngineWatch))| {
            let mut chance = StdRng::seed_from_u64(seed.wrapping_add(index));
            let due = Instant::EPOCH + watch.first_after(chance.random());
            Scrape { pool, page, watch: watch.clone(), due, chance }
        };
        Self((0..).zip(pages).map(scrape).collect())
    }

    /// When the next is due.
    pub(super) fn next(&self) -> Option<Instant> {
        self.0.iter().map(|scrape| scrape.due).min()
    }

    /// What those that are due have read.
    pub(super) fn read(&mut self, now: Instant, engines: &[SimEngine]) -> Vec<Input> {
        let due = self.0.iter_mut().filter(|scrape| scrape.due <= now);
        let read = due.map(|scrape| {
            scrape.due = now + scrape.watch.next_after(scrape.chance.random());
            let gauges = match scrape.page {
                0 => engines[scrape.pool.index()].gauges(),
                _ => EngineGauges::IDLE,
            };
            Input::Gauges { pool: scrape.pool, source: Source::Page(scrape.page), taken_at: now, gauges }
        });
        read.collect()
    }
}
