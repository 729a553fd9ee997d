//! Small tools that know nothing of a search: time, errors, digests, identifiers, paths, names.

pub mod backoff;
pub mod clock;
pub mod digest;
pub mod errors;
pub mod excerpt;
pub mod files;
pub mod ids;
pub mod layout;
pub mod local_socket;
pub mod nearest;
