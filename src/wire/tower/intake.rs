//! Reads request bodies, within bounds of size, time and memory.
//!
//! A body is held from its first byte until the upstream has answered. All bodies share one bound of memory; a client
//! whose body does not fit below it is not read further until there is room, or it is refused.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes, BytesMut};
use http::HeaderMap;
use http::header::EXPECT;
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::BodyExt;

use crate::settings::Door;
use crate::units::{self, Span};

use super::super::answer::Refused;
use super::super::exchange::{Coding, Kept, Memory, decode};
use super::super::server::{Body, BodyError};

/// How many times the bound is read and thrown away of a body that is too large, so that a client that sends without
/// listening gets to see the answer.
const DISCARDED: usize = 2;

/// Reads bodies. Clones share their memory.
#[derive(Clone, Debug)]
pub(super) struct Bodies {
    memory: Memory,
    most: units::Bytes,
    within: Span,
}

/// A body, and the memory it takes. The memory is free again when this is dropped.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) bytes: Bytes,
    _memory: Kept,
}

impl Bodies {
    pub(super) fn new(settings: &Door) -> Self {
        let memory = Memory::new(settings.bodies_most, settings.body_most);
        Self { memory, most: settings.body_most, within: settings.body_within }
    }

    /// The memory they share.
    #[cfg(test)]
    pub(super) fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Reads all of a body.
    ///
    /// # Errors
    /// When it is larger than the bound (at once where it says so), comes too slowly, breaks off, finds no room, or is not
    /// encoded as its header says.
    pub(super) async fn read(&self, mut body: Body, coding: Coding, headers: &HeaderMap) -> Result<Held, Refused> {
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
        let memory = self.memory.take(Memory::needed(hint.upper(), coding, most), self.within).await?;
        let reading = collect(&mut body, bound);
        match tokio::time::timeout(self.within.to_std(), reading).await {
            Ok(Ok(Some(bytes))) => Ok(Held { bytes: decode(bytes, coding, most).await?, _memory: memory }),
            Ok(Ok(None)) => self.too_large(body).await,
            Ok(Err(error)) => Err(Refused::Malformed(format!("the body broke off: {error}"))),
            Err(_elapsed) => Err(Refused::Malformed(format!("the body did not arrive within {}", self.within))),
        }
    }

    async fn too_large<T>(&self, body: Body) -> Result<T, Refused> {
        let most = self.most;
        let bound = usize::try_from(most.get()).unwrap_or(usize::MAX).saturating_mul(DISCARDED);
        discard(body, bound, self.within).await;
        Err(Refused::BodyTooLarge { most })
    }
}

/// The body, or nothing when it is larger than the bound.
async fn collect(body: &mut Body, bound: usize) -> Result<Option<Bytes>, BodyError> {
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

async fn discard(mut body: Body, most: usize, within: Span) {
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

/// Any body as the one type that is passed around here.
struct Given<B>(Pin<Box<B>>);

/// A body as it comes, as the one type that is passed around here.
pub(super) fn given<B>(body: B) -> Body
where
    B: HttpBody<Error: Into<BodyError>> + Send + 'static,
{
    Given(Box::pin(body)).boxed_unsync()
}

impl<B: HttpBody<Error: Into<BodyError>>> HttpBody for Given<B> {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let bytes = |mut data: B::Data| {
            let length = data.remaining();
            data.copy_to_bytes(length)
        };
        let polled = self.0.as_mut().poll_frame(context);
        polled.map(|frame| frame.map(|frame| frame.map(|frame| frame.map_data(bytes)).map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.size_hint()
    }
}
