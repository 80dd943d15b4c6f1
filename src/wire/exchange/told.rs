//! What a service tells of a request's cost itself, where its answer is in no language that is read here.
//!
//! The service holds one half and writes into it while it works; the meter of the answer holds the other and reads it
//! as the answer passes. What is told counts like what an upstream reports: as the final word for an answer that came
//! to its end, else at least that much.

use std::sync::{Arc, Mutex, PoisonError};

use crate::units::{Tokens, Usage};

/// What is told of one request. Cheap to clone; clones tell of the same one.
#[derive(Clone, Debug, Default)]
pub(in crate::wire) struct Told(Arc<Mutex<Telling>>);

#[derive(Clone, Copy, Debug, Default)]
struct Telling {
    output: Tokens,
    used: Option<Usage>,
}

impl Told {
    /// It has produced so much output, in all. Going backwards changes nothing.
    pub(in crate::wire) fn produced(&self, output: Tokens) {
        let mut telling = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        telling.output = telling.output.max(output);
    }

    /// It has used this, in all.
    pub(in crate::wire) fn used(&self, usage: Usage) {
        let mut telling = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        telling.used = Some(usage);
        telling.output = telling.output.max(usage.output());
    }

    /// How much output was told of so far.
    pub(super) fn output(&self) -> Tokens {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).output
    }

    /// The usage told, if one was.
    pub(super) fn usage(&self) -> Option<Usage> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).used
    }
}
