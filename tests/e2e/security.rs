//! Strangers, secrets, sessions and slow readers.

mod secure;
mod sessions;
mod slow_readers;
pub(crate) mod strangers;
