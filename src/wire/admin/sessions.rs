//! The sessions of a tenant: who of it was served how much.

use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde::{Deserialize, Serialize};

use crate::shell::{Broken, Gate};
use crate::units::{TenantId, VirtualTokens};

use super::super::exact::exact;
use super::rows::{class_name, pool_name};
use super::{Desk, fault};

/// A session in one class of one pool. Idle ones are remembered for as long as they owe something.
#[derive(Debug, Serialize)]
struct SessionRow {
    pool: String,
    class: String,
    tenant: String,
    /// Nothing for what the tenant sends without one.
    session: Option<String>,
    #[serde(serialize_with = "exact")]
    virtual_tokens: VirtualTokens,
    #[serde(serialize_with = "exact")]
    charged: VirtualTokens,
    queued_requests: u32,
    queued_tokens: u64,
    in_flight_requests: u32,
}

/// Whose sessions are wanted.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Whose {
    tenant: Option<String>,
}

pub(super) async fn of(State(desk): State<Arc<Desk>>, query: Result<Query<Whose>, QueryRejection>) -> Response {
    let tenant = match query {
        Ok(Query(Whose { tenant: Some(tenant) })) if !tenant.is_empty() => TenantId::from(tenant.as_str()),
        Ok(_) => return fault(StatusCode::BAD_REQUEST, "sessions are a tenant's: ask with ?tenant=NAME"),
        Err(rejection) => return fault(StatusCode::BAD_REQUEST, &rejection.body_text()),
    };
    super::shown(rows(&desk.gate, &tenant))
}

fn rows(gate: &Gate, tenant: &TenantId) -> Result<Vec<SessionRow>, Broken> {
    let policy = gate.policy();
    let views = gate.look(|seen| seen.engine.sessions(tenant))?;
    let row = |view: crate::admission::SessionView| SessionRow {
        pool: pool_name(policy, view.subject.pool),
        class: class_name(policy, view.subject.class),
        tenant: view.subject.tenant.to_string(),
        session: view.subject.session.as_ref().map(ToString::to_string),
        virtual_tokens: view.virtual_tokens,
        charged: view.charged,
        queued_requests: view.queued_requests,
        queued_tokens: view.queued_tokens.get(),
        in_flight_requests: view.in_flight_requests,
    };
    Ok(views.into_iter().map(row).collect())
}
