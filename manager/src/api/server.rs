//! The server: its listeners and TLS, and the bounds of bodies and responses.

pub(super) mod body;
pub(super) mod compress;
pub(super) mod quota;
pub(super) mod response_memory;
pub(super) mod serve;
pub mod tls;
