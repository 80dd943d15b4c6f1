//! A connection whose other end must read.
//!
//! A client that asks for a long answer and then reads nothing would hold its slot for ever: the answer's body is not
//! asked for while the socket is full, so nothing in it can notice. Here the write itself notices: when the other end
//! has taken no byte for the given time, the connection fails, and everything behind it is dropped and settled.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// A stream that gives up on writing when the other end does not read.
#[derive(Debug)]
pub(super) struct Patient<S> {
    stream: S,
    most: Duration,
    /// Runs while a write is stuck.
    stuck: Option<Pin<Box<Sleep>>>,
}

impl<S> Patient<S> {
    pub(super) fn new(stream: S, most: Duration) -> Self {
        Self { stream, most, stuck: None }
    }

    /// Passes a write's progress on, unless there has been none for too long.
    fn watch<T>(&mut self, polled: Poll<io::Result<T>>, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            self.stuck = None;
            return polled;
        }
        let most = self.most;
        let stuck = self.stuck.get_or_insert_with(|| Box::pin(sleep(most)));
        match stuck.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client reads nothing"))),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, into)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Patient<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.watch(polled, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.watch(polled, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_flush(context);
        self.watch(polled, context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_shutdown(context);
        self.watch(polled, context)
    }
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::time::Duration;

    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
    use tokio::time::sleep;

    use super::Patient;

    const MOST: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn a_client_that_reads_nothing_is_given_up() {
        let (near, _far) = duplex(1_000);
        let began = tokio::time::Instant::now();
        let error = Patient::new(near, MOST).write_all(&[0; 5_000]).await.expect_err("nobody reads");
        assert_eq!((error.kind(), began.elapsed().as_secs()), (ErrorKind::TimedOut, 60));
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_reads_slowly_is_served() {
        let (near, mut far) = duplex(1_000);
        let writing = tokio::spawn(async move { Patient::new(near, MOST).write_all(&[0; 5_000]).await });
        let mut piece = [0; 1_000];
        for _ in 0..5 {
            sleep(MOST - Duration::from_secs(1)).await;
            far.read_exact(&mut piece).await.expect("it comes");
        }
        assert!(writing.await.expect("it ends").is_ok());
    }
}
