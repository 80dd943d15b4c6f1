//! Any bytes as a policy file: no panic, no hang, and every mistake at a place inside the file.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tallygate::policy::{self, KeysText};

fuzz_target!(|data: &[u8]| {
    let text = String::from_utf8_lossy(data);
    // Whatever file of keys it names has the same text, so that the reader of keys is fuzzed too.
    let keys = |file: &str| Ok(KeysText { name: file.into(), text: text.clone().into_owned() });
    if let Err(mistakes) = policy::parse("policy.yaml", &text, keys) {
        assert!(!mistakes.is_empty(), "refused for nothing");
        let lines = text.split(['\n', '\r']).count();
        for mistake in &mistakes {
            assert!((1..=lines).contains(&mistake.position.line), "{mistake}: there are {lines} lines");
        }
    }
});
