//! The policy in force: where it came from, when, and its text.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Json, Response};
use serde::Serialize;

use crate::policy::Written;
use crate::units::Instant;

use super::Desk;

/// How many hex digits tell one policy from another.
const VERSION_DIGITS: usize = 12;

/// The policy in force, as it was read.
#[derive(Clone, Debug)]
pub struct InForce {
    /// Its file; without one it is built in.
    pub path: Option<PathBuf>,
    /// What it says.
    pub written: Written,
    /// When it was read.
    pub loaded_at: Instant,
}

/// How it is shown. Files of keys are not: they are named in the text and counted into the hash.
#[derive(Debug, Serialize)]
struct PolicyRow {
    path: Option<String>,
    version: String,
    sha256: String,
    loaded_unix_s: f64,
    pools: Vec<String>,
    classes: Vec<String>,
    tenant_rules: Vec<String>,
    text: String,
}

pub(super) async fn shown(State(desk): State<Arc<Desk>>) -> Response {
    let InForce { path, written, loaded_at } = &desk.about.policy;
    let policy = desk.gate.policy();
    let sha256 = written.sha256.iter().fold(String::new(), |mut hex, byte| {
        write!(hex, "{byte:02x}").expect("a string takes whatever is written");
        hex
    });
    let row = PolicyRow {
        path: path.as_ref().map(|path| path.display().to_string()),
        version: sha256[..VERSION_DIGITS].to_owned(),
        sha256,
        loaded_unix_s: desk.gate.clock().unix_seconds(*loaded_at),
        pools: policy.pools.iter().map(|pool| pool.name.to_string()).collect(),
        classes: policy.classes.iter().map(|class| class.name.to_string()).collect(),
        tenant_rules: policy.tenants.iter().map(|rule| rule.matches.to_string()).collect(),
        text: written.text.clone(),
    };
    Json(row).into_response()
}
