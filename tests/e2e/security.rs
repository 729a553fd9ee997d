//! Callers without credentials, secrets, sessions and slow clients.

pub(crate) mod impersonation;
mod secrets;
mod sessions;
mod slow_readers;
