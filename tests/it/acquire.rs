//! Our own gRPC API over real sockets: the documented Python example, and what reflection tells.

use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;
use tonic::transport::Channel;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
use tonic_reflection::pb::v1::{ServerReflectionRequest, ServerReflectionResponse};

use crate::door::Setup;

/// Python starts slowly, and compiles the `.proto` first.
const PATIENCE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn the_python_example_runs_and_everything_is_settled() {
    let Some(python) = std::env::var_os("TALLYGATE_PYTHON") else {
        println!("SKIPPED: TALLYGATE_PYTHON does not name a Python with grpcio; tests/run makes one");
        return;
    };
    let policy = "pools: [{name: demo, models: ['*'], window: {requests: 1}}]";
    let gateway = Setup { demo: true, ..Setup::policy(policy) }.start("").await;
    let engine = gateway.app.upstreams()[0].1.trim_end_matches('/').to_owned();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/python/acquire.py");
    let running = Command::new(python)
        .args(["-B", script, &gateway.app.grpc().to_string(), &engine])
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(PATIENCE, running).await.expect("it ends in time").expect("it starts");
    let (said, complained) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}{complained}");
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines.len() == 3 && lines[..2].iter().all(|line| line.contains("virtual tokens: ")), "{said}");
    assert!(lines[2].starts_with("INVALID_ARGUMENT malformed Tallygate: the body: EOF"), "{said}");
    let (settled, outcomes) = gateway.ended().await;
    assert!(settled.is_positive());
    assert_eq!(outcomes, [("completed".to_owned(), 2)].into());
    assert_eq!(gateway.metric("tallygate_leases_untold{door=\"grpc\"}"), 0.0);
}

#[tokio::test]
async fn reflection_tells_of_the_api() {
    let gateway = Setup::default().start("http://127.0.0.1:9").await;
    let address = format!("http://{}", gateway.app.grpc());
    let channel = Channel::from_shared(address).expect("an address").connect().await.expect("it listens");
    let mut reflection = ServerReflectionClient::new(channel);
    let ask = |what: MessageRequest| ServerReflectionRequest { host: String::new(), message_request: Some(what) };
    let asked = [
        ask(MessageRequest::ListServices(String::new())),
        ask(MessageRequest::FileContainingSymbol("tallygate.v1.Admission".into())),
    ];
    let asked = tonic::codegen::tokio_stream::iter(asked);
    let mut told = reflection.server_reflection_info(asked).await.expect("it answers").into_inner();
    let next = |told: Option<ServerReflectionResponse>| told.and_then(|told| told.message_response).expect("an answer");
    let MessageResponse::ListServicesResponse(list) = next(told.message().await.expect("readable")) else {
        panic!("a list");
    };
    assert!(list.service.iter().any(|service| service.name == "tallygate.v1.Admission"), "{list:?}");
    let MessageResponse::FileDescriptorResponse(files) = next(told.message().await.expect("readable")) else {
        panic!("a file");
    };
    assert!(files.file_descriptor_proto.iter().any(|file| String::from_utf8_lossy(file).contains("AcquireRequest")));
}
