//! What became of one request.

use std::sync::Arc;
use std::time::Duration;

use crate::plan::{Sender, Shot};
use crate::retry::Told;

/// How a request ended, as its sender saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The whole answer came.
    Completed,
    /// The gateway or the engine said no, with this status and error code.
    Refused {
        /// The HTTP status.
        status: u16,
        /// `error.code` of the body.
        code: String,
    },
    /// It broke: no connection, or an answer that was cut off or made no sense.
    Failed(String),
    /// Its client had waited as long as it would, and hung up.
    GaveUp,
    /// The run ended first.
    Unfinished,
    /// Too many others were under way; the generator did not send it.
    NotSent,
}

impl Outcome {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Refused { .. } => "refused",
            Self::Failed(_) => "failed",
            Self::GaveUp => "gave_up",
            Self::Unfinished => "unfinished",
            Self::NotSent => "not_sent",
        }
    }

    /// The refusal's code or the failure's message.
    pub(crate) fn detail(&self) -> &str {
        match self {
            Self::Refused { code, .. } => code,
            Self::Failed(why) => why,
            Self::Completed | Self::GaveUp | Self::Unfinished | Self::NotSent => "",
        }
    }
}

/// What became of one request. Times are after the run's start.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) sender: Arc<Sender>,
    /// Whether the scenario set its time, or the end of the one before it.
    pub(crate) open_loop: bool,
    pub(crate) scheduled: Duration,
    pub(crate) sent: Option<Duration>,
    pub(crate) first_token: Option<Duration>,
    pub(crate) ended: Option<Duration>,
    /// Input tokens, as reported where they were, else as asked for.
    pub(crate) input: u64,
    /// Output tokens asked for.
    pub(crate) wanted: u32,
    /// Output tokens received.
    pub(crate) output: u64,
    /// Of these, received while requests were still offered.
    pub(crate) output_in_time: u64,
    /// Output tokens as reported at the end.
    pub(crate) reported_output: Option<u64>,
    /// What the gateway says it waited.
    pub(crate) queue: Option<Duration>,
    /// The refusal's `retry-after`, as sent.
    pub(crate) retry_after: Option<String>,
    /// What it says about coming back.
    pub(crate) told: Told,
    /// When its client first sent it, where this is not the first try.
    pub(crate) asked: Duration,
    /// Whether this try came when the one before it was told to.
    pub(crate) heeded: bool,
    pub(crate) outcome: Outcome,
}

impl Record {
    pub(crate) fn new(shot: &Shot, open_loop: bool) -> Self {
        Self {
            sender: Arc::clone(&shot.sender),
            open_loop,
            scheduled: shot.at,
            sent: None,
            first_token: None,
            ended: None,
            input: shot.input.into(),
            wanted: shot.output,
            output: 0,
            output_in_time: 0,
            reported_output: None,
            queue: None,
            retry_after: None,
            told: Told::default(),
            asked: shot.at,
            heeded: false,
            outcome: Outcome::Unfinished,
        }
    }
}
