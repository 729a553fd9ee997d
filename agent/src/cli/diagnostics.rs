//! Options for the observation of the agent itself.

use std::net::SocketAddr;
use std::path::PathBuf;

use super::flags::{flags, path, value};
use super::values::address;

flags! {
    /// The agent's own messages and state.
    pub struct DiagnosticsArgs {
        /// Serve `/healthz` and `/metrics` (Prometheus) on this address, such as `127.0.0.1:9464` or `[::]:9464`. Port 0 is
        /// any free port.
        listen: Option<SocketAddr> = value("ADDR", address),
        /// The file for trialkeeper's own messages [default: stderr].
        log_file: Option<PathBuf> = path("FILE"),
    }
}
