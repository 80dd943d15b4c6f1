use super::{Answered, Came, Decisions, Found, Keep, Known, State, Wanted};
use crate::admission::{Event, Subject};
use crate::policy::model::Listener;
use crate::units::{Agent, Bytes, ClassIndex, Instant, PoolIndex, RequestId, Span, TenantId};

const PLENTY: Bytes = Bytes::new(1_000_000);

fn came(path: &str) -> Came {
    Came { at: Instant::EPOCH, listener: Listener::Proxy, method: http::Method::POST, path: path.into() }
}

fn known(tenant: &str) -> Known {
    Known {
        tenant: TenantId::from(tenant),
        session: None,
        agent: Agent::Lead,
        wished_class: None,
        rule: 0,
        key_name: None,
    }
}

fn id(number: u64) -> RequestId {
    RequestId::new(number)
}

fn open(decisions: &Decisions, numbers: std::ops::Range<u64>, tenant: &str) {
    for number in numbers {
        decisions.open(id(number), came("/v1/chat/completions"));
        decisions.identified(id(number), known(tenant));
    }
}

fn answered() -> Answered {
    Answered {
        at: Instant::EPOCH,
        status: http::StatusCode::BAD_REQUEST,
        code: "malformed",
        words: "x".repeat(10_000).into(),
        retry_after: None,
    }
}

fn numbers(decisions: &Decisions, wanted: &Wanted) -> Vec<u64> {
    decisions.newest(wanted).iter().map(|record| record.request.get()).collect()
}

#[test]
fn the_oldest_go_first_and_that_is_told_from_never_having_been() {
    let decisions = Decisions::new(Keep { most: 3, bytes: PLENTY });
    open(&decisions, 1..6, "a");
    assert!(matches!(decisions.find(id(2)), Found::Forgotten));
    assert!(matches!(decisions.find(id(3)), Found::Here(record) if record.request == id(3)));
    assert!(matches!(decisions.find(id(9)), Found::Unheard));
    // What becomes of one that is gone is not remembered.
    decisions.answered(id(1), answered());
    assert!(matches!(decisions.find(id(1)), Found::Forgotten));
}

#[test]
fn memory_is_bounded_by_bytes_whatever_texts_clients_send() {
    let bytes = 20_000;
    let decisions = Decisions::new(Keep { most: 1_000_000, bytes: Bytes::new(bytes) });
    for number in 0..500 {
        decisions.open(id(number), came(&"/é".repeat(5_000)));
        decisions.identified(id(number), known(&"t".repeat(256)));
        decisions.answered(id(number), answered());
        let book = decisions.book();
        let weighed: usize = book.records.values().map(|record| record.weight() + super::AROUND).sum();
        assert_eq!(book.weight, weighed);
        assert!(weighed as u64 <= bytes && book.order.len() == book.records.len());
    }
    assert!(decisions.book().records.len() > 5, "texts are shortened");
}

#[test]
fn nothing_is_kept_where_nothing_may_be() {
    let decisions = Decisions::new(Keep { most: 0, bytes: PLENTY });
    open(&decisions, 1..4, "a");
    assert!(matches!(decisions.find(id(3)), Found::Forgotten));
    assert_eq!(decisions.book().weight, 0);
}

#[test]
fn they_are_found_by_tenant_and_by_what_they_came_to_newest_first() {
    let decisions = Decisions::new(Keep { most: 100, bytes: PLENTY });
    open(&decisions, 1..4, "a");
    open(&decisions, 4..6, "b");
    decisions.answered(id(2), answered());
    decisions.answered(id(5), answered());
    let all = Wanted { tenant: None, state: None, most: 10 };
    assert_eq!(numbers(&decisions, &all), [5, 4, 3, 2, 1]);
    assert_eq!(numbers(&decisions, &Wanted { most: 2, ..all.clone() }), [5, 4]);
    let of_a = Wanted { tenant: Some(TenantId::from("a")), ..all.clone() };
    assert_eq!(numbers(&decisions, &of_a), [3, 2, 1]);
    assert_eq!(numbers(&decisions, &Wanted { state: Some(State::Refused), ..of_a }), [2]);
    assert_eq!(numbers(&decisions, &Wanted { state: Some(State::Refused), ..all }), [5, 2]);
}

#[test]
fn facts_may_come_in_any_order() {
    let decisions = Decisions::new(Keep { most: 100, bytes: PLENTY });
    decisions.open(id(1), came("/"));
    let (pool, class) = (PoolIndex::new(0), ClassIndex::new(0));
    let subject = Subject { pool, class, tenant: TenantId::from("a"), session: None };
    let at = Instant::EPOCH + Span::from_secs(1);
    decisions.note(&[Event::Cancelled { at, request: id(1), subject: subject.clone(), waited: Span::ZERO }]);
    decisions.note(&[Event::Queued { at, request: id(1), subject }]);
    decisions.left(id(1), Instant::EPOCH);
    let Found::Here(record) = decisions.find(id(1)) else { panic!("it is here") };
    assert_eq!((record.state(), record.left_at), (State::Left, Some(at)));
}
