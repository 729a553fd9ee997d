//! An HTTP/1.1 proxy between agents and manager that injects faults. It parses a message only to find its
//! end. Like most proxies, it forwards a request when it has received all of it. A request that an agent
//! keeps open reaches the manager after its last chunk.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::network_state::{Fault, NetworkState};
use crate::rng::Rng;

/// The time limit of the manager's answer. The manager may hold a poll for long.
const ANSWER_TIMEOUT: Duration = Duration::from_mins(1);

/// The proxy, which is cheap to clone. Its threads end with the process.
#[derive(Debug, Clone)]
pub struct FaultProxy(Arc<Shared>);

/// The fault of a request, if any.
struct RequestFault(Option<Fault>);

#[derive(Debug)]
struct Shared {
    port: u16,
    /// The file with the manager's address, or `None` before the manager is started.
    upstream: Mutex<Option<PathBuf>>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    network: NetworkState,
    /// The number of changes of `network`, so that a waiting thread notices a change.
    changes: u64,
    rng: Rng,
    /// Requests that will be repeated.
    delayed: Vec<Vec<u8>>,
    fault_counts: BTreeMap<Fault, u64>,
    passed: u64,
    compressed: u64,
    is_closed: bool,
}

impl FaultProxy {
    /// Listens on a free port, without faults.
    pub fn start(seed: u64) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback has ports");
        let port = listener.local_addr().expect("the listener has an address").port();
        let state = State {
            network: NetworkState::Healthy,
            changes: 0,
            rng: Rng::new(!seed),
            delayed: Vec::new(),
            fault_counts: BTreeMap::new(),
            passed: 0,
            compressed: 0,
            is_closed: false,
        };
        let proxy = Self(Arc::new(Shared {
            port,
            upstream: Mutex::new(None),
            state: Mutex::new(state),
            changed: Condvar::new(),
        }));
        let own = proxy.clone();
        std::thread::spawn(move || own.listen(listener));
        proxy
    }

    /// Returns the URL for agents. With `non_loopback`, the address is `0.0.0.0`: it leads to loopback, but
    /// does not look like a loopback address.
    pub fn url(&self, non_loopback: bool) -> String {
        format!("http://{}:{}", if non_loopback { "0.0.0.0" } else { "127.0.0.1" }, self.0.port)
    }

    /// Forwards requests to the manager whose address is in `file`. The file may change.
    pub fn forward_to(&self, file: &Path) {
        *self.0.upstream.lock().unwrap_or_else(PoisonError::into_inner) = Some(file.to_owned());
    }

    /// Sets the kind of faults. When the network becomes healthy, the delayed requests are sent.
    pub fn set_network_state(&self, network: NetworkState) {
        let delayed = {
            let mut state = self.lock();
            state.network = network;
            state.changes += 1;
            if network == NetworkState::Healthy {
                std::mem::take(&mut state.delayed)
            } else {
                Vec::new()
            }
        };
        self.0.changed.notify_all();
        self.wake_listener();
        for request in delayed {
            self.send_again(request);
        }
    }

    /// Returns the number of requests per fault, and the number of requests without one.
    pub fn fault_counts(&self) -> (BTreeMap<Fault, u64>, u64) {
        let state = self.lock();
        (state.fault_counts.clone(), state.passed)
    }

    /// Returns the number of compressed requests.
    pub fn compressed_requests(&self) -> u64 {
        self.lock().compressed
    }

    /// Closes the proxy.
    pub fn close(&self) {
        self.lock().is_closed = true;
        self.0.changed.notify_all();
        self.wake_listener();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the listener, so that it reads the state of the network.
    fn wake_listener(&self) {
        drop(TcpStream::connect((Ipv4Addr::LOCALHOST, self.0.port)));
    }

    fn listen(self, listener: TcpListener) {
        let mut listener = Some(listener);
        loop {
            let mut state = self.lock();
            while state.network == NetworkState::Refusing && !state.is_closed {
                listener = None;
                state = self.0.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            if state.is_closed {
                return;
            }
            drop(state);
            let open = match listener.take() {
                Some(open) => open,
                None => match TcpListener::bind((Ipv4Addr::LOCALHOST, self.0.port)) {
                    Ok(open) => open,
                    Err(_) => {
                        // A connection may use the port for a moment.
                        std::thread::park_timeout(Duration::from_millis(5));
                        continue;
                    }
                },
            };
            if let Ok((stream, _)) = open.accept() {
                let own = self.clone();
                // Ignored: after any error, the agent tries again.
                std::thread::spawn(move || drop(own.handle_connection(stream)));
            }
            listener = Some(open);
        }
    }

    /// Handles the requests of one connection, in order.
    fn handle_connection(&self, mut agent: TcpStream) -> io::Result<()> {
        agent.set_nodelay(true)?;
        let mut kept = Vec::new();
        loop {
            let Some(head) = read_head(&mut agent, &mut kept)? else { return Ok(()) };
            let Some(RequestFault(fault)) = self.choose_fault() else { return Ok(()) };
            if fault == Some(Fault::ResetInBody) {
                let half = if is_chunked(&head) { 1 } else { body_length(&head) / 2 };
                read_until_length(&mut agent, &mut kept, half)?;
                // The kernel resets a connection whose socket is closed with unread data.
                return Ok(());
            }
            let length = read_body(&head, &mut agent, &mut kept)?;
            let rest = kept.split_off(length);
            self.lock().compressed += u64::from(is_compressed(&head));
            let request = [head, std::mem::replace(&mut kept, rest)].concat();
            match self.answer(fault, request, length)? {
                Some(answer) => agent.write_all(&answer)?,
                None => return agent.shutdown(Shutdown::Both),
            }
            if fault == Some(Fault::CutAck) {
                return agent.shutdown(Shutdown::Both);
            }
        }
    }

    /// Chooses the fault of a request. Returns `None` if the connection must end.
    fn choose_fault(&self) -> Option<RequestFault> {
        let mut state = self.lock();
        let fault = match state.network {
            NetworkState::Healthy => None,
            NetworkState::Refusing => return None,
            NetworkState::RandomFaults => {
                if state.rng.chance(50) {
                    Some(state.rng.pick(&Fault::ALL))
                } else {
                    None
                }
            }
            NetworkState::Always(fault) => Some(fault),
        };
        match fault {
            Some(fault) => *state.fault_counts.entry(fault).or_default() += 1,
            None => state.passed += 1,
        }
        let resent =
            (!state.delayed.is_empty() && state.rng.chance(30)).then(|| state.delayed.remove(0));
        drop(state);
        if let Some(request) = resent {
            self.send_again(request);
        }
        Some(RequestFault(fault))
    }

    /// Returns the answer to the agent, or `None` for no answer.
    fn answer(
        &self,
        fault: Option<Fault>,
        request: Vec<u8>,
        length: usize,
    ) -> io::Result<Option<Vec<u8>>> {
        let Some(fault) = fault else { return self.forward(&request).map(Some) };
        let replaced = fault.answer().map(|(status, header, body)| {
            let length = body.len();
            let kind = if body.starts_with('{') { "application/problem+json" } else { "text/html" };
            format!(
                "HTTP/1.1 {status}\r\n{header}content-type: {kind}\r\ncontent-length: {length}\r\n\r\n{body}"
            )
            .into_bytes()
        });
        match fault {
            Fault::LostAck => self.forward(&request).map(|_| None),
            Fault::Answer502AfterDelivery => {
                self.forward(&request)?;
                Ok(replaced)
            }
            Fault::CutAck => {
                let mut answer = self.forward(&request)?;
                answer.truncate(answer.len() - answer.len() / 3);
                Ok(Some(answer))
            }
            Fault::TornBody => {
                let mut manager = self.connect()?;
                manager.write_all(&request[..request.len() - length.div_ceil(2)])?;
                Ok(None)
            }
            Fault::SentTwice => {
                self.send_again(request.clone());
                self.forward(&request).map(Some)
            }
            Fault::SentAgainLater => {
                let answer = self.forward(&request)?;
                self.lock().delayed.push(request);
                Ok(Some(answer))
            }
            Fault::Delayed => {
                let wait = Duration::from_millis(self.lock().rng.between(5, 60));
                std::thread::park_timeout(wait);
                let answer = self.forward(&request);
                std::thread::park_timeout(wait / 2);
                answer.map(Some)
            }
            Fault::BlackHole => {
                self.wait_for_state_change();
                Ok(None)
            }
            Fault::Answer500
            | Fault::Answer503
            | Fault::Answer503WithoutRetryAfter
            | Fault::Answer429
            | Fault::Answer401
            | Fault::Answer413
            | Fault::MalformedAck
            | Fault::ResetInBody => Ok(replaced),
        }
    }

    fn wait_for_state_change(&self) {
        let mut state = self.lock();
        let now = state.changes;
        while state.changes == now && !state.is_closed {
            state = self.0.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn send_again(&self, request: Vec<u8>) {
        let own = self.clone();
        std::thread::spawn(move || drop(own.forward(&request)));
    }

    /// Sends a request to the manager and reads the answer.
    fn forward(&self, request: &[u8]) -> io::Result<Vec<u8>> {
        let mut manager = self.connect()?;
        manager.write_all(request)?;
        let mut kept = Vec::new();
        let Some(mut answer) = read_head(&mut manager, &mut kept)? else {
            return Err(io::ErrorKind::UnexpectedEof.into());
        };
        read_body(&answer, &mut manager, &mut kept)?;
        answer.extend_from_slice(&kept);
        Ok(answer)
    }

    fn connect(&self) -> io::Result<TcpStream> {
        let file = self.0.upstream.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let text = fs::read_to_string(file.ok_or(io::ErrorKind::NotConnected)?)?;
        let address = text.trim().trim_start_matches("http://");
        let address: SocketAddr = address.parse().map_err(io::Error::other)?;
        let manager = TcpStream::connect(address)?;
        manager.set_nodelay(true)?;
        manager.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        Ok(manager)
    }
}

/// Reads a message's head, including the empty line at its end. The bytes after it stay in `kept`. Returns
/// `None` at the end of the connection.
fn read_head(stream: &mut TcpStream, kept: &mut Vec<u8>) -> io::Result<Option<Vec<u8>>> {
    loop {
        if let Some(end) = kept.windows(4).position(|four| four == b"\r\n\r\n") {
            let rest = kept.split_off(end + 4);
            return Ok(Some(std::mem::replace(kept, rest)));
        }
        let mut chunk = [0; 16 << 10];
        let read = stream.read(&mut chunk)?;
        if read == 0 {
            return Ok(None);
        }
        kept.extend_from_slice(&chunk[..read]);
    }
}

/// Reads until `kept` contains the whole body. Returns its length in bytes, framing included (RFC 9112, 7.1).
fn read_body(head: &[u8], stream: &mut TcpStream, kept: &mut Vec<u8>) -> io::Result<usize> {
    if !is_chunked(head) {
        let length = body_length(head);
        return read_until_length(stream, kept, length).map(|()| length);
    }
    let mut length = 0;
    loop {
        let Some(line) = kept[length..].windows(2).position(|two| two == b"\r\n") else {
            let so_far = kept.len();
            read_until_length(stream, kept, so_far + 1)?;
            continue;
        };
        let size = std::str::from_utf8(&kept[length..length + line]).map_err(io::Error::other)?;
        let size = usize::from_str_radix(size, 16).map_err(io::Error::other)?;
        length += line + 2 + size + 2;
        read_until_length(stream, kept, length)?;
        if size == 0 {
            return Ok(length);
        }
    }
}

/// Reads until `kept` contains `length` bytes.
fn read_until_length(stream: &mut TcpStream, kept: &mut Vec<u8>, length: usize) -> io::Result<()> {
    while kept.len() < length {
        let mut chunk = [0; 16 << 10];
        let most = chunk.len().min(length - kept.len());
        let read = stream.read(&mut chunk[..most])?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        kept.extend_from_slice(&chunk[..read]);
    }
    Ok(())
}

fn header<'a>(head: &'a [u8], name: &str) -> Option<&'a str> {
    let text = std::str::from_utf8(head).ok()?;
    text.lines().find_map(|line| {
        let (found, value) = line.split_once(':')?;
        found.eq_ignore_ascii_case(name).then_some(value.trim())
    })
}

fn body_length(head: &[u8]) -> usize {
    header(head, "content-length").and_then(|value| value.parse().ok()).unwrap_or(0)
}

fn is_compressed(head: &[u8]) -> bool {
    header(head, "content-encoding") == Some("gzip")
}

fn is_chunked(head: &[u8]) -> bool {
    header(head, "transfer-encoding").is_some_and(|value| value.eq_ignore_ascii_case("chunked"))
}
