//! A real Envoy in front of a gateway, for one run: the project's own configuration with other addresses.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep};

use crate::gateway::{free_address, get};
use crate::token;

/// How long Envoy may take to become ready.
const READY_WITHIN: Duration = Duration::from_secs(30);

/// The ports of a configuration, as it is shipped.
const LISTENER: u16 = 10_000;
const ADMIN: u16 = 9_901;
const UPSTREAM: u16 = 8_000;
const GRPC: u16 = 9_001;
const PICKER: u16 = 9_002;

/// What knows where a request goes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Behind {
    /// The configuration does: the engine listens here.
    Engine(SocketAddr),
    /// An endpoint picker does, that listens here; and callers are verified before it is asked.
    Picker(SocketAddr),
}

/// What is started, and between what.
#[derive(Debug)]
pub(crate) struct Setup<'a> {
    /// Envoy's program.
    pub(crate) program: &'a Path,
    /// Its configuration, as the project ships it.
    pub(crate) config: &'a Path,
    /// What stands behind it.
    pub(crate) behind: Behind,
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
        let mut ports = vec![(LISTENER, listener), (ADMIN, admin)];
        ports.extend(setup.grpc.map(|grpc| (GRPC, grpc)));
        let shipped = match setup.behind {
            Behind::Engine(address) => {
                ports.push((UPSTREAM, address));
                shipped
            }
            Behind::Picker(address) => {
                ports.push((PICKER, address));
                token::with_key(&shipped).context("the configuration has no key to verify callers by")?
            }
        };
        let config = with_numbers(with_ports(shipped, &ports)?, &setup.numbers)?;
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
fn with_ports(mut config: String, ports: &[(u16, SocketAddr)]) -> anyhow::Result<String> {
    for (from, to) in ports {
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
    use super::{ADMIN, GRPC, LISTENER, PICKER, UPSTREAM, with_numbers, with_ports};

    #[test]
    fn the_shipped_configurations_have_every_port_once() {
        let by_ext_proc = include_str!("../../deploy/envoy/ext_proc.yaml");
        for (shipped, behind) in [
            (by_ext_proc, UPSTREAM),
            (include_str!("../../deploy/envoy/body_free.yaml"), UPSTREAM),
            (include_str!("../../deploy/envoy/ext_authz.yaml"), UPSTREAM),
            (include_str!("../../deploy/envoy/picker.yaml"), PICKER),
        ] {
            let ports = [LISTENER, ADMIN, GRPC, behind].into_iter().zip(1..=4);
            let ports: Vec<_> = ports.map(|(from, to)| (from, ([127, 0, 0, 1], to).into())).collect();
            let config = with_ports(shipped.to_owned(), &ports).expect("it has them");
            for port in 1..=4 {
                assert_eq!(config.matches(&format!("port_value: {port}}}")).count(), 1, "{port}");
            }
        }
        assert!(with_ports(String::new(), &[(GRPC, ([127, 0, 0, 1], 1).into())]).is_err());
        assert_eq!(with_numbers("a: 1, b: 2".to_owned(), &[("b: 2", "b: 3".to_owned())]).expect("there"), "a: 1, b: 3");
        assert!(with_numbers(String::new(), &[("b: 2", String::new())]).is_err());
    }
}
