//! An answer's body on its way to the client, watched to its end.
//!
//! Every byte is passed on as it comes. The end decides what the request is settled for:
//!
//! | what happens | settled as | for |
//! |---|---|---|
//! | a stream's final event, or the end of an answer | completed | the usage reported, else what was counted |
//! | the client leaves behind the final event | closed after final | the same |
//! | the client leaves before it | client aborted | what was counted |
//! | the upstream breaks, ends a stream early, or reports an error in it | upstream failed | what was counted |
//! | the upstream says nothing for too long before its final event | timed out | what was counted |
//! | the answer was an error (4xx, 5xx) | upstream failed | nothing, unless usage is reported |
//!
//! A broken upstream breaks the client's connection too: a part must not be taken for the whole. So does a stream whose
//! only end is that its connection closes, unless its final event came before: whether it was whole nobody else can
//! tell. After the final event nothing is missing any more; what the upstream does to its connection then, or leaves
//! undone for longer than [`LINGER`], ends the client's answer in good order.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::Version;
use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::{Instant, Sleep, sleep};

use crate::admission::{Ending, Outcome, Reported};
use crate::costing::Encoding;
use crate::shell::Permit;
use crate::units::{Span, Tokens, Usage, VirtualTokens};

use super::super::dialect::{AnswerForm, Observer, Reply, StreamEnd};
use super::super::server::BodyError;

/// How much of a whole answer is kept to read its usage.
const WHOLE_MOST: usize = 4 * 1024 * 1024;

/// How long after its final event a stream may go on.
const LINGER: Duration = Duration::from_secs(1);

/// The core is told of progress in steps of so many tokens.
const PROGRESS_STEP: u64 = 8;

/// How an answer is watched.
pub(in crate::wire) enum Watch {
    /// Event by event.
    Stream(Box<Observer>),
    /// A copy is kept and read at the end.
    Whole(Copy),
    /// An error of the upstream's.
    Failed(Copy),
    /// It cannot be read, only passed on.
    Unreadable,
}

/// A copy of an answer, up to a bound.
pub(in crate::wire) struct Copy {
    held: Vec<u8>,
    complete: bool,
    form: AnswerForm,
    encoding: Encoding,
}

impl Copy {
    fn new(form: AnswerForm, encoding: Encoding) -> Self {
        Self { held: Vec::new(), complete: true, form, encoding }
    }

    fn add(&mut self, data: &[u8]) {
        self.complete &= self.held.len() + data.len() <= WHOLE_MOST;
        if self.complete {
            self.held.extend_from_slice(data);
        } else {
            self.held = Vec::new();
        }
    }

    fn reply(&self) -> Reply {
        if self.complete { self.form.read(&self.held, self.encoding) } else { Reply::Unreadable }
    }
}

impl Watch {
    pub(super) fn whole(form: AnswerForm, encoding: Encoding) -> Self {
        Self::Whole(Copy::new(form, encoding))
    }

    pub(super) fn failed(form: AnswerForm) -> Self {
        Self::Failed(Copy::new(form, Encoding::O200k))
    }

    /// Takes note of the next bytes and returns what the client is to see.
    fn push(&mut self, data: Bytes) -> Bytes {
        match self {
            Self::Stream(observer) => observer.push(&data),
            Self::Whole(copy) | Self::Failed(copy) => {
                copy.add(&data);
                data
            }
            Self::Unreadable => data,
        }
    }

    /// What was held back and is to be seen after all, now that nothing more comes.
    fn finish(&mut self) -> Bytes {
        match self {
            Self::Stream(observer) => observer.finish(),
            Self::Whole(_) | Self::Failed(_) | Self::Unreadable => Bytes::new(),
        }
    }

    fn output_so_far(&self) -> Tokens {
        match self {
            Self::Stream(observer) => observer.output_so_far(),
            Self::Whole(_) | Self::Failed(_) | Self::Unreadable => Tokens::ZERO,
        }
    }

    /// Whether the whole answer was produced although its body has not ended.
    fn is_final(&self) -> bool {
        matches!(self, Self::Stream(observer) if observer.end() == StreamEnd::Final)
    }

    /// Whether it is a stream that is not at its end.
    fn is_open(&self) -> bool {
        matches!(self, Self::Stream(observer) if observer.end() == StreamEnd::Open)
    }

    /// What is known of the usage.
    fn usage(&mut self, permit: &Permit) -> Reported {
        match self {
            Self::Stream(observer) => reported(observer, permit),
            Self::Whole(copy) => match copy.reply() {
                Reply::Reported(usage) => Reported::Final(usage),
                Reply::Counted { visible, reasoning } => permit.counted(visible, reasoning),
                Reply::Disbelieved(counted) => {
                    permit.disbelieved();
                    counted.map_or(Reported::Nothing, |(visible, reasoning)| permit.counted(visible, reasoning))
                }
                Reply::Unreadable => Reported::Nothing,
            },
            Self::Failed(copy) => match copy.reply() {
                Reply::Reported(usage) => Reported::Final(usage),
                Reply::Disbelieved(_) => {
                    permit.disbelieved();
                    Reported::Nothing
                }
                Reply::Counted { .. } | Reply::Unreadable => Reported::Nothing,
            },
            Self::Unreadable => Reported::Nothing,
        }
    }

    /// How a body that ended by itself ended.
    fn outcome(&self) -> Outcome {
        match self {
            Self::Stream(observer) if observer.end() != StreamEnd::Final => Outcome::UpstreamFailed,
            Self::Failed(_) => Outcome::UpstreamFailed,
            Self::Stream(_) | Self::Whole(_) | Self::Unreadable => Outcome::Completed,
        }
    }
}

/// What a stream reported, where it came to its end. Else the more of what it reported on the way and what was counted
/// of it, with the input as reported, else as expected: what an upstream says in passing is no final word, and whoever
/// leaves early is not to pay less for it.
fn reported(observer: &mut Observer, permit: &Permit) -> Reported {
    if observer.disbelieved() {
        permit.disbelieved();
    }
    if observer.end() != StreamEnd::Open
        && let Some(usage) = observer.usage()
    {
        return Reported::Final(usage);
    }
    let (visible, reasoning) = observer.counted();
    match (observer.told(), observer.input()) {
        (Some(told), _) if told.output() >= visible + reasoning => Reported::Counted(told),
        (_, Some(input)) => Reported::Counted(Usage { visible_output: visible, reasoning_output: reasoning, ..input }),
        (_, None) => permit.counted(visible, reasoning),
    }
}

/// An answer's bytes on their way, and the permit they are settled by.
///
/// Dropped before the end, it settles for what was counted: somebody left.
pub(in crate::wire) struct Meter {
    watch: Watch,
    permit: Option<Permit>,
    told: Tokens,
}

impl Meter {
    /// Watches an answer.
    pub(in crate::wire) fn new(watch: Watch, permit: Option<Permit>) -> Self {
        Self { watch, permit, told: Tokens::ZERO }
    }

    /// Settles, unless that was done, and tells what the request came to.
    pub(in crate::wire) fn settle(&mut self, outcome: Outcome) -> Option<VirtualTokens> {
        let permit = self.permit.take()?;
        let usage = self.watch.usage(&permit);
        permit.settle(Ending { outcome, usage })
    }

    /// Takes note of the next bytes and returns what is to be shown of them.
    pub(in crate::wire) fn pass(&mut self, data: Bytes) -> Bytes {
        let shown = self.watch.push(data);
        if let Some(permit) = &mut self.permit {
            permit.began();
            let output = self.watch.output_so_far();
            let step = Tokens::new(if self.told == Tokens::ZERO { 1 } else { PROGRESS_STEP });
            if output >= self.told + step {
                self.told = output;
                permit.progress(output);
            }
        }
        shown
    }

    /// Whether the whole answer was produced although its body has not ended.
    pub(in crate::wire) fn is_final(&self) -> bool {
        self.watch.is_final()
    }

    /// The body ended by itself: what was held back of it, and what the request came to.
    pub(in crate::wire) fn end(&mut self) -> (Bytes, Option<VirtualTokens>) {
        let rest = self.watch.finish();
        (rest, self.settle(self.watch.outcome()))
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        let outcome = if self.watch.is_final() { Outcome::ClosedAfterFinal } else { Outcome::ClientAborted };
        self.settle(outcome);
    }
}

/// What ends an upstream's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Framing {
    /// Its length, or a last chunk or frame: an early end is told from a good one.
    Framed,
    /// The end of the connection, which may also be an accident.
    UntilClose,
}

impl Framing {
    /// Of an answer, by its head as it came (RFC 9112, section 6.3).
    pub(super) fn of(head: &http::response::Parts) -> Self {
        let says = |name| head.headers.contains_key(name);
        if head.version <= Version::HTTP_11 && !says(CONTENT_LENGTH) && !says(TRANSFER_ENCODING) {
            Self::UntilClose
        } else {
            Self::Framed
        }
    }
}

/// The body of an answer, watched.
pub(super) struct Observed {
    upstream: Incoming,
    framing: Framing,
    meter: Meter,
    idle_most: Span,
    idle: Pin<Box<Sleep>>,
    ended: bool,
}

/// An answer that is metered.
pub(super) fn metered(upstream: Incoming, framing: Framing, watch: Watch, permit: Permit, idle_most: Span) -> Observed {
    Observed::new(upstream, framing, Meter::new(watch, Some(permit)), idle_most)
}

/// An answer that only passes.
pub(super) fn unmetered(upstream: Incoming, idle_most: Span) -> Observed {
    Observed::new(upstream, Framing::Framed, Meter::new(Watch::Unreadable, None), idle_most)
}

impl Observed {
    fn new(upstream: Incoming, framing: Framing, meter: Meter, idle_most: Span) -> Self {
        let idle = Box::pin(sleep(idle_most.to_std()));
        Self { upstream, framing, meter, idle_most, idle, ended: false }
    }

    /// The upstream's body ended by itself. Returns what was held back of it.
    fn end(&mut self) -> Bytes {
        self.ended = true;
        self.meter.end().0
    }

    /// Nothing more comes of the upstream's body.
    fn end_in_good_order(&mut self) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let rest = self.end();
        Poll::Ready((!rest.is_empty()).then(|| Ok(Frame::data(rest))))
    }

    /// Waits anew for the upstream to say something.
    fn wait_on(&mut self) {
        let idle_most = self.idle_most.to_std();
        let most = if self.meter.is_final() { idle_most.min(LINGER) } else { idle_most };
        self.idle.as_mut().reset(Instant::now() + most);
    }

    /// Ends with an error, which breaks the client's connection.
    fn break_off(&mut self, outcome: Outcome, error: BodyError) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        self.ended = true;
        self.meter.settle(outcome);
        Poll::Ready(Some(Err(error)))
    }
}

impl Body for Observed {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = &mut *self;
        if this.ended {
            return Poll::Ready(None);
        }
        if this.meter.is_final() {
            // The final event was taken off our hands. The slot is free, however long the upstream lingers.
            this.meter.settle(Outcome::Completed);
        }
        loop {
            let polled = Pin::new(&mut this.upstream).poll_frame(context);
            if polled.is_pending() {
                ready!(this.idle.as_mut().poll(context));
                if this.meter.is_final() {
                    return this.end_in_good_order();
                }
                let what = format!("the upstream said nothing for {}", this.idle_most);
                return this.break_off(Outcome::TimedOut, what.into());
            }
            match ready!(polled) {
                Some(Ok(frame)) => {
                    // Trailers concern one connection only.
                    let Ok(data) = frame.into_data() else { continue };
                    let mut shown = this.meter.pass(data);
                    this.wait_on();
                    // hyper stops asking once it has as many bytes as the headers promised.
                    if this.upstream.is_end_stream() {
                        let rest = this.end();
                        shown = if rest.is_empty() { shown } else { [shown, rest].concat().into() };
                    }
                    if !shown.is_empty() {
                        return Poll::Ready(Some(Ok(Frame::data(shown))));
                    }
                }
                Some(Err(_)) if this.meter.is_final() => return this.end_in_good_order(),
                Some(Err(error)) => return this.break_off(Outcome::UpstreamFailed, error.into()),
                None => {
                    let ending = this.end_in_good_order();
                    if this.framing == Framing::UntilClose && this.meter.watch.is_open() {
                        let what = "the upstream closed its connection before the final event";
                        return Poll::Ready(Some(Err(what.into())));
                    }
                    return ending;
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.ended
    }

    fn size_hint(&self) -> SizeHint {
        match self.meter.watch {
            Watch::Stream(_) => SizeHint::default(),
            Watch::Whole(_) | Watch::Failed(_) | Watch::Unreadable => self.upstream.size_hint(),
        }
    }
}
