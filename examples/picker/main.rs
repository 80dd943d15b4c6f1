//! A small endpoint picker that speaks the contract of the Gateway API Inference Extension, to try
//! `deploy/envoy/picker.yaml` without a cluster: `cargo run --example picker -- 127.0.0.1:9002 127.0.0.1:8000` listens at
//! the first address and picks the second for everything.
//!
//! It takes bodies in FULL_DUPLEX_STREAMED mode, names its endpoint in the header and in the metadata `envoy.lb`, sends
//! everything on as it came, and reports at the end what it read of the answer's usage. The tests and the load test put it
//! behind Tallygate.

#![allow(clippy::print_stdout, reason = "an example shows where it listens")]

mod picker;

use std::net::SocketAddr;
use std::sync::Arc;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<SocketAddr> =
        std::env::args().skip(1).map(|address| address.parse()).collect::<Result<_, _>>()?;
    let [listen, endpoint] = arguments[..] else {
        return Err("usage: picker LISTEN ENDPOINT, both as ADDRESS:PORT".into());
    };
    let listener = tokio::net::TcpListener::bind(listen).await?;
    println!("picks {endpoint} for whoever asks at {}", listener.local_addr()?);
    picker::serve(listener, endpoint, Arc::new(|_headers| {})).await?;
    Ok(())
}
