//! SQL of notifications. Each is kept from its event until it is delivered or abandoned.

use rusqlite::{Connection, params};
use serde_json::Value;

use super::database::Database;
use super::error::Error;
use super::readers::parse_json_column;

/// The maximum number of notifications that are read at once.
const MAX_PENDING_ROWS: u32 = 100;

const SELECT_PENDING: &str = "SELECT id, event, tries FROM notification \
     WHERE channel = ? AND settled_at_ms IS NULL ORDER BY key LIMIT ?";

/// An event that requires notifications.
#[derive(Debug, Clone, PartialEq)]
pub struct NewNotification {
    /// A unique and permanent identifier. A second event with the same identifier is not stored.
    pub id: String,
    /// The channels that send the notification.
    pub channels: Vec<&'static str>,
    /// The event.
    pub event: Value,
    /// The time at which it happened.
    pub at_ms: i64,
}

/// A notification that one channel still has to send.
#[derive(Debug, Clone, PartialEq)]
pub struct NotificationRow {
    /// The event's identifier.
    pub id: String,
    /// The event.
    pub event: Value,
    /// The number of failed deliveries.
    pub tries: u32,
}

/// The notifications that channels still have to send.
#[derive(Clone, Debug)]
pub struct Outbox {
    database: Database,
}

impl Outbox {
    pub(super) fn new(database: Database) -> Self {
        Self { database }
    }

    /// Stores an event that requires notifications.
    pub async fn add(&self, new: NewNotification) -> Result<(), Error> {
        self.database.write(move |c| insert(c, &new)).await
    }

    /// Returns the notifications that this channel still has to send, oldest first.
    pub async fn pending(&self, channel: &str) -> Result<Vec<NotificationRow>, Error> {
        let channel = channel.to_owned();
        self.database
            .read(move |c| {
                let mut statement = c.prepare_cached(SELECT_PENDING)?;
                let rows = statement.query_and_then(params![channel, MAX_PENDING_ROWS], |row| {
                    Ok::<_, Error>(NotificationRow {
                        id: row.get("id")?,
                        event: parse_json_column(row, "event")?,
                        tries: row.get("tries")?,
                    })
                })?;
                rows.collect()
            })
            .await
    }

    /// Stores how many deliveries of an event through this channel have failed.
    pub async fn set_tries(&self, id: &str, channel: &str, tries: u32) -> Result<(), Error> {
        let (id, channel) = (id.to_owned(), channel.to_owned());
        self.database
            .write(move |c| {
                c.prepare_cached("UPDATE notification SET tries = ? WHERE id = ? AND channel = ?")?
                    .execute(params![tries, id, channel])?;
                Ok(())
            })
            .await
    }

    /// Records that a notification was delivered, or the reason for which it was abandoned.
    pub async fn settle(
        &self,
        id: &str,
        channel: &str,
        at_ms: i64,
        problem: Option<&str>,
    ) -> Result<(), Error> {
        let (id, channel) = (id.to_owned(), channel.to_owned());
        let problem = problem.map(str::to_owned);
        self.database.write(move |c| {
            c.prepare_cached(
                "UPDATE notification SET settled_at_ms = ?, problem = ? WHERE id = ? AND channel = ?",
            )?
            .execute(params![at_ms, problem, id, channel])?;
            Ok(())
        })
        .await
    }
}

pub(super) fn insert(c: &Connection, new: &NewNotification) -> Result<(), Error> {
    let event = new.event.to_string();
    for channel in &new.channels {
        c.prepare_cached(
            "INSERT INTO notification (id, channel, event, created_at_ms) VALUES (?, ?, ?, ?) \
             ON CONFLICT DO NOTHING",
        )?
        .execute(params![new.id, channel, event, new.at_ms])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::store::{ExperimentRow, Store};

    fn new(id: &str, channels: &[&'static str]) -> NewNotification {
        let event = json!({"id": id});
        NewNotification { id: id.to_owned(), channels: channels.to_vec(), event, at_ms: 7 }
    }

    #[tokio::test]
    async fn notifications_outlive_the_store_until_they_are_settled() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("db");
        let store = Store::open(&path).unwrap();
        store.outbox().add(new("a", &["webhook", "command"])).await.unwrap();
        store.outbox().add(new("b", &["webhook"])).await.unwrap();
        store.outbox().add(new("a", &["webhook"])).await.unwrap();
        store.outbox().set_tries("a", "webhook", 3).await.unwrap();
        store.outbox().settle("a", "command", 9, None).await.unwrap();
        store.outbox().settle("b", "webhook", 9, Some("410")).await.unwrap();
        store.close().await;
        let store = Store::open(&path).unwrap();
        let left = store.outbox().pending("webhook").await.unwrap();
        let a = NotificationRow { id: "a".to_owned(), event: json!({"id": "a"}), tries: 3 };
        assert_eq!(left, [a]);
        assert_eq!(store.outbox().pending("command").await.unwrap(), []);
    }

    #[tokio::test]
    async fn an_end_is_recorded_with_its_notification_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&folder.path().join("db")).unwrap();
        let ended = |id| store.experiment().set_state("DONE", 1, 2, Some(new(id, &["command"])));
        ended("early").await.unwrap_err();
        assert_eq!(
            store.outbox().pending("command").await.unwrap(),
            [],
            "the write failed: there is no experiment"
        );
        let row = ExperimentRow {
            id: trial_protocol::ExperimentId::new("e").unwrap(),
            canonical: json!({}),
            seed: 1,
            state: "RUNNING".to_owned(),
            created_at_ms: 0,
            ended_at_ms: None,
            elapsed_ms: 0,
            trouble: None,
        };
        store.experiment().create(row).await.unwrap();
        ended("end").await.unwrap();
        assert_eq!(store.experiment().row().await.unwrap().unwrap().ended_at_ms, Some(2));
        assert_eq!(store.outbox().pending("command").await.unwrap()[0].id, "end");
    }

    #[test]
    fn pending_notifications_are_found_by_index() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("db");
        drop(Store::open(&path).unwrap());
        let connection = Connection::open(&path).unwrap();
        let mut plan = connection.prepare(&format!("EXPLAIN QUERY PLAN {SELECT_PENDING}")).unwrap();
        let steps = plan.query_map(params!["webhook", 1], |row| row.get::<_, String>("detail"));
        let steps: Vec<String> = steps.unwrap().map(Result::unwrap).collect();
        assert!(
            steps.iter().all(|step| step.contains("USING INDEX notification_to_tell")),
            "{steps:?}"
        );
    }
}
