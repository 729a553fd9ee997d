//! The HTTP client of the agent, and a small server with two services: the SDK's channel, and the status of the run.

pub mod channel;
pub mod client;
pub mod prometheus;
pub mod server;
pub mod status;
