//! What the desk writes down for the judge, where a run keeps its log.

use super::{
    Booking, Demand, Desk, Fact, Instant, Keep, Movement, Party, RequestId, Selection, State, Tokens, Usage,
    VirtualTokens, What, number,
};

impl Desk<'_> {
    pub(super) fn log(&mut self, at: Instant, index: usize, what: What) {
        if self.keep == Keep::Log {
            self.facts.push(Fact { at, request: RequestId::new(number(index)), what });
        }
    }

    pub(super) fn log_joined(
        &mut self,
        at: Instant,
        index: usize,
        demand: &Demand,
        selection: &Selection,
        predicted: Tokens,
    ) {
        let cost = |usage: &Usage| selection.price.cost(usage);
        let party = Party {
            pool: selection.pool,
            class: selection.class,
            tenant: demand.tenant.clone(),
            session: demand.session.clone(),
            weight: selection.weight,
        };
        let what = What::Joined {
            party,
            size: demand.input + predicted,
            input_cost: cost(&Usage::plain(demand.input, Tokens::ZERO)),
            output_price: cost(&Usage::plain(Tokens::ZERO, Tokens::new(1))),
        };
        self.log(at, index, what);
    }

    /// Writes down that this much of a request has been served by now.
    pub(super) fn serve(&mut self, at: Instant, index: usize, usage: &Usage) {
        if self.keep == Keep::Records {
            return;
        }
        let State::InFlight { selection, served, .. } = &mut self.states[index] else { return };
        let so_far = selection.price.cost(usage);
        let service = so_far - *served;
        *served = so_far;
        self.log(at, index, What::Served { service, held: usage.total() });
    }

    pub(super) fn log_booking(&mut self, entry: crate::ledger::Entry) {
        if self.keep == Keep::Records {
            return;
        }
        let amount = |movement| if entry.movement == movement { entry.amount } else { VirtualTokens::ZERO };
        self.bookings.push(Booking {
            reserved: amount(Movement::Reserve),
            settled: amount(Movement::Settle),
            refunded: amount(Movement::Refund),
            request: entry.request,
            account: (entry.account.pool, entry.account.class, entry.account.tenant),
        });
    }
}
