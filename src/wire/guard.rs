//! Turns a panic in a handler into an answer.
//!
//! A panic would otherwise end the connection without a word, and the client would retry into the same fault. What
//! the handler held is dropped as it unwinds, so a permit settles and nothing that was not sent is sent.

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Poll;

/// The handler panicked; the panic hook has told how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Panicked;

/// Runs a future, catching its panic.
pub(super) async fn guarded<F: Future>(future: F) -> Result<F::Output, Panicked> {
    let mut future = Box::pin(future);
    poll_fn(move |context| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context))) {
        Ok(Poll::Pending) => Poll::Pending,
        Ok(Poll::Ready(output)) => Poll::Ready(Ok(output)),
        Err(_panic) => Poll::Ready(Err(Panicked)),
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::{Panicked, guarded};

    #[tokio::test]
    async fn a_panic_is_an_answer() {
        assert_eq!(guarded(async { 7 }).await, Ok(7));
        let late = async {
            tokio::task::yield_now().await;
            assert!(std::hint::black_box(false), "on purpose");
        };
        assert_eq!(guarded(late).await, Err(Panicked));
    }
}
