//! What every service that Envoy asks reads in the same way: heads of requests and answers, and what Envoy vouches for.

use envoy_types::pb::envoy::config::core::v3 as core;
use envoy_types::pb::envoy::service::ext_proc::v3::HttpHeaders;
use envoy_types::pb::google::protobuf::value::Kind;
use http::header::{HeaderMap, HeaderName, HeaderValue};
use http::{Method, StatusCode};

use crate::policy::model::MetadataKey;

use super::answer::Refused;
use super::identity::{Claim, Claims};

/// The namespace of what Envoy's ext_authz filter is told of a request.
pub(super) const AUTHZ: &str = "envoy.filters.http.ext_authz";
/// Under which key of it a lease is named.
pub(super) const LEASE: &str = "lease";

/// The head of a request or of an answer.
#[derive(Debug)]
pub(super) struct Head {
    pub(super) method: Method,
    /// Without the query.
    pub(super) path: String,
    /// The query, its question mark included.
    pub(super) query: String,
    /// Of an answer.
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
}

impl Head {
    /// Reads it.
    ///
    /// # Errors
    /// When a header cannot be one.
    pub(super) fn read(from: HttpHeaders) -> Result<Self, Refused> {
        Self::of(from.headers.unwrap_or_default().headers)
    }

    /// Reads it from its headers, those of HTTP/2 that begin with a colon too.
    ///
    /// # Errors
    /// When a header cannot be one.
    pub(super) fn of(headers: Vec<core::HeaderValue>) -> Result<Self, Refused> {
        let mut head = Self {
            method: Method::GET,
            path: String::new(),
            query: String::new(),
            status: StatusCode::OK,
            headers: HeaderMap::new(),
        };
        for core::HeaderValue { key, value, raw_value } in headers {
            let raw = if raw_value.is_empty() { value.into_bytes() } else { raw_value };
            let unreadable = || Refused::Malformed(format!("the header {key} is not one"));
            match key.as_str() {
                ":method" => head.method = Method::from_bytes(&raw).map_err(|_| unreadable())?,
                ":path" => {
                    let path = String::from_utf8(raw).map_err(|_| unreadable())?;
                    let (path, query) = path.split_at(path.find('?').unwrap_or(path.len()));
                    (head.path, head.query) = (path.to_owned(), query.to_owned());
                }
                ":status" => head.status = StatusCode::from_bytes(&raw).map_err(|_| unreadable())?,
                pseudo if pseudo.starts_with(':') => {}
                name => {
                    let name: HeaderName = name.parse().map_err(|_| unreadable())?;
                    head.headers.append(name, HeaderValue::from_bytes(&raw).map_err(|_| unreadable())?);
                }
            }
        }
        Ok(head)
    }

    /// The headers whose names begin so.
    pub(super) fn beginning(&self, prefix: &str) -> Vec<String> {
        self.headers.keys().map(HeaderName::as_str).filter(|name| name.starts_with(prefix)).map(str::to_owned).collect()
    }
}

/// A path without its query.
pub(super) fn without_query(path: &str) -> String {
    path.split('?').next().unwrap_or_default().to_owned()
}

/// What Envoy vouches for.
#[derive(Debug, Default)]
pub(super) struct Vouched(pub(super) core::Metadata);

impl Claims for Vouched {
    fn claim(&self, key: &MetadataKey) -> Option<Claim<'_>> {
        let (last, parents) = key.path.split_last()?;
        let mut fields = self.0.filter_metadata.get(&key.namespace)?;
        for parent in parents {
            match fields.fields.get(parent).and_then(|value| value.kind.as_ref()) {
                Some(Kind::StructValue(below)) => fields = below,
                Some(Kind::NullValue(_)) | None => return None,
                Some(_) => return Some(Claim::Other),
            }
        }
        match fields.fields.get(last)?.kind.as_ref()? {
            Kind::StringValue(text) => Some(Claim::Text(text)),
            Kind::NullValue(_) => None,
            _ => Some(Claim::Other),
        }
    }
}
