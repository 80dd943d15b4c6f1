//! Decisions that are remembered: one by its id, or the newest.

use std::sync::Arc;

use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Json, Response};
use serde::Deserialize;

use crate::observe::decisions::{self, Found, Wanted};
use crate::shell::Gate;
use crate::units::{DecisionId, TenantId};

use super::super::explain::{brief, decision};
use super::{Desk, fault};

/// How many decisions a list has when nothing is said, and at most.
const LIST: usize = 50;
const LIST_MOST: usize = 1_000;

/// What a list is asked for.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Filter {
    tenant: Option<String>,
    outcome: Option<String>,
    limit: Option<usize>,
}

pub(super) async fn one(State(desk): State<Arc<Desk>>, path: Result<Path<String>, PathRejection>) -> Response {
    let text = match path {
        Ok(Path(text)) => text,
        Err(rejection) => return fault(StatusCode::BAD_REQUEST, &rejection.body_text()),
    };
    match find(&desk.gate, &text) {
        Ok(record) => Json(decision(&desk.gate, &record)).into_response(),
        Err(why) => fault(StatusCode::NOT_FOUND, &why),
    }
}

/// The decision of that name, or why there is none.
fn find(gate: &Gate, text: &str) -> Result<Box<decisions::Record>, String> {
    let id: DecisionId = text.parse().map_err(|error| format!("{text:?} is not a decision id: {error}"))?;
    if id.epoch != gate.epoch() {
        let own = gate.epoch();
        return Err(format!(
            "decision {id} was made by another start of a gateway: this one's ids begin with {own:08x}, and what was \
             decided before a restart, or by another replica, is not remembered here"
        ));
    }
    match gate.decisions().find(id.request) {
        Found::Here(record) => Ok(record),
        _ if !gate.has_named(id) => Err(format!("decision {id} has not been made yet")),
        Found::Forgotten => Err(format!(
            "decision {id} is forgotten: the latest are remembered, as many as --remember-decisions and \
             --remember-bytes allow"
        )),
        Found::Unheard => Err(format!("decision {id} has a name, but nothing was heard of its request yet")),
    }
}

pub(super) async fn list(State(desk): State<Arc<Desk>>, query: Result<Query<Filter>, QueryRejection>) -> Response {
    let filter = match query {
        Ok(Query(filter)) => filter,
        Err(rejection) => return fault(StatusCode::BAD_REQUEST, &rejection.body_text()),
    };
    match wanted(filter) {
        Ok(wanted) => {
            let records = desk.gate.decisions().newest(&wanted);
            Json(records.iter().map(|record| brief(&desk.gate, record)).collect::<Vec<_>>()).into_response()
        }
        Err(why) => fault(StatusCode::BAD_REQUEST, &why),
    }
}

fn wanted(filter: Filter) -> Result<Wanted, String> {
    let state = filter.outcome.map(|name| {
        decisions::State::all().find(|state| state.name() == name).ok_or_else(|| {
            let names: Vec<&str> = decisions::State::all().map(decisions::State::name).collect();
            format!("outcome is one of {}, not {name:?}", names.join(", "))
        })
    });
    let most = filter.limit.unwrap_or(LIST);
    if !(1..=LIST_MOST).contains(&most) {
        return Err(format!("limit is between 1 and {LIST_MOST}, not {most}"));
    }
    let tenant = filter.tenant.as_deref().map(TenantId::from);
    Ok(Wanted { tenant, state: state.transpose()?, most })
}
