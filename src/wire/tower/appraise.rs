//! What a service behind the layer may say of its own requests, and what it is told of a decision.
//!
//! The dialects are read here. A service that speaks something else (embeddings of its own over gRPC, transcriptions,
//! images) knows best what a request costs; an [`Appraise`] says it before the decision, and the service itself says
//! what it came to through the [`Granted`] it finds among its request's extensions.

use std::sync::Arc;

use bytes::Bytes;
use http::request::Parts;

use crate::policy::model::Caller;
use crate::units::{DecisionId, Limit, PoolIndex, Span, TenantId, Tokens, Usage};

use super::super::exchange::Told;

/// Says what requests cost.
///
/// It is the service's own code, so it is believed. It must be quick: it runs where requests are served.
pub trait Appraise: Send + Sync + 'static {
    /// What a request is, by its head alone.
    fn by_head(&self, head: &Parts) -> ByHead;

    /// What a request costs whose body was wanted ([`ByHead::Read`]).
    ///
    /// # Errors
    /// When the body makes no sense: what is wrong, as the client is told (400).
    fn by_body(&self, head: &Parts, body: &Bytes) -> Result<Work, String>;
}

/// What a request is, by its head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ByHead {
    /// One of the dialects, or whatever the policy says of others: as at every other door.
    Known,
    /// None of this layer's business: it goes on untouched, whoever sends it.
    Pass,
    /// This much work; the body goes on as it comes.
    Work(Work),
    /// Work that its body tells: it is read, within the bounds of the layer, and handed to
    /// [`by_body`](Appraise::by_body).
    Read,
}

/// What a request asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Work {
    /// The model, before the policy's aliases. It decides the pool, and the price of a token.
    pub model: String,
    /// Its input.
    pub input: Tokens,
    /// The most output it can have, where that is known. What it will have is predicted from those before it.
    pub output_most: Limit<Tokens>,
}

/// Every request is one of the dialects, or as the policy says.
#[derive(Clone, Copy, Debug, Default)]
pub struct Dialects;

impl Appraise for Dialects {
    fn by_head(&self, _head: &Parts) -> ByHead {
        ByHead::Known
    }

    fn by_body(&self, _head: &Parts, _body: &Bytes) -> Result<Work, String> {
        Err("its body is read as the API's whose path it is sent to".into())
    }
}

/// Put into a request's extensions by a service in front of the layer that has found out who calls: its word counts, and
/// the policy's own rules for the tenant are not asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified(pub TenantId);

/// A request was let through: found among its extensions by the service behind the layer.
#[derive(Clone, Debug)]
pub struct Granted {
    pub(super) decision: DecisionId,
    pub(super) caller: Arc<Caller>,
    pub(super) pool: PoolIndex,
    pub(super) waited: Span,
    pub(super) told: Option<Told>,
}

impl Granted {
    /// The name of the decision, as it stands in `x-tallygate-decision`.
    #[must_use]
    pub fn decision(&self) -> DecisionId {
        self.decision
    }

    /// Who calls.
    #[must_use]
    pub fn caller(&self) -> &Caller {
        &self.caller
    }

    /// The pool that serves its model, by its place in the policy.
    #[must_use]
    pub fn pool(&self) -> PoolIndex {
        self.pool
    }

    /// How long it waited for its turn.
    #[must_use]
    pub fn waited(&self) -> Span {
        self.waited
    }

    /// The service has produced so much output for it, in all. Going backwards changes nothing. Of an answer in one of
    /// the dialects this is read, and not asked.
    pub fn produced(&self, output: Tokens) {
        if let Some(told) = &self.told {
            told.produced(output);
        }
    }

    /// The service has used this for it, in all. Without such a word the request is settled by what was
    /// [`produced`](Self::produced), else by what was expected. Of an answer in one of the dialects this is read, and
    /// not asked.
    pub fn used(&self, usage: Usage) {
        if let Some(told) = &self.told {
            told.used(usage);
        }
    }
}
