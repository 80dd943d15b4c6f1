//! What is in a file: listeners, routes, clusters and filters delivered on their own, whichever form they come in.
//!
//! | form | told by | where things are |
//! |---|---|---|
//! | bootstrap | `static_resources` or `dynamic_resources` | in it |
//! | config dump | `configs` | in the dump of each kind; static ones also in the bootstrap's, which is then left out |
//! | xDS file | `resources` | in the list |

use std::collections::BTreeMap;

use crate::yaml::{Document, Mistake, Mistakes, Position};

use super::part::Part;

/// The type of the filter that serves HTTP.
const MANAGER: &str = "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";

/// What concerns us of a configuration.
#[derive(Debug)]
pub(super) struct Config<'document> {
    root: Part<'document>,
    listeners: Vec<Part<'document>>,
    clusters: BTreeMap<&'document str, Part<'document>>,
    routes: BTreeMap<&'document str, Part<'document>>,
    /// Filters delivered on their own, by name.
    filters: BTreeMap<&'document str, Part<'document>>,
    /// Where clusters are whose endpoints are delivered on their own.
    endpoints: BTreeMap<&'document str, Part<'document>>,
    /// Whether what is not here may be elsewhere.
    is_partial: bool,
}

/// One filter that serves HTTP, and the listener it stands in.
#[derive(Debug)]
pub(super) struct Manager<'document> {
    pub(super) listener: Part<'document>,
    pub(super) config: Part<'document>,
}

impl<'document> Config<'document> {
    /// Reads what is there.
    ///
    /// # Errors
    /// When the document is none of the forms.
    pub(super) fn read(file: &str, document: &'document Document) -> Result<Self, Mistakes> {
        let root = Part::root(document);
        let mut config = Self {
            root: root.clone(),
            listeners: Vec::new(),
            clusters: BTreeMap::new(),
            routes: BTreeMap::new(),
            filters: BTreeMap::new(),
            endpoints: BTreeMap::new(),
            is_partial: false,
        };
        if root.get("configs").is_there() {
            config.dump(&root.get("configs"));
        } else if root.get("resources").is_there() {
            config.is_partial = true;
            root.get("resources").items().iter().for_each(|resource| config.resource(resource));
        } else if root.get("static_resources").is_there() || root.get("dynamic_resources").is_there() {
            config.bootstrap(&root);
        } else {
            let message = "is no configuration of Envoy: it has neither `static_resources` (a bootstrap file), nor \
                           `configs` (what `/config_dump` of Envoy's admin address says), nor `resources` (an xDS file)";
            let (position, path) = (Position::START, String::new());
            return Err(Mistake { file: file.into(), position, path, message: message.into() }.into());
        }
        Ok(config)
    }

    fn bootstrap(&mut self, bootstrap: &Part<'document>) {
        let resources = bootstrap.get("static_resources");
        self.listeners.extend(resources.get("listeners").items());
        resources.get("clusters").items().into_iter().for_each(|cluster| self.cluster(cluster));
        self.is_partial = bootstrap.get("dynamic_resources").is_there();
    }

    fn dump(&mut self, configs: &Part<'document>) {
        let dumps: Vec<_> = configs.items().iter().map(Part::message).collect();
        let (mut has_listeners, mut has_clusters) = (false, false);
        for (kind, dump) in &dumps {
            let each = |list: &str, field: &str| -> Vec<Part<'document>> {
                dump.get(list).items().iter().map(|item| item.at(field)).filter(Part::is_there).collect()
            };
            let kind = kind.rsplit('.').next().unwrap_or_default();
            let lists: &[(&str, &str)] = match kind {
                "ListenersConfigDump" => &[
                    ("static_listeners", "listener"),
                    ("dynamic_listeners", "active_state.listener"),
                    ("dynamic_listeners", "warming_state.listener"),
                ],
                "ClustersConfigDump" => &[
                    ("static_clusters", "cluster"),
                    ("dynamic_active_clusters", "cluster"),
                    ("dynamic_warming_clusters", "cluster"),
                ],
                "RoutesConfigDump" => {
                    &[("static_route_configs", "route_config"), ("dynamic_route_configs", "route_config")]
                }
                "EcdsConfigDump" => &[("ecds_filters", "ecds_filter")],
                "EndpointsConfigDump" => {
                    &[("static_endpoint_configs", "endpoint_config"), ("dynamic_endpoint_configs", "endpoint_config")]
                }
                _ => &[],
            };
            has_listeners |= kind == "ListenersConfigDump";
            has_clusters |= kind == "ClustersConfigDump";
            for (list, field) in lists {
                each(list, field).iter().for_each(|resource| self.resource(resource));
            }
        }
        self.is_partial = !has_clusters;
        for (kind, dump) in dumps.iter().filter(|_| !has_listeners) {
            if kind.ends_with("BootstrapConfigDump") {
                self.bootstrap(&dump.get("bootstrap"));
            }
        }
    }

    fn resource(&mut self, resource: &Part<'document>) {
        let (kind, message) = resource.message();
        match kind.rsplit('.').next().unwrap_or_default() {
            "Listener" => self.listeners.push(message),
            "Cluster" => self.cluster(message),
            "RouteConfiguration" => drop(self.routes.insert(message.get("name").text(), message)),
            "TypedExtensionConfig" => {
                self.filters.insert(message.get("name").text(), message.get("typed_config"));
            }
            "ClusterLoadAssignment" => drop(self.endpoints.insert(message.get("cluster_name").text(), message)),
            _ => {}
        }
    }

    fn cluster(&mut self, cluster: Part<'document>) {
        self.clusters.insert(cluster.get("name").text(), cluster);
    }

    /// The whole file.
    pub(super) fn root(&self) -> &Part<'document> {
        &self.root
    }

    /// Whether what is not in the file may come from elsewhere.
    pub(super) fn is_partial(&self) -> bool {
        self.is_partial
    }

    pub(super) fn cluster_of(&self, name: &str) -> Option<&Part<'document>> {
        self.clusters.get(name)
    }

    pub(super) fn clusters(&self) -> impl Iterator<Item = &Part<'document>> {
        self.clusters.values()
    }

    /// Where a cluster's endpoints are, in the cluster or on their own.
    pub(super) fn endpoints_of(&self, name: &str) -> Vec<Part<'document>> {
        let own = self.clusters.get(name).map(|cluster| cluster.get("load_assignment"));
        let service = self.clusters.get(name).map(|cluster| cluster.at("eds_cluster_config.service_name").text());
        let delivered = self.endpoints.get(service.filter(|name| !name.is_empty()).unwrap_or(name)).cloned();
        let groups = own.into_iter().chain(delivered).flat_map(|load| load.get("endpoints").items());
        let endpoints = groups.flat_map(|group| group.get("lb_endpoints").items());
        endpoints.map(|endpoint| endpoint.at("endpoint.address.socket_address")).collect()
    }

    /// The routes of a connection manager; nothing where they are not in the file.
    pub(super) fn routes_of(&self, manager: &Part<'document>) -> Option<Part<'document>> {
        let inline = manager.get("route_config");
        if inline.is_there() {
            return Some(inline);
        }
        self.routes.get(manager.at("rds.route_config_name").text()).cloned()
    }

    /// A filter's configuration: its own, or the one delivered under its name.
    pub(super) fn filter(&self, filter: &Part<'document>) -> (&'document str, Part<'document>) {
        let own = filter.get("typed_config");
        let config = if own.is_there() {
            own
        } else {
            let delivered = self.filters.get(filter.get("name").text()).cloned();
            delivered.unwrap_or_else(|| filter.at("config_discovery.default_config"))
        };
        let (kind, message) = config.message();
        if kind.ends_with(".ExtensionWithMatcher") {
            return message.at("extension_config.typed_config").message();
        }
        (kind, message)
    }

    /// Every connection manager of every listener.
    pub(super) fn managers(&self) -> Vec<Manager<'document>> {
        let mut managers = Vec::new();
        for listener in &self.listeners {
            let chains =
                listener.get("filter_chains").items().into_iter().chain([listener.get("default_filter_chain")]);
            for filter in chains.flat_map(|chain| chain.get("filters").items()) {
                let (kind, config) = filter.get("typed_config").message();
                if kind == MANAGER {
                    managers.push(Manager { listener: listener.clone(), config });
                }
            }
        }
        managers
    }
}
