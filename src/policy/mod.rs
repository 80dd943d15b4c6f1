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

use schemars::Schema;
use schemars::transform::{RecursiveTransform, Transform};
use serde_json::Value;

pub use crate::yaml::Mistakes;
pub use keys::KeysText;
pub use model::Policy;
pub use parse::{Written, load, load_written, parse, parse_alone};
pub use pattern::Pattern;

/// The JSON Schema of a policy file, from which its manual is made.
#[must_use]
pub fn schema() -> Value {
    let mut schema = schemars::schema_for!(form::Policy);
    RecursiveTransform(without_null).transform(&mut schema);
    schema.to_value()
}

/// A key without a value is refused, though serde would take it for one that was left out.
fn without_null(schema: &mut Schema) {
    if let Some(Value::Array(types)) = schema.get_mut("type") {
        types.retain(|name| name != "null");
        if let [only] = &mut types[..] {
            let only = only.take();
            schema.insert("type".into(), only);
        }
    }
    if let Some(Value::Array(forms)) = schema.get_mut("anyOf") {
        forms.retain(|form| form.get("type").and_then(Value::as_str) != Some("null"));
        if let [Value::Object(only)] = &mut forms[..] {
            let only = std::mem::take(only);
            schema.remove("anyOf");
            only.into_iter().for_each(|(keyword, value)| drop(schema.insert(keyword, value)));
        }
    }
}
