//! HTTP as the agent speaks it: one client, one small server, and the two services that stand on the server.

pub mod channel;
pub mod client;
pub mod prometheus;
pub mod server;
pub mod status;
