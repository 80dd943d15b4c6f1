//! One pool: its tree, its window, and which request is next.
//!
//! *Decides* the head: of the classes in rank order, the first that is owed its share, else the first with an
//! eligible request ([`class`](super::class)); in it the tenant, session and request that
//! [`vtc`](super::vtc) puts first. *Formula, bound:* theirs. If the head does not fit the window it waits, and
//! nothing overtakes it. *Never* skips a head because something smaller would fit.

use std::sync::Arc;

use crate::policy::Policy;
use crate::policy::model;
use crate::units::{Agent, Bytes, ClassIndex, Instant, Limit, PoolIndex, SessionId, Share, Tokens, VirtualTokens};

use super::ahead::{Ahead, Others};
use super::breaker::Breaker;
use super::circuit::Passage;
use super::class::is_below_ceiling;
use super::deadline::DrainRate;
use super::flight::{Flight, Speed};
use super::gauges::Instruments;
use super::own::Own;
use super::promise::{Kept, Promised, Promises};
use super::queue::Load;
use super::request::{Request, Subject};
use super::session::QueueKey;
use super::tree::{Place, Slot, Tree, Waiting};
use super::vacancy::Vacancy;
use super::vtc::{Node, Standing};
use super::window::Window;

/// Who decides that something may be dispatched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Slots {
    /// The pool's window.
    #[default]
    Window,
    /// Somebody outside, one [`Input::Grant`](super::Input::Grant) at a time: an engine's own scheduler, or an
    /// arbiter for several gateways.
    Granted,
}

/// Where a newcomer would stand among all who wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// The share its class is owed, whatever its rank.
    pub min_share: Share,
    /// What its class is owed now, in unweighted virtual tokens.
    pub owed: VirtualTokens,
    /// Whether that would put the class first, with this request at its head.
    pub class_is_due: bool,
    /// Its tenant among the tenants of the class.
    pub tenant: Standing,
    /// Its session among the sessions of the tenant; nothing where the tenant is not known.
    pub session: Option<Standing>,
    /// Whether its class may have no more like it in flight now, whoever else is idle.
    pub at_ceiling: bool,
    /// Whether the pool's next slot would be its.
    pub next: bool,
    /// Whether it would be the one to be tried, were the upstream probed now.
    pub probes: bool,
}

/// Where a newcomer would stand among what its own tenant has queued.
struct AmongItsOwn {
    /// The number of its session's head, with it there.
    head: u64,
    /// Its session among the sessions of its tenant; nothing where the tenant is not known.
    among_sessions: Option<Standing>,
    /// Whether it would be what its tenant sends next, and may go.
    leads: bool,
}

/// One pool of serving capacity.
#[derive(Debug)]
pub(super) struct Pool {
    pub(super) index: PoolIndex,
    pub(super) tree: Tree,
    pub(super) window: Window,
    pub(super) speed: Speed,
    pub(super) max_request_tokens: Limit<Tokens>,
    pub(super) caps: model::QueueCaps,
    pub(super) slots: Slots,
    /// What it serves while anybody waits.
    pub(super) drain: DrainRate,
    pub(super) vacancy: Option<Vacancy>,
    pub(super) promises: Promises,
    pub(super) breaker: Breaker,
    pub(super) instruments: Instruments,
}

impl Pool {
    pub(super) fn new(policy: &Arc<Policy>, index: PoolIndex, seed: u64, slots: Slots) -> Self {
        let pool = &policy.pools[index.index()];
        Self {
            index,
            tree: Tree::new(policy, pool, seed),
            window: Window::new(pool.window, pool.adapt),
            speed: Speed::default(),
            max_request_tokens: pool.max_request_tokens,
            caps: pool.queue,
            slots,
            drain: DrainRate::new(),
            vacancy: None,
            promises: Promises::default(),
            breaker: Breaker::new(pool.breaker.clone()),
            instruments: Instruments::new(pool.engine.as_ref()),
        }
    }

    /// Whether this pool's window decides, and not somebody outside.
    pub(super) fn decides(&self) -> bool {
        self.slots == Slots::Window
    }

    /// The request a slot would go to now.
    pub(super) fn head(&self) -> Option<Slot> {
        self.next_of(|class| self.head_of(class).map(|slot| (slot, self.tree.waiting[slot].cost)))
    }

    /// The request a class would serve next, unless the class is at its ceiling.
    pub(super) fn head_of(&self, class: ClassIndex) -> Option<Slot> {
        let need = |slot: Slot| self.tree.waiting[slot].request.expected.total();
        self.tree.head(class).filter(|slot| self.is_below_ceiling(class, need(*slot)))
    }

    /// Whether a class may have one more request in flight that needs so much.
    fn is_below_ceiling(&self, class: ClassIndex, need: Tokens) -> bool {
        let node = &self.tree.classes[class.index()];
        is_below_ceiling(node.max_share, self.window.found(need).caps, node.in_flight, need)
    }

    /// Of the heads of all classes, each with its cost, the one whose turn it is.
    fn next_of<T>(&self, head: impl Fn(ClassIndex) -> Option<(T, VirtualTokens)>) -> Option<T> {
        let heads =
            || self.tree.by_rank.iter().filter_map(|class| head(*class).map(|(head, cost)| (class, head, cost)));
        let owed = heads().find(|(class, _, cost)| self.tree.classes[class.index()].owed.is_due(*cost));
        owed.or_else(|| heads().next()).map(|(_, head, _)| head)
    }

    /// Where a newcomer of this cost and deadline would stand, its arrival number being greater than any. That
    /// somebody is displaced for it is not taken into account.
    pub(super) fn turn(&self, request: &Request, deadline: Instant, cost: VirtualTokens, own: Own<'_>) -> Turn {
        let Subject { class, tenant: name, .. } = &request.subject;
        let node = &self.tree.classes[class.index()];
        let tenant = self.tree.find_tenant(*class, name);
        let AmongItsOwn { head, among_sessions, leads: leads_tenant } = self.among_its_own(request, deadline, own);
        let among_tenants =
            node.contest.standing(tenant.map(|key| &self.tree.tenants[key].member), name.as_str(), head);
        let leads_class = leads_tenant && among_tenants.first;
        let at_ceiling = !self.is_below_ceiling(*class, request.expected.total());
        let next = self.next_of(|other| {
            let is_newcomer = leads_class && other == *class;
            let cost = if is_newcomer {
                (!at_ceiling).then_some(cost)
            } else {
                self.head_of(other).map(|slot| self.tree.waiting[slot].cost)
            };
            cost.map(|cost| (is_newcomer, cost))
        });
        Turn {
            min_share: node.owed.min_share(),
            owed: node.owed.deficit(),
            class_is_due: node.owed.is_due(cost),
            tenant: among_tenants,
            session: among_sessions,
            next: next == Some(true),
            at_ceiling,
            probes: leads_tenant && !at_ceiling && self.cheapest_but(tenant).is_none_or(|(least, _)| cost < least),
        }
    }

    /// Where a newcomer would stand among what its own tenant has queued.
    fn among_its_own(&self, request: &Request, deadline: Instant, own: Own<'_>) -> AmongItsOwn {
        let Subject { class, tenant: name, session: session_name, .. } = &request.subject;
        let tenant = self.tree.find_tenant(*class, name);
        let session = tenant.and_then(|tenant| self.tree.find_session(tenant, session_name.as_ref()));
        let newcomer: QueueKey = (deadline, u64::MAX, Slot::MAX);
        let first = match session {
            Some(session) => self.tree.sessions[session].next_with(request.agent, newcomer),
            None => own.room(name, session_name.as_ref()).admits(request.agent).then_some(newcomer),
        };
        let head = first.map_or(u64::MAX, |(_, number, _)| number);
        let among_sessions = tenant.map(|tenant| {
            let member = session.map(|session| &self.tree.sessions[session].member);
            let name = session_name.as_ref().map_or("", SessionId::as_str);
            self.tree.tenants[tenant].contest.standing(member, name, head)
        });
        let leads = first == Some(newcomer)
            && among_sessions.is_none_or(|standing| standing.first)
            && !own.holds(request)
            && !self.breaker.bars(name);
        AmongItsOwn { head, among_sessions, leads }
    }

    /// The request that goes next, if the breaker lets any go: the head, or a probe.
    pub(super) fn upcoming(&self) -> Option<Slot> {
        match self.breaker.passage() {
            Passage::Open => self.head(),
            Passage::OneProbe => self.cheapest_but(None).map(|(_, slot)| slot),
            Passage::Shut => None,
        }
    }

    /// Of the next requests of all eligible tenants the one that costs least, or came first of those, and its cost;
    /// those of one tenant left out. Every tenant keeps its own order, and nobody's limits are stepped over.
    fn cheapest_but(&self, left_out: Option<Node>) -> Option<(VirtualTokens, Slot)> {
        let eligible = self.tree.tenants.iter().filter(|(_, tenant)| tenant.member.is_eligible());
        let others = eligible.filter(|(node, _)| left_out != Some(*node));
        let next = others.filter_map(|(_, tenant)| {
            let (_, _, slot) = self.tree.sessions[tenant.contest.first()?].next()?;
            let Waiting { cost, number, place, ref request, .. } = self.tree.waiting[slot];
            self.is_below_ceiling(place.class, request.expected.total()).then_some((cost, number, slot))
        });
        next.min().map(|(cost, _, slot)| (cost, slot))
    }

    /// What is upcoming, if the window lets it go.
    pub(super) fn ready(&self) -> Option<Slot> {
        if self.slots == Slots::Granted {
            return None;
        }
        self.upcoming().filter(|slot| self.window.fits(self.tree.waiting[*slot].request.expected.total()))
    }

    /// Whether a newcomer would be dispatched the moment it is queued, nobody being ahead of it: no other tenant, and
    /// nothing of its own either, which may wait for a limit and compete with nobody.
    pub(super) fn takes_at_once(&self, request: &Request, deadline: Instant, own: Own<'_>) -> bool {
        self.slots == Slots::Window
            && self.window.fits(request.expected.total())
            && self.breaker.found(&request.subject.tenant).passage != Passage::Shut
            && self.is_below_ceiling(request.subject.class, request.expected.total())
            && self.tree.classes[request.subject.class.index()].contest.first().is_none()
            && self.classes().all(|class| self.head_of(class).is_none())
            && self.among_its_own(request, deadline, own).leads
    }

    fn classes(&self) -> impl Iterator<Item = ClassIndex> {
        (0u16..).take(self.tree.classes.len()).map(ClassIndex::new)
    }

    /// What a newcomer has to reckon with of the promises to others of its tenant: those that are due before its own
    /// turn would come. Who comes later finds it gone.
    pub(super) fn expected_back(&self, request: &Request, deadline: Instant, now: Instant) -> Promised {
        let drain = &self.tree.classes[request.subject.class.index()].drain;
        let turn = drain.time_for(self.queued_ahead(request).work(), now).map_or(Instant::FAR, |wait| now + wait);
        let expected = self.promises.expected(&request.subject, request.attempt, now, deadline.min(turn));
        if self.leads_first(request) { Promised { of_session: Kept::default(), ..expected } } else { expected }
    }

    /// Whether a newcomer is its session's lead with nothing waiting or in flight, and so waits for none of its session.
    fn leads_first(&self, request: &Request) -> bool {
        let Subject { class, tenant, session, .. } = &request.subject;
        let tenant = self.tree.find_tenant(*class, tenant);
        let known = tenant.and_then(|tenant| self.tree.find_session(tenant, session.as_ref()));
        let absent = known.is_none_or(|node| self.tree.sessions[node].lead_is_absent());
        session.is_some() && request.agent == Agent::Lead && absent
    }

    /// The work that may be served before a newcomer, and what is kept for others of its own tenant.
    pub(super) fn ahead(&self, request: &Request, promised: &Promised) -> Ahead<'_> {
        let mut ahead = self.queued_ahead(request);
        ahead.in_class += promised.in_class.work;
        ahead.of_tenant += promised.of_tenant.work;
        ahead.of_session += promised.of_session.work;
        ahead
    }

    fn queued_ahead(&self, request: &Request) -> Ahead<'_> {
        let Subject { class, tenant: name, session, .. } = &request.subject;
        let class = &self.tree.classes[class.index()];
        let own = self.tree.find_tenant(request.subject.class, name);
        let member = own.map(|own| &self.tree.tenants[own].member);
        let counter = class.contest.standing(member, name.as_str(), u64::MAX).counter;
        let others = Others { tree: &self.tree, class, own, counter, weight: request.weight };
        let mut ahead = Ahead {
            in_class: class.queued_cost,
            of_tenant: VirtualTokens::ZERO,
            of_session: VirtualTokens::ZERO,
            sessions: 1,
            half: VirtualTokens::from_micros(request.price.cost(&request.expected).as_micros() / 2),
            others,
        };
        let Some(tenant) = own else { return ahead };
        let node = &self.tree.tenants[tenant];
        ahead.of_tenant = node.queued_cost;
        ahead.sessions = (node.contest.eligible_count() as u64).saturating_add(1);
        if let Some(session) = self.tree.find_session(tenant, session.as_ref()) {
            let session = &self.tree.sessions[session];
            ahead.of_session = session.ahead_of(request.agent);
            ahead.sessions -= u64::from(session.member.is_eligible());
        }
        ahead
    }

    /// A request of this place goes into flight.
    pub(super) fn depart(&mut self, place: Place, flight: &Flight, now: Instant) {
        let load = Load::of(flight.need, Bytes::ZERO);
        let tenant = &mut self.tree.tenants[place.tenant];
        tenant.in_flight = tenant.in_flight.plus(load);
        let class = &mut self.tree.classes[place.class.index()];
        class.in_flight = class.in_flight.plus(load);
        self.tree.sessions[place.session].depart(flight.request.agent);
        self.tree.served(place);
        self.drain.served(now, flight.expected_cost);
        self.tree.classes[place.class.index()].drain.served(now, flight.expected_cost);
        self.given(place.class, flight.expected_cost);
    }

    /// A request of this place ended, having cost this much.
    pub(super) fn land(&mut self, place: Place, flight: &Flight, cost: VirtualTokens) {
        let load = Load::of(flight.need, Bytes::ZERO);
        let tenant = &mut self.tree.tenants[place.tenant];
        tenant.in_flight = tenant.in_flight.minus(load);
        let class = &mut self.tree.classes[place.class.index()];
        class.in_flight = class.in_flight.minus(load);
        self.tree.sessions[place.session].land(flight.request.agent);
        self.given(place.class, cost - flight.expected_cost);
    }

    /// Service was given, or turned out to be more or less than expected: every class with an eligible request
    /// accrues its share of it.
    fn given(&mut self, to: ClassIndex, service: VirtualTokens) {
        let window = self.window.peak();
        for position in (0u16..).take(self.tree.classes.len()) {
            let class = ClassIndex::new(position);
            let Some(head) = self.head_of(class) else { continue };
            let head = self.tree.waiting[head].cost;
            let own = if class == to { service } else { VirtualTokens::ZERO };
            self.tree.classes[class.index()].owed.given(service, own, window.max(head));
        }
    }

    /// Nothing more can be dispatched now: tells an adaptive window whom it holds back.
    pub(super) fn note_held(&mut self) {
        let held = self.held();
        self.window.held(held);
    }

    /// When the head may go because of time alone; nothing where that is not known.
    pub(super) fn opens_at(&self) -> Option<Instant> {
        self.window.opens_at(self.held()?)
    }

    /// What the head needs that the window holds back.
    fn held(&self) -> Option<Tokens> {
        if self.slots == Slots::Granted || !self.window.adapts() {
            return None;
        }
        let need = self.tree.waiting[self.head()?].request.expected.total();
        (!self.window.fits(need)).then_some(need)
    }

    /// Nothing more can be dispatched now: whoever is still eligible has a backlog.
    pub(super) fn mark_backlog(&mut self, now: Instant) {
        let rests = self.breaker.rests();
        for class in &mut self.tree.classes {
            let waits = class.contest.first().is_some();
            class.drain.set_backlogged(now, waits && !rests);
            if !waits {
                class.owed.rest();
            }
        }
        let backlogged = !rests && self.classes().any(|class| self.head_of(class).is_some());
        self.drain.set_backlogged(now, backlogged);
    }

    /// Brings the places of a named tenant and session up to date, where they are known.
    pub(super) fn refresh_named(&mut self, class: ClassIndex, subject: &Subject, own: Own<'_>) {
        let Some(tenant) = self.tree.find_tenant(class, &subject.tenant) else { return };
        match self.tree.find_session(tenant, subject.session.as_ref()) {
            Some(session) => self.tree.refresh(Place { class, tenant, session }, own),
            None => self.tree.refresh_tenant(tenant, own),
        }
    }
}
