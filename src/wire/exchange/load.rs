//! What an engine is asked to report of its load beside each answer, and what it reports (ORCA).
//!
//! Where the policy says so the engine is asked, whatever the client asked for, and what it reports stays here: how full
//! an engine is concerns nobody outside. Elsewhere both headers pass as they came.

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::policy::model::Orca;

/// The header of an answer that carries a report.
pub(in crate::wire) const REPORT: HeaderName = HeaderName::from_static("endpoint-load-metrics");
const ASK: HeaderName = HeaderName::from_static("endpoint-load-metrics-format");

/// Asks for a report, in a request's headers.
pub(super) fn ask(headers: &mut HeaderMap, form: Option<Orca>) {
    if let Some(form) = form {
        let form = match form {
            Orca::Text => "text",
            Orca::Json => "json",
        };
        headers.insert(ASK, HeaderValue::from_static(form));
    }
}
