//! One door with everything around it, and a table of cases that is played on it.
//!
//! A case is written once and says nothing of its door, or asks the stage where the two truly differ. Cases of one
//! setup share one gateway, and one Envoy: each is checked to leave nothing behind, and what it settled is the
//! difference to what stood in the books before it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::pin::Pin;

use serde_json::json;
use tallygate::units::VirtualTokens;

use super::{Client, Config, Exchange, Front, Gateway, Setup, Upstream, layered};

/// Through which door.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// The reverse proxy.
    Proxy,
    /// An axum server with the layer in front of a client of its own.
    Layer,
    /// A real Envoy that asks over ext_proc.
    Envoy,
    /// A real Envoy that asks over ext_proc and sends bodies only where it is told to.
    BodyFree,
    /// A real Envoy that asks over ext_authz, and tells of the end in its access log.
    Authz,
}

impl Way {
    /// What is set up in front of the gateway, if anything.
    pub(crate) fn config(self) -> Option<Config> {
        match self {
            Self::Proxy | Self::Layer => None,
            Self::Envoy => Some(Config::ExtProc),
            Self::BodyFree => Some(Config::BodyFree),
            Self::Authz => Some(Config::Authz),
        }
    }
}

/// A gateway, its upstream, and the way in.
pub(crate) struct Stage {
    pub(crate) way: Way,
    pub(crate) gateway: Gateway,
    pub(crate) upstream: Upstream,
    front: Option<Front>,
    layered: Option<SocketAddr>,
    before: (VirtualTokens, BTreeMap<String, u64>),
}

/// A case of a table.
pub(crate) type Case = for<'a> fn(&'a mut Stage) -> Pin<Box<dyn Future<Output = ()> + 'a>>;

/// A table of named cases from the names of their functions.
macro_rules! cases {
    ($($name:ident),* $(,)?) => {{
        let cases: &[(&str, crate::door::Case)] = &[$((stringify!($name), |stage| Box::pin($name(stage)))),*];
        cases
    }};
}

/// Tests that play a table of cases on a setup, one for each way in.
macro_rules! both_doors {
    ($table:ident, $setup:expr, [$($name:ident),* $(,)?]) => {
        mod $table {
            use super::*;

            #[tokio::test]
            async fn by_proxy() {
                crate::door::play(crate::door::Way::Proxy, $setup, cases![$($name),*]).await;
            }

            #[tokio::test]
            async fn by_layer() {
                crate::door::play(crate::door::Way::Layer, $setup, cases![$($name),*]).await;
            }

            #[tokio::test]
            async fn by_envoy() {
                crate::door::play(crate::door::Way::Envoy, $setup, cases![$($name),*]).await;
            }

            #[tokio::test]
            async fn by_envoy_without_bodies() {
                crate::door::play(crate::door::Way::BodyFree, $setup, cases![$($name),*]).await;
            }
        }
    };
}

/// The same, through ext_authz too: for what a door decides, and not for what it can see of an answer or change about it.
macro_rules! every_door {
    ($table:ident, $setup:expr, [$($name:ident),* $(,)?]) => {
        mod $table {
            use super::*;

            #[tokio::test]
            async fn by_proxy() {
                crate::door::play(crate::door::Way::Proxy, $setup, cases![$($name),*]).await;
            }

            #[tokio::test]
            async fn by_envoy() {
                crate::door::play(crate::door::Way::Envoy, $setup, cases![$($name),*]).await;
            }

            #[tokio::test]
            async fn by_layer() {
                crate::door::play(crate::door::Way::Layer, $setup, cases![$($name),*]).await;
            }

            #[tokio::test]
            async fn by_envoy_without_bodies() {
                crate::door::play(crate::door::Way::BodyFree, $setup, cases![$($name),*]).await;
            }

            #[tokio::test]
            async fn by_ext_authz() {
                crate::door::play(crate::door::Way::Authz, $setup, cases![$($name),*]).await;
            }
        }
    };
}

pub(crate) use {both_doors, cases, every_door};

/// Plays cases one after the other on one stage.
pub(crate) async fn play(way: Way, setup: fn(Way) -> Setup, cases: &[(&str, Case)]) {
    let Some(mut stage) = Stage::set(way, setup(way)).await else { return };
    for (name, case) in cases {
        println!("{way:?}: {name}");
        case(&mut stage).await;
        assert!(stage.upstream.is_untouched(), "{name}: nothing more went upstream");
        stage.ended().await;
    }
}

impl Stage {
    /// Sets it; nothing where there is no Envoy and one is needed.
    pub(crate) async fn set(way: Way, setup: Setup) -> Option<Self> {
        let upstream = Upstream::start().await;
        let door = setup.door.clone();
        let gateway = setup.start(&upstream.url()).await;
        let (mut front, mut layer) = (None, None);
        match way.config() {
            None if way == Way::Layer => layer = Some(layered(gateway.gate(), door, upstream.address()).await),
            None => {}
            Some(config) => front = Some(Front::of(config, &gateway, upstream.address()).await?),
        }
        Some(Self { way, gateway, upstream, front, layered: layer, before: (VirtualTokens::ZERO, BTreeMap::new()) })
    }

    /// Where clients connect to.
    pub(crate) fn address(&self) -> SocketAddr {
        let front = self.front.as_ref().map(Front::address);
        front.or(self.layered).unwrap_or(self.gateway.proxy())
    }

    /// Connects a client.
    pub(crate) async fn client(&self) -> Client {
        Client::connect(self.address()).await
    }

    /// A client whose streamed chat has reached the upstream and got these events.
    pub(crate) async fn streaming(&mut self, events: &str) -> (Client, Exchange) {
        let mut client = self.client().await;
        client.chat("", &crate::doors::chat(true)).await;
        let mut exchange = self.upstream.next().await;
        exchange.begin().await;
        exchange.chunk(events).await;
        client.read_until("one two three").await;
        (client, exchange)
    }

    /// Waits until nothing runs, checks that the books balance exactly, and returns what was settled since the last
    /// time, and how each request ended.
    pub(crate) async fn ended(&mut self) -> (VirtualTokens, BTreeMap<String, u64>) {
        self.gateway.until_queued(0).await;
        let now = self.gateway.ended().await;
        let (settled, outcomes) = std::mem::replace(&mut self.before, now.clone());
        let new = |(outcome, count): (String, u64)| {
            let more = count - outcomes.get(&outcome).copied().unwrap_or(0);
            (more > 0).then_some((outcome, more))
        };
        (now.0 - settled, now.1.into_iter().filter_map(new).collect())
    }

    /// Checks what Envoy's own record says of a decision, where there is an Envoy.
    pub(crate) async fn recorded(&self, decision: &str, key: &str, expected: serde_json::Value) {
        let Some(front) = &self.front else { return };
        let record = front.record(decision).await;
        match (self.way, key) {
            // Its details are always these; the reason stands beside them.
            (Way::Authz, "details") => {
                let reason = format!("tallygate_{}", record["reason"].as_str().unwrap_or_default());
                assert_eq!((&record[key], json!(reason)), (&json!("ext_authz_denied"), expected), "{record}");
            }
            _ => assert_eq!(record[key], expected, "{record}"),
        }
    }

    /// What the input of a request that is decided by Envoy's record is estimated at: a token for four bytes of its body.
    /// Everywhere else it is counted as this much.
    pub(crate) fn input(&self, body: &serde_json::Value, counted: u64) -> u64 {
        if self.way == Way::BodyFree { (body.to_string().len() as u64).div_ceil(4) } else { counted }
    }

    /// Checks a body that passed. Where Envoy's AI protocol manager reads answers it writes their JSON anew, and what is
    /// between the events may be lost.
    pub(crate) fn assert_passed(&self, body: &str, sent: &str) {
        if self.way != Way::BodyFree {
            assert_eq!(body, sent);
            return;
        }
        let parts = |text: &str| -> Vec<Result<serde_json::Value, String>> {
            let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with(':'));
            let lines = lines.map(|line| line.strip_prefix("data: ").unwrap_or(line));
            lines.map(|line| serde_json::from_str(line).map_err(|_| line.to_owned())).collect()
        };
        assert_eq!(parts(body), parts(sent));
    }

    /// One of two, by the door.
    pub(crate) fn either<T>(&self, by_proxy: T, by_envoy: T) -> T {
        match self.way {
            Way::Proxy | Way::Layer => by_proxy,
            Way::Envoy | Way::BodyFree | Way::Authz => by_envoy,
        }
    }
}
