//! A small world drawn from bytes: its policy and the operations on it.

use std::sync::LazyLock;

use arbitrary::Arbitrary;
use tallygate::admission::{Attempt, Ending, Input, Outcome, Reported, Request, Subject};
use tallygate::policy::model::{Algorithm, Charge};
use tallygate::policy::{Policy, parse};
use tallygate::units::{
    Agent, Bytes, ClassIndex, Instant, Limit, Model, PoolIndex, Price, Share, Span, Tariff, TokenWeight, Tokens, Usage,
    Weight,
};

use super::books::Books;

/// The most operations of one list.
pub const MOST: usize = 400;

#[derive(Arbitrary, Debug)]
pub struct World {
    pub seed: u8,
    algorithm: u8,
    charge: u8,
    window_requests: u8,
    window_tokens: u16,
    queue_requests: u8,
    tenant_requests: u8,
    session_requests: u8,
    per_session: u8,
    per_tenant: u8,
    max_wait_s: u8,
    min_share: u8,
    pub ops: Vec<Op>,
}

/// Two pools and three classes. Parsed once: what varies is set in the model, which is quicker than text.
static BASE: LazyLock<Policy> = LazyLock::new(|| {
    let text = "version: 1
classes:
  - {name: a, rank: 0}
  - {name: b, rank: 1}
  - {name: c, rank: 2, max_wait: 10m}
default_class: a
tenants:
  - {match: t0, weight: 3, classes: [a, b, c]}
  - {match: '*', weight: 1, classes: [a, b, c]}
pools:
  - {name: p, models: [m]}
  - {name: q, models: ['*'], window: {requests: 2}}
";
    parse("base.yaml", text, |_| unreachable!("no keys are named")).expect("the base policy is valid")
});

impl World {
    /// The base, limited by what was drawn.
    pub fn policy(&self) -> Policy {
        let mut policy = BASE.clone();
        let algorithms = [Algorithm::Vtc, Algorithm::Fcfs, Algorithm::RoundRobin, Algorithm::LeastCounter];
        let charges = [Charge::Predicted, Charge::Streamed, Charge::Completion];
        let limit = |n: u8| if n == u8::MAX { Limit::Unlimited } else { Limit::AtMost(u32::from(n)) };
        let at_least_one = |n: u8| if n == u8::MAX { Limit::Unlimited } else { Limit::AtMost(u32::from(n.max(1))) };
        policy.fairness.algorithm = algorithms[usize::from(self.algorithm % 4)];
        policy.fairness.charge = charges[usize::from(self.charge % 3)];
        policy.classes[0].max_wait = Limit::AtMost(Span::from_secs(u64::from(self.max_wait_s) + 1));
        policy.classes[1].min_share = Share::new(f64::from(self.min_share % 60) / 100.0).expect("a valid share");
        policy.fanout.per_session = at_least_one(self.per_session);
        policy.fanout.per_tenant = at_least_one(self.per_tenant);
        let pool = &mut policy.pools[0];
        pool.window.requests = at_least_one(self.window_requests);
        pool.window.tokens = Limit::AtMost(Tokens::new(u64::from(self.window_tokens) + 1));
        pool.queue.pool.requests = limit(self.queue_requests);
        pool.queue.tenant.requests = limit(self.tenant_requests);
        pool.queue.session.requests = limit(self.session_requests);
        policy
    }
}

#[derive(Arbitrary, Debug)]
pub enum Op {
    Arrive {
        pool: bool,
        class: u8,
        tenant: u8,
        session: u8,
        who: u8,
        input: u16,
        output: u16,
        cap: u16,
        deadline_s: u8,
    },
    Cancel {
        which: u8,
    },
    Progress {
        which: u8,
        output: u16,
    },
    Settle {
        which: u8,
        outcome: u8,
        input: u16,
        output: u16,
        reported: u8,
    },
    SettleAgain {
        which: u8,
    },
    Pass {
        millis: u16,
    },
    Began {
        which: u8,
        ago_ms: u16,
    },
}

impl Op {
    pub fn input(&self, now: Instant, books: &mut Books) -> Input {
        match *self {
            Self::Arrive { pool, class, tenant, session, who, input, output, cap, deadline_s } => {
                let subject = Subject {
                    pool: PoolIndex::new(pool.into()),
                    class: ClassIndex::new(u16::from(class % 3)),
                    tenant: format!("t{}", tenant % 5).as_str().into(),
                    session: (session % 4 > 0).then(|| format!("s{}", session % 4).as_str().into()),
                };
                let weight = if tenant % 5 == 0 { 3.0 } else { 1.0 };
                let cap = (cap > 0).then(|| Tokens::new(cap.max(output).into()));
                Input::Arrive(Box::new(Request {
                    id: books.next_request(),
                    subject,
                    model: Model::from("model"),
                    user: None,
                    task: None,
                    tariff: Tariff::default(),
                    agent: if who % 2 == 0 { Agent::Lead } else { Agent::Sub },
                    attempt: [Attempt::Unsaid, Attempt::First, Attempt::Again][usize::from(who) % 3],
                    weight: Weight::new(weight).expect("a valid weight"),
                    price: price(),
                    expected: Usage::plain(Tokens::new(input.into()), Tokens::new(output.into())),
                    output_cap: Limit::from(cap),
                    choices: std::num::NonZeroU32::MIN,
                    bytes: Bytes::new(u64::from(input) * 4),
                    deadline: (deadline_s > 0).then(|| now + Span::from_secs(deadline_s.into())),
                    streamed: true,
                }))
            }
            Self::Cancel { which } => books.some_request(which).map_or(Input::Tick, Input::Cancel),
            Self::Progress { which, output } => books
                .some_ticket(which)
                .map_or(Input::Tick, |ticket| Input::Progress { ticket, output: Tokens::new(output.into()) }),
            Self::Settle { which, outcome, input, output, reported } => {
                let usage = Usage::plain(Tokens::new(input.into()), Tokens::new(output.into()));
                let usage = match reported % 3 {
                    0 => Reported::Nothing,
                    1 => Reported::Counted(usage),
                    _ => Reported::Final(usage),
                };
                let outcome = Outcome::ALL[usize::from(outcome) % Outcome::ALL.len()];
                let settle = |ticket| Input::Settle { ticket, ending: Ending { outcome, usage, heard: None } };
                books.some_ticket(which).map_or(Input::Tick, settle)
            }
            Self::SettleAgain { which } => books.some_settled(which).map_or(Input::Tick, |ticket| Input::Settle {
                ticket,
                ending: Ending { outcome: Outcome::Completed, usage: Reported::Nothing, heard: None },
            }),
            Self::Pass { .. } => Input::Tick,
            Self::Began { which, ago_ms } => books.some_ticket(which).map_or(Input::Tick, |ticket| {
                let since_start = now.since(Instant::EPOCH).saturating_sub(Span::from_millis(ago_ms.into()));
                Input::Began { ticket, since: Instant::EPOCH + since_start }
            }),
        }
    }
}

fn price() -> Price {
    let weight = |value| TokenWeight::new(value).expect("a valid weight");
    Price::new(weight(1.0), [1.0, 0.1, 1.25, 2.0, 2.0].map(weight))
}
