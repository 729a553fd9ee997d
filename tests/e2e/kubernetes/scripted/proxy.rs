//! A cluster that can only be reached through a proxy (`proxy-url` in the kubeconfig, as with `ssh -D`
//! through a bastion).

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

use trialkeeper_tests::kube::{Behavior, Kube};
use trialkeeper_tests::{TestBed, WAIT_TIMEOUT};

use super::{TRIAL, search};

/// A name that only the proxy can resolve.
const PROXIED_HOST: &str = "cluster.invalid";

/// Starts a SOCKS 5 and HTTP proxy that connects to one address. It ends with the test's process.
fn start_proxy(to: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // Ignored: a client may disconnect.
            thread::spawn(move || forward_connection(stream, to).ok());
        }
    });
    address
}

fn forward_connection(stream: TcpStream, to: SocketAddr) -> std::io::Result<()> {
    let mut answer = stream.try_clone()?;
    let mut reader = BufReader::new(stream);
    if reader.fill_buf()?.first() == Some(&5) {
        let mut greeting = [0; 2];
        reader.read_exact(&mut greeting)?;
        reader.read_exact(&mut vec![0; greeting[1].into()])?;
        answer.write_all(&[5, 0])?;
        // A request to connect to a name.
        let mut request = [0; 5];
        reader.read_exact(&mut request)?;
        assert_eq!(request[..4], [5, 1, 0, 3]);
        let mut name = vec![0; usize::from(request[4]) + 2];
        reader.read_exact(&mut name)?;
        assert!(name.starts_with(PROXIED_HOST.as_bytes()));
        answer.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0])?;
    } else {
        let mut head = String::new();
        reader.read_line(&mut head)?;
        assert!(head.starts_with(&format!("CONNECT {PROXIED_HOST}:")), "{head}");
        while !head.trim().is_empty() {
            head.clear();
            reader.read_line(&mut head)?;
        }
        answer.write_all(b"HTTP/1.1 200 OK\r\n\r\n")?;
    }
    let mut server = TcpStream::connect(to)?;
    let mut answers = server.try_clone()?;
    thread::spawn(move || std::io::copy(&mut answers, &mut answer).ok());
    std::io::copy(&mut reader, &mut server)?;
    server.shutdown(std::net::Shutdown::Both)
}

#[test]
fn a_cluster_behind_a_proxy_is_reached() {
    let bed = TestBed::new();
    let kube = Kube::start(bed.folder(), |_| Behavior::Processes);
    let proxy = start_proxy(kube.address());
    let search = search(&bed, &kube, TRIAL, 1).write(&bed);
    let direct = bed.read("kubeconfig");
    let server = format!("server: 'http://{}'", kube.address());
    for scheme in ["http", "socks5"] {
        let proxied = format!("server: 'http://{PROXIED_HOST}', proxy-url: '{scheme}://{proxy}'");
        bed.write("kubeconfig", &direct.replace(&server, &proxied));
        assert_ne!(bed.read("kubeconfig"), direct);
        let mut doctor = bed.manager_command();
        // `NO_PROXY` is about the server, and may have an empty entry.
        doctor.env("NO_PROXY", "localhost,127.0.0.1,");
        let finished = bed.start(doctor.arg("doctor").arg(&search)).finish(WAIT_TIMEOUT);
        let whole = format!("{}{}", String::from_utf8_lossy(&finished.stdout), finished.stderr);
        assert!(whole.contains("ok    place"), "{scheme}: {whole}");
    }
}
