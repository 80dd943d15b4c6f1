//! The memory that the bodies of all requests at one door share.
//!
//! A body is held from its first byte until its request goes on, and while it waits it costs memory that no queue has
//! counted yet when it arrives. So all bodies together share one bound. It is given out in pieces, and given back when
//! what it was given out for is dropped.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::units::{Bytes, Span};

use super::super::answer::Refused;
use super::coding::Coding;

/// Memory is given out in pieces of so many bytes.
const PIECE: u64 = 1024;

/// The memory that all bodies share. Cheap to clone.
#[derive(Clone, Debug)]
pub(in crate::wire) struct Memory(Arc<Semaphore>);

/// A part of it. It is free again when this is dropped.
#[derive(Debug)]
pub(in crate::wire) struct Kept {
    _pieces: OwnedSemaphorePermit,
}

impl Memory {
    /// So much for all bodies, and at least enough for the largest one.
    pub(in crate::wire) fn new(all: Bytes, largest: Bytes) -> Self {
        let pieces = usize::try_from(all.get().max(largest.get()).div_ceil(PIECE)).unwrap_or(usize::MAX);
        Self(Arc::new(Semaphore::new(pieces.min(Semaphore::MAX_PERMITS))))
    }

    /// How much a body may come to of which so much is known. How large a compressed one is nobody knows before it is
    /// decoded.
    pub(in crate::wire) fn needed(known: Option<u64>, coding: Coding, most: Bytes) -> Bytes {
        Bytes::new(known.filter(|_| coding == Coding::Identity).unwrap_or(most.get()).min(most.get()))
    }

    /// Takes memory, waiting until there is some. For a body that can wait where it is.
    ///
    /// # Errors
    /// When there is none within this time.
    pub(in crate::wire) async fn take(&self, bytes: Bytes, within: Span) -> Result<Kept, Refused> {
        let waiting = self.0.clone().acquire_many_owned(pieces(bytes));
        match tokio::time::timeout(within.to_std(), waiting).await {
            Ok(pieces) => Ok(Kept { _pieces: pieces.expect("this semaphore is never closed") }),
            Err(_elapsed) => Err(Refused::NoMemory),
        }
    }

    /// Takes memory for a body that is here already.
    ///
    /// # Errors
    /// When there is none.
    pub(in crate::wire) fn take_now(&self, bytes: Bytes) -> Result<Kept, Refused> {
        let taken = self.0.clone().try_acquire_many_owned(pieces(bytes));
        taken.map(|pieces| Kept { _pieces: pieces }).map_err(|_| Refused::NoMemory)
    }

    /// How much is free.
    #[cfg(test)]
    pub(in crate::wire) fn free(&self) -> Bytes {
        Bytes::new(self.0.available_permits() as u64 * PIECE)
    }
}

fn pieces(bytes: Bytes) -> u32 {
    u32::try_from(bytes.get().div_ceil(PIECE)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::{Coding, Memory};
    use crate::units::{Bytes, Span};

    #[tokio::test(start_paused = true)]
    async fn it_comes_back_and_never_runs_over() {
        let memory = Memory::new(Bytes::new(4096), Bytes::new(1));
        let kept = memory.take_now(Bytes::new(3000)).expect("there is room");
        assert_eq!(memory.free(), Bytes::new(1024));
        assert!(memory.take_now(Bytes::new(1025)).is_err());
        assert!(memory.take(Bytes::new(1025), Span::from_secs(1)).await.is_err(), "nobody gives any back");
        drop(kept);
        assert!(memory.take(Bytes::new(4096), Span::ZERO).await.is_ok());
        assert_eq!(memory.free(), Bytes::new(4096));
    }

    #[test]
    fn what_is_compressed_may_come_to_the_most() {
        let most = Bytes::new(100);
        assert_eq!(Memory::needed(Some(7), Coding::Identity, most), Bytes::new(7));
        assert_eq!(Memory::needed(Some(7), Coding::Gzip, most), most);
        assert_eq!(Memory::needed(None, Coding::Identity, most), most);
    }
}
