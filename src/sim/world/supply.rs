//! An engine that asks the core whom to take next.

use crate::units::{Instant, PoolIndex};

use super::desk::Desk;
use crate::sim::engine::{Job, Supply};
use crate::sim::spec::EngineSpec;

/// The core's order, as the engine of one pool sees it at one moment.
pub(super) struct CoreSupply<'a, 'demands> {
    desk: &'a mut Desk<'demands>,
    engine: &'a EngineSpec,
    pool: PoolIndex,
    now: Instant,
}

impl<'a, 'demands> CoreSupply<'a, 'demands> {
    pub(super) fn new(desk: &'a mut Desk<'demands>, engine: &'a EngineSpec, pool: PoolIndex, now: Instant) -> Self {
        Self { desk, engine, pool, now }
    }
}

impl Supply for CoreSupply<'_, '_> {
    fn head(&mut self) -> Option<Job> {
        loop {
            let index = self.desk.head(self.pool)?;
            let job = self.desk.job(index);
            if self.engine.check(&job).is_ok() {
                return Some(job);
            }
            // What can never fit must not stand at the head for ever: it is taken and fails, as it would in
            // front of a real engine.
            let taken = self.desk.grant(self.now, self.pool)?;
            self.desk.rejected(self.now, taken);
        }
    }

    fn take(&mut self) -> Option<Job> {
        let index = self.desk.grant(self.now, self.pool)?;
        Some(self.desk.job(index))
    }
}
