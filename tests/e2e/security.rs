//! Callers without credentials, secrets, sessions and slow clients.

mod secure;
mod sessions;
mod slow_readers;
pub(crate) mod strangers;
