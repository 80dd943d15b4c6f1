//! A gRPC service of its own language behind the same gate: `cargo run --example tonic`.
//!
//! `embed.v1.Embedder/Embed` is in no dialect, so the server says itself what a call costs before it runs ([`Appraise`],
//! from the message in its body) and what it came to afterwards ([`Granted::used`]). A refusal reaches the client as
//! `RESOURCE_EXHAUSTED` with `grpc-retry-pushback-ms`. The service is written by hand here, as `tonic-build` would
//! generate it, so that the example needs no `protoc`.

#![allow(clippy::print_stdout, reason = "an example shows where it listens")]

mod server;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:50051").await?;
    println!("grpc://{}{}", listener.local_addr()?, server::EMBED);
    server::serve(listener, server::gate()?).await?;
    Ok(())
}
