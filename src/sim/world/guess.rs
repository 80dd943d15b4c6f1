//! Where predictions come from: the real predictor, or the truth with an error, to study what errors cost. How much of
//! a session's input is cached is expected by the real rule either way.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::costing::{PredictKey, Predictor, SessionKey, Sessions};
use crate::policy::model::{EffortFactors, Selection};
use crate::sim::demand::Demand;
use crate::units::{Agent, Tokens, Usage};

/// The largest factor, and the largest error, that can be asked for.
const MOST_FACTOR: f64 = 1_000.0;

/// Where predictions come from.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Guess {
    /// The predictor, which knows only what has completed.
    #[default]
    Learned,
    /// The true length times this. For study: no gateway can know it.
    Scaled(f64),
    /// The true length times something between one less and one more this part. For study.
    Jittered(f64),
}

impl std::str::FromStr for Guess {
    type Err = String;

    /// `1.5` for a factor, `±0.5` or `+-0.5` for a part.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "{text:?} is neither a factor between 0 and {MOST_FACTOR}, such as 1.5, nor a part between 0 and 1 \
                 after ±, such as ±0.5"
            )
        };
        let part = text.strip_prefix('±').or_else(|| text.strip_prefix("+-"));
        let (number, most) = part.map_or((text, MOST_FACTOR), |part| (part, 1.0));
        let number: f64 = number.parse().map_err(|_| wrong())?;
        if !(0.0..=most).contains(&number) {
            return Err(wrong());
        }
        Ok(if part.is_some() { Self::Jittered(number) } else { Self::Scaled(number) })
    }
}

/// Makes the predictions, and learns either way, so that the error is reported of whatever was used.
#[derive(Debug)]
pub(super) struct Guesser {
    guess: Guess,
    predictor: Predictor,
    sessions: Sessions,
    rng: StdRng,
}

impl Guesser {
    pub(super) fn new(guess: Guess, efforts: EffortFactors, seed: u64) -> Self {
        let predictor = Predictor::new(efforts);
        Self { guess, predictor, sessions: Sessions::default(), rng: StdRng::seed_from_u64(seed) }
    }

    /// The output to expect. Only the guesses made for study look at the true one.
    pub(super) fn predict(&mut self, key: &PredictKey, truth: Tokens) -> Tokens {
        let factor = match self.guess {
            Guess::Learned => return self.predictor.predict(key),
            Guess::Scaled(factor) => factor,
            Guess::Jittered(part) => 1.0 + part * (2.0 * self.rng.random::<f64>() - 1.0),
        };
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a guess; `as` saturates"
        )]
        let guess = Tokens::new((truth.get() as f64 * factor).round().max(1.0) as u64);
        key.cap.cap().map_or(guess, |cap| guess.min(cap))
    }

    pub(super) fn learn(&mut self, key: &PredictKey, predicted: Tokens, actual: Tokens) {
        self.predictor.learn(key, predicted, actual);
    }

    /// The input, as it will probably be found cached.
    pub(super) fn input(&self, session: Option<&SessionKey>, input: Tokens) -> Usage {
        session.map_or(Usage::plain(input, Tokens::ZERO), |session| self.sessions.split(session, input))
    }

    /// A request of a session ended, with a report or without.
    pub(super) fn session_ended(&mut self, session: SessionKey, reported: Option<&Usage>) {
        match reported {
            Some(usage) => self.sessions.learn(session, usage),
            None => self.sessions.forget(&session),
        }
    }

    pub(super) fn predictor(&self) -> &Predictor {
        &self.predictor
    }
}

/// What a request's output is predicted from.
pub(super) fn key(demand: &Demand, selection: &Selection) -> PredictKey {
    let plain = PredictKey::plain(demand.tenant.clone(), selection.model.clone());
    PredictKey { effort: demand.effort, cap: demand.max_tokens, ..plain }
}

/// Whose cached input a request's is expected to be like.
pub(super) fn session(demand: &Demand, selection: &Selection) -> Option<SessionKey> {
    let session = demand.session.clone()?;
    Some((demand.tenant.clone(), session, Agent::Lead, selection.model.clone()))
}

#[cfg(test)]
mod tests {
    use super::{Guess, Guesser};
    use crate::costing::PredictKey;
    use crate::policy::model::EffortFactors;
    use crate::units::{Model, TenantId, Tokens};

    #[test]
    fn an_error_is_a_factor_or_a_part() {
        assert_eq!("1.5".parse(), Ok(Guess::Scaled(1.5)));
        assert_eq!("±0.5".parse(), Ok(Guess::Jittered(0.5)));
        assert_eq!("+-0.25".parse(), Ok(Guess::Jittered(0.25)));
        for bad in ["", "±", "±1.5", "-1", "NaN", "inf", "half", "±±1"] {
            assert!(bad.parse::<Guess>().is_err(), "{bad}");
        }
    }

    #[test]
    fn guesses_made_for_study_stay_within_their_error() {
        let key = PredictKey::plain(TenantId::from("a"), Model::from("m"));
        let mut scaled = Guesser::new(Guess::Scaled(2.0), EffortFactors::NEUTRAL, 1);
        assert_eq!(scaled.predict(&key, Tokens::new(100)), Tokens::new(200));
        let mut jittered = Guesser::new(Guess::Jittered(0.5), EffortFactors::NEUTRAL, 1);
        let guesses: Vec<u64> = (0..1_000).map(|_| jittered.predict(&key, Tokens::new(1_000)).get()).collect();
        assert!(guesses.iter().all(|guess| (500..=1_500).contains(guess)));
        let mean = guesses.iter().sum::<u64>() / 1_000;
        assert!((970..=1_030).contains(&mean), "{mean}");
        let mut learned = Guesser::new(Guess::Learned, EffortFactors::NEUTRAL, 1);
        assert_eq!(learned.predict(&key, Tokens::new(1)), learned.predict(&key, Tokens::new(9_999)));
    }
}
