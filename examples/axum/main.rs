//! An axum server that admits requests to its own model fairly: `cargo run --example axum`, then
//!
//! ```text
//! curl http://127.0.0.1:3000/v1/chat/completions -H 'authorization: Bearer sk-acme' -H 'content-type: application/json' \
//!   -d '{"model": "echo", "messages": [{"role": "user", "content": "Hello"}]}' -i
//! ```
//!
//! The server finds out itself who calls, in a layer of its own in front of the admission layer; the policy's rules for
//! the tenant are not asked. The permit lives to the end of the answer's body, which here is a stream.

#![allow(clippy::print_stdout, reason = "an example shows where it listens")]

mod server;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    println!("http://{}/v1/chat/completions", listener.local_addr()?);
    axum::serve(listener, server::app(server::gate()?)).await?;
    Ok(())
}
