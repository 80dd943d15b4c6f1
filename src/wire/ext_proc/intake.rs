//! The way in: which requests are metered, how they go on, and how one is decided.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{ACCEPT_ENCODING, AUTHORIZATION, HeaderMap, HeaderName, HeaderValue, UPGRADE};
use tokio::sync::Semaphore;

use crate::costing::Encoding;
use crate::shell::{Ask, Denied, Gate, Patience, Permit};
use crate::units::{self, DecisionId, Instant};

use super::super::answer::Refused;
use super::super::identity::Identified;
use super::super::proxy::headers::OURS;
use super::super::proxy::metered::{Reading, read_body};
use super::super::proxy::{CHAT_COMPLETIONS, shorten};
use super::message::{Content, Edit, Head};

const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// How much of bodies is held at once, all requests together, between their arrival and their going on.
#[derive(Clone, Debug)]
pub(super) struct Ingress {
    most: units::Bytes,
    room: Arc<Semaphore>,
}

impl Ingress {
    /// The unit room is given in. A semaphore counts no further than 2^32 of them at a time.
    const UNIT: u64 = 1024;

    pub(super) fn new(most: units::Bytes) -> Self {
        let room = usize::try_from(most.get() / Self::UNIT).unwrap_or(usize::MAX).min(Semaphore::MAX_PERMITS);
        Self { most, room: Arc::new(Semaphore::new(room)) }
    }
}

/// Who asks, and how patiently.
#[derive(Debug)]
pub(super) struct Intake {
    pub(super) decision: DecisionId,
    pub(super) arrived: Instant,
    pub(super) identified: Identified,
    pub(super) patience: Patience,
}

/// A request whose body is there.
#[derive(Debug)]
pub(super) struct Undecided {
    pub(super) intake: Intake,
    pub(super) body: Bytes,
}

/// A request that is let through.
#[derive(Debug)]
pub(super) struct Admitted {
    pub(super) permit: Permit,
    pub(super) body: Content,
    pub(super) encoding: Encoding,
    pub(super) hide_usage: bool,
}

impl Undecided {
    /// Has the request decided. Dropping this leaves the queue.
    ///
    /// # Errors
    /// When it is refused, and why.
    pub(super) async fn decide(self, gate: Gate, ingress: Ingress) -> Result<Admitted, Refused> {
        let Self { intake: Intake { decision, arrived, identified, patience }, body } = self;
        let units = u32::try_from((body.len() as u64).div_ceil(Ingress::UNIT)).unwrap_or(u32::MAX);
        let _room = ingress.room.try_acquire_many(units).map_err(|_| Refused::IngressFull { most: ingress.most })?;
        let caller = identified.caller;
        let Reading { parsed, selection, encoding, input } = read_body(gate.policy(), &caller, body.clone()).await?;
        let forward = parsed.forward(&body, selection.model.as_str());
        // A body that goes on as it came waits in Envoy, and not here too.
        let onward = if forward == body { Content::Kept } else { Content::Replaced(forward) };
        drop(body);
        let hide_usage = parsed.hide_usage;
        let ask = Ask { decision, arrived, call: parsed.call, input, caller, selection, patience };
        match gate.admit(ask).await {
            Ok(permit) => Ok(Admitted { permit, body: onward, encoding, hide_usage }),
            Err(Denied::Refused(refusal)) => Err(Refused::ByCore(refusal)),
            Err(Denied::Broken) => Err(Refused::Internal),
        }
    }
}

/// Whether a request is metered, or passes without.
///
/// # Errors
/// When it does neither.
pub(super) fn is_metered(head: &Head, has_body: bool) -> Result<bool, Refused> {
    let Head { method, path, headers, .. } = head;
    if method == "CONNECT" || headers.contains_key(UPGRADE) {
        let what = "WebSocket and other upgraded connections are not supported; use POST with \"stream\": true";
        return Err(Refused::Unsupported(what.into()));
    }
    if method == "POST" && path == CHAT_COMPLETIONS {
        return if has_body { Ok(true) } else { Err(Refused::Malformed("the body is missing".into())) };
    }
    if matches!(method.as_str(), "GET" | "HEAD" | "OPTIONS") && !has_body {
        return Ok(false);
    }
    Err(Refused::Unsupported(format!(
        "{method} {} is not metered by this build and does not pass; POST {CHAT_COMPLETIONS} is, and requests \
         without a body pass",
        shorten(path)
    )))
}

/// What changes about a request's headers on their way to the upstream: what is meant for us stays here, a key of
/// ours too, and the upstream is asked not to compress, since what is compressed cannot be watched.
pub(super) fn onward(head: &Head, our_key: bool) -> Edit {
    let mut remove = head.beginning(OURS);
    if our_key {
        remove.extend([AUTHORIZATION, X_API_KEY].map(|name| name.as_str().to_owned()));
    }
    let set = HeaderMap::from_iter([(ACCEPT_ENCODING, HeaderValue::from_static("identity"))]);
    Edit { set, remove }
}
