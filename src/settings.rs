//! Settings of one process: addresses, secrets, files. What is decided about requests stands in the policy.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use crate::units::{Bytes, Span};

/// The environment variable with the key shown to upstreams.
pub const UPSTREAM_KEY: &str = "TALLYGATE_UPSTREAM_KEY";
/// The environment variable with the admin API's token.
pub const ADMIN_TOKEN: &str = "TALLYGATE_ADMIN_TOKEN";

/// Settings of `serve`.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The policy's file; without one the built-in default.
    pub policy: Option<PathBuf>,
    /// Where pools without an upstream of their own send their requests.
    pub upstream: Option<http::Uri>,
    /// Where the books are kept.
    pub ledger: LedgerKind,
    /// Where the proxy listens, if it does.
    pub proxy: ProxyAt,
    /// Where the gRPC server listens, which Envoy asks.
    pub grpc: SocketAddr,
    /// Where the admin API listens.
    pub admin: SocketAddr,
    /// Whether to bring a simulated engine as the upstream.
    pub demo: bool,
    /// How long shutting down waits for what is queued and what runs.
    pub grace: Span,
    /// How long the doors listen on at least once shutting down began, though there is nothing to wait for.
    pub notice: Span,
    /// What the doors are told beside the policy.
    pub door: Door,
    /// The admin API's token.
    pub admin_token: Option<Secret>,
    /// How much is remembered of decisions.
    pub decisions: Remember,
    /// How long a request whose end others tell of counts as running after the last sign of life.
    pub lease_life: Span,
}

impl Settings {
    /// What [`Self::lease_life`] is unless it is said otherwise.
    pub const LEASE_LIFE: Span = Span::from_secs(60);
}

/// How much is remembered of decisions; the oldest are forgotten first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remember {
    /// The most decisions.
    pub most: usize,
    /// The most memory.
    pub bytes: Bytes,
}

impl Default for Remember {
    fn default() -> Self {
        Self { most: 20_000, bytes: Bytes::new(32 * 1024 * 1024) }
    }
}

/// What a door is told beside the policy.
#[derive(Clone, Debug)]
pub struct Door {
    /// The largest body that is read.
    pub body_most: Bytes,
    /// The memory that the bodies of all requests together may take, at each door.
    pub bodies_most: Bytes,
    /// How long a client may take to send its body.
    pub body_within: Span,
    /// How long the upstream may take to begin its answer.
    pub begin_within: Span,
    /// How long the upstream may say nothing in the middle of its answer.
    pub idle_most: Span,
    /// The key the proxy shows to the upstream in place of the client's. Envoy shows its own.
    pub upstream_key: Option<http::HeaderValue>,
    /// What an endpoint picker behind Envoy is told.
    pub picker: Picker,
}

/// What an endpoint picker behind Envoy is told of a request, in the headers of the Gateway API Inference Extension.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Picker {
    /// What the client says.
    #[default]
    Untold,
    /// The verified tenant as its fairness id and the class it competes in as its objective, whatever the client says.
    Told,
}

impl Default for Door {
    fn default() -> Self {
        Self {
            body_most: Bytes::new(32 * 1024 * 1024),
            bodies_most: Bytes::new(1024 * 1024 * 1024),
            body_within: Span::from_secs(60),
            begin_within: Span::from_secs(600),
            idle_most: Span::from_secs(300),
            upstream_key: None,
            picker: Picker::Untold,
        }
    }
}

/// Where the reverse proxy listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyAt {
    /// At an address; every pool needs an upstream then.
    Address(SocketAddr),
    /// Nowhere: Envoy, or whoever asks over gRPC, sends requests on itself.
    Off,
}

impl FromStr for ProxyAt {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "off" => Ok(Self::Off),
            address => address.parse().map(Self::Address).map_err(|_| {
                format!("the proxy listens at an IP address and a port, as in 127.0.0.1:8080, or is \"off\", not {address:?}")
            }),
        }
    }
}

/// Where the books are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LedgerKind {
    /// In this process; a restart begins anew.
    Memory,
    /// In a file, which what budgets granted outlives the process in.
    File(PathBuf),
}

impl FromStr for LedgerKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "memory" => Ok(Self::Memory),
            "file:" => Err("a ledger in a file needs its path, as in file:/var/lib/tallygate/ledger".into()),
            file if file.starts_with("file:") => Ok(Self::File(file["file:".len()..].into())),
            other if other.starts_with("redis:") || other.starts_with("rediss:") => Err(format!(
                "the ledger {other:?} is not available in this build; only \"memory\" and \"file:PATH\" are"
            )),
            other => Err(format!("a ledger is \"memory\" or \"file:PATH\", not {other:?}")),
        }
    }
}

/// Something not to be shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps it.
    ///
    /// # Errors
    /// When it is empty, which is more likely a mistake than a secret.
    pub fn new(text: String) -> Result<Self, String> {
        if text.trim().is_empty() { Err("it is empty".into()) } else { Ok(Self(text)) }
    }

    /// From the environment, where it is set.
    ///
    /// # Errors
    /// When it is set to nothing, or to what is not text.
    pub fn from_env(name: &str) -> Result<Option<Self>, String> {
        match std::env::var(name) {
            Ok(text) => Self::new(text).map(Some).map_err(|error| format!("{name}: {error}")),
            Err(std::env::VarError::NotPresent) => Ok(None),
            Err(std::env::VarError::NotUnicode(_)) => Err(format!("{name}: it is not UTF-8")),
        }
    }

    /// The secret itself.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// As the value of an `Authorization` header.
    ///
    /// # Errors
    /// When it cannot stand in a header.
    pub fn bearer(&self) -> Result<http::HeaderValue, String> {
        let mut value = http::HeaderValue::try_from(format!("Bearer {}", self.0.trim()))
            .map_err(|_| "it has characters that cannot stand in a header".to_owned())?;
        value.set_sensitive(true);
        Ok(value)
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::{LedgerKind, ProxyAt, Secret};

    #[test]
    fn other_ledgers_are_refused_by_name() {
        assert_eq!("memory".parse(), Ok(LedgerKind::Memory));
        assert_eq!("file:/var/lib/x".parse(), Ok(LedgerKind::File("/var/lib/x".into())));
        assert!("file:".parse::<LedgerKind>().is_err_and(|error| error.contains("needs its path")));
        for later in ["redis://host", "rediss://host"] {
            let error = later.parse::<LedgerKind>().expect_err(later);
            assert!(error.contains(later) && error.contains("not available in this build"), "{error}");
        }
        assert!("disk".parse::<LedgerKind>().is_err());
    }

    #[test]
    fn the_proxy_is_at_an_address_or_off() {
        assert_eq!("off".parse(), Ok(ProxyAt::Off));
        let address = ([0, 0, 0, 0], 8080).into();
        assert_eq!("0.0.0.0:8080".parse(), Ok(ProxyAt::Address(address)));
        for wrong in ["", "8080", "localhost:8080", "none"] {
            assert!(wrong.parse::<ProxyAt>().is_err_and(|error| error.contains("or is \"off\"")), "{wrong}");
        }
    }

    #[test]
    fn a_secret_is_not_shown_and_not_empty() {
        let secret = Secret::new("s3cret".into()).expect("not empty");
        assert_eq!(format!("{secret:?}"), "Secret(…)");
        assert!(secret.bearer().is_ok_and(|value| value.is_sensitive()));
        assert!(Secret::new(" ".into()).is_err());
        assert!(Secret::new("a\nb".into()).expect("not empty").bearer().is_err());
    }
}
