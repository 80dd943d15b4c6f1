//! The way in: how a request goes on, and how it is decided.

use bytes::Bytes;
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, HeaderMap, HeaderName, HeaderValue};

use crate::settings::Picker;
use crate::shell::Gate;
use crate::units::{self, DecisionId, Instant};

use super::super::answer::Refused;
use super::super::exchange::{
    Admitted, Arrival, Entered, Here, KEYS, Memory, OURS, Stated, TOLD, Taken, Toll, take, take_at_word,
};
use super::message::{Content, Edit, Head};

/// A request whose body is awaited.
#[derive(Debug)]
pub(super) struct Intake {
    pub(super) decision: DecisionId,
    pub(super) arrived: Instant,
    /// The path it was sent to, without the query.
    pub(super) path: Box<str>,
    /// The query, its question mark included.
    pub(super) query: Box<str>,
    pub(super) entered: Entered,
    pub(super) body_most: units::Bytes,
}

/// A request of which as much is there as it is decided by.
#[derive(Debug)]
pub(super) struct Undecided {
    pub(super) intake: Intake,
    pub(super) by: By,
}

/// What a request is decided by.
#[derive(Debug)]
pub(super) enum By {
    /// Its body.
    Body(Bytes),
    /// What Envoy read of its body.
    Record(Stated),
}

/// A request that goes on.
#[derive(Debug)]
pub(super) struct Decided {
    /// What becomes of its body.
    pub(super) body: Content,
    /// The path it goes on to, its query included, where that is another than it came to.
    pub(super) path: Option<String>,
    /// How it was let through; nothing where it costs nothing.
    pub(super) admitted: Option<Admitted>,
}

impl Undecided {
    /// Has the request decided. Dropping this leaves the queue.
    ///
    /// # Errors
    /// When it is refused, and why.
    pub(super) async fn decide(self, gate: Gate, memory: Memory) -> Result<Decided, Refused> {
        let Self { intake, by } = self;
        match by {
            By::Body(came) => by_body(intake, came, gate, memory).await,
            By::Record(stated) => by_record(intake, stated, gate).await,
        }
    }
}

async fn by_record(intake: Intake, stated: Stated, gate: Gate) -> Result<Decided, Refused> {
    let Intake { decision, arrived, path, query, entered: Entered { identified, toll, .. }, .. } = intake;
    let Toll::Metered { dialect, patience } = toll else { return Err(Refused::Internal) };
    let arrival = Arrival { decision, arrived, dialect, path, patience, caller: identified.caller };
    let prepared = take_at_word(gate.policy(), arrival, stated)?;
    let path = prepared.path().map(|path| format!("{path}{query}"));
    let admitted = prepared.admit(&gate).await?;
    Ok(Decided { body: Content::Kept, path, admitted: Some(admitted) })
}

async fn by_body(intake: Intake, body: Bytes, gate: Gate, memory: Memory) -> Result<Decided, Refused> {
    let Intake { decision, arrived, path, query, entered, body_most } = intake;
    let here = Here { decision, arrived, path, body };
    let Taken { prepared, changed, kept, .. } = take(gate.policy(), &memory, body_most, entered, here).await?;
    let body = changed.map_or(Content::Kept, Content::Replaced);
    let Some(prepared) = prepared else { return Ok(Decided { body, path: None, admitted: None }) };
    // A body that goes on as it came waits in Envoy, and not here too.
    let _kept = matches!(body, Content::Replaced(_)).then_some(kept);
    let path = prepared.path().map(|path| format!("{path}{query}"));
    let admitted = prepared.admit(&gate).await?;
    Ok(Decided { body, path, admitted: Some(admitted) })
}

/// What changes about a request's headers on their way to the upstream: what is meant for us stays here, a key of
/// ours too, a body that comes encoded is decoded here and goes on plain, and the upstream is asked not to compress,
/// since what is compressed cannot be watched. What only we tell an endpoint picker nobody else tells it.
pub(super) fn onward(head: &Head, entered: &Entered, picker: Picker) -> Edit {
    let mut remove = head.beginning(OURS);
    let mut and = |name: &HeaderName| remove.push(name.as_str().to_owned());
    if entered.identified.by_key {
        KEYS.iter().for_each(&mut and);
    }
    if head.headers.contains_key(CONTENT_ENCODING) {
        and(&CONTENT_ENCODING);
    }
    if picker == Picker::Told {
        TOLD.iter().filter(|name| head.headers.contains_key(*name)).for_each(&mut and);
    }
    let set = HeaderMap::from_iter([(ACCEPT_ENCODING, HeaderValue::from_static("identity"))]);
    Edit { set, remove }
}
