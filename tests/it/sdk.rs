//! The official SDKs, unchanged, through a gateway over the simulated engine, and against every refusal of the table.

use std::net::SocketAddr;
use std::time::Duration;

use envoy_types::pb::envoy::config::core::v3 as core;
use envoy_types::pb::envoy::service::ext_proc::v3 as pb;
use envoy_types::pb::envoy::service::ext_proc::v3::external_processor_server::{
    ExternalProcessor, ExternalProcessorServer,
};
use envoy_types::pb::envoy::r#type::v3::HttpStatus;
use pb::processing_request::Request as Asked;
use pb::processing_response::Response as Said;
use serde_json::Value;
use tallygate::admission::{Left, Level, Reason, Refusal, Retry, Rule, Subject, Unit};
use tallygate::policy::model::Per;
use tallygate::settings::Door;
use tallygate::units::{
    Amount, Bytes, ClassIndex, DecisionId, Instant, Measure, PoolIndex, RequestId, Span, TenantId, Tokens,
};
use tallygate::wire::answer::Refused;
use tallygate::wire::dialect::Voice;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;
use tonic::codegen::tokio_stream::{Stream, StreamExt};

use crate::door::{Config, Front, Gateway, Setup, Shut, Upstream, Way, layered};

/// One request at a time, and no queue: a second request is refused at once.
const ONE_AT_A_TIME: &str = "pools: [{name: chat, models: ['demo'], window: {requests: 1}, queue: {requests: 0}}]";

/// As many as there is room for.
const ROOMY: &str = "pools: [{name: all, models: ['demo']}]";

/// How long a script may take, the longest waits of the table included.
const PATIENCE: Duration = Duration::from_secs(180);

/// Runs a script of `tests/sdk` and returns whether there is a Python to run it.
async fn run(script: &str, arguments: &[String]) -> bool {
    let Some(python) = std::env::var_os("TALLYGATE_PYTHON") else {
        println!("SKIPPED: TALLYGATE_PYTHON does not name a Python with the SDKs; tests/run makes one");
        return false;
    };
    let script = format!("{}/tests/sdk/{script}", env!("CARGO_MANIFEST_DIR"));
    let running = Command::new(python).arg("-B").arg(script).args(arguments).kill_on_drop(true).output();
    let output =
        tokio::time::timeout(PATIENCE, running).await.expect("it ends in time").expect("the interpreter starts");
    let (said, complained) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    println!("{said}{complained}");
    assert!(output.status.success(), "{complained}");
    true
}

/// Where a gateway over an upstream is reached, and what stands in front of it; nothing where an Envoy is needed and
/// there is none.
async fn reach(way: Way, gateway: &Gateway, upstream: SocketAddr) -> Option<(SocketAddr, Option<Front>)> {
    match way.config() {
        None if way == Way::Layer => Some((layered(gateway.gate(), Door::default(), upstream).await, None)),
        None => Some((gateway.proxy(), None)),
        Some(config) => {
            let front = Front::of(config, gateway, upstream).await?;
            Some((front.address(), Some(front)))
        }
    }
}

/// A gateway over the simulated engine, and where that is.
async fn over_the_engine(setup: Setup) -> (Gateway, SocketAddr) {
    let gateway = Setup { demo: true, ..setup }.start("").await;
    let engine: http::Uri = gateway.app.upstreams()[0].1.parse().expect("an address");
    let engine = engine.authority().expect("an address").as_str().parse().expect("an address");
    (gateway, engine)
}

/// Runs a script against a gateway over the simulated engine, and checks that so many requests completed.
async fn through_a_gateway(way: Way, script: &str, policy: &str, path: &str, completed: u64) {
    let (gateway, engine) = over_the_engine(Setup::policy(policy)).await;
    let Some((address, _front)) = reach(way, &gateway, engine).await else { return };
    if run(script, &[format!("http://{address}{path}")]).await {
        let (settled, outcomes) = gateway.ended().await;
        assert!(settled.is_positive());
        assert!(outcomes.get("completed").is_some_and(|found| *found >= completed), "{outcomes:?}");
    }
}

/// Two tests of one claim, one for each door.
macro_rules! by_both {
    ($name:ident, $test:ident($($argument:expr),*)) => {
        mod $name {
            use super::*;

            #[tokio::test(flavor = "multi_thread")]
            async fn by_proxy() {
                $test(Way::Proxy $(, $argument)*).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn by_envoy() {
                $test(Way::Envoy $(, $argument)*).await;
            }
        }
    };
}

by_both!(openai_python_works_unchanged_and_waits_as_told, through_a_gateway("openai_chat.py", ONE_AT_A_TIME, "/v1", 4));

by_both!(openai_python_speaks_the_other_apis_unchanged, through_a_gateway("openai_apis.py", ROOMY, "/v1", 7));

by_both!(anthropic_python_works_unchanged, through_a_gateway("anthropic_messages.py", ROOMY, "", 3));

by_both!(what_a_gateway_refuses_raises_its_class, provoke());

by_both!(every_refusal_raises_its_class_and_the_sdks_wait_or_give_up_as_told, from_the_table());

/// A gateway that knows the key `sk-acme`, and refuses what is large.
fn limits() -> Setup {
    use sha2::Digest as _;
    let hex: String = sha2::Sha256::digest(b"sk-acme").iter().map(|byte| format!("{byte:02x}")).collect();
    let files = vec![("keys.yaml", format!("keys: [{{sha256: {hex}, tenant: acme}}]\n"))];
    let policy = "identity: {tenant: [{api_key: keys.yaml}], class_not_granted: refuse}\n\
        pools: [{name: chat, models: ['demo'], window: {requests: 1}, queue: {requests: 1}, max_request_tokens: 400}]";
    Setup { door: Door { body_most: Bytes::new(5_000), ..Door::default() }, files, ..Setup::policy(policy) }
}

/// Everything a real gateway refuses, provoked.
async fn provoke(way: Way) {
    let (gateway, engine) = over_the_engine(limits()).await;
    let Some((address, _front)) = reach(way, &gateway, engine).await else { return };
    let say = |address: SocketAddr, phase: &str| [format!("http://{address}"), phase.to_owned()];
    if !run("provoked.py", &say(address, "limits")).await {
        return;
    }
    gateway.ended().await;
    gateway.gate().start_draining().expect("not broken");
    run("provoked.py", &say(address, "draining")).await;
    let gate = gateway.gate().clone();
    let fault = tokio::task::spawn_blocking(move || gate.look(|_| panic!("on purpose")).unwrap_or(()));
    assert!(fault.await.is_err());
    run("provoked.py", &say(address, "broken")).await;

    let (gateway, engine) = over_the_engine(Setup::policy(ONE_AT_A_TIME)).await;
    let (address, _front) = reach(way, &gateway, engine).await.expect("there is one");
    run("provoked.py", &say(address, "full")).await;
    gateway.ended().await;

    let shut = Shut::start();
    let silent = Upstream::start().await;
    for (upstream, phase) in [(shut.address(), "unreachable"), (silent.address(), "silent")] {
        let door = Door { begin_within: Span::from_millis(300), ..Door::default() };
        let gateway = Setup { door, ..Setup::policy(ROOMY) }.start(&format!("http://{upstream}")).await;
        let (address, _front) = reach(way, &gateway, upstream).await.expect("there is one");
        run("provoked.py", &say(address, phase)).await;
        gateway.ended().await;
    }
}

/// Every row of the table of answers, with waits that no test has the time to provoke.
async fn from_the_table(way: Way) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("an address");
    let address = listener.local_addr().expect("bound");
    match way {
        Way::Proxy | Way::Layer => {
            let serving = tokio::spawn(async move {
                while let Ok((stream, _)) = listener.accept().await {
                    tokio::spawn(refuse(stream));
                }
            });
            run("refusals.py", &[format!("http://{address}")]).await;
            serving.abort();
        }
        Way::Authz => panic!("what an SDK sees of a refusal through Envoy is shown with ext_proc"),
        Way::Envoy | Way::BodyFree => {
            let incoming = tonic::transport::server::TcpIncoming::from(listener);
            let service = ExternalProcessorServer::new(Refusing);
            let serving =
                tokio::spawn(tonic::transport::Server::builder().add_service(service).serve_with_incoming(incoming));
            // It answers everything itself, so nothing goes upstream; and nobody asks for its health.
            if let Some(front) = Front::asking(Config::ExtProc, address, address, |config| config).await {
                run("refusals.py", &[format!("http://{}", front.address())]).await;
            }
            serving.abort();
        }
    }
}

/// Answers Envoy from the table, as the model's name in each body asks.
struct Refusing;

#[tonic::async_trait]
impl ExternalProcessor for Refusing {
    type ProcessStream = std::pin::Pin<Box<dyn Stream<Item = Result<pb::ProcessingResponse, tonic::Status>> + Send>>;

    async fn process(
        &self,
        request: tonic::Request<tonic::Streaming<pb::ProcessingRequest>>,
    ) -> Result<tonic::Response<Self::ProcessStream>, tonic::Status> {
        let mut path = String::new();
        let answers = request.into_inner().map(move |asked| {
            let said = match asked?.request {
                Some(Asked::RequestHeaders(headers)) => {
                    let mut headers = headers.headers.unwrap_or_default().headers.into_iter();
                    let found = headers.find(|header| header.key == ":path").expect("a path");
                    path = String::from_utf8(found.raw_value).expect("readable");
                    Said::RequestHeaders(pb::HeadersResponse::default())
                }
                Some(Asked::RequestBody(body)) => {
                    let (head, body) = answer(&body.body, &path).into_parts();
                    let option = |(name, value): (&http::HeaderName, &http::HeaderValue)| core::HeaderValueOption {
                        header: Some(core::HeaderValue {
                            key: name.to_string(),
                            value: String::new(),
                            raw_value: value.as_bytes().to_owned(),
                        }),
                        ..Default::default()
                    };
                    let set_headers = head.headers.iter().map(option).collect();
                    Said::ImmediateResponse(pb::ImmediateResponse {
                        status: Some(HttpStatus { code: head.status.as_u16().into() }),
                        headers: Some(pb::HeaderMutation { set_headers, remove_headers: Vec::new() }),
                        body: body.into_bytes(),
                        ..Default::default()
                    })
                }
                other => return Err(tonic::Status::invalid_argument(format!("{other:?}"))),
            };
            Ok(pb::ProcessingResponse { response: Some(said), ..Default::default() })
        });
        Ok(tonic::Response::new(Box::pin(answers)))
    }
}

/// The row of the table that a body asks for.
fn answer(body: &[u8], path: &str) -> http::Response<String> {
    let body: Value = serde_json::from_slice(body).expect("the SDKs send JSON");
    let (reason, wait) = body["model"].as_str().and_then(|model| model.split_once(' ')).expect("what to answer");
    let refused = refusal(reason, Span::from_secs(wait.parse().expect("seconds")));
    let decision = DecisionId { epoch: 1, request: RequestId::new(7) };
    refused.answer(decision, Instant::EPOCH, Voice::of(path, &http::HeaderMap::new()))
}

/// Answers a request from the table, as its model's name asks.
async fn refuse(mut stream: TcpStream) {
    let mut held = Vec::new();
    let end = loop {
        if let Some(end) = held.windows(4).position(|window| window == b"\r\n\r\n") {
            break end + 4;
        }
        if stream.read_buf(&mut held).await.unwrap_or(0) == 0 {
            return;
        }
    };
    let head = String::from_utf8_lossy(&held[..end]).to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.trim().parse().ok());
    let length: usize = length.unwrap_or(0);
    while held.len() < end + length {
        if stream.read_buf(&mut held).await.unwrap_or(0) == 0 {
            return;
        }
    }
    let path = head.split(' ').nth(1).expect("a path");
    let answer = answer(&held[end..end + length], path);
    let mut text = format!("HTTP/1.1 {} \r\nconnection: close\r\n", answer.status().as_u16());
    for (name, value) in answer.headers() {
        text.push_str(&format!("{name}: {}\r\n", value.to_str().expect("readable")));
    }
    text.push_str(&format!("content-length: {}\r\n\r\n{}", answer.body().len(), answer.body()));
    // A client that is gone has its answer.
    drop(stream.write_all(text.as_bytes()).await);
}

/// A row of the table of answers.
fn refusal(reason: &str, wait: Span) -> Refused {
    let (level, unit) = (Level::Tenant, Unit::Requests);
    let by_core = match reason {
        "queue_full" => Reason::QueueFull { level, unit, cap: 10, queued: 10, asked: 1, displaced: false },
        "wait_too_long" => Reason::WaitTooLong { predicted: wait, allowed: Span::from_secs(1) },
        "expired" => Reason::Expired { waited: wait },
        "retry_budget" => Reason::RetryBudget { retries: 12, allowed: 12 },
        "breaker_tripped" => Reason::BreakerTripped { level: Level::Pool, left: wait },
        "rate_limited" => Reason::RateLimited {
            rule: Rule::Limit(0),
            per: Per::Tenant,
            measure: Measure::Tokens,
            asked: Amount::from_parts(200),
            left: Amount::from_parts(50),
            burst: Amount::from_parts(1_000),
        },
        "budget_spent" => Reason::BudgetSpent {
            rule: Rule::Budget(0),
            per: Per::Tenant,
            measure: Measure::Money,
            asked: Amount::from_parts(2_000_000_000_000),
            left: Amount::from_parts(-5),
            amount: Amount::from_parts(100_000_000_000_000),
        },
        "draining" => Reason::Draining,
        "too_large" => Reason::TooLarge { tokens: Tokens::new(9), most: Tokens::new(5) },
        "body_too_large" => return Refused::BodyTooLarge { most: Bytes::new(9) },
        "unidentified" => return Refused::Unidentified("send an API key".into()),
        "malformed" => return Refused::Malformed("model is missing".into()),
        "unsupported" => return Refused::Unsupported("background: true is not supported".into()),
        "class_not_granted" => {
            return Refused::ClassNotGranted { wished: "vip".into(), granted: "standard".into() };
        }
        "model_not_found" => return Refused::ModelNotFound("m".into()),
        "upstream_unreachable" => return Refused::UpstreamUnreachable("it cannot be reached".into()),
        "upstream_timed_out" => return Refused::UpstreamTimedOut("it did not answer".into()),
        "internal" => return Refused::Internal,
        other => panic!("no row {other:?}"),
    };
    let (pool, class) = (PoolIndex::new(0), ClassIndex::new(0));
    let subject = Subject { pool, class, tenant: TenantId::from("acme"), session: None };
    let retry = if wait == Span::ZERO { Retry::Never } else { Retry::At(Instant::EPOCH + wait) };
    Refused::ByCore(Box::new(Refusal {
        request: RequestId::new(7),
        subject,
        reason: by_core,
        retry,
        left: Left::default(),
    }))
}
