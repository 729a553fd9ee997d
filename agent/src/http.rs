//! The HTTP client of the agent, a small server, and the two services that use the server.

pub mod channel;
pub mod client;
pub mod prometheus;
pub mod server;
pub mod status;
