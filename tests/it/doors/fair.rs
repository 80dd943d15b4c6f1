//! Every configuration that is shipped starts on a real Envoy, and what passes through it is shared fairly: a tenant with
//! a few requests goes between those of one that asked for much before. Two hold nobody by nature: through the rate limit filter
//! one tenant's refusals are no other's, and the trial changes no order.

use serde_json::json;

use super::{ANSWER, chat};
use crate::door::{Chain, Config, IDENTITY, Setup};

/// What the hog asks for at once, and the light tenant after it.
const HOG: usize = 20;
const LIGHT: usize = 4;

/// The order in which requests reach the upstream, by tenant, one at a time.
async fn order(chain: &mut Chain) -> Vec<String> {
    let mut clients = Vec::new();
    for (tenant, count) in [("hog", HOG), ("light", LIGHT)] {
        for _ in 0..count {
            let mut client = chain.client().await;
            let mut body = chat(false);
            body["user"] = json!(tenant);
            client.chat(&chain.headers(tenant), &body).await;
            clients.push(client);
            chain.gateway.until("it is known", |seen| seen.engine.requests().len() == clients.len()).await;
        }
    }
    let mut order = Vec::new();
    for _ in 0..clients.len() {
        let mut exchange = chain.upstream.next().await;
        let sent: serde_json::Value = serde_json::from_slice(&exchange.body).expect("JSON");
        order.push(sent["user"].as_str().expect("a tenant").to_owned());
        exchange.answer("200 OK", ANSWER).await;
    }
    for mut client in clients {
        assert_eq!(client.answer().await.status, 200);
    }
    order
}

/// What a service that holds nobody can keep apart: whoever has spent its rate is refused, and nobody else is.
async fn refused_apart() -> Option<()> {
    let rate = LIGHT + 2;
    let policy = format!(
        "limits: [{{name: requests, per: tenant, requests: {rate}, every: 1h, when_exceeded: refuse}}]\n\
         rate_limit: [{{domain: llm, unmatched: pass, rules: [{{limit: requests, entries: [{{key: tenant, is: tenant}}]}}]}}]"
    );
    let mut chain = Chain::set(Config::RateLimit, Setup::policy(&policy), |text, _| text).await?;
    for (tenant, count) in [("hog", HOG), ("light", LIGHT)] {
        for at in 0..count {
            let mut client = chain.client().await;
            client.chat(&chain.headers(tenant), &chat(false)).await;
            if at < rate {
                chain.upstream.next().await.answer("200 OK", ANSWER).await;
            }
            let expected = if at < rate { 200 } else { 429 };
            assert_eq!(client.answer().await.status, expected, "{tenant}, request {at}");
        }
    }
    println!("rate_limit.yaml: {rate} of the hog's {HOG} and all of the light tenant's {LIGHT}");
    Some(())
}

#[tokio::test(flavor = "multi_thread")]
async fn every_shipped_configuration_shares_fairly() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/envoy");
    let shipped =
        std::fs::read_dir(folder).expect("the folder is there").map(|entry| entry.expect("a file").file_name());
    let mut shipped: Vec<String> = shipped.map(|name| name.into_string().expect("a name")).collect();
    shipped.sort();
    let mut known: Vec<&str> = Config::ALL.iter().map(|(_, file)| *file).collect();
    known.sort_unstable();
    assert_eq!(shipped, known, "a configuration is shipped that nothing here starts");

    for (config, file) in Config::ALL {
        let policy = format!(
            "{IDENTITY}classes: [{{name: standard, rank: 0, max_wait: 10m}}]\n\
             pools: [{{name: chat, models: ['*'], window: {{requests: 1}}}}]"
        );
        if config == Config::RateLimit {
            if refused_apart().await.is_none() {
                return;
            }
            continue;
        }
        let Some(mut chain) = Chain::set(config, Setup::policy(&policy), |text, _| text).await else { return };
        let order = order(&mut chain).await;
        let (_, outcomes) = chain.gateway.ended().await;
        assert_eq!(outcomes.get("completed"), Some(&((HOG + LIGHT) as u64)), "{file}: {outcomes:?}");
        let last = order.iter().rposition(|tenant| tenant == "light").expect("it was served");
        println!("{file}: {}", order.join(" "));
        if config == Config::Shadow {
            // Nothing is held: they go as they come, and only the books are as if.
            assert_eq!(last, HOG + LIGHT - 1, "{order:?}");
        } else {
            // One that ran, and then by turns.
            assert!(last <= 2 * LIGHT + 1, "{file}: the light tenant waits behind the hog: {order:?}");
        }
    }
}
