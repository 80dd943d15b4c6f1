//! The tree of one pool: classes, their tenants, their sessions, and what waits in each.
//!
//! Holds the bookkeeping that keeps every index in step, and decides nothing itself: the order is
//! [`vtc`](super::vtc)'s, the caps are [`queue`](super::queue)'s and [`fanout`](super::fanout)'s. After any
//! change to a principal, [`Tree::refresh`] brings its places up to date, session first, then tenant; that is
//! the only way into and out of a contest.
//!
//! A principal with neither queued nor running work rests and costs nothing per decision. It is dropped as
//! soon as nothing is lost with it; beyond [`MOST_RESTING_TENANTS`] and [`MOST_RESTING_SESSIONS`] the one that
//! owes least is dropped and its debt kept in a table of fixed size.

use std::collections::{BTreeMap, BTreeSet};

use slab::Slab;

use crate::policy::Policy;
use crate::policy::model::{Algorithm, Pool};
use crate::units::{ClassIndex, Instant, Limit, SessionId, Share, TenantId, VirtualTokens, Weight};

use super::class::Owed;
use super::deadline::DrainRate;
use super::debt::Debts;
use super::limits::Holds;
use super::own::Own;
use super::queue::{Heaviest, Load, capped_units};
use super::request::{Request, Subject};
use super::session::{QueueKey, SessionNode};
use super::vtc::{Contest, Member, Node};

/// How many idle tenants of a class are remembered by name.
pub(super) const MOST_RESTING_TENANTS: usize = 16_384;
/// How many idle sessions of a tenant are remembered by name.
pub(super) const MOST_RESTING_SESSIONS: usize = 256;
const TENANT_DEBT_COLUMNS: usize = 4_096;
const SESSION_DEBT_COLUMNS: usize = 32;

/// A waiting request's place in its slab.
pub(super) type Slot = usize;

/// Where a request belongs in the tree.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) class: ClassIndex,
    pub(super) tenant: Node,
    pub(super) session: Node,
}

/// A request that waits.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) request: Box<Request>,
    pub(super) place: Place,
    pub(super) number: u64,
    pub(super) arrived_at: Instant,
    /// [`Instant::FAR`] when it may wait forever.
    pub(super) deadline: Instant,
    /// Its expected cost, all of it held.
    pub(super) cost: VirtualTokens,
    /// What is held for it of rates and budgets.
    pub(super) holds: Holds,
    /// What it owes for room that stood empty before it.
    pub(super) vacancy: VirtualTokens,
}

impl Waiting {
    pub(super) fn load(&self) -> Load {
        Load::of(self.request.expected.total(), self.request.bytes)
    }

    fn key(&self, slot: Slot) -> QueueKey {
        (self.deadline, self.number, slot)
    }
}

#[derive(Debug)]
pub(super) struct ClassNode {
    pub(super) contest: Contest,
    pub(super) owed: Owed,
    pub(super) max_share: Limit<Share>,
    /// What is dispatched and unfinished of it.
    pub(super) in_flight: Load,
    pub(super) drain: DrainRate,
    pub(super) queued: Load,
    pub(super) queued_cost: VirtualTokens,
    pub(super) heaviest: Heaviest,
    /// Idle tenants with sessions that still owe something among themselves, least debt first.
    lingering: BTreeSet<(VirtualTokens, Node)>,
}

#[derive(Debug)]
pub(super) struct TenantNode {
    pub(super) name: TenantId,
    pub(super) class: ClassIndex,
    pub(super) member: Member,
    pub(super) contest: Contest,
    pub(super) queued: Load,
    pub(super) queued_cost: VirtualTokens,
    pub(super) in_flight: Load,
    /// Until when a rate of its own holds it back.
    pub(super) held_until: Option<Instant>,
    pub(super) sessions: BTreeMap<Option<SessionId>, Node>,
    by_deadline: BTreeSet<QueueKey>,
}

/// One pool's principals and queues.
#[derive(Debug)]
pub(super) struct Tree {
    algorithm: Algorithm,
    seed: u64,
    pub(super) classes: Vec<ClassNode>,
    /// Classes by rank, first served first.
    pub(super) by_rank: Vec<ClassIndex>,
    pub(super) tenants: Slab<TenantNode>,
    pub(super) sessions: Slab<SessionNode>,
    pub(super) waiting: Slab<Waiting>,
    pub(super) queued: Load,
    names: BTreeMap<(ClassIndex, TenantId), Node>,
    /// Tenants that the breaker holds back, whatever they have waiting.
    barred: BTreeSet<TenantId>,
    /// Principals that a rate of their own holds back, until when; those first whose time comes first.
    held: BTreeSet<(Instant, Held)>,
}

/// A principal that a rate of its own holds back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Held {
    Tenant(Node),
    /// Of this tenant.
    Session(Node, Node),
}

impl Tree {
    pub(super) fn new(policy: &Policy, pool: &Pool, seed: u64) -> Self {
        let algorithm = policy.fairness.algorithm;
        let units: BTreeSet<_> = capped_units(&pool.queue.pool).chain(capped_units(&pool.queue.class)).collect();
        let classes = policy.classes.iter().map(|class| ClassNode {
            contest: Contest::new(algorithm, Debts::new(TENANT_DEBT_COLUMNS, seed)),
            owed: Owed::new(class.min_share),
            max_share: class.max_share,
            in_flight: Load::default(),
            drain: DrainRate::new(),
            queued: Load::default(),
            queued_cost: VirtualTokens::ZERO,
            heaviest: Heaviest::new(units.iter().copied()),
            lingering: BTreeSet::new(),
        });
        let mut by_rank: Vec<ClassIndex> = (0u16..).zip(&policy.classes).map(|(n, _)| ClassIndex::new(n)).collect();
        by_rank.sort_by_key(|class| policy.classes[class.index()].rank);
        Self {
            algorithm,
            seed,
            classes: classes.collect(),
            by_rank,
            tenants: Slab::new(),
            sessions: Slab::new(),
            waiting: Slab::new(),
            queued: Load::default(),
            names: BTreeMap::new(),
            barred: BTreeSet::new(),
            held: BTreeSet::new(),
        }
    }

    /// From now on these tenants are held back. The places of whoever is or was must be brought up to date.
    pub(super) fn bar(&mut self, barred: BTreeSet<TenantId>) -> BTreeSet<TenantId> {
        std::mem::replace(&mut self.barred, barred)
    }

    pub(super) fn barred(&self) -> &BTreeSet<TenantId> {
        &self.barred
    }

    pub(super) fn find_tenant(&self, class: ClassIndex, tenant: &TenantId) -> Option<Node> {
        self.names.get(&(class, tenant.clone())).copied()
    }

    pub(super) fn find_session(&self, tenant: Node, session: Option<&SessionId>) -> Option<Node> {
        self.tenants[tenant].sessions.get(&session.cloned()).copied()
    }

    /// The place of a subject, made if it is not there, and awake.
    fn place(&mut self, subject: &Subject, weight: Weight) -> Place {
        let class = subject.class;
        let tenant = self.find_tenant(class, &subject.tenant).unwrap_or_else(|| self.add_tenant(subject, weight));
        let node = &mut self.tenants[tenant];
        let ClassNode { contest, lingering, heaviest, .. } = &mut self.classes[class.index()];
        contest.wake(&mut node.member);
        lingering.remove(&(node.member.v(), tenant));
        if node.member.weight() != weight {
            heaviest.update(tenant, (node.queued, node.member.weight()), (node.queued, weight));
            contest.weigh(&mut node.member, weight);
        }
        let session = node.sessions.get(&subject.session).copied();
        let session = session.unwrap_or_else(|| self.add_session(tenant, subject.session.clone()));
        self.tenants[tenant].contest.wake(&mut self.sessions[session].member);
        Place { class, tenant, session }
    }

    fn add_tenant(&mut self, subject: &Subject, weight: Weight) -> Node {
        let entry = self.tenants.vacant_entry();
        let node = entry.key();
        let member = self.classes[subject.class.index()].contest.member(node, subject.tenant.as_str(), weight);
        entry.insert(TenantNode {
            name: subject.tenant.clone(),
            class: subject.class,
            member,
            contest: Contest::new(self.algorithm, Debts::new(SESSION_DEBT_COLUMNS, self.seed)),
            queued: Load::default(),
            queued_cost: VirtualTokens::ZERO,
            in_flight: Load::default(),
            held_until: None,
            sessions: BTreeMap::new(),
            by_deadline: BTreeSet::new(),
        });
        self.names.insert((subject.class, subject.tenant.clone()), node);
        node
    }

    fn add_session(&mut self, tenant: Node, name: Option<SessionId>) -> Node {
        let entry = self.sessions.vacant_entry();
        let node = entry.key();
        let parent = &mut self.tenants[tenant];
        let member = parent.contest.member(node, session_name(name.as_ref()), Weight::ONE);
        parent.sessions.insert(name.clone(), node);
        entry.insert(SessionNode::new(name, member));
        node
    }

    /// Queues a request.
    pub(super) fn push(&mut self, arrival: Arrival, own: Own<'_>) -> Slot {
        let place = self.place(&arrival.request.subject, arrival.request.weight);
        let waiting = Waiting {
            place,
            request: arrival.request,
            number: arrival.number,
            arrived_at: arrival.arrived_at,
            deadline: arrival.deadline,
            cost: arrival.cost,
            holds: arrival.holds,
            vacancy: VirtualTokens::ZERO,
        };
        let (load, cost, agent) = (waiting.load(), waiting.cost, waiting.request.agent);
        let slot = self.waiting.vacant_key();
        let key = waiting.key(slot);
        self.waiting.insert(waiting);
        self.sessions[place.session].push(agent, key, cost);
        self.tenants[place.tenant].by_deadline.insert(key);
        self.count_queued(place, |queued, queued_cost| {
            *queued = queued.plus(load);
            *queued_cost += cost;
        });
        self.refresh(place, own);
        slot
    }

    /// Takes a request out of its queue, wherever it stands. The places are brought up to date by the
    /// [`refresh`](Self::refresh) or [`rest`](Self::rest) that must follow.
    pub(super) fn take(&mut self, slot: Slot) -> Waiting {
        let waiting = self.waiting.remove(slot);
        let (place, key) = (waiting.place, waiting.key(slot));
        let (load, cost) = (waiting.load(), waiting.cost);
        self.sessions[place.session].remove(waiting.request.agent, &key, cost);
        self.tenants[place.tenant].by_deadline.remove(&key);
        self.count_queued(place, |queued, queued_cost| {
            *queued = queued.minus(load);
            *queued_cost -= cost;
        });
        waiting
    }

    fn count_queued(&mut self, place: Place, mut change: impl FnMut(&mut Load, &mut VirtualTokens)) {
        let class = &mut self.classes[place.class.index()];
        let tenant = &mut self.tenants[place.tenant];
        let session = &mut self.sessions[place.session];
        let before = tenant.queued;
        change(&mut class.queued, &mut class.queued_cost);
        change(&mut tenant.queued, &mut tenant.queued_cost);
        change(&mut session.queued, &mut session.queued_cost);
        let mut pool_cost = VirtualTokens::ZERO;
        change(&mut self.queued, &mut pool_cost);
        let weight = tenant.member.weight();
        class.heaviest.update(place.tenant, (before, weight), (tenant.queued, weight));
    }

    /// Brings the places of a session and its tenant up to date, and lets them rest if they have no work.
    pub(super) fn refresh(&mut self, place: Place, own: Own<'_>) {
        let tenant = &mut self.tenants[place.tenant];
        let session = &mut self.sessions[place.session];
        session.give_room(own.room(&tenant.name, session.name.as_ref()));
        let next = session.next();
        let until = next.and_then(|(_, _, slot)| own.holds_session(&self.waiting[slot].request));
        let before = std::mem::replace(&mut session.held_until, until);
        let head = next.filter(|_| until.is_none()).map(|(_, number, _)| number);
        tenant.contest.reseat(&mut session.member, head);
        self.hold_back(Held::Session(place.tenant, place.session), before, until);
        self.refresh_tenant(place.tenant, own);
        self.rest(place);
    }

    /// Brings the place of a tenant up to date after one of its sessions' changed.
    pub(super) fn refresh_tenant(&mut self, node: Node, own: Own<'_>) {
        let tenant = &mut self.tenants[node];
        let blocked = own.blocks_tenant(&tenant.name) || self.barred.contains(&tenant.name);
        let first = tenant.contest.first().filter(|_| !blocked);
        let next = first.and_then(|session| self.sessions[session].next());
        let until = next.and_then(|(_, _, slot)| own.holds_tenant(&self.waiting[slot].request));
        let before = std::mem::replace(&mut tenant.held_until, until);
        let head = next.filter(|_| until.is_none()).map(|(_, number, _)| number);
        self.classes[tenant.class.index()].contest.reseat(&mut tenant.member, head);
        self.hold_back(Held::Tenant(node), before, until);
    }

    fn hold_back(&mut self, who: Held, before: Option<Instant>, until: Option<Instant>) {
        if before != until {
            if let Some(before) = before {
                self.held.remove(&(before, who));
            }
            self.held.extend(until.map(|until| (until, who)));
        }
    }

    /// When the next principal that a rate of its own holds back may go on.
    pub(super) fn next_unheld(&self) -> Option<Instant> {
        self.held.first().map(|(until, _)| *until)
    }

    /// Lets those go on whose time has come.
    pub(super) fn unhold(&mut self, own: Own<'_>) {
        while let Some((_, who)) = self.held.first().copied().filter(|(until, _)| *until <= own.now) {
            match who {
                Held::Tenant(node) => self.refresh_tenant(node, own),
                Held::Session(tenant, session) => {
                    let class = self.tenants[tenant].class;
                    self.refresh(Place { class, tenant, session }, own);
                }
            }
        }
    }

    /// Moves the counters of a session and its tenant. A [`refresh`](Self::refresh) must follow.
    pub(super) fn charge(&mut self, place: Place, cost: VirtualTokens, weight: Weight) {
        let tenant = &mut self.tenants[place.tenant];
        tenant.contest.charge(&mut self.sessions[place.session].member, cost, Weight::ONE);
        self.classes[place.class.index()].contest.charge(&mut tenant.member, cost, weight);
    }

    /// Marks a session and its tenant as served. A [`refresh`](Self::refresh) must follow.
    pub(super) fn served(&mut self, place: Place) {
        let tenant = &mut self.tenants[place.tenant];
        tenant.contest.served(&mut self.sessions[place.session].member);
        self.classes[place.class.index()].contest.served(&mut tenant.member);
    }

    /// The request a class would serve next.
    pub(super) fn head(&self, class: ClassIndex) -> Option<Slot> {
        let tenant = self.classes[class.index()].contest.first()?;
        let session = self.tenants[tenant].contest.first()?;
        self.sessions[session].next().map(|(_, _, slot)| slot)
    }

    /// A tenant's waiting requests, the one with the latest deadline first.
    pub(super) fn by_latest_deadline(&self, tenant: Node) -> impl Iterator<Item = Slot> + '_ {
        self.tenants[tenant].by_deadline.iter().rev().map(|(_, _, slot)| *slot)
    }

    /// The oldest of the requests waiting in a class.
    pub(super) fn oldest(&self, class: ClassIndex) -> Option<Instant> {
        let waiting = self.waiting.iter().filter(|(_, waiting)| waiting.place.class == class);
        waiting.map(|(_, waiting)| waiting.arrived_at).min()
    }

    /// Lets a session and its tenant rest if they have no work left, and drops whoever can be dropped.
    fn rest(&mut self, place: Place) {
        let tenant = &mut self.tenants[place.tenant];
        let session = &mut self.sessions[place.session];
        if session.is_idle() {
            tenant.contest.rest(&mut session.member);
        }
        self.drop_sessions(place.tenant);
        let tenant = &mut self.tenants[place.tenant];
        if tenant.queued.is_empty() && tenant.in_flight.is_empty() {
            let class = &mut self.classes[place.class.index()];
            if tenant.sessions.is_empty() {
                class.contest.rest(&mut tenant.member);
            } else {
                class.lingering.insert((tenant.member.v(), place.tenant));
            }
        }
        self.drop_tenants(place.class);
    }

    fn drop_sessions(&mut self, tenant: Node) {
        let tenant = &mut self.tenants[tenant];
        while let Some(node) = tenant.contest.forgettable().or_else(|| tenant.contest.excess(MOST_RESTING_SESSIONS)) {
            let mut session = self.sessions.remove(node);
            tenant.contest.forget(&mut session.member, session_name(session.name.as_ref()));
            tenant.sessions.remove(&session.name);
        }
    }

    fn drop_tenants(&mut self, class: ClassIndex) {
        while let Some(dropped) = self.droppable_tenant(class) {
            let mut tenant = self.tenants.remove(dropped);
            let node = &mut self.classes[class.index()];
            node.lingering.remove(&(tenant.member.v(), dropped));
            node.contest.forget(&mut tenant.member, tenant.name.as_str());
            for session in tenant.sessions.values() {
                self.sessions.remove(*session);
            }
            self.names.remove(&(class, tenant.name));
        }
    }

    fn droppable_tenant(&self, class: ClassIndex) -> Option<Node> {
        let node = &self.classes[class.index()];
        let lingering = || {
            let too_many = node.lingering.len() > MOST_RESTING_TENANTS;
            node.lingering.first().filter(|_| too_many).map(|(_, tenant)| *tenant)
        };
        node.contest.forgettable().or_else(|| node.contest.excess(MOST_RESTING_TENANTS)).or_else(lingering)
    }
}

/// A request on its way into the queue.
#[derive(Debug)]
pub(super) struct Arrival {
    pub(super) request: Box<Request>,
    pub(super) number: u64,
    pub(super) arrived_at: Instant,
    pub(super) deadline: Instant,
    pub(super) cost: VirtualTokens,
    pub(super) holds: Holds,
}

fn session_name(name: Option<&SessionId>) -> &str {
    name.map_or("", SessionId::as_str)
}
