//! Copies the trial's output to the agent's, byte for byte, and searches it for metrics.
//!
//! Invariants:
//!
//! * One thread reads each stream, so a slow reader of the agent's output delays only that stream. Reading never waits
//!   for the network, and waits for the disk only as described in `capture`.
//! * Every portion is processed (scanned, captured, kept for the verdict) before it is forwarded. This holds even if
//!   the agent's stdout blocks or has no reader. A fault (such as a panic in a collector) loses at most the current
//!   portion, see [`reexec`](crate::trial::reexec).
//! * After the trial's end, a stalled reader of the agent's output cannot keep the agent from reading to the end.
//!   Another thread continues to read, and keeps the bytes for the pump ([`StreamForwarder::read_rest`]).
//! * The inherited descriptors keep their flags, because other processes may share them.

pub mod capture;
pub mod file_tail;
pub mod log_lines;
pub mod log_shipper;
pub mod metric_file;
pub mod run_dir;

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::sync::mpsc;
use trial_protocol::{GpuSample, Stream};

use crate::collect::{CollectSpec, Finding, Line, LineCutter, StreamScanner};
use crate::output::capture::Capture;
use crate::output::log_shipper::LogShipper;
use crate::util::last_bytes::LastBytes;

/// The buffer sizes of a reader, in bytes: the first one, and the one after a full first read, which is the capacity of
/// a pipe. Most trials leave one stream silent.
const FIRST_CHUNK_BYTES: usize = 4 * 1024;
const CHUNK_BYTES: usize = 64 * 1024;

/// Stack size of a thread that parses the trial's output, in bytes. JSON may be nested 128 levels deep, at several
/// kilobytes a level in an unoptimised build. Untouched stack costs no memory.
pub const READER_STACK_BYTES: usize = 2 * 1024 * 1024;

/// Stack size of a thread that only passes bytes or readings on, in bytes.
pub const HELPER_STACK_BYTES: usize = 128 * 1024;

/// The maximum number of bytes stored for a blocked pump: Linux's default maximum for a pipe.
const MAX_BACKLOG_BYTES: usize = 1024 * 1024;

/// The interval at which the agent checks whether all output was forwarded.
const CHECK_INTERVAL: Duration = Duration::from_millis(5);

/// A message to the main task: from a pump, the readers of metric files, or the readers of GPUs.
#[derive(Debug)]
pub enum IntakeEvent {
    /// Findings of one portion, in order.
    Findings(Vec<Finding>),
    /// The lines of one portion, in order, and the findings in them.
    Lines(Vec<Line>, Vec<Finding>),
    /// A problem to report to the user.
    Problem {
        /// Stable name, for the note.
        code: &'static str,
        /// A sentence.
        message: String,
    },
    /// The stream has ended, and all of it was processed.
    Closed(Stream),
    /// A line of the GPU probe.
    GpuRow(String),
    /// A reading of the GPUs that are read from kernel files.
    AmdReading(Vec<GpuSample>),
    /// The metric files were read to their ends, for the last time.
    MetricFilesRead,
}

/// The last bytes of a stream, shared between its pump and the verdict.
pub type SharedTail = Arc<Mutex<LastBytes>>;

/// The parts of one pump.
pub struct Pump {
    /// The stream that is read.
    pub stream: Stream,
    /// The writer of the copy on disk.
    pub capture: Capture,
    /// The last bytes of the stream.
    pub tail: SharedTail,
    /// The shipper of the stream's log, if logs are sent.
    pub shipper: Option<Arc<LogShipper>>,
    /// The cutter of the stream into lines, if lines are needed.
    pub lines: Option<LineCutter>,
    /// The receiver of the pump's messages.
    pub events: mpsc::Sender<IntakeEvent>,
    /// Locked until all pumps are started. If one cannot be started, bytes read by another would be lost.
    pub start_gate: Arc<Mutex<()>>,
}

/// A handle of a stream that is read and forwarded.
#[derive(Clone)]
pub struct StreamForwarder(Arc<ForwarderState>);

struct ForwarderState {
    stream: Stream,
    source: Arc<File>,
    reader: Mutex<StreamReader>,
    /// Number of bytes that were read and not yet forwarded.
    pending_bytes: AtomicUsize,
}

/// The reader's state of a stream. The lock keeps the portions in order.
struct StreamReader {
    pump: Pump,
    scanner: StreamScanner,
    /// Bytes that another thread read, for the pump to pass on.
    backlog: Vec<u8>,
    ended: bool,
}

impl Pump {
    /// Starts the thread that copies all bytes from `source` to `sink`. On failure, the caller still owns `source`: the
    /// trial would die of a pipe without a reader.
    pub fn start(
        self,
        source: &Arc<File>,
        sink: OwnedFd,
        spec: &CollectSpec,
    ) -> Result<StreamForwarder, io::Error> {
        let name = match self.stream {
            Stream::Stdout => "stdout",
            Stream::Stderr => "stderr",
        };
        let (start_gate, events) = (Arc::clone(&self.start_gate), self.events.clone());
        let scanner = StreamScanner::new(spec, self.stream);
        let state = Arc::new(ForwarderState {
            stream: self.stream,
            source: Arc::clone(source),
            reader: Mutex::new(StreamReader {
                pump: self,
                scanner,
                backlog: Vec::new(),
                ended: false,
            }),
            pending_bytes: AtomicUsize::new(0),
        });
        let forwarder = StreamForwarder(Arc::clone(&state));
        // The thread is never joined. It ends with the trial's last writer, for which the agent does not wait without
        // limit.
        thread::Builder::new().name(name.to_owned()).stack_size(READER_STACK_BYTES).spawn(
            move || {
                drop(start_gate.lock().unwrap_or_else(PoisonError::into_inner));
                state.copy_to(File::from(sink), &events);
            },
        )?;
        Ok(forwarder)
    }

    fn send_findings(
        &mut self,
        found: Vec<Finding>,
        cut: impl FnOnce(&mut LineCutter, &mut Vec<Line>),
    ) {
        match &mut self.lines {
            None if found.is_empty() => {}
            None => self.send(IntakeEvent::Findings(found)),
            Some(cutter) => {
                let mut lines = Vec::new();
                cut(cutter, &mut lines);
                if !(lines.is_empty() && found.is_empty()) {
                    self.send(IntakeEvent::Lines(lines, found));
                }
            }
        }
    }

    fn send(&self, event: IntakeEvent) {
        send(&self.events, event);
    }
}

fn send(to: &mpsc::Sender<IntakeEvent>, event: IntakeEvent) {
    // Waits for the main task, which waits for no pump. If that task has ended, the bytes are still forwarded.
    to.blocking_send(event).ok();
}

impl StreamForwarder {
    /// Starts a thread that reads the rest of the stream while the pump is blocked. The caller does not wait for it.
    pub fn read_rest(&self) -> Result<(), io::Error> {
        let state = Arc::clone(&self.0);
        let thread = thread::Builder::new().name("late".to_owned()).stack_size(READER_STACK_BYTES);
        thread.spawn(move || state.read_backlog()).map(drop)
    }

    /// Returns the source, if this forwarder is for `stream`.
    pub fn source_of(&self, stream: Stream) -> Option<OwnedFd> {
        let own = (self.0.stream == stream).then(|| self.0.source.as_fd().try_clone_to_owned());
        own?.ok()
    }

    /// Returns the number of bytes that were read and not yet forwarded.
    pub fn pending_bytes(&self) -> usize {
        self.0.pending_bytes.load(Ordering::Acquire)
    }
}

/// Waits until all bytes read from the streams were forwarded.
pub async fn wait_until_forwarded(forwarders: &[StreamForwarder]) {
    while forwarders.iter().any(|forwarder| forwarder.pending_bytes() > 0) {
        tokio::time::sleep(CHECK_INTERVAL).await;
    }
}

impl ForwarderState {
    fn copy_to(&self, sink: File, events: &mpsc::Sender<IntakeEvent>) {
        let mut sink = Sink { file: sink, open: true, error_reported: false };
        let mut buffer = vec![0; FIRST_CHUNK_BYTES];
        loop {
            let mut reader = self.lock();
            let backlog = std::mem::take(&mut reader.backlog);
            let bytes = if backlog.is_empty() {
                let Some(length) = self.read(&mut reader, &mut buffer) else { return };
                &buffer[..length]
            } else {
                &backlog
            };
            drop(reader);
            let length = bytes.len();
            if let Err(source) = sink.forward(bytes) {
                let message = format!("cannot forward the output: {source}");
                send(events, IntakeEvent::Problem { code: "output-closed", message });
            }
            self.pending_bytes.fetch_sub(length, Ordering::AcqRel);
            if length == FIRST_CHUNK_BYTES && buffer.len() == FIRST_CHUNK_BYTES {
                buffer.resize(CHUNK_BYTES, 0);
            }
        }
    }

    fn read_backlog(&self) {
        let mut buffer = vec![0; CHUNK_BYTES];
        loop {
            // Without the lock: the trial's last writers may be silent, and the pump must be able to continue.
            self.wait(PollTimeout::NONE);
            let mut reader = self.lock();
            if reader.ended || reader.backlog.len() >= MAX_BACKLOG_BYTES {
                return;
            }
            // Unless the pump has read the bytes already.
            if self.wait(PollTimeout::ZERO) {
                let Some(length) = self.read(&mut reader, &mut buffer) else { return };
                reader.backlog.extend_from_slice(&buffer[..length]);
            }
        }
    }

    /// Waits until the source is readable or has ended.
    fn wait(&self, timeout: PollTimeout) -> bool {
        let mut fds = [PollFd::new(self.source.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, timeout).is_ok_and(|ready| ready > 0)
    }

    /// Reads once, and processes the bytes. `None`: the stream has ended.
    fn read(&self, reader: &mut StreamReader, buffer: &mut [u8]) -> Option<usize> {
        if reader.ended {
            return None;
        }
        let length = loop {
            match (&*self.source).read(buffer) {
                Ok(length) => break length,
                Err(source) if source.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => {
                    let message = format!("cannot read the output: {source}");
                    reader.pump.send(IntakeEvent::Problem { code: "output-unreadable", message });
                    break 0;
                }
            }
        };
        if length == 0 {
            reader.end_stream();
            return None;
        }
        crate::util::faults::inject_at("pump");
        self.pending_bytes.fetch_add(length, Ordering::AcqRel);
        reader.process(&buffer[..length]);
        Some(length)
    }

    fn lock(&self) -> MutexGuard<'_, StreamReader> {
        // A panic while the lock was held hands the trial over.
        self.reader.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StreamReader {
    fn process(&mut self, bytes: &[u8]) {
        let mut found = Vec::new();
        self.scanner.feed(bytes, &mut found);
        let pump = &mut self.pump;
        pump.send_findings(found, |cutter, lines| cutter.feed(bytes, lines));
        pump.tail.lock().unwrap_or_else(PoisonError::into_inner).push(bytes);
        if let Some(shipper) = &pump.shipper {
            shipper.feed(bytes);
        }
        pump.capture.queue_output(pump.stream, bytes);
    }

    fn end_stream(&mut self) {
        self.ended = true;
        let mut found = Vec::new();
        self.scanner.finish(&mut found);
        let pump = &mut self.pump;
        pump.send_findings(found, LineCutter::finish);
        if let Some(shipper) = &pump.shipper {
            shipper.flush(true);
        }
        pump.send(IntakeEvent::Closed(pump.stream));
    }
}

/// The agent's stdout or stderr.
struct Sink {
    file: File,
    open: bool,
    error_reported: bool,
}

impl Sink {
    /// Writes all bytes. Returns an error only the first time.
    fn forward(&mut self, mut bytes: &[u8]) -> Result<(), io::Error> {
        while self.open && !bytes.is_empty() {
            match self.file.write(bytes) {
                Ok(length) => bytes = &bytes[length..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The process that started the agent made the descriptor non-blocking.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.wait(),
                Err(error) => {
                    // A reader that closed the stream does not return. A full disk may have space later.
                    self.open = error.kind() != io::ErrorKind::BrokenPipe;
                    let error_reported = std::mem::replace(&mut self.error_reported, true);
                    return if error_reported { Ok(()) } else { Err(error) };
                }
            }
        }
        Ok(())
    }

    fn wait(&self) {
        let mut fds = [PollFd::new(self.file.as_fd(), PollFlags::POLLOUT)];
        // The result is ignored, because the next write detects every state.
        poll(&mut fds, PollTimeout::NONE).ok();
    }
}

#[cfg(test)]
mod tests {
    use std::io::{PipeReader, pipe};

    use super::*;
    use crate::output::capture::CapturePaths;

    fn pump(events: mpsc::Sender<IntakeEvent>) -> (Pump, SharedTail) {
        let tail = SharedTail::default();
        let capture = Capture::new(CapturePaths::default());
        let stream = Stream::Stdout;
        let (tail_of_pump, start_gate) = (Arc::clone(&tail), Arc::default());
        let pump = Pump {
            stream,
            capture,
            tail: tail_of_pump,
            shipper: None,
            lines: None,
            events,
            start_gate,
        };
        (pump, tail)
    }

    fn file(source: PipeReader) -> Arc<File> {
        Arc::new(File::from(OwnedFd::from(source)))
    }

    #[test]
    fn bytes_pass_unchanged_and_the_end_is_reported() {
        let (events, mut received) = mpsc::channel(8);
        let (pump, tail) = pump(events);
        let ((source, mut trial), (mut ours, sink)) = (pipe().unwrap(), pipe().unwrap());
        pump.start(&file(source), sink.into(), &CollectSpec::default()).unwrap();
        trial.write_all(b"a\xff\r\nno newline").unwrap();
        drop(trial);
        let mut passed = Vec::new();
        ours.read_to_end(&mut passed).unwrap();
        assert_eq!(passed, b"a\xff\r\nno newline");
        assert!(matches!(received.blocking_recv(), Some(IntakeEvent::Closed(Stream::Stdout))));
        assert_eq!(tail.lock().unwrap().bytes(), passed);
    }

    #[test]
    fn reading_continues_when_the_agents_output_is_closed() {
        let (events, mut received) = mpsc::channel(8);
        let (pump, tail) = pump(events);
        let ((source, mut trial), (ours, sink)) = (pipe().unwrap(), pipe().unwrap());
        drop(ours);
        pump.start(&file(source), sink.into(), &CollectSpec::default()).unwrap();
        for _ in 0..4 {
            trial.write_all(&vec![b'x'; CHUNK_BYTES]).unwrap();
        }
        drop(trial);
        assert!(matches!(
            received.blocking_recv(),
            Some(IntakeEvent::Problem { code: "output-closed", .. })
        ));
        assert!(
            matches!(received.blocking_recv(), Some(IntakeEvent::Closed(Stream::Stdout))),
            "reported once"
        );
        assert_eq!(tail.lock().unwrap().total(), 4 * u64::try_from(CHUNK_BYTES).unwrap());
    }

    #[test]
    fn output_is_read_to_the_end_without_a_reader_and_passed_on_later() {
        let (events, mut received) = mpsc::channel(8);
        let (pump, tail) = pump(events);
        let ((source, mut trial), (mut ours, sink)) = (pipe().unwrap(), pipe().unwrap());
        let forwarder = pump.start(&file(source), sink.into(), &CollectSpec::default()).unwrap();
        // More than the capacity of the sink's pipe, and less than that of both pipes.
        let bytes: Vec<u8> = (0..CHUNK_BYTES * 7 / 4).map(|n| n.to_le_bytes()[0]).collect();
        trial.write_all(&bytes).unwrap();
        drop(trial);
        forwarder.read_rest().unwrap();
        assert!(matches!(received.blocking_recv(), Some(IntakeEvent::Closed(Stream::Stdout))));
        assert!(forwarder.pending_bytes() > 0);
        assert_eq!(tail.lock().unwrap().total(), u64::try_from(bytes.len()).unwrap());
        let mut passed = Vec::new();
        ours.read_to_end(&mut passed).unwrap();
        assert!(passed == bytes, "{} bytes", passed.len());
    }

    #[test]
    fn a_full_non_blocking_sink_is_waited_for() {
        let (events, _received) = mpsc::channel(8);
        let (pump, _) = pump(events);
        let ((source, mut trial), (mut ours, sink)) = (pipe().unwrap(), pipe().unwrap());
        let flags = nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK);
        nix::fcntl::fcntl(&sink, flags).unwrap();
        pump.start(&file(source), sink.into(), &CollectSpec::default()).unwrap();
        let writer = thread::spawn(move || trial.write_all(&vec![b'x'; 8 * CHUNK_BYTES]).unwrap());
        let mut passed = Vec::new();
        ours.read_to_end(&mut passed).unwrap();
        assert_eq!(passed.len(), 8 * CHUNK_BYTES);
        writer.join().unwrap();
    }
}
