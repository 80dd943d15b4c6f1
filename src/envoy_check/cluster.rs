//! Clusters: which are Tallygate's, whether they hold as many streams as there are requests, and whether an upstream's
//! own bound comes before the policy's window.

use std::collections::BTreeMap;

use crate::units::{Limit, Span};

use super::Expected;
use super::chain::Ask;
use super::config::Config;
use super::ext_proc;
use super::finding::Report;
use super::part::Part;
use super::rules::{
    CIRCUIT_BREAKER, GOOGLE_GRPC, HEALTH_SERVICE, NO_CLUSTER, NO_HEALTH_CHECK, NO_KEEPALIVE, NOT_ASKED, NOT_HTTP2,
    STREAMS_CUT, TRAILERS_DROPPED, UPSTREAM_BREAKER,
};

/// Envoy's bound on each of connections, waiting and running requests where none is set.
const BREAKER_DEFAULT: u64 = 1024;
const HTTP_OPTIONS: &str = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";
/// What Tallygate says its health by.
pub(super) const SERVICES: [&str; 6] = [
    "",
    "envoy.service.ext_proc.v3.ExternalProcessor",
    "envoy.service.auth.v3.Authorization",
    "envoy.service.accesslog.v3.AccessLogService",
    "envoy.service.ratelimit.v3.RateLimitService",
    "tallygate.v1.Admission",
];

/// For how long a cluster of ours is asked about a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Use {
    /// A short question.
    Briefly,
    /// A stream, or a check that is held.
    ForLong,
}

/// Which clusters the filters that ask us lead to.
#[derive(Debug, Default)]
pub(super) struct Uses<'document> {
    is_asked: bool,
    ours: BTreeMap<&'document str, (Use, Part<'document>)>,
    upstreams: BTreeMap<&'document str, (Part<'document>, Ask)>,
}

impl<'document> Uses<'document> {
    /// Notes that a service of ours is asked.
    pub(super) fn note(&mut self, service: &Part<'document>, how: Use, report: &mut Report) {
        self.is_asked = true;
        let target = service.at("google_grpc.target_uri");
        if target.is_there() {
            report.add(&GOOGLE_GRPC, &target, "google_grpc is used");
        }
        let named = service.at("envoy_grpc.cluster_name");
        if named.is_there() {
            let known = self.ours.entry(named.text()).or_insert((how, named));
            known.0 = known.0.max(how);
        }
    }

    /// Notes where a request that we let in goes.
    pub(super) fn note_upstream(&mut self, name: &'document str, named: Part<'document>, ask: Ask) {
        self.upstreams.entry(name).or_insert((named, ask));
    }
}

/// What names and addresses of ours contain.
const NAME: &str = "tallygate";

/// Whether an address of a client that knows no clusters is ours.
pub(super) fn is_our_address(address: &str, expected: &Expected) -> bool {
    let port = address.rsplit(':').next().and_then(|port| port.parse().ok());
    address.to_ascii_lowercase().contains(NAME) || port == Some(expected.port)
}

/// Whether a cluster is told by its name or an endpoint's.
fn is_named(config: &Config<'_>, name: &str) -> bool {
    let has = |text: &str| text.to_ascii_lowercase().contains(NAME);
    has(name) || config.endpoints_of(name).iter().any(|endpoint| has(endpoint.get("address").text()))
}

/// Whether some cluster is told by name. A port, which others use too, is then no sign.
fn is_anything_named(config: &Config<'_>) -> bool {
    config.clusters().any(|cluster| is_named(config, cluster.get("name").text()))
}

/// Whether a cluster is ours: one of those listed, or else told by its name or address, or else by the port.
pub(super) fn is_ours(config: &Config<'_>, name: &str, expected: &Expected) -> bool {
    if name.is_empty() || !expected.clusters.is_empty() {
        return expected.clusters.iter().any(|ours| ours == name);
    }
    let told_by_port = |address: &Part<'_>| address.get("port_value").number() == Some(expected.port.into());
    is_named(config, name) || (config.endpoints_of(name).iter().any(told_by_port) && !is_anything_named(config))
}

/// How a cluster speaks HTTP.
pub(super) fn http_options<'document>(cluster: &Part<'document>) -> Part<'document> {
    let options = cluster.get("typed_extension_protocol_options");
    let known = options.entries().into_iter().find(|(name, _)| *name == HTTP_OPTIONS);
    known.map_or(options, |(_, options)| options)
}

fn http2_options<'document>(cluster: &Part<'document>) -> Option<Part<'document>> {
    let options = http_options(cluster);
    let ways = ["explicit_http_config.http2_protocol_options", "auto_config.http2_protocol_options"];
    let new = ways.iter().map(|way| options.at(way)).find(Part::is_there);
    new.or_else(|| Some(cluster.get("http2_protocol_options")).filter(Part::is_there))
}

/// A bound of the circuit breaker that requests of usual priority meet.
fn breaker<'document>(cluster: &Part<'document>, field: &str) -> (Part<'document>, u64) {
    let thresholds = cluster.at("circuit_breakers.thresholds");
    let usual = |one: &Part<'_>| matches!(one.get("priority").one_of(&["DEFAULT", "HIGH"]), None | Some("DEFAULT"));
    let place = thresholds.items().into_iter().find(usual).map_or(thresholds, |one| one.get(field));
    let most = place.number().unwrap_or(BREAKER_DEFAULT);
    (place, most)
}

/// Checks the clusters that are used.
pub(super) fn check(config: &Config<'_>, uses: &Uses<'_>, expected: &Expected, report: &mut Report) {
    if !uses.is_asked {
        report.add(&NOT_ASKED, config.root(), "no filter asks Tallygate");
    }
    ext_proc::in_upstreams(config, expected, report);
    for (name, (how, named)) in &uses.ours {
        match config.cluster_of(name) {
            Some(cluster) => ours(config, name, cluster, *how, expected, report),
            None if config.is_partial() => {}
            None => report.add(&NO_CLUSTER, named, format!("there is no cluster {name:?}")),
        }
    }
    for (name, (named, ask)) in &uses.upstreams {
        match config.cluster_of(name) {
            Some(cluster) => upstream(cluster, *ask, expected, report),
            None if config.is_partial() => {}
            None => report.add(&NO_CLUSTER, named, format!("there is no cluster {name:?}")),
        }
    }
}

fn ours(config: &Config<'_>, name: &str, cluster: &Part<'_>, how: Use, expected: &Expected, report: &mut Report) {
    if how == Use::ForLong {
        let needed = match expected.most_held {
            Limit::AtMost(most) => most,
            Limit::Unlimited => BREAKER_DEFAULT + 1,
        };
        for field in ["max_requests", "max_pending_requests"] {
            let (part, most) = breaker(cluster, field);
            if most < needed {
                let is = if part.is_there() && part.number().is_some() { "is" } else { "is not set, which means" };
                let found = format!("{field} {is} {most}, and {} requests may wait and run", held(expected));
                report.add(&CIRCUIT_BREAKER, &part, found);
            }
        }
        let most = http_options(cluster).at("common_http_protocol_options.max_stream_duration");
        if most.span().is_some_and(|most| most > Span::ZERO) {
            report.add(&STREAMS_CUT, &most, format!("is {}", most.text()));
        }
    }
    match http2_options(cluster) {
        None => report.add(&NOT_HTTP2, &http_options(cluster), format!("cluster {name} speaks HTTP/1.1")),
        Some(options) => {
            let tcp = cluster.at("upstream_connection_options.tcp_keepalive").is_there();
            if !tcp && !options.get("connection_keepalive").is_there() {
                report.add(&NO_KEEPALIVE, &options.get("connection_keepalive"), "is not set");
            }
        }
    }
    let checks = cluster.get("health_checks");
    if checks.items().is_empty() {
        let endpoints = config.endpoints_of(name).len();
        let where_to =
            if endpoints == 1 { "one endpoint".into() } else { format!("{endpoints} endpoints in this file") };
        report.add(&NO_HEALTH_CHECK, &checks, format!("is not set ({where_to})"));
    }
    for check in checks.items() {
        let service = check.at("grpc_health_check.service_name");
        if service.word().is_some_and(|service| !SERVICES.contains(&service)) {
            report.add(&HEALTH_SERVICE, &service, format!("is {:?}", service.text()));
        }
    }
}

fn held(expected: &Expected) -> String {
    match expected.most_held {
        Limit::AtMost(most) => most.to_string(),
        Limit::Unlimited => "any number of".to_owned(),
    }
}

fn upstream(cluster: &Part<'_>, ask: Ask, expected: &Expected, report: &mut Report) {
    let needed = match expected.most_running {
        Limit::AtMost(most) => most,
        Limit::Unlimited => BREAKER_DEFAULT + 1,
    };
    let bounds =
        ["max_requests", "max_connections", "max_pending_requests"].map(|field| (field, breaker(cluster, field)));
    let tightest = bounds.iter().filter(|_| ask.holds()).min_by_key(|(_, (_, most))| *most);
    if let Some((field, (part, most))) = tightest.filter(|(_, (_, most))| *most < needed) {
        let runs = match expected.most_running {
            Limit::AtMost(most) => format!("the policy lets {most} requests run"),
            Limit::Unlimited => "the policy bounds no number of requests that run".to_owned(),
        };
        report.add(&UPSTREAM_BREAKER, part, format!("{field} is {most}, and {runs}"));
    }
    let options = http_options(cluster);
    let trailers = options.at("explicit_http_config.http_protocol_options.enable_trailers");
    if http2_options(cluster).is_none() && !trailers.is_on() && matches!(ask, Ask::Process | Ask::Watch) {
        report.add(&TRAILERS_DROPPED, &trailers, "is off");
    }
}
