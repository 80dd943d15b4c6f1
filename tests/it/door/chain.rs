//! A gateway, its upstream, a real Envoy with one of the shipped configurations, and what that needs beside: tokens for
//! the filter that verifies them, and an endpoint picker.

use std::net::SocketAddr;

use serde_json::Value;

use super::{Client, Config, Front, Gateway, Picker, Setup, Upstream, token};

/// The header of somebody whose token says this organisation.
pub(crate) fn bearer(org: &str) -> String {
    format!("authorization: Bearer {}\r\n", token::token(org))
}

/// The shipped configuration, with our key and the picker's port where it has them.
fn edited(config: Config, text: &str, picker: &Picker) -> String {
    if config != Config::Picker {
        return text.to_owned();
    }
    let keyed = token::with_key(text).expect("there is a key");
    keyed.replace("port_value: 9002}", &format!("port_value: {}}}", picker.address().port()))
}

/// All of it.
pub(crate) struct Chain {
    pub(crate) config: Config,
    pub(crate) gateway: Gateway,
    pub(crate) upstream: Upstream,
    pub(crate) picker: Picker,
    pub(crate) front: Front,
}

impl Chain {
    /// Sets it, with a changed configuration; nothing where there is no Envoy.
    pub(crate) async fn set(
        config: Config,
        setup: Setup,
        edit: impl FnOnce(String, &Picker) -> String,
    ) -> Option<Self> {
        let upstream = Upstream::start().await;
        let gateway = setup.start(&upstream.url()).await;
        let picker = Picker::start(upstream.address()).await;
        let front = Self::front(config, gateway.app.grpc(), &upstream, &picker, edit).await?;
        Some(Self { config, gateway, upstream, picker, front })
    }

    /// Another Envoy in its place.
    pub(crate) async fn front(
        config: Config,
        grpc: SocketAddr,
        upstream: &Upstream,
        picker: &Picker,
        edit: impl FnOnce(String, &Picker) -> String,
    ) -> Option<Front> {
        Front::asking(config, grpc, upstream.address(), |text| edit(edited(config, &text, picker), picker)).await
    }

    pub(crate) async fn client(&self) -> Client {
        self.front.client().await
    }

    /// The headers of somebody, as this configuration learns who calls.
    pub(crate) fn headers(&self, tenant: &str) -> String {
        caller(self.config, tenant)
    }

    /// What is remembered of a decision.
    pub(crate) async fn decision(&self, id: &str) -> Value {
        self.gateway.admin().await.get(&format!("/v1/decisions/{id}"), "").await.json()
    }
}

/// The headers of somebody, as a configuration learns who calls.
pub(crate) fn caller(config: Config, tenant: &str) -> String {
    if config == Config::Picker { bearer(tenant) } else { format!("x-tenant-id: {tenant}\r\n") }
}

/// A policy's rules for who calls, for every configuration.
pub(crate) const IDENTITY: &str = "identity: {tenant: [{metadata: envoy.filters.http.jwt_authn/payload.org}, \
    {header: x-tenant-id}, {fallback: anonymous}], trust: [grpc]}\n";

/// The configuration without bodies with the picker of the other one behind us, and with answers shown, as it must be then.
pub(crate) fn with_picker(config: &str, picker: &Picker) -> String {
    let other = edited(Config::Picker, Config::Picker.text(), picker);
    let part = |from: &str, to: Option<&str>| {
        let rest = &other[other.find(from).unwrap_or_else(|| panic!("there is {from}"))..];
        to.map_or(rest, |to| &rest[..rest.find(to).expect("it ends")]).to_owned()
    };
    let router = "                  - name: envoy.filters.http.router\n";
    let filter = part("                  - name: envoy.filters.http.ext_proc.picker\n", Some(router));
    let cluster = part("    - name: picker\n", None);
    let hidden = "                        response_body_mode: NONE\n";
    assert!(config.contains(router) && config.contains(hidden));
    let shown = config.replace(hidden, &hidden.replace("NONE", "STREAMED"));
    format!("{}\n{cluster}", shown.replace(router, &format!("{filter}{router}")))
}
