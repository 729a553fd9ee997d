//! Writes the log chunks of an output stream into the spool. A full spool drops the chunk and counts it, so a chunk
//! never waits for the manager. Only the thread that reads the stream waits for the disk, as described in `spool`.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;
use trial_protocol::{LogChunk, ReportBody, Stream};

use crate::output::log_lines::{LogChunker, Spec};
use crate::spool::Spool;
use crate::util::clock::Clock;

/// The log of one stream, shared between its pump and the task that flushes old lines.
pub struct LogShipper {
    lines: Mutex<LogChunker>,
    spool: Spool,
    clock: Arc<dyn Clock>,
    began: Instant,
}

impl LogShipper {
    /// Creates the shipper of `stream` into `spool`.
    pub fn new(stream: Stream, spec: Spec, spool: Spool, clock: Arc<dyn Clock>) -> Self {
        Self {
            lines: Mutex::new(LogChunker::new(stream, spec)),
            spool,
            clock,
            began: Instant::now(),
        }
    }

    /// Adds the next bytes of the stream.
    pub fn feed(&self, bytes: &[u8]) {
        // Locked during both steps, so that the pump and a flush keep the order of the chunks.
        let mut lines = self.lock();
        let mut chunks = Vec::new();
        lines.feed(bytes, self.began.elapsed(), &mut chunks);
        self.append(chunks);
        drop(lines);
        self.spool.wait_for_disk();
    }

    /// Ships the buffered lines, and the unfinished line too if the stream has `ended`.
    pub fn flush(&self, ended: bool) {
        let mut lines = self.lock();
        let mut chunks = Vec::new();
        lines.flush(ended, self.began.elapsed(), &mut chunks);
        self.append(chunks);
    }

    /// Returns the number of bytes dropped because of the rate limit.
    pub fn shed_bytes(&self) -> u64 {
        self.lock().shed_bytes()
    }

    fn append(&self, chunks: Vec<LogChunk>) {
        for chunk in chunks {
            self.spool.append(self.clock.now_ms(), ReportBody::Log(chunk));
        }
    }

    fn lock(&self) -> MutexGuard<'_, LogChunker> {
        // A panic in the middle loses only some lines.
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
