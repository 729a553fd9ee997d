//! A store that cannot be written: the reason, and the detection that it can be written again.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::sleep;

use super::{Error, Store};
use crate::util::errors::chain;

/// The time that an ill store is left alone before it is tried.
const TRY_AFTER: Duration = Duration::from_secs(1);

impl Store {
    /// Returns the reason that the last write failed. `None`: it did not.
    pub fn write_error(&self) -> Option<Error> {
        self.inner.shared.write_error()
    }

    /// Why the last write failed, for those who wait for a change. A store that is only read is never ill.
    pub fn watch_write_error(&self) -> watch::Receiver<Option<Error>> {
        self.inner.shared.write_error.subscribe()
    }

    /// Logs when writes begin to fail, and tries an ill store now and then until one succeeds: no other may write for
    /// hours. It never ends.
    pub async fn retry_while_failing(&self) {
        let mut write_error = self.watch_write_error();
        loop {
            let Ok(why) =
                write_error.wait_for(Option::is_some).await.map(|write_error| write_error.clone())
            else {
                return;
            };
            if let Some(error) = why {
                tracing::warn!("{}; agents keep their reports meanwhile", chain(&error));
            }
            while self.write_error().is_some() {
                sleep(TRY_AFTER).await;
                // Its fate is the new write_error.
                drop(self.probe().await);
            }
            tracing::info!("the database takes writes again");
        }
    }

    /// Tries a write that means nothing, so that a store that has recovered notices it even without other writes.
    pub async fn probe(&self) -> Result<(), Error> {
        self.write(|c| {
            c.prepare_cached(
                "INSERT INTO probe VALUES (1, 1) ON CONFLICT DO UPDATE SET writes = writes + 1",
            )?
            .execute([])?;
            Ok(())
        })
        .await
    }
}
