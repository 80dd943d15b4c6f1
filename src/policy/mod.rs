//! From a YAML file to a policy that is valid by construction.

pub mod model;
mod pattern;
mod select;

pub use model::Policy;
pub use pattern::Pattern;
