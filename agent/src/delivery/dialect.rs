//! The protocols of managers. Only this module contains their URLs, headers and bodies.

pub mod legacy;
pub mod native;
pub mod pod;

mod error;

pub use error::{Error, RetryDecision};
