//! Permits of requests whose end others will tell of, each held under a lease until it is told.
//!
//! A door that sees an answer pass settles its permit itself. One that only says whether a request may go on does not: it
//! hands the permit in here, gives the lease's id to whoever will know the end, and forgets it. What is guaranteed then:
//!
//! | what happens | what becomes of the permit |
//! |---|---|
//! | the end is reported | settled as it says; a second report is counted and changes nothing |
//! | a sign of life | the lease runs for a whole life again |
//! | nothing, for a life | settled as lost: what was held for it is charged, and its room is free |
//! | a report after that | counted as late, and changes nothing: the books are closed |
//!
//! An id is 128 bits of chance, because whoever knows one can end a request and say what it cost. Both the leases that
//! run and the memory of those that ended are bounded; where there is no room for one more, its request is refused.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rand::RngExt;
use rand::rngs::StdRng;
use tokio::sync::Notify;

use crate::admission::{Ending, Outcome, Reported};
use crate::observe::{LeaseNews, Lessor, Metrics};
use crate::units::{Instant, Span, Tokens, VirtualTokens};

use super::clock::Clock;
use super::gate::Gate;
use super::permit::Permit;

/// The most leases that run at once.
const MOST_LIVE: usize = 65_536;
/// The most leases that ended and are remembered, so that what is said of them later is understood.
const MOST_ENDED: usize = 65_536;

/// The name of a lease, which nobody can guess.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(u128);

impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// A text that is the name of no lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a lease is named by 32 hexadecimal digits")]
pub struct NoLeaseId;

impl FromStr for LeaseId {
    type Err = NoLeaseId;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let readable = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        readable.then(|| u128::from_str_radix(text, 16).ok()).flatten().map(Self).ok_or(NoLeaseId)
    }
}

/// There is no room for another lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("as many requests as can be kept count of run already")]
pub struct Full;

/// Why nothing can be done about a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotLive {
    /// Its end was reported before.
    #[error("the lease is settled already")]
    Settled,
    /// Nothing was heard of it for a life, and it was settled as lost.
    #[error("the lease had expired; its request is settled as lost")]
    Expired,
    /// There is none, or it ended so long ago that it is forgotten.
    #[error("there is no such lease")]
    Unknown,
}

/// How many leases there are at most.
#[derive(Clone, Copy, Debug)]
struct Most {
    live: usize,
    ended: usize,
}

/// All leases. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Leases(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    life: Span,
    clock: Clock,
    metrics: Metrics,
    table: Mutex<Table>,
    /// Tells the timer that a lease ends earlier than any before.
    wake: Arc<Notify>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.wake.notify_one();
    }
}

#[derive(Debug)]
struct Table {
    most: Most,
    chance: StdRng,
    live: HashMap<LeaseId, Held>,
    ends: BTreeSet<(Instant, LeaseId)>,
    ended: HashMap<LeaseId, (Lessor, NotLive)>,
    order: VecDeque<LeaseId>,
}

#[derive(Debug)]
struct Held {
    lessor: Lessor,
    permit: Permit,
    ends: Instant,
}

impl Leases {
    /// No leases, and the timer that ends them. Needs a tokio runtime.
    ///
    /// Each runs for `life` after the last sign of life; ids are drawn from `chance`, which nobody may foresee.
    #[must_use]
    pub fn start(gate: &Gate, life: Span, chance: StdRng) -> Self {
        Self::bounded(gate, life, chance, Most { live: MOST_LIVE, ended: MOST_ENDED })
    }

    fn bounded(gate: &Gate, life: Span, chance: StdRng, most: Most) -> Self {
        let (clock, metrics, wake) = (*gate.clock(), gate.metrics().clone(), Arc::new(Notify::new()));
        let (live, ends, ended, order) = (HashMap::new(), BTreeSet::new(), HashMap::new(), VecDeque::new());
        let table = Mutex::new(Table { most, chance, live, ends, ended, order });
        let shared = Arc::new(Shared { life, clock, metrics, table, wake: wake.clone() });
        tokio::spawn(keep_time(Arc::downgrade(&shared), clock, wake));
        Self(shared)
    }

    /// How long a lease runs after the last sign of life.
    #[must_use]
    pub fn life(&self) -> Span {
        self.0.life
    }

    /// Holds a permit whose request goes on now.
    ///
    /// # Errors
    /// When there is no room. The permit is dropped then, and as nothing was sent costs nothing.
    pub fn hold(&self, lessor: Lessor, mut permit: Permit) -> Result<LeaseId, Full> {
        let ends = self.0.clock.now() + self.0.life;
        let held = {
            let mut table = self.lock();
            if table.live.len() >= table.most.live {
                Err(permit)
            } else {
                permit.sent();
                Ok(table.enter(lessor, permit, ends))
            }
        };
        match held {
            Ok((id, first)) => {
                self.0.metrics.lease(lessor, LeaseNews::Held);
                if first {
                    self.0.wake.notify_one();
                }
                Ok(id)
            }
            Err(_refused) => {
                self.0.metrics.lease(lessor, LeaseNews::Full);
                Err(Full)
            }
        }
    }

    /// Its request still runs.
    ///
    /// # Errors
    /// When the lease does not run.
    pub fn renew(&self, teller: Lessor, id: LeaseId) -> Result<(), NotLive> {
        self.live(teller, id, |_permit| ())
    }

    /// Its answer has come to this much output, in all. Going backwards changes nothing. A sign of life too.
    ///
    /// # Errors
    /// When the lease does not run.
    pub fn progress(&self, teller: Lessor, id: LeaseId, output: Tokens) -> Result<(), NotLive> {
        self.live(teller, id, |permit| {
            permit.began();
            permit.progress(output);
        })
    }

    /// Its answer has been coming since then. A sign of life too.
    ///
    /// # Errors
    /// When the lease does not run.
    pub fn began(&self, teller: Lessor, id: LeaseId, since: Instant) -> Result<(), NotLive> {
        self.live(teller, id, |permit| permit.began_since(since))
    }

    /// Its request ended, as `ending` says, and tells what it came to; nothing where the core is broken.
    ///
    /// # Errors
    /// When the lease does not run; then nothing changes.
    pub fn settle(
        &self,
        teller: Lessor,
        id: LeaseId,
        ending: impl FnOnce(&mut Permit) -> Ending,
    ) -> Result<Option<VirtualTokens>, NotLive> {
        let taken = self.lock().take(id, NotLive::Settled);
        let Held { lessor, mut permit, .. } = taken.map_err(|(lessor, why)| {
            let news = match why {
                NotLive::Settled => LeaseNews::Again,
                NotLive::Expired => LeaseNews::Late,
                NotLive::Unknown => LeaseNews::Unknown,
            };
            self.0.metrics.lease(lessor.unwrap_or(teller), news);
            why
        })?;
        self.0.metrics.lease(lessor, LeaseNews::Settled);
        let ending = ending(&mut permit);
        Ok(permit.settle(ending))
    }

    /// Settles all that run as lost: nobody will hear of their end.
    pub fn close(&self) {
        let all: Vec<LeaseId> = self.lock().live.keys().copied().collect();
        for id in all {
            let taken = self.lock().take(id, NotLive::Expired);
            if let Ok(held) = taken {
                self.lost(held);
            }
        }
    }

    /// How many run.
    #[must_use]
    pub fn count(&self) -> usize {
        self.lock().live.len()
    }

    /// Does something with the permit of a lease that runs, which is a sign of life.
    fn live(&self, teller: Lessor, id: LeaseId, act: impl FnOnce(&mut Permit)) -> Result<(), NotLive> {
        let ends = self.0.clock.now() + self.0.life;
        let renewed = self.lock().renew(id, ends, act);
        let lessor = renewed.map_err(|(lessor, why)| {
            let news = if why == NotLive::Unknown { LeaseNews::Unknown } else { LeaseNews::Stale };
            self.0.metrics.lease(lessor.unwrap_or(teller), news);
            why
        })?;
        self.0.metrics.lease(lessor, LeaseNews::Renewed);
        Ok(())
    }

    fn lost(&self, Held { lessor, permit, .. }: Held) {
        self.0.metrics.lease(lessor, LeaseNews::Expired);
        permit.settle(Ending { outcome: Outcome::Lost, usage: Reported::Nothing, heard: None });
    }

    /// Ends what has run out, and tells when the next will.
    fn expire(&self) -> Option<Instant> {
        loop {
            let now = self.0.clock.now();
            let taken = {
                let mut table = self.lock();
                match table.ends.first().copied() {
                    Some((ends, id)) if ends <= now => table.take(id, NotLive::Expired),
                    next => return next.map(|(ends, _)| ends),
                }
            };
            if let Ok(held) = taken {
                self.lost(held);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        // Nothing in here can be half done when it panics but a permit's progress, which settles all the same.
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    /// Enters a permit, and tells whether it is the first to end.
    fn enter(&mut self, lessor: Lessor, permit: Permit, ends: Instant) -> (LeaseId, bool) {
        let id = loop {
            let id = LeaseId(self.chance.random());
            if !self.live.contains_key(&id) && !self.ended.contains_key(&id) {
                break id;
            }
        };
        self.live.insert(id, Held { lessor, permit, ends });
        self.ends.insert((ends, id));
        (id, self.ends.first() == Some(&(ends, id)))
    }

    fn renew(
        &mut self,
        id: LeaseId,
        ends: Instant,
        act: impl FnOnce(&mut Permit),
    ) -> Result<Lessor, (Option<Lessor>, NotLive)> {
        let Some(held) = self.live.get_mut(&id) else { return Err(self.gone(id)) };
        act(&mut held.permit);
        self.ends.remove(&(held.ends, id));
        held.ends = ends;
        self.ends.insert((ends, id));
        Ok(held.lessor)
    }

    /// Takes a lease out, to be remembered so.
    fn take(&mut self, id: LeaseId, as_what: NotLive) -> Result<Held, (Option<Lessor>, NotLive)> {
        let Some(held) = self.live.remove(&id) else {
            let gone = self.gone(id);
            // What ended is reported late once; from then on its end is known.
            if as_what == NotLive::Settled
                && let (Some(lessor), NotLive::Expired) = gone
            {
                self.ended.insert(id, (lessor, NotLive::Settled));
            }
            return Err(gone);
        };
        self.ends.remove(&(held.ends, id));
        if self.order.len() >= self.most.ended
            && let Some(oldest) = self.order.pop_front()
        {
            self.ended.remove(&oldest);
        }
        self.order.push_back(id);
        self.ended.insert(id, (held.lessor, as_what));
        Ok(held)
    }

    fn gone(&self, id: LeaseId) -> (Option<Lessor>, NotLive) {
        self.ended.get(&id).map_or((None, NotLive::Unknown), |(lessor, why)| (Some(*lessor), *why))
    }
}

/// Ends leases when they run out. Ends itself with the leases.
async fn keep_time(leases: Weak<Shared>, clock: Clock, wake: Arc<Notify>) {
    loop {
        let due = {
            let Some(leases) = leases.upgrade().map(Leases) else { return };
            leases.expire()
        };
        match due {
            Some(due) => {
                tokio::select! {
                    () = clock.sleep_until(due) => {}
                    () = wake.notified() => {}
                }
            }
            None => wake.notified().await,
        }
    }
}

#[cfg(test)]
mod tests;
