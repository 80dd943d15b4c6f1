//! Which requests are metered, which pass, which are refused, by method and path alone.
//!
//! A path that an upstream might take for a metered one although it is written otherwise (a doubled or trailing
//! slash, percent-encoding, capitals, a prefix of the upstream's) is refused whatever the policy says of unknown
//! paths, or spelling would be a way past the meter.

use http::Method;

use super::dialect::Dialect;

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// It is metered.
    Metered(Dialect),
    /// It costs nothing and passes.
    Free,
    /// It is what this gateway cannot do; what to do instead.
    Unsupported(&'static str),
    /// Not known here: as the policy's `unmetered` says.
    Unknown,
}

/// Counting is free at the providers: no token is generated and none is charged.
const COUNTING: [&str; 2] = ["/v1/messages/count_tokens", "/v1/responses/input_tokens"];

/// Routes a request.
#[must_use]
pub fn route(method: &Method, path: &str, body_is_empty: bool) -> Route {
    if let Some(dialect) = Dialect::of(method, path) {
        return Route::Metered(dialect);
    }
    let reading = matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS) && body_is_empty;
    let plain = plain(path);
    if plain == "/v1/realtime" || plain.starts_with("/v1/realtime/") || plain.starts_with("/realtime") {
        return Route::Unsupported("realtime sessions are not supported; use POST with \"stream\": true");
    }
    let counting = COUNTING.contains(&path) || (path.contains("/models/") && path.ends_with(":countTokens"));
    if reading || (*method == Method::POST && counting) {
        return Route::Free;
    }
    if Dialect::is_spelling(&plain) || Dialect::ALL.iter().any(|dialect| is_spelling_of(&plain, dialect.path())) {
        return Route::Unsupported("an API path must be POSTed to exactly as its documentation writes it");
    }
    Route::Unknown
}

/// Whether an upstream could take `plain` for `path`: below a prefix, or with the `/v1` its own address ends in.
fn is_spelling_of(plain: &str, path: &str) -> bool {
    plain.ends_with(path) || path.strip_prefix("/v1").is_some_and(|short| plain == short)
}

/// The path without what servers commonly see past.
fn plain(path: &str) -> String {
    let decoded = decode(path).to_ascii_lowercase();
    let mut segments: Vec<&str> = Vec::new();
    for segment in decoded.split(['/', '\\']) {
        match segment.split(';').next().unwrap_or("") {
            "" | "." => {}
            ".." => drop(segments.pop()),
            segment => segments.push(segment),
        }
    }
    segments.iter().fold(String::new(), |plain, segment| plain + "/" + segment)
}

/// Percent-decodes until nothing is left to decode, at most a few times.
fn decode(path: &str) -> String {
    const ROUNDS: usize = 3;
    let mut text = path.to_owned();
    for _ in 0..ROUNDS {
        let mut bytes = Vec::with_capacity(text.len());
        let mut rest = text.as_bytes();
        while let Some((first, after)) = rest.split_first() {
            let pair = (*first == b'%').then(|| after.get(..2)).flatten();
            let byte = pair.and_then(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok());
            bytes.push(byte.unwrap_or(*first));
            rest = if byte.is_some() { &after[2..] } else { after };
        }
        let decoded = String::from_utf8_lossy(&bytes).into_owned();
        if decoded == text {
            break;
        }
        text = decoded;
    }
    text
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::{Route, route};
    use crate::wire::dialect::Dialect;

    #[test]
    fn known_paths_are_metered_or_free() {
        for dialect in Dialect::ALL {
            assert_eq!(route(&Method::POST, dialect.path(), false), Route::Metered(dialect));
            assert_eq!(route(&Method::GET, dialect.path(), true), Route::Free, "a stored answer is read");
            assert!(matches!(route(&Method::PUT, dialect.path(), false), Route::Unsupported(_)));
        }
        for path in ["/v1/messages/count_tokens", "/v1/responses/input_tokens"] {
            assert_eq!(route(&Method::POST, path, false), Route::Free);
        }
        assert_eq!(route(&Method::GET, "/v1/models", true), Route::Free);
        assert_eq!(route(&Method::GET, "/v1/models", false), Route::Unknown, "with a body");
        for path in ["/v1/audio/transcriptions", "/v1/files", "/v1/threads/t/messages", "/v1/responses/r/cancel"] {
            assert_eq!(route(&Method::POST, path, false), Route::Unknown, "{path}");
        }
        for path in ["/v1/realtime", "/v1/realtime/sessions", "/v1//Realtime/client_secrets"] {
            assert!(matches!(route(&Method::POST, path, false), Route::Unsupported(_)), "{path}");
        }
    }

    #[test]
    fn a_model_in_the_path_is_metered_whatever_its_name() {
        let gemini = Route::Metered(Dialect::Gemini);
        for path in [
            "/v1beta/models/gemini-2.5-flash:generateContent",
            "/v1/models/any:streamGenerateContent",
            "/v1beta1/projects/p/locations/eu/publishers/google/models/m:generateContent",
        ] {
            assert_eq!(route(&Method::POST, path, false), gemini, "{path}");
        }
        assert_eq!(route(&Method::POST, "/v1beta/models/m:countTokens", false), Route::Free);
        for path in [
            "/v1beta/models/m%3AgenerateContent",
            "/v1beta/models/m:generateContent/",
            "/v1beta/models/m:GenerateContent",
            "/v1beta//models/m:generateContent",
            "/proxy/v1beta/models/m:streamGenerateContent",
        ] {
            assert!(matches!(route(&Method::POST, path, false), Route::Unsupported(_)), "{path}");
        }
        assert_eq!(route(&Method::POST, "/v1beta/models/m:embedContent", false), Route::Unknown);
    }

    #[test]
    fn another_spelling_is_no_way_past_the_meter() {
        for path in [
            "/v1/chat/completions/",
            "//v1/chat/completions",
            "/v1/./chat//completions",
            "/v1/x/../chat/completions",
            "/v1/Chat/Completions",
            "/v1/chat%2Fcompletions",
            "/v1/%63hat/completions",
            "/v1/%2563hat/completions",
            "/v1/chat;x=1/completions",
            "/chat/completions",
            "/openai/v1/responses",
            "/messages",
        ] {
            assert!(matches!(route(&Method::POST, path, false), Route::Unsupported(_)), "{path}");
        }
    }
}
