//! The official SDKs, unchanged, through a gateway over the simulated engine.

use std::process::Command;

use crate::door::Setup;

/// One request at a time, and no queue: a second request is refused at once.
const POLICY: &str = "pools: [{name: chat, models: ['demo'], window: {requests: 1}, queue: {requests: 0}}]";

#[tokio::test(flavor = "multi_thread")]
async fn openai_python_works_unchanged_and_waits_as_told() {
    let Some(python) = std::env::var_os("TALLYGATE_PYTHON") else {
        println!("SKIPPED: TALLYGATE_PYTHON does not name a Python with the openai package; tests/run makes one");
        return;
    };
    let gateway = Setup { demo: true, ..Setup::policy(POLICY) }.start("").await;
    let url = format!("http://{}/v1", gateway.app.proxy());
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/sdk/openai_chat.py");
    let running = tokio::task::spawn_blocking(move || Command::new(python).arg(script).arg(url).output());
    let output = running.await.expect("it runs").expect("the interpreter starts");
    let (said, complained) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    println!("{said}{complained}");
    assert!(output.status.success(), "{complained}");
    let (settled, outcomes) = gateway.ended().await;
    assert!(settled.is_positive());
    assert!(outcomes.get("completed").is_some_and(|completed| *completed >= 4), "{outcomes:?}");
}
