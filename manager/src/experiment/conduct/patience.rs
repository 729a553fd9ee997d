//! What an experiment waits for: errors that pass, and a store that takes all it is given. [`super::inbox`] does the
//! waiting.

use tokio::sync::watch;

use crate::store;
use crate::store::Store;
use crate::training_service::SubmitError;

/// An error that may pass by itself, or when an operator has made room.
pub(super) trait Passing: std::error::Error {
    /// Returns whether it is of that kind.
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

    /// Returns whether no write has failed since, not even in between.
    pub(super) fn took_all(&self) -> bool {
        !self.was_ill && self.ailment.has_changed().is_ok_and(|changed| !changed)
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
