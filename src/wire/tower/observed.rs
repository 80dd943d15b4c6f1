//! An answer's body on its way to the client, watched to its end.
//!
//! Every byte is passed on as it comes. What the end is settled for stands with the [`Meter`]; what is added here is that
//! an upstream that breaks has failed, and one that says nothing for too long before its final event has timed out.
//!
//! A broken upstream breaks the client's connection too: a part must not be taken for the whole. So does a stream whose
//! only end is that its connection closes, unless its final event came before: whether it was whole nobody else can
//! tell. Once the whole answer was produced nothing of it is missing any more, and its slot is free; what the upstream
//! does to its connection then ends the client's answer in good order, and so does what it leaves undone: for longer than
//! [`LINGER`] after its final event, and for as long as any stream may be silent before it.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use tokio::time::{Instant, Sleep, sleep};

use crate::admission::Outcome;
use crate::units::Span;

use super::super::exchange::Meter;
use super::super::server::BodyError;

/// How long after its final event a stream may go on.
const LINGER: Duration = Duration::from_secs(1);

/// What ends a service's body. A service whose answers are ended by their connection says so among the extensions of
/// each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::wire) enum Framing {
    /// Its length, or a last chunk or frame: an early end is told from a good one.
    #[default]
    Framed,
    /// The end of the connection, which may also be an accident.
    UntilClose,
}

/// The body of an answer, watched.
pub(super) struct Observed {
    upstream: super::Body,
    framing: Framing,
    meter: Meter,
    idle_most: Span,
    idle: Pin<Box<Sleep>>,
    /// Whether the upstream was asked and has not said anything since. Only then does its silence count: a client that is
    /// slow to read asks nothing.
    asked: bool,
    stage: Stage,
}

/// How far it has come.
#[derive(Debug)]
enum Stage {
    /// More may come.
    Open,
    /// Only its trailers are left to be shown.
    Trailers(HeaderMap),
    /// Nothing more comes.
    Ended,
}

type Polled = Poll<Option<Result<Frame<Bytes>, BodyError>>>;

impl Observed {
    /// An answer that is metered.
    pub(super) fn metered(upstream: super::Body, framing: Framing, meter: Meter, idle_most: Span) -> Self {
        let idle = Box::pin(sleep(idle_most.to_std()));
        let mut this = Self { upstream, framing, meter, idle_most, idle, asked: false, stage: Stage::Open };
        if this.upstream.is_end_stream() {
            // Nobody polls a body that is empty, and nothing is held back of one.
            let _nothing = this.end();
        }
        this
    }

    /// An answer that only passes.
    pub(super) fn unmetered(upstream: super::Body, idle_most: Span) -> Self {
        Self::metered(upstream, Framing::Framed, Meter::unmetered(), idle_most)
    }

    /// The upstream's body ended by itself. Returns what was held back of it.
    fn end(&mut self) -> Bytes {
        self.stage = Stage::Ended;
        self.meter.end().0
    }

    /// Nothing more comes of the upstream's body.
    fn end_in_good_order(&mut self) -> Polled {
        let rest = self.end();
        Poll::Ready((!rest.is_empty()).then(|| Ok(Frame::data(rest))))
    }

    /// Trailers end the body.
    fn end_with(&mut self, trailers: HeaderMap) -> Polled {
        self.meter.hear(&trailers);
        let rest = self.end();
        if rest.is_empty() {
            return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
        }
        self.stage = Stage::Trailers(trailers);
        Poll::Ready(Some(Ok(Frame::data(rest))))
    }

    /// From now on the upstream's silence counts, unless it does already.
    fn wait_on(&mut self) {
        if std::mem::replace(&mut self.asked, true) {
            return;
        }
        let idle_most = self.idle_most.to_std();
        let most = if self.meter.is_final() { idle_most.min(LINGER) } else { idle_most };
        self.idle.as_mut().reset(Instant::now() + most);
    }

    /// Ends with an error, which breaks the client's connection.
    fn break_off(&mut self, outcome: Outcome, error: BodyError) -> Polled {
        self.stage = Stage::Ended;
        self.meter.settle(outcome);
        Poll::Ready(Some(Err(error)))
    }
}

impl Body for Observed {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Polled {
        let this = &mut *self;
        match std::mem::replace(&mut this.stage, Stage::Ended) {
            Stage::Open => this.stage = Stage::Open,
            Stage::Trailers(trailers) => return Poll::Ready(Some(Ok(Frame::trailers(trailers)))),
            Stage::Ended => return Poll::Ready(None),
        }
        if this.meter.is_whole() {
            // It was taken off our hands. The slot is free, however long the upstream lingers.
            this.meter.settle(Outcome::Completed);
        }
        loop {
            let polled = Pin::new(&mut this.upstream).poll_frame(context);
            if polled.is_pending() {
                this.wait_on();
                ready!(this.idle.as_mut().poll(context));
                if this.meter.is_whole() {
                    return this.end_in_good_order();
                }
                let what = format!("the upstream said nothing for {}", this.idle_most);
                return this.break_off(Outcome::TimedOut, what.into());
            }
            this.asked = false;
            match ready!(polled) {
                Some(Ok(frame)) => {
                    let data = match frame.into_data() {
                        Ok(data) => data,
                        Err(other) => match other.into_trailers() {
                            Ok(trailers) => return this.end_with(trailers),
                            Err(_unknown) => continue,
                        },
                    };
                    let mut shown = this.meter.pass(data);
                    // hyper stops asking once it has as many bytes as the headers promised.
                    if this.upstream.is_end_stream() {
                        let rest = this.end();
                        shown = if rest.is_empty() { shown } else { [shown, rest].concat().into() };
                    }
                    if !shown.is_empty() {
                        return Poll::Ready(Some(Ok(Frame::data(shown))));
                    }
                }
                Some(Err(_)) if this.meter.is_whole() => return this.end_in_good_order(),
                Some(Err(error)) => return this.break_off(Outcome::UpstreamFailed, error),
                None => {
                    let ending = this.end_in_good_order();
                    if this.framing == Framing::UntilClose && this.meter.is_open() {
                        let what = "the upstream closed its connection before the final event";
                        return Poll::Ready(Some(Err(what.into())));
                    }
                    return ending;
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.stage, Stage::Ended)
    }

    fn size_hint(&self) -> SizeHint {
        if self.meter.shortens() { SizeHint::default() } else { self.upstream.size_hint() }
    }
}
