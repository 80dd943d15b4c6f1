//! API keys: a file that says whose each one is, by its SHA-256, so that no key is ever written down.
//!
//! A digest is looked up by comparing it with every one in the ring, each in constant time and without stopping
//! at a match, so that how long a lookup takes says nothing about the keys. The file's size bound keeps a ring
//! below some ten thousand keys, a fraction of a millisecond.

use std::path::Path;

use schemars::JsonSchema;
use serde::Deserialize;
use subtle::{ConditionallySelectable, ConstantTimeEq};

use crate::yaml::{self, Mistakes};

use super::model::{ApiKey, KeyRing};
use super::parse::tenant;

/// The text of a file of API keys, and the name its mistakes are reported under.
#[derive(Clone, Debug)]
pub struct KeysText {
    /// The name.
    pub name: String,
    /// The text.
    pub text: String,
}

/// A file of API keys.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Keys {
    /// The keys.
    #[schemars(length(min = 1))]
    keys: Vec<Key>,
}

/// One API key.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("x-refused" = {
    "key": "a key is not written in plain text; give its hash: printf %s \"$KEY\" | sha256sum",
    "api_key": "a key is not written in plain text; give its hash as `sha256`: printf %s \"$KEY\" | sha256sum",
}))]
struct Key {
    /// The SHA-256 of the key, in hex.
    sha256: String,
    /// Whose it is.
    tenant: String,
    /// What its owner calls it, for logs.
    #[serde(default)]
    name: Option<String>,
}

/// Reads a file of keys, unparsed.
pub(super) fn read(path: &Path) -> Result<KeysText, Mistakes> {
    Ok(KeysText { name: path.display().to_string(), text: yaml::read(path)? })
}

/// The keys in a text.
pub(super) fn parse(name: &str, text: &str) -> Result<KeyRing, Mistakes> {
    let loaded = yaml::load::<Keys>(name, text)?;
    let mut mistakes = Mistakes::none();
    let mut keys: Vec<ApiKey> = Vec::new();
    let mut places = std::collections::HashMap::new();
    for (index, key) in loaded.value.keys.into_iter().enumerate() {
        let pointer = |part: &str| format!("/keys/{index}/{part}");
        let Some(sha256) = digest(&key.sha256) else {
            // The text is not repeated: it may be the key itself.
            let message = "is not a SHA-256, which has 64 hex digits; to hash a key: printf %s \"$KEY\" | sha256sum";
            mistakes.push(loaded.positions.mistake(&pointer("sha256"), message));
            continue;
        };
        if let Some(first) = places.insert(sha256, index) {
            let line = loaded.positions.position_of(&format!("/keys/{first}/sha256")).line;
            let message = format!("this key is given twice; first on line {line}");
            mistakes.push(loaded.positions.mistake(&pointer("sha256"), message));
        }
        match tenant(&key.tenant) {
            Ok(tenant) => keys.push(ApiKey { sha256, tenant, name: key.name }),
            Err(message) => mistakes.push(loaded.positions.mistake(&pointer("tenant"), message)),
        }
    }
    mistakes.into_result()?;
    Ok(KeyRing { keys })
}

/// 32 bytes from 64 hex digits.
fn digest(hex: &str) -> Option<[u8; 32]> {
    let digits = hex.as_bytes();
    if digits.len() != 64 {
        return None;
    }
    let mut digest = [0; 32];
    for (byte, pair) in digest.iter_mut().zip(digits.chunks_exact(2)) {
        let high = char::from(pair[0]).to_digit(16)?;
        let low = char::from(pair[1]).to_digit(16)?;
        *byte = u8::try_from(high * 16 + low).ok()?;
    }
    Some(digest)
}

impl KeyRing {
    /// The key with this SHA-256, in time that depends on nothing but the number of keys.
    #[must_use]
    pub fn lookup(&self, sha256: &[u8; 32]) -> Option<&ApiKey> {
        // One more than any position: no key has it.
        let mut found = u64::MAX;
        for (position, key) in (0u64..).zip(&self.keys) {
            found.conditional_assign(&position, key.sha256.ct_eq(sha256));
        }
        usize::try_from(found).ok().and_then(|position| self.keys.get(position))
    }
}

#[cfg(test)]
mod tests {
    use sha2::{Digest, Sha256};

    use super::parse;

    const HELLO: &str = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";
    const WORLD: &str = "486EA46224D1BB4FB680F34F7C9AD96A8F24EC88BE73EA8E5A6C65260E9CB8A7";

    #[test]
    fn a_key_is_found_by_its_hash_and_no_other() {
        let text =
            format!("keys:\n  - {{sha256: {HELLO}, tenant: acme, name: ci}}\n  - {{sha256: {WORLD}, tenant: beta}}\n");
        let ring = parse("keys.yaml", &text).expect("good");
        let owner = |key: &str| ring.lookup(&Sha256::digest(key).into()).map(|key| key.tenant.to_string());
        assert_eq!(owner("hello").as_deref(), Some("acme"));
        assert_eq!(owner("world").as_deref(), Some("beta"));
        assert_eq!(owner("Hello"), None);
        assert_eq!(owner(""), None);
        let named = ring.lookup(&Sha256::digest("hello").into()).and_then(|key| key.name.as_deref());
        assert_eq!(named, Some("ci"));
    }

    #[test]
    fn mistakes_are_told_in_the_key_files_own_name_and_never_repeat_a_key() {
        let text = format!(
            "keys:\n  - {{key: sk-secret, tenant: a}}\n  - {{sha256: sk-secret, tenant: a}}\n  - {{sha256: {HELLO}, tenant: \"\"}}\n  - {{sha256: {HELLO}, tenant: b}}\n"
        );
        let first = parse("dir/keys.yaml", &text).expect_err("broken").to_string();
        assert_eq!(
            first,
            "dir/keys.yaml:2:5: keys[0]: the key `sha256` is missing\n\
             dir/keys.yaml:2:6: keys[0].key: a key is not written in plain text; give its hash: printf %s \"$KEY\" | sha256sum"
        );
        let without = text.replace("  - {key: sk-secret, tenant: a}\n", "");
        let then = parse("dir/keys.yaml", &without).expect_err("broken").to_string();
        assert_eq!(
            then,
            "dir/keys.yaml:2:14: keys[0].sha256: is not a SHA-256, which has 64 hex digits; to hash a key: printf %s \"$KEY\" | sha256sum\n\
             dir/keys.yaml:3:88: keys[1].tenant: a tenant's name has 1 to 256 bytes and no control characters\n\
             dir/keys.yaml:4:14: keys[2].sha256: this key is given twice; first on line 3"
        );
        assert!(!first.contains("sk-secret") && !then.contains("sk-secret"));
    }
}
