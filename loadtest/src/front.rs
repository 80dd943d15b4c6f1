//! A real Envoy in front of a gateway, for one run: the project's own configuration with other addresses.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep};

use crate::gateway::{free_address, get};

/// How long Envoy may take to become ready.
const READY_WITHIN: Duration = Duration::from_secs(30);

/// The ports of a configuration, as it is shipped: its listener, its admin, the upstream and the gateway's gRPC.
const PORTS: [u16; 4] = [10_000, 9_901, 8_000, 9_001];

/// What is started, and between what.
#[derive(Debug)]
pub(crate) struct Setup<'a> {
    /// Envoy's program.
    pub(crate) program: &'a Path,
    /// Its configuration, as the project ships it.
    pub(crate) config: &'a Path,
    /// Where the engine listens.
    pub(crate) upstream: SocketAddr,
    /// Where the gateway's gRPC server listens, in a configuration that asks it.
    pub(crate) grpc: Option<SocketAddr>,
    /// Numbers to be put in place of those that are shipped, each as the text around it.
    pub(crate) numbers: Vec<(&'a str, String)>,
    /// Where its configuration and its log go.
    pub(crate) folder: &'a Path,
}

/// A running Envoy. Killed when dropped.
#[derive(Debug)]
pub(crate) struct Front {
    child: Child,
    listener: SocketAddr,
}

impl Front {
    /// Starts it and waits until it is ready.
    pub(crate) async fn start(setup: &Setup<'_>) -> anyhow::Result<Self> {
        let (listener, admin) = (free_address()?, free_address()?);
        let shipped =
            std::fs::read_to_string(setup.config).with_context(|| format!("cannot read {}", setup.config.display()))?;
        let addresses = [Some(listener), Some(admin), Some(setup.upstream), setup.grpc];
        let config = with_numbers(with_ports(&shipped, addresses)?, &setup.numbers)?;
        let (file, log) = (setup.folder.join("envoy.yaml"), setup.folder.join("envoy.log"));
        std::fs::write(&file, config).with_context(|| format!("cannot write {}", file.display()))?;
        let output = std::fs::File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        let child = Command::new(setup.program)
            .args(["--disable-hot-restart", "--concurrency", "1", "--log-level", "warning", "--config-path"])
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start Envoy, {}", setup.program.display()))?;
        let mut front = Self { child, listener };
        front.ready(admin, &log).await?;
        Ok(front)
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.listener)
    }

    /// Its process, while it runs.
    pub(crate) fn process(&self) -> Option<u32> {
        self.child.id()
    }

    pub(crate) async fn stop(mut self) -> anyhow::Result<()> {
        self.child.kill().await.context("cannot stop Envoy")
    }

    async fn ready(&mut self, admin: SocketAddr, log: &Path) -> anyhow::Result<()> {
        let began = Instant::now();
        let url = format!("http://{admin}/ready");
        loop {
            if get(&url).await.is_ok_and(|(status, _)| status.is_success()) {
                return Ok(());
            }
            if let Some(status) = self.child.try_wait()? {
                let said = std::fs::read_to_string(log).unwrap_or_default();
                bail!("Envoy ended with {status}: {}", said.trim());
            }
            ensure!(
                began.elapsed() <= READY_WITHIN,
                "Envoy was not ready within {} s; see {}",
                READY_WITHIN.as_secs(),
                log.display()
            );
            sleep(Duration::from_millis(50)).await;
        }
    }
}

/// The configuration with these ports in place of those it is shipped with.
fn with_ports(config: &str, addresses: [Option<SocketAddr>; 4]) -> anyhow::Result<String> {
    let mut config = config.to_owned();
    for (from, to) in PORTS.into_iter().zip(addresses) {
        let Some(to) = to else { continue };
        let from = format!("port_value: {from}}}");
        ensure!(config.contains(&from), "the configuration has no {from:?} whose port could be replaced");
        config = config.replace(&from, &format!("port_value: {}}}", to.port()));
    }
    Ok(config)
}

/// The configuration with these numbers in place of those it is shipped with.
fn with_numbers(mut config: String, numbers: &[(&str, String)]) -> anyhow::Result<String> {
    for (from, to) in numbers {
        ensure!(config.contains(from), "the configuration has no {from:?} that could be replaced");
        config = config.replace(from, to);
    }
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::{with_numbers, with_ports};

    #[test]
    fn the_shipped_configuration_has_every_port_once() {
        let shipped = include_str!("../../deploy/envoy/ext_proc.yaml");
        let to = [1, 2, 3, 4].map(|port| Some(([127, 0, 0, 1], port).into()));
        let config = with_ports(shipped, to).expect("it has them");
        for port in 1..=4 {
            assert_eq!(config.matches(&format!("port_value: {port}}}")).count(), 1, "{port}");
        }
        assert!(with_ports("", to).is_err());
        assert_eq!(with_numbers("a: 1, b: 2".to_owned(), &[("b: 2", "b: 3".to_owned())]).expect("there"), "a: 1, b: 3");
        assert!(with_numbers(String::new(), &[("b: 2", String::new())]).is_err());
    }
}
