//! The temporary errors that an experiment waits out, and an observer of a store's failed writes. [`super::inbox`] does
//! the waiting.

use tokio::sync::watch;

use crate::store;
use crate::store::Store;
use crate::training_service::SubmitError;

/// An error that may be temporary, for instance until an operator has freed disk space.
pub(super) trait TransientError: std::error::Error {
    /// Returns whether the error may be temporary.
    fn is_transient(&self) -> bool;
}

impl TransientError for store::Error {
    fn is_transient(&self) -> bool {
        self.is_temporary()
    }
}

impl TransientError for SubmitError {
    fn is_transient(&self) -> bool {
        use std::io::ErrorKind::{QuotaExceeded, StorageFull};
        let source = std::error::Error::source(self);
        let source = source.and_then(|source| source.downcast_ref::<std::io::Error>());
        source.is_some_and(|source| matches!(source.kind(), QuotaExceeded | StorageFull))
    }
}

/// Observes whether the store accepts all writes of any caller during a period.
pub(super) struct WriteWatch {
    write_error: watch::Receiver<Option<store::Error>>,
    was_failing: bool,
}

impl WriteWatch {
    /// Begins a period of observation.
    pub(super) fn begin(store: &Store) -> Self {
        let write_error = store.database().watch_write_error();
        let was_failing = write_error.borrow().is_some();
        Self { write_error, was_failing }
    }

    /// Returns whether no write has failed since the beginning of the period.
    pub(super) fn has_accepted_all(&self) -> bool {
        !self.was_failing && self.write_error.has_changed().is_ok_and(|changed| !changed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::training_service::local;

    #[test]
    fn a_full_disk_of_the_service_is_a_temporary_error() {
        let error = |kind| {
            let source = std::io::Error::from(kind);
            SubmitError::new(local::Error::Write { path: "f".into(), source })
        };
        assert!(error(std::io::ErrorKind::StorageFull).is_transient());
        assert!(!error(std::io::ErrorKind::PermissionDenied).is_transient());
    }
}
