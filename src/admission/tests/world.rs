//! A core under test, with short ways to say what happens and to ask what came of it.

use std::sync::Arc;

use crate::admission::{
    Attempt, Debit, Effect, Ending, Engine, Event, Heard, Input, Options, Outcome, Refusal, Reported, Request, Slots,
    Subject, Ticket, Verdict,
};
use crate::ledger::{Balance, Ledger, Memory};
use crate::policy::Pattern;
use crate::policy::model::{
    Adapt, Algorithm, Breaker, Charge, Class, Cost, EffortFactors, FailureSign, Fairness, Fanout, Identity, NotGranted,
    Policy, Pool, QueueCaps, TenantRule, TokenWeights, Trust, Unmetered, UpstreamsWord, Window,
};
use crate::units::{
    Agent, Bytes, ClassIndex, Instant, Limit, Model, PoolIndex, Price, RequestId, SessionId, Share, Span, Status,
    StatusRange, Tariff, TenantId, TicketId, TokenWeight, Tokens, Usage, UserId, VirtualTokens, Weight,
};

pub(in crate::admission) fn vt(whole: u64) -> VirtualTokens {
    VirtualTokens::whole(whole)
}

pub(in crate::admission) fn at(secs: f64) -> Instant {
    Instant::from_secs_f64(secs)
}

pub(in crate::admission) fn weight(value: f64) -> Weight {
    Weight::new(value).expect("a valid weight")
}

fn token_weights() -> TokenWeights {
    let of = |value| TokenWeight::new(value).expect("a valid weight");
    TokenWeights { input: of(1.0), cached_input: of(0.1), cache_write: of(1.25), output: of(2.0), reasoning: of(2.0) }
}

/// One pool and one class, a window of one request, nothing else limited.
pub(in crate::admission) fn policy() -> Policy {
    Policy {
        identity: Identity {
            tenant: Vec::new(),
            trust: Trust::Loopback,
            session: Vec::new(),
            user: Vec::new(),
            task: Vec::new(),
            class: Vec::new(),
            class_not_granted: NotGranted::UseDefault,
        },
        cost: Cost { weights: token_weights(), models: Vec::new(), effort: EffortFactors::NEUTRAL },
        fairness: Fairness { algorithm: Algorithm::Vtc, charge: Charge::Predicted },
        classes: vec![class("standard", 0, 0.0)],
        default_class: ClassIndex::new(0),
        tenants: vec![TenantRule {
            matches: Pattern::everything(),
            weight: Weight::ONE,
            classes: vec![ClassIndex::new(0)],
            written: true,
        }],
        pools: vec![Pool {
            name: "chat".into(),
            models: vec![Pattern::everything()],
            aliases: Vec::new(),
            upstream: None,
            window: Window { tokens: Limit::Unlimited, requests: Limit::AtMost(1) },
            adapt: Adapt::Fixed,
            max_request_tokens: Limit::Unlimited,
            queue: QueueCaps::default(),
            breaker: None,
            engine: None,
        }],
        fanout: Fanout::default(),
        retries: None,
        limits: Vec::new(),
        budgets: Vec::new(),
        rate_limit: Vec::new(),
        unmetered: Unmetered::Refuse,
    }
}

/// Five failures within half a minute trip for twenty seconds, and an upstream's word is accepted.
pub(in crate::admission) fn breaker() -> Breaker {
    let range = |from, to| StatusRange::new(Status::new(from), Status::new(to)).expect("in order");
    Breaker {
        failures: Some(5),
        ratio: None,
        within: Span::from_secs(30),
        statuses: vec![range(500, 599)],
        signs: vec![FailureSign::Timeout, FailureSign::Unreachable, FailureSign::EarlyEnd],
        trip_for: Span::from_secs(20),
        retry_after: UpstreamsWord::Accepted,
        limited: vec![range(429, 429)],
    }
}

pub(in crate::admission) fn class(name: &str, rank: u32, min_share: f64) -> Class {
    let min_share = Share::new(min_share).expect("a valid share");
    Class { name: name.into(), rank, max_wait: Limit::Unlimited, min_share, max_share: Limit::Unlimited }
}

/// A request in words.
#[derive(Clone, Debug)]
pub(in crate::admission) struct Ask {
    pub(in crate::admission) tenant: &'static str,
    pub(in crate::admission) session: Option<&'static str>,
    pub(in crate::admission) user: Option<&'static str>,
    pub(in crate::admission) agent: Agent,
    pub(in crate::admission) attempt: Attempt,
    pub(in crate::admission) class: u16,
    pub(in crate::admission) input: u64,
    pub(in crate::admission) output: u64,
    pub(in crate::admission) weight: Weight,
    pub(in crate::admission) deadline: Option<f64>,
    pub(in crate::admission) cap: Option<u64>,
    pub(in crate::admission) streamed: bool,
    pub(in crate::admission) choices: u32,
}

/// A request of a tenant: 100 tokens in, 100 expected out.
pub(in crate::admission) fn of(tenant: &'static str) -> Ask {
    Ask {
        tenant,
        session: None,
        user: None,
        agent: Agent::Lead,
        attempt: Attempt::Unsaid,
        class: 0,
        input: 100,
        output: 100,
        weight: Weight::ONE,
        deadline: None,
        cap: None,
        streamed: true,
        choices: 1,
    }
}

pub(in crate::admission) struct World {
    pub(in crate::admission) engine: Engine,
    pub(in crate::admission) books: Memory,
    pub(in crate::admission) events: Vec<Event>,
    pub(in crate::admission) debits: Vec<Debit>,
    pub(in crate::admission) now: Instant,
    requests: u64,
    answers: Vec<(RequestId, Verdict)>,
}

impl World {
    pub(in crate::admission) fn new(policy: Policy) -> Self {
        Self::with(policy, Slots::Window)
    }

    pub(in crate::admission) fn with(policy: Policy, slots: Slots) -> Self {
        Self::keeping(policy, Options { seed: 1, slots, ..Options::default() })
    }

    pub(in crate::admission) fn keeping(policy: Policy, options: Options) -> Self {
        let engine = Engine::new(Arc::new(policy), options);
        let (books, now) = (Memory::new(), Instant::EPOCH);
        Self { engine, books, events: Vec::new(), debits: Vec::new(), now, requests: 0, answers: Vec::new() }
    }

    /// Drops what was written down so far, but for the requests that are still waiting or running.
    pub(in crate::admission) fn forget_what_happened(&mut self) {
        self.events.clear();
        let engine = &self.engine;
        self.answers.retain(|(request, _)| engine.flights.values().any(|flight| flight.request.id == *request));
    }

    pub(in crate::admission) fn feed(&mut self, input: Input) {
        for effect in self.engine.on(self.now, input) {
            match effect {
                Effect::Answer { request, verdict } => self.answers.push((request, verdict)),
                Effect::Post(entry) => self.books.post(&entry),
                Effect::Debit(debit) => self.debits.push(debit),
                Effect::Counted(_) => {}
                Effect::Emit(event) => self.events.push(event),
            }
        }
    }

    pub(in crate::admission) fn ask(&mut self, ask: &Ask) -> RequestId {
        self.ask_in(PoolIndex::new(0), ask)
    }

    pub(in crate::admission) fn ask_in(&mut self, pool: PoolIndex, ask: &Ask) -> RequestId {
        let request = self.request(pool, ask);
        let id = request.id;
        self.requests += 1;
        self.feed(Input::Arrive(Box::new(request)));
        id
    }

    /// The request that asking would feed to the core.
    pub(in crate::admission) fn request(&self, pool: PoolIndex, ask: &Ask) -> Request {
        let w = token_weights();
        let price = Price::new(TokenWeight::ONE, [w.input, w.cached_input, w.cache_write, w.output, w.reasoning]);
        let subject = Subject {
            pool,
            class: ClassIndex::new(ask.class),
            tenant: TenantId::from(ask.tenant),
            session: ask.session.map(SessionId::from),
        };
        Request {
            id: RequestId::new(self.requests),
            subject,
            model: Model::from("model"),
            user: ask.user.map(UserId::from),
            task: None,
            weight: ask.weight,
            price,
            tariff: Tariff::default(),
            expected: Usage::plain(Tokens::new(ask.input), Tokens::new(ask.output)),
            output_cap: ask.cap.map(Tokens::new).into(),
            agent: ask.agent,
            attempt: ask.attempt,
            choices: std::num::NonZeroU32::new(ask.choices).expect("not zero"),
            bytes: Bytes::new(1_000),
            deadline: ask.deadline.map(at),
            streamed: ask.streamed,
        }
    }

    /// How many requests were asked for.
    pub(in crate::admission) fn asked(&self) -> u64 {
        self.requests
    }

    pub(in crate::admission) fn at(&mut self, secs: f64) -> &mut Self {
        self.now = at(secs);
        self
    }

    pub(in crate::admission) fn tick(&mut self, secs: f64) {
        self.at(secs).feed(Input::Tick);
    }

    /// The request's ticket, if it was let through.
    pub(in crate::admission) fn ticket(&self, request: RequestId) -> Option<&Ticket> {
        self.answers.iter().find_map(|(id, verdict)| match verdict {
            Verdict::Admitted(ticket) if *id == request => Some(ticket),
            Verdict::Admitted(_) | Verdict::Refused(_) => None,
        })
    }

    pub(in crate::admission) fn refusal(&self, request: RequestId) -> Option<&Refusal> {
        self.answers.iter().find_map(|(id, verdict)| match verdict {
            Verdict::Refused(refusal) if *id == request => Some(refusal),
            Verdict::Admitted(_) | Verdict::Refused(_) => None,
        })
    }

    pub(in crate::admission) fn code(&self, request: RequestId) -> Option<&'static str> {
        self.refusal(request).map(|refusal| refusal.reason.code())
    }

    pub(in crate::admission) fn waits(&self, request: RequestId) -> bool {
        self.answers.iter().all(|(id, _)| *id != request)
    }

    pub(in crate::admission) fn end(&mut self, request: RequestId, outcome: Outcome, usage: Reported) {
        let ticket = self.ticket(request).expect("the request was let through").id;
        self.settle(ticket, outcome, usage);
    }

    pub(in crate::admission) fn settle(&mut self, ticket: TicketId, outcome: Outcome, usage: Reported) {
        self.feed(Input::Settle { ticket, ending: Ending { outcome, usage, heard: None } });
    }

    /// The request's answer has this status and perhaps says when to come back; it is complete where it is a success.
    pub(in crate::admission) fn hear(&mut self, request: RequestId, status: u16, retry_after: Option<f64>) {
        let status = Status::new(status);
        let outcome = if status.is_success() { Outcome::Completed } else { Outcome::UpstreamFailed };
        self.hear_ending(request, outcome, status, retry_after);
    }

    /// The request's answer is complete and has this status, and a proxy before the upstream tried so often.
    pub(in crate::admission) fn hear_tries(&mut self, request: RequestId, status: Status, tries: u32) {
        let heard = Some(Heard { status, retry_after: None, further_attempts: tries - 1 });
        let ticket = self.ticket(request).expect("the request was let through").id;
        let ending = Ending { outcome: Outcome::Completed, usage: Reported::Nothing, heard };
        self.feed(Input::Settle { ticket, ending });
    }

    /// The request ended so after a head with this status.
    pub(in crate::admission) fn hear_ending(
        &mut self,
        request: RequestId,
        outcome: Outcome,
        status: Status,
        retry_after: Option<f64>,
    ) {
        let heard = Some(Heard { status, retry_after: retry_after.map(Span::from_secs_f64), further_attempts: 0 });
        let ticket = self.ticket(request).expect("the request was let through").id;
        self.feed(Input::Settle { ticket, ending: Ending { outcome, usage: Reported::Nothing, heard } });
    }

    /// The request completes with this much output.
    pub(in crate::admission) fn complete(&mut self, request: RequestId, output: u64) {
        let input = self.flight_input(request);
        self.end(request, Outcome::Completed, Reported::Final(Usage::plain(input, Tokens::new(output))));
    }

    fn flight_input(&self, request: RequestId) -> Tokens {
        let views = self.engine.requests();
        views.iter().find(|view| view.request == request).expect("in flight").expected.input()
    }

    pub(in crate::admission) fn progress(&mut self, request: RequestId, output: u64) {
        let ticket = self.ticket(request).expect("the request was let through").id;
        self.feed(Input::Progress { ticket, output: Tokens::new(output) });
    }

    /// The answer to a request has been coming for so many milliseconds.
    pub(in crate::admission) fn began(&mut self, request: RequestId, ago: u16) {
        let ticket = self.ticket(request).expect("dispatched").id;
        let since = self.now.since(Instant::EPOCH).saturating_sub(Span::from_millis(ago.into()));
        self.feed(Input::Began { ticket, since: Instant::EPOCH + since });
    }

    /// Completes whatever is in flight with what was expected, again and again, `times` times; who was
    /// dispatched meanwhile, in order.
    pub(in crate::admission) fn serve(&mut self, times: usize) -> Vec<String> {
        let mut served = Vec::new();
        for _ in 0..times {
            let Some(flight) = self
                .engine
                .requests()
                .into_iter()
                .find(|view| !matches!(view.state, crate::admission::RequestState::Queued))
            else {
                break;
            };
            served.push(flight.subject.tenant.to_string());
            self.now = self.now + Span::from_millis(100);
            self.complete(flight.request, flight.expected.output().get());
        }
        served
    }

    pub(in crate::admission) fn v(&self, tenant: &str) -> VirtualTokens {
        let views = self.engine.tenants();
        views.iter().find(|view| view.tenant.as_str() == tenant).expect("the tenant is known").virtual_tokens
    }

    pub(in crate::admission) fn total(&self) -> Balance {
        self.books.total()
    }
}
