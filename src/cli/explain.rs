//! `tallygate explain`: what would become of a request at an idle gateway of a policy, gate by gate.
//!
//! Nothing is sent anywhere. The request goes through the very code of a running gateway, in front of a core in which
//! nobody waits, so what is told is what the policy alone says: who the caller is, where the request goes, what it is
//! quoted, and whether it could ever be let in.

use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, anyhow};
use clap::Args;

use crate::observe::{Decisions, Keep, Metrics};
use crate::policy::{self, Policy};
use crate::settings::{Door, Remember};
use crate::shell::Gate;
use crate::units::TenantId;
use crate::wire::explain::{DEFAULT_PATH, Doors, Sketch, read_listener, would};

use super::{Outcome, show};

/// Say what would become of a request, gate by gate, by a policy file alone
///
/// FILE holds an HTTP/1.1 message, or a JSON envelope {"method", "path", "headers", "body"}, or the JSON body of an
/// API request. Exits 0 when the request would be let in, 1 when it would be refused.
#[derive(Debug, Args)]
pub(super) struct Explain {
    /// The policy file
    #[arg(long, value_name = "PATH")]
    policy: PathBuf,
    /// The request; `-` reads it from standard input
    #[arg(long, value_name = "FILE")]
    request: PathBuf,
    #[command(flatten)]
    how: How,
    /// The address that listener is bound to: unless `identity.trust` says so, headers name nobody beyond loopback
    #[arg(long, value_name = "IP", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    bound_to: IpAddr,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What a file may leave out.
#[derive(Debug, Args)]
pub(super) struct How {
    /// Where a bare API body is posted to
    #[arg(long, value_name = "PATH", default_value = DEFAULT_PATH)]
    path: String,
    /// Add a header, written as "Name: value"
    #[arg(long, short = 'H', value_name = "HEADER")]
    header: Vec<String>,
    /// The listener it would come by: proxy or grpc
    #[arg(long, value_name = "NAME")]
    listener: Option<String>,
    /// Take it for this tenant's, whatever the policy's rules say
    #[arg(long = "as-tenant", value_name = "TENANT")]
    tenant: Option<String>,
}

impl How {
    /// The request in a file.
    pub(super) fn sketch(&self, file: &Path) -> anyhow::Result<Sketch> {
        let name = file.display();
        let text = read(file).with_context(|| format!("cannot read the request in {name}"))?;
        let mut sketch = Sketch::read(&text, &self.path).map_err(|error| anyhow!("{name}: {error}"))?;
        for header in &self.header {
            let (name, value) =
                header.split_once(':').ok_or_else(|| anyhow!("--header {header:?}: write it as \"Name: value\""))?;
            sketch.add_header(name.trim(), value.trim()).map_err(|error| anyhow!("--header {header:?}: {error}"))?;
        }
        if let Some(name) = &self.listener {
            sketch.listener = Some(read_listener(name).map_err(|error| anyhow!("--{error}"))?);
        }
        if let Some(tenant) = &self.tenant {
            sketch.tenant = Some(TenantId::from(tenant.as_str()));
        }
        Ok(sketch)
    }
}

fn read(file: &Path) -> io::Result<Vec<u8>> {
    // A request larger than any gateway takes is cut off, and told to be too large by what is left of it.
    let most = Door::default().body_most.get().saturating_mul(3);
    let mut text = Vec::new();
    if file == Path::new("-") {
        io::stdin().lock().take(most).read_to_end(&mut text)?;
    } else {
        std::fs::File::open(file)?.take(most).read_to_end(&mut text)?;
    }
    Ok(text)
}

impl Explain {
    pub(super) fn run(self) -> anyhow::Result<Outcome> {
        let policy = match policy::load(&self.policy) {
            Ok(policy) => policy,
            Err(mistakes) => {
                writeln!(io::stderr().lock(), "{mistakes}")?;
                return Ok(Outcome::Failure);
            }
        };
        let sketch = self.how.sketch(&self.request)?;
        let answer = explained(policy, &sketch, self.bound_to)?;
        let text = if self.json { serde_json::to_string_pretty(&answer)? + "\n" } else { show::would(&answer) };
        io::stdout().lock().write_all(text.as_bytes())?;
        Ok(if answer["verdict"] == "refused" { Outcome::Failure } else { Outcome::Success })
    }
}

/// What an idle gateway of this policy says of a request, its listeners being bound to this address.
fn explained(policy: Policy, sketch: &Sketch, bound_to: IpAddr) -> anyhow::Result<serde_json::Value> {
    let policy = Arc::new(policy);
    let metrics = Metrics::new(policy.clone()).context("setting up metrics")?;
    let Remember { bytes, .. } = Remember::default();
    // A gate keeps time in a runtime, though here none passes.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let _inside = runtime.enter();
    let gate = Gate::start(policy, metrics, Decisions::new(Keep { most: 0, bytes }), 0, 0);
    let doors = Doors { proxy: Some(bound_to), grpc: bound_to, body_most: Door::default().body_most };
    Ok(serde_json::to_value(would(&gate, &doors, sketch)?)?)
}
