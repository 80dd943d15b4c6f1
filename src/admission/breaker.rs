//! Breakers: an upstream that fails is left alone for a while, and then tried with one request.
//!
//! *Decides* whether a pool lets anything through, and whom it holds back. *From* the circuit breaker of M. Nygard's
//! "Release It!"; the words are `Serving`, `Tripped` and `Probing`, since "open" means both. *Formulas:*
//!
//! ```text
//! a failure     a status of the rule; no answer in time; no connection; an early end after a 200; as the rule says
//! says nothing  any other status, a client that leaves, an answer of a request sent before the last return
//! trips         failures ≥ the rule's number, or ≥ its part of at least so many requests; within its time
//! until         now + trip_for, or what the upstream's Retry-After says, where that is accepted
//! probing       of the next requests of all tenants the one that costs least, alone; good once any of its output is
//!               there or it is complete
//! returning     2 in flight, and one more with each success, which doubles them in the time of one answer; half with
//!               each failure; whole beyond the most that ever were in flight
//! ```
//!
//! *One tenant's failures stop that tenant alone.* A request that makes an engine fall over is sent by somebody, and
//! whoever sends it again and again must not take the pool from the others. So failures are counted by tenant. Those of
//! one tenant trip its own circuit. For the pool's, one tenant makes up at most half of the number; and a part of the
//! requests must fail without the tenant that failed most too. When the pool is probed, the failure of one tenant's
//! probe holds back that tenant, and the next tenant's is tried; the second to fail trips the pool again. An upstream
//! that is down costs the others half a rule's number of failures more, and one more at each probing.
//!
//! *A spent budget is no failure.* A status that says so (429) pauses whoever it was said to, for as long as it says or
//! [`UNSAID_PAUSE`], and the whole pool when it is said to a second tenant meanwhile. Who waits keeps waiting, and
//! afterwards half of what was in flight may be, and more with each success.
//!
//! *Bound:* `MOST_SEEN` requests are looked back on, and of [`MOST_ALONE`] tenants is known that they were held back by
//! themselves; one more takes the place of the one, of those whose trip or pause is over, that was held back first, and
//! where none is over it is the pool that trips or pauses. No upstream's word counts for longer than [`LONGEST_WORD`].
//! *At start* everything is let through. *At idle* a circuit that tripped waits for the next request to probe with. *At overload* a full queue waits no longer
//! than it can: whoever cannot outlast the trip is refused when it begins. *Never* counts a client that leaves, and
//! never has two probes in flight.

use std::collections::BTreeMap;

use crate::policy::model;
use crate::policy::model::{FailureSign, UpstreamsWord};
use crate::units::{Instant, Limit, Span, TenantId, TicketId};

use super::circuit::{BreakerStage, Circuit, Passage, Shift, State};
use super::evidence::Evidence;
use super::refusal::Level;
use super::ticket::{Ending, Outcome};

/// How long a budget counts as spent when nobody says how long.
const UNSAID_PAUSE: Span = Span::from_secs(1);
/// The longest an upstream's word holds.
pub(super) const LONGEST_WORD: Span = Span::from_secs(7 * 24 * 60 * 60);
/// The most tenants that are held back by themselves, or were a while ago.
const MOST_ALONE: usize = 64;
/// How many may be in flight when a probe went well.
const FIRST_RETURNING: u32 = 2;

/// What the breaker says of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerFound {
    /// Whether the pool has a breaker.
    pub watched: bool,
    /// How its pool's upstream is treated.
    pub pool: BreakerStage,
    /// How its tenant's requests to it are, beyond that.
    pub tenant: BreakerStage,
    /// What is let through now.
    pub passage: Passage,
}

/// What the end of a request says of its upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Word {
    Nothing,
    Good,
    /// It failed, and perhaps said when to come back.
    Failed(Option<Span>),
    /// A budget is spent, perhaps for so long.
    Limited(Option<Span>),
}

/// One request that goes out or comes back.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent<'a> {
    pub(super) at: Instant,
    pub(super) ticket: TicketId,
    pub(super) tenant: &'a TenantId,
}

/// One pool's breaker.
#[derive(Debug)]
pub(super) struct Breaker {
    rule: Option<model::Breaker>,
    everybody: Circuit,
    /// Tenants that are held back by themselves, or were a while ago.
    alone: BTreeMap<TenantId, Circuit>,
    /// Whose probe failed, while the pool is probed.
    failed_probe: Option<TenantId>,
    evidence: Evidence,
    last: TicketId,
    /// The most ever in flight.
    peak: u32,
}

impl Breaker {
    pub(super) fn new(rule: Option<model::Breaker>) -> Self {
        let whole = State::Serving { most: Limit::Unlimited };
        Self {
            evidence: Evidence::new(rule.as_ref()),
            rule,
            everybody: Circuit::new(whole),
            alone: BTreeMap::new(),
            failed_probe: None,
            last: TicketId::new(0),
            peak: 0,
        }
    }

    pub(super) fn passage(&self) -> Passage {
        self.everybody.passage()
    }

    /// Whether nothing is let through for some time, so that who waits says nothing of how fast it is served.
    pub(super) fn rests(&self) -> bool {
        matches!(self.everybody.state, State::Paused { .. } | State::Tripped { .. })
    }

    /// Whether a tenant's requests are held back, whatever the others' are.
    pub(super) fn bars(&self, tenant: &TenantId) -> bool {
        self.alone.get(tenant).is_some_and(|circuit| circuit.passage() == Passage::Shut)
    }

    /// The tenants whose requests are held back, whatever the others' are.
    pub(super) fn barred(&self) -> impl Iterator<Item = &TenantId> {
        self.alone.iter().filter(|(_, circuit)| circuit.passage() == Passage::Shut).map(|(tenant, _)| tenant)
    }

    pub(super) fn found(&self, tenant: &TenantId) -> BreakerFound {
        let own = self.alone.get(tenant);
        let passage = match (self.passage(), self.bars(tenant)) {
            (_, true) => Passage::Shut,
            (passage, false) => passage,
        };
        BreakerFound {
            watched: self.rule.is_some(),
            pool: self.everybody.stage(),
            tenant: own.map_or(BreakerStage::Serving, Circuit::stage),
            passage,
        }
    }

    /// How the upstream is treated; nothing where that is not watched.
    pub(super) fn stage(&self) -> Option<BreakerStage> {
        self.rule.as_ref().map(|_| self.everybody.stage())
    }

    /// How the tenants fare that are held back by themselves, or were a while ago.
    pub(super) fn alone(&self) -> impl Iterator<Item = (&TenantId, BreakerStage)> {
        self.alone.iter().map(|(tenant, circuit)| (tenant, circuit.stage()))
    }

    /// Whose breaker refuses a tenant's newcomers, and until when.
    pub(super) fn refuses(&self, tenant: &TenantId) -> Option<(Level, Instant)> {
        let tripped = |circuit: &Circuit| match circuit.state {
            State::Tripped { until } => Some(until),
            State::Serving { .. } | State::Paused { .. } | State::Probing { .. } => None,
        };
        let pool = tripped(&self.everybody).map(|until| (Level::Pool, until));
        pool.or_else(|| self.alone.get(tenant).and_then(tripped).map(|until| (Level::Tenant, until)))
    }

    /// How long a tenant's requests certainly wait.
    pub(super) fn shut_for(&self, tenant: &TenantId, now: Instant) -> Span {
        let circuits = [Some(&self.everybody), self.alone.get(tenant)];
        let untils = circuits.into_iter().flatten().filter_map(|circuit| circuit.stage().until());
        untils.map(|until| until.since(now)).max().unwrap_or(Span::ZERO)
    }

    /// When time alone changes something.
    pub(super) fn turns_at(&self) -> Option<Instant> {
        let circuits = std::iter::once(&self.everybody).chain(self.alone.values());
        circuits.filter_map(|circuit| circuit.stage().until()).min()
    }

    /// Lets every trip and pause end whose time has come.
    pub(super) fn turn(&mut self, now: Instant) -> Vec<Shift> {
        if self.turns_at().is_none_or(|first| first > now) {
            return Vec::new();
        }
        let next = self.next_ticket();
        let mut shifts = Vec::new();
        if self.everybody.turn(now, next) {
            shifts.push(Shift { tenant: None, stage: self.everybody.stage() });
        }
        for (tenant, circuit) in &mut self.alone {
            if circuit.turn(now, next) {
                shifts.push(Shift { tenant: Some(tenant.clone()), stage: circuit.stage() });
            }
        }
        shifts
    }

    fn next_ticket(&self) -> TicketId {
        TicketId::new(self.last.get() + 1)
    }

    /// A request goes out, with which so many are in flight.
    pub(super) fn depart(&mut self, ticket: TicketId, tenant: &TenantId, in_flight: u32) {
        self.last = ticket;
        self.peak = self.peak.max(in_flight);
        self.everybody.depart(ticket);
        if let Some(circuit) = self.alone.get_mut(tenant) {
            circuit.depart(ticket);
        }
    }

    /// Some of a request's output is there.
    pub(super) fn produced(&mut self, sent: Sent<'_>) -> Vec<Shift> {
        let mut shifts = Vec::new();
        if let Some(circuit) = self.alone.get_mut(sent.tenant)
            && circuit.give_up_probe(sent.ticket)
        {
            self.tenant_returns(sent, 1, &mut shifts);
        }
        if self.everybody.give_up_probe(sent.ticket) {
            self.pool_returns(sent, 1, &mut shifts);
        }
        shifts
    }

    /// A request ended.
    pub(super) fn land(&mut self, sent: Sent<'_>, ending: &Ending) -> Vec<Shift> {
        let Some(rule) = &self.rule else { return Vec::new() };
        let word = word(rule, ending);
        let own_probe = self.alone.get_mut(sent.tenant).is_some_and(|circuit| circuit.land(sent.ticket));
        let probe = self.everybody.land(sent.ticket);
        let mut shifts = Vec::new();
        match word {
            Word::Nothing => {}
            Word::Good => self.good(sent, probe, own_probe, &mut shifts),
            Word::Failed(retry_after) => self.failed(sent, retry_after, probe, own_probe, &mut shifts),
            Word::Limited(retry_after) => self.limited(sent, retry_after, probe, own_probe, &mut shifts),
        }
        shifts
    }

    /// A request ended well, or its probe produced something.
    fn good(&mut self, sent: Sent<'_>, probe: bool, own_probe: bool, shifts: &mut Vec<Shift>) {
        if own_probe {
            self.tenant_returns(sent, 0, shifts);
        } else if let Some(circuit) = self.alone.get_mut(sent.tenant)
            && sent.ticket >= circuit.since
            && circuit.grow(self.peak)
        {
            self.alone.remove(sent.tenant);
            shifts.push(Shift { tenant: Some(sent.tenant.clone()), stage: BreakerStage::Serving });
        }
        if probe {
            self.pool_returns(sent, 0, shifts);
        } else if sent.ticket >= self.everybody.since {
            self.evidence.good(sent.at, sent.tenant);
            if self.everybody.grow(self.peak) {
                shifts.push(Shift { tenant: None, stage: BreakerStage::Serving });
            }
        }
    }

    /// The pool's probe went well. So many of what is in flight are counted from here on.
    fn pool_returns(&mut self, sent: Sent<'_>, out: u32, shifts: &mut Vec<Shift>) {
        self.everybody.restart(sent.ticket, out, FIRST_RETURNING);
        self.evidence.clear();
        self.failed_probe = None;
        shifts.push(Shift { tenant: None, stage: self.everybody.stage() });
    }

    fn tenant_returns(&mut self, sent: Sent<'_>, out: u32, shifts: &mut Vec<Shift>) {
        let Some(circuit) = self.alone.get_mut(sent.tenant) else { return };
        circuit.restart(sent.ticket, out, FIRST_RETURNING);
        shifts.push(Shift { tenant: Some(sent.tenant.clone()), stage: circuit.stage() });
        self.evidence.forget(sent.tenant);
    }

    /// A request failed.
    fn failed(&mut self, sent: Sent<'_>, told: Option<Span>, probe: bool, own_probe: bool, shifts: &mut Vec<Shift>) {
        let Some(rule) = &self.rule else { return };
        let until = sent.at + told.unwrap_or(rule.trip_for);
        match &mut self.everybody.state {
            State::Tripped { until: known } => {
                if told.is_some() && until > *known {
                    *known = until;
                    shifts.push(Shift { tenant: None, stage: self.everybody.stage() });
                }
            }
            State::Probing { .. } if probe => match self.failed_probe.take() {
                Some(other) if other != *sent.tenant => self.trip_pool(until, shifts),
                _ => {
                    self.failed_probe = Some(sent.tenant.clone());
                    self.trip_tenant(sent, until, shifts);
                }
            },
            State::Probing { .. } => {}
            State::Serving { .. } | State::Paused { .. } if own_probe => self.trip_tenant(sent, until, shifts),
            State::Serving { .. } | State::Paused { .. } => self.serving_failed(sent, told, shifts),
        }
    }

    fn serving_failed(&mut self, sent: Sent<'_>, told: Option<Span>, shifts: &mut Vec<Shift>) {
        let Some(rule) = &self.rule else { return };
        let counts = sent.ticket >= self.everybody.since;
        let own_counts = self.alone.get_mut(sent.tenant).is_none_or(|circuit| {
            circuit.shrink();
            matches!(circuit.state, State::Serving { .. }) && sent.ticket >= circuit.since
        });
        if !counts || !own_counts {
            return;
        }
        self.everybody.shrink();
        self.evidence.failed(sent.at, sent.tenant, told.map(|span| sent.at + span));
        let otherwise = sent.at + rule.trip_for;
        if self.evidence.trips_all(rule) {
            let until = self.evidence.told(sent.at, None).unwrap_or(otherwise);
            self.trip_pool(until, shifts);
        } else if self.evidence.trips(rule, sent.tenant) {
            let until = self.evidence.told(sent.at, Some(sent.tenant)).unwrap_or(otherwise);
            self.trip_tenant(sent, until, shifts);
        }
    }

    fn trip_pool(&mut self, until: Instant, shifts: &mut Vec<Shift>) {
        self.everybody.state = State::Tripped { until };
        self.alone.clear();
        self.evidence.clear();
        self.failed_probe = None;
        shifts.push(Shift { tenant: None, stage: self.everybody.stage() });
    }

    fn trip_tenant(&mut self, sent: Sent<'_>, until: Instant, shifts: &mut Vec<Shift>) {
        if self.hold_back(sent.tenant, State::Tripped { until }, shifts) {
            shifts.push(Shift { tenant: Some(sent.tenant.clone()), stage: BreakerStage::Tripped { until } });
        } else {
            self.trip_pool(until, shifts);
        }
    }

    /// Holds a tenant back by itself, if there are not too many such already.
    fn hold_back(&mut self, tenant: &TenantId, state: State, shifts: &mut Vec<Shift>) -> bool {
        if let Some(circuit) = self.alone.get_mut(tenant) {
            circuit.state = state;
            return true;
        }
        if self.alone.len() >= MOST_ALONE
            && let Some(over) = self.longest_over()
        {
            self.alone.remove(&over);
            shifts.push(Shift { tenant: Some(over), stage: BreakerStage::Serving });
        }
        let room = self.alone.len() < MOST_ALONE;
        if room {
            self.alone.insert(tenant.clone(), Circuit { since: self.next_ticket(), ..Circuit::new(state) });
        }
        room
    }

    /// Of the tenants that are held back no more and have nothing in flight the one that was held back first.
    fn longest_over(&self) -> Option<TenantId> {
        let over = self.alone.iter().filter(|(_, circuit)| circuit.out == 0 && circuit.passage() != Passage::Shut);
        over.min_by_key(|(_, circuit)| circuit.since).map(|(tenant, _)| tenant.clone())
    }

    /// A budget is spent.
    fn limited(&mut self, sent: Sent<'_>, told: Option<Span>, probe: bool, own_probe: bool, shifts: &mut Vec<Shift>) {
        let until = sent.at + told.unwrap_or(UNSAID_PAUSE);
        match &mut self.everybody.state {
            State::Paused { until: known, .. } => *known = until.max(*known),
            // It answers, so it serves.
            State::Probing { .. } if probe => {
                self.failed_probe = None;
                self.pause_pool(until, 1, shifts);
            }
            State::Tripped { .. } | State::Probing { .. } => {}
            State::Serving { .. } => self.limit_tenant(sent, until, own_probe, shifts),
        }
    }

    fn limit_tenant(&mut self, sent: Sent<'_>, until: Instant, own_probe: bool, shifts: &mut Vec<Shift>) {
        let own = self.alone.get(sent.tenant).map(|circuit| (circuit.state, circuit.out));
        let (until, then) = match own {
            // Whatever it is told, it is held back already, and longer.
            Some((State::Tripped { .. }, _)) => return,
            Some((State::Probing { .. }, _)) if !own_probe => return,
            Some((State::Paused { until: known, then }, _)) => (until.max(known), then),
            Some((_, out)) => (until, (out / 2).max(1)),
            None => (until, (self.everybody.out / 2).max(1)),
        };
        let paused = |circuit: &Circuit| matches!(circuit.state, State::Paused { .. });
        let told_to_others = self.alone.iter().any(|(tenant, circuit)| tenant != sent.tenant && paused(circuit));
        if told_to_others || !self.hold_back(sent.tenant, State::Paused { until, then }, shifts) {
            self.alone.retain(|_, circuit| !paused(circuit));
            let most = (self.everybody.out / 2).max(1);
            self.pause_pool(until, most, shifts);
        } else {
            shifts.push(Shift { tenant: Some(sent.tenant.clone()), stage: BreakerStage::Paused { until } });
        }
    }

    fn pause_pool(&mut self, until: Instant, then: u32, shifts: &mut Vec<Shift>) {
        self.everybody.state = State::Paused { until, then };
        shifts.push(Shift { tenant: None, stage: self.everybody.stage() });
    }
}

/// What the end of a request says of its upstream.
fn word(rule: &model::Breaker, ending: &Ending) -> Word {
    let sign = |sign: FailureSign| if rule.signs.contains(&sign) { Word::Failed(None) } else { Word::Nothing };
    match ending.heard {
        Some(heard) if rule.is_limited(heard.status) => Word::Limited(bounded(heard.retry_after)),
        Some(heard) if rule.is_failure(heard.status) => Word::Failed(match rule.retry_after {
            UpstreamsWord::Accepted => bounded(heard.retry_after),
            UpstreamsWord::Ignored => None,
        }),
        Some(heard) if !heard.status.is_success() => Word::Nothing,
        heard => match ending.outcome {
            Outcome::Completed | Outcome::ClosedAfterFinal => Word::Good,
            Outcome::UpstreamFailed if heard.is_some() => sign(FailureSign::EarlyEnd),
            Outcome::UpstreamFailed => sign(FailureSign::Unreachable),
            Outcome::TimedOut => sign(FailureSign::Timeout),
            Outcome::ClientAborted | Outcome::Evicted | Outcome::Lost => Word::Nothing,
        },
    }
}

fn bounded(told: Option<Span>) -> Option<Span> {
    told.filter(|span| *span > Span::ZERO).map(|span| span.min(LONGEST_WORD))
}

#[cfg(test)]
mod tests {
    use super::{BTreeMap, Breaker, Circuit, State, TicketId};
    use crate::admission::evidence::tests::agree;
    use crate::admission::flight::Flight;

    impl Breaker {
        /// Whether what is reckoned in step agrees with what is in flight.
        pub(in crate::admission) fn agrees(&self, flights: &BTreeMap<TicketId, Flight>) -> bool {
            let circuit = |circuit: &Circuit, of: &dyn Fn(&Flight) -> bool| {
                let since = flights.range(circuit.since..).filter(|(_, flight)| of(flight)).count();
                let probe_lives = match circuit.state {
                    State::Probing { probe: Some(probe) } => flights.contains_key(&probe),
                    _ => true,
                };
                circuit.out as usize == since && probe_lives
            };
            let whole = self.rule.is_none() || circuit(&self.everybody, &|_| true);
            let alone = self
                .alone
                .iter()
                .all(|(tenant, own)| circuit(own, &|flight: &Flight| flight.request.subject.tenant == *tenant));
            let tripped = matches!(self.everybody.state, State::Tripped { .. });
            whole && alone && agree(&self.evidence) && (!tripped || self.alone.is_empty())
        }
    }
}
