//! Small tools that know nothing of trials: time, errors, messages, archives.

pub mod clock;
pub mod errors;
pub mod faults;
pub mod gunzip;
pub mod gzip;
pub mod last_bytes;
pub mod log;
pub mod tar;
