//! Who a request belongs to.

use std::sync::Arc;

use http::HeaderName;

use crate::yaml::Mistakes;

use super::super::keys::{self, KeysText};
use super::super::model::{Identity, Listener, NameSource, NotGranted, SessionSource, TenantSource, Trust};
use super::{Checks, all, form, values};

type ReadKeys<'read> = &'read mut dyn FnMut(&str) -> Result<KeysText, Mistakes>;

impl Checks<'_> {
    pub(super) fn identity(&mut self, form: &form::Identity, read_keys: ReadKeys<'_>) -> Option<Identity> {
        self.order_of_sources(&form.tenant);
        let trust = self.trust(form);
        let tenant = (0..).zip(&form.tenant).map(|(index, source)| self.tenant_source(index, source, read_keys));
        let tenant = all(tenant.collect());
        let class: Vec<&str> = form.class.iter().map(|form::ClassSource::Header(header)| &**header).collect();
        let session = self.sessions(&form.session);
        let (user, task) = (self.names("user", &form.user), self.names("task", &form.task));
        let class = self.headers("class", &class);
        let class_not_granted = match form.class_not_granted {
            form::NotGranted::UseDefault => NotGranted::UseDefault,
            form::NotGranted::Refuse => NotGranted::Refuse,
        };
        let (tenant, session, user, task, class) = (tenant?, session?, user?, task?, class?);
        Some(Identity { tenant, trust, session, user, task, class, class_not_granted })
    }

    /// Notes sources that can never be asked.
    fn order_of_sources(&mut self, sources: &[form::TenantSource]) {
        let fallback = sources.iter().position(|source| matches!(source, form::TenantSource::Fallback(_)));
        if let Some(fallback) = fallback {
            let line = self.line_of(&format!("/identity/tenant/{fallback}"));
            for index in fallback + 1..sources.len() {
                let pointer = format!("/identity/tenant/{index}");
                self.mistake(&pointer, format!("is never reached: the fallback on line {line} takes everybody"));
            }
        }
        let is_keys = |source: &form::TenantSource| matches!(source, form::TenantSource::ApiKey(_));
        for (index, _) in sources.iter().enumerate().filter(|(_, source)| is_keys(source)).skip(1) {
            let pointer = format!("/identity/tenant/{index}");
            self.mistake(
                &pointer,
                "is never reached: a key unknown to the first file is refused; put all keys in one file",
            );
        }
        let header = |source: &form::TenantSource| match source {
            form::TenantSource::Header(header) => Some(header.to_ascii_lowercase()),
            form::TenantSource::ApiKey(_) | form::TenantSource::Metadata(_) | form::TenantSource::Fallback(_) => None,
        };
        let headers: Vec<(usize, String)> =
            sources.iter().enumerate().filter_map(|(index, source)| Some((index, header(source)?))).collect();
        self.repeated(headers.iter().map(|(_, header)| header.as_str()), "header", |nth| {
            format!("/identity/tenant/{}/header", headers[nth].0)
        });
    }

    fn trust(&mut self, form: &form::Identity) -> Trust {
        let Some(listeners) = &form.trust else { return Trust::Loopback };
        let name = |listener: &form::Listener| match listener {
            form::Listener::Proxy => "proxy",
            form::Listener::Grpc => "grpc",
        };
        self.repeated(listeners.iter().map(name), "listener", |index| format!("/identity/trust/{index}"));
        let header = form.tenant.iter().position(|source| matches!(source, form::TenantSource::Header(_)));
        if let Some(index) = header.filter(|_| listeners.is_empty()) {
            let pointer = format!("/identity/tenant/{index}/header");
            self.mistake(&pointer, "is never believed: `trust` names no listener");
        }
        let model = |listener: &form::Listener| match listener {
            form::Listener::Proxy => Listener::Proxy,
            form::Listener::Grpc => Listener::Grpc,
        };
        Trust::Listeners(listeners.iter().map(model).collect())
    }

    fn tenant_source(
        &mut self,
        index: usize,
        source: &form::TenantSource,
        read_keys: ReadKeys<'_>,
    ) -> Option<TenantSource> {
        let pointer = |kind| format!("/identity/tenant/{index}/{kind}");
        match source {
            form::TenantSource::Header(header) => {
                self.gate(&pointer("header"), values::header(header)).map(TenantSource::Header)
            }
            form::TenantSource::Metadata(key) => {
                self.gate(&pointer("metadata"), values::metadata(key)).map(TenantSource::Metadata)
            }
            form::TenantSource::Fallback(tenant) => {
                self.gate(&pointer("fallback"), values::tenant(tenant)).map(TenantSource::Fallback)
            }
            form::TenantSource::ApiKey(file) => {
                let read = read_keys(file).map_err(|mistakes| {
                    format!("names a file that is looked for beside the policy and cannot be used: {mistakes}")
                });
                let KeysText { name, text } = self.gate(&pointer("api_key"), read)?;
                let ring = keys::parse(&name, &text).map_err(|mistakes| self.elsewhere.append(mistakes)).ok()?;
                Some(TenantSource::ApiKey(Arc::new(ring)))
            }
        }
    }

    fn sessions(&mut self, written: &[form::SessionSource]) -> Option<Vec<SessionSource>> {
        let lower: Vec<String> = written.iter().map(|source| source.header.to_ascii_lowercase()).collect();
        self.repeated(lower.iter().map(String::as_str), "header", |index| format!("/identity/session/{index}/header"));
        all(written.iter().enumerate().map(|(index, source)| self.session_source(index, source)).collect())
    }

    fn session_source(&mut self, index: usize, source: &form::SessionSource) -> Option<SessionSource> {
        let pointer = |key| format!("/identity/session/{index}/{key}");
        for (key, other) in [("sub_agent", &source.sub_agent), ("parent", &source.parent)] {
            if other.as_ref().is_some_and(|other| other.eq_ignore_ascii_case(&source.header)) {
                self.mistake(&pointer(key), "is the header that carries the id of the session; name another");
            }
        }
        let header = self.gate(&pointer("header"), values::header(&source.header));
        let mut other = |key, written: &Option<String>| match written {
            None => Some(None),
            Some(written) => self.gate(&pointer(key), values::header(written)).map(Some),
        };
        let (sub_agent, parent) = (other("sub_agent", &source.sub_agent), other("parent", &source.parent));
        Some(SessionSource { header: header?, sub_agent: sub_agent?, parent: parent? })
    }

    fn names(&mut self, key: &str, written: &[form::NameSource]) -> Option<Vec<NameSource>> {
        let text = |source: &form::NameSource| match source {
            form::NameSource::Header(header) => header.to_ascii_lowercase(),
            form::NameSource::Metadata(place) => place.clone(),
        };
        let texts: Vec<String> = written.iter().map(text).collect();
        self.repeated(texts.iter().map(String::as_str), "source", |index| format!("/identity/{key}/{index}"));
        let sources = written.iter().enumerate().map(|(index, source)| match source {
            form::NameSource::Header(header) => {
                let pointer = format!("/identity/{key}/{index}/header");
                self.gate(&pointer, values::header(header)).map(NameSource::Header)
            }
            form::NameSource::Metadata(place) => {
                let pointer = format!("/identity/{key}/{index}/metadata");
                self.gate(&pointer, values::metadata(place)).map(NameSource::Metadata)
            }
        });
        all(sources.collect())
    }

    fn headers(&mut self, key: &str, written: &[&str]) -> Option<Vec<HeaderName>> {
        let pointer = |index| format!("/identity/{key}/{index}/header");
        let lower: Vec<String> = written.iter().map(|header| header.to_ascii_lowercase()).collect();
        self.repeated(lower.iter().map(String::as_str), "header", pointer);
        let headers =
            written.iter().enumerate().map(|(index, header)| self.gate(&pointer(index), values::header(header)));
        all(headers.collect())
    }
}
