//! How good the estimates of each model's requests were: what was expected against what was reported, in tokens.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::costing::{InputScore, Score};
use crate::shell::{Broken, Gate};

/// The name of the row of all models together.
const ALL: &str = "*";

/// A model's estimates. Errors are means of what was expected too much or too little, biases of what was expected too
/// much; all in tokens.
#[derive(Debug, Serialize)]
pub(super) struct AccuracyRow {
    model: String,
    /// Requests that ended with a report, and with one that says something of the count.
    outputs: u64,
    output_error: f64,
    output_bias: f64,
    output_p50: u64,
    output_p90: u64,
    output_p99: u64,
    inputs: u64,
    /// Of the input as it was expected, and of the bare count.
    input_error: f64,
    input_bias: f64,
    counted_error: f64,
    counted_bias: f64,
}

impl AccuracyRow {
    fn new(model: &str, output: Score, input: Option<InputScore>) -> Self {
        let of = |value: fn(&InputScore) -> f64| input.as_ref().map_or(0.0, value);
        Self {
            model: model.to_owned(),
            outputs: output.count,
            output_error: output.mean_absolute_error,
            output_bias: output.bias,
            output_p50: output.p50.get(),
            output_p90: output.p90.get(),
            output_p99: output.p99.get(),
            inputs: input.map_or(0, |input| input.expected.count),
            input_error: of(|input| input.expected.mean_absolute_error),
            input_bias: of(|input| input.expected.bias),
            counted_error: of(|input| input.counted.mean_absolute_error),
            counted_bias: of(|input| input.counted.bias),
        }
    }
}

/// Those of all together, then each model's by name. Behind the lock only scores are made, three a model.
pub(super) fn rows(gate: &Gate) -> Result<Vec<AccuracyRow>, Broken> {
    let (output, overall, models) = gate.look(|seen| {
        let calibration = &seen.experience.calibration;
        (seen.experience.predictor.accuracy(), calibration.overall(), calibration.models())
    })?;
    let inputs: BTreeMap<_, _> = models.into_iter().collect();
    let all = AccuracyRow::new(ALL, output.overall, Some(overall));
    let each =
        output.models.iter().map(|(model, score)| AccuracyRow::new(model.as_str(), *score, inputs.get(model).copied()));
    Ok(std::iter::once(all).chain(each).collect())
}
