//! What the gateway's memory comes to at size: `cargo bench --bench bounds`.
//!
//! Starts the real binary in front of an upstream that holds or answers at once, and asks the kernel what the process
//! occupies: idle, with 10,000 requests queued, after 100,000 tenants and 100,000 invented sessions, and with more
//! 25 MB bodies on their way than may be held. `docs/limits.md` quotes what it prints.

#![expect(clippy::print_stdout, reason = "this prints its result")]
#![expect(clippy::disallowed_methods, reason = "it polls another process, and has no worker to block")]

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

const QUEUED: usize = 10_000;
const NAMES: usize = 100_000;
const BODIES: usize = 60;
const BODY: usize = 25_000_000;

/// One slot, and queues that only memory bounds.
const POLICY: &str = "version: 1
classes: [{name: standard, rank: 0}]
default_class: standard
tenants: [{match: '*'}]
pools:
  - name: chat
    models: ['*']
    window: {requests: 1}
    max_request_tokens: 1000000000
    queue: {requests: 1000000, tokens: 100000000000, bytes: 100000000000, per_tenant_requests: 1000000, per_session_requests: 1000000}
";

fn main() -> io::Result<()> {
    let upstream = Upstream::start()?;
    let gateway = Gateway::start(upstream.address)?;
    let idle = gateway.resident()?;
    println!("idle                                            {}", shown(idle));

    queued(&gateway, &upstream, idle)?;
    named(&gateway, "100,000 tenants, one request each", |name| format!("x-tenant-id: tenant-{name}\r\n"))?;
    named(&gateway, "100,000 sessions of one tenant", |name| format!("x-session-id: session-{name}\r\n"))?;
    large(&gateway, &upstream)
}

/// Ten thousand clients wait, and leave.
fn queued(gateway: &Gateway, upstream: &Upstream, idle: u64) -> io::Result<()> {
    upstream.hold(true);
    let body = format!(
        r#"{{"model":"m","max_tokens":100,"messages":[{{"role":"user","content":"{}"}}]}}"#,
        "word ".repeat(200)
    );
    let clients: Vec<TcpStream> = (0..=QUEUED).map(|_| gateway.post("", body.as_bytes())).collect::<io::Result<_>>()?;
    gateway.until_queued(|queued| queued == QUEUED)?;
    let full = gateway.resident()?;
    let each = (full - idle) / QUEUED as u64;
    println!("10,000 requests of 1 kB queued, a connection each {} ({each} bytes each)", shown(full));
    let left = Instant::now();
    drop(clients);
    gateway.until_queued(|queued| queued == 0)?;
    println!("their clients gone from the queue after         {:.2} s", left.elapsed().as_secs_f64());
    upstream.hold(false);
    Ok(())
}

/// A hundred thousand names, each heard of once.
fn named(gateway: &Gateway, what: &str, header: impl Fn(usize) -> String + Sync) -> io::Result<()> {
    const CLIENTS: usize = 16;
    let before = gateway.resident()?;
    let body = br#"{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"x"}]}"#;
    let header = &header;
    thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                scope.spawn(move || -> io::Result<()> {
                    let mut connection = BufReader::new(gateway.connect()?);
                    for name in (client..NAMES).step_by(CLIENTS) {
                        write_post(connection.get_mut(), &header(name), body)?;
                        let status = read_answer(&mut connection)?;
                        assert_eq!(status, 200, "let through");
                    }
                    Ok(())
                })
            })
            .collect();
        clients.into_iter().try_for_each(|client| client.join().expect("a client does not panic"))
    })?;
    let after = gateway.resident()?;
    println!("{what:<47} {} ({:+} MiB)", shown(after), mib(after) - mib(before));
    Ok(())
}

/// More large bodies than may be held.
fn large(gateway: &Gateway, upstream: &Upstream) -> io::Result<()> {
    upstream.hold(true);
    let head = br#"{"model":"m","max_tokens":1,"messages":[{"role":"user","content":""#;
    let mut body = head.to_vec();
    body.resize(BODY - 4, b'x');
    body.extend_from_slice(b"\"}]}");
    let body = Arc::new(body);
    let refused = Arc::new(Mutex::new(0));
    for _ in 0..BODIES {
        let (mut connection, body, refused) = (gateway.connect()?, body.clone(), refused.clone());
        thread::spawn(move || {
            // A refusal may close the connection while the body is still being sent.
            drop(write_post(&mut connection, "", &body));
            if read_answer(&mut BufReader::new(connection)).is_ok_and(|status| status == 429) {
                *refused.lock().expect("nobody panics with it") += 1;
            }
        });
    }
    let refusals = || *refused.lock().expect("nobody panics with it");
    let mut held = 0;
    gateway.until_queued(|queued| {
        held = queued;
        queued + 1 + refusals() >= BODIES
    })?;
    println!("60 bodies of 25 MB at once: held                {} and {} refused 429", held + 1, refusals());
    println!(
        "resident then, and at most ever                 {}, {}",
        shown(gateway.resident()?),
        shown(gateway.peak()?)
    );
    Ok(())
}

struct Gateway {
    child: Child,
    proxy: SocketAddr,
    admin: SocketAddr,
}

impl Gateway {
    fn start(upstream: SocketAddr) -> io::Result<Self> {
        let folder = std::env::temp_dir().join(format!("tallygate-bounds-{}", std::process::id()));
        fs::create_dir_all(&folder)?;
        let policy = folder.join("policy.yaml");
        fs::write(&policy, POLICY)?;
        let free = || TcpListener::bind("127.0.0.1:0")?.local_addr();
        let (proxy, admin) = (free()?, free()?);
        let child = Command::new(env!("CARGO_BIN_EXE_tallygate"))
            .args(["serve", "--grpc", "127.0.0.1:0", "--policy"])
            .arg(&policy)
            .args(["--proxy", &proxy.to_string(), "--admin", &admin.to_string()])
            .args(["--upstream", &format!("http://{upstream}")])
            .env("RUST_LOG", "error")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()?;
        let gateway = Self { child, proxy, admin };
        let began = Instant::now();
        while TcpStream::connect(gateway.admin).is_err() {
            assert!(began.elapsed() < Duration::from_secs(30), "the gateway starts");
            thread::sleep(Duration::from_millis(20));
        }
        Ok(gateway)
    }

    fn connect(&self) -> io::Result<TcpStream> {
        TcpStream::connect(self.proxy)
    }

    /// Sends a request, and does not wait for the answer.
    fn post(&self, headers: &str, body: &[u8]) -> io::Result<TcpStream> {
        let mut connection = self.connect()?;
        write_post(&mut connection, headers, body)?;
        Ok(connection)
    }

    fn until_queued(&self, mut enough: impl FnMut(usize) -> bool) -> io::Result<()> {
        let began = Instant::now();
        loop {
            let mut connection = TcpStream::connect(self.admin)?;
            connection.write_all(b"GET /v1/queues HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")?;
            let mut answer = String::new();
            connection.read_to_string(&mut answer)?;
            let queued = answer.split("\"queued_requests\":").skip(1).filter_map(|rest| {
                rest.trim_start().split(|letter: char| !letter.is_ascii_digit()).next()?.parse::<usize>().ok()
            });
            if enough(queued.sum()) {
                return Ok(());
            }
            assert!(began.elapsed() < Duration::from_secs(120), "waited two minutes: {answer}");
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn status(&self, key: &str) -> io::Result<u64> {
        let text = fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = text.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_default();
        let kib = line.trim_matches(|letter: char| !letter.is_ascii_digit()).parse::<u64>();
        kib.map(|kib| kib * 1024).map_err(|_| io::Error::other(format!("{key} is not in {text}")))
    }

    fn resident(&self) -> io::Result<u64> {
        self.status("VmRSS:")
    }

    fn peak(&self) -> io::Result<u64> {
        self.status("VmHWM:")
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Answers every request at once, or none.
struct Upstream {
    address: SocketAddr,
    holding: Arc<(Mutex<bool>, Condvar)>,
}

impl Upstream {
    fn start() -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let (address, holding) = (listener.local_addr()?, Arc::new((Mutex::new(false), Condvar::new())));
        let shared = holding.clone();
        thread::spawn(move || {
            for connection in listener.incoming().map_while(Result::ok) {
                let holding = shared.clone();
                thread::spawn(move || serve(connection, &holding));
            }
        });
        Ok(Self { address, holding })
    }

    fn hold(&self, hold: bool) {
        let (holding, changed) = &*self.holding;
        *holding.lock().expect("nobody panics with it") = hold;
        changed.notify_all();
    }
}

fn serve(connection: TcpStream, (holding, changed): &(Mutex<bool>, Condvar)) -> io::Result<()> {
    const ANSWER: &[u8] = br#"{"usage":{"prompt_tokens":8,"completion_tokens":1}}"#;
    let mut connection = BufReader::new(connection);
    loop {
        let (first, length) = read_head(&mut connection)?;
        if first.is_empty() {
            return Ok(());
        }
        io::copy(&mut (&mut connection).take(length), &mut io::sink())?;
        let guard = changed.wait_while(holding.lock().expect("nobody panics with it"), |holding| *holding);
        drop(guard.expect("nobody panics with it"));
        let head =
            format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n", ANSWER.len());
        connection.get_mut().write_all(&[head.as_bytes(), ANSWER].concat())?;
    }
}

fn write_post(connection: &mut TcpStream, headers: &str, body: &[u8]) -> io::Result<()> {
    let length = body.len();
    let head = format!("POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n{headers}content-length: {length}\r\n\r\n");
    connection.write_all(head.as_bytes())?;
    connection.write_all(body)
}

fn read_answer(connection: &mut BufReader<TcpStream>) -> io::Result<u16> {
    let (first, length) = read_head(connection)?;
    io::copy(&mut connection.take(length), &mut io::sink())?;
    let status = first.split(' ').nth(1).and_then(|status| status.parse().ok());
    status.ok_or_else(|| io::Error::other(format!("no status in {first:?}")))
}

/// The first line, and the length of the body.
fn read_head(connection: &mut BufReader<TcpStream>) -> io::Result<(String, u64)> {
    let (mut first, mut length) = (String::new(), 0);
    connection.read_line(&mut first)?;
    loop {
        let mut line = String::new();
        if connection.read_line(&mut line)? == 0 || line == "\r\n" {
            return Ok((first, length));
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().map_err(io::Error::other)?;
        }
    }
}

fn shown(bytes: u64) -> String {
    format!("{} MiB", mib(bytes))
}

fn mib(bytes: u64) -> i64 {
    i64::try_from(bytes / 1024 / 1024).unwrap_or(i64::MAX)
}
