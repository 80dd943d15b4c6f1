//! The judge of a run, written apart from what it judges.
//!
//! It knows units and a log of what happened in the world (requests joined a queue, were let through, produced
//! tokens, ended), and nothing of the core: eligibility, service, the window and the books are reckoned here
//! a second time, by other code. What it checks:
//!
//! - **The VTC bound** ([`audit`]). For two tenants of one pool and class, over every interval in which both
//!   are eligible (each has a request waiting that no cap of its own holds back):
//!   `|ΔW_f/w_f − ΔW_g/w_g| ≤ 2 × max(w_in·L_in, w_out·M_g) / min(w_f, w_g)`. W is service produced, in
//!   virtual tokens; L_in the longest input; M_g the most tokens dispatched and unfinished at once, as they were
//!   in this run. "Over every interval" is the spread (largest less smallest) of the difference within each
//!   stretch of joint eligibility.
//! - **Work conservation** ([`audit`]). No moment passes with an eligible request waiting and room for it in
//!   the window, nor with one waiting and nothing in flight.
//! - **Every request once** ([`audit`]). Each that joined leaves exactly once, each that was let through ends
//!   exactly once, and at the end nobody waits.
//! - **Conservation** ([`books`]). Per request and per account, reserved = settled + refunded + live, exactly.
//! - **Nobody below his share is refused beside one above his** ([`refusals`]), over every window of a length.
//! - **Max-min shares** ([`max_min`]), what each tenant should get when the work is divided fairly.

mod audit;
mod books;
mod fact;
mod pairs;
mod refusals;

pub use audit::{Findings, Rules, audit};
pub use books::{AccountKey, Booking, Totals, books};
pub use fact::{Fact, Party, What};
pub use refusals::{Bid, Verdict, Wrong, fair_queueing, refusals};

/// Divides a capacity by weighted max-min fairness: nobody gets more than his demand, and whoever gets less
/// than his demand gets at least as much for his weight as anybody else. `claims` are (weight, demand).
///
/// Water-filling: all levels rise together, at the rate of their weights, until the demand is met or the
/// capacity is gone.
#[must_use]
pub fn max_min(capacity: f64, claims: &[(f64, f64)]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..claims.len()).filter(|at| claims[*at].0 > 0.0).collect();
    let level = |at: &usize| claims[*at].1 / claims[*at].0;
    order.sort_by(|a, b| level(a).total_cmp(&level(b)));
    let mut weight: f64 = order.iter().map(|at| claims[*at].0).sum();
    let mut left = capacity;
    let mut given = vec![0.0; claims.len()];
    for at in order {
        let (own, demand) = claims[at];
        given[at] = demand.min(left.max(0.0) * own / weight);
        left -= given[at];
        weight -= own;
    }
    given
}

#[cfg(test)]
mod tests;
