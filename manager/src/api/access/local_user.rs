//! The user whose process is at the other end of a connection over the loopback interface. NNI's client sends no
//! token. A request of the manager's own user over this machine's loopback interface counts as the user's, because
//! that user's processes could also read the token's file.

use std::net::{IpAddr, SocketAddr};

use axum::http::header;
use axum::http::request::Parts;
use nix::unistd::geteuid;

use super::request_origin::{has_local_host, is_from_browser};

/// The two ends of a TCP connection without encryption, as an extension of its requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::api) struct Connection {
    /// The client's end.
    pub(in crate::api) client: SocketAddr,
    /// The manager's end.
    pub(in crate::api) server: SocketAddr,
}

impl Connection {
    /// Returns whether a process of the manager's own user holds the client's end. If this cannot be determined,
    /// returns `false`.
    pub(in crate::api) async fn is_of_own_user(self) -> bool {
        if !self.client.ip().to_canonical().is_loopback() {
            return false;
        }
        // The second table contains IPv6 sockets that carry IPv4.
        for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
            let Ok(text) = tokio::fs::read_to_string(table).await else { continue };
            if let Some(uid) = socket_owner(&text, self) {
                return uid == geteuid().as_raw();
            }
        }
        false
    }
}

/// Returns whether a program of the manager's own user sent the request directly: neither for a browser nor for the
/// client of a proxy.
pub(in crate::api) async fn is_of_own_user(parts: &Parts) -> bool {
    let headers = &parts.headers;
    let shows_nothing = !headers.contains_key(header::AUTHORIZATION);
    let is_direct =
        ["forwarded", "x-forwarded-for", "via"].iter().all(|name| !headers.contains_key(*name));
    if is_from_browser(headers) || !shows_nothing || !is_direct || !has_local_host(headers) {
        return false;
    }
    match parts.extensions.get::<Connection>() {
        Some(connection) => connection.is_of_own_user().await,
        None => false,
    }
}

/// PURE: returns the user id of the client's socket from the text of `/proc/net/tcp` or `/proc/net/tcp6`.
///
/// Source: `proc_pid_net(5)`: the columns are the number, both addresses, the state, four of queues and timers, the
/// uid. A closed socket that still waits belongs to uid 0, so only the state 01 (established) counts.
fn socket_owner(table: &str, connection: Connection) -> Option<u32> {
    let wanted = (canonical_address(connection.client), canonical_address(connection.server));
    table.lines().skip(1).find_map(|line| {
        let mut columns = line.split_ascii_whitespace().skip(1);
        let local = parse_address(columns.next()?)?;
        let remote = parse_address(columns.next()?)?;
        let is_established = columns.next()? == "01";
        let uid = columns.nth(3)?;
        let is_it =
            is_established && (canonical_address(local), canonical_address(remote)) == wanted;
        is_it.then(|| uid.parse().ok()).flatten()
    })
}

fn canonical_address(address: SocketAddr) -> (IpAddr, u16) {
    (address.ip().to_canonical(), address.port())
}

/// PURE: parses an address as the kernel prints it: words of 32 bits in the machine's own byte order, in hexadecimal
/// digits.
fn parse_address(text: &str) -> Option<SocketAddr> {
    let (host, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |at: usize| {
        let digits = host.get(at * 8..at * 8 + 8)?;
        u32::from_str_radix(digits, 16).ok().map(u32::to_ne_bytes)
    };
    let ip: IpAddr = match host.len() {
        8 => IpAddr::from(word(0)?),
        32 => {
            let mut bytes = [0; 16];
            for (at, part) in bytes.chunks_mut(4).enumerate() {
                part.copy_from_slice(&word(at)?);
            }
            IpAddr::from(bytes)
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The table as a kernel of a little-endian machine prints it.
    const SOCKET_TABLE: &str = "\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 26813 1 0000000000000000 100 0 0 10 0
   1: 0100007F:1F90 0100007F:D2F0 01 00000000:00000000 00:00000000 00000000     7        0 26820 1 0000000000000000 20 0 0 10 -1
   2: 0100007F:D2F0 0100007F:1F90 06 00000000:00000000 00:00000000 00000000     0        0 26819 1 0000000000000000 20 0 0 10 -1
   3: 0100007F:D2F0 0100007F:1F90 01 00000000:00000000 00:00000000 00000000  1000        0 26819 1 0000000000000000 20 0 0 10 -1
   4: 00000000000000000000000001000000:D2F2 00000000000000000000000001000000:1F90 01 00000000:00000000 00:00000000 00000000  1001        0 26819 1
   5: 0000000000000000FFFF00000100007F:D2F4 0000000000000000FFFF00000100007F:1F90 01 00000000:00000000 00:00000000 00000000  1002        0 26819 1
";

    #[test]
    #[cfg(target_endian = "little")]
    fn a_sockets_owner_is_found_by_both_ends() {
        #[rustfmt::skip]
        let table = [
            ("127.0.0.1:54000",        "127.0.0.1:8080", Some(1000)),
            ("[::1]:54002",            "[::1]:8080",     Some(1001)),
            ("127.0.0.1:54004",        "127.0.0.1:8080", Some(1002)),
            ("127.0.0.1:54000",        "127.0.0.1:8081", None),
            ("127.0.0.1:54001",        "127.0.0.1:8080", None),
        ];
        for (client, server, uid) in table {
            let connection =
                Connection { client: client.parse().unwrap(), server: server.parse().unwrap() };
            assert_eq!(socket_owner(SOCKET_TABLE, connection), uid, "{client}");
        }
    }

    #[tokio::test]
    async fn only_open_connections_of_the_own_user_are_recognised() {
        for host in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = tokio::net::TcpListener::bind(host).await else { continue };
            let client = tokio::net::TcpStream::connect(listener.local_addr().unwrap()).await;
            let client = client.unwrap();
            let (served, from) = listener.accept().await.unwrap();
            let connection = Connection { client: from, server: served.local_addr().unwrap() };
            assert!(connection.is_of_own_user().await, "{host}");
            let unknown = Connection { client: SocketAddr::new(from.ip(), 1), ..connection };
            assert!(!unknown.is_of_own_user().await);
            drop(client);
        }
    }

    proptest! {
        #[test]
        fn random_socket_tables_never_panic(text in "[ 0-9A-Fa-f:\n\u{e4}]{0,200}") {
            let any = "127.0.0.1:1".parse().unwrap();
            let _owner = socket_owner(&text, Connection { client: any, server: any });
            let _address = parse_address(&text);
        }
    }
}
