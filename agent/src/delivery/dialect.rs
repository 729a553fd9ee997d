//! The protocols of managers: the only place that knows URLs, headers and bodies.

pub mod legacy;
pub mod native;
pub mod pod;

mod error;

pub use error::{Error, RetryDecision};
