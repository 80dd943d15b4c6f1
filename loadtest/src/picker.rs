//! An endpoint picker behind Envoy, for one run: a program that is told where to listen and what to pick.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;

use anyhow::Context;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

/// A running picker. Killed when dropped.
#[derive(Debug)]
pub(crate) struct Picker {
    child: Child,
    address: SocketAddr,
}

impl Picker {
    /// Starts `program LISTEN ENDPOINT`, and waits until it says where it listens: the last word of its first line.
    pub(crate) async fn start(program: &Path, endpoint: SocketAddr) -> anyhow::Result<Self> {
        let mut child = Command::new(program)
            .args(["127.0.0.1:0", &endpoint.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start the picker, {}", program.display()))?;
        let said = child.stdout.take().context("its output is piped")?;
        let first = BufReader::new(said).lines().next_line().await?.context("the picker ended")?;
        let address = first.rsplit(' ').next().unwrap_or_default();
        let address = address.parse().with_context(|| format!("the picker says no address: {first:?}"))?;
        Ok(Self { child, address })
    }

    /// Where Envoy asks.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) async fn stop(mut self) -> anyhow::Result<()> {
        self.child.kill().await.context("cannot stop the picker")
    }
}
