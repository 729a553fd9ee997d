//! Carries an output stream's pieces of log into the spool, which takes everything, and sheds logs first when it is
//! full. Only the thread that reads the stream waits, for the disk, and as `spool` says.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;
use trial_protocol::{LogChunk, ReportBody, Stream};

use crate::output::log_lines::{Lines, Spec};
use crate::spool::Spool;
use crate::util::clock::Clock;

/// The log of one stream, shared between its pump and the sender of text that has waited long enough.
pub struct LogShipper {
    lines: Mutex<Lines>,
    spool: Spool,
    clock: Arc<dyn Clock>,
    began: Instant,
}

impl LogShipper {
    /// Ships `stream` into `spool`.
    pub fn new(stream: Stream, spec: Spec, spool: Spool, clock: Arc<dyn Clock>) -> Self {
        Self { lines: Mutex::new(Lines::new(stream, spec)), spool, clock, began: Instant::now() }
    }

    /// Takes the next bytes of the stream.
    pub fn feed(&self, bytes: &[u8]) {
        // Held over both: the pump and the one who flushes must not overtake each other.
        let mut lines = self.lock();
        let mut pieces = Vec::new();
        lines.feed(bytes, self.began.elapsed(), &mut pieces);
        self.append(pieces);
        drop(lines);
        self.spool.settle();
    }

    /// Ships the lines that wait, the unfinished one too if the stream has `ended`.
    pub fn flush(&self, ended: bool) {
        let mut lines = self.lock();
        let mut pieces = Vec::new();
        lines.flush(ended, self.began.elapsed(), &mut pieces);
        self.append(pieces);
    }

    /// Bytes that the rate did not allow.
    pub fn shed_bytes(&self) -> u64 {
        self.lock().shed_bytes()
    }

    fn append(&self, pieces: Vec<LogChunk>) {
        for piece in pieces {
            self.spool.append(self.clock.now_ms(), ReportBody::Log(piece));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Lines> {
        // A panic in the middle costs some lines, and nothing else.
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
