//! How to speak to a manager: the only place that knows URLs, headers and bodies.

pub mod legacy;
pub mod native;

mod error;

pub use error::{Error, Verdict};
