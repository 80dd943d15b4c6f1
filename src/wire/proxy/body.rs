//! Reads request bodies, within bounds of size, time and memory.
//!
//! A body is held from its first byte until the upstream has answered, and while it waits it costs memory that no
//! queue has counted yet when it arrives. So all bodies together share one bound ([`Bodies`]); a client whose body
//! does not fit below it is not read further until there is room, or it is refused.

use std::pin::Pin;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http::header::EXPECT;
use http_body::Body;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::settings::Door;
use crate::units::{self, Span};

use super::super::answer::Refused;
use super::coding::{Coding, Decoded};

/// How many times the bound is read and thrown away of a body that is too large, so that a client that sends without
/// listening gets to see the answer.
const DISCARDED: usize = 2;

/// Memory is given out in pieces of so many bytes.
const PIECE: u64 = 1024;

/// The memory that all bodies share.
#[derive(Debug)]
pub(super) struct Bodies {
    pieces: Arc<Semaphore>,
    most: units::Bytes,
    within: Span,
}

/// A body, and the memory it takes. The memory is free again when this is dropped.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) bytes: Bytes,
    _memory: OwnedSemaphorePermit,
}

impl Bodies {
    pub(super) fn new(settings: &Door) -> Self {
        let pieces = settings.bodies_most.get().max(settings.body_most.get()).div_ceil(PIECE);
        let pieces = usize::try_from(pieces).unwrap_or(usize::MAX).min(Semaphore::MAX_PERMITS);
        Self { pieces: Arc::new(Semaphore::new(pieces)), most: settings.body_most, within: settings.body_within }
    }

    /// Reads all of a body.
    ///
    /// # Errors
    /// When its coding is not known, it is larger than the bound (at once where it says so), comes too slowly, breaks off, or finds no room.
    pub(super) async fn read(&self, mut body: Incoming, headers: &HeaderMap) -> Result<Held, Refused> {
        let coding = Coding::of(headers)?;
        let most = self.most;
        let bound = usize::try_from(most.get()).unwrap_or(usize::MAX);
        let hint = body.size_hint();
        if hint.lower() > most.get() {
            // A client that asked first has sent nothing, and reading would tell it to.
            if !headers.contains_key(EXPECT) {
                tokio::spawn(discard(body, bound.saturating_mul(DISCARDED), self.within));
            }
            return Err(Refused::BodyTooLarge { most });
        }
        // How large a compressed body is nobody knows before it is decoded.
        let size = hint.upper().filter(|_| coding == Coding::Identity).unwrap_or(most.get());
        let memory = self.reserve(size.min(most.get())).await?;
        let reading = collect(Pin::new(&mut body), bound);
        match tokio::time::timeout(self.within.to_std(), reading).await {
            Ok(Ok(Some(bytes))) => Ok(Held { bytes: decode(bytes, coding, most).await?, _memory: memory }),
            Ok(Ok(None)) => self.too_large(body).await,
            Ok(Err(error)) => Err(Refused::Malformed(format!("the body broke off: {error}"))),
            Err(_elapsed) => Err(Refused::Malformed(format!("the body did not arrive within {}", self.within))),
        }
    }

    async fn reserve(&self, bytes: u64) -> Result<OwnedSemaphorePermit, Refused> {
        let pieces = u32::try_from(bytes.div_ceil(PIECE)).unwrap_or(u32::MAX);
        let waiting = self.pieces.clone().acquire_many_owned(pieces);
        match tokio::time::timeout(self.within.to_std(), waiting).await {
            Ok(memory) => Ok(memory.expect("this semaphore is never closed")),
            Err(_elapsed) => Err(Refused::NoMemory),
        }
    }

    async fn too_large<T>(&self, body: Incoming) -> Result<T, Refused> {
        let most = self.most;
        let bound = usize::try_from(most.get()).unwrap_or(usize::MAX).saturating_mul(DISCARDED);
        discard(body, bound, self.within).await;
        Err(Refused::BodyTooLarge { most })
    }
}

/// The plain body, decoded where that does not keep others waiting.
pub(in crate::wire) async fn decode(bytes: Bytes, coding: Coding, most: units::Bytes) -> Result<Bytes, Refused> {
    if coding == Coding::Identity {
        return Ok(bytes);
    }
    let bound = usize::try_from(most.get()).unwrap_or(usize::MAX);
    let decoding = tokio::task::spawn_blocking(move || coding.decode(bytes, bound));
    match decoding.await.map_err(|_panicked| Refused::Internal)? {
        Decoded::Plain(bytes) => Ok(bytes),
        Decoded::TooLarge => Err(Refused::BodyTooLarge { most }),
        Decoded::Broken(why) => Err(Refused::Malformed(format!("the body is not encoded as its header says: {why}"))),
    }
}

/// The body, or nothing when it is larger than the bound.
async fn collect(mut body: Pin<&mut Incoming>, bound: usize) -> Result<Option<Bytes>, hyper::Error> {
    let mut held = BytesMut::new();
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame?.into_data() {
            if held.len() + data.len() > bound {
                return Ok(None);
            }
            held.extend_from_slice(&data);
        }
    }
    Ok(Some(held.freeze()))
}

async fn discard(mut body: Incoming, most: usize, within: Span) {
    let discarding = async {
        let mut seen = 0;
        while seen < most
            && let Some(Ok(frame)) = body.frame().await
        {
            seen += frame.data_ref().map_or(0, Bytes::len);
        }
    };
    // Whether it ends, breaks or goes on for ever, the answer is the same.
    let _rest = tokio::time::timeout(within.to_std(), discarding).await;
}
