//! In which ways Envoy's ext_proc filter may send bodies for Tallygate to do its work, in one place: the static check
//! reads them in a file, and the door reads them in the first message of every request.

use super::rules::{EAGER_BODY, REQUEST_BODY_MODE, RESPONSE_BODY_MODE, Rule};

/// The names of Envoy's body modes, in the order of their numbers.
pub const BODY_MODES: [&str; 6] = ["NONE", "STREAMED", "BUFFERED", "BUFFERED_PARTIAL", "FULL_DUPLEX_STREAMED", "GRPC"];

/// How bodies are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Modes<'name> {
    /// The request's, by its name.
    pub request: &'name str,
    /// The answer's.
    pub response: &'name str,
    /// Whether a body is sent before its head was answered.
    pub eagerness: Eagerness,
}

/// When a body is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Eagerness {
    /// Once the head was answered.
    AfterHeaders,
    /// At once (`send_body_without_waiting_for_header_response`).
    AtOnce,
}

/// What is wrong with the way bodies are sent for a filter that holds and watches, if anything: the rule, and what is
/// there.
///
/// A request's body must come in one piece, since it is read as a whole, or not at all. An answer's must be shown piece
/// by piece and wait for what we say of each, since what the client did not ask for is taken out; where no request's
/// body comes, nothing is asked for on a client's behalf and its answer need not come either.
#[must_use]
pub fn fault(modes: Modes<'_>) -> Option<(&'static Rule, String)> {
    let Modes { request, response, eagerness } = modes;
    if eagerness == Eagerness::AtOnce {
        let found = "send_body_without_waiting_for_header_response must be off".to_owned();
        return Some((&EAGER_BODY, found));
    }
    match (request, response) {
        ("BUFFERED" | "NONE", "STREAMED") | ("NONE", "NONE") => None,
        ("BUFFERED", _) => {
            Some((&RESPONSE_BODY_MODE, format!("response_body_mode is {response} and must be STREAMED")))
        }
        ("NONE", _) => {
            Some((&RESPONSE_BODY_MODE, format!("response_body_mode is {response} and must be STREAMED or NONE")))
        }
        _ => Some((
            &REQUEST_BODY_MODE,
            format!(
                "request_body_mode is {request} and must be BUFFERED, or NONE where the AI protocol manager reads bodies"
            ),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::{BODY_MODES, Eagerness, Modes, fault};

    #[test]
    fn bodies_come_whole_and_piece_by_piece_or_not_at_all() {
        let good: Vec<(&str, &str)> = BODY_MODES
            .iter()
            .flat_map(|request| BODY_MODES.iter().map(move |response| (*request, *response)))
            .filter(|(request, response)| {
                fault(Modes { request, response, eagerness: Eagerness::AfterHeaders }).is_none()
            })
            .collect();
        assert_eq!(good, [("NONE", "NONE"), ("NONE", "STREAMED"), ("BUFFERED", "STREAMED")]);
        let eager = Modes { request: "BUFFERED", response: "STREAMED", eagerness: Eagerness::AtOnce };
        assert!(fault(eager).is_some());
    }
}
