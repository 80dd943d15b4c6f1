//! What happens to one request and its answer, the same at every door.
//!
//! A door reads a head and a body off its wire and hands them in here; what it gets back it writes to its wire. In the
//! order of a request's life:
//!
//! | step | here |
//! |---|---|
//! | the head: metered or not, who calls, how patiently, how the body is encoded | [`enter`] |
//! | the body, within the memory that all bodies share | [`Memory`], [`decode`] |
//! | what it asks for, where it goes, what it costs; whether and when | [`prepare`], [`Prepared::admit`] |
//! | both of a body that is here as a whole | [`take`] |
//! | a request whose cost is told by somebody else | [`enter_appraised`], [`appraise`], [`Told`] |
//! | the same of a body that somebody else read | [`take_at_word`] |
//! | a request that costs nothing: where it goes | [`rename`] |
//! | an endpoint picker behind the door: what it is told, what it says | [`Admitted::tell_picker`], [`picked`] |
//! | the head of the answer: what is left of the limits | [`mark`] |
//! | the answer, watched and settled once | [`Admitted::meter`], [`Meter`] |
//! | what the engine is asked to report of its load, and what it reports | [`Admitted::ask_for_load`], [`Admitted::keeps_load`] |
//! | an answer that passes elsewhere, told of and settled once | [`Admitted::lease`], [`Unwatched`] |
//! | a refusal, counted, remembered and put into the caller's words | [`refuse`] |
//! | what is remembered of all of it | [`came`], [`identified`], [`passed`], [`Passing`] |
//!
//! No door imports another. What is written here once cannot differ between them; `tests/it/doors` shows that what is
//! left to each does not either.

mod coding;
mod entrance;
mod heard;
mod load;
mod memory;
mod meter;
mod patience;
mod picker;
mod prepare;
mod record;
mod take;
mod told;
mod unwatched;
mod watch;

use http::header::{AUTHORIZATION, HeaderName};

pub(in crate::wire) use coding::{Coding, decode, decode_here};
pub(in crate::wire) use entrance::{Entered, RequestHead, Toll, enter, enter_appraised, enter_as};
pub(in crate::wire) use load::REPORT;
pub(in crate::wire) use memory::{Kept, Memory};
pub(in crate::wire) use meter::Meter;
pub(in crate::wire) use picker::{TOLD, picked};
pub(in crate::wire) use prepare::{
    Admitted, Appraised, Arrival, Lens, Prepared, Size, Stated, appraise, prepare, read, rename, sized, take_at_word,
};
pub(in crate::wire) use record::{Passing, came, identified, mark, on_trial, passed, refuse};
pub(in crate::wire) use take::{Here, Taken, read_here, take};
pub(in crate::wire) use told::Told;
pub(in crate::wire) use unwatched::{Reach, Unwatched};

/// What the names of our own headers begin with. They are read here or mean nothing, in either direction, so that
/// nobody can speak for us.
pub(in crate::wire) const OURS: &str = "x-tallygate-";

/// Where a client shows a key. One of ours does not travel on.
pub(in crate::wire) const KEYS: [HeaderName; 3] =
    [AUTHORIZATION, HeaderName::from_static("x-api-key"), HeaderName::from_static("x-goog-api-key")];
