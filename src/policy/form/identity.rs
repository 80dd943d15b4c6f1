//! Who a request belongs to, as written.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Who a request belongs to.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Identity {
    /// Where the tenant is read from. The first entry that yields a value decides; when none does, the request is
    /// refused with 401.
    #[schemars(length(min = 1, max = 32))]
    pub(crate) tenant: Vec<TenantSource>,

    /// The listeners whose headers may name the tenant. When left out: those bound to a loopback address. A header
    /// on any other listener is ignored, since whoever can reach it could claim to be anyone.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16), example = [Listener::Proxy])]
    pub(crate) trust: Option<Vec<Listener>>,

    /// Where the session is read from: the conversation or agent run that a request is part of. The first entry
    /// whose header is there decides. The client says so itself; a session only ever divides the share of its own
    /// tenant. The agents that another agent starts share its session and the session's caps, and one slot of
    /// those always stays for the agent that leads.
    #[schemars(length(max = 32))]
    pub(crate) session: Vec<SessionSource>,

    /// Where the user's name is read from, for limits and budgets per user. The first entry that yields a value decides.
    /// A header is what the client says; users only ever divide what their own tenant has.
    #[schemars(length(max = 32))]
    pub(crate) user: Vec<NameSource>,

    /// Where the id of the task is read from, for limits and budgets per task: a piece of work that may span sessions,
    /// such as one run of an agent. The first entry that yields a value decides.
    #[schemars(length(max = 32))]
    pub(crate) task: Vec<NameSource>,

    /// Where the wish for a class is read from. It is granted only within the classes of the tenant.
    #[schemars(length(max = 32))]
    pub(crate) class: Vec<ClassSource>,

    /// What becomes of a request that wishes for a class that does not exist, or that its tenant may not use.
    pub(crate) class_not_granted: NotGranted,
}

impl Default for Identity {
    fn default() -> Self {
        let source = |header: &str, sub_agent: Option<&str>, parent: Option<&str>| SessionSource {
            header: header.into(),
            sub_agent: sub_agent.map(str::to_owned),
            parent: parent.map(str::to_owned),
        };
        Self {
            tenant: vec![TenantSource::Header("x-tenant-id".into()), TenantSource::Fallback("anonymous".into())],
            trust: None,
            session: vec![
                // Claude Code
                source("x-claude-code-session-id", Some("x-claude-code-agent-id"), None),
                // Codex
                source("session-id", Some("x-codex-parent-thread-id"), None),
                // OpenCode
                source("x-session-id", None, Some("x-parent-session-id")),
                // NVIDIA Dynamo
                source("x-dynamo-session-id", None, Some("x-dynamo-parent-session-id")),
            ],
            user: vec![NameSource::Header("x-user-id".into())],
            task: vec![NameSource::Header("x-task-id".into())],
            class: vec![ClassSource::Header("x-priority".into())],
            class_not_granted: NotGranted::UseDefault,
        }
    }
}

/// One place to read the tenant from.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum TenantSource {
    /// A value that Envoy vouches for in its dynamic metadata: the name of the filter that wrote it, a slash, and
    /// the fields to follow, joined with dots. Such as the claim `org` of a verified token:
    /// `envoy.filters.http.jwt_authn/payload.org`. Only requests that come through Envoy have it.
    Metadata(#[schemars(length(min = 3, max = 512))] String),
    /// A file of API keys, beside the policy file: `keys: [{sha256: ..., tenant: acme, name: ci}]`. The key is read
    /// from `Authorization: Bearer`, `x-api-key` or `x-goog-api-key`. A request with a key that is not in the file is refused with
    /// 401, and no further entry is asked.
    ApiKey(#[schemars(length(min = 1, max = 4096))] String),
    /// A header, believed only on a listener named in `trust`.
    Header(String),
    /// This tenant, for everybody who got this far.
    Fallback(String),
}

/// One place to read the session from.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SessionSource {
    /// The header that carries the id.
    pub(crate) header: String,

    /// A header that only the sub-agents of a session send, beside the id of the session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = "x-claude-code-agent-id")]
    pub(crate) sub_agent: Option<String>,

    /// A header in which a sub-agent that has an id of its own names the session it belongs to. Where it is there,
    /// that is the session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = "x-parent-session-id")]
    pub(crate) parent: Option<String>,
}

/// One place to read a name from.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum NameSource {
    /// A value that Envoy vouches for in its dynamic metadata, written as for the tenant.
    Metadata(#[schemars(length(min = 3, max = 512))] String),
    /// A header.
    Header(String),
}

/// One place to read the wish for a class from.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ClassSource {
    /// A header.
    Header(String),
}

/// What becomes of a wish that is not granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum NotGranted {
    /// The request competes in `default_class` if its tenant may use that, else in the first class of the tenant.
    UseDefault,
    /// The request is refused with 403 `class_not_granted`.
    Refuse,
}

/// A listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Listener {
    /// The reverse proxy's.
    Proxy,
    /// The one Envoy asks. Trust it only where Envoy itself removes or overwrites such headers of clients.
    Grpc,
}
