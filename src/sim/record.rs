//! What became of each request: one row of `requests.csv`.

use std::io;
use std::sync::Arc;

use crate::units::{Instant, RequestId, SessionId, Span, TenantId, Tokens, VirtualTokens};

use super::demand::Demand;

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Outcome {
    /// Its whole answer was produced.
    Completed,
    /// It was refused, on arrival or when displaced from the queue.
    Refused,
    /// It waited as long as it may.
    Expired,
    /// Its client left, or the engine failed it.
    Aborted,
}

impl Outcome {
    /// Every outcome.
    pub const ALL: [Self; 4] = [Self::Completed, Self::Refused, Self::Expired, Self::Aborted];

    /// Its name in the output files.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Refused => "refused",
            Self::Expired => "expired",
            Self::Aborted => "aborted",
        }
    }
}

/// One request's life. Moments are `None` where it did not get that far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Which: its position in the workload, by arrival.
    pub id: RequestId,
    /// When it arrived.
    pub arrival: Instant,
    /// When its client first asked: earlier than it arrived where it was refused and came back.
    pub asked: Instant,
    /// Whose it was.
    pub tenant: TenantId,
    /// Of which session.
    pub session: Option<SessionId>,
    /// The class it was given; `None` when no pool served its model.
    pub class: Option<Arc<str>>,
    /// Its input.
    pub input: Tokens,
    /// Its output, were it to complete.
    pub output: Tokens,
    /// How it ended; `None` while it has not.
    pub outcome: Option<Outcome>,
    /// Why, for those that did not complete.
    pub reason: Option<&'static str>,
    /// When the gateway decided on it.
    pub decided: Option<Instant>,
    /// When it was let through.
    pub dispatched: Option<Instant>,
    /// When its first token was produced.
    pub first_token: Option<Instant>,
    /// When it ended, however it did.
    pub finished: Option<Instant>,
    /// The output predicted for it.
    pub predicted: Option<Tokens>,
    /// What it was charged.
    pub charged: Option<VirtualTokens>,
    /// How long a refused client was told to wait.
    pub retry_after: Option<Span>,
    /// Whether it came back at the time it was told to after a refusal.
    pub heeded: bool,
}

impl Record {
    /// That of a request which has not arrived yet.
    pub(super) fn ahead(demand: &Demand, id: RequestId) -> Self {
        Self {
            id,
            arrival: demand.arrival,
            asked: demand.asked,
            tenant: demand.tenant.clone(),
            session: demand.session.clone(),
            class: None,
            input: demand.input,
            output: demand.produced(),
            outcome: None,
            reason: None,
            decided: None,
            dispatched: None,
            first_token: None,
            finished: None,
            predicted: None,
            charged: None,
            retry_after: None,
            heeded: demand.heeded,
        }
    }
}

/// The columns of `requests.csv`.
pub const COLUMNS: [&str; 17] = [
    "id",
    "arrival_s",
    "tenant",
    "session",
    "class",
    "input_tokens",
    "output_tokens",
    "outcome",
    "reason",
    "decided_s",
    "dispatched_s",
    "first_token_s",
    "finished_s",
    "predicted_output",
    "charged",
    "retry_after_s",
    "gateway",
];

/// Writes records as CSV. Every simulation so far has one gateway, number 0.
///
/// # Errors
/// When the writer fails.
pub fn write_csv(records: &[Record], out: impl io::Write) -> Result<(), csv::Error> {
    let mut csv = csv::Writer::from_writer(out);
    csv.write_record(COLUMNS)?;
    for record in records {
        csv.write_record(row(record))?;
    }
    csv.flush()?;
    Ok(())
}

fn row(record: &Record) -> [String; 17] {
    let text = |text: Option<&str>| text.unwrap_or_default().to_owned();
    let moment = |at: Option<Instant>| at.map(|at| format!("{:.6}", at.as_secs_f64())).unwrap_or_default();
    [
        record.id.get().to_string(),
        moment(Some(record.arrival)),
        record.tenant.to_string(),
        text(record.session.as_ref().map(SessionId::as_str)),
        text(record.class.as_deref()),
        record.input.to_string(),
        record.output.to_string(),
        text(record.outcome.map(Outcome::name)),
        text(record.reason),
        moment(record.decided),
        moment(record.dispatched),
        moment(record.first_token),
        moment(record.finished),
        record.predicted.map(|tokens| tokens.to_string()).unwrap_or_default(),
        record.charged.map(|charged| format!("{:.6}", charged.as_f64())).unwrap_or_default(),
        record.retry_after.map(|span| format!("{:.3}", span.as_secs_f64())).unwrap_or_default(),
        "0".to_owned(),
    ]
}

#[cfg(test)]
mod tests {
    use super::{COLUMNS, Outcome, Record, write_csv};
    use crate::units::{Instant, RequestId, TenantId, Tokens};

    #[test]
    fn fields_not_reached_are_empty_and_names_are_quoted() {
        let record = Record {
            id: RequestId::new(7),
            arrival: Instant::from_secs_f64(1.5),
            asked: Instant::from_secs_f64(1.5),
            tenant: TenantId::from("a,\"b\""),
            session: None,
            class: Some("standard".into()),
            input: Tokens::new(3),
            output: Tokens::new(4),
            outcome: Some(Outcome::Refused),
            reason: Some("queue_full"),
            decided: Some(Instant::from_secs_f64(1.5)),
            dispatched: None,
            first_token: None,
            finished: None,
            predicted: Some(Tokens::new(256)),
            charged: None,
            retry_after: None,
            heeded: false,
        };
        let mut out = Vec::new();
        write_csv(&[record], &mut out).expect("written");
        let text = String::from_utf8(out).expect("text");
        let (header, row) = text.trim_end().split_once('\n').expect("two lines");
        assert_eq!(header, COLUMNS.join(","));
        assert_eq!(row, "7,1.500000,\"a,\"\"b\"\"\",,standard,3,4,refused,queue_full,1.500000,,,,256,,,0");
    }
}
