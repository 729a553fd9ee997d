//! Detects why a store cannot be written, and when it can be written again.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::sleep;

use super::{Error, Store};
use crate::util::errors::chain;

/// The time between attempts to write to a failing store.
const TRY_AFTER: Duration = Duration::from_secs(1);

impl Store {
    /// Returns the error of the last write. `None` if it succeeded.
    pub fn write_error(&self) -> Option<Error> {
        self.inner.shared.write_error()
    }

    /// Returns the error of the last write as a watch channel. For a read-only store, it is always `None`.
    pub fn watch_write_error(&self) -> watch::Receiver<Option<Error>> {
        self.inner.shared.write_error.subscribe()
    }

    /// Logs when writes begin to fail, then retries a test write until it succeeds, because the next real write may
    /// be hours away. Never returns.
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
                // The probe's outcome updates `write_error`.
                drop(self.probe().await);
            }
            tracing::info!("the database accepts writes again");
        }
    }

    /// Performs a test write, so that the store detects a recovery even without other writes.
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
