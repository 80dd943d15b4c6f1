//! A gateway of our own, started for one run and stopped after it.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, bail};
use bytes::Bytes;
use http::Uri;
use http_body_util::{BodyExt, Empty};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep};

/// How long a gateway may take to become ready.
const READY_WITHIN: Duration = Duration::from_secs(30);

/// A running gateway. Killed when dropped.
#[derive(Debug)]
pub(crate) struct Gateway {
    child: Child,
    proxy: SocketAddr,
    grpc: SocketAddr,
    admin: SocketAddr,
}

impl Gateway {
    /// Starts `program serve` with this policy in front of `upstream`, logging to a file, and waits until it is
    /// ready.
    pub(crate) async fn start(program: &Path, policy: &Path, upstream: &str, log: &Path) -> anyhow::Result<Self> {
        let file = std::fs::File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
        let (proxy, grpc, admin) = (free_address()?, free_address()?, free_address()?);
        let child = Command::new(program)
            .arg("serve")
            .args(["--proxy", &proxy.to_string(), "--grpc", &grpc.to_string(), "--admin", &admin.to_string()])
            .args(["--upstream", upstream, "--policy"])
            .arg(policy)
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        let mut gateway = Self { child, proxy, grpc, admin };
        gateway.ready(log).await?;
        Ok(gateway)
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.proxy)
    }

    /// Its process, while it runs.
    pub(crate) fn process(&self) -> Option<u32> {
        self.child.id()
    }

    /// Where Envoy asks.
    pub(crate) fn grpc(&self) -> SocketAddr {
        self.grpc
    }

    /// What the admin API says of the tenants.
    pub(crate) async fn tenants(&self) -> anyhow::Result<Bytes> {
        let (status, body) = get(&format!("http://{}/v1/tenants", self.admin)).await?;
        if status != http::StatusCode::OK {
            bail!("the admin API answered {status}");
        }
        Ok(body)
    }

    pub(crate) async fn stop(mut self) -> anyhow::Result<()> {
        self.child.kill().await.context("cannot stop the gateway")
    }

    async fn ready(&mut self, log: &Path) -> anyhow::Result<()> {
        let began = Instant::now();
        let url = format!("http://{}/readyz", self.admin);
        loop {
            if get(&url).await.is_ok_and(|(status, _)| status.is_success()) {
                return Ok(());
            }
            if let Some(status) = self.child.try_wait()? {
                let said = std::fs::read_to_string(log).unwrap_or_default();
                bail!("the gateway ended with {status}: {}", said.trim());
            }
            if began.elapsed() > READY_WITHIN {
                bail!("the gateway was not ready within {} s; see {}", READY_WITHIN.as_secs(), log.display());
            }
            sleep(Duration::from_millis(50)).await;
        }
    }
}

/// A loopback address nobody listens on now. Somebody may before we do; then the start fails, and says so.
pub(crate) fn free_address() -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no free port on loopback")?;
    Ok(listener.local_addr()?)
}

/// What an address answers to a GET.
pub(crate) async fn get(url: &str) -> anyhow::Result<(http::StatusCode, Bytes)> {
    let client = Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
    let response = client.get(url.parse::<Uri>()?).await?;
    let status = response.status();
    Ok((status, response.into_body().collect().await?.to_bytes()))
}
