//! From where it is known what requests ask for and what they used, counted by source; and what would have become of
//! requests on trial.
//!
//! A door that reads bodies knows more than one that is told; which of them a request was judged by is counted, so that
//! an operator sees how much is accounted for by whom.

use prometheus::IntCounterVec;

use super::maker::Maker;

/// From where something is known of a request or of its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// From the record of a proxy in front that read it.
    Record,
    /// From its body, read here.
    Parsed,
    /// From nobody: it was counted, or expected.
    Estimated,
}

impl Source {
    fn name(self) -> &'static str {
        match self {
            Self::Record => "record",
            Self::Parsed => "parsed",
            Self::Estimated => "estimated",
        }
    }
}

/// The counters.
#[derive(Debug)]
pub(super) struct Sources {
    quotes: IntCounterVec,
    usage: IntCounterVec,
    trials: IntCounterVec,
}

impl Sources {
    pub(super) fn new(maker: &Maker) -> Result<Self, prometheus::Error> {
        Ok(Self {
            quotes: maker.count(
                "tallygate_quote_source_total",
                "Metered requests, by where it is known what they ask for: a record of Envoy's, or their body.",
                &["source"],
            )?,
            usage: maker.count(
                "tallygate_usage_source_total",
                "Answers, by where it is known what they used: a record of Envoy's, their body, or an estimate.",
                &["source"],
            )?,
            trials: maker.count(
                "tallygate_trial_total",
                "Requests that went on whatever was decided, by what would have become of them.",
                &["verdict", "reason"],
            )?,
        })
    }

    pub(super) fn tried(&self, verdict: &str, reason: &str) {
        self.trials.with_label_values(&[verdict, reason]).inc();
    }

    pub(super) fn quoted(&self, source: Source) {
        self.quotes.with_label_values(&[source.name()]).inc();
    }

    pub(super) fn used(&self, source: Source) {
        self.usage.with_label_values(&[source.name()]).inc();
    }
}
