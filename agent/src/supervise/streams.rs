//! The trial's output streams, for the supervisor.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use trial_protocol::Stream;

use crate::output::StreamForwarder;
use crate::output::log_shipper::LogShipper;

/// The streams and their logs.
pub struct TrialStreams {
    open: Vec<Stream>,
    forwarders: Vec<StreamForwarder>,
    shippers: Vec<Arc<LogShipper>>,
}

impl TrialStreams {
    /// Creates the set of streams: those that are open, the forwarders of all streams, and the log shippers.
    pub fn new(
        open: Vec<Stream>,
        forwarders: Vec<StreamForwarder>,
        shippers: Vec<Arc<LogShipper>>,
    ) -> Self {
        Self { open, forwarders, shippers }
    }

    /// Records that a stream was read to its end.
    pub(super) fn close(&mut self, stream: Stream) {
        self.open.retain(|open| *open != stream);
    }

    /// Returns whether any stream is still open.
    pub(super) fn has_open_stream(&self) -> bool {
        !self.open.is_empty()
    }

    /// Returns whether logs are sent.
    pub(super) fn has_log_shippers(&self) -> bool {
        !self.shippers.is_empty()
    }

    /// Returns the sources of standard output and error, for another reader.
    pub(super) fn sources(&self) -> [Option<OwnedFd>; 2] {
        let source =
            |stream| self.forwarders.iter().find_map(|forwarder| forwarder.source_of(stream));
        [Stream::Stdout, Stream::Stderr].map(source)
    }

    /// Reads the streams to their ends while the pumps are blocked, because the reader of the output may not read it.
    pub(super) fn read_rest(&self) {
        for forwarder in &self.forwarders {
            if let Err(source) = forwarder.read_rest() {
                tracing::warn!("the end of the output may be missing: {source}");
            }
        }
    }

    /// Ships complete log lines, and with `all` unfinished lines too.
    pub(super) fn ship_logs(&self, all: bool) {
        self.shippers.iter().for_each(|shipper| shipper.flush(all));
    }

    /// Returns the number of bytes of log that were dropped because of the rate limit.
    pub(super) fn shed_bytes(&self) -> u64 {
        self.shippers.iter().map(|shipper| shipper.shed_bytes()).sum()
    }
}
