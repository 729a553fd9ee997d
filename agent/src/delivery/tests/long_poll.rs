//! Requests that are kept open until there is something to report.

use super::*;

/// The server's view of requests that are kept open.
#[derive(Default)]
pub(super) struct OpenRequests {
    /// The number of requests that were opened.
    pub(super) opened: watch::Sender<u32>,
    /// Makes the server answer an open request before its body arrives.
    pub(super) wake: Notify,
}

/// Reads a delayed body in one piece. An empty body means that the server must answer before it arrives.
pub(super) async fn read_chunked_body(
    stream: &mut TcpStream,
    bytes: &mut Vec<u8>,
    wake: &Notify,
) -> Option<Vec<u8>> {
    loop {
        if bytes.ends_with(b"\r\n0\r\n\r\n") {
            let head = memchr::memmem::find(bytes, b"\r\n").unwrap();
            let length = std::str::from_utf8(&bytes[..head]).unwrap();
            let length = usize::from_str_radix(length, 16).unwrap();
            let body = bytes[head + 2..head + 2 + length].to_vec();
            bytes.clear();
            return Some(body);
        }
        tokio::select! {
            read = stream.read_buf(bytes) => if read.ok()? == 0 { return None },
            () = wake.notified() => return Some(Vec::new()),
        }
    }
}

#[tokio::test]
async fn a_silent_agent_is_asked_to_fetch_its_directives() {
    let stop = DirectiveBody::Stop { reason: StopReason::User, grace_ms: None };
    let stop = Directive { id: 9, body: stop };
    let script = vec![Answer::Ack, Answer::AckWithDirectives(vec![stop.clone()]), Answer::Ack];
    let server = Server::start(script).await;
    let spool = memory_spool();
    let mut delivery = deliver(settings(ManagerAddress::Url(server.url.clone())), &spool);
    spool.append(0, metric(0));
    let mut opened = server.open_requests.opened.subscribe();
    let opens = async |opened: &mut watch::Receiver<u32>, count| {
        let open = opened.wait_for(|opened| *opened >= count);
        tokio::time::timeout(TEST_TIMEOUT, open).await.expect("a request that waits").unwrap();
    };
    // The agent has sent all reports, and its next request is open. The server answers it.
    opens(&mut opened, 1).await;
    server.open_requests.wake.notify_one();
    let got = tokio::time::timeout(TEST_TIMEOUT, delivery.directives.recv()).await.unwrap();
    assert_eq!(got, Some(stop), "in the answer to the requested heartbeat");
    // The next open request carries the next metric, and reports the obeyed directive.
    opens(&mut opened, 2).await;
    spool.append(0, metric(1));
    server.wait_until("the obeyed directive", |seen| seen.obeyed.contains(&9)).await;
    server.wait_until("the metric", |seen| seen.order.contains(&(Lane::Facts, 1))).await;
    // An open request makes room for logs, and ends at the trial's end.
    opens(&mut opened, 3).await;
    spool.append(0, log());
    server.wait_until("the log", |seen| seen.order.contains(&(Lane::Bulk, 0))).await;
    opens(&mut opened, 4).await;
    spool.append(0, metric(2));
    assert_eq!(delivery.end().await, complete_outcome());
    assert_eq!(server.facts(), [0, 1, 2]);
}

#[tokio::test]
async fn a_manager_that_vanishes_while_a_request_waits_is_found_again() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("manager.url");
    let server = Server::start(vec![Answer::Ack]).await;
    std::fs::write(&file, &server.url).unwrap();
    let spool = memory_spool();
    let delivery = deliver(settings(ManagerAddress::File(file.clone())), &spool);
    spool.append(0, metric(0));
    let mut opened = server.open_requests.opened.subscribe();
    tokio::time::timeout(TEST_TIMEOUT, opened.wait_for(|opened| *opened == 1))
        .await
        .unwrap()
        .unwrap();
    let next = Server::start(vec![Answer::Ack]).await;
    std::fs::write(&file, &next.url).unwrap();
    drop(server);
    next.wait_until("a heartbeat", |seen| seen.heartbeats >= 1).await;
    spool.append(0, metric(1));
    assert_eq!(delivery.end().await, complete_outcome());
    assert_eq!(next.facts(), [1]);
}
