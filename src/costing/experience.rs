//! What past requests taught of the cost of the next: one memory, taught once when a request ends.

use crate::policy::model::EffortFactors;
use crate::units::Usage;

use super::cached::Sessions;
use super::calibrate::Calibration;
use super::predict::Predictor;
use super::quote::Basis;

/// Everything that is learnt for quotes.
#[derive(Clone, Debug)]
pub struct Experience {
    /// How much output is to be expected.
    pub predictor: Predictor,
    /// How far counts of input are off.
    pub calibration: Calibration,
    /// How much of sessions' input is cached.
    pub sessions: Sessions,
}

impl Experience {
    /// None yet but what a policy says of stated efforts.
    #[must_use]
    pub fn new(efforts: EffortFactors) -> Self {
        Self { predictor: Predictor::new(efforts), calibration: Calibration::default(), sessions: Sessions::default() }
    }

    /// A request came to its end, and the upstream reported what it used.
    pub fn learn(&mut self, basis: &Basis, expected: &Usage, usage: &Usage) {
        let Basis { key, counted, .. } = basis;
        self.predictor.learn(key, expected.output(), usage.output());
        self.calibration.learn(&key.tenant, &key.model, counted, expected.input(), usage.input());
        if let Some(session) = basis.session_key() {
            self.sessions.learn(session, usage);
        }
    }

    /// A request ended otherwise: what it used is an estimate, and learning from it would be learning from oneself.
    pub fn unreported(&mut self, basis: &Basis) {
        if let Some(session) = basis.session_key() {
            self.sessions.forget(&session);
        }
    }
}
