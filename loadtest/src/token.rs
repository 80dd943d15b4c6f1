//! Tokens of callers, for configurations that verify them: signed with a key of ours, which stands in for the one that is
//! shipped and nobody has. Shared with the tests.

use serde_json::json;
use sha2::{Digest as _, Sha256};

/// The key, of the tests and the load test alone.
const SECRET: &[u8] = b"a secret of the tests, of more than 32 bytes";

/// Base64 as in tokens.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let bits = group.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - group.len()));
        for place in 0..=group.len() {
            text.push(char::from(DIGITS[(bits >> (18 - 6 * place) & 63) as usize]));
        }
    }
    text
}

/// HMAC with SHA-256, for a key of no more than a block.
fn sign(text: &str) -> Vec<u8> {
    let padded = |with: u8| {
        let mut block = [with; 64];
        block.iter_mut().zip(SECRET).for_each(|(padded, byte)| *padded ^= byte);
        block
    };
    let inner = Sha256::new().chain_update(padded(0x36)).chain_update(text).finalize();
    Sha256::new().chain_update(padded(0x5c)).chain_update(inner).finalize().to_vec()
}

/// The token of somebody of this organisation.
pub(crate) fn token(org: &str) -> String {
    let claims = json!({"iss": "https://issuer.example", "org": org}).to_string();
    let signed = format!("{}.{}", base64(br#"{"alg":"HS256","typ":"JWT"}"#), base64(claims.as_bytes()));
    format!("{signed}.{}", base64(&sign(&signed)))
}

/// A shipped configuration with this key in place of its own; nothing where it has none.
pub(crate) fn with_key(config: &str) -> Option<String> {
    const BEFORE: &str = "inline_string: '";
    let keys = json!({"keys": [{"kty": "oct", "alg": "HS256", "k": base64(SECRET)}]});
    let at = config.find(BEFORE)? + BEFORE.len();
    let end = at + config[at..].find('\'')?;
    Some(format!("{}{keys}{}", &config[..at], &config[end..]))
}
