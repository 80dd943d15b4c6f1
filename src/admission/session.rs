//! One session's queue: which of its requests is next.
//!
//! *Decides* the order within a session: by deadline, then by arrival; except that the agent that leads it goes
//! before the agents it started while none of its own is in flight here. A tree of sub-agents then cannot starve
//! its root, be the queue between them ever so long, and beyond that one request the lead takes its turn like
//! everybody. Together with the slot that [`fanout`](super::fanout) keeps, the lead waits for its session's turn
//! and for nothing of its sub-agents'. *Never* looks at cost: that is what the contest among sessions does.

use std::collections::BTreeSet;

use crate::units::{Agent, Instant, SessionId, VirtualTokens};

use super::fanout::Room;
use super::queue::Load;
use super::tree::Slot;
use super::vtc::Member;

/// Deadline, then arrival number.
pub(super) type QueueKey = (Instant, u64, Slot);

/// A session, or what a tenant sends without one.
#[derive(Debug)]
pub(super) struct SessionNode {
    pub(super) name: Option<SessionId>,
    pub(super) member: Member,
    pub(super) queued: Load,
    pub(super) queued_cost: VirtualTokens,
    /// What it was charged, refunds taken off, since it was last unknown.
    pub(super) charged: VirtualTokens,
    /// Until when a rate of its own holds it back.
    pub(super) held_until: Option<Instant>,
    leads: Waiters,
    sub_agents: Waiters,
    /// Whom there was room for when its place was last brought up to date.
    room: Room,
}

/// The requests of one kind of agent.
#[derive(Debug, Default)]
struct Waiters {
    queue: BTreeSet<QueueKey>,
    cost: VirtualTokens,
    in_flight: u32,
}

impl SessionNode {
    pub(super) fn new(name: Option<SessionId>, member: Member) -> Self {
        Self {
            name,
            member,
            queued: Load::default(),
            queued_cost: VirtualTokens::ZERO,
            charged: VirtualTokens::ZERO,
            held_until: None,
            leads: Waiters::default(),
            sub_agents: Waiters::default(),
            room: Room::Everybody,
        }
    }

    pub(super) fn push(&mut self, agent: Agent, key: QueueKey, cost: VirtualTokens) {
        let waiters = self.waiters(agent);
        waiters.queue.insert(key);
        waiters.cost += cost;
    }

    pub(super) fn remove(&mut self, agent: Agent, key: &QueueKey, cost: VirtualTokens) {
        let waiters = self.waiters(agent);
        waiters.queue.remove(key);
        waiters.cost -= cost;
    }

    pub(super) fn depart(&mut self, agent: Agent) {
        self.waiters(agent).in_flight += 1;
    }

    pub(super) fn land(&mut self, agent: Agent) {
        self.waiters(agent).in_flight -= 1;
    }

    fn waiters(&mut self, agent: Agent) -> &mut Waiters {
        match agent {
            Agent::Lead => &mut self.leads,
            Agent::Sub => &mut self.sub_agents,
        }
    }

    pub(super) fn in_flight(&self) -> u32 {
        self.leads.in_flight + self.sub_agents.in_flight
    }

    pub(super) fn is_idle(&self) -> bool {
        self.queued.is_empty() && self.in_flight() == 0
    }

    /// Whether its lead has nothing here, neither waiting nor in flight.
    pub(super) fn lead_is_absent(&self) -> bool {
        self.leads.queue.is_empty() && self.leads.in_flight == 0
    }

    /// From now on there is room for these.
    pub(super) fn give_room(&mut self, room: Room) {
        self.room = room;
    }

    /// The request that is next, of those there is room for.
    pub(super) fn next(&self) -> Option<QueueKey> {
        self.next_of(self.leads.queue.first().copied(), self.sub_agents.queue.first().copied())
    }

    /// The request that would be next if one more waited.
    pub(super) fn next_with(&self, agent: Agent, newcomer: QueueKey) -> Option<QueueKey> {
        let (lead, sub_agent) = (self.leads.queue.first().copied(), self.sub_agents.queue.first().copied());
        let sooner = |first: Option<QueueKey>| Some(first.map_or(newcomer, |first| first.min(newcomer)));
        match agent {
            Agent::Lead => self.next_of(sooner(lead), sub_agent),
            Agent::Sub => self.next_of(lead, sooner(sub_agent)),
        }
    }

    /// Which is next of the first of the lead's and the first of its sub-agents'.
    fn next_of(&self, lead: Option<QueueKey>, sub_agent: Option<QueueKey>) -> Option<QueueKey> {
        match (self.room, lead, sub_agent) {
            (Room::Nobody, _, _) => None,
            (Room::LeadOnly, lead, _) => lead,
            (Room::Everybody, Some(lead), Some(sub_agent)) if self.leads.in_flight > 0 => Some(lead.min(sub_agent)),
            (Room::Everybody, lead, sub_agent) => lead.or(sub_agent),
        }
    }

    /// The queued work that may go before a newcomer.
    pub(super) fn ahead_of(&self, agent: Agent) -> VirtualTokens {
        if agent == Agent::Lead && self.leads.in_flight == 0 { self.leads.cost } else { self.queued_cost }
    }
}
