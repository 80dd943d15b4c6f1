//! Lists that keep headers from us, or what we set and remove from the request.

use super::Expected;
use super::finding::Report;
use super::part::Part;
use super::rules::{HEADERS_WITHHELD, MUTATIONS_FORBIDDEN, MUTATIONS_RESTRICTED};

/// Whether a matcher of text covers a name; nothing where only running it could tell.
fn covers(matcher: &Part<'_>, name: &str) -> Option<bool> {
    if matcher.get("safe_regex").is_there() || matcher.get("custom").is_there() {
        return None;
    }
    let fold =
        |text: &str| if matcher.get("ignore_case").is_on() { text.to_ascii_lowercase() } else { text.to_owned() };
    let name = fold(name);
    let has = |field: &str, fits: fn(&str, &str) -> bool| {
        matcher.get(field).word().is_some_and(|text| fits(&name, &fold(text)))
    };
    Some(
        has("exact", |name, text| name == text)
            || has("prefix", |name, text| name.starts_with(text))
            || has("suffix", |name, text| name.ends_with(text))
            || has("contains", |name, text| name.contains(text)),
    )
}

fn any_covers(list: &Part<'_>, name: &str) -> Option<bool> {
    let each: Vec<Option<bool>> = list.get("patterns").items().iter().map(|matcher| covers(matcher, name)).collect();
    if each.contains(&Some(true)) { Some(true) } else { each.into_iter().collect::<Option<Vec<_>>>().map(|_| false) }
}

/// Checks the lists of headers that are sent to us (`allowed_headers`) or are not (`disallowed_headers`).
pub(super) fn forwarded(rules: &Part<'_>, expected: &Expected, report: &mut Report) {
    let needed = [":method", ":path"].into_iter().chain(expected.identity_headers.iter().map(String::as_str));
    withheld(rules, needed, report);
}

/// The same of an external authorization filter, which sends method and path beside the headers.
pub(super) fn checked(filter: &Part<'_>, expected: &Expected, report: &mut Report) {
    withheld(filter, expected.identity_headers.iter().map(String::as_str), report);
}

fn withheld<'name>(rules: &Part<'_>, needed: impl Iterator<Item = &'name str>, report: &mut Report) {
    let (allowed, disallowed) = (rules.get("allowed_headers"), rules.get("disallowed_headers"));
    for name in needed {
        if allowed.is_there() && any_covers(&allowed, name) == Some(false) {
            report.add(&HEADERS_WITHHELD, &allowed, format!("{name} is not among them"));
        }
        if any_covers(&disallowed, name) == Some(true) {
            report.add(&HEADERS_WITHHELD, &disallowed, format!("{name} is among them"));
        }
    }
}

/// Checks the rules on what we may change.
pub(super) fn mutated(rules: &Part<'_>, report: &mut Report) {
    let all = rules.get("disallow_all");
    if all.is_on() && !rules.get("allow_expression").is_there() {
        report.add(&MUTATIONS_FORBIDDEN, &all, "disallow_all is on");
    }
    for field in ["allow_expression", "disallow_expression"] {
        let expression = rules.get(field);
        if expression.is_there() && (field == "disallow_expression" || all.is_on()) {
            let found = format!("{field} is {:?}", expression.get("regex").text());
            report.add(&MUTATIONS_RESTRICTED, &expression, found);
        }
    }
}
