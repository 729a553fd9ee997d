//! Small tools that know nothing of a search: time, errors, identifiers, paths, names.

pub mod clock;
pub mod errors;
pub mod excerpt;
pub mod files;
pub mod ids;
pub mod layout;
pub mod local_socket;
pub mod nearest;
