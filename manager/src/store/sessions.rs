//! SQL of the browsers' sessions with the portal.

use rusqlite::params;

use super::database::Database;
use super::error::Error;

/// The browsers' sessions with the portal.
#[derive(Clone, Debug)]
pub struct SessionStore {
    database: Database,
}

impl SessionStore {
    pub(super) fn new(database: Database) -> Self {
        Self { database }
    }

    /// Returns each stored session's digest and its end in milliseconds since the Unix epoch, expired ones included.
    pub async fn all(&self) -> Result<Vec<(String, i64)>, Error> {
        self.database
            .read(|c| {
                let mut statement =
                    c.prepare_cached("SELECT digest, expires_at_ms FROM session")?;
                let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
                Ok(rows.collect::<Result<_, _>>()?)
            })
            .await
    }

    /// Stores a session, and deletes the sessions that ended before `now_ms`.
    pub async fn begin(
        &self,
        digest: String,
        expires_at_ms: i64,
        now_ms: i64,
    ) -> Result<(), Error> {
        self.database
            .write(move |c| {
                c.prepare_cached("DELETE FROM session WHERE expires_at_ms <= ?")?
                    .execute([now_ms])?;
                c.prepare_cached("INSERT INTO session (digest, expires_at_ms) VALUES (?, ?)")?
                    .execute(params![digest, expires_at_ms])?;
                Ok(())
            })
            .await
    }

    /// Deletes a session. An unknown session is not an error.
    pub async fn end(&self, digest: String) -> Result<(), Error> {
        self.database
            .write(move |c| {
                c.prepare_cached("DELETE FROM session WHERE digest = ?")?.execute([&digest])?;
                Ok(())
            })
            .await
    }
}
