//! How good the estimates of each model's requests were: what was expected against what was reported, in tokens.

use serde::Serialize;

use crate::costing::Score;
use crate::shell::{Broken, Gate};

/// A model's rows, and those of all together under the name `*`.
#[derive(Debug, Serialize)]
pub(super) struct AccuracyRow {
    model: String,
    /// The output, as predicted.
    output: ScoreRow,
    /// The input, as counted and then corrected.
    input: ScoreRow,
    /// The input, as counted.
    input_counted: ScoreRow,
}

#[derive(Debug, Default, Serialize)]
struct ScoreRow {
    completed: u64,
    mean_absolute_error: f64,
    bias: f64,
    actual_p50: u64,
    actual_p90: u64,
    actual_p99: u64,
}

impl From<Score> for ScoreRow {
    fn from(score: Score) -> Self {
        Self {
            completed: score.count,
            mean_absolute_error: score.mean_absolute_error,
            bias: score.bias,
            actual_p50: score.p50.get(),
            actual_p90: score.p90.get(),
            actual_p99: score.p99.get(),
        }
    }
}

/// All of them. Behind the lock only scores are made, at most one a model.
pub(super) fn rows(gate: &Gate) -> Result<Vec<AccuracyRow>, Broken> {
    let (output, overall, models) = gate.look(|seen| {
        let calibration = &seen.experience.calibration;
        (seen.experience.predictor.accuracy(), calibration.overall(), calibration.models())
    })?;
    let mut inputs: std::collections::BTreeMap<_, _> = models.into_iter().collect();
    let all = std::iter::once(("*".to_owned(), output.overall, Some(overall)));
    let each = output.models.into_iter().map(|(model, score)| {
        let input = inputs.remove(&model);
        (model.as_str().to_owned(), score, input)
    });
    let rows = all.chain(each).map(|(model, output, input)| AccuracyRow {
        model,
        output: output.into(),
        input: input.map(|input| input.expected.into()).unwrap_or_default(),
        input_counted: input.map(|input| input.counted.into()).unwrap_or_default(),
    });
    Ok(rows.collect())
}
