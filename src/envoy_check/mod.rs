//! What an Envoy's configuration will do to Tallygate's work, read from the file before it is tried on requests.
//!
//! Envoy accepts many configurations under which nothing is held, nothing is counted, or whoever waits is cut off, and
//! says so neither when it loads them nor, mostly, when it happens. Its defaults are among them: 200 ms for an answer,
//! 1024 requests at once, 5 minutes of silence, 1 MiB of body. [`check`] reads a bootstrap file, a config dump of a
//! running Envoy or a file of xDS resources (YAML or JSON), finds the filters that ask Tallygate, and holds what
//! concerns them against what a policy wants of them. Every finding has a rule of [`RULES`], which says what will go
//! wrong and what to do about it.
//!
//! ```text
//! config    what is in the file: listeners, routes, clusters, from whichever of the three forms
//! chain     one connection manager's filters and routes; which of them ask us
//! order     who stands before and behind us
//! ext_proc, ext_authz, rate_limit      the filters themselves, and a route's exceptions
//! route     what a route's or connection's own bounds do to whoever waits
//! cluster   ours: breakers, HTTP/2, health; the upstreams': what comes before our window
//! ```
//!
//! It reads one file and judges it against one policy. It does not know what a control plane will send, what Envoy's
//! runtime overrides, or what other filters do with a request. Work is linear in the size of the file; a report lists
//! at most 200 findings, errors first.

mod chain;
mod cluster;
mod config;
mod ext_authz;
mod ext_proc;
mod finding;
mod headers;
pub mod modes;
mod order;
mod part;
mod rate_limit;
mod route;
mod rules;

use crate::units::{Bytes, Limit, Span};
use crate::yaml::{Document, Mistakes};

pub use finding::{Finding, Level, Report};
pub use rules::{RULES, Rule};

use config::Config;

/// What a configuration is held against: what a policy wants, and how this gateway is known to Envoy.
#[derive(Clone, Debug)]
pub struct Expected {
    /// The clusters that are Tallygate's. When empty they are found by name, address and port.
    pub clusters: Vec<String>,
    /// The port of Tallygate's gRPC server.
    pub port: u16,
    /// The longest a request may wait for its turn.
    pub longest_wait: Limit<Span>,
    /// The most requests that wait and run at once.
    pub most_held: Limit<u64>,
    /// The most requests that run at once.
    pub most_running: Limit<u64>,
    /// The largest body that is read.
    pub body_most: Bytes,
    /// How long an upstream may take to begin its answer.
    pub begin_within: Span,
    /// The headers that tell who calls.
    pub identity_headers: Vec<String>,
    /// The namespaces of the metadata that tells who calls.
    pub identity_namespaces: Vec<String>,
}

/// Holds a configuration against what is expected of it. `file` is the name that findings are reported under.
///
/// # Errors
/// When the text is neither YAML nor JSON, or is none of the three forms.
pub fn check(file: &str, text: &str, expected: &Expected) -> Result<Report, Mistakes> {
    let document = Document::read(file, text)?;
    let config = Config::read(file, &document)?;
    let mut report = Report::of(file);
    let mut uses = cluster::Uses::default();
    for manager in config.managers() {
        chain::check(&config, &manager, expected, &mut uses, &mut report);
    }
    cluster::check(&config, &uses, expected, &mut report);
    report.sort();
    Ok(report)
}
