//! Limits and budgets: how much may be used, of what, by whom, in how long.

use std::sync::Arc;

use jiff::tz::TimeZone;
use jiff::{RoundMode, Timestamp, ToSpan, Unit, ZonedRound};

use crate::units::{Amount, ClassIndex, Measure, Model, PoolIndex, Share, Span, TenantId, UnixTime};

use super::super::pattern::Pattern;

/// Whose use a rule counts together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Per {
    /// Each tenant's.
    Tenant,
    /// Each user's, below its tenant. A request that names none is not concerned.
    User,
    /// Each session's, below its tenant. A request that names none is not concerned.
    Session,
    /// Each task's, below its tenant. A request that names none is not concerned.
    Task,
    /// Each class's.
    Class,
    /// Each model's.
    Model,
    /// Each pool's.
    Pool,
    /// All together.
    Global,
}

impl Per {
    /// The word for it, in policies and messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tenant => "tenant",
            Self::User => "user",
            Self::Session => "session",
            Self::Task => "task",
            Self::Class => "class",
            Self::Model => "model",
            Self::Pool => "pool",
            Self::Global => "global",
        }
    }

    /// Whose use it is, in a sentence.
    #[must_use]
    pub const fn whose(self) -> &'static str {
        match self {
            Self::Tenant => "this tenant",
            Self::User => "this user",
            Self::Session => "this session",
            Self::Task => "this task",
            Self::Class => "this class",
            Self::Model => "this model",
            Self::Pool => "this pool",
            Self::Global => "everybody together",
        }
    }
}

/// Which requests a rule concerns; an empty list is all of them.
#[derive(Clone, Debug, Default)]
pub struct Scope {
    /// Of these tenants.
    pub tenants: Vec<Pattern>,
    /// For these models, by their names after aliases.
    pub models: Vec<Pattern>,
    /// In these classes.
    pub classes: Vec<ClassIndex>,
    /// For these pools.
    pub pools: Vec<PoolIndex>,
}

impl Scope {
    /// Whether a request is concerned.
    #[must_use]
    pub fn covers(&self, tenant: &TenantId, model: &Model, class: ClassIndex, pool: PoolIndex) -> bool {
        let one_fits = |patterns: &[Pattern], name: &str| {
            patterns.is_empty() || patterns.iter().any(|pattern| pattern.matches(name))
        };
        (self.classes.is_empty() || self.classes.contains(&class))
            && (self.pools.is_empty() || self.pools.contains(&pool))
            && one_fits(&self.tenants, tenant.as_str())
            && one_fits(&self.models, model.as_str())
    }
}

/// A rate: so much in so long, with so much at once.
#[derive(Clone, Debug)]
pub struct Rate {
    /// What it is called in headers, messages and metrics.
    pub name: Arc<str>,
    /// Which requests it concerns.
    pub scope: Scope,
    /// Whose use counts together.
    pub per: Per,
    /// What it counts.
    pub measure: Measure,
    /// How much is granted in each period. Positive.
    pub amount: Amount,
    /// The period. Positive.
    pub every: Span,
    /// How much may be used at once after a pause. At least one whole unit.
    pub burst: Amount,
    /// What becomes of a request beyond it.
    pub exceeded: Exceeded,
}

/// What becomes of a request that exceeds a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exceeded {
    /// It is refused, and told when it would be let in.
    Refuse,
    /// It waits in its queue until the limit allows it.
    Queue,
    /// It competes in this class, and is not counted.
    Demote(ClassIndex),
    /// It is let through, counted, and noted.
    Shadow,
}

impl Exceeded {
    /// The class a request beyond it competes in instead of its own.
    #[must_use]
    pub fn demotes_to(self) -> Option<ClassIndex> {
        match self {
            Self::Demote(class) => Some(class),
            Self::Refuse | Self::Queue | Self::Shadow => None,
        }
    }
}

/// A budget: so much in a period of the calendar, or in a life.
#[derive(Clone, Debug)]
pub struct Budget {
    /// What it is called in headers, messages, metrics and the ledger.
    pub name: Arc<str>,
    /// Which requests it concerns.
    pub scope: Scope,
    /// Whose use counts together.
    pub per: Per,
    /// What it counts.
    pub measure: Measure,
    /// How much there is in each period. Positive.
    pub amount: Amount,
    /// The period.
    pub period: Period,
    /// What becomes of a request that it no longer covers.
    pub spent: Spent,
    /// From which parts of it on answers carry a warning, least first.
    pub warn_at: Vec<Share>,
}

/// What becomes of a request that a budget no longer covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spent {
    /// It is refused.
    Refuse,
    /// It competes in this class, and is not counted.
    Demote(ClassIndex),
    /// It is let through, counted, and noted.
    Shadow,
}

impl Spent {
    /// The class a request that it no longer covers competes in instead of its own.
    #[must_use]
    pub fn demotes_to(self) -> Option<ClassIndex> {
        match self {
            Self::Demote(class) => Some(class),
            Self::Refuse | Self::Shadow => None,
        }
    }
}

/// For how long a budget is.
#[derive(Clone, Debug, PartialEq)]
pub enum Period {
    /// An hour of the calendar.
    Hour(TimeZone),
    /// A day of the calendar, which may have 23 or 25 hours.
    Day(TimeZone),
    /// A month of the calendar.
    Month(TimeZone),
    /// As long as whoever it is for goes on.
    Lifetime,
}

/// From when until when.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bounds {
    /// Its first moment.
    pub start: UnixTime,
    /// The first moment after it.
    pub end: UnixTime,
}

impl Bounds {
    /// All of time.
    pub const ALWAYS: Self = Self { start: UnixTime::from_nanos(0), end: UnixTime::FAR };

    /// Whether a moment lies within.
    #[must_use]
    pub fn holds(self, moment: UnixTime) -> bool {
        self.start <= moment && moment < self.end
    }
}

impl Period {
    /// The period a moment lies in.
    #[must_use]
    pub fn around(&self, moment: UnixTime) -> Bounds {
        let (zone, unit, step) = match self {
            Self::Lifetime => return Bounds::ALWAYS,
            Self::Hour(zone) => (zone, Unit::Hour, 1.hour()),
            Self::Day(zone) => (zone, Unit::Day, 1.day()),
            Self::Month(zone) => (zone, Unit::Month, 1.month()),
        };
        let bounds = || {
            let local = Timestamp::from_nanosecond(i128::from(moment.as_nanos())).ok()?.to_zoned(zone.clone());
            let start = match unit {
                Unit::Month => local.first_of_month().ok()?.start_of_day().ok()?,
                unit => local.round(ZonedRound::new().smallest(unit).mode(RoundMode::Trunc)).ok()?,
            };
            let end = start.checked_add(step).ok()?;
            let nanos = |zoned: &jiff::Zoned| i64::try_from(zoned.timestamp().as_nanosecond()).ok();
            Some(Bounds { start: UnixTime::from_nanos(nanos(&start)?), end: UnixTime::from_nanos(nanos(&end)?) })
        };
        // Beyond what the calendar reaches there is one last period.
        bounds().filter(|bounds| bounds.holds(moment)).unwrap_or(Bounds { start: moment, end: UnixTime::FAR })
    }

    /// The word for it, in policies and messages.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Hour(_) => "hour",
            Self::Day(_) => "day",
            Self::Month(_) => "month",
            Self::Lifetime => "lifetime",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Bounds, Period, TimeZone, UnixTime};

    fn at(text: &str) -> UnixTime {
        let stamp: jiff::Timestamp = text.parse().expect("a timestamp");
        UnixTime::from_nanos(i64::try_from(stamp.as_nanosecond()).expect("in range"))
    }

    #[test]
    fn a_period_is_what_the_calendar_of_its_zone_says() {
        let berlin = TimeZone::get("Europe/Berlin").expect("a zone");
        let kathmandu = TimeZone::get("Asia/Kathmandu").expect("a zone");
        let cases = [
            (Period::Hour(TimeZone::UTC), "2026-11-29T10:59:59Z", "2026-11-29T10:00:00Z", "2026-11-29T11:00:00Z"),
            (Period::Hour(kathmandu), "2026-11-29T10:20:00Z", "2026-11-29T10:15:00Z", "2026-11-29T11:15:00Z"),
            (Period::Day(TimeZone::UTC), "2026-11-29T00:00:00Z", "2026-11-29T00:00:00Z", "2026-11-30T00:00:00Z"),
            // Summer time ends: a day of 25 hours, and its second hour comes twice.
            (Period::Day(berlin.clone()), "2026-10-25T12:00:00Z", "2026-10-24T22:00:00Z", "2026-10-25T23:00:00Z"),
            (Period::Hour(berlin.clone()), "2026-10-25T00:30:00Z", "2026-10-25T00:00:00Z", "2026-10-25T01:00:00Z"),
            (Period::Hour(berlin.clone()), "2026-10-25T01:30:00Z", "2026-10-25T01:00:00Z", "2026-10-25T02:00:00Z"),
            (Period::Month(berlin), "2026-03-31T22:30:00Z", "2026-03-31T22:00:00Z", "2026-04-30T22:00:00Z"),
            (Period::Month(TimeZone::UTC), "2028-02-29T23:00:00Z", "2028-02-01T00:00:00Z", "2028-03-01T00:00:00Z"),
        ];
        for (period, moment, start, end) in cases {
            assert_eq!(period.around(at(moment)), Bounds { start: at(start), end: at(end) }, "{period:?} {moment}");
        }
        assert_eq!(Period::Lifetime.around(at("2026-01-01T00:00:00Z")), Bounds::ALWAYS);
    }

    #[test]
    fn every_moment_lies_in_its_period_even_the_last() {
        for nanos in [i64::MIN, -1, 0, i64::MAX - 1, i64::MAX] {
            let moment = UnixTime::from_nanos(nanos);
            for period in [Period::Hour(TimeZone::UTC), Period::Month(TimeZone::UTC)] {
                let Bounds { start, end } = period.around(moment);
                assert!(start <= moment && (moment < end || end == UnixTime::FAR), "{period:?} {nanos}");
            }
        }
    }
}
