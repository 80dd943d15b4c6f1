//! A gateway that stops says so before it does, refuses what comes, and finishes what runs.

use serde_json::json;
use tallygate::units::VirtualTokens;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use super::{DONE, USAGE, chat, delta};
use crate::door::{Client, Setup, Stage, Way, within};

async fn stop(way: Way) {
    let Some(mut stage) = Stage::set(way, Setup::default()).await else { return };
    let (mut running, mut exchange) = stage.streaming(&delta("one two three")).await;
    let mut idle = stage.client().await;
    idle.chat("", &json!({})).await;
    idle.answer().await.refusal(400, "malformed");
    let address = format!("http://{}", stage.gateway.app.grpc());
    let channel = tonic::transport::Endpoint::from_shared(address).expect("an address").connect_lazy();
    let mut health = HealthClient::new(channel);
    let service = "envoy.service.ext_proc.v3.ExternalProcessor";
    let mut status = async || {
        let asked = health.check(HealthCheckRequest { service: service.into() }).await;
        asked.expect("it is there").into_inner().status()
    };
    assert_eq!(status().await, ServingStatus::Serving);
    let (gate, door) = (stage.gateway.gate().clone(), stage.address());
    let stopping = tokio::spawn(stage.gateway.app.stop());
    within("the announcement", async { while status().await == ServingStatus::Serving {} }).await;
    assert_eq!(gate.look(|seen| seen.draining), Ok(true));
    let mut late = Client::connect(door).await;
    late.chat("", &chat(true)).await;
    late.answer().await.refusal(503, "draining");
    exchange.chunk(&format!("{USAGE}{DONE}")).await;
    exchange.end().await;
    assert!(running.answer().await.whole, "finished");
    within("the end", stopping).await.expect("it stops");
    assert_eq!(gate.look(|seen| seen.ledger.total().live()), Ok(VirtualTokens::ZERO));
}

#[tokio::test]
async fn the_proxy_finishes_what_runs_and_refuses_what_comes() {
    stop(Way::Proxy).await;
}

#[tokio::test]
async fn envoy_is_told_before_and_what_runs_is_finished() {
    stop(Way::Envoy).await;
}
