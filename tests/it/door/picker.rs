//! The endpoint picker of the examples, and what it was asked.

#[path = "../../../examples/picker/picker.rs"]
mod example;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// A running picker. Dropping it stops it.
pub(crate) struct Picker {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<HashMap<String, String>>>>,
    serving: JoinHandle<()>,
}

impl Picker {
    /// Starts one that picks this endpoint for everything.
    pub(crate) async fn start(endpoint: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("an address");
        let address = listener.local_addr().expect("bound");
        let seen = Arc::new(Mutex::new(Vec::new()));
        let asked = {
            let seen = seen.clone();
            Arc::new(move |headers| seen.lock().expect("nobody panics with it").push(headers))
        };
        let serving = tokio::spawn(async move {
            example::serve(listener, endpoint, asked).await.expect("the picker serves");
        });
        Self { address, seen, serving }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The headers of the last request it was asked about.
    pub(crate) fn last(&self) -> HashMap<String, String> {
        self.seen.lock().expect("nobody panics with it").last().cloned().expect("it was asked")
    }

    /// How many requests it was asked about.
    pub(crate) fn asked(&self) -> usize {
        self.seen.lock().expect("nobody panics with it").len()
    }
}

impl Drop for Picker {
    fn drop(&mut self) {
        self.serving.abort();
    }
}
