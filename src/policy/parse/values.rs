//! Single values: lengths of time, percentages, names, headers, addresses.

use std::sync::Arc;

use http::{HeaderName, Uri};

use crate::units::{Share, Span};

use super::super::model::MetadataKey;
use super::form;

/// The longest name of a class or pool; it becomes a metric's label.
const LONGEST_NAME: usize = 64;

/// The longest tenant name.
const LONGEST_TENANT: usize = 256;

pub(super) fn duration(written: &form::Duration) -> Result<Span, String> {
    humantime::parse_duration(written.0.trim()).map(Span::from).map_err(|error| {
        format!("{:?} is not a length of time ({error}); write it with its unit, as in 10s or 1h 30m", written.0)
    })
}

pub(super) fn percentage(written: &form::Percentage) -> Result<Share, String> {
    let digits = |text: &&str| text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let number = written.0.strip_suffix('%').map(str::trim).filter(digits).and_then(|text| text.parse::<f64>().ok());
    number
        .filter(|percent| *percent <= 100.0)
        .and_then(|percent| Share::new(percent / 100.0).ok())
        .ok_or_else(|| format!("{:?} is not a percentage from 0% to 100%; write it as in 20%", written.0))
}

pub(super) fn name(written: &str) -> Result<Arc<str>, String> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if (1..=LONGEST_NAME).contains(&written.len()) && written.bytes().all(allowed) {
        Ok(written.into())
    } else {
        Err(format!("a name has 1 to {LONGEST_NAME} letters, digits, `-`, `_` and `.`"))
    }
}

pub(in crate::policy) fn tenant(written: &str) -> Result<crate::units::TenantId, String> {
    if written.is_empty() || written.len() > LONGEST_TENANT || written.chars().any(char::is_control) {
        return Err(format!("a tenant's name has 1 to {LONGEST_TENANT} bytes and no control characters"));
    }
    Ok(written.into())
}

pub(super) fn header(written: &str) -> Result<HeaderName, String> {
    let header: HeaderName =
        written.parse().map_err(|_| "is not the name of a header; letters, digits and `-` make one".to_owned())?;
    if matches!(header.as_str(), "authorization" | "proxy-authorization" | "x-api-key" | "x-goog-api-key" | "cookie") {
        return Err(format!("`{header}` carries a secret, and what is read here is logged; use another header"));
    }
    Ok(header)
}

pub(super) fn metadata(written: &str) -> Result<MetadataKey, String> {
    let form = "write the filter's name, a slash and the fields, as in envoy.filters.http.jwt_authn/payload.org";
    let (namespace, path) = written.split_once('/').ok_or_else(|| format!("has no slash; {form}"))?;
    let path: Vec<String> = path.split('.').map(str::to_owned).collect();
    if namespace.is_empty() || path.iter().any(String::is_empty) {
        return Err(format!("has an empty part; {form}"));
    }
    Ok(MetadataKey { namespace: namespace.to_owned(), path })
}

pub(super) fn upstream(written: &str) -> Result<Uri, String> {
    let form = "write it as in http://127.0.0.1:8000";
    let uri: Uri = written.parse().map_err(|error| format!("is not an address ({error}); {form}"))?;
    let authority = uri.authority().map(http::uri::Authority::as_str).filter(|authority| !authority.starts_with(':'));
    if !matches!(uri.scheme_str(), Some("http" | "https")) || authority.is_none_or(str::is_empty) {
        return Err(format!("needs http:// or https:// and a host; {form}"));
    }
    if authority.is_some_and(|authority| authority.contains('@')) {
        return Err("must hold no user or password: a policy is no place for secrets".into());
    }
    if uri.query().is_some() || written.contains('#') {
        return Err("must end with a host, port or path; the rest comes from each request".into());
    }
    Ok(uri)
}
