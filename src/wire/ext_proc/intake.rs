//! The way in: how a request goes on, and how it is decided.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{ACCEPT_ENCODING, AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use tokio::sync::Semaphore;

use crate::costing::Encoding;
use crate::shell::{Ask, Denied, Gate, Patience, Permit};
use crate::units::{self, DecisionId, Instant};

use super::super::answer::Refused;
use super::super::dialect::{AnswerForm, Dialect};
use super::super::identity::Identified;
use super::super::proxy::body::decode;
use super::super::proxy::coding::Coding;
use super::super::proxy::headers::OURS;
use super::super::proxy::metered::{Reading, read_body};
use super::message::{Content, Edit, Head};

const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// The memory that the bodies of all requests share, between their arrival and their going on.
#[derive(Clone, Debug)]
pub(super) struct Ingress(Arc<Semaphore>);

impl Ingress {
    /// Memory is given out in pieces of so many bytes.
    const PIECE: u64 = 1024;

    pub(super) fn new(most: units::Bytes) -> Self {
        let pieces = usize::try_from(most.get().div_ceil(Self::PIECE)).unwrap_or(usize::MAX);
        Self(Arc::new(Semaphore::new(pieces.min(Semaphore::MAX_PERMITS))))
    }
}

/// Who asks, and how patiently.
#[derive(Debug)]
pub(super) struct Intake {
    pub(super) decision: DecisionId,
    pub(super) arrived: Instant,
    pub(super) dialect: Dialect,
    pub(super) coding: Coding,
    pub(super) body_most: units::Bytes,
    pub(super) identified: Identified,
    pub(super) patience: Patience,
}

/// A request whose body is there.
#[derive(Debug)]
pub(super) struct Undecided {
    pub(super) intake: Intake,
    pub(super) body: Bytes,
}

/// A request that is let through.
#[derive(Debug)]
pub(super) struct Admitted {
    pub(super) permit: Permit,
    pub(super) body: Content,
    pub(super) encoding: Encoding,
    pub(super) form: AnswerForm,
}

impl Undecided {
    /// Has the request decided. Dropping this leaves the queue.
    ///
    /// # Errors
    /// When it is refused, and why.
    pub(super) async fn decide(self, gate: Gate, ingress: Ingress) -> Result<Admitted, Refused> {
        let Self { intake, body: came } = self;
        let Intake { decision, arrived, dialect, coding, body_most, identified, patience } = intake;
        // How large a compressed body is nobody knows before it is decoded.
        let size = if coding == Coding::Identity { came.len() as u64 } else { body_most.get() };
        let pieces = u32::try_from(size.div_ceil(Ingress::PIECE)).unwrap_or(u32::MAX);
        // The body is here already, so there is nothing to wait with.
        let _memory = ingress.0.try_acquire_many(pieces).map_err(|_| Refused::NoMemory)?;
        let body = decode(came.clone(), coding, body_most).await?;
        let caller = identified.caller;
        let reading = read_body(gate.policy(), dialect, &caller, body.clone()).await?;
        let Reading { parsed, selection, encoding, input } = reading;
        let forward = parsed.forward(&body, selection.model.as_str());
        // A body that goes on as it came waits in Envoy, and not here too.
        let onward = Content::changed(&came, forward);
        drop((came, body));
        let form = parsed.answer;
        let dialect = dialect.name();
        let ask = Ask { decision, dialect, arrived, call: parsed.call, input, caller, selection, patience };
        match gate.admit(ask).await {
            Ok(permit) => Ok(Admitted { permit, body: onward, encoding, form }),
            Err(Denied::Refused(refusal)) => Err(Refused::ByCore(refusal)),
            Err(Denied::Broken) => Err(Refused::Internal),
        }
    }
}

/// What changes about a request's headers on their way to the upstream: what is meant for us stays here, a key of
/// ours too, and the upstream is asked not to compress, since what is compressed cannot be watched.
pub(super) fn onward(head: &Head, our_key: bool) -> Edit {
    let mut remove = head.beginning(OURS);
    if our_key {
        remove.extend([AUTHORIZATION, X_API_KEY].map(|name| name.as_str().to_owned()));
    }
    let set = HeaderMap::from_iter([(ACCEPT_ENCODING, HeaderValue::from_static("identity"))]);
    Edit { set, remove }
}
