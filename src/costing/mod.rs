//! What a request will cost, and what it did cost.

mod predict;

pub use predict::{Accuracy, Effort, PredictKey, Predictor, Score};
