use super::{Owner, read_owner, written_owner};
use crate::policy::{Policy, parse};
use crate::units::{ClassIndex, Model, PoolIndex, SessionId, TaskId, TenantId, UserId};

fn policy(text: &str) -> Policy {
    parse("policy.yaml", &format!("version: 1\n{text}\n"), |_| unreachable!("no keys")).expect("valid")
}

#[test]
fn owners_are_written_by_name_and_read_back_whatever_is_in_them() {
    let before = policy("pools: [{name: a, models: [x]}, {name: b}]");
    let (tenant, odd) = (TenantId::from("acme"), "\"],[\u{7}é/\\");
    for owner in [
        Owner::Tenant(TenantId::from(odd)),
        Owner::User(tenant.clone(), UserId::from(odd)),
        Owner::Session(tenant.clone(), SessionId::from(odd)),
        Owner::Task(tenant, TaskId::from("")),
        Owner::Class(ClassIndex::new(2)),
        Owner::Model(Model::from("m")),
        Owner::Pool(PoolIndex::new(1)),
        Owner::Everybody,
    ] {
        let written = written_owner(&before, &owner);
        assert_eq!(read_owner(&before, &written), Some(owner), "{written}");
    }
    // Positions move with the policy, names do not.
    let after = policy("pools: [{name: b, models: [x]}, {name: c}]");
    let second = written_owner(&before, &Owner::Pool(PoolIndex::new(1)));
    assert_eq!(read_owner(&after, &second), Some(Owner::Pool(PoolIndex::new(0))));
    assert_eq!(read_owner(&after, &written_owner(&before, &Owner::Pool(PoolIndex::new(0)))), None, "it is gone");
    for bad in ["", "{}", "[]", "[\"tenant\"]", "[\"nobody\",\"a\"]", "[1]"] {
        assert_eq!(read_owner(&after, bad), None, "{bad}");
    }
}
