//! The official SDKs, unchanged, through a gateway over the simulated engine, and against every refusal of the table.

use std::process::Command;

use serde_json::Value;
use tallygate::admission::{Level, Reason, Refusal, Retry, Subject, Unit};
use tallygate::units::{Bytes, ClassIndex, DecisionId, Instant, PoolIndex, RequestId, Span, TenantId, Tokens};
use tallygate::wire::answer::Refused;
use tallygate::wire::dialect::Voice;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::door::Setup;

/// One request at a time, and no queue: a second request is refused at once.
const ONE_AT_A_TIME: &str = "pools: [{name: chat, models: ['demo'], window: {requests: 1}, queue: {requests: 0}}]";

/// As many as there is room for.
const ROOMY: &str = "pools: [{name: all, models: ['demo']}]";

/// Runs a script of `tests/sdk` and returns whether there is a Python to run it.
async fn run(script: &str, argument: String) -> bool {
    let Some(python) = std::env::var_os("TALLYGATE_PYTHON") else {
        println!("SKIPPED: TALLYGATE_PYTHON does not name a Python with the SDKs; tests/run makes one");
        return false;
    };
    let script = format!("{}/tests/sdk/{script}", env!("CARGO_MANIFEST_DIR"));
    let running =
        tokio::task::spawn_blocking(move || Command::new(python).arg("-B").arg(script).arg(argument).output());
    let output = running.await.expect("it runs").expect("the interpreter starts");
    let (said, complained) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    println!("{said}{complained}");
    assert!(output.status.success(), "{complained}");
    true
}

/// Runs a script against a gateway over the simulated engine, and checks that so many requests completed.
async fn through_a_gateway(script: &str, policy: &str, path: &str, completed: u64) {
    let gateway = Setup { demo: true, ..Setup::policy(policy) }.start("").await;
    if run(script, format!("http://{}{path}", gateway.app.proxy())).await {
        let (settled, outcomes) = gateway.ended().await;
        assert!(settled.is_positive());
        assert!(outcomes.get("completed").is_some_and(|found| *found >= completed), "{outcomes:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn openai_python_works_unchanged_and_waits_as_told() {
    through_a_gateway("openai_chat.py", ONE_AT_A_TIME, "/v1", 4).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn openai_python_speaks_the_other_apis_unchanged() {
    through_a_gateway("openai_apis.py", ROOMY, "/v1", 7).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn anthropic_python_works_unchanged() {
    through_a_gateway("anthropic_messages.py", ROOMY, "", 3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_refusal_raises_its_class_and_the_sdks_wait_or_give_up_as_told() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("an address");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    let serving = tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(refuse(stream));
        }
    });
    run("refusals.py", url).await;
    serving.abort();
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
    let body: Value = serde_json::from_slice(&held[end..end + length]).expect("the SDKs send JSON");
    let (reason, wait) = body["model"].as_str().and_then(|model| model.split_once(' ')).expect("what to answer");
    let refused = refusal(reason, Span::from_secs(wait.parse().expect("seconds")));
    let path = head.split(' ').nth(1).expect("a path");
    let decision = DecisionId { epoch: 1, request: RequestId::new(7) };
    let answer = refused.answer(decision, Instant::EPOCH, Voice::of(path, &http::HeaderMap::new()));
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
    Refused::ByCore(Refusal { request: RequestId::new(7), subject, reason: by_core, retry })
}
