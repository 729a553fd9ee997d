//! Compressed batches. The server listens on loopback, for which nothing is compressed. The tests therefore call it by
//! the unspecified address, which also leads to loopback.

use std::io::Read as _;

use super::*;
use crate::util::gzip::GzDecoder;

/// Returns the text of a body, and whether it was compressed.
pub(super) fn decompress(body: Vec<u8>) -> (bool, Vec<u8>) {
    if !body.starts_with(&[0x1f, 0x8b]) {
        return (false, body);
    }
    let mut bytes = Vec::new();
    GzDecoder::new(body.as_slice()).read_to_end(&mut bytes).unwrap();
    (true, bytes)
}

/// Delivers many metrics and large logs. Returns the number of compressed requests.
async fn deliver_large_batches(script: Vec<Answer>, host: &str) -> u64 {
    let server = Server::start(script).await;
    let spool = memory_spool();
    let url = server.url.replace("127.0.0.1", host);
    let delivery = deliver(settings(ManagerAddress::Url(url)), &spool);
    // The manager's first answer contains its offer.
    spool.append(0, metric(0));
    server.wait_until("the first answer", |seen| seen.requests > 0).await;
    for number in 1..200 {
        spool.append(0, metric(number));
    }
    for _ in 0..10 {
        let text = LogText::Text("epoch 3 loss 0.25 accuracy 0.75\n".repeat(500));
        let chunk = LogChunk { stream: Stream::Stdout, offset_bytes: 0, text };
        spool.append(0, ReportBody::Log(chunk));
    }
    assert_eq!(delivery.end().await, complete_outcome());
    assert_eq!(server.facts(), (0..200).collect::<Vec<_>>());
    let seen = server.seen.lock().unwrap();
    assert_eq!(seen.stored.len(), 210, "logs too");
    seen.compressed_requests
}

#[tokio::test]
async fn large_batches_that_leave_the_machine_are_compressed() {
    assert!(deliver_large_batches(vec![Answer::Ack], "0.0.0.0").await > 0);
    assert_eq!(deliver_large_batches(vec![Answer::Ack], "127.0.0.1").await, 0, "over loopback");
}

#[tokio::test]
async fn a_compressed_batch_is_halved_and_repeated_like_any_other() {
    assert!(deliver_large_batches(vec![Answer::LimitReports(3)], "0.0.0.0").await > 1);
    let script = vec![Answer::Ack, Answer::StoreAndReset, Answer::Reset, Answer::Ack];
    assert!(deliver_large_batches(script, "0.0.0.0").await > 0);
}

#[tokio::test]
async fn a_refused_compressed_batch_is_sent_uncompressed() {
    for status in [400, 415] {
        let packed = deliver_large_batches(vec![Answer::RefuseCompressed(status)], "0.0.0.0").await;
        // Each lane may have sent a compressed batch before the first refusal.
        assert!((1..=2).contains(&packed), "{status}: {packed} were tried");
    }
}
