//! From a YAML file to a policy that is valid by construction.
//!
//! `form` is what may be written, `parse` turns it into what is meant or into every mistake at once, `model` is
//! what the rest of the program sees, and `select` answers what the policy says of one request.

mod form;
mod keys;
pub mod model;
mod parse;
mod pattern;
mod select;

pub use keys::KeysText;
pub use model::Policy;
pub use parse::{load, parse};
pub use pattern::Pattern;

/// The JSON Schema of a policy file, from which its manual is made.
#[must_use]
pub fn schema() -> serde_json::Value {
    schemars::schema_for!(form::Policy).to_value()
}
