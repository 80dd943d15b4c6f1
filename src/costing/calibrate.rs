//! How far the counted input is from what the upstream reports.
//!
//! *Decides* the input to expect of a request from the count of what is in its body. For a model whose tokenizer is
//! ours the count of texts and markup stands as it is and only tools and other JSON are corrected; for any other
//! model all of it is.
//!
//! The rule. A count has five parts: text, JSON and markup in tokens, and of the text the digits and the characters
//! beyond ASCII, since those are what tokenizers differ in most (some give every digit a token of its own, or a
//! Chinese character one, or three). The input is taken to be a sum over the parts, `θ·x`, and `θ` is the ridge
//! regression of what was reported for requests, each relative to its size:
//!
//! ```text
//! θ_k = (Σ w·s·sᵀ + Λ)⁻¹ (Σ w·s·r + Λ·θ_broader)   s = x / base, r = reported / base, w = min(1, base / 256)
//! base = text + JSON + markup, in tokens           θ before anything is known = (1, 1, 1, 0, 0)
//! Λ = diag(3, 1, 1, 0.1, 0.3) for a model, a tenth of that for a tenant, in requests
//! ```
//!
//! for the keys model → (tenant, model). A few small requests, of which a template's own words are half, say little
//! about large ones, hence `w`; a tenant's own requests say much about his next, hence the tenth. Sums fade: a tenant's
//! stand for at most his last 50 requests, a model's for 200. A single ratio a model was measured against this, and so
//! were fewer parts; `docs/costing.md` has the table.
//!
//! *Learns* from complete answers with a final report, and only where all of the input was in the body and was text:
//! not where the upstream holds the history, nor where there are images. Never from a report beyond a factor of
//! [`IMPLAUSIBLE`], which is of something else than what was counted.
//!
//! *Bounds.* Nobody's input is ever taken for less than a third or more than three times its count, whatever anybody
//! taught; and who is misjudged because of what another tenant taught is judged by his own requests after a few. At
//! most [`Calibration::MOST_TENANTS`] keys, the one longest without news forgotten first. Predicting and learning are
//! a few hundred multiplications. Deterministic: no chance, no clock. It never decides that a request is too large
//! for good: see `quote`.

use crate::units::{Model, TenantId, Tokens};

use super::count::{Counted, Fit};
use super::error::{Score, Tally};
use super::recent::Recent;

/// The parts of a count.
const PARTS: usize = 5;
type Parts = [f64; PARTS];

/// What a token or character of each part costs before anything is known: text, JSON, markup, digits, wide characters.
const PRIOR: Parts = [1.0, 1.0, 1.0, 0.0, 0.0];
/// Requests' worth of belief in the prior, for each part. A request that is one part alone has a share of one there;
/// digits and wide characters are never more than a part of a text.
const BELIEF: Parts = [3.0, 1.0, 1.0, 0.1, 0.3];
/// How much of that is a tenant's belief in what its model's requests say.
const BELIEF_OF_TENANT: f64 = 0.1;
/// From how many tokens on a request counts as one. Smaller ones count in proportion.
const WHOLE: f64 = 256.0;
/// The most requests that a model's sums, and a narrower key's, stand for.
const MOST_OF_MODEL: f64 = 200.0;
const MOST_OF_TENANT: f64 = 50.0;
/// The largest factor between a count and what it is taken for.
const MOST_FACTOR: f64 = 3.0;
/// The largest factor between a count and a report that is learnt from.
const IMPLAUSIBLE: f64 = 6.0;

/// A count taken apart.
#[derive(Clone, Copy, Debug)]
struct Split {
    /// What is not corrected.
    fixed: Tokens,
    parts: Parts,
    /// What is corrected, as counted.
    base: f64,
}

#[expect(clippy::cast_precision_loss, reason = "an estimate needs no 53rd bit")]
fn float(tokens: Tokens) -> f64 {
    tokens.get() as f64
}

impl Split {
    fn of(counted: &Counted) -> Self {
        let Counted { encoded, text, markup, structured, attachments, digits, wide, fit, .. } = *counted;
        let (fixed, parts) = match fit {
            Fit::Exact => (encoded + attachments + text + markup, [0.0, float(structured), 0.0, 0.0, 0.0]),
            Fit::Near => (encoded + attachments, [text, structured, markup, digits, wide].map(float)),
        };
        Self { fixed, parts, base: parts[..3].iter().sum() }
    }
}

/// Sums of a regression over requests.
#[derive(Clone, Debug, Default)]
struct Sums {
    products: [Parts; PARTS],
    reported: Parts,
    count: f64,
}

impl Sums {
    fn add(&mut self, lesson: &Lesson, most: f64) {
        let Lesson { shares, ratio, weight } = lesson;
        for (row, share) in self.products.iter_mut().zip(shares) {
            row.iter_mut().zip(shares).for_each(|(sum, other)| *sum += weight * share * other);
        }
        self.reported.iter_mut().zip(shares).for_each(|(sum, share)| *sum += weight * share * ratio);
        self.count += weight;
        if self.count > most {
            let fade = most / self.count;
            self.products.iter_mut().flatten().chain(&mut self.reported).for_each(|sum| *sum *= fade);
            self.count = most;
        }
    }

    /// What each part costs, drawn towards what it costs by a broader key.
    fn towards(&self, broader: &Parts, belief: f64) -> Parts {
        let mut rows = self.products;
        let mut right = self.reported;
        for at in 0..PARTS {
            rows[at][at] += belief * BELIEF[at];
            right[at] += belief * BELIEF[at] * broader[at];
        }
        solve(rows, right)
    }
}

/// Gaussian elimination. The matrix is symmetric and, with the belief on its diagonal, positive definite, so that no
/// pivot is smaller than the least belief.
fn solve(mut rows: [Parts; PARTS], mut right: Parts) -> Parts {
    for pivot in 0..PARTS {
        let (upper, lower) = rows.split_at_mut(pivot + 1);
        for (row, below) in lower.iter_mut().zip(pivot + 1..) {
            let factor = row[pivot] / upper[pivot][pivot];
            row.iter_mut().zip(&upper[pivot]).for_each(|(value, above)| *value -= factor * above);
            right[below] -= factor * right[pivot];
        }
    }
    for pivot in (0..PARTS).rev() {
        let known: f64 = (pivot + 1..PARTS).map(|at| rows[pivot][at] * right[at]).sum();
        right[pivot] = (right[pivot] - known) / rows[pivot][pivot];
    }
    right
}

/// What is known of a model.
#[derive(Clone, Debug, Default)]
struct OfModel {
    sums: Sums,
    counted: Tally,
    expected: Tally,
}

/// How good counts and expectations were, of all requests or of one model's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct InputScore {
    /// Of the bare count.
    pub counted: Score,
    /// Of the count as corrected.
    pub expected: Score,
}

/// The corrections.
#[derive(Clone, Debug)]
pub struct Calibration {
    models: Recent<Model, OfModel>,
    tenants: Recent<(TenantId, Model), Sums>,
    counted: Tally,
    expected: Tally,
}

impl Default for Calibration {
    fn default() -> Self {
        Self::with_most_keys(Self::MOST_TENANTS)
    }
}

impl Calibration {
    /// The most (tenant, model) pairs remembered.
    pub const MOST_TENANTS: usize = 16_384;
    /// The most models remembered.
    pub const MOST_MODELS: usize = 1_024;

    fn with_most_keys(most: usize) -> Self {
        Self {
            models: Recent::new(Self::MOST_MODELS.min(most)),
            tenants: Recent::new(most),
            counted: Tally::default(),
            expected: Tally::default(),
        }
    }

    /// The input to expect of a request that was counted so.
    #[must_use]
    pub fn expect(&self, tenant: &TenantId, model: &Model, counted: &Counted) -> Tokens {
        let split = Split::of(counted);
        let costs = self.models.get(model).map_or(PRIOR, |of| of.sums.towards(&PRIOR, 1.0));
        let costs = match self.tenants.get(&(tenant.clone(), model.clone())) {
            Some(sums) => sums.towards(&costs, BELIEF_OF_TENANT),
            None => costs,
        };
        let corrected: f64 = costs.iter().zip(&split.parts).map(|(cost, part)| cost * part).sum();
        let bounded = corrected.clamp(split.base / MOST_FACTOR, split.base * MOST_FACTOR);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "not negative, and `as` saturates as is meant"
        )]
        let corrected = Tokens::new(bounded.round() as u64);
        split.fixed + corrected
    }

    /// Learns what the upstream reported for a request that was counted so and for which so much was expected.
    pub fn learn(&mut self, tenant: &TenantId, model: &Model, counted: &Counted, expected: Tokens, reported: Tokens) {
        if counted.is_partial() || counted.total() == Tokens::ZERO {
            return;
        }
        self.counted.add(counted.total(), reported);
        self.expected.add(expected, reported);
        let lesson = lesson(counted, reported);
        self.models.entry(model.clone(), |of| {
            of.counted.add(counted.total(), reported);
            of.expected.add(expected, reported);
            if let Some(lesson) = &lesson {
                of.sums.add(lesson, MOST_OF_MODEL);
            }
        });
        if let Some(lesson) = lesson {
            let key = (tenant.clone(), model.clone());
            self.tenants.entry(key, |sums| sums.add(&lesson, MOST_OF_TENANT));
        }
    }

    /// How good counts and expectations were over all requests.
    #[must_use]
    pub fn overall(&self) -> InputScore {
        InputScore { counted: self.counted.score(), expected: self.expected.score() }
    }

    /// The same of each model, by name.
    #[must_use]
    pub fn models(&self) -> Vec<(Model, InputScore)> {
        let score = |of: &OfModel| InputScore { counted: of.counted.score(), expected: of.expected.score() };
        let mut models: Vec<_> = self.models.iter().map(|(model, of)| (model.clone(), score(of))).collect();
        models.sort_by(|a, b| a.0.cmp(&b.0));
        models
    }
}

/// What a report teaches.
struct Lesson {
    /// What the parts are of the base.
    shares: Parts,
    /// What was reported, of the base.
    ratio: f64,
    /// How many requests it counts as.
    weight: f64,
}

/// What a report teaches; nothing where it is not of what was counted.
fn lesson(counted: &Counted, reported: Tokens) -> Option<Lesson> {
    let split = Split::of(counted);
    if split.base == 0.0 || counted.attachments > Tokens::ZERO {
        return None;
    }
    let ratio = float(reported.saturating_sub(split.fixed)) / split.base;
    if !(1.0 / IMPLAUSIBLE..=IMPLAUSIBLE).contains(&ratio) {
        return None;
    }
    Some(Lesson {
        shares: split.parts.map(|part| part / split.base),
        ratio: ratio.clamp(1.0 / MOST_FACTOR, MOST_FACTOR),
        weight: (split.base / WHOLE).min(1.0),
    })
}

#[cfg(test)]
mod tests;
