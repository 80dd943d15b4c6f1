//! What inference engines say of their own load, read from text.
//!
//! Two ways in: the page of metrics that every engine offers (`exposition` reads its format, `names` knows what
//! each engine calls its gauges), and the header that some put on an answer when asked (`orca`). Both end in one
//! [`EngineGauges`](crate::units::EngineGauges), in which whatever was not said is missing, never zero. Text in,
//! values out: whoever fetches the text, and how old it is, is the shell's affair.

mod exposition;
mod names;
mod orca;

pub use exposition::{Malformed, Sample};
pub use names::{Page, Unread, read_page};
pub use orca::{NotOrca, read_header};
