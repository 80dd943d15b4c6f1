//! Reads what the engines of each pool say of their load, and tells the core.
//!
//! One task a page, which lives as long as the gate and reads it as often as the policy says. A reading that fails, is too late or too large tells the core nothing: what it had grows old, and the
//! core itself says when it is blind. Why a page cannot be read is kept for the admin API, counted, and logged at most
//! once a minute and page.

use std::num::NonZeroU32;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use http::header::ACCEPT;
use http::{Request, StatusCode, Uri};
use http_body_util::{BodyExt, Empty, LengthLimitError, Limited};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::admission::{Input, Source};
use crate::dial::{Dialer, Keep, root};
use crate::engines::{Page, Unread, read_header, read_page};
use crate::policy::Policy;
use crate::policy::model::{EngineWatch, Orca};
use crate::units::{Instant, PoolIndex, Span};

use super::gate::{Gate, WeakGate};

/// The largest page that is read.
const PAGE_MOST: usize = 4 * 1024 * 1024;
/// An unused connection is kept for a few readings.
const IDLE_MOST: Duration = Duration::from_secs(90);

/// What is known of the reading itself, by pool.
#[derive(Debug)]
pub(super) struct Watch(Vec<Vec<Place>>);

/// One place that is read: a page, or behind the pages the header.
#[derive(Debug)]
struct Place {
    name: String,
    fault: Mutex<Option<String>>,
    failures_told: DefaultDirectRateLimiter,
    recoveries_told: DefaultDirectRateLimiter,
}

impl Place {
    fn new(name: String) -> Self {
        let once_a_minute = || RateLimiter::direct(Quota::per_minute(NonZeroU32::MIN));
        Self { name, fault: Mutex::new(None), failures_told: once_a_minute(), recoveries_told: once_a_minute() }
    }

    /// Takes note of how a reading went.
    fn went(&self, pool: &str, outcome: Result<(), String>) {
        let fault = outcome.err();
        let before = {
            let mut kept = self.fault.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *kept, fault.clone())
        };
        match fault {
            Some(fault) if self.failures_told.check().is_ok() => {
                let from = &self.name;
                tracing::warn!(
                    pool,
                    from,
                    fault,
                    "an engine's gauges cannot be read; the pool goes blind when they are old"
                );
            }
            None if before.is_some() && self.recoveries_told.check().is_ok() => {
                tracing::info!(pool, from = &self.name, "an engine's gauges can be read again");
            }
            Some(_) | None => {}
        }
    }
}

impl Watch {
    pub(super) fn new(policy: &Policy) -> Self {
        let places = policy.pools.iter().map(|pool| {
            let watch = pool.engine.as_ref();
            let pages = watch.map_or(&[][..], |watch| &watch.metrics).iter().map(Uri::to_string);
            let header = watch.and_then(|watch| watch.orca).map(|_| "endpoint-load-metrics".to_owned());
            pages.chain(header).map(Place::new).collect()
        });
        Self(places.collect())
    }

    /// Why the places of a pool that cannot be read cannot.
    pub(super) fn faults(&self, pool: PoolIndex) -> Vec<String> {
        let fault = |place: &Place| {
            let fault = place.fault.lock().unwrap_or_else(PoisonError::into_inner);
            fault.as_ref().map(|fault| format!("{}: {fault}", place.name))
        };
        self.0[pool.index()].iter().filter_map(fault).collect()
    }
}

/// Why a page could not be read.
#[derive(Debug, thiserror::Error)]
enum Fault {
    #[error("{0}")]
    Unreachable(String),
    #[error("no whole answer within {0}")]
    Late(Span),
    #[error("it answers {0}; is the address right?")]
    Status(StatusCode),
    #[error("it is longer than 4 MiB")]
    TooLarge,
    #[error("it breaks off")]
    BrokeOff,
    #[error("it is not text in UTF-8")]
    NotText,
    #[error("{0}")]
    Unread(#[from] Unread),
}

/// A client that can be shown to every page.
#[derive(Clone, Debug)]
struct Reader(Dialer<Empty<Bytes>>);

impl Reader {
    fn new(secure: bool) -> Result<Self, String> {
        let keep = Keep { connect_within: None, idle_most: IDLE_MOST };
        let dialer = Dialer::new(secure, keep);
        dialer.map(Self).map_err(|error| format!("https pages of metrics need the system's certificates: {error}"))
    }

    async fn read(&self, page: &Uri, within: Span) -> Result<Page, Fault> {
        tokio::time::timeout(within.to_std(), self.fetch(page)).await.unwrap_or(Err(Fault::Late(within)))
    }

    async fn fetch(&self, page: &Uri) -> Result<Page, Fault> {
        let mut request = Request::new(Empty::new());
        *request.uri_mut() = page.clone();
        request.headers_mut().insert(ACCEPT, http::HeaderValue::from_static("text/plain;version=0.0.4"));
        let answered = self.0.send(request).await;
        let answer = answered.map_err(|error| Fault::Unreachable(root(&error).to_string()))?;
        if !answer.status().is_success() {
            return Err(Fault::Status(answer.status()));
        }
        let body = Limited::new(answer.into_body(), PAGE_MOST).collect().await;
        let body = body
            .map_err(|error| if error.is::<LengthLimitError>() { Fault::TooLarge } else { Fault::BrokeOff })?
            .to_bytes();
        let text = std::str::from_utf8(&body).map_err(|_| Fault::NotText)?;
        Ok(read_page(text)?)
    }
}

/// One page of one pool, read over and over.
struct Reading {
    reader: Reader,
    pool: PoolIndex,
    page: usize,
    address: Uri,
    watch: EngineWatch,
    chance: StdRng,
}

impl Reading {
    /// Reads until the gate is gone, or broken.
    async fn go_on(mut self, gate: WeakGate, clock: super::Clock) {
        clock.sleep(self.watch.first_after(self.chance.random())).await;
        loop {
            let asked_at = clock.now();
            let read = self.reader.read(&self.address, self.watch.every).await;
            let Some(gate) = gate.upgrade() else { return };
            if gate.page_read(self.pool, self.page, asked_at, read).is_err() {
                return;
            }
            drop(gate);
            clock.sleep(self.watch.next_after(self.chance.random())).await;
        }
    }
}

impl Gate {
    /// Begins to read what the policy's engines say of their load. `seed` spreads the readings.
    ///
    /// # Errors
    /// When a page is behind https and the system has no certificates to trust.
    pub fn watch_engines(&self, seed: u64) -> Result<(), String> {
        let policy = self.policy().clone();
        let watched = (0u16..).map(PoolIndex::new).zip(&policy.pools);
        let watched = watched.filter_map(|(pool, node)| Some((pool, node.engine.as_ref()?)));
        let pages = watched.flat_map(|(pool, watch)| {
            watch.metrics.iter().enumerate().map(move |(page, address)| (pool, page, address, watch))
        });
        let pages: Vec<_> = pages.collect();
        let secure = pages.iter().any(|(.., address, _)| address.scheme_str() == Some("https"));
        let reader = if pages.is_empty() { return Ok(()) } else { Reader::new(secure)? };
        for (index, (pool, page, address, watch)) in (0u64..).zip(pages) {
            let reading = Reading {
                reader: reader.clone(),
                pool,
                page,
                address: address.clone(),
                watch: watch.clone(),
                chance: StdRng::seed_from_u64(seed.wrapping_add(index)),
            };
            tokio::spawn(reading.go_on(self.downgrade(), *self.clock()));
        }
        Ok(())
    }

    /// In which form the engine of a pool is asked to report its load, if it is.
    #[must_use]
    pub fn load_asked(&self, pool: PoolIndex) -> Option<Orca> {
        self.policy().pools[pool.index()].engine.as_ref()?.orca
    }

    /// Why what should be read of a pool's engines cannot be, now.
    #[must_use]
    pub fn watch_faults(&self, pool: PoolIndex) -> Vec<String> {
        self.watch().faults(pool)
    }

    fn page_read(
        &self,
        pool: PoolIndex,
        page: usize,
        asked_at: Instant,
        read: Result<Page, Fault>,
    ) -> Result<(), super::Broken> {
        self.metrics().engine_read(pool, read.is_ok());
        let outcome = match read {
            Ok(Page { gauges, .. }) => {
                self.tell(Input::Gauges { pool, source: Source::Page(page), taken_at: asked_at, gauges })?;
                Ok(())
            }
            Err(fault) => Err(fault.to_string()),
        };
        self.went(pool, page, outcome);
        Ok(())
    }

    /// An answer of a pool's engine carried this load report.
    pub(super) fn load_reported(&self, pool: PoolIndex, header: &str) {
        let read = read_header(header);
        self.metrics().engine_read(pool, read.is_ok());
        let behind_pages = self.policy().pools[pool.index()].engine.as_ref().map_or(0, |watch| watch.metrics.len());
        let outcome = read.map_err(|error| error.to_string()).map(|gauges| {
            let taken_at = self.clock().now();
            if !gauges.is_empty() {
                // A broken core needs no gauges.
                let _broken = self.tell(Input::Gauges { pool, source: Source::Header, taken_at, gauges });
            }
        });
        self.went(pool, behind_pages, outcome);
    }

    fn went(&self, pool: PoolIndex, place: usize, outcome: Result<(), String>) {
        if let Some(place) = self.watch().0[pool.index()].get(place) {
            place.went(&self.policy().pools[pool.index()].name, outcome);
        }
    }
}
