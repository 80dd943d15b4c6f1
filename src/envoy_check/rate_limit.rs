//! The rate limit filter: a short question without a body, whose silence lets through.

use crate::units::Span;

use super::chain::{Chain, Exception, Filter};
use super::finding::Report;
use super::rules::{FAILS_CLOSED, FAILS_OPEN, RATE_LIMIT_IDLE, RATE_LIMIT_TIMEOUT};

/// Envoy's own bound where none is set.
const TIMEOUT: Span = Span::from_millis(20);
/// Less than this a busy machine exceeds now and then.
const ENOUGH: Span = Span::from_millis(100);

/// Checks one that asks us.
pub(super) fn check(chain: &Chain<'_>, filter: &Filter<'_>, report: &mut Report) {
    let Filter { name, config, .. } = filter;
    let timeout = config.get("timeout");
    let set = timeout.span().unwrap_or(TIMEOUT);
    if set < ENOUGH {
        report.add(&RATE_LIMIT_TIMEOUT, &timeout, format!("is {} ms", set.as_millis_up()));
    }
    let deny = config.get("failure_mode_deny");
    if deny.is_on() {
        report.add(&FAILS_CLOSED, &deny, "is on");
    } else {
        report.add(&FAILS_OPEN, &deny, "is off");
    }
    let Some(routes) = &chain.routes else { return };
    let asks = |route: &super::chain::Route<'_>| {
        let own = [route.host.get("rate_limits"), route.route.at("route.rate_limits")];
        let changed = match route.exception(name) {
            Some(Exception::Changed(message)) => message.get("rate_limits").is_there(),
            Some(Exception::Off(_) | Exception::On) | None => false,
        };
        changed || own.iter().any(|limits| !limits.items().is_empty())
    };
    if !config.get("rate_limits").is_there() && !routes.iter().any(asks) {
        report.add(&RATE_LIMIT_IDLE, &filter.entry, "no rate_limits name what it should ask");
    }
}
