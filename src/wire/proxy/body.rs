//! Reads a request's body, within bounds of size and time.

use std::pin::Pin;

use bytes::{Bytes, BytesMut};
use http_body::Body;
use http_body_util::BodyExt;
use hyper::body::Incoming;

use crate::units::{self, Span};

use super::super::answer::Refused;

/// How many times the bound is read and thrown away before an answer, so that a client that sends without listening
/// gets to see it.
const DISCARDED: usize = 2;

/// Reads all of a body.
///
/// # Errors
/// When it is larger than the bound, comes too slowly, or breaks off.
pub(super) async fn read(mut body: Incoming, most: units::Bytes, within: Span) -> Result<Bytes, Refused> {
    let bound = usize::try_from(most.get()).unwrap_or(usize::MAX);
    let reading = collect(Pin::new(&mut body), bound);
    match tokio::time::timeout(within.to_std(), reading).await {
        Ok(Ok(Some(bytes))) => Ok(bytes),
        Ok(Ok(None)) => {
            // Whether it ends, breaks or goes on for ever, the answer is the same.
            let _rest = tokio::time::timeout(within.to_std(), discard(body, bound.saturating_mul(DISCARDED))).await;
            Err(Refused::BodyTooLarge { most })
        }
        Ok(Err(error)) => Err(Refused::Malformed(format!("the body broke off: {error}"))),
        Err(_elapsed) => Err(Refused::Malformed(format!("the body did not arrive within {within}"))),
    }
}

/// The body, or nothing when it is larger than the bound.
async fn collect(mut body: Pin<&mut Incoming>, bound: usize) -> Result<Option<Bytes>, hyper::Error> {
    if body.size_hint().lower() > bound as u64 {
        return Ok(None);
    }
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

async fn discard(mut body: Incoming, most: usize) {
    let mut seen = 0;
    while seen < most
        && let Some(Ok(frame)) = body.frame().await
    {
        seen += frame.data_ref().map_or(0, Bytes::len);
    }
}
