//! A body that is here as a whole, as Envoy and callers over gRPC hand it over: bounded, decoded and read.
//!
//! What each door may do with it differs: Envoy's ext_proc can put another in its place, ext_authz cannot, and a caller
//! of the gRPC API sends it on itself. What is asked of it first does not.

use std::sync::Arc;

use bytes::Bytes;

use crate::policy::Policy;
use crate::units::{self, DecisionId, Instant};

use super::super::answer::Refused;
use super::{Arrival, Entered, Kept, Memory, Prepared, Toll, decode, prepare, rename};

/// A request whose body is here.
#[derive(Debug)]
pub(in crate::wire) struct Here {
    /// The name of the decision to be made.
    pub(in crate::wire) decision: DecisionId,
    /// When its head came.
    pub(in crate::wire) arrived: Instant,
    /// The path it was sent to, without the query.
    pub(in crate::wire) path: Box<str>,
    /// Its body as it came.
    pub(in crate::wire) body: Bytes,
}

/// What became of it.
#[derive(Debug)]
pub(in crate::wire) struct Taken {
    /// What it asks for; nothing where it costs nothing.
    pub(in crate::wire) prepared: Option<Prepared>,
    /// The body that goes on; nothing where that is the one that came.
    pub(in crate::wire) changed: Option<Bytes>,
    /// Whether it is changed because the policy calls its model otherwise, and not only decoded or asked for its usage.
    pub(in crate::wire) is_renamed: bool,
    /// Its memory, to be kept for as long as the body is kept here.
    pub(in crate::wire) kept: Kept,
}

/// How a body goes on.
#[derive(Debug)]
pub(in crate::wire) struct Onward {
    /// What it asks for; nothing where it costs nothing.
    pub(in crate::wire) prepared: Option<Prepared>,
    body: Bytes,
    is_renamed: bool,
}

/// Takes a body within the memory that all bodies share, and reads it.
///
/// # Errors
/// When it is larger than is read, there is no memory for it, or it cannot be read.
pub(in crate::wire) async fn take(
    policy: &Arc<Policy>,
    memory: &Memory,
    most: units::Bytes,
    entered: Entered,
    here: Here,
) -> Result<Taken, Refused> {
    let (came, size) = (here.body.clone(), here.body.len() as u64);
    if size > most.get() {
        return Err(Refused::BodyTooLarge { most });
    }
    // The body is here already, so there is nothing to wait with.
    let kept = memory.take_now(Memory::needed(Some(size), entered.coding, most))?;
    let Onward { prepared, body: onward, is_renamed } = read_here(policy, most, entered, here).await?;
    Ok(Taken { prepared, changed: (onward != came).then_some(onward), is_renamed, kept })
}

/// Reads a body that somebody has taken already, and says how it goes on.
///
/// # Errors
/// When it cannot be decoded or read, or names a model that no pool serves.
pub(in crate::wire) async fn read_here(
    policy: &Arc<Policy>,
    most: units::Bytes,
    entered: Entered,
    here: Here,
) -> Result<Onward, Refused> {
    let Entered { identified, coding, toll } = entered;
    let Here { decision, arrived, path, body } = here;
    let (plain, caller) = (decode(body, coding, most).await?, identified.caller);
    match toll {
        Toll::Free => {
            let (_who_asked_routes, body) = rename(policy, &caller, &plain)?;
            Ok(Onward { prepared: None, is_renamed: body != plain, body })
        }
        Toll::Metered { dialect, patience } => {
            let arrival = Arrival { decision, arrived, dialect, path, patience, caller };
            let (prepared, body) = prepare(policy, arrival, plain).await?;
            Ok(Onward { is_renamed: prepared.is_renamed(), prepared: Some(prepared), body })
        }
    }
}
