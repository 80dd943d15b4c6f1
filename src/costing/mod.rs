//! What a request will cost, before anybody knows: counted input, predicted output, the model's price.
//!
//! A dialect reads a [`Call`] out of a request body; a [`Meter`] counts its input; the [`Predictor`] guesses its
//! output; [`Quote`] puts them together for the core. Nothing here reads a clock or does IO, and the work per
//! request is bounded whatever the request contains.

mod call;
mod count;
mod image;
mod predict;
mod quote;
mod text;

pub use call::{Attachment, Call, Prompt};
pub use count::{COUNTED_TEXT, Counted, Encoding, Fit, Meter, OutputCounter, count_text};
pub use image::{Api, Detail, Image, PixelSize};
pub use predict::{Accuracy, Effort, PredictKey, Predictor, Score};
pub use quote::{Quote, admissible};
pub use text::Text;
