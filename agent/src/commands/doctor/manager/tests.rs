//! Every failure of the connection, with real sockets.

use std::sync::Arc;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;

use super::*;

/// The server behind the port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ServerKind {
    /// A manager that accepts the token `good`.
    Manager,
    /// A manager that cannot write its database.
    Degraded,
    /// A web server.
    Web,
    /// A server without HTTP.
    Ssh,
}

/// Starts the server, with TLS if there is an acceptor, and returns its port.
async fn start(answers: ServerKind, tls: Option<TlsAcceptor>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    // Ends with the test's runtime.
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let tls = tls.clone();
            tokio::spawn(async move {
                match tls {
                    None => serve(answers, stream).await,
                    Some(tls) => {
                        if let Ok(stream) = tls.accept(stream).await {
                            serve(answers, stream).await;
                        }
                    }
                }
            });
        }
    });
    port
}

async fn serve(
    answers: ServerKind,
    mut stream: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
) {
    if answers == ServerKind::Ssh {
        stream.write_all(b"SSH-2.0-OpenSSH_9.9\r\n").await.ok();
        return;
    }
    let mut bytes = Vec::new();
    while !bytes.windows(4).any(|end| end == b"\r\n\r\n") {
        let more = stream.read_buf(&mut bytes).await.is_ok_and(|length| length > 0);
        // A TLS handshake cannot be an HTTP request.
        if !more || bytes.starts_with(&[0x16]) {
            return;
        }
    }
    let request = String::from_utf8_lossy(&bytes).to_lowercase();
    let version = env!("CARGO_PKG_VERSION");
    let (status, body) = match answers {
        ServerKind::Web | ServerKind::Ssh => (200, "<html>It works!</html>".to_owned()),
        ServerKind::Manager | ServerKind::Degraded if request.starts_with("post ") => {
            (if request.contains("bearer good\r\n") { 400 } else { 401 }, "{}".to_owned())
        }
        ServerKind::Manager => (200, format!(r#"{{"status": "ok", "version": "{version}"}}"#)),
        ServerKind::Degraded => {
            let body = r#"{"status": "degraded", "version": "VERSION", "reason": "disk full"}"#;
            (503, body.replace("VERSION", version))
        }
    };
    let length = body.len();
    let head = format!("HTTP/1.1 {status} x\r\nContent-Length: {length}\r\nConnection: close");
    let date = "Date: Sun, 06 Nov 1994 08:49:37 GMT";
    stream.write_all(format!("{head}\r\n{date}\r\n\r\n{body}").as_bytes()).await.ok();
}

fn spec(url: String, token_file: Option<PathBuf>, ca_file: Option<PathBuf>) -> ManagerSpec {
    ManagerSpec { address: Some(ManagerAddress::Url(url)), token_file, ca_file }
}

/// Returns the first hop with a problem, except the clock, because the server's clock is always wrong.
fn first_problem(checks: &[Check]) -> Option<(&'static str, CheckState)> {
    let trouble = |check: &&Check| {
        check.name != "clock" && matches!(check.state, CheckState::Fail | CheckState::Warn)
    };
    checks.iter().find(trouble).map(|check| (check.name, check.state))
}

#[tokio::test]
async fn the_failed_hop_is_named_and_later_hops_are_skipped() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        Some(path)
    };
    let (good, bad) = (file("good", "good\n"), file("bad", "bad\n"));
    let absent = Some(dir.path().join("absent"));
    let on = |port: u16| format!("http://127.0.0.1:{port}");
    let up = on(start(ServerKind::Manager, None).await);
    let degraded = on(start(ServerKind::Degraded, None).await);
    let web = on(start(ServerKind::Web, None).await);
    let ssh = on(start(ServerKind::Ssh, None).await);
    // The listener is closed.
    let closed = on(TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port());
    let (fail, warn) = (CheckState::Fail, CheckState::Warn);
    #[rustfmt::skip]
    let table = [
        ("all is well",         up.clone(),                                     &good,   None),
        ("a path before it",    format!("{up}/proxied/"),                       &good,   None),
        ("no address",          "127.0.0.1:8080".to_owned(),                    &good,   Some(("address", fail))),
        ("another scheme",      "ftp://127.0.0.1".to_owned(),                   &good,   Some(("address", fail))),
        ("an unknown name",     "http://no-such-host.invalid:80".to_owned(),    &good,   Some(("name", fail))),
        ("refused",             closed,                                         &good,   Some(("route", fail))),
        ("no TLS there",        up.replace("http:", "https:"),                  &good,   Some(("TLS", fail))),
        ("a web server",        web,                                            &good,   Some(("manager", fail))),
        ("no HTTP",             ssh,                                            &good,   Some(("manager", fail))),
        ("a manager in need",   degraded,                                       &good,   Some(("manager", warn))),
        ("a bad token",         up.clone(),                                     &bad,    Some(("token", fail))),
        ("no token",            up.clone(),                                     &None,   Some(("token", warn))),
        ("no token file",       up,                                             &absent, Some(("token", fail))),
    ];
    for (case, url, token_file, trouble) in table {
        let checks = check(&spec(url, token_file.clone(), None)).await;
        assert_eq!(first_problem(&checks), trouble, "{case}: {checks:?}");
        let names: Vec<_> = checks.iter().map(|check| check.name).collect();
        assert_eq!(names, HOP_NAMES, "{case}: every hop has its line");
        if let Some((name, CheckState::Fail)) = trouble {
            let behind = checks.iter().skip_while(|check| check.name != name).skip(1);
            assert!(
                behind.clone().all(|check| check.state == CheckState::Skipped),
                "{case}: {checks:?}"
            );
        }
        for check in checks {
            let bad = matches!(check.state, CheckState::Fail | CheckState::Warn);
            assert_eq!(check.advice.is_some(), bad, "{case}: {check:?}");
        }
    }
}

#[tokio::test]
async fn certificates_of_unknown_authorities_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let other = rcgen::generate_simple_self_signed(["other".to_owned()]).unwrap();
    let file = |name: &str, text: String| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        Some(path)
    };
    let own_ca = file("own.pem", made.cert.pem());
    let other_ca = file("other.pem", other.cert.pem());
    let no_ca = file("no.pem", "nothing".to_owned());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let key = rustls::pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    let port = start(ServerKind::Manager, Some(TlsAcceptor::from(Arc::new(config)))).await;
    let token = file("good", "good".to_owned());
    let url = format!("https://127.0.0.1:{port}");
    #[rustfmt::skip]
    let table = [
        ("known",            own_ca,   None),
        ("another's",        other_ca, Some(("TLS", CheckState::Fail))),
        ("none in the file", no_ca,    Some(("TLS", CheckState::Fail))),
        ("the public ones",  None,     Some(("TLS", CheckState::Fail))),
    ];
    for (case, ca_file, trouble) in table {
        let checks = check(&spec(url.clone(), token.clone(), ca_file)).await;
        assert_eq!(first_problem(&checks), trouble, "{case}: {checks:?}");
    }
}

#[test]
fn small_clock_differences_are_allowed() {
    #[rustfmt::skip]
    let table = [
        (None,          CheckState::Skipped, ""),
        (Some(100_000), CheckState::Ok,      ""),
        (Some(104_000), CheckState::Ok,      ""),
        (Some(110_000), CheckState::Warn,    "10 s behind"),
        (Some(40_000),  CheckState::Warn,    "60 s ahead of"),
    ];
    for (manager_ms, state, finding) in table {
        let check = check_clock(manager_ms, 100_000);
        assert_eq!(check.state, state, "{manager_ms:?}");
        assert!(check.finding.contains(finding), "{}", check.finding);
    }
}

#[test]
fn another_version_is_a_warning() {
    let health = |body: &str| {
        Ok(HealthAnswer { status: StatusCode::OK, body: body.as_bytes().to_vec(), date_ms: None })
    };
    assert_eq!(
        check_manager(&health(r#"{"status": "ok", "version": "99.0.0"}"#)).state,
        CheckState::Warn
    );
    assert_eq!(check_manager(&health(r#"{"status": "ok"}"#)).state, CheckState::Fail);
}
