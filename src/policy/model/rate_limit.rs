//! What the rate limit service is asked: which descriptors count against which limit.

use std::sync::Arc;

/// A domain of Envoy's rate limits.
#[derive(Clone, Debug)]
pub struct HitDomain {
    /// Its name.
    pub name: Arc<str>,
    /// What becomes of a descriptor that no rule fits.
    pub unmatched: Unmatched,
    /// Which descriptors count against which limit. All that fit one count. Never empty.
    pub rules: Vec<HitRule>,
}

/// What becomes of a descriptor that no rule fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmatched {
    /// The call is an error.
    Refuse,
    /// It counts against nothing.
    Pass,
}

/// Descriptors that count against a limit.
#[derive(Clone, Debug)]
pub struct HitRule {
    /// The limit, by its place in the policy's list.
    pub limit: u16,
    /// Exactly these entries, in any order; each key once. They name what the limit counts per, and what it is
    /// restricted to.
    pub entries: Vec<HitEntry>,
    /// What hits are.
    pub hits: HitsAre,
}

/// One entry of a descriptor.
#[derive(Clone, Debug)]
pub struct HitEntry {
    /// Its key.
    pub key: Arc<str>,
    /// Its value.
    pub value: HitValue,
}

/// The value of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HitValue {
    /// Whatever it is.
    Any,
    /// Exactly this.
    Is(Arc<str>),
    /// A name of this.
    Names(Named),
}

/// What a value names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Named {
    /// The tenant.
    Tenant,
    /// A user of the tenant.
    User,
    /// A session of the tenant.
    Session,
    /// A task of the tenant.
    Task,
    /// The class.
    Class,
    /// The model.
    Model,
    /// The pool.
    Pool,
}

impl Named {
    /// The word for it, in policies and messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tenant => "tenant",
            Self::User => "user",
            Self::Session => "session",
            Self::Task => "task",
            Self::Class => "class",
            Self::Model => "model",
            Self::Pool => "pool",
        }
    }
}

/// What hits are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HitsAre {
    /// What a request asks for.
    Asked,
    /// What was used already.
    Used,
}
