//! `tallygate serve`: run the gateway.

use std::io::{IsTerminal as _, Write as _};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::Args;

use crate::app::App;
use crate::cli::Outcome;
use crate::policy::model::Listener;
use crate::settings::{ADMIN_TOKEN, Door, LedgerKind, Picker, ProxyAt, Remember, Secret, Settings, UPSTREAM_KEY};
use crate::shell;
use crate::units::{Bytes, Span};

/// Run the gateway: it shares an upstream fairly, as a reverse proxy or as what Envoy asks about every request.
///
/// Secrets come from the environment: TALLYGATE_UPSTREAM_KEY is shown to the upstream in place of the client's key,
/// TALLYGATE_ADMIN_TOKEN guards the admin API. RUST_LOG chooses what is logged (default: info).
#[derive(Debug, Args)]
pub(super) struct Serve {
    /// The policy file. Without one, every setting has its default.
    #[arg(long, value_name = "PATH")]
    policy: Option<PathBuf>,
    /// Where pools go that name no upstream of their own, such as http://127.0.0.1:8000.
    #[arg(long, value_name = "URL", conflicts_with = "demo")]
    upstream: Option<http::Uri>,
    /// Where what budgets granted is kept: in memory, or in a file (file:PATH), so that it outlives restarts and crashes.
    #[arg(long, value_name = "LEDGER", default_value = "memory")]
    ledger: LedgerKind,
    /// Where the proxy listens, or `off` where Envoy sends requests on and only asks here: then no pool needs an upstream.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8080")]
    proxy: ProxyAt,
    /// Where the gRPC server listens: for Envoy's ext_proc, ext_authz, rate limit and access log clients, and for the
    /// gRPC API.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:9001")]
    grpc: SocketAddr,
    /// Where the admin API listens.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:9090")]
    admin: SocketAddr,
    /// Bring a simulated engine as the upstream.
    #[arg(long)]
    demo: bool,
    /// Tell an endpoint picker behind Envoy the verified tenant (x-llm-d-inference-fairness-id) and the class
    /// (x-llm-d-inference-objective) of each request, in place of what clients send.
    #[arg(long)]
    tell_picker: bool,
    /// How long the upstream may take to begin its answer.
    #[arg(long, value_name = "SPAN", default_value = "10m", value_parser = humantime::parse_duration)]
    first_byte_timeout: Duration,
    /// How long the upstream may say nothing in the middle of its answer.
    #[arg(long, value_name = "SPAN", default_value = "5m", value_parser = humantime::parse_duration)]
    idle_timeout: Duration,
    /// How long a request that Envoy asked about over ext_authz, or that was let through over the gRPC API, counts as
    /// running after the last sign of life. Then it is settled as lost: its prediction stands, and its room is free.
    #[arg(long, value_name = "SPAN", default_value = "1m", value_parser = humantime::parse_duration)]
    lease_life: Duration,
    /// How long shutting down waits for what is queued and what runs.
    #[arg(long, value_name = "SPAN", default_value = "30s", value_parser = humantime::parse_duration)]
    shutdown_grace: Duration,
    /// How long newcomers are answered 503 and /readyz says 503 before nobody listens any more, even with nothing left
    /// to wait for. Give a load balancer time to look.
    #[arg(long, value_name = "SPAN", default_value = "1s", value_parser = humantime::parse_duration)]
    shutdown_notice: Duration,
    /// How many of the latest decisions are remembered, to be asked about at the admin API.
    #[arg(long, value_name = "N", default_value_t = Remember::default().most)]
    remember_decisions: usize,
    /// How many bytes of memory they may take.
    #[arg(long, value_name = "BYTES", default_value_t = Remember::default().bytes.get())]
    remember_bytes: u64,
}

impl Serve {
    /// Runs the gateway until it is asked to stop.
    ///
    /// # Errors
    /// When it cannot start.
    pub(super) fn run(self) -> anyhow::Result<Outcome> {
        let settings = self.settings()?;
        start_logging()?;
        let runtime =
            tokio::runtime::Builder::new_multi_thread().enable_all().build().context("starting the runtime")?;
        runtime.block_on(serve(settings))?;
        // Somebody may still be counting a large body; there is nobody left to answer.
        runtime.shutdown_background();
        Ok(Outcome::Success)
    }

    fn settings(self) -> anyhow::Result<Settings> {
        if self.proxy == ProxyAt::Off && (self.demo || self.upstream.is_some()) {
            let useless = if self.demo { "--demo" } else { "--upstream" };
            return Err(anyhow!(
                "with --proxy off nothing is sent to an upstream: leave {useless} out, or the proxy on"
            ));
        }
        let secret = |name| Secret::from_env(name).map_err(|error| anyhow!(error));
        let upstream_key = secret(UPSTREAM_KEY)?
            .map(|key| key.bearer().map_err(|error| anyhow!("{UPSTREAM_KEY}: {error}")))
            .transpose()?;
        let door = Door {
            begin_within: Span::from(self.first_byte_timeout),
            idle_most: Span::from(self.idle_timeout),
            upstream_key,
            picker: if self.tell_picker { Picker::Told } else { Picker::Untold },
            ..Door::default()
        };
        Ok(Settings {
            policy: self.policy,
            upstream: self.upstream,
            ledger: self.ledger,
            proxy: self.proxy,
            grpc: self.grpc,
            admin: self.admin,
            demo: self.demo,
            grace: Span::from(self.shutdown_grace),
            notice: Span::from(self.shutdown_notice),
            door,
            admin_token: secret(ADMIN_TOKEN)?,
            lease_life: Span::from(self.lease_life),
            decisions: Remember { most: self.remember_decisions, bytes: Bytes::new(self.remember_bytes) },
        })
    }
}

fn start_logging() -> anyhow::Result<()> {
    let wanted = match std::env::var("RUST_LOG") {
        Ok(wanted) if !wanted.trim().is_empty() => wanted,
        Ok(_) | Err(std::env::VarError::NotPresent) => "info".into(),
        Err(std::env::VarError::NotUnicode(_)) => return Err(anyhow!("RUST_LOG is not UTF-8")),
    };
    let filter = tracing_subscriber::EnvFilter::try_new(&wanted).map_err(|error| {
        anyhow!("RUST_LOG={wanted} says not what to log: {error}; write it as in info,tallygate::decision=debug")
    })?;
    // A second subscriber in one process is a test's; the first one stays.
    let _already = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .try_init();
    Ok(())
}

async fn serve(settings: Settings) -> anyhow::Result<()> {
    let demo = settings.demo;
    let app = App::start(settings).await?;
    // A gateway outlives whoever read its first lines.
    if let Err(error) = std::io::stdout().lock().write_all(announcement(&app, demo).as_bytes()) {
        tracing::debug!(%error, "nobody reads what is printed");
    }
    shell::asked_to_stop(|| {
        tracing::warn!(
            "a hangup changes nothing: the policy and the keys are read at the start; restart to read them anew"
        );
    })
    .await
    .context("listening for signals")?;
    tracing::info!("stopping: newcomers are refused, what runs may finish; ask again to stop at once");
    tokio::select! {
        () = app.stop() => tracing::info!("stopped"),
        _again = shell::asked_to_stop(|| {}) => tracing::warn!("stopped at once; what ran was cut off"),
    }
    Ok(())
}

/// What listens where, and what to try next.
fn announcement(app: &App, demo: bool) -> String {
    let (grpc, admin) = (app.grpc(), app.admin());
    let version = env!("CARGO_PKG_VERSION");
    let simulated = if demo { " (simulated engine)" } else { "" };
    let pools: String =
        app.upstreams().iter().map(|(pool, upstream)| format!("  pool {pool:<5} {upstream}{simulated}\n")).collect();
    let disbelieved = |door| {
        let headers = app.disbelieved(door);
        headers.fold(String::new(), |told, name| {
            told + &format!("\n             {name} is not believed here; identity.trust changes that")
        })
    };
    let (proxy, call) = match app.proxy() {
        None => ("off".to_owned(), String::new()),
        Some(proxy) => (
            format!("http://{proxy}/v1/chat/completions{}", disbelieved(Listener::Proxy)),
            format!(
                "  curl -N http://{proxy}/v1/chat/completions -H 'content-type: application/json' -H 'x-tenant-id: me' \\
    -d '{{\"model\": \"demo\", \"stream\": true, \"max_tokens\": 50, \"messages\": [{{\"role\": \"user\", \"content\": \"Hello\"}}]}}'
"
            ),
        ),
    };
    format!(
        "\
tallygate {version}
  proxy      {proxy}
  grpc       {grpc}{}
  admin      http://{admin}/v1/tenants
{pools}
Try:
{call}  tallygate admin tenants --url http://{admin}
",
        disbelieved(Listener::Grpc)
    )
}
