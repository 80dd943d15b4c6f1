//! One pass over the log: eligibility, service, the window, and who came and went.

use std::collections::{BTreeMap, HashMap};

use crate::units::{ClassIndex, Instant, Limit, PoolIndex, RequestId, SessionId, TenantId, Tokens, VirtualTokens};

use super::fact::{Fact, Party, What};
use super::pairs::Pairs;

/// The rules the run was under, as far as they decide who is eligible and what has room.
#[derive(Clone, Debug)]
pub struct Rules {
    /// Requests in flight of one session.
    pub per_session: Limit<u32>,
    /// Requests in flight of one tenant, anywhere.
    pub per_tenant: Limit<u32>,
    /// Each pool's window; `None` where somebody else hands out the slots and room cannot be judged.
    pub windows: Option<Vec<(Limit<u32>, Limit<Tokens>)>>,
}

/// What the judge found.
#[derive(Clone, Debug, Default)]
pub struct Findings {
    /// Everything that is wrong but the VTC bound, in words.
    pub wrong: Vec<String>,
    /// Every two rivals that drifted further apart than the VTC bound allows, in words. A baseline's right.
    pub drifts: Vec<String>,
    /// The largest part of the VTC bound that any two rivals used: above 1 it was broken.
    pub bound_used: f64,
    /// M_g: the most tokens dispatched and unfinished at once, over all pools.
    pub most_in_flight: Tokens,
    /// The most requests any session had in flight at once.
    pub most_of_a_session: u32,
}

/// Judges a run's log.
#[must_use]
pub fn audit(facts: &[Fact], rules: &Rules) -> Findings {
    let mut audit = Audit {
        rules,
        requests: HashMap::new(),
        pools: BTreeMap::new(),
        flights: Flights::default(),
        found: Findings::default(),
    };
    let mut now = Instant::EPOCH;
    for fact in facts {
        if fact.at > now {
            audit.check_idle(now);
            now = fact.at;
        }
        audit.take(fact);
    }
    audit.check_idle(now);
    audit.finish()
}

/// A request's life so far.
struct Life {
    party: Party,
    size: Tokens,
    input_cost: VirtualTokens,
    output_price: VirtualTokens,
    held: Tokens,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Waiting,
    InFlight,
    Gone,
}

/// What waits of one session in one pool and class.
type Lane = BTreeMap<RequestId, Tokens>;

struct Competitor {
    rival: usize,
    sessions: BTreeMap<Option<SessionId>, Lane>,
}

#[derive(Default)]
struct Class {
    pairs: Pairs,
    competitors: BTreeMap<TenantId, Competitor>,
}

#[derive(Default)]
struct PoolState {
    classes: BTreeMap<ClassIndex, Class>,
    in_flight: u32,
    in_flight_tokens: Tokens,
    most_in_flight: Tokens,
    longest_input: VirtualTokens,
    dearest_output: VirtualTokens,
}

/// Requests in flight, over all pools and classes, which is what the caps on fan-out are about.
#[derive(Default)]
struct Flights {
    tenants: HashMap<TenantId, u32>,
    sessions: HashMap<(TenantId, SessionId), u32>,
}

impl Flights {
    /// One more (+1) or one less (-1); says how many of the tenant and of the session there are then.
    fn count(&mut self, party: &Party, by: i32) -> (u32, u32) {
        let of_tenant = self.tenants.entry(party.tenant.clone()).or_default();
        *of_tenant = of_tenant.saturating_add_signed(by);
        let Some(session) = &party.session else { return (*of_tenant, 0) };
        let of_session = self.sessions.entry((party.tenant.clone(), session.clone())).or_default();
        *of_session = of_session.saturating_add_signed(by);
        (*of_tenant, *of_session)
    }

    fn tenant_has_room(&self, tenant: &TenantId, rules: &Rules) -> bool {
        rules.per_tenant.allows(self.tenants.get(tenant).copied().unwrap_or_default() + 1)
    }

    fn session_has_room(&self, tenant: &TenantId, session: Option<&SessionId>, rules: &Rules) -> bool {
        let Some(session) = session else { return true };
        let in_flight = self.sessions.get(&(tenant.clone(), session.clone())).copied().unwrap_or_default();
        rules.per_session.allows(in_flight + 1)
    }

    /// The lanes of a tenant of which a request could go, were there room in the pool.
    fn eligible<'a>(&self, name: &TenantId, of: &'a Competitor, rules: &Rules) -> Vec<&'a Lane> {
        if !self.tenant_has_room(name, rules) {
            return Vec::new();
        }
        let sessions = of.sessions.iter().filter(|(_, lane)| !lane.is_empty());
        let free = sessions.filter(|(session, _)| self.session_has_room(name, session.as_ref(), rules));
        free.map(|(_, lane)| lane).collect()
    }
}

struct Audit<'a> {
    rules: &'a Rules,
    requests: HashMap<RequestId, Life>,
    pools: BTreeMap<PoolIndex, PoolState>,
    flights: Flights,
    found: Findings,
}

impl Audit<'_> {
    fn take(&mut self, fact: &Fact) {
        if let What::Joined { party, size, input_cost, output_price } = fact.what.clone() {
            let (held, stage) = (Tokens::ZERO, Stage::Waiting);
            self.join(fact, Life { party, size, input_cost, output_price, held, stage });
            return;
        }
        if let What::Vacated { service } = fact.what {
            self.vacated(fact, service);
            return;
        }
        let (wanted, next) = match fact.what {
            What::Left => (Stage::Waiting, Stage::Gone),
            What::Dispatched => (Stage::Waiting, Stage::InFlight),
            What::Served { .. } => (Stage::InFlight, Stage::InFlight),
            What::Joined { .. } | What::Vacated { .. } | What::Ended => (Stage::InFlight, Stage::Gone),
        };
        let Some(life) = self.requests.get_mut(&fact.request).filter(|life| life.stage == wanted) else {
            self.wrong(format!("{:?} {}: {:?} out of turn", fact.at, fact.request, fact.what));
            return;
        };
        life.stage = next;
        let (party, size, before) = (life.party.clone(), life.size, life.held);
        match fact.what {
            What::Served { service, held } => {
                life.held = before.max(held);
                let grown = life.held.saturating_sub(before);
                self.hold(party.pool, grown, Tokens::ZERO);
                let class = self.class(&party);
                let rival = class.competitors[&party.tenant].rival;
                class.pairs.serve(fact.at, rival, service);
            }
            What::Left => self.lane(&party, |lane| _ = lane.remove(&fact.request)),
            What::Dispatched => {
                life.held = size;
                let (input, output) = (life.input_cost, life.output_price);
                let pool = self.pools.entry(party.pool).or_default();
                pool.longest_input = pool.longest_input.max(input);
                pool.dearest_output = pool.dearest_output.max(output);
                self.hold(party.pool, size, Tokens::ZERO);
                self.flight(&party, fact.request, 1);
            }
            What::Joined { .. } | What::Vacated { .. } | What::Ended => {
                self.hold(party.pool, Tokens::ZERO, before);
                self.flight(&party, fact.request, -1);
            }
        }
        self.refresh(fact.at, &party.tenant);
    }

    fn join(&mut self, fact: &Fact, life: Life) {
        let (party, size) = (life.party.clone(), life.size);
        if self.requests.insert(fact.request, life).is_some() {
            self.wrong(format!("{:?} {}: joined twice", fact.at, fact.request));
        }
        self.lane(&party, |lane| _ = lane.insert(fact.request, size));
        self.refresh(fact.at, &party.tenant);
    }

    /// What a tenant kept from everybody, it had.
    fn vacated(&mut self, fact: &Fact, service: VirtualTokens) {
        let Some(party) = self.requests.get(&fact.request).map(|life| life.party.clone()) else {
            self.wrong(format!("{:?} {}: {:?} of nobody", fact.at, fact.request, fact.what));
            return;
        };
        let class = self.class(&party);
        let rival = class.competitors[&party.tenant].rival;
        class.pairs.serve(fact.at, rival, service);
    }

    fn class(&mut self, party: &Party) -> &mut Class {
        self.pools.entry(party.pool).or_default().classes.entry(party.class).or_default()
    }

    fn lane(&mut self, party: &Party, change: impl FnOnce(&mut Lane)) {
        let class = self.class(party);
        if !class.competitors.contains_key(&party.tenant) {
            let rival = class.pairs.add(party.weight);
            class.competitors.insert(party.tenant.clone(), Competitor { rival, sessions: BTreeMap::new() });
        }
        if let Some(competitor) = class.competitors.get_mut(&party.tenant) {
            change(competitor.sessions.entry(party.session.clone()).or_default());
        }
    }

    /// A request enters (+1) or leaves (-1) the engine.
    fn flight(&mut self, party: &Party, request: RequestId, by: i32) {
        self.lane(party, |lane| _ = lane.remove(&request));
        let pool = self.pools.entry(party.pool).or_default();
        pool.in_flight = pool.in_flight.saturating_add_signed(by);
        let (of_tenant, of_session) = self.flights.count(party, by);
        self.found.most_of_a_session = self.found.most_of_a_session.max(of_session);
        let over = !self.rules.per_tenant.allows(of_tenant) || !self.rules.per_session.allows(of_session);
        if by > 0 && over {
            let (tenant, session) = (&party.tenant, &party.session);
            self.wrong(format!(
                "{request}: {tenant} has {of_tenant} requests in flight, {of_session} of {session:?}, over its cap"
            ));
        }
    }

    fn hold(&mut self, pool: PoolIndex, more: Tokens, less: Tokens) {
        let pool = self.pools.entry(pool).or_default();
        pool.in_flight_tokens = (pool.in_flight_tokens + more).saturating_sub(less);
        pool.most_in_flight = pool.most_in_flight.max(pool.in_flight_tokens);
    }

    /// Reckons anew where a tenant is eligible: a cap over all pools and classes may have changed everywhere.
    fn refresh(&mut self, at: Instant, tenant: &TenantId) {
        for class in self.pools.values_mut().flat_map(|pool| pool.classes.values_mut()) {
            if let Some(competitor) = class.competitors.get(tenant) {
                let eligible = !self.flights.eligible(tenant, competitor, self.rules).is_empty();
                class.pairs.set_eligible(at, competitor.rival, eligible);
            }
        }
    }

    /// Complains of every pool that has room for whatever is eligible in it, and lets it wait.
    fn check_idle(&mut self, at: Instant) {
        let Some(windows) = &self.rules.windows else { return };
        let mut wrong = Vec::new();
        for (index, pool) in &self.pools {
            let (requests, tokens) = windows[index.index()];
            let competitors = pool.classes.values().flat_map(|class| &class.competitors);
            let lanes = competitors.flat_map(|(name, of)| self.flights.eligible(name, of, self.rules));
            let largest = lanes.flat_map(BTreeMap::values).max();
            let Some(largest) = largest else { continue };
            let room = requests.allows(pool.in_flight + 1) && tokens.allows(pool.in_flight_tokens + *largest);
            // A window of no requests at all is a pool that is closed.
            let open = requests.allows(1);
            if room || (pool.in_flight == 0 && open) {
                wrong.push(format!(
                    "{at:?} {index}: {} requests and {} tokens in flight leave room for {largest} more, which wait",
                    pool.in_flight, pool.in_flight_tokens
                ));
            }
        }
        wrong.into_iter().for_each(|wrong| self.wrong(wrong));
    }

    fn finish(mut self) -> Findings {
        let mut left: Vec<_> = self.requests.iter().filter(|(_, life)| life.stage != Stage::Gone).collect();
        left.sort_by_key(|(request, _)| **request);
        let left: Vec<String> =
            left.iter().map(|(id, life)| format!("{id}: still {:?} at the end", life.stage)).collect();
        left.into_iter().for_each(|left| self.wrong(left));
        for (index, pool) in std::mem::take(&mut self.pools) {
            self.found.most_in_flight = self.found.most_in_flight.max(pool.most_in_flight);
            let overshoot = scaled(pool.dearest_output, pool.most_in_flight);
            let unit = pool.longest_input.max(overshoot);
            for (class, Class { pairs, competitors }) in &pool.classes {
                let name = |rival| competitors.iter().find(|(_, other)| other.rival == rival).map(|(name, _)| name);
                for ((one, other), widest) in &pairs.widest {
                    let weight = pairs.weight(*one).min(pairs.weight(*other));
                    let bound = doubled(unit).over(weight);
                    self.found.bound_used = self.found.bound_used.max(widest.spread.as_f64() / bound.as_f64());
                    if widest.spread > bound {
                        self.found.drifts.push(format!(
                            "{index} {class}: {:?} and {:?} drifted {} apart between {:?} and {:?}; the bound is {bound}",
                            name(*one), name(*other), widest.spread, widest.since, widest.at
                        ));
                    }
                }
            }
        }
        self.found
    }

    fn wrong(&mut self, what: String) {
        const MOST: usize = 100;
        if self.found.wrong.len() < MOST {
            self.found.wrong.push(what);
        }
    }
}

fn doubled(amount: VirtualTokens) -> VirtualTokens {
    amount + amount
}

fn scaled(price: VirtualTokens, tokens: Tokens) -> VirtualTokens {
    VirtualTokens::from_micros(price.as_micros().saturating_mul(i128::from(tokens.get())))
}
