//! Puts a price on a call: input as counted and corrected, how much of it is cached, output as predicted, under the
//! price list the policy selects.
//!
//! Never more output than the client's own cap times the answers it asks for; a call without a cap has no cap here
//! either. Never less than what the request insists on. Nothing that was learnt makes a request larger than its pool
//! admits: whether it is too large for good is for its count and its own words to say, not for a guess. So a
//! correction may bring a request below that size, but not above it where the bare count is not.

use crate::policy::model::{Caller, Selection};
use crate::units::{Agent, Limit, Price, SessionId, Tokens, Usage};

use super::cached::SessionKey;
use super::call::Call;
use super::count::Counted;
use super::experience::Experience;
use super::predict::PredictKey;

/// A priced call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quote {
    /// Input as counted and corrected, output as predicted.
    pub expected: Usage,
    /// The most output all choices together can produce, where the client states a cap.
    pub output_cap: Limit<Tokens>,
    /// The price list.
    pub price: Price,
    /// What it was made from.
    pub basis: Basis,
}

/// What a quote was made from, to learn from its outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Basis {
    /// What the output was predicted from.
    pub key: PredictKey,
    /// What the input was corrected from.
    pub counted: Counted,
    /// The session it belongs to, if any, and which of its agents asks.
    pub session: Option<(SessionId, Agent)>,
}

impl Basis {
    pub(super) fn session_key(&self) -> Option<SessionKey> {
        let (session, agent) = self.session.clone()?;
        Some((self.key.tenant.clone(), session, agent, self.key.model.clone()))
    }
}

impl Quote {
    /// Prices a call whose input was counted, for a pool that admits requests of at most so many tokens.
    #[must_use]
    pub fn new(
        call: &Call,
        counted: Counted,
        caller: &Caller,
        selection: &Selection,
        experience: &Experience,
        most: Limit<Tokens>,
    ) -> Self {
        let key = PredictKey {
            tenant: caller.tenant.clone(),
            model: selection.model.clone(),
            effort: call.effort,
            cap: call.cap,
            choices: call.choices,
        };
        let output_cap = match call.cap {
            Limit::Unlimited => Limit::Unlimited,
            Limit::AtMost(cap) => Limit::AtMost(cap.times(u64::from(call.choices.get()))),
        };
        let least = call.least.times(u64::from(call.choices.get()));
        let corrected = experience.calibration.expect(&key.tenant, &key.model, &counted);
        let input = most.cap().map_or(corrected, |most| corrected.min(most.max(counted.total())));
        let output = admissible(experience.predictor.predict(&key), input, most).max(least);
        let basis = Basis { key, counted, session: caller.session.clone().map(|session| (session, caller.agent)) };
        let input = match basis.session_key() {
            Some(session) => experience.sessions.split(&session, input),
            None => Usage { uncached_input: input, ..Usage::default() },
        };
        Self { expected: input.with_output(output), output_cap, price: selection.price, basis }
    }
}

/// A predicted output, as far as a request with this input may have it in a pool that admits at most so many tokens.
#[must_use]
pub fn admissible(predicted: Tokens, input: Tokens, most: Limit<Tokens>) -> Tokens {
    most.cap().map_or(predicted, |most| predicted.min(most.saturating_sub(input)))
}

#[cfg(test)]
mod tests;
