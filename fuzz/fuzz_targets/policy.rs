//! Hostile policy files: never a panic, never a hang, always a policy or mistakes that say where.
//!
//! The text comes first; what follows a NUL is the file of API keys, should the policy name one.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tallygate::policy::{KeysText, parse};

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let (policy, keys) = text.split_once('\0').unwrap_or((text, "keys: []"));
    let read_keys = |name: &str| Ok(KeysText { name: name.to_owned(), text: keys.to_owned() });
    match parse("policy.yaml", policy, read_keys) {
        Ok(policy) => {
            assert!(!policy.classes.is_empty() && !policy.pools.is_empty() && !policy.tenants.is_empty());
            assert!(policy.default_class.index() < policy.classes.len());
            for tenant in &policy.tenants {
                assert!(!tenant.classes.is_empty(), "a tenant may use no class");
                assert!(tenant.classes.iter().all(|class| class.index() < policy.classes.len()));
            }
        }
        Err(mistakes) => {
            assert!(!mistakes.is_empty(), "refused without a mistake");
            for mistake in mistakes.iter() {
                assert!(mistake.position.line >= 1 && mistake.position.column >= 1, "{mistake}");
                assert!(!mistake.message.is_empty());
            }
        }
    }
});
