//! A real Envoy in front of a gateway, with the configuration the project ships.

use std::net::SocketAddr;
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use super::{Client, Gateway, within};

/// A configuration the project ships.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Config {
    /// Every body comes.
    ExtProc,
    /// Bodies come where they are asked for.
    BodyFree,
    /// Callers are verified before, and an endpoint picker stands behind.
    Picker,
    /// The rate limit filter asks.
    RateLimit,
    /// Nothing is decided, and everything shown.
    Shadow,
    /// It asks before each request only, and tells of the end in its access log.
    Authz,
}

impl Config {
    /// Every one of them, and the file it is shipped in.
    pub(crate) const ALL: [(Self, &str); 5] = [
        (Self::ExtProc, "ext_proc.yaml"),
        (Self::BodyFree, "body_free.yaml"),
        (Self::Picker, "picker.yaml"),
        (Self::Shadow, "shadow.yaml"),
        (Self::Authz, "ext_authz.yaml"),
    ];

    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::ExtProc => include_str!("../../../deploy/envoy/ext_proc.yaml"),
            Self::BodyFree => include_str!("../../../deploy/envoy/body_free.yaml"),
            Self::Picker => include_str!("../../../deploy/envoy/picker.yaml"),
            Self::RateLimit => include_str!("../../../deploy/envoy/rate_limit.yaml"),
            Self::Shadow => include_str!("../../../deploy/envoy/shadow.yaml"),
            Self::Authz => include_str!("../../../deploy/envoy/ext_authz.yaml"),
        }
    }
}

/// A running Envoy. Dropping it kills it.
pub(crate) struct Front {
    child: Child,
    listener: SocketAddr,
    admin: SocketAddr,
    access_log: Arc<Mutex<Vec<String>>>,
    _folder: tempfile::TempDir,
}

impl Front {
    /// Starts Envoy in front of a gateway and its upstream; nothing where there is no Envoy.
    pub(crate) async fn start(gateway: &Gateway, upstream: SocketAddr) -> Option<Self> {
        Self::edited(gateway, upstream, |config| config).await
    }

    /// The same, with another of the configurations.
    pub(crate) async fn of(config: Config, gateway: &Gateway, upstream: SocketAddr) -> Option<Self> {
        Self::asking(config, gateway.app.grpc(), upstream, |config| config).await
    }

    /// Starts it with a changed configuration.
    pub(crate) async fn edited(
        gateway: &Gateway,
        upstream: SocketAddr,
        edit: impl FnOnce(String) -> String,
    ) -> Option<Self> {
        Self::asking(Config::ExtProc, gateway.app.grpc(), upstream, edit).await
    }

    /// Starts it in front of an upstream, asking whoever listens at an address.
    pub(crate) async fn asking(
        config: Config,
        grpc: SocketAddr,
        upstream: SocketAddr,
        edit: impl FnOnce(String) -> String,
    ) -> Option<Self> {
        let Some(binary) = std::env::var_os("TALLYGATE_ENVOY") else {
            println!("SKIPPED: TALLYGATE_ENVOY does not name an Envoy 1.40 binary; tests/run installs one");
            return None;
        };
        let port = |from: u16, to: u16| (format!("port_value: {from}}}"), format!("port_value: {to}}}"));
        let mut ports = vec![port(10_000, 0), port(9_901, 0), port(9_001, grpc.port())];
        // Behind a picker it is the picker that knows the upstream.
        if config != Config::Picker {
            ports.push(port(8_000, upstream.port()));
        }
        let mut config = edit(config.text().to_owned());
        for (from, to) in ports {
            assert!(config.contains(&from), "the configuration has {from}");
            config = config.replace(&from, &to);
        }
        let folder = tempfile::tempdir().expect("a folder for a test");
        let (file, address) = (folder.path().join("envoy.yaml"), folder.path().join("admin"));
        std::fs::write(&file, config).expect("a file for a test");
        let mut child = Command::new(binary)
            .args(["--disable-hot-restart", "--concurrency", "1", "--log-level", "info"])
            // The access log is written at once, and not every ten seconds.
            .args(["--file-flush-interval-msec", "10", "--config-path"])
            .arg(&file)
            .arg("--admin-address-path")
            .arg(&address)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("Envoy starts");
        let mut said = BufReader::new(child.stderr.take().expect("it is piped")).lines();
        let mut all = String::new();
        let starting = async {
            while let Some(line) = said.next_line().await.expect("it is text") {
                all.push_str(&line);
                all.push('\n');
                if line.contains("starting main dispatch loop") {
                    return;
                }
            }
            panic!("Envoy ended:\n{all}");
        };
        within("Envoy to start", starting).await;
        tokio::spawn(async move { while let Ok(Some(_)) = said.next_line().await {} });
        let access_log = Arc::new(Mutex::new(Vec::new()));
        let (mut written, log) =
            (BufReader::new(child.stdout.take().expect("it is piped")).lines(), access_log.clone());
        tokio::spawn(async move {
            while let Ok(Some(line)) = written.next_line().await {
                log.lock().expect("nobody panics with it").push(line);
            }
        });
        let admin: SocketAddr = std::fs::read_to_string(&address).expect("written").parse().expect("an address");
        let mut front = Self { child, listener: admin, admin, access_log, _folder: folder };
        front.listener = within("Envoy to listen", front.find_listener()).await;
        Some(front)
    }

    async fn find_listener(&self) -> SocketAddr {
        loop {
            let ready = Client::connect(self.admin).await.get("/ready", "").await;
            let listeners = Client::connect(self.admin).await.get("/listeners?format=json", "").await;
            let listeners: Value = listeners.json();
            let port = &listeners["listener_statuses"][0]["local_address"]["socket_address"]["port_value"];
            if let Some(port) = port.as_u64().filter(|_| ready.status == 200) {
                return SocketAddr::new(self.admin.ip(), u16::try_from(port).expect("a port"));
            }
            tokio::task::yield_now().await;
        }
    }

    /// Where clients connect to.
    pub(crate) fn address(&self) -> SocketAddr {
        self.listener
    }

    /// Connects a client to Envoy.
    pub(crate) async fn client(&self) -> Client {
        Client::connect(self.listener).await
    }

    /// Waits for Envoy's record of a request that was decided, and returns it.
    pub(crate) async fn record(&self, decision: &str) -> Value {
        let reading = async {
            loop {
                let line = {
                    let log = self.access_log.lock().expect("nobody panics with it");
                    log.iter().find(|line| line.contains(decision)).cloned()
                };
                match line {
                    Some(line) => return serde_json::from_str(&line).expect("JSON"),
                    None => tokio::task::yield_now().await,
                }
            }
        };
        within("Envoy's access log", reading).await
    }

    /// What it says of its configuration.
    pub(crate) async fn config_dump(&self) -> String {
        Client::connect(self.admin).await.get("/config_dump?include_eds", "").await.body
    }

    /// Kills it as if its machine had lost power.
    pub(crate) async fn kill(mut self) {
        self.child.kill().await.expect("it ran");
    }
}
