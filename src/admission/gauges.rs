//! What the engines of a pool say of their own load, and how old that is.
//!
//! *Decides* nothing: it keeps the latest reading of each source and says whether what they come to may be relied on.
//! *Rule:* a pool is seen while every page of metrics its policy names was read within `stale_after`; what the pages say
//! is then added up, and is as old as the oldest of them. A load report in an answer's header, of a pool with one
//! engine, stands in for that page, field by field whichever is newer. Otherwise the pool is *blind*. *Bound:* one
//! reading a source, and the policy names the sources. *At start* nothing was read yet, and the pool is blind. *Never*
//! takes a missing or old value for zero: whoever asks is told that nothing is known, and holds what it had.

use crate::policy::model::EngineWatch;
use crate::units::{EngineGauges, Instant, PoolIndex, Span};

use super::engine::Engine;

/// Who said it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A page of metrics, by its place in the policy's list.
    Page(usize),
    /// A header of an answer.
    Header,
}

/// What can be known of the load of a pool's engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sight {
    /// The policy names no place to read it from.
    Unwatched,
    /// It is known.
    Seen {
        /// What the engines say, all together.
        gauges: EngineGauges,
        /// How old the oldest of it is.
        age: Span,
    },
    /// It is not: something that is needed was not read, or not lately.
    Blind {
        /// How old the oldest of it is; nothing where something was never read.
        age: Option<Span>,
    },
}

impl Sight {
    /// What is known.
    #[must_use]
    pub fn gauges(&self) -> Option<&EngineGauges> {
        match self {
            Self::Seen { gauges, .. } => Some(gauges),
            Self::Unwatched | Self::Blind { .. } => None,
        }
    }
}

/// The latest of one source.
#[derive(Clone, Copy, Debug)]
struct Reading {
    taken_at: Instant,
    gauges: EngineGauges,
}

/// The latest readings of a pool's engines.
#[derive(Debug)]
pub(super) struct Instruments {
    stale_after: Span,
    pages: Vec<Option<Reading>>,
    header: Option<Reading>,
    watched: bool,
}

impl Instruments {
    pub(super) fn new(watch: Option<&EngineWatch>) -> Self {
        Self {
            stale_after: watch.map_or(Span::ZERO, |watch| watch.stale_after),
            pages: vec![None; watch.map_or(0, |watch| watch.metrics.len())],
            header: None,
            watched: watch.is_some(),
        }
    }

    /// Keeps a reading, unless there is a newer one of its source or the policy knows no such source.
    fn read(&mut self, source: Source, taken_at: Instant, gauges: EngineGauges) {
        let kept = match source {
            Source::Page(page) => match self.pages.get_mut(page) {
                Some(kept) => kept,
                None => return,
            },
            Source::Header => &mut self.header,
        };
        if self.watched && kept.is_none_or(|kept| kept.taken_at <= taken_at) {
            *kept = Some(Reading { taken_at, gauges });
        }
    }

    /// What can be relied on at a moment.
    pub(super) fn sight(&self, now: Instant) -> Sight {
        if !self.watched {
            return Sight::Unwatched;
        }
        let fresh = |reading: &Reading| now.since(reading.taken_at) <= self.stale_after;
        let pages = self.pages.iter().copied().reduce(together).flatten();
        let newest_first = |one: Reading, other: Reading| {
            let (newer, older) = if one.taken_at >= other.taken_at { (one, other) } else { (other, one) };
            Reading { taken_at: older.taken_at, gauges: newer.gauges.or(&older.gauges) }
        };
        let seen = match (pages.filter(fresh), self.header.filter(fresh)) {
            (Some(page), Some(header)) => Some(newest_first(page, header)),
            (page, header) => page.or(header),
        };
        match seen {
            Some(Reading { taken_at, gauges }) => Sight::Seen { gauges, age: now.since(taken_at) },
            None => Sight::Blind { age: pages.or(self.header).map(|reading| now.since(reading.taken_at)) },
        }
    }
}

/// Two engines as one: as old as the older, and unknown where one is.
fn together(one: Option<Reading>, other: Option<Reading>) -> Option<Reading> {
    let (one, other) = one.zip(other)?;
    Some(Reading { taken_at: one.taken_at.min(other.taken_at), gauges: one.gauges.and(&other.gauges) })
}

impl Engine {
    /// What can be known at a moment of the load of a pool's engines.
    #[must_use]
    pub fn sight(&self, pool: PoolIndex, now: Instant) -> Sight {
        self.pools[pool.index()].instruments.sight(now)
    }

    /// An engine said this of itself, as of a moment that may be a little past.
    pub(super) fn read(&mut self, pool: PoolIndex, source: Source, taken_at: Instant, gauges: EngineGauges) {
        let now = self.now();
        let pool = &mut self.pools[pool.index()];
        pool.instruments.read(source, taken_at.min(now), gauges);
        if let Sight::Seen { gauges, age } = pool.instruments.sight(now) {
            pool.window.read(&gauges, pool.instruments.stale_after.saturating_sub(age));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{EngineGauges, EngineWatch, Instant, Instruments, Sight, Source, Span};

    fn watching(pages: usize) -> Instruments {
        let page = |page| format!("http://engine-{page}/metrics").parse().expect("an address");
        let (every, stale_after) = (Span::from_secs(2), Span::from_secs(10));
        let metrics = (0..pages).map(page).collect();
        Instruments::new(Some(&EngineWatch { metrics, orca: None, every, stale_after }))
    }

    fn at(secs: u64) -> Instant {
        Instant::EPOCH + Span::from_secs(secs)
    }

    fn waiting(requests: u64) -> EngineGauges {
        EngineGauges { waiting: Some(requests), ..EngineGauges::default() }
    }

    #[test]
    fn a_pool_is_blind_until_every_page_was_read_and_again_once_one_is_old() {
        let mut pool = watching(2);
        assert_eq!(pool.sight(at(0)), Sight::Blind { age: None });
        pool.read(Source::Page(0), at(1), waiting(3));
        assert_eq!(pool.sight(at(1)), Sight::Blind { age: None }, "half of it is not known");
        pool.read(Source::Page(1), at(3), waiting(4));
        assert_eq!(pool.sight(at(4)), Sight::Seen { gauges: waiting(7), age: Span::from_secs(3) });
        pool.read(Source::Page(1), at(11), waiting(5));
        assert_eq!(pool.sight(at(11)), Sight::Seen { gauges: waiting(8), age: Span::from_secs(10) });
        assert_eq!(pool.sight(at(12)), Sight::Blind { age: Some(Span::from_secs(11)) }, "the other is too old");
        pool.read(Source::Page(0), at(12), waiting(0));
        assert_eq!(pool.sight(at(12)).gauges(), Some(&waiting(5)));
    }

    #[test]
    fn a_header_stands_in_for_the_page_of_one_engine_field_by_field() {
        let mut pool = watching(1);
        let page = EngineGauges { running: Some(9), ..waiting(3) };
        pool.read(Source::Page(0), at(1), page);
        pool.read(Source::Header, at(2), waiting(5));
        let both = EngineGauges { running: Some(9), ..waiting(5) };
        assert_eq!(pool.sight(at(2)), Sight::Seen { gauges: both, age: Span::from_secs(1) });
        pool.read(Source::Page(0), at(3), page);
        assert_eq!(pool.sight(at(3)).gauges(), Some(&page), "the page is newer now");
        pool.read(Source::Header, at(12), waiting(6));
        assert_eq!(pool.sight(at(14)).gauges(), Some(&waiting(6)), "the page is too old to count");
        assert_eq!(pool.sight(at(23)), Sight::Blind { age: Some(Span::from_secs(20)) });
    }

    #[test]
    fn a_late_reading_replaces_no_newer_one_and_an_unknown_source_none() {
        let mut pool = watching(1);
        pool.read(Source::Page(0), at(5), waiting(5));
        pool.read(Source::Page(0), at(4), waiting(4));
        pool.read(Source::Page(1), at(6), waiting(6));
        assert_eq!(pool.sight(at(6)).gauges(), Some(&waiting(5)));
        let mut unwatched = Instruments::new(None);
        unwatched.read(Source::Header, at(1), waiting(1));
        assert_eq!(unwatched.sight(at(1)), Sight::Unwatched);
    }
}
