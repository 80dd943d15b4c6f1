//! What is counted of leases: requests that one of our doors let through and whose end others tell of.
//!
//! The gap is what admission control by hearsay costs: how many requests were let through whose end nobody has told.
//! While they run that is as it should be; what expired and was never told stays in it for good.

use prometheus::{GaugeVec, IntCounterVec};

use super::maker::Maker;

/// Which door gave a lease, or told of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lessor {
    /// Envoy's external authorization, and its access log.
    ExtAuthz,
    /// The gRPC admission API.
    Grpc,
}

impl Lessor {
    /// Its name in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::ExtAuthz => "ext_authz",
            Self::Grpc => "grpc",
        }
    }
}

/// What happened to a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseNews {
    /// It began.
    Held,
    /// A sign of life.
    Renewed,
    /// Its end was reported.
    Settled,
    /// Nothing was heard of it for a life.
    Expired,
    /// It could not begin, for lack of room.
    Full,
    /// Its end was reported once more.
    Again,
    /// Its end was reported after it had expired.
    Late,
    /// A sign of life came after its end.
    Stale,
    /// A report came of a lease that nobody knows.
    Unknown,
}

impl LeaseNews {
    const fn name(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Renewed => "renewed",
            Self::Settled => "settled",
            Self::Expired => "expired",
            Self::Full => "full",
            Self::Again => "again",
            Self::Late => "late",
            Self::Stale => "stale",
            Self::Unknown => "unknown",
        }
    }
}

/// What a record of Envoy's access log was good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogEntry {
    /// It settled a lease, with the usage that the upstream reported.
    Reported,
    /// It settled a lease, and what it cost is estimated.
    Estimated,
    /// It was a sign of life.
    Alive,
    /// It told of a lease that had ended, or that nobody knows.
    Stale,
    /// It told of a request that nobody holds a lease for: refused, or not metered, or not asked about.
    Unleased,
    /// It told of what is no request, or of something between its begin and its end.
    Other,
    /// What it says of its lease cannot be read.
    Unreadable,
}

impl LogEntry {
    const fn name(self) -> &'static str {
        match self {
            Self::Reported => "reported",
            Self::Estimated => "estimated",
            Self::Alive => "alive",
            Self::Stale => "stale",
            Self::Unleased => "unleased",
            Self::Other => "other",
            Self::Unreadable => "unreadable",
        }
    }
}

#[derive(Debug)]
pub(super) struct LeaseMetrics {
    news: IntCounterVec,
    live: GaugeVec,
    gap: GaugeVec,
    entries: IntCounterVec,
}

impl LeaseMetrics {
    pub(super) fn new(maker: &Maker) -> Result<Self, prometheus::Error> {
        Ok(Self {
            news: maker.count(
                "tallygate_leases_total",
                "What happened to leases: requests let through whose end others tell of.",
                &["door", "event"],
            )?,
            live: maker.gauge("tallygate_leases_live", "Leases that run.", &["door"])?,
            gap: maker.gauge(
                "tallygate_leases_untold",
                "Requests let through whose end nobody has told: the leases that run, and those that expired.",
                &["door"],
            )?,
            entries: maker.count(
                "tallygate_access_log_entries_total",
                "Records of Envoy's access log, by what they were good for.",
                &["use"],
            )?,
        })
    }

    pub(super) fn note(&self, lessor: Lessor, news: LeaseNews) {
        let door = [lessor.name()];
        self.news.with_label_values(&[lessor.name(), news.name()]).inc();
        match news {
            LeaseNews::Held => {
                self.live.with_label_values(&door).inc();
                self.gap.with_label_values(&door).inc();
            }
            LeaseNews::Settled => {
                self.live.with_label_values(&door).dec();
                self.gap.with_label_values(&door).dec();
            }
            LeaseNews::Expired => self.live.with_label_values(&door).dec(),
            LeaseNews::Late => self.gap.with_label_values(&door).dec(),
            LeaseNews::Renewed | LeaseNews::Full | LeaseNews::Again | LeaseNews::Stale | LeaseNews::Unknown => {}
        }
    }

    pub(super) fn entry(&self, entry: LogEntry) {
        self.entries.with_label_values(&[entry.name()]).inc();
    }
}
