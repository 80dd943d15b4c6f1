//! What a request's head decides: whether it is metered, who calls, how patiently, and how its body is encoded.
//!
//! The order is that of what may be told to whom. What cannot be served here is told to anybody; everything else only
//! to a caller that is identified, or is allowed not to be. Nothing is held yet, so every refusal leaves no trace but
//! its count.

use http::header::UPGRADE;
use http::{HeaderMap, Method};

use crate::policy::Policy;
use crate::policy::model::Unmetered;
use crate::shell::Patience;
use crate::units::TenantId;

use super::super::answer::Refused;
use super::super::dialect::Dialect;
use super::super::identity::{Claims, Identified, IdentityError, NoClaims, below, identify_vouched};
use super::super::paths::{self, Route};
use super::coding::Coding;
use super::patience;

/// A request's head as every door knows it.
#[derive(Clone, Copy, Debug)]
pub(in crate::wire) struct RequestHead<'a> {
    /// What is to be done.
    pub(in crate::wire) method: &'a Method,
    /// To what, without the query.
    pub(in crate::wire) path: &'a str,
    /// Its headers, as they came.
    pub(in crate::wire) headers: &'a HeaderMap,
    /// Whether the head is all there is.
    pub(in crate::wire) bodiless: bool,
}

/// A request that may hand in its body.
#[derive(Clone, Debug)]
pub(in crate::wire) struct Entered {
    /// Who calls.
    pub(in crate::wire) identified: Identified,
    /// How its body is encoded.
    pub(in crate::wire) coding: Coding,
    /// Whether it is to be paid for.
    pub(in crate::wire) toll: Toll,
}

/// Whether a request is to be paid for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::wire) enum Toll {
    /// It costs nothing and waits for nobody.
    Free,
    /// It is metered.
    Metered {
        /// The language of its body.
        dialect: Dialect,
        /// How long its client waits.
        patience: Patience,
    },
}

/// Reads a request's head.
///
/// # Errors
/// When it cannot be served here, asks for what does not exist here, comes from nobody, or says what makes no sense.
pub(in crate::wire) fn enter(
    policy: &Policy,
    trusted: bool,
    head: RequestHead<'_>,
    claims: &impl Claims,
) -> Result<Entered, Refused> {
    enter_by(policy, head, || identify_vouched(&policy.identity, trusted, head.headers, claims))
}

/// Reads a request's head, taking its caller for this tenant.
///
/// # Errors
/// When it cannot be served here, asks for what does not exist here, or says what makes no sense.
pub(in crate::wire) fn enter_as(policy: &Policy, head: RequestHead<'_>, tenant: TenantId) -> Result<Entered, Refused> {
    enter_by(policy, head, || below(&policy.identity, tenant, head.headers, &NoClaims))
}

/// Reads the head of a request whose cost somebody else tells, whatever its path: who calls, how patiently, and how its
/// body is encoded. With a tenant it is taken for that tenant's.
///
/// # Errors
/// When it comes from nobody, or says what makes no sense.
pub(in crate::wire) fn enter_appraised(
    policy: &Policy,
    trusted: bool,
    head: RequestHead<'_>,
    tenant: Option<TenantId>,
) -> Result<(Identified, Patience, Coding), Refused> {
    let identified = match tenant {
        Some(tenant) => below(&policy.identity, tenant, head.headers, &NoClaims),
        None => identify_vouched(&policy.identity, trusted, head.headers, &NoClaims),
    };
    Ok((identified.map_err(unidentified)?, patience::read(head.headers)?, Coding::of(head.headers)?))
}

fn enter_by(
    policy: &Policy,
    head: RequestHead<'_>,
    identify: impl FnOnce() -> Result<Identified, IdentityError>,
) -> Result<Entered, Refused> {
    let dialect = metered_in(policy, head)?;
    if dialect.is_some() && head.bodiless {
        return Err(Refused::Malformed("the body is missing".into()));
    }
    let identified = identify().map_err(unidentified)?;
    let toll = match dialect {
        Some(dialect) => Toll::Metered { dialect, patience: patience::read(head.headers)? },
        None => Toll::Free,
    };
    Ok(Entered { identified, coding: Coding::of(head.headers)?, toll })
}

/// The dialect a request is metered in; nothing where it passes unmetered.
fn metered_in(policy: &Policy, head: RequestHead<'_>) -> Result<Option<Dialect>, Refused> {
    let RequestHead { method, path, .. } = head;
    if method == Method::CONNECT || head.headers.contains_key(UPGRADE) {
        let what = "WebSocket and other upgraded connections are not supported; use POST with \"stream\": true";
        return Err(Refused::Unsupported(what.into()));
    }
    match paths::route(method, path, head.bodiless) {
        Route::Metered(dialect) => Ok(Some(dialect)),
        Route::Free => Ok(None),
        Route::Unsupported(what) => Err(Refused::Unsupported(format!("{method} {}: {what}", shorten(path)))),
        Route::Unknown => match policy.unmetered {
            Unmetered::Pass => Ok(None),
            Unmetered::Refuse => Err(Refused::Unsupported(format!(
                "{method} {} is not metered and the policy lets nothing unmetered pass (unmetered: refuse)",
                shorten(path)
            ))),
        },
    }
}

/// What a failed identification is answered with.
fn unidentified(error: IdentityError) -> Refused {
    match error {
        IdentityError::Malformed(what) => Refused::Malformed(what),
        other @ (IdentityError::UnknownKey | IdentityError::Unidentified(_)) => {
            Refused::Unidentified(other.to_string())
        }
    }
}

/// At most a line of what the client wrote, for a message.
fn shorten(text: &str) -> &str {
    const SHOWN: usize = 100;
    &text[..text.floor_char_boundary(SHOWN)]
}
