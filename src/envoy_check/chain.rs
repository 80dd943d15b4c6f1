//! One connection manager: its filters and routes, and which of the filters ask Tallygate.

use super::cluster::{Use, Uses, is_our_address, is_ours};
use super::config::{Config, Manager};
use super::finding::Report;
use super::part::Part;
use super::rules::{ASKED_TWICE, FILTER_DISABLED, NO_WEBSOCKET, ROUTE_DISABLED, ROUTES_ELSEWHERE};
use super::{Expected, ext_authz, ext_proc, order, rate_limit, route};

pub(super) const EXT_PROC: &str = "envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor";
pub(super) const EXT_AUTHZ: &str = "envoy.extensions.filters.http.ext_authz.v3.ExtAuthz";
const RATE_LIMIT: &str = "envoy.extensions.filters.http.ratelimit.v3.RateLimit";

/// One of a manager's filters.
#[derive(Debug)]
pub(super) struct Filter<'document> {
    pub(super) name: &'document str,
    /// The type of its configuration.
    pub(super) kind: &'document str,
    pub(super) config: Part<'document>,
    /// Its entry in the list.
    pub(super) entry: Part<'document>,
    /// How it asks Tallygate, if it does.
    pub(super) asks: Option<Ask>,
}

/// How a filter asks Tallygate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ask {
    /// External processing that decides.
    Process,
    /// External processing that only watches.
    Watch,
    /// External authorization.
    Authorize,
    /// The rate limit service.
    Limit,
}

impl Ask {
    /// Whether a request is held while it is asked for.
    pub(super) fn holds(self) -> bool {
        matches!(self, Self::Process | Self::Authorize)
    }
}

impl Filter<'_> {
    /// Whether it is asked on a route. Control planes list filters as off, and turn them on by route.
    pub(super) fn is_on(&self, route: &Route<'_>) -> bool {
        match route.exception(self.name) {
            Some(Exception::Off(_)) => false,
            Some(Exception::On | Exception::Changed(_)) => true,
            None => !self.entry.get("disabled").is_on(),
        }
    }
}

/// A connection manager, taken apart.
#[derive(Debug)]
pub(super) struct Chain<'document> {
    pub(super) listener: Part<'document>,
    pub(super) manager: Part<'document>,
    pub(super) filters: Vec<Filter<'document>>,
    /// The routes, where they are in the file.
    pub(super) routes: Option<Vec<Route<'document>>>,
}

/// A route, and what it stands in.
#[derive(Clone, Debug)]
pub(super) struct Route<'document> {
    pub(super) config: Part<'document>,
    pub(super) host: Part<'document>,
    pub(super) route: Part<'document>,
}

/// What a route says of a filter.
#[derive(Clone, Debug)]
pub(super) enum Exception<'document> {
    /// It is off.
    Off(Part<'document>),
    /// It is on, as in the list.
    On,
    /// It is changed.
    Changed(Part<'document>),
}

impl<'document> Route<'document> {
    /// What concerns a filter, where something does, from the narrowest to the widest place.
    pub(super) fn exception(&self, filter: &str) -> Option<Exception<'document>> {
        let split = self.route.at("route.weighted_clusters.clusters").items();
        let places = split.iter().chain([&self.route, &self.host, &self.config]);
        for place in places {
            let configs = place.get("typed_per_filter_config").entries();
            let Some((_, any)) = configs.into_iter().find(|(name, _)| *name == filter) else { continue };
            let (mut kind, mut message) = any.message();
            if kind.ends_with(".FilterConfig") {
                if message.get("disabled").is_on() {
                    return Some(Exception::Off(message.get("disabled")));
                }
                (kind, message) = message.get("config").message();
            }
            if kind.is_empty() {
                return Some(Exception::On);
            }
            let off = message.get("disabled");
            return Some(if off.is_on() { Exception::Off(off) } else { Exception::Changed(message) });
        }
        None
    }

    /// Whether requests go on to an upstream.
    pub(super) fn is_forwarding(&self) -> bool {
        self.route.get("route").is_there()
    }
}

/// Checks one connection manager.
pub(super) fn check<'document>(
    config: &Config<'document>,
    manager: &Manager<'document>,
    expected: &Expected,
    uses: &mut Uses<'document>,
    report: &mut Report,
) {
    let chain = take_apart(config, manager, expected);
    let deciding: Vec<&Filter<'_>> =
        chain.filters.iter().filter(|filter| filter.asks.is_some_and(Ask::holds)).collect();
    let together = |one: &Filter<'_>, other: &Filter<'_>| match &chain.routes {
        Some(routes) => routes.iter().any(|route| route.is_forwarding() && one.is_on(route) && other.is_on(route)),
        None => true,
    };
    for (index, again) in deciding.iter().enumerate() {
        if !deciding[..index].iter().any(|first| together(first, again)) {
            continue;
        }
        report.add(&ASKED_TWICE, &again.entry, format!("{} decides too", again.name));
    }
    if let (Some(_), None) = (deciding.first(), websocket(&chain)) {
        report.add(&NO_WEBSOCKET, &chain.manager.get("upgrade_configs"), "websocket is not among the upgrades");
    }
    for (index, filter) in chain.filters.iter().enumerate() {
        let Some(ask) = filter.asks else { continue };
        let turned_on = chain.routes.iter().flatten().any(|route| route.is_forwarding() && filter.is_on(route));
        if filter.entry.get("disabled").is_on() && !turned_on {
            report.add(&FILTER_DISABLED, &filter.entry.get("disabled"), "the filter that asks Tallygate is off");
        }
        if chain.routes.is_none() {
            let part = chain.manager.get("rds");
            report.add(&ROUTES_ELSEWHERE, &part, "the routes of this listener are not in the file");
        }
        order::check(&chain, index, expected, report);
        match ask {
            Ask::Process | Ask::Watch => ext_proc::check(config, &chain, index, expected, report),
            Ask::Authorize => ext_authz::check(config, &chain, index, expected, report),
            Ask::Limit => rate_limit::check(&chain, filter, report),
        }
        note_uses(filter, ask, &chain, uses, report);
        if ask != Ask::Limit {
            route::check(config, &chain, filter, ask, expected, uses, report);
        }
    }
}

/// Whether a WebSocket request comes as far as the filters.
fn websocket<'document>(chain: &Chain<'document>) -> Option<Part<'document>> {
    let routes = chain.routes.iter().flatten().map(|route| route.route.at("route.upgrade_configs"));
    let lists = [chain.manager.get("upgrade_configs")].into_iter().chain(routes);
    lists.flat_map(|list| list.items()).find(|one| one.get("upgrade_type").text().eq_ignore_ascii_case("websocket"))
}

fn take_apart<'document>(
    config: &Config<'document>,
    manager: &Manager<'document>,
    expected: &Expected,
) -> Chain<'document> {
    let Manager { listener, config: manager } = manager;
    let filters = manager.get("http_filters").items().into_iter().map(|entry| {
        let (kind, message) = config.filter(&entry);
        let asks = asks(config, kind, &message, expected);
        Filter { name: entry.get("name").text(), kind, config: message, entry, asks }
    });
    let routes = config.routes_of(manager).map(|routes| {
        let hosts = routes.get("virtual_hosts").items().into_iter();
        let each = hosts.flat_map(|host| {
            let of_host = host.get("routes").items().into_iter();
            of_host.map(move |route| (host.clone(), route)).collect::<Vec<_>>()
        });
        each.map(|(host, route)| Route { config: routes.clone(), host, route }).collect()
    });
    Chain { listener: listener.clone(), manager: manager.clone(), filters: filters.collect(), routes }
}

/// The service a filter asks, as `GrpcService`.
pub(super) fn service<'document>(kind: &str, config: &Part<'document>) -> Option<Part<'document>> {
    match kind {
        EXT_PROC | EXT_AUTHZ => Some(config.get("grpc_service")),
        RATE_LIMIT => Some(config.at("rate_limit_service.grpc_service")),
        _ => None,
    }
}

/// How a filter of a type and configuration asks Tallygate, if it does.
pub(super) fn asks(config: &Config<'_>, kind: &str, filter: &Part<'_>, expected: &Expected) -> Option<Ask> {
    let http = filter.at("http_service.server_uri.cluster");
    let over_http = kind == EXT_AUTHZ && http.is_there() && is_ours(config, http.text(), expected);
    let over_grpc = service(kind, filter).is_some_and(|service| {
        let target = service.at("google_grpc.target_uri");
        is_ours(config, service.at("envoy_grpc.cluster_name").text(), expected)
            || (target.is_there() && is_our_address(target.text(), expected))
    });
    if !over_grpc && !over_http {
        return None;
    }
    Some(match kind {
        EXT_PROC if filter.get("observability_mode").is_on() => Ask::Watch,
        EXT_PROC => Ask::Process,
        EXT_AUTHZ => Ask::Authorize,
        _ => Ask::Limit,
    })
}

/// Notes which cluster a filter asks, in general and on routes, and where it is off.
fn note_uses<'document>(
    filter: &Filter<'document>,
    ask: Ask,
    chain: &Chain<'document>,
    uses: &mut Uses<'document>,
    report: &mut Report,
) {
    let how = if ask == Ask::Limit { Use::Briefly } else { Use::ForLong };
    if let Some(service) = service(filter.kind, &filter.config) {
        uses.note(&service, how, report);
    }
    for route in chain.routes.iter().flatten() {
        match route.exception(filter.name) {
            Some(Exception::Off(part)) if route.is_forwarding() => {
                report.add(&ROUTE_DISABLED, &part, format!("{} is off here", filter.name));
            }
            Some(Exception::Changed(message)) => {
                for service in [message.at("overrides.grpc_service"), message.at("check_settings.grpc_service")] {
                    if service.is_there() {
                        uses.note(&service, how, report);
                    }
                }
            }
            Some(Exception::Off(_) | Exception::On) | None => {}
        }
    }
}
