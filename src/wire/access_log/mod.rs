//! The service that Envoy's access log is streamed to: how requests ended that this gateway does not see.
//!
//! Envoy sends a record at a request's end, and in between where it is told to (`access_log_flush_interval`). The record
//! carries the lease that the check gave it. A record of the end settles that lease, one in between keeps it alive, and
//! all others are counted by what they were good for.
//!
//! The log is a hint and no more: Envoy is not told that a record arrived, and what it sends while nobody listens is lost
//! without a word. So what is not told is settled when its lease expires, and how much that is a metric tells.

mod entry;

use envoy_types::pb::envoy::data::accesslog::v3::HttpAccessLogEntry;
use envoy_types::pb::envoy::service::accesslog::v3::access_log_service_server::{
    AccessLogService, AccessLogServiceServer,
};
use envoy_types::pb::envoy::service::accesslog::v3::stream_access_logs_message::LogEntries;
use envoy_types::pb::envoy::service::accesslog::v3::{StreamAccessLogsMessage, StreamAccessLogsResponse};
use tonic::{Request, Response, Status, Streaming};

use crate::observe::{Lessor, LogEntry};
use crate::shell::{Gate, Leases};

use entry::{Read, read};

/// The most of one message: Envoy sends a batch once it has `buffer_size_bytes`, and one record may be larger.
const MOST: usize = 4 * 1024 * 1024;

/// The service Envoy tells.
#[derive(Clone, Debug)]
pub struct AccessLog {
    gate: Gate,
    leases: Leases,
}

impl AccessLog {
    /// A service that settles these leases.
    #[must_use]
    pub fn new(gate: Gate, leases: Leases) -> Self {
        Self { gate, leases }
    }

    /// The service, as a gRPC server takes it.
    #[must_use]
    pub fn into_service(self) -> AccessLogServiceServer<Self> {
        AccessLogServiceServer::new(self).max_decoding_message_size(MOST)
    }

    /// Takes a message of Envoy's.
    pub fn told(&self, message: StreamAccessLogsMessage) {
        match message.log_entries {
            Some(LogEntries::HttpLogs(entries)) => entries.log_entry.into_iter().for_each(|entry| self.entry(entry)),
            Some(LogEntries::TcpLogs(entries)) => {
                entries.log_entry.iter().for_each(|_| self.gate.metrics().log_entry(LogEntry::Other));
            }
            None => {}
        }
    }

    fn entry(&self, entry: HttpAccessLogEntry) {
        let used = match read(entry, self.gate.clock().now()) {
            Read::Ended { lease, end } => {
                let reported = end.reports_usage();
                match end.settle(&self.leases, Lessor::ExtAuthz, lease) {
                    Ok(_charge) if reported => LogEntry::Reported,
                    Ok(_charge) => LogEntry::Estimated,
                    Err(_not_live) => LogEntry::Stale,
                }
            }
            Read::Alive { lease, began } => {
                let told = match began {
                    Some(since) => self.leases.began(Lessor::ExtAuthz, lease, since),
                    None => self.leases.renew(Lessor::ExtAuthz, lease),
                };
                if told.is_ok() { LogEntry::Alive } else { LogEntry::Stale }
            }
            Read::Unleased => LogEntry::Unleased,
            Read::Between => LogEntry::Other,
            Read::Unreadable => LogEntry::Unreadable,
        };
        self.gate.metrics().log_entry(used);
    }
}

#[tonic::async_trait]
impl AccessLogService for AccessLog {
    async fn stream_access_logs(
        &self,
        request: Request<Streaming<StreamAccessLogsMessage>>,
    ) -> Result<Response<StreamAccessLogsResponse>, Status> {
        let mut messages = request.into_inner();
        while let Some(message) = messages.message().await? {
            self.told(message);
        }
        Ok(Response::new(StreamAccessLogsResponse {}))
    }
}

#[cfg(test)]
mod tests;
