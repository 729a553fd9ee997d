//! Connections: the manager accepts them, bounds their number and their idle time, and encrypts them if configured.
//! When the manager stops, open requests get a short time to end.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use rustix::net::sockopt::set_tcp_user_timeout;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt as _;

use super::super::access::local_user::Connection;
use super::super::access::throttle::Peer;
use super::tls::Tls;

/// The maximum number of connections; more wait to be accepted. Each of 10,000 agents keeps at most two.
const MAX_CONNECTIONS: usize = 25_000;

/// The maximum number of connections from one address, which may be a proxy's, or a node's with many agents. The Unix
/// socket has no such limit: only the folder's owner reaches it.
const MAX_CONNECTIONS_OF_ADDRESS: usize = MAX_CONNECTIONS / 5;

/// The number of bytes of a response that a connection buffers, and the maximum size of a request's head.
const CONNECTION_BUFFER_BYTES: usize = 64 << 10;

/// The number of descriptors for other purposes than connections: files, the database, the agents' pipes.
const OTHER_DESCRIPTORS: u64 = 1_000;

/// The time in which a client must send a request's head, and the longest pause of a connection between two requests.
/// It is longer than an agent's heartbeat.
const IDLE_TIMEOUT: Duration = Duration::from_secs(75);

/// The time in which a client must complete the TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// The time that sent data may stay unacknowledged, because the client does not read or has vanished.
const UNACKNOWLEDGED_TIMEOUT: Duration = Duration::from_mins(1);

/// The time in which open requests may end when the manager stops.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// The pause before the next attempt to accept, for example if the system has no more descriptors.
const ACCEPT_RETRY_PAUSE: Duration = Duration::from_millis(100);

/// Serves without encryption until `shutdown`, then waits at most 5 s until open requests have ended.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    run(Listener::Tcp(listener), None, router, shutdown).await;
    Ok(())
}

/// Serves like [`serve`], but only with encryption.
pub async fn serve_tls(
    listener: TcpListener,
    tls: &Tls,
    router: Router,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    run(Listener::Tcp(listener), Some(tls.acceptor()), router, shutdown).await;
    Ok(())
}

/// Serves the owner of the experiment's folder on a Unix socket, which needs no encryption.
pub async fn serve_local(
    listener: UnixListener,
    router: Router,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    run(Listener::Unix(listener), None, router, shutdown).await;
    Ok(())
}

/// A socket that accepts connections.
enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// An accepted connection. With TCP, the address at its other end.
enum AcceptedConnection {
    Tcp(TcpStream, Peer),
    Unix(UnixStream),
}

async fn run(
    listener: Listener,
    tls: Option<TlsAcceptor>,
    router: Router,
    shutdown: impl Future<Output = ()>,
) {
    raise_descriptor_limit();
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let counts = ConnectionCounts::default();
    let graceful = GracefulShutdown::new();
    let mut connections = JoinSet::new();
    let mut shutdown = std::pin::pin!(shutdown);
    loop {
        let (accepted, place) = tokio::select! {
            biased; // A stop takes precedence over new connections.
            () = &mut shutdown => break,
            Some(_) = connections.join_next() => continue,
            accepted = accept(&listener, &places) => accepted,
        };
        let (tls, router, watcher) = (tls.clone(), router.clone(), graceful.watcher());
        match accepted {
            AcceptedConnection::Unix(stream) => {
                connections.spawn(async move {
                    serve_connection(stream, ConnectionOrigin::default(), router, watcher).await;
                    drop(place);
                });
            }
            AcceptedConnection::Tcp(stream, peer) => {
                // One address must not use up the places of all others.
                let Some(permit) = counts.admit(peer) else { continue };
                connections.spawn(async move {
                    handle_tcp(stream, peer, tls, router, watcher).await;
                    drop((place, permit));
                });
            }
        }
    }
    drop(listener);
    if timeout(DRAIN_TIMEOUT, graceful.shutdown()).await.is_err() {
        tracing::warn!("requests that did not end within {DRAIN_TIMEOUT:?} were cut off");
    }
    connections.shutdown().await;
}

/// Completes the TLS handshake if the connection is encrypted, then answers its requests.
async fn handle_tcp(
    stream: TcpStream,
    peer: Peer,
    tls: Option<TlsAcceptor>,
    router: Router,
    watcher: Watcher,
) {
    match tls {
        None => {
            let ends = stream.peer_addr().and_then(|client| Ok((client, stream.local_addr()?)));
            let connection = ends.ok().map(|(client, server)| Connection { client, server });
            serve_connection(
                stream,
                ConnectionOrigin { peer: Some(peer), connection },
                router,
                watcher,
            )
            .await;
        }
        Some(tls) => {
            // TLS itself reports a failed handshake to the client. No other client is affected.
            if let Ok(Ok(stream)) = timeout(HANDSHAKE_TIMEOUT, tls.accept(stream)).await {
                let origin = ConnectionOrigin { peer: Some(peer), connection: None };
                serve_connection(stream, origin, router, watcher).await;
            }
        }
    }
}

/// The connections of each address; cheap to clone.
#[derive(Debug, Clone, Default)]
struct ConnectionCounts(Arc<Mutex<HashMap<IpAddr, usize>>>);

/// An open connection of an address.
#[derive(Debug)]
struct ConnectionPermit {
    counts: ConnectionCounts,
    address: IpAddr,
}

impl ConnectionCounts {
    /// Counts another connection of the address. Returns `None` if the address has the maximum number.
    fn admit(&self, peer: Peer) -> Option<ConnectionPermit> {
        let address = peer.network();
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(address).or_default();
        if *count >= MAX_CONNECTIONS_OF_ADDRESS {
            return None;
        }
        *count += 1;
        Some(ConnectionPermit { counts: self.clone(), address })
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let mut counts = self.counts.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.address);
            }
        }
    }
}

/// Raises this process's limit of descriptors to one for each connection, as far as the system allows. The usual
/// limit of 1,024 is meant for programs that use `select`. Processes that the manager starts inherit the limit.
fn raise_descriptor_limit() {
    let own = getrlimit(Resource::Nofile);
    let connections = u64::try_from(MAX_CONNECTIONS).unwrap_or(u64::MAX);
    let wanted = connections.saturating_add(OTHER_DESCRIPTORS);
    let allowed = own.maximum.map_or(wanted, |most| most.min(wanted));
    if own.current.is_none_or(|current| current >= allowed) {
        return;
    }
    let raised = Rlimit { current: Some(allowed), maximum: own.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, "cannot raise the limit of descriptors; the number of connections stays limited");
    }
}

/// Waits for a free place, then for the next connection.
async fn accept(
    listener: &Listener,
    places: &Arc<Semaphore>,
) -> (AcceptedConnection, OwnedSemaphorePermit) {
    let place = Arc::clone(places).acquire_owned().await.expect("the semaphore is never closed");
    loop {
        let accepted = match listener {
            Listener::Unix(listener) => {
                listener.accept().await.map(|(stream, _)| AcceptedConnection::Unix(stream))
            }
            Listener::Tcp(listener) => listener.accept().await.map(|(stream, address)| {
                if let Err(error) = set_options(&stream) {
                    tracing::debug!(%error, "a connection closed before it began");
                }
                AcceptedConnection::Tcp(stream, Peer(address.ip()))
            }),
        };
        match accepted {
            Ok(accepted) => return (accepted, place),
            // The error affects only this connection. The next may follow at once.
            Err(error) if is_connection_error(&error) => {}
            Err(error) => {
                tracing::error!(%error, "cannot accept connections; trying again");
                sleep(ACCEPT_RETRY_PAUSE).await;
            }
        }
    }
}

fn set_options(stream: &TcpStream) -> io::Result<()> {
    // Responses are small and clients wait for them, so they must not be delayed to be combined.
    stream.set_nodelay(true)?;
    // Source: tcp(7), TCP_USER_TIMEOUT. The option also ends a connection whose window stays closed.
    let timeout_ms = u32::try_from(UNACKNOWLEDGED_TIMEOUT.as_millis()).expect("a minute fits");
    Ok(set_tcp_user_timeout(stream, timeout_ms)?)
}

fn is_connection_error(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

/// The origin of a connection's requests, which each request gets as extensions.
#[derive(Debug, Clone, Copy, Default)]
struct ConnectionOrigin {
    /// The client's address. `None` on the Unix socket.
    peer: Option<Peer>,
    /// The connection's ends. `None` on the Unix socket and with encryption.
    connection: Option<Connection>,
}

/// Answers the requests of one connection, one after the other.
async fn serve_connection<S>(stream: S, origin: ConnectionOrigin, router: Router, watcher: Watcher)
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let service = hyper::service::service_fn(move |mut request: hyper::Request<Incoming>| {
        origin.peer.map(|peer| request.extensions_mut().insert(peer));
        origin.connection.map(|connection| request.extensions_mut().insert(connection));
        router.clone().oneshot(request.map(Body::new))
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE_TIMEOUT)
        .max_buf_size(CONNECTION_BUFFER_BYTES)
        .serve_connection(TokioIo::new(stream), service);
    if let Err(error) = watcher.watch(connection).await {
        tracing::debug!(%error, "a connection ended early");
    }
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use rustls::pki_types::ServerName;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::sync::oneshot;

    use super::*;
    use crate::api::server::tls;

    fn router() -> Router {
        Router::new().route("/", get(|| async { "hello" }))
    }

    async fn ask(
        stream: &mut (impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin),
    ) -> String {
        stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"hello") {
            let mut part = [0; 1024];
            let read = stream.read(&mut part).await.unwrap();
            assert!(read > 0, "{}", String::from_utf8_lossy(&answer));
            answer.extend_from_slice(&part[..read]);
        }
        String::from_utf8(answer).unwrap()
    }

    #[tokio::test]
    async fn a_stop_closes_idle_connections_and_lets_requests_end() {
        let (arrived, seen) = oneshot::channel::<()>();
        let (release, gate) = oneshot::channel::<()>();
        let once = Arc::new(std::sync::Mutex::new(Some((arrived, gate))));
        let slow = get(move || async move {
            let (arrived, gate) = once.lock().unwrap().take().unwrap();
            arrived.send(()).unwrap();
            gate.await.unwrap();
            "hello"
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let router = router().route("/slow", slow);
        let server = tokio::spawn(serve(listener, router, async { stopped.await.unwrap() }));

        let mut resting = TcpStream::connect(address).await.unwrap();
        assert!(ask(&mut resting).await.starts_with("HTTP/1.1 200"));
        let mut busy = TcpStream::connect(address).await.unwrap();
        busy.write_all(b"GET /slow HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        seen.await.unwrap();
        stop.send(()).unwrap();
        assert_eq!(resting.read(&mut [0; 1]).await.unwrap(), 0, "an idle connection is closed");
        release.send(()).unwrap();
        let mut answer = String::new();
        busy.read_to_string(&mut answer).await.unwrap();
        assert!(answer.ends_with("hello"), "{answer}");
        server.await.unwrap().unwrap();
        assert!(TcpStream::connect(address).await.is_err());
    }

    /// Set in the process that raises its own limit.
    const CHILD_VARIABLE: &str = "TRIALKEEPER_TEST_DESCRIPTORS";

    #[test]
    fn the_limit_of_descriptors_is_raised_as_far_as_allowed() {
        if std::env::var_os(CHILD_VARIABLE).is_some() {
            return raise_own_limit();
        }
        // Runs only this test, in another process, because all tests of this one share the limit.
        let (_, module) = module_path!().split_once("::").unwrap();
        let test = format!("{module}::the_limit_of_descriptors_is_raised_as_far_as_allowed");
        let child = std::process::Command::new("sh")
            .args(["-c", "ulimit -S -n 512 && exec \"$0\" --exact \"$1\" --nocapture"])
            .arg(std::env::current_exe().unwrap())
            .arg(test)
            .env(CHILD_VARIABLE, "1")
            .output()
            .unwrap();
        let printed = String::from_utf8_lossy(&child.stdout);
        assert!(child.status.success() && printed.contains("1 passed"), "{printed}");
    }

    fn raise_own_limit() {
        let before = getrlimit(Resource::Nofile);
        assert_eq!(before.current, Some(512));
        let most = before.maximum.unwrap_or(u64::MAX);
        raise_descriptor_limit();
        let connections = u64::try_from(MAX_CONNECTIONS).unwrap();
        let current = getrlimit(Resource::Nofile).current.unwrap();
        assert!(current == most || current >= connections, "{current} of {most}");
    }

    #[tokio::test]
    async fn a_connection_without_a_request_is_closed() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tokio::spawn(serve(listener, router(), std::future::pending()));
        let mut silent = TcpStream::connect(address).await.unwrap();
        silent.write_all(b"GET / HTTP/1.1\r\nhost").await.unwrap();
        tokio::time::pause();
        // The test accepts any last response. It needs only the end of the connection.
        silent.read_to_end(&mut Vec::new()).await.unwrap();
        server.abort();
    }

    #[tokio::test]
    async fn a_connection_has_a_limit_for_unacknowledged_data() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let places = Arc::new(Semaphore::new(1));
        let listener = Listener::Tcp(listener);
        let (accepted, client) =
            tokio::join!(accept(&listener, &places), TcpStream::connect(address));
        let (AcceptedConnection::Tcp(stream, _), _place) = accepted else { unreachable!() };
        let most = rustix::net::sockopt::tcp_user_timeout(&stream).unwrap();
        assert_eq!(Duration::from_millis(most.into()), UNACKNOWLEDGED_TIMEOUT);
        drop(client);
    }

    #[test]
    fn the_connections_of_an_address_are_bounded() {
        let peer = |last| Peer([192, 0, 2, last].into());
        let counts = ConnectionCounts::default();
        let mut permits: Vec<_> =
            (0..MAX_CONNECTIONS_OF_ADDRESS).map(|_| counts.admit(peer(1)).unwrap()).collect();
        assert!(counts.admit(peer(1)).is_none());
        assert!(counts.admit(peer(2)).is_some());
        permits.pop();
        assert!(counts.admit(peer(1)).is_some(), "the place is free again");
        drop(permits);
        assert!(counts.0.lock().unwrap().is_empty(), "addresses without connections are removed");
    }

    #[tokio::test]
    async fn a_request_that_does_not_end_is_cut_off_by_a_stop() {
        let (arrived, mut seen) = tokio::sync::mpsc::unbounded_channel();
        let stuck = get(move || {
            arrived.send(()).unwrap();
            std::future::pending::<&'static str>()
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let router = router().route("/stuck", stuck);
        let server = tokio::spawn(serve(listener, router, async { stopped.await.unwrap() }));
        let mut stuck = TcpStream::connect(address).await.unwrap();
        stuck.write_all(b"GET /stuck HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        seen.recv().await.unwrap();
        tokio::time::pause();
        stop.send(()).unwrap();
        server.await.unwrap().unwrap();
        assert_eq!(stuck.read(&mut [0; 1]).await.unwrap(), 0);
    }

    #[tokio::test]
    async fn with_tls_only_clients_that_trust_the_certificate_are_served() {
        let folder = tempfile::tempdir().unwrap();
        let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
        let tls = Tls::load_or_create(folder.path(), &names).unwrap();
        let pinned = tls.ca_pem().unwrap().to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let server = tokio::spawn(async move {
            serve_tls(listener, &tls, router(), async { stopped.await.unwrap() }).await
        });

        let connect = async |ca: &str, name: &'static str| {
            let stream = TcpStream::connect(address).await.unwrap();
            let name = ServerName::try_from(name).unwrap();
            tls::connector(Some(ca)).unwrap().connect(name, stream).await
        };
        for name in ["localhost", "127.0.0.1"] {
            let mut stream = connect(&pinned, name).await.unwrap();
            assert!(ask(&mut stream).await.starts_with("HTTP/1.1 200"), "{name}");
        }
        assert!(connect(&pinned, "elsewhere.example").await.is_err());
        let other = tempfile::tempdir().unwrap();
        let other = Tls::load_or_create(other.path(), &names).unwrap();
        assert!(connect(other.ca_pem().unwrap(), "localhost").await.is_err());

        // A client without TLS gets no response, and does no harm.
        let mut plain = TcpStream::connect(address).await.unwrap();
        plain.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        let mut answer = Vec::new();
        drop(plain.read_to_end(&mut answer).await);
        assert!(!answer.starts_with(b"HTTP"));
        stop.send(()).unwrap();
        server.await.unwrap().unwrap();
    }
}
