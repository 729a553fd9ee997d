//! The temporary errors that an experiment waits for, and a watch for failed writes of a store. [`super::inbox`] does
//! the waiting.

use tokio::sync::watch;

use crate::store;
use crate::store::Store;
use crate::training_service::SubmitError;

/// An error that may pass by itself, or after an operator has made room.
pub(super) trait Passing: std::error::Error {
    /// Returns whether the error may pass.
    fn may_pass(&self) -> bool;
}

impl Passing for store::Error {
    fn may_pass(&self) -> bool {
        self.may_pass()
    }
}

impl Passing for SubmitError {
    fn may_pass(&self) -> bool {
        use std::io::ErrorKind::{QuotaExceeded, StorageFull};
        let source = std::error::Error::source(self);
        let source = source.and_then(|source| source.downcast_ref::<std::io::Error>());
        source.is_some_and(|source| matches!(source.kind(), QuotaExceeded | StorageFull))
    }
}

/// Observes whether the store accepts all writes during a period. A refused write says nothing about its sender.
pub(super) struct Watch {
    write_error: watch::Receiver<Option<store::Error>>,
    was_ill: bool,
}

impl Watch {
    /// Begins the period now.
    pub(super) fn begin(store: &Store) -> Self {
        let write_error = store.watch_write_error();
        let was_ill = write_error.borrow().is_some();
        Self { write_error, was_ill }
    }

    /// Returns whether no write has failed since the beginning, not even for a moment.
    pub(super) fn took_all(&self) -> bool {
        !self.was_ill && self.write_error.has_changed().is_ok_and(|changed| !changed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::training_service::local;

    #[test]
    fn a_service_is_waited_for_when_the_disk_is_full() {
        let error = |kind| {
            let source = std::io::Error::from(kind);
            SubmitError::new(local::Error::Write { path: "f".into(), source })
        };
        assert!(error(std::io::ErrorKind::StorageFull).may_pass());
        assert!(!error(std::io::ErrorKind::PermissionDenied).may_pass());
    }
}
