//! The chain: a real Envoy verifies a token, asks us, and then an endpoint picker in FULL_DUPLEX_STREAMED mode.

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tallygate::settings::{self, Door};

use super::{ANSWER, DONE, USAGE, chat, cost, delta};
use crate::door::{Client, Config, Front, Gateway, Picker, Setup, Upstream};

/// The half of the key that the shipped configuration does not have, and tests put in its place.
const SECRET: &[u8] = b"a secret of the tests, of more than 32 bytes";

const POLICY: &str = "identity: {tenant: [{metadata: envoy.filters.http.jwt_authn/payload.org}]}\n\
    classes: [{name: interactive, rank: 0, max_wait: 10m}]\n\
    pools: [{name: chat, models: ['*'], window: {requests: 1}}]";

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

/// The header of somebody whose token says this organisation.
pub(crate) fn bearer(org: &str) -> String {
    let claims = json!({"iss": "https://issuer.example", "org": org}).to_string();
    let signed = format!("{}.{}", base64(br#"{"alg":"HS256","typ":"JWT"}"#), base64(claims.as_bytes()));
    format!("authorization: Bearer {signed}.{}\r\n", base64(&sign(&signed)))
}

/// The shipped configuration, with our key and the picker's port.
pub(crate) fn edited(config: &str, picker: &Picker) -> String {
    let keys = json!({"keys": [{"kty": "oct", "alg": "HS256", "k": base64(SECRET)}]});
    let at = config.find("inline_string: '").expect("there is a key") + "inline_string: '".len();
    let end = at + config[at..].find('\'').expect("it ends");
    let config = format!("{}{keys}{}", &config[..at], &config[end..]);
    config.replace("port_value: 9002}", &format!("port_value: {}}}", picker.address().port()))
}

/// The configuration without bodies, with the picker of the other one behind us.
fn body_free(config: &str, picker: &Picker) -> String {
    let other = edited(Config::Picker.text(), picker);
    let part = |from: &str, to: Option<&str>| {
        let rest = &other[other.find(from).unwrap_or_else(|| panic!("there is {from}"))..];
        to.map_or(rest, |to| &rest[..rest.find(to).expect("it ends")]).to_owned()
    };
    let router = "                  - name: envoy.filters.http.router\n";
    let filter = part("                  - name: envoy.filters.http.ext_proc.picker\n", Some(router));
    let cluster = part("    - name: picker\n", None);
    assert!(config.contains(router));
    format!("{}\n{cluster}", config.replace(router, &format!("{filter}{router}")))
}

struct Chain {
    gateway: Gateway,
    upstream: Upstream,
    picker: Picker,
    front: Front,
}

impl Chain {
    async fn set(config: Config, edit: fn(&str, &Picker) -> String, policy: &str) -> Option<Self> {
        let upstream = Upstream::start().await;
        let door = Door { picker: settings::Picker::Told, ..Door::default() };
        let gateway = Setup { door, ..Setup::policy(policy) }.start(&upstream.url()).await;
        let picker = Picker::start(upstream.address()).await;
        let front = Front::asking(config, gateway.app.grpc(), upstream.address(), |text| edit(&text, &picker)).await?;
        Some(Self { gateway, upstream, picker, front })
    }

    async fn client(&self) -> Client {
        self.front.client().await
    }

    /// What is remembered of a decision.
    async fn decision(&self, id: &str) -> Value {
        self.gateway.admin().await.get(&format!("/v1/decisions/{id}"), "").await.json()
    }
}

#[tokio::test]
async fn a_token_names_the_tenant_we_decide_when_and_the_picker_where() {
    let Some(mut chain) = Chain::set(Config::Picker, edited, POLICY).await else { return };
    let mut nobody = chain.client().await;
    nobody.chat("", &chat(true)).await;
    assert_eq!(nobody.answer().await.status, 401, "Envoy lets nobody through without a token");

    let forged = "x-llm-d-inference-fairness-id: other\r\nx-llm-d-inference-objective: first\r\n\
        x-gateway-inference-fairness-id: other\r\nx-gateway-inference-objective: first\r\n\
        x-gateway-destination-endpoint: 127.0.0.1:1\r\n";
    let headers = format!("{}{forged}", bearer("acme"));
    let mut client = chain.client().await;
    client.chat(&headers, &chat(true)).await;
    let mut exchange = chain.upstream.next().await;
    let mut waiting = chain.client().await;
    waiting.chat(&bearer("bob"), &chat(false)).await;
    chain.gateway.until_queued(1).await;
    assert_eq!(chain.picker.asked(), 1, "what waits has no endpoint");
    let told = chain.picker.last();
    let endpoint = chain.upstream.address().to_string();
    for (name, value) in [
        ("x-llm-d-inference-fairness-id", Some("acme")),
        ("x-llm-d-inference-objective", Some("interactive")),
        ("x-gateway-inference-fairness-id", None),
        ("x-gateway-inference-objective", None),
    ] {
        assert_eq!(told.get(name).map(String::as_str), value, "{name}, to the picker");
        assert_eq!(exchange.header(name), value, "{name}, to the upstream");
    }
    assert_eq!(exchange.header("x-gateway-destination-endpoint"), Some(endpoint.as_str()));
    let sent: Value = serde_json::from_slice(&exchange.body).expect("all of the body");
    assert_eq!(sent["stream_options"]["include_usage"], true);

    exchange.begin().await;
    exchange.chunk(&delta("one two three")).await;
    client.read_until("one two three").await;
    exchange.chunk(&format!("{USAGE}{DONE}")).await;
    exchange.end().await;
    let answer = client.answer().await;
    assert!(answer.whole && answer.body.ends_with(DONE) && !answer.body.contains("prompt_tokens"), "{}", answer.body);

    chain.upstream.next().await.answer("200 OK", ANSWER).await;
    assert_eq!(waiting.answer().await.status, 200);
    let (settled, outcomes) = chain.gateway.ended().await;
    assert_eq!((settled, outcomes.get("completed")), (cost(11, 6) + cost(1, 1), Some(&2)), "{outcomes:?}");
    let decision = chain.decision(answer.header("x-tallygate-decision")).await;
    assert_eq!(decision["caller"]["tenant"], "acme");
    assert_eq!(decision["picked"], json!({"endpoint": endpoint, "cost": 17.0}), "{decision:#}");
}

#[tokio::test]
async fn records_and_the_trailers_made_for_them_survive_a_picker() {
    let policy = "pools: [{name: chat, models: ['*'], window: {requests: 1}}]";
    let Some(mut chain) = Chain::set(Config::BodyFree, body_free, policy).await else { return };
    let json = r#"{"choices":[],"usage":{"prompt_tokens":11,"completion_tokens":6,"total_tokens":17}}"#;
    let mut streamed = chat(true);
    streamed["stream_options"] = json!({"include_usage": true});
    // Of the first stream it is not known whether it leaves a record, so it is read.
    for (number, body) in [chat(false), streamed.clone(), streamed].iter().enumerate() {
        let mut client = chain.client().await;
        client.chat("", body).await;
        let mut exchange = chain.upstream.next().await;
        assert_eq!(exchange.body, body.to_string().into_bytes(), "all of it");
        if body["stream"] == true {
            exchange.begin().await;
            exchange.chunk(&delta("one two three")).await;
            exchange.chunk(&format!("{USAGE}{DONE}")).await;
            exchange.end().await;
        } else {
            exchange.answer("200 OK", json).await;
        }
        let answer = client.answer().await;
        assert!(answer.whole && answer.body.contains("total_tokens"), "{}", answer.body);
        let (settled, outcomes) = chain.gateway.ended().await;
        assert_eq!(settled, cost(11 * (number as u64 + 1), 6 * (number as u64 + 1)), "{outcomes:?}");
    }
    let metrics = chain.gateway.admin().await.get("/metrics", "").await.body;
    for counted in ["usage_source_total{source=\"record\"} 2", "usage_source_total{source=\"parsed\"} 1"] {
        assert!(metrics.contains(counted), "{counted}");
    }
    assert_eq!(chain.picker.asked(), 3);
}
