//! Reports that the manager does not accept in time, or never.

use super::*;

#[tokio::test]
async fn reports_in_memory_only_wait_for_a_busy_manager() {
    let dir = tempfile::tempdir().unwrap();
    for (place, left) in [(None, 0), (Some(dir.path()), 1)] {
        let busy = || Answer::Status(503, "retry-after: 1\r\n");
        let server = Server::start(vec![busy(), busy(), Answer::Ack]).await;
        let spool = spool_in(place);
        spool.append(0, metric(0));
        let short_flush = Settings {
            flush: Duration::from_millis(100),
            ..settings(ManagerAddress::Url(server.url.clone()))
        };
        let delivery = deliver(short_flush, &spool);
        server.wait_until("the first try", |seen| seen.requests >= 1).await;
        assert_eq!(delivery.end().await.undelivered, left, "{place:?}");
    }
}

#[tokio::test]
async fn undelivered_reports_stay_and_are_replayed() {
    let dir = tempfile::tempdir().unwrap();
    let spool = spool_in(Some(dir.path()));
    for number in 0..10 {
        spool.append(0, metric(number));
        spool.append(0, log());
    }
    let file = dir.path().join("manager.url");
    let short_flush = Settings {
        flush: Duration::from_millis(300),
        ..settings(ManagerAddress::File(file.clone()))
    };
    let outcome = deliver(short_flush, &spool).end().await;
    assert_eq!(outcome.undelivered, 20);
    assert!(
        outcome.last_error.is_some_and(|why| why.contains("manager.url")),
        "the reason is reported"
    );
    assert!(spool.close(TEST_TIMEOUT).await);

    let server = Server::start(vec![Answer::StoreAndReset, Answer::Ack]).await;
    std::fs::write(&file, format!("{}\n", server.url)).unwrap();
    for round in ["the rest", "nothing more"] {
        let request = crate::commands::replay::ReplayRequest {
            dir: dir.path().to_owned(),
            sender: None,
            manager: ManagerAddress::File(file.clone()),
            token_file: None,
            ca_file: None,
            timeout: TEST_TIMEOUT,
        };
        assert_eq!(
            crate::commands::replay::replay(request).await.unwrap(),
            complete_outcome(),
            "{round}"
        );
        assert_eq!(server.facts(), (0..10).collect::<Vec<_>>(), "{round}");
        assert_eq!(server.seen.lock().unwrap().stored.len(), 20, "{round}");
    }
}

#[tokio::test]
async fn a_failed_replay_returns_the_number_of_undelivered_reports() {
    let dir = tempfile::tempdir().unwrap();
    let spool = spool_in(Some(dir.path()));
    // More than one batch.
    for _ in 0..9 {
        let message = "x".repeat(MAX_FACTS_BATCH_BYTES / 4);
        spool.append(0, ReportBody::Note { code: "large".to_owned(), message });
    }
    assert!(spool.close(TEST_TIMEOUT).await);
    let request = crate::commands::replay::ReplayRequest {
        dir: dir.path().to_owned(),
        sender: None,
        manager: ManagerAddress::File(dir.path().join("absent")),
        token_file: None,
        ca_file: None,
        timeout: Duration::from_millis(100),
    };
    assert_eq!(crate::commands::replay::replay(request).await.unwrap().undelivered, 9);
}

#[tokio::test]
async fn a_permanently_refused_report_does_not_block_others() {
    for status in [400, 413] {
        let own = Answer::Status(status, "content-type: application/problem+json\r\n");
        let server = Server::start(vec![own, Answer::Ack]).await;
        let spool = memory_spool();
        spool.append(0, metric(0));
        let delivery = deliver(settings(ManagerAddress::Url(server.url.clone())), &spool);
        server.wait_until("the refusal", |seen| seen.requests > 0).await;
        spool.append(0, metric(1));
        assert_eq!(delivery.end().await, complete_outcome(), "{status}");
        assert_eq!(server.facts(), [1], "{status}");
    }
}

#[tokio::test]
async fn reports_without_a_trial_do_not_block_others_and_are_delivered_for_the_named_trial() {
    let dir = tempfile::tempdir().unwrap();
    let unnamed = Options { sender: None, ..options_in(Some(dir.path()), "t-0") };
    for options in [unnamed, options_in(Some(dir.path()), "t-1")] {
        let spool = Spool::open(options).spool;
        spool.append(0, metric(0));
        assert!(spool.close(TEST_TIMEOUT).await);
    }
    let server = Server::start(vec![Answer::Ack]).await;
    let request = |sender| crate::commands::replay::ReplayRequest {
        dir: dir.path().to_owned(),
        sender,
        manager: ManagerAddress::Url(server.url.clone()),
        token_file: None,
        ca_file: None,
        timeout: TEST_TIMEOUT,
    };
    let attempts = || server.seen.lock().unwrap().attempts.clone();
    let error = crate::commands::replay::replay(request(None)).await.unwrap_err().to_string();
    assert!(error.contains("t-0 does not name the trial") && error.contains("--trial"), "{error}");
    assert_eq!(attempts(), ["t-1"]);
    let replayed = crate::commands::replay::replay(request(Some(sender()))).await;
    assert_eq!(replayed.unwrap(), complete_outcome());
    assert_eq!(attempts(), ["t-1", "t-0"]);
}
