//! Waits for a disk. What the experiment has decided must be recorded before anything comes of it; while the
//! disk is full or fails, the experiment stands still and tries again. Reports are no concern of this: they are
//! refused, and wait with their agents.

use std::future::Future;
use std::time::Duration;

use tokio::sync::watch;
use tracing::{info, warn};

use crate::store::Store;
use crate::{store, training_service};

/// How long to wait before the next try.
const PAUSE: Duration = Duration::from_secs(1);

/// An error that may pass by itself, or when an operator has made room.
pub(super) trait Passing: std::error::Error {
    /// Whether it is of that kind.
    fn may_pass(&self) -> bool;
}

impl Passing for store::Error {
    fn may_pass(&self) -> bool {
        match self.class() {
            Some(store::Class::Full | store::Class::Disk | store::Class::Busy) => true,
            Some(store::Class::Damaged | store::Class::Internal) | None => false,
        }
    }
}

impl Passing for training_service::Error {
    fn may_pass(&self) -> bool {
        use std::io::ErrorKind::{QuotaExceeded, StorageFull};
        let source = std::error::Error::source(self);
        let source = source.and_then(|source| source.downcast_ref::<std::io::Error>());
        source.is_some_and(|source| matches!(source.kind(), QuotaExceeded | StorageFull))
    }
}

/// Tries until it succeeds, or fails for a reason that will not pass.
pub(super) async fn patiently<T, E, F>(mut attempt: impl FnMut() -> F) -> Result<T, E>
where
    E: Passing,
    F: Future<Output = Result<T, E>>,
{
    let mut waiting = false;
    loop {
        match attempt().await {
            Err(error) if error.may_pass() => {
                if !waiting {
                    warn!("{error}: no trial is started or ended until that is mended");
                }
                waiting = true;
                tokio::time::sleep(PAUSE).await;
            }
            result => {
                if waiting && result.is_ok() {
                    info!("the experiment goes on");
                }
                return result;
            }
        }
    }
}

/// Sees whether the store takes what it is given meanwhile. What it refused says nothing about who gave it.
pub(super) struct Watch {
    ailment: watch::Receiver<Option<store::Error>>,
    was_ill: bool,
}

impl Watch {
    /// From now on.
    pub(super) fn begin(store: &Store) -> Self {
        let ailment = store.watch_ailment();
        let was_ill = ailment.borrow().is_some();
        Self { ailment, was_ill }
    }

    /// Whether no write has failed since, not even in between.
    pub(super) fn took_all(&self) -> bool {
        !self.was_ill && self.ailment.has_changed().is_ok_and(|changed| !changed)
    }
}

/// Waits until a store that refused something can be written. A nearly full disk takes a little and not more: so it
/// is not asked at once.
pub(super) async fn mended(store: &Store) -> Result<(), store::Error> {
    tokio::time::sleep(PAUSE).await;
    patiently(|| store.probe()).await
}

#[cfg(test)]
mod tests {
    use rusqlite::ffi;

    use super::*;

    fn failed(code: std::ffi::c_int) -> store::Error {
        rusqlite::Error::SqliteFailure(ffi::Error::new(code), None).into()
    }

    #[tokio::test(start_paused = true)]
    async fn what_may_pass_is_waited_for_and_nothing_else() {
        let full = failed(ffi::SQLITE_FULL);
        let mut answers = vec![Ok(7), Err(failed(ffi::SQLITE_IOERR)), Err(full.clone()), Err(full)];
        let result = patiently(|| std::future::ready(answers.pop().unwrap())).await;
        assert_eq!(result.unwrap(), 7);

        let mut tries = 0;
        let result: Result<(), _> = patiently(|| {
            tries += 1;
            std::future::ready(Err(failed(ffi::SQLITE_CORRUPT)))
        })
        .await;
        assert_eq!(result.unwrap_err().class(), Some(store::Class::Damaged));
        assert_eq!(tries, 1, "a damaged file does not mend itself");
    }

    #[test]
    fn a_service_is_waited_for_when_the_disk_is_full() {
        let error = |kind| training_service::Error::Write {
            path: "f".into(),
            source: std::io::Error::from(kind),
        };
        assert!(error(std::io::ErrorKind::StorageFull).may_pass());
        assert!(!error(std::io::ErrorKind::PermissionDenied).may_pass());
    }
}
