//! Small tools that do not depend on the rest of the manager: time, errors, digests, identifiers, paths, names.

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
pub mod shell;
