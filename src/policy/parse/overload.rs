//! Retry budgets, and breakers: that their times are some time, their statuses say that something is wrong, and none is both a failure and
//! a spent budget.

use crate::units::{Share, Span, Status, StatusRange};

use super::super::model::{Breaker, FailureRatio, FailureSign, Retries, UpstreamsWord};
use super::{Checks, all, form, values};

/// What trips a breaker that names nothing.
const USUAL_FAILURES: u32 = 5;
/// Of how many requests at least a part is one, where that is not said.
const USUAL_REQUESTS: u32 = 20;
/// The longest that a breaker counts or trips for.
const LONGEST: Span = Span::from_secs(24 * 60 * 60);

impl Checks<'_> {
    /// The breaker at a JSON Pointer.
    pub(super) fn breaker(&mut self, pointer: &str, form: &form::Breaker) -> Option<Breaker> {
        let at = |key: &str| format!("{pointer}/{key}");
        let ratio = self.ratio(pointer, form);
        let within = self.gate(&at("within"), some_time(&form.within));
        let trip_for = self.gate(&at("trip_for"), some_time(&form.trip_for));
        let statuses = self.statuses(&at("statuses"), &form.statuses);
        let limited = self.statuses(&at("limited"), &form.limited);
        if let (Some(statuses), Some(limited)) = (&statuses, &limited) {
            self.apart(pointer, statuses, limited);
        }
        let sign = |sign: &form::Sign| match sign {
            form::Sign::Timeout => FailureSign::Timeout,
            form::Sign::Unreachable => FailureSign::Unreachable,
            form::Sign::EarlyEnd => FailureSign::EarlyEnd,
        };
        let ratio = ratio?;
        Some(Breaker {
            failures: form.failures.or_else(|| ratio.is_none().then_some(USUAL_FAILURES)),
            ratio,
            within: within?,
            statuses: statuses?,
            signs: form.also.iter().map(sign).collect(),
            trip_for: trip_for?,
            retry_after: if form.accept_retry_after { UpstreamsWord::Accepted } else { UpstreamsWord::Ignored },
            limited: limited?,
        })
    }

    /// How many retries there may be, if that is limited.
    pub(super) fn retries(&mut self, form: Option<&form::Retries>) -> Option<Option<Retries>> {
        let Some(form) = form else { return Some(None) };
        let ratio = self.gate("/retries/ratio", values::percentage(&form.ratio))?;
        Some(Some(Retries { ratio, floor: form.floor }))
    }

    /// The part of the requests that trips it, if one does.
    fn ratio(&mut self, pointer: &str, form: &form::Breaker) -> Option<Option<FailureRatio>> {
        let Some(written) = &form.ratio else {
            if form.min_requests.is_some() {
                let message = "says of how many requests `ratio` is a part, and there is no `ratio`";
                self.mistake(&format!("{pointer}/min_requests"), message);
                return None;
            }
            return Some(None);
        };
        let share = self.gate(&format!("{pointer}/ratio"), values::percentage(written))?;
        if share == Share::ZERO {
            self.mistake(&format!("{pointer}/ratio"), "must be more than 0%, or it trips without a failure");
            return None;
        }
        Some(Some(FailureRatio { share, of_at_least: form.min_requests.unwrap_or(USUAL_REQUESTS) }))
    }

    fn statuses(&mut self, pointer: &str, written: &[String]) -> Option<Vec<StatusRange>> {
        let ranges = written.iter().enumerate().map(|(index, text)| {
            let pointer = format!("{pointer}/{index}");
            self.gate(&pointer, range(text))
        });
        all(ranges.collect())
    }

    /// Notes each status that is both a failure and none.
    fn apart(&mut self, pointer: &str, statuses: &[StatusRange], limited: &[StatusRange]) {
        for (index, range) in limited.iter().enumerate() {
            if let Some(status) = statuses.iter().find_map(|other| other.shared(*range)) {
                let message = format!("{status} is among `statuses` too; it is a failure or a spent budget, not both");
                self.mistake(&format!("{pointer}/limited/{index}"), message);
            }
        }
    }
}

fn some_time(written: &form::Duration) -> Result<Span, String> {
    match values::duration(written)? {
        Span::ZERO => Err("must be more than nothing".into()),
        span if span > LONGEST => Err(format!("must be at most a day, not {span}")),
        span => Ok(span),
    }
}

/// One status or a range of them, of those that say that something is wrong.
fn range(written: &str) -> Result<StatusRange, String> {
    let form =
        || format!("{written:?} is not a status from 400 to 599 or a range of them; write it as in 503 or 500-599");
    let status = |text: &str| text.trim().parse().ok().filter(|number| (400..=599).contains(number)).map(Status::new);
    let (from, to) = written.split_once('-').unwrap_or((written, written));
    match (status(from), status(to)) {
        (Some(from), Some(to)) => StatusRange::new(from, to).ok_or_else(form),
        _ => Err(form()),
    }
}
