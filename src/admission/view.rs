//! What can be seen of the core from outside: plain copies, for the admin API and tests.

use crate::policy::model::Window;
use crate::units::{
    Amount, Bytes, ClassIndex, Instant, Limit, PoolIndex, RequestId, SessionId, Share, TenantId, TicketId, Tokens,
    Usage, VirtualTokens, Weight,
};

use super::circuit::BreakerStage;
use super::engine::Engine;
use super::pool::Pool;
use super::request::Subject;
use super::rule::BudgetUse;
use super::tree::Waiting;
use super::window::Adapted;

/// A tenant that has something queued or in flight, or a counter that is remembered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantView {
    /// Where it competes.
    pub pool: PoolIndex,
    /// In which class.
    pub class: ClassIndex,
    /// Who.
    pub tenant: TenantId,
    /// The weight of its latest request.
    pub weight: Weight,
    /// Its fair counter, `v`.
    pub virtual_tokens: VirtualTokens,
    /// Requests waiting.
    pub queued_requests: u32,
    /// Their input plus expected output.
    pub queued_tokens: Tokens,
    /// Requests dispatched and unfinished.
    pub in_flight_requests: u32,
    /// Their input plus expected output, or what they produced where that is more.
    pub in_flight_tokens: Tokens,
}

/// A session below a tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionView {
    /// Whose. `session` is `None` for requests that name none.
    pub subject: Subject,
    /// Its fair counter among the tenant's sessions.
    pub virtual_tokens: VirtualTokens,
    /// What it was charged, refunds taken off, for as long as its counter is remembered.
    pub charged: VirtualTokens,
    /// Requests waiting.
    pub queued_requests: u32,
    /// Their input plus expected output.
    pub queued_tokens: Tokens,
    /// Requests dispatched and unfinished.
    pub in_flight_requests: u32,
}

/// A class's queue in a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueView {
    /// In which pool.
    pub pool: PoolIndex,
    /// Which class.
    pub class: ClassIndex,
    /// Requests waiting.
    pub requests: u32,
    /// Their tokens.
    pub tokens: Tokens,
    /// Their bytes.
    pub bytes: Bytes,
    /// Tenants that have something waiting that nothing of their own holds back.
    pub eligible_tenants: usize,
    /// When the oldest waiting request arrived.
    pub oldest_arrival: Option<Instant>,
    /// Measured service rate while there was a backlog, in virtual tokens a second.
    pub drain_rate: Option<VirtualTokens>,
    /// The share the class is owed.
    pub min_share: Share,
    /// What it is owed now and has not received.
    pub owed: VirtualTokens,
    /// The most of the window it may have in flight.
    pub max_share: Limit<Share>,
    /// Requests of it dispatched and unfinished.
    pub in_flight_requests: u32,
    /// Their tokens.
    pub in_flight_tokens: Tokens,
}

/// A pool's window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolView {
    /// Which.
    pub pool: PoolIndex,
    /// Requests dispatched and unfinished.
    pub in_flight_requests: u32,
    /// Their tokens.
    pub in_flight_tokens: Tokens,
    /// How much may be in flight now.
    pub caps: Window,
    /// Where that was found rather than written: how.
    pub adapted: Option<Adapted>,
    /// The most ever dispatched and unfinished at once, in service: `M_g` of the fairness bound, weighted.
    pub peak_in_flight: VirtualTokens,
    /// How its upstream is treated; nothing where the pool has no breaker.
    pub breaker: Option<BreakerStage>,
    /// The tenants whose requests are treated otherwise than the pool's, and how.
    pub held_back: Vec<(TenantId, BreakerStage)>,
}

/// One request, queued or in flight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestView {
    /// Which.
    pub request: RequestId,
    /// Whose.
    pub subject: Subject,
    /// When it arrived.
    pub arrived_at: Instant,
    /// When it must be dispatched.
    pub deadline: Option<Instant>,
    /// What it is expected to use.
    pub expected: Usage,
    /// Where it stands.
    pub state: RequestState,
}

/// Where a request stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestState {
    /// Waiting its turn.
    Queued,
    /// Dispatched.
    InFlight {
        /// Under which ticket.
        ticket: TicketId,
        /// Since when.
        since: Instant,
        /// Output tokens seen so far.
        output: Tokens,
    },
}

/// What stands at the front of a pool: the request that a slot would be given to now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// Which.
    pub request: RequestId,
    /// What it is expected to use.
    pub expected: Usage,
    /// The session, of use to whoever grants slots by affinity.
    pub session: Option<SessionId>,
}

impl Engine {
    /// Every tenant that has work, or whose counter is remembered by name; in order of pool, class and name.
    #[must_use]
    pub fn tenants(&self) -> Vec<TenantView> {
        let mut views: Vec<_> = self.pools.iter().flat_map(tenants_of).collect();
        views.sort_by(|a, b| (a.pool, a.class, &a.tenant).cmp(&(b.pool, b.class, &b.tenant)));
        views
    }

    /// Every session of a tenant that has work, or whose counter is remembered by name.
    #[must_use]
    pub fn sessions(&self, tenant: &TenantId) -> Vec<SessionView> {
        let classes = || (0u16..).take(self.policy.classes.len()).map(ClassIndex::new);
        let nodes = self.pools.iter().flat_map(|pool| {
            classes().filter_map(move |class| Some((pool, &pool.tree.tenants[pool.tree.find_tenant(class, tenant)?])))
        });
        let mut views: Vec<_> = nodes
            .flat_map(|(pool, node)| {
                node.sessions.iter().map(move |(session, key)| {
                    let seen = &pool.tree.sessions[*key];
                    let (pool, class, tenant, session) = (pool.index, node.class, node.name.clone(), session.clone());
                    SessionView {
                        subject: Subject { pool, class, tenant, session },
                        virtual_tokens: seen.member.v(),
                        charged: seen.charged,
                        queued_requests: seen.queued.requests,
                        queued_tokens: seen.queued.tokens,
                        in_flight_requests: seen.in_flight(),
                    }
                })
            })
            .collect();
        views.sort_by(|a, b| a.subject.cmp(&b.subject));
        views
    }

    /// Every class's queue in every pool, in the policy's order.
    #[must_use]
    pub fn queues(&self) -> Vec<QueueView> {
        let views = self.pools.iter().flat_map(|pool| {
            (0u16..).zip(&pool.tree.classes).map(move |(position, class)| QueueView {
                pool: pool.index,
                class: ClassIndex::new(position),
                requests: class.queued.requests,
                tokens: class.queued.tokens,
                bytes: class.queued.bytes,
                eligible_tenants: class.contest.eligible_count(),
                oldest_arrival: pool.tree.oldest(ClassIndex::new(position)),
                drain_rate: class.drain.per_second(self.now()),
                min_share: class.owed.min_share(),
                owed: class.owed.deficit(),
                max_share: class.max_share,
                in_flight_requests: class.in_flight.requests,
                in_flight_tokens: class.in_flight.tokens,
            })
        });
        views.collect()
    }

    /// Every pool's window, in the policy's order.
    #[must_use]
    pub fn pools(&self) -> Vec<PoolView> {
        let views = self.pools.iter().map(|pool| PoolView {
            pool: pool.index,
            in_flight_requests: pool.window.requests(),
            in_flight_tokens: pool.window.tokens(),
            caps: pool.window.caps(),
            adapted: pool.window.adapted(),
            peak_in_flight: pool.window.peak(),
            breaker: pool.breaker.stage(),
            held_back: pool.breaker.alone().map(|(tenant, stage)| (tenant.clone(), stage)).collect(),
        });
        views.collect()
    }

    /// What is used of every budget, by whom.
    #[must_use]
    pub fn budgets(&self) -> Vec<BudgetUse> {
        self.limits.used().collect()
    }

    /// Of every budget that anybody has used, what whoever has used most has used. Nothing is copied, so a page of metrics
    /// holds no decision up.
    #[must_use]
    pub fn most_used(&self) -> Vec<(u16, Amount)> {
        self.limits.most_used().collect()
    }

    /// Every request queued or in flight, in order of its id.
    #[must_use]
    pub fn requests(&self) -> Vec<RequestView> {
        let queued = self.pools.iter().flat_map(|pool| pool.tree.waiting.iter().map(|(_, waiting)| queued(waiting)));
        let flying = self.flights.values().map(|flight| RequestView {
            request: flight.request.id,
            subject: flight.request.subject.clone(),
            arrived_at: flight.arrived_at,
            deadline: (flight.deadline < Instant::FAR).then_some(flight.deadline),
            expected: flight.request.expected,
            state: RequestState::InFlight {
                ticket: flight.ticket.id,
                since: flight.ticket.dispatched_at,
                output: flight.output,
            },
        });
        let mut views: Vec<_> = queued.chain(flying).collect();
        views.sort_by_key(|view| view.request);
        views
    }

    /// The request of a pool that a slot would go to now.
    #[must_use]
    pub fn head(&self, pool: PoolIndex) -> Option<Head> {
        let pool = &self.pools[pool.index()];
        let request = &pool.tree.waiting[pool.upcoming()?].request;
        Some(Head { request: request.id, expected: request.expected, session: request.subject.session.clone() })
    }
}

fn tenants_of(pool: &Pool) -> impl Iterator<Item = TenantView> + '_ {
    pool.tree.tenants.iter().map(|(_, node)| TenantView {
        pool: pool.index,
        class: node.class,
        tenant: node.name.clone(),
        weight: node.member.weight(),
        virtual_tokens: node.member.v(),
        queued_requests: node.queued.requests,
        queued_tokens: node.queued.tokens,
        in_flight_requests: node.in_flight.requests,
        in_flight_tokens: node.in_flight.tokens,
    })
}

fn queued(waiting: &Waiting) -> RequestView {
    RequestView {
        request: waiting.request.id,
        subject: waiting.request.subject.clone(),
        arrived_at: waiting.arrived_at,
        deadline: (waiting.deadline < Instant::FAR).then_some(waiting.deadline),
        expected: waiting.request.expected,
        state: RequestState::Queued,
    }
}
