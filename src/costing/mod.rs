//! What a request will cost, before anybody knows: counted input, predicted output, the model's price.
//!
//! A dialect reads a [`Call`] out of a request body; an [`InputCounter`] counts its input; what past requests
//! taught ([`Experience`]) corrects the count ([`Calibration`]), tells how much of it is cached ([`Sessions`]) and
//! guesses the output ([`Predictor`]); [`Quote`] puts them together for the core. Nothing here reads a clock or does IO, and the work per
//! request is bounded whatever the request contains.

mod cached;
mod calibrate;
mod call;
mod count;
mod error;
mod experience;
mod image;
mod predict;
mod quote;
mod recent;
mod text;

pub use cached::{SessionKey, Sessions};
pub use calibrate::{Calibration, InputScore};
pub use call::{Attachment, Call, History, Prompt};
pub use count::{COUNTED_TEXT, Counted, Encoding, Fit, InputCounter, OutputCounter, count_text};
pub use error::Score;
pub use experience::Experience;
pub use image::{Api, Detail, Image, PixelSize};
pub use predict::{Accuracy, Effort, PredictKey, Predictor};
pub use quote::{Basis, Quote, admissible};
pub use text::Text;
