//! A store that cannot be written: why, and how it is found well again.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::sleep;

use super::{Error, Store};
use crate::util::errors::chain;

/// The time that an ill store is left alone before it is tried.
const TRY_AFTER: Duration = Duration::from_secs(1);

impl Store {
    /// Why the last write failed. `None`: it did not.
    pub fn ailment(&self) -> Option<Error> {
        self.inner.shared.ailment()
    }

    /// Why the last write failed, for those who wait for a change. A store that is only read is never ill.
    pub fn watch_ailment(&self) -> watch::Receiver<Option<Error>> {
        self.inner.shared.ailment.subscribe()
    }

    /// Logs when writes begin to fail, and tries an ill store now and then until one succeeds: no other may write for
    /// hours. It never ends.
    pub async fn try_while_ill(&self) {
        let mut ailment = self.watch_ailment();
        loop {
            let Ok(why) = ailment.wait_for(Option::is_some).await.map(|ailment| ailment.clone())
            else {
                return;
            };
            if let Some(error) = why {
                tracing::warn!("{}; agents keep their reports meanwhile", chain(&error));
            }
            while self.ailment().is_some() {
                sleep(TRY_AFTER).await;
                // Its fate is the new ailment.
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
