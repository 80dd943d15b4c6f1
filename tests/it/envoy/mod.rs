//! Through a real Envoy: what the proxy's tests say of the proxy holds of Envoy with Tallygate deciding.

mod crowd;
mod endings;
mod refusals;
mod same;

use crate::door::{Client, Exchange, Front, Gateway, Setup, Upstream, usual};
use crate::proxy::{chat, delta};

/// A gateway with the usual setup, its upstream, and an Envoy in front; nothing where there is no Envoy.
async fn fronted() -> Option<(Gateway, Upstream, Front)> {
    let (gateway, upstream) = usual().await;
    let front = Front::start(&gateway, upstream.address()).await?;
    Some((gateway, upstream, front))
}

/// A client whose streamed request has reached the upstream and got three tokens.
async fn streaming(front: &Front, upstream: &mut Upstream) -> (Client, Exchange) {
    let mut client = front.client().await;
    client.chat("", &chat(true)).await;
    let mut exchange = upstream.next().await;
    exchange.begin().await;
    exchange.chunk(&delta("one two three")).await;
    client.read_until("one two three").await;
    (client, exchange)
}

/// A gateway with this setup, its upstream, and an Envoy in front.
async fn fronted_as(setup: Setup) -> Option<(Gateway, Upstream, Front)> {
    let upstream = Upstream::start().await;
    let gateway = setup.start(&upstream.url()).await;
    let front = Front::start(&gateway, upstream.address()).await?;
    Some((gateway, upstream, front))
}
