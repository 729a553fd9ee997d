//! The notification tasks with a real store, and with programs that accept notifications or not.

use std::fs;
use std::path::Path;

use serde_json::Value;
use trial_protocol::ExperimentId;

use super::*;
use crate::config::EventKind;
use crate::util::clock::SystemClock;

const TEST_TIMEOUT: Duration = Duration::from_mins(1);

fn notifier_config(folder: &Path, command: &str) -> NotifierConfig {
    NotifierConfig {
        spec: NotificationsSpec {
            events: EventKind::ALL.to_vec(),
            webhook: None,
            command: Some(command.to_owned()),
        },
        about: NotificationSubject { id: ExperimentId::new("abcdefgh").unwrap(), name: None },
        directory: folder.to_owned(),
        degraded: Some(folder.join("degraded")),
        store: Store::open(&folder.join("db")).unwrap(),
        clock: Arc::new(SystemClock),
        waker: OutboxWaker::default(),
    }
}

async fn wait_for_file(path: &Path) -> String {
    let seen = async {
        loop {
            if let Ok(text) = fs::read_to_string(path)
                && text.ends_with('\n')
            {
                return text;
            }
            // A pause between polls, not a timing assumption.
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, seen).await.expect("the file is written in time")
}

#[tokio::test]
async fn the_next_manager_sends_pending_notifications_under_the_same_id() {
    let folder = tempfile::tempdir().unwrap();
    let told = folder.path().join("told");
    let closed = notifier_config(folder.path(), "echo tried >> tries; exit 1");
    let event = event::held(&closed.about, "too many failures", 7);
    let id = event.id.clone();
    closed.store.outbox().add(event.into_stored(&closed.spec).unwrap()).await.unwrap();
    let notifier = Notifier::start(&closed);
    wait_for_file(&folder.path().join("tries")).await;
    // Simulates a manager that is killed.
    drop(notifier);
    let NotifierConfig { store, .. } = closed;
    store.close().await;

    let open = notifier_config(folder.path(), "cat >> told");
    assert_eq!(send_remaining(&open).await.unwrap(), 0);
    let event: Value = serde_json::from_str(wait_for_file(&told).await.trim()).unwrap();
    assert_eq!(event["id"], id.as_str());
    assert_eq!(event["event"], "failure_budget_reached");
    assert_eq!(open.store.outbox().pending(COMMAND_CHANNEL).await.unwrap(), []);
    // A second call sends nothing.
    assert_eq!(send_remaining(&open).await.unwrap(), 0);
    assert_eq!(fs::read_to_string(&told).unwrap().lines().count(), 1);
}

#[tokio::test]
async fn a_notification_in_a_long_pause_is_retried_at_the_end() {
    for (line, left) in
        [("echo tried >> tries; test -e open", 0), ("echo tried >> tries; exit 1", 1)]
    {
        let folder = tempfile::tempdir().unwrap();
        let (tries, open) = (folder.path().join("tries"), folder.path().join("open"));
        let config = notifier_config(folder.path(), line);
        let event = event::held(&config.about, "too many failures", 7);
        let id = event.id.clone();
        config.store.outbox().add(event.into_stored(&config.spec).unwrap()).await.unwrap();
        // The next pause is five minutes.
        config.store.outbox().set_tries(&id, COMMAND_CHANNEL, 20).await.unwrap();
        let notifier = Notifier::start(&config);
        wait_for_file(&tries).await;
        let noted = async {
            while config.store.outbox().pending(COMMAND_CHANNEL).await.unwrap()[0].tries != 21 {
                // A pause between polls, not a timing assumption.
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(TEST_TIMEOUT, noted).await.expect("the failure is recorded");
        fs::write(&open, "").unwrap();
        assert_eq!(notifier.finish().await, left, "{line}");
        assert_eq!(fs::read_to_string(&tries).unwrap(), "tried\ntried\n", "{line}");
    }
}

#[tokio::test]
async fn the_waker_starts_the_delivery_while_the_manager_runs() {
    let folder = tempfile::tempdir().unwrap();
    let config = notifier_config(folder.path(), "cat >> told");
    let notifier = Notifier::start(&config);
    for number in 1..=3 {
        let event = event::held(&config.about, &format!("for the {number}. time"), 7);
        config.store.outbox().add(event.into_stored(&config.spec).unwrap()).await.unwrap();
        config.waker.wake();
    }
    assert_eq!(notifier.finish().await, 0);
    let told = wait_for_file(&folder.path().join("told")).await;
    let texts: Vec<String> = told
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["text"].to_string())
        .collect();
    assert_eq!(texts.len(), 3, "{texts:?}");
    assert!((1..=3).zip(&texts).all(|(number, text)| text.contains(&format!("the {number}."))));
}
