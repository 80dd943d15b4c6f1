//! What a request will cost, before anybody knows: counted input, predicted output, the model's price.
//!
//! A dialect reads a [`Call`] out of a request body; [`count_prompt`] counts its input; the predictor guesses its
//! output; [`Quote`] puts them together for the core. Nothing here reads a clock or does IO, and the work per
//! request is bounded whatever the request contains.

mod call;
mod count;
mod quote;

pub use call::{Attachment, Call, Effort, Prompt, Text};
pub use count::{COUNTED_TEXT, Encoding, OutputCounter, count_prompt, count_text};
pub use quote::{Forecast, Quote};
