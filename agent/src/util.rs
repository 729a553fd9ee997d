//! Small tools that do not depend on trials: time, pauses, errors, messages, numbers, secrets, archives.

pub mod backoff;
pub mod clock;
pub mod dates;
pub mod errors;
pub mod faults;
pub mod gzip;
pub mod last_bytes;
pub mod log;
pub mod numbers;
pub mod secrets;
pub mod tar;
