//! A request to be explained, as it is written down: a JSON envelope, a raw HTTP/1.1 message, or a bare API body.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::collections::BTreeMap;

use crate::policy::model::Listener;
use crate::units::TenantId;

/// Where an API body goes that says nothing else.
pub const DEFAULT_PATH: &str = "/v1/chat/completions";

/// A request that was not sent.
#[derive(Clone, Debug)]
pub struct Sketch {
    /// Its method.
    pub method: Method,
    /// Its path, without the query.
    pub path: String,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body.
    pub body: Bytes,
    /// By which listener it would come; by the proxy, where there is one, unless it is said.
    pub listener: Option<Listener>,
    /// Whose it is taken to be, whatever its headers say.
    pub tenant: Option<TenantId>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Envelope<'a> {
    #[serde(default)]
    method: Option<String>,
    #[serde(default)]
    path: Option<String>,
    #[serde(default)]
    headers: BTreeMap<String, Values>,
    #[serde(borrow, default)]
    body: Option<&'a RawValue>,
    #[serde(default)]
    listener: Option<String>,
    #[serde(default)]
    tenant: Option<String>,
}

/// A header's value, or several.
#[derive(Deserialize)]
#[serde(untagged)]
enum Values {
    One(String),
    Many(Vec<String>),
}

impl Sketch {
    /// A body posted to a path, without headers.
    fn of(path: &str, body: Bytes) -> Self {
        Self {
            method: Method::POST,
            path: path.to_owned(),
            headers: HeaderMap::new(),
            body,
            listener: None,
            tenant: None,
        }
    }

    /// Reads an envelope: `{"method", "path", "headers", "body"}`, and optionally `listener` and `tenant`.
    ///
    /// # Errors
    /// When it is not one, naming what is wrong and where.
    pub fn envelope(text: &[u8]) -> Result<Self, String> {
        let envelope: Envelope<'_> = serde_json::from_slice(text).map_err(|error| {
            format!(
                "not a request in an envelope, which is {{\"method\", \"path\", \"headers\", \"body\"}} and optionally \
                 \"listener\" and \"tenant\": {error}"
            )
        })?;
        let body = match envelope.body {
            None => Bytes::new(),
            // A string is the body's very text; anything else is the body itself.
            Some(raw) => match serde_json::from_str::<String>(raw.get()) {
                Ok(text) => text.into(),
                Err(_not_a_string) => Bytes::copy_from_slice(raw.get().as_bytes()),
            },
        };
        let mut sketch = Self::of(&path(envelope.path.as_deref().unwrap_or(DEFAULT_PATH))?, body);
        if let Some(method) = envelope.method {
            sketch.method = read_method(&method)?;
        }
        for (name, values) in envelope.headers {
            let values = match values {
                Values::One(value) => vec![value],
                Values::Many(values) => values,
            };
            values.iter().try_for_each(|value| sketch.add_header(&name, value))?;
        }
        if let Some(name) = envelope.listener {
            sketch.listener = Some(read_listener(&name)?);
        }
        sketch.tenant = envelope.tenant.as_deref().map(TenantId::from);
        Ok(sketch)
    }

    /// Reads whatever a file holds: an HTTP/1.1 message, an envelope, or an API body to be posted to `body_path`.
    ///
    /// # Errors
    /// When it is none of them, or not well formed, naming what is wrong.
    pub fn read(file: &[u8], body_path: &str) -> Result<Self, String> {
        let text = file.trim_ascii_start();
        if text.starts_with(b"{") {
            return if is_envelope(text)? {
                Self::envelope(text)
            } else {
                Ok(Self::of(&path(body_path)?, Bytes::copy_from_slice(text)))
            };
        }
        let first = text.split(|byte| *byte == b'\n').next().unwrap_or_default().trim_ascii_end();
        match std::str::from_utf8(first).ok().and_then(request_line) {
            Some((method, target)) => Self::message(text, method, target),
            None => Err(format!(
                "neither an HTTP/1.1 message (\"POST {DEFAULT_PATH} HTTP/1.1\", headers, an empty line, the body), nor a \
                 JSON envelope {{\"method\", \"path\", \"headers\", \"body\"}}, nor the JSON body of an API request; it \
                 begins with {:?}",
                String::from_utf8_lossy(&first[..first.len().min(60)])
            )),
        }
    }

    fn message(text: &[u8], method: &str, target: &str) -> Result<Self, String> {
        let (head, body) = split_head(text)?;
        let head = std::str::from_utf8(head).map_err(|_| "the headers are not plain text".to_owned())?;
        let mut sketch = Self::of(&path(target)?, Bytes::copy_from_slice(body));
        sketch.method = read_method(method)?;
        for (number, line) in head.lines().enumerate().skip(1) {
            let (name, value) =
                line.split_once(':').ok_or_else(|| format!("line {}: {line:?} is not a header", number + 1))?;
            sketch.add_header(name, value.trim()).map_err(|error| format!("line {}: {error}", number + 1))?;
        }
        sketch.fit_length()?;
        Ok(sketch)
    }

    /// Cuts the body to the length its headers say, since editors end files with a line break.
    fn fit_length(&mut self) -> Result<(), String> {
        if self.headers.contains_key(http::header::TRANSFER_ENCODING) {
            return Err("Transfer-Encoding is for the wire; give the body plain and leave that header out".into());
        }
        let Some(length) = self.headers.get(http::header::CONTENT_LENGTH) else { return Ok(()) };
        let length: Option<usize> = length.to_str().ok().and_then(|digits| digits.parse().ok());
        let length = length.ok_or("Content-Length is not a number of bytes")?;
        let there = self.body.len();
        let rest = self.body.get(length..).ok_or_else(|| {
            format!("Content-Length says {length} bytes and the body has {there}; leave that header out, or mend it")
        })?;
        if !rest.trim_ascii().is_empty() {
            return Err(format!("Content-Length says {length} bytes and the body goes on; leave that header out"));
        }
        self.body.truncate(length);
        Ok(())
    }

    /// Adds a header.
    ///
    /// # Errors
    /// When it cannot be one.
    pub fn add_header(&mut self, name: &str, value: &str) -> Result<(), String> {
        let name: HeaderName = name.parse().map_err(|_| format!("{name:?} cannot be the name of a header"))?;
        let value = HeaderValue::from_str(value)
            .or_else(|_| HeaderValue::from_bytes(value.as_bytes()))
            .map_err(|_| format!("the header {name} has a value that cannot be one"))?;
        self.headers.append(name, value);
        Ok(())
    }
}

/// Whether a JSON object is an envelope: no API's body has such members.
fn is_envelope(text: &[u8]) -> Result<bool, String> {
    let members: BTreeMap<String, &RawValue> =
        serde_json::from_slice(text).map_err(|error| format!("not a JSON object: {error}"))?;
    Ok(["method", "headers", "body"].iter().any(|name| members.contains_key(*name)))
}

/// Method and target of a request line.
fn request_line(line: &str) -> Option<(&str, &str)> {
    let mut parts = line.split(' ');
    let (method, target, version) = (parts.next()?, parts.next()?, parts.next()?);
    (parts.next().is_none() && version.starts_with("HTTP/1")).then_some((method, target))
}

/// What stands before and behind the first empty line.
fn split_head(text: &[u8]) -> Result<(&[u8], &[u8]), String> {
    let find = |end: &[u8]| text.windows(end.len()).position(|window| window == end).map(|at| (at, at + end.len()));
    let (head, body) = match (find(b"\r\n\r\n"), find(b"\n\n")) {
        (Some(wire), Some(plain)) => wire.min(plain),
        (Some(end), None) | (None, Some(end)) => end,
        (None, None) => return Err("there is no empty line behind the headers".into()),
    };
    Ok((&text[..head], &text[body..]))
}

fn path(target: &str) -> Result<String, String> {
    let uri: Uri = target.parse().map_err(|error| format!("{target:?} is not a path: {error}"))?;
    if !uri.path().starts_with('/') {
        return Err(format!("a path begins with a slash, and {target:?} does not"));
    }
    Ok(uri.path().to_owned())
}

fn read_method(name: &str) -> Result<Method, String> {
    Method::from_bytes(name.as_bytes()).map_err(|_| format!("{name:?} is not a method"))
}

/// A listener by its name in policies.
///
/// # Errors
/// When it is none.
pub fn read_listener(name: &str) -> Result<Listener, String> {
    match name {
        "proxy" => Ok(Listener::Proxy),
        "grpc" => Ok(Listener::Grpc),
        other => Err(format!("listener is \"proxy\" or \"grpc\", not {other:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::{DEFAULT_PATH, Listener, Sketch};

    const BODY: &str = r#"{"model": "m", "messages": []}"#;

    fn read(text: &str) -> Result<Sketch, String> {
        Sketch::read(text.as_bytes(), DEFAULT_PATH)
    }

    #[test]
    fn three_ways_to_write_one_request() {
        let message = format!("POST {DEFAULT_PATH}?x=1 HTTP/1.1\nHost: g\nX-Tenant-Id:  acme \n\n{BODY}\n");
        let wire = message.replace('\n', "\r\n");
        let envelope = format!(r#"{{"path": "{DEFAULT_PATH}", "headers": {{"x-tenant-id": "acme"}}, "body": {BODY}}}"#);
        let quoted = serde_json::json!({"headers": {"x-tenant-id": ["acme"]}, "body": BODY}).to_string();
        for text in [&message, &wire, &envelope, &quoted] {
            let sketch = read(text).expect(text);
            assert_eq!((sketch.method.as_str(), sketch.path.as_str()), ("POST", DEFAULT_PATH), "{text}");
            assert_eq!(sketch.headers["x-tenant-id"], "acme");
            assert_eq!(sketch.body.trim_ascii(), BODY.as_bytes(), "{text}");
        }
        let bare = Sketch::read(BODY.as_bytes(), "/v1/completions").expect("a body");
        assert_eq!((bare.path.as_str(), bare.headers.len()), ("/v1/completions", 0));
    }

    #[test]
    fn an_envelope_may_name_the_listener_and_the_tenant() {
        let sketch = read(r#"{"body": {}, "listener": "grpc", "tenant": "acme", "method": "GET"}"#).expect("valid");
        assert_eq!((sketch.listener, sketch.method.as_str()), (Some(Listener::Grpc), "GET"));
        assert_eq!(sketch.tenant.expect("given").as_str(), "acme");
    }

    #[test]
    fn a_length_cuts_the_line_break_of_an_editor_and_nothing_else() {
        let with = |length: usize, body: &str| read(&format!("POST / HTTP/1.1\nContent-Length: {length}\n\n{body}"));
        assert_eq!(&with(2, "{}\n").expect("valid").body[..], b"{}");
        assert!(with(3, "{}").is_err_and(|error| error.contains("says 3 bytes and the body has 2")));
        assert!(with(1, "{}").is_err_and(|error| error.contains("goes on")));
    }

    #[test]
    fn anything_else_is_told_what_it_should_have_been() {
        for (text, why) in [
            ("", "neither an HTTP/1.1 message"),
            ("hello there", "it begins with \"hello there\""),
            ("[1]", "neither an HTTP/1.1 message"),
            ("{", "not a JSON object: EOF"),
            (r#"{"body": {}, "verb": "GET"}"#, "unknown field `verb`"),
            (r#"{"body": {}, "listener": "udp"}"#, "not \"udp\""),
            (r#"{"body": {}, "headers": {"a b": "c"}}"#, "cannot be the name of a header"),
            (r#"{"body": {}, "headers": {"a": "c\n"}}"#, "value that cannot be one"),
            (r#"{"body": {}, "path": "v1"}"#, "path begins with a slash"),
            ("POST / HTTP/1.1\nhost g\n\n", "line 2: \"host g\" is not a header"),
            ("POST / HTTP/1.1\nhost: g\n", "no empty line"),
            ("POST / HTTP/1.1\ntransfer-encoding: chunked\n\n", "give the body plain"),
        ] {
            let error = read(text).expect_err(text);
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
