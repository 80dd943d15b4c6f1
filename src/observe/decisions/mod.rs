//! Remembers decisions, so that "why was this request refused?" has an answer after the fact.
//!
//! Every request that gets a decision id has a [`Record`]: opened by the door, filled by the door and by the core's
//! events, and kept until newer ones need its place. *Bound:* at most [`Keep::most`] of them, and at most
//! [`Keep::bytes`] of memory with their texts and what holds them; the oldest go first, whether they ended or not, and
//! what becomes of one that is gone is not remembered. A lock of its own guards them: the core is never waited for, and
//! under the lock things are moved and copied, never put into words.

mod record;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::admission::Event;
use crate::units::{Bytes, Instant, RequestId, TenantId};

pub use record::{Answered, Asked, Came, Counting, Dispatched, Force, Known, Picked, Record, Refused, Settled, State};

/// What a decision takes beside its record: its places in the index and in the order.
const AROUND: usize = 64;

/// The longest text of a client's that is kept.
const LONGEST_TEXT: usize = 512;

/// How much is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keep {
    /// The most decisions.
    pub most: usize,
    /// The most memory.
    pub bytes: Bytes,
}

/// Where a decision is.
#[derive(Clone, Debug)]
pub enum Found {
    /// Here.
    Here(Box<Record>),
    /// It was kept once, and newer ones needed its place.
    Forgotten,
    /// Nothing was ever kept of it.
    Unheard,
}

/// Which decisions are wanted.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// Only this tenant's.
    pub tenant: Option<TenantId>,
    /// Only those that have come to this.
    pub state: Option<State>,
    /// At most so many.
    pub most: usize,
}

/// The decisions remembered. Cheap to clone; clones remember together.
#[derive(Clone, Debug)]
pub struct Decisions(Arc<Mutex<Book>>);

#[derive(Debug)]
struct Book {
    keep: Keep,
    records: HashMap<RequestId, Box<Record>>,
    /// In the order they were opened, which is nearly that of their numbers.
    order: VecDeque<RequestId>,
    weight: usize,
    /// The greatest number that was forgotten.
    forgotten: Option<RequestId>,
}

impl Decisions {
    /// Nothing yet.
    #[must_use]
    pub fn new(keep: Keep) -> Self {
        let (records, order) = (HashMap::new(), VecDeque::new());
        Self(Arc::new(Mutex::new(Book { keep, records, order, weight: 0, forgotten: None })))
    }

    /// A request came.
    pub fn open(&self, request: RequestId, mut came: Came) {
        came.path = shortened(&came.path);
        self.book().open(Box::new(Record::new(request, came)));
    }

    /// Its caller was found out.
    pub fn identified(&self, request: RequestId, caller: Known) {
        self.book().change(request, |record| record.caller = Some(caller));
    }

    /// It was read and quoted, and the core was asked.
    pub fn asked(&self, request: RequestId, asked: Box<Asked>) {
        self.book().change(request, |record| record.asked = Some(asked));
    }

    /// Whatever is decided of it changes nothing.
    pub fn on_trial(&self, request: RequestId) {
        self.book().change(request, |record| record.force = Force::Trial);
    }

    /// It passed without being metered.
    pub fn passed(&self, request: RequestId) {
        self.book().change(request, |record| record.passed = true);
    }

    /// What the core did.
    pub fn note(&self, events: &[Event]) {
        let about: Vec<_> = events.iter().filter_map(|event| Some((request_of(event)?, event))).collect();
        if about.is_empty() {
            return;
        }
        let mut book = self.book();
        for (request, event) in about {
            book.change(request, |record| record.note(event));
        }
    }

    /// The first byte of its answer came.
    pub fn first_byte(&self, request: RequestId, at: Instant) {
        self.book().change(request, |record| record.first_byte_at = Some(at));
    }

    /// The first token of its answer was seen.
    pub fn first_token(&self, request: RequestId, at: Instant) {
        self.book().change(request, |record| record.first_token_at = Some(at));
    }

    /// An endpoint picker said this of it. What it does not say again stands.
    pub fn picked(&self, request: RequestId, picked: Picked) {
        self.book().change(request, |record| {
            let known = record.picked.take();
            let (endpoint, cost) = known.map_or((None, None), |known| (known.endpoint, known.cost));
            let said = picked.endpoint.map(|endpoint| shortened(&endpoint));
            record.picked = Some(Picked { endpoint: said.or(endpoint), cost: picked.cost.or(cost) });
        });
    }

    /// Its client left. Means nothing for one that was decided.
    pub fn left(&self, request: RequestId, at: Instant) {
        self.book().change(request, |record| {
            if record.state() == State::Arriving {
                record.left_at = Some(at);
            }
        });
    }

    /// A door answered in place of the upstream.
    pub fn answered(&self, request: RequestId, mut answered: Answered) {
        answered.words = shortened(&answered.words);
        self.book().change(request, |record| record.answered = Some(answered));
    }

    /// One decision.
    #[must_use]
    pub fn find(&self, request: RequestId) -> Found {
        let book = self.book();
        match book.records.get(&request) {
            Some(record) => Found::Here(record.clone()),
            None if book.forgotten.is_some_and(|greatest| request <= greatest) => Found::Forgotten,
            None => Found::Unheard,
        }
    }

    /// Those that are wanted, the newest first.
    #[must_use]
    pub fn newest(&self, wanted: &Wanted) -> Vec<Record> {
        let fits = |record: &Record| {
            wanted.tenant.as_ref().is_none_or(|tenant| record.tenant() == Some(tenant))
                && wanted.state.is_none_or(|state| record.state() == state)
        };
        let book = self.book();
        let newest_first = book.order.iter().rev().filter_map(|request| book.records.get(request));
        newest_first.filter(|record| fits(record)).take(wanted.most).map(|record| (**record).clone()).collect()
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        // Whoever panicked with it left at worst a fact out.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Book {
    fn open(&mut self, record: Box<Record>) {
        let request = record.request;
        self.weight += record.weight() + AROUND;
        if self.records.insert(request, record).is_none() {
            self.order.push_back(request);
        }
        self.make_room();
    }

    /// Changes a record, if it is here.
    fn change(&mut self, request: RequestId, change: impl FnOnce(&mut Record)) {
        let Some(record) = self.records.get_mut(&request) else { return };
        let before = record.weight();
        change(record);
        self.weight = self.weight - before + record.weight();
        self.make_room();
    }

    fn make_room(&mut self) {
        let bytes = usize::try_from(self.keep.bytes.get()).unwrap_or(usize::MAX);
        while self.order.len() > self.keep.most || self.weight > bytes {
            let Some(oldest) = self.order.pop_front() else { return };
            if let Some(record) = self.records.remove(&oldest) {
                self.weight -= record.weight() + AROUND;
            }
            self.forgotten = self.forgotten.max(Some(oldest));
        }
    }
}

fn request_of(event: &Event) -> Option<RequestId> {
    match event {
        Event::Queued { request, .. }
        | Event::Demoted { request, .. }
        | Event::Shadowed { request, .. }
        | Event::Dispatched { request, .. }
        | Event::Settled { request, .. }
        | Event::Vacated { request, .. }
        | Event::Cancelled { request, .. } => Some(*request),
        Event::Refused { refusal, .. } => Some(refusal.request),
        Event::Charged { .. }
        | Event::Hit { .. }
        | Event::Breaker { .. }
        | Event::WindowMoved { .. }
        | Event::UnknownTicket { .. } => None,
    }
}

fn shortened(text: &str) -> Box<str> {
    text[..text.floor_char_boundary(LONGEST_TEXT)].into()
}

#[cfg(test)]
mod tests;
