//! The path: which model is called, and how.
//!
//! `/v1beta/models/{model}:generateContent`, in any version, and Vertex's
//! `/v1/projects/{}/locations/{}/publishers/{}/models/{model}:…`. `:streamGenerateContent` streams. A model's name in
//! a path has letters, digits, `-`, `_`, `.` and `@`; what is written otherwise is not read, and so not metered.

use std::ops::Range;

/// The longest model name that is looked at.
const MAX_MODEL_NAME: usize = 256;

const WHOLE: &str = "generateContent";
const STREAMED: &str = "streamGenerateContent";

/// What a path calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::wire::dialect) struct Called<'a> {
    /// The model.
    pub(in crate::wire::dialect) model: &'a str,
    /// Whether its answer is streamed.
    pub(in crate::wire::dialect) streamed: bool,
    at: Range<usize>,
}

impl<'a> Called<'a> {
    /// Reads a path; nothing where it calls something else.
    pub(in crate::wire::dialect) fn read(path: &'a str) -> Option<Self> {
        let (resource, verb) = path.rsplit_once(':')?;
        let streamed = match verb {
            WHOLE => false,
            STREAMED => true,
            _ => return None,
        };
        let (folder, model) = resource.rsplit_once('/')?;
        let named = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'@');
        if model.is_empty() || model.len() > MAX_MODEL_NAME || !model.bytes().all(named) {
            return None;
        }
        let mut segments = folder.strip_prefix('/')?.split('/');
        let version = segments.next()?.strip_prefix('v')?;
        let plain = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric());
        if !plain(version) || !version.starts_with(|first: char| first.is_ascii_digit()) {
            return None;
        }
        let rest: Vec<&str> = segments.collect();
        let known = match rest[..] {
            ["models"] => true,
            ["projects", project, "locations", location, "publishers", publisher, "models"] => {
                [project, location, publisher].iter().all(|name| !name.is_empty() && name.bytes().all(named))
            }
            _ => false,
        };
        let at = folder.len() + 1..resource.len();
        known.then_some(Self { model, streamed, at })
    }
}

/// Whether a path that is not exactly one of these could be taken for one. `plain` is what servers commonly see of it.
pub(in crate::wire::dialect) fn is_spelling(plain: &str) -> bool {
    let verb = plain.rsplit_once(':').map(|(_, verb)| verb);
    verb.is_some_and(|verb| verb.eq_ignore_ascii_case(WHOLE) || verb.eq_ignore_ascii_case(STREAMED))
}

/// The path with another model in its place.
pub(in crate::wire::dialect) fn renamed(path: &str, model: &str) -> Option<String> {
    let at = Called::read(path)?.at;
    if &path[at.clone()] == model {
        return None;
    }
    let mut written = String::new();
    for byte in model.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'@') {
            written.push(char::from(byte));
        } else {
            written += &format!("%{byte:02X}");
        }
    }
    Some([&path[..at.start], &written, &path[at.end..]].concat())
}

#[cfg(test)]
mod tests {
    use super::{Called, is_spelling, renamed};

    #[test]
    fn paths_tell_the_model_and_whether_it_streams() {
        let vertex = "/v1/projects/p-1/locations/us-central1/publishers/google/models/gemini-2.5-pro:generateContent";
        for (path, model, streamed) in [
            ("/v1beta/models/gemini-2.5-flash:generateContent", "gemini-2.5-flash", false),
            ("/v1/models/g@001:streamGenerateContent", "g@001", true),
            (vertex, "gemini-2.5-pro", false),
        ] {
            let called = Called::read(path).expect(path);
            assert_eq!((called.model, called.streamed), (model, streamed));
        }
        for other in [
            "/v1beta/models/g:countTokens",
            "/v1beta/models/g:embedContent",
            "/v1beta/models/:generateContent",
            "/v1beta/models/a/b:generateContent",
            "/v1beta/models/a%2Fb:generateContent",
            "/x/models/g:generateContent",
            "/v/models/g:generateContent",
            "/v1beta/tunedModels/g:generateContent",
            "/v1beta/models/g:generateContent/",
            "/v1beta/models/g:generatecontent",
        ] {
            assert_eq!(Called::read(other), None, "{other}");
        }
        assert!(is_spelling("/v1beta/models/g:generatecontent") && !is_spelling("/v1beta/models/g:counttokens"));
    }

    #[test]
    fn an_alias_changes_the_path_alone() {
        let path = "/v1beta/models/gemini-pro:streamGenerateContent";
        let to = renamed(path, "meta/llama 3").expect("another");
        assert_eq!(to, "/v1beta/models/meta%2Fllama%203:streamGenerateContent");
        assert_eq!(renamed(path, "gemini-pro"), None);
    }
}
