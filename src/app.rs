//! The composition root: the only file that knows every room.
//!
//! Builds one gateway from its settings and takes it down again. The order matters: everything that can be wrong is
//! found before anything listens; on the way down newcomers are refused first, and what runs is cut off last.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use anyhow::{Context, anyhow};
use rand::SeedableRng;
use rand::rngs::{StdRng, SysRng};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::costing::Encoding;
use crate::demo::{self, Demo};
use crate::observe::Keep;
use crate::policy::model::{Listener, TenantSource};
use crate::policy::{self, Policy, Written};
use crate::settings::{Door, LedgerKind, ProxyAt, Remember, Settings};
use crate::shell::{self, Gate, Leases, seed};
use crate::sim::EngineSpec;
use crate::store::FileStore;
use crate::units::Span;
use crate::wire::access_log::AccessLog;
use crate::wire::acquire::{self, Acquire};
use crate::wire::admin::{About, Admin, InForce, Token};
use crate::wire::explain::Doors;
use crate::wire::ext_authz::ExtAuthz;
use crate::wire::ext_proc::ExtProc;
use crate::wire::grpc::{self, GoingDown, Services};
use crate::wire::proxy::{Proxy, Upstream};
use crate::wire::rate_limit::RateLimit;
use crate::wire::server;

/// The policy without a file: every key has a default.
const DEFAULT_POLICY: &str = "version: 1\n";

/// The policy of the demo: a window the size of the simulated engine's memory, so that requests wait here, where
/// their order is fair, and not in the engine, where it is not. Whoever tries it from beyond loopback is believed too.
const DEMO_POLICY: &str = "\
version: 1
identity: {trust: [proxy, grpc]}
classes: [{name: standard, rank: 0, max_wait: 10m}]
pools:
  - name: demo
    models: ['*']
    window: {tokens: 10000, requests: 28}
    queue: {requests: 5000, per_tenant_requests: 1000}
";

/// How long answers that were refused by the flush may take to leave.
const LAST_WORDS: Span = Span::from_secs(1);

/// A running gateway.
#[derive(Debug)]
pub struct App {
    gate: Gate,
    leases: Leases,
    doors: Doors,
    proxy: Option<Proxying>,
    grpc: SocketAddr,
    admin: SocketAddr,
    demo: Option<Demo>,
    grace: Span,
    notice: Span,
    grpc_going_down: GoingDown,
    stop_admin: CancellationToken,
    grpc_server: JoinHandle<()>,
    admin_server: JoinHandle<()>,
}

/// The reverse proxy, where there is one.
#[derive(Debug)]
struct Proxying {
    address: SocketAddr,
    /// Each pool and where its requests go.
    upstreams: Vec<(String, String)>,
    stop: CancellationToken,
    server: JoinHandle<()>,
}

/// What the proxy will be: everything about it that can be wrong was found out.
struct ToProxy {
    listener: TcpListener,
    address: SocketAddr,
    upstream: Upstream,
}

impl ToProxy {
    async fn prepare(settings: &Settings, policy: &Policy, demo: Option<&Demo>) -> anyhow::Result<Option<Self>> {
        let ProxyAt::Address(address) = settings.proxy else { return Ok(None) };
        let listener = listen(address, "proxy").await?;
        let address = listener.local_addr()?;
        let default = match demo {
            Some(demo) => Some(format!("http://{}", demo.address()).parse().context("the demo's address")?),
            None => settings.upstream.clone(),
        };
        let upstream = Upstream::new(policy, default.as_ref()).map_err(|error| anyhow!(error))?;
        Ok(Some(Self { listener, address, upstream }))
    }

    fn start(self, gate: &Gate, door: Door) -> Proxying {
        let Self { listener, address, upstream } = self;
        let pools = gate.policy().pools.iter().zip(upstream.addresses());
        let upstreams = pools.map(|(pool, uri)| (pool.name.to_string(), uri.to_string())).collect();
        let stop = CancellationToken::new();
        let proxy = Proxy::new(gate.clone(), upstream, door, address.ip());
        let server = server::serve(listener, stop.clone(), move |request| proxy.handle(request));
        Proxying { address, upstreams, stop, server: tokio::spawn(server) }
    }
}

impl App {
    /// Builds a gateway and starts listening.
    ///
    /// # Errors
    /// When the policy is wrong, a pool has no upstream though there is a proxy, an address cannot be listened on, or the admin API would be
    /// open to others.
    pub async fn start(settings: Settings) -> anyhow::Result<Self> {
        let (policy, written) = load_policy(&settings)?;
        // Loading a tokenizer takes a moment, and the first client should not pay for it.
        let warming = tokio::task::spawn_blocking(|| Encoding::O200k.warm());
        let store = open_ledger(settings.ledger.clone()).await?;
        let grpc_listener = listen(settings.grpc, "gRPC server").await?;
        let admin_listener = listen(settings.admin, "admin API").await?;
        let (grpc, admin) = (grpc_listener.local_addr()?, admin_listener.local_addr()?);
        let demo = start_demo(&settings).await?;
        let proxy = ToProxy::prepare(&settings, &policy, demo.as_ref()).await?;

        let Remember { most, bytes } = settings.decisions;
        let building = Gate::builder(policy).remembering(Keep { most, bytes });
        let gate = match store {
            None => building.start()?,
            Some(store) => building.keeping(Box::new(store)).start()?,
        };
        let token = settings.admin_token.as_ref().map(|secret| Token::new(secret.reveal().trim()));
        let listening = proxy.as_ref().map(|proxy| proxy.address.ip());
        let doors = Doors { proxy: listening, grpc: grpc.ip(), body_most: settings.door.body_most };
        let policy = InForce { path: settings.policy.clone(), written, loaded_at: gate.clock().now() };
        let about = About { policy, doors };
        let admin_api = Admin::new(gate.clone(), about, token, admin.ip())?;
        let leases = Leases::start(&gate, settings.lease_life, chance()?);
        let services = services(&gate, &leases, &settings.door, grpc.ip());
        warming.await.context("loading the tokenizer")?;

        let grpc_going_down = GoingDown::default();
        let stop_admin = CancellationToken::new();
        let grpc_server = grpc::serve(grpc_listener, grpc_going_down.clone(), services);
        let admin_server = server::serve(admin_listener, stop_admin.clone(), move |request| admin_api.handle(request));
        Ok(Self {
            proxy: proxy.map(|proxy| proxy.start(&gate, settings.door)),
            gate,
            leases,
            doors,
            grpc,
            admin,
            demo,
            grace: settings.grace,
            notice: settings.notice,
            grpc_going_down,
            stop_admin,
            grpc_server: tokio::spawn(grpc_server),
            admin_server: tokio::spawn(admin_server),
        })
    }

    /// Where the proxy listens, if it does.
    #[must_use]
    pub fn proxy(&self) -> Option<SocketAddr> {
        self.proxy.as_ref().map(|proxy| proxy.address)
    }

    /// Where the gRPC server listens.
    #[must_use]
    pub fn grpc(&self) -> SocketAddr {
        self.grpc
    }

    /// Where the admin API listens.
    #[must_use]
    pub fn admin(&self) -> SocketAddr {
        self.admin
    }

    /// Each pool and where the proxy sends its requests; nothing without one.
    #[must_use]
    pub fn upstreams(&self) -> &[(String, String)] {
        self.proxy.as_ref().map_or(&[], |proxy| &proxy.upstreams)
    }

    /// The headers that would name the tenant, were they believed at this door (`identity.trust`).
    pub fn disbelieved(&self, door: Listener) -> impl Iterator<Item = &http::HeaderName> {
        let policy = self.gate.policy();
        let trusted = self.doors.trust(policy, door);
        policy.identity.tenant.iter().filter_map(move |source| match source {
            TenantSource::Header(name) if !trusted => Some(name),
            _ => None,
        })
    }

    /// The gate, for whoever wants to look behind it.
    #[must_use]
    pub fn gate(&self) -> &Gate {
        &self.gate
    }

    /// Stops. At once `/readyz` and the gRPC health say so and newcomers are refused in words; what is queued and what runs is served
    /// within the grace. The doors listen on until that is done, and at least for the notice, so that whoever sends
    /// requests here learns of it before a connection is refused. Then they close, and what is left is cut off.
    pub async fn stop(mut self) {
        self.grpc_going_down.announced.cancel();
        let (gate, notice) = (&self.gate, self.notice);
        let noticed = async {
            gate.clock().sleep(notice).await;
            Ok(())
        };
        if let Err(broken) = tokio::try_join!(shell::drain(gate, self.grace), noticed) {
            tracing::error!(%broken, "stopping at once");
        }
        if let Some(proxy) = &self.proxy {
            proxy.stop.cancel();
        }
        self.grpc_going_down.stopped.cancel();
        let patience = self.gate.clock().sleep(LAST_WORDS);
        tokio::select! {
            // How the servers ended no longer matters.
            _ended = async {
                if let Some(proxy) = &mut self.proxy {
                    let _ended = (&mut proxy.server).await;
                }
                (&mut self.grpc_server).await
            } => {}
            () = patience => {
                if let Some(proxy) = &self.proxy {
                    proxy.server.abort();
                }
                self.grpc_server.abort();
            }
        }
        self.leases.close();
        if let Err(error) = self.gate.close_ledger().await {
            tracing::error!(%error, "what was granted and not used counts as used");
        }
        self.stop_admin.cancel();
        self.admin_server.abort();
        if let Some(demo) = self.demo.take() {
            demo.shutdown().await;
        }
    }
}

fn load_policy(settings: &Settings) -> anyhow::Result<(Policy, Written)> {
    match &settings.policy {
        Some(path) => policy::load_written(path).map_err(|mistakes| anyhow!("the policy is not valid:\n{mistakes}")),
        None => {
            let (name, text) = if settings.demo { ("demo", DEMO_POLICY) } else { ("default", DEFAULT_POLICY) };
            let no_keys = |_: &str| unreachable!("the built-in policies name no file of keys");
            let policy = policy::parse(name, text, no_keys);
            let policy = policy.map_err(|mistakes| anyhow!("the built-in policy:\n{mistakes}"))?;
            Ok((policy, Written::new(text)))
        }
    }
}

/// The ledger, where it is more than memory. Checking it may take a disk a while.
async fn open_ledger(ledger: LedgerKind) -> anyhow::Result<Option<FileStore>> {
    match ledger {
        LedgerKind::Memory => Ok(None),
        LedgerKind::File(path) => {
            let opened = tokio::task::spawn_blocking(move || FileStore::open(&path));
            Ok(Some(opened.await.context("opening the ledger")??))
        }
    }
}

async fn start_demo(settings: &Settings) -> anyhow::Result<Option<Demo>> {
    if !settings.demo {
        return Ok(None);
    }
    let anywhere = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
    let demo = demo::start(EngineSpec::default(), seed(), anywhere).await;
    demo.map(Some).context("starting the simulated engine")
}

async fn listen(address: SocketAddr, what: &str) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| format!("the {what} cannot listen on {address}"))
}

/// Everything the gRPC server offers.
fn services(gate: &Gate, leases: &Leases, door: &Door, ip: IpAddr) -> Services {
    Services::default()
        .with(ExtProc::new(gate.clone(), door.clone(), ip).into_service())
        .with(ExtAuthz::new(gate.clone(), leases.clone(), door.clone(), ip).into_service())
        .with(AccessLog::new(gate.clone(), leases.clone()).into_service())
        .with(RateLimit::new(gate.clone()).into_service())
        .with(Acquire::new(gate.clone(), leases.clone(), door.clone(), ip).into_service())
        .reflecting(acquire::DESCRIPTOR)
}

/// Chance that nobody can foresee.
fn chance() -> anyhow::Result<StdRng> {
    StdRng::try_from_rng(&mut SysRng).context("asking the system for chance")
}
