//! The examples of the library run as they are written: axum and tonic servers behind a gate.

#[path = "../../examples/axum/server.rs"]
mod axum_server;
#[path = "../../examples/tonic/server.rs"]
mod tonic_server;

use serde_json::json;
use tallygate::Gate;
use tallygate::ledger::Balance;
use tokio::net::TcpListener;
use tonic::Code;
use tonic::metadata::MetadataValue;

use crate::door::{Client, within};
use tonic_server::{EMBED, EmbedReply, EmbedRequest};

/// Waits until nothing runs, and returns what was settled, in virtual tokens.
async fn settled(gate: &Gate) -> String {
    within("everything to end", gate.idle()).await.expect("not broken");
    let Balance { reserved, settled, refunded } = gate.look(|seen| seen.ledger.total()).expect("not broken");
    assert_eq!(reserved, settled + refunded, "conservation, with nothing live");
    settled.to_string()
}

#[tokio::test]
async fn an_axum_server_admits_to_its_own_model() {
    let gate = axum_server::gate().expect("a gate");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("an address");
    let address = listener.local_addr().expect("bound");
    tokio::spawn(axum::serve(listener, axum_server::app(gate.clone())).into_future());

    let mut client = Client::connect(address).await;
    assert_eq!(client.get("/healthz", "").await.body, "ok\n", "outside the layer");
    let chat = |stream: bool| json!({"model": "echo", "stream": stream, "messages": [{"role": "user", "content": "Hello there"}]});
    client.chat("content-type: application/json\r\n", &chat(false)).await;
    assert_eq!(client.answer().await.body, "who are you?\n", "its own layer answers before ours");

    let key = "content-type: application/json\r\nauthorization: Bearer sk-acme\r\n";
    client.chat(key, &chat(false)).await;
    let answer = client.answer().await;
    assert_eq!((answer.status, &answer.json()["choices"][0]["message"]["content"]), (200, &"acme: Hello there".into()));
    assert_eq!(answer.header("x-tallygate-queue-ms"), "0");
    // 8 input tokens, and 3 output tokens at twice the price.
    assert_eq!(settled(&gate).await, "14.0");

    client.chat(key, &chat(true)).await;
    let answer = client.answer().await;
    assert!(answer.body.ends_with("data: [DONE]\n\n"), "{}", answer.body);
    assert!(!answer.body.contains("usage"), "the client did not ask for it");
    assert_eq!(settled(&gate).await, "28.0");

    client.chat(key, &json!({"model": "other", "messages": [{"role": "user", "content": "Hello"}]})).await;
    client.answer().await.refusal(404, "model_not_found");
    let most = json!({"model": "echo", "messages": [{"role": "user", "content": "word ".repeat(1980)}]});
    client.chat(key, &most).await;
    client.answer().await.refusal(429, "rate_limited");
}

#[tokio::test]
async fn a_tonic_server_says_itself_what_a_call_costs() {
    let gate = tonic_server::gate().expect("a gate");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("an address");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    tokio::spawn(tonic_server::serve(listener, gate.clone()));
    let channel = tonic::transport::Endpoint::from_shared(url).expect("a URL").connect().await.expect("it listens");
    let mut client = tonic::client::Grpc::new(channel);
    let mut embed = async |model: &str, bytes: usize| {
        client.ready().await.expect("it is there");
        let texts = vec!["x".repeat(bytes)];
        let mut request = tonic::Request::new(EmbedRequest { model: model.into(), texts });
        request.metadata_mut().insert("x-tenant-id", MetadataValue::from_static("acme"));
        let codec = tonic_prost::ProstCodec::<EmbedRequest, EmbedReply>::default();
        client.unary(request, EMBED.parse().expect("a path"), codec).await
    };

    let answer = embed("mini", 200).await.expect("there is room");
    assert_eq!(answer.metadata().get("x-tallygate-queue-ms").expect("it was let through"), "0");
    assert_eq!(answer.into_inner().sizes, [200]);
    assert_eq!(settled(&gate).await, "50.0", "as the service told");

    // 50 of 100 tokens a minute are left.
    let refused = embed("mini", 300).await.expect_err("no room");
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    assert!(refused.message().contains("Please try again in"), "{refused}");
    assert_eq!(refused.metadata().get("x-tallygate-reason").expect("a reason"), "rate_limited");
    let pushback = refused.metadata().get("grpc-retry-pushback-ms").expect("when to come back");
    assert!(pushback.to_str().expect("text").parse::<u64>().expect("milliseconds") > 1_000, "{pushback:?}");

    assert_eq!(embed("other", 4).await.expect_err("no pool").code(), Code::NotFound);
    assert_eq!(settled(&gate).await, "50.0", "a refusal costs nothing");
}
