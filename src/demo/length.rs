//! How long a simulated answer is.
//!
//! Where a request says `ignore_eos`, exactly what it asks for, so that a load test is in control. Otherwise the
//! length a model might have chosen: lognormal, which is the shape of chat answers, with a mean of 200 tokens,
//! `tokens = exp(μ + σ·z)` with `μ = ln 200 − σ²/2` and `σ = 0.8`; at least one token, at most the request's own cap
//! and what the engine's memory leaves. Seeded: the same requests in the same order get the same lengths.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::units::{Limit, Tokens};

const MEAN: f64 = 200.0;
const SIGMA: f64 = 0.8;

/// Chooses the lengths of answers.
#[derive(Debug)]
pub(super) struct Lengths {
    random: StdRng,
}

/// What a request says of its answer's length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wish {
    /// As long as the model likes, within a cap.
    UpTo(Limit<Tokens>),
    /// Exactly this long.
    Exactly(Tokens),
}

/// An answer's length, and why it ends there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Length {
    pub(super) tokens: Tokens,
    pub(super) ending: EndsBecause,
}

/// Why an answer ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndsBecause {
    /// The model was done.
    Stop,
    /// It was cut off.
    Length,
}

impl EndsBecause {
    pub(super) const fn finish_reason(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
        }
    }
}

impl Lengths {
    pub(super) fn new(seed: u64) -> Self {
        Self { random: StdRng::seed_from_u64(seed) }
    }

    /// The length of the next answer, where the engine has `room` for this many tokens of it.
    pub(super) fn next(&mut self, wish: Wish, room: Tokens) -> Length {
        match wish {
            Wish::Exactly(tokens) => Length { tokens, ending: EndsBecause::Length },
            Wish::UpTo(cap) => {
                let natural = self.natural();
                let most = cap.cap().map_or(room, |cap| cap.min(room)).max(Tokens::new(1));
                let ending = if natural > most { EndsBecause::Length } else { EndsBecause::Stop };
                Length { tokens: natural.min(most), ending }
            }
        }
    }

    fn natural(&mut self) -> Tokens {
        // Box-Muller; 1 − u is never zero.
        let (u, v): (f64, f64) = (self.random.random(), self.random.random());
        let z = (-2.0 * (1.0 - u).ln()).sqrt() * (std::f64::consts::TAU * v).cos();
        let tokens = (MEAN.ln() - SIGMA * SIGMA / 2.0 + SIGMA * z).exp();
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "positive, and `as` saturates")]
        let tokens = tokens.round() as u64;
        Tokens::new(tokens.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::{EndsBecause, Length, Lengths, Wish};
    use crate::units::{Limit, Tokens};

    const ROOM: Tokens = Tokens::new(100_000);

    #[test]
    fn natural_lengths_have_the_stated_mean_and_repeat_with_the_seed() {
        let draw = |seed| {
            let mut lengths = Lengths::new(seed);
            (0..20_000).map(|_| lengths.next(Wish::UpTo(Limit::Unlimited), ROOM).tokens).collect::<Vec<_>>()
        };
        let drawn = draw(7);
        let mean = drawn.iter().copied().sum::<Tokens>().get() / 20_000;
        assert!((190..=210).contains(&mean), "mean {mean}");
        assert_eq!(drawn, draw(7));
        assert_ne!(drawn, draw(8));
    }

    #[test]
    fn an_exact_wish_is_met_and_a_cap_cuts_off() {
        let mut lengths = Lengths::new(1);
        let exact = lengths.next(Wish::Exactly(Tokens::new(256)), ROOM);
        assert_eq!(exact, Length { tokens: Tokens::new(256), ending: EndsBecause::Length });
        let capped = lengths.next(Wish::UpTo(Limit::AtMost(Tokens::new(1))), ROOM);
        assert_eq!(capped, Length { tokens: Tokens::new(1), ending: EndsBecause::Length });
        let tight = lengths.next(Wish::UpTo(Limit::Unlimited), Tokens::new(2));
        assert!(tight.tokens <= Tokens::new(2));
    }
}
