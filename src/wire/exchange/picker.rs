//! What is told to an endpoint picker behind a door, and what it says.
//!
//! The Gateway API Inference Extension's pickers, llm-d's among them, share an endpoint's queue by a fairness id and order
//! it by an objective, both taken from headers that any client can send. Where the operator wants it they are written
//! here, from the verified tenant and the class that was granted, and what clients sent of them is taken away, under
//! their older names too. What a picker answers with (the endpoint, a cost of its own) is remembered with the decision.
//! It changes no charge: whatever the picker counts, it counts in a unit of its own.

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::observe::decisions::Picked;
use crate::shell::Gate;
use crate::units::DecisionId;

const FAIRNESS: HeaderName = HeaderName::from_static("x-llm-d-inference-fairness-id");
const OBJECTIVE: HeaderName = HeaderName::from_static("x-llm-d-inference-objective");

/// Everything a picker reads as one of the two.
pub(in crate::wire) const TOLD: [HeaderName; 4] = [
    FAIRNESS,
    OBJECTIVE,
    HeaderName::from_static("x-gateway-inference-fairness-id"),
    HeaderName::from_static("x-gateway-inference-objective"),
];

/// Tells whose a request is and what it competes in. A name that cannot stand in a header is not told, which a picker
/// takes for nobody's.
pub(super) fn tell(onward: &mut HeaderMap, tenant: &str, class: &str) {
    for (name, value) in [(FAIRNESS, tenant), (OBJECTIVE, class)] {
        if let Ok(value) = HeaderValue::from_bytes(value.as_bytes()) {
            onward.insert(name, value);
        }
    }
}

/// An endpoint picker said something of a request.
pub(in crate::wire) fn picked(gate: &Gate, decision: DecisionId, picked: Picked) {
    gate.decisions().picked(decision.request, picked);
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;

    use super::{FAIRNESS, OBJECTIVE, tell};

    #[test]
    fn what_a_client_said_is_overwritten_and_no_name_breaks_a_header() {
        let mut onward = HeaderMap::from_iter([(FAIRNESS, "forged".parse().expect("a value"))]);
        tell(&mut onward, "Größe", "batch");
        assert_eq!(onward[FAIRNESS].as_bytes(), "Größe".as_bytes());
        assert_eq!(onward[OBJECTIVE], "batch");
        let mut onward = HeaderMap::new();
        tell(&mut onward, "a\nb: c", "batch");
        assert_eq!((onward.get(FAIRNESS), onward.len()), (None, 1));
    }
}
