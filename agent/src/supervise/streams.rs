//! The trial's output streams, as far as the supervisor ends them.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use trial_protocol::Stream;

use crate::output::Outlet;
use crate::output::log_ship::LogShipper;

/// The streams that are read, and their logs.
pub struct TrialStreams {
    open: Vec<Stream>,
    outlets: Vec<Outlet>,
    shippers: Vec<Arc<LogShipper>>,
}

impl TrialStreams {
    /// Returns the streams that are open, all that are read, and the logs of those that are collected.
    pub fn new(open: Vec<Stream>, outlets: Vec<Outlet>, shippers: Vec<Arc<LogShipper>>) -> Self {
        Self { open, outlets, shippers }
    }

    /// Records that a stream was read to its end.
    pub(super) fn close(&mut self, stream: Stream) {
        self.open.retain(|open| *open != stream);
    }

    /// Returns whether any stream may still bring something.
    pub(super) fn any_is_open(&self) -> bool {
        !self.open.is_empty()
    }

    /// Returns whether any log is collected.
    pub(super) fn ships_logs(&self) -> bool {
        !self.shippers.is_empty()
    }

    /// Returns the sources of standard output and error, for another reader.
    pub(super) fn sources(&self) -> [Option<OwnedFd>; 2] {
        let source = |stream| self.outlets.iter().find_map(|outlet| outlet.source_of(stream));
        [Stream::Stdout, Stream::Stderr].map(source)
    }

    /// Reads the streams to their ends where the pumps cannot: the receiver of the output may not read it.
    pub(super) fn read_out(&self) {
        for outlet in &self.outlets {
            if let Err(source) = outlet.read_out() {
                tracing::warn!("the end of the output may be missing: {source}");
            }
        }
    }

    /// Ships the finished lines of log. `all`: unfinished ones too.
    pub(super) fn ship_logs(&self, all: bool) {
        self.shippers.iter().for_each(|shipper| shipper.flush(all));
    }

    /// Returns the bytes of log that were dropped because they exceeded the rate.
    pub(super) fn shed_bytes(&self) -> u64 {
        self.shippers.iter().map(|shipper| shipper.shed_bytes()).sum()
    }
}
