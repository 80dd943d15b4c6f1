//! Pools, their windows and queues.

use http::Uri;

use crate::units::{Bytes, Limit, Model, Span, Tokens};

use super::super::Pattern;
use super::super::model::{Adapt, Alias, EngineWatch, Orca, Pool, QueueCap, QueueCaps, Window};
use super::{Checks, all, cap, form, values};

/// Oftener than this, reading is a load of its own.
const OFTENEST: Span = Span::from_millis(100);
/// Seldomer than this, what was read is always old.
const SELDOMEST: Span = Span::from_secs(60);

impl Checks<'_> {
    pub(super) fn pools(&mut self, forms: &[form::Pool]) -> Option<Vec<Pool>> {
        self.repeated(forms.iter().map(|pool| pool.name.as_str()), "pool", |index| format!("/pools/{index}/name"));
        let serves_all = |pool: &form::Pool| pool.models.iter().any(is_everything);
        if let Some(first) = forms.iter().position(serves_all) {
            for index in first + 1..forms.len() {
                let message = format!("is never reached: pool `{}` before it serves every model", forms[first].name);
                self.mistake(&format!("/pools/{index}"), message);
            }
        }
        let pools = forms.iter().enumerate().map(|(index, form)| self.pool(index, form)).collect();
        all(pools)
    }

    fn pool(&mut self, index: usize, form: &form::Pool) -> Option<Pool> {
        let pointer = |key: &str| format!("/pools/{index}/{key}");
        let name = self.gate(&pointer("name"), values::name(&form.name));
        let models = self.models(&pointer("models"), &form.models);
        let aliases = self.aliases(&pointer("aliases"), &form.aliases, models.as_deref());
        let upstream = match &form.upstream {
            Some(written) => self.gate(&pointer("upstream"), values::upstream(written)).map(Some),
            None => Some(None),
        };
        let breaker = match &form.breaker {
            Some(written) => self.breaker(&pointer("breaker"), written).map(Some),
            None => Some(None),
        };
        let engine = match &form.engine {
            Some(written) => self.engine(&pointer("engine"), written).map(Some),
            None => Some(None),
        };
        Some(Pool {
            name: name?,
            models: models?,
            aliases: aliases?,
            upstream: upstream?,
            adapt: match form.window.adapt {
                form::Adapt::Fixed => Adapt::Fixed,
                form::Adapt::Auto => Adapt::Auto,
            },
            window: Window { tokens: cap(form.window.tokens, Tokens::new), requests: form.window.requests.into() },
            max_request_tokens: Limit::AtMost(Tokens::new(form.max_request_tokens)),
            queue: queue(&form.queue),
            breaker: breaker?,
            engine: engine?,
        })
    }

    fn engine(&mut self, pointer: &str, form: &form::Engine) -> Option<EngineWatch> {
        let addresses = form.metrics.iter().enumerate().map(|(index, written)| {
            let pointer = format!("{pointer}/metrics/{index}");
            self.gate(&pointer, values::upstream(written).map_err(|what| what.replace(":8000", ":8000/metrics")))
        });
        let metrics: Option<Vec<Uri>> = all(addresses.collect());
        self.repeated(form.metrics.iter().map(String::as_str), "page of metrics", |index| {
            format!("{pointer}/metrics/{index}")
        });
        let orca = match form.orca {
            form::Orca::Off => None,
            form::Orca::Text => Some(Orca::Text),
            form::Orca::Json => Some(Orca::Json),
        };
        if form.metrics.is_empty() && orca.is_none() {
            self.mistake(pointer, "says nowhere to read from; give it `metrics` or `orca`, or leave it out");
        }
        if form.metrics.len() > 1 && orca.is_some() {
            let message = "is for a pool of one engine, and `metrics` lists several; leave one of the two out";
            self.mistake(&format!("{pointer}/orca"), message);
        }
        let every = self.gate(&format!("{pointer}/every"), values::duration(&form.every));
        if every.is_some_and(|every| !(OFTENEST..=SELDOMEST).contains(&every)) {
            self.mistake(&format!("{pointer}/every"), "must be from 100ms to 1m");
        }
        let stale_after = self.gate(&format!("{pointer}/stale_after"), values::duration(&form.stale_after));
        if every.zip(stale_after).is_some_and(|(every, stale)| stale < every.saturating_add(every)) {
            let message = "must be at least twice `every`, or one lost reading makes the pool blind";
            self.mistake(&format!("{pointer}/stale_after"), message);
        }
        Some(EngineWatch { metrics: metrics?, orca, every: every?, stale_after: stale_after? })
    }

    fn models(&mut self, pointer: &str, forms: &[form::Pattern]) -> Option<Vec<Pattern>> {
        let patterns: Vec<_> = forms.iter().collect();
        self.unreachable(&patterns, |index| format!("{pointer}/{index}"));
        let models = forms.iter().enumerate().map(|(index, form)| {
            let pointer = format!("{pointer}/{index}");
            self.gate(&pointer, Pattern::new(&form.0))
        });
        all(models.collect())
    }

    fn aliases(&mut self, pointer: &str, forms: &[form::Alias], models: Option<&[Pattern]>) -> Option<Vec<Alias>> {
        let patterns: Vec<_> = forms.iter().map(|alias| &alias.from).collect();
        self.unreachable(&patterns, |index| format!("{pointer}/{index}/from"));
        let aliases = forms.iter().enumerate().map(|(index, form)| {
            let from = self.gate(&format!("{pointer}/{index}/from"), Pattern::new(&form.from.0));
            let to = format!("{pointer}/{index}/to");
            if form.to.contains('*') {
                self.mistake(&to, "must be one model's name, without `*`");
            } else if models.is_some_and(|models| !models.iter().any(|pattern| pattern.matches(&form.to))) {
                self.mistake(&to, format!("this pool does not serve `{}`; add it to the pool's `models`", form.to));
            }
            Some(Alias { from: from?, to: Model::from(form.to.as_str()) })
        });
        all(aliases.collect())
    }
}

fn is_everything(pattern: &form::Pattern) -> bool {
    Pattern::new(&pattern.0).is_ok_and(|pattern| pattern.is_everything())
}

fn queue(form: &form::Queue) -> QueueCaps {
    let caps = |requests: Option<u32>, tokens: Option<u64>, bytes: Option<u64>| QueueCap {
        requests: requests.into(),
        tokens: cap(tokens, Tokens::new),
        bytes: cap(bytes, Bytes::new),
    };
    QueueCaps {
        pool: caps(Some(form.requests), Some(form.tokens), Some(form.bytes)),
        class: caps(form.per_class_requests, form.per_class_tokens, form.per_class_bytes),
        tenant: caps(Some(form.per_tenant_requests), form.per_tenant_tokens, form.per_tenant_bytes),
        session: caps(Some(form.per_session_requests), form.per_session_tokens, form.per_session_bytes),
    }
}
