//! Passes the trial's output on, byte for byte, and looks for metrics in it on the way.
//!
//! Invariants:
//!
//! * One thread per stream reads, so that a consumer of ours who stalls holds up that stream and nothing
//!   else. Reading never waits for the network, and for the disk only as `capture` says.
//! * What was read is passed on, whether or not our own stdout still takes it, or anybody listens any more. A
//!   fault (a panic in a collector, say) costs at most the portion at hand, see
//!   [`hand_over`](crate::trial::hand_over).
//! * The descriptors we inherited keep their flags: others may share them.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::sync::mpsc;
use trial_protocol::{GpuSample, Stream};

use crate::capture::Capture;
use crate::collect::{CollectSpec, Finding, Line, LineCutter, StreamScanner};
use crate::last_bytes::LastBytes;
use crate::log_ship::Shipper;

/// Bytes read at once, at first and once so many come: what a pipe holds. Most trials leave one stream silent.
const FIRST_CHUNK: usize = 4 * 1024;
const CHUNK: usize = 64 * 1024;

/// Stack of a thread that reads what the trial says, in bytes. JSON is read up to 128 levels deep, which takes several
/// kilobytes a level in a build that is not optimised; what is not touched costs no memory.
pub const READER_STACK: usize = 2 * 1024 * 1024;

/// What a pump has to say.
#[derive(Debug)]
pub enum Heard {
    /// Findings of one portion, in order.
    Findings(Vec<Finding>),
    /// The lines of one portion, in order, and what was found in them.
    Lines(Vec<Line>, Vec<Finding>),
    /// Something a person should know.
    Trouble {
        /// Stable name, for the note.
        code: &'static str,
        /// One sentence.
        message: String,
    },
    /// The stream has ended, and everything was passed on.
    Closed(Stream),
    /// A line of the GPU probe.
    GpuRow(String),
    /// A reading of the cards whose driver the kernel's files ask.
    Cards(Vec<GpuSample>),
    /// The files of metrics were read to their ends, for the last time.
    FilesRead,
}

/// The end of a stream, shared between its pump and the verdict.
pub type SharedTail = Arc<Mutex<LastBytes>>;

/// Everything one pump works with.
pub struct Pump {
    /// Which stream it is.
    pub stream: Stream,
    /// Where its bytes are copied.
    pub capture: Capture,
    /// Where its end is kept.
    pub tail: SharedTail,
    /// Where its log goes, if it is collected.
    pub shipper: Option<Arc<Shipper>>,
    /// Cuts the stream into lines, where somebody wants them.
    pub lines: Option<LineCutter>,
    /// Who is told.
    pub heard: mpsc::Sender<Heard>,
    /// Held by whoever starts the pumps until all are started: what is read when another cannot be started would be
    /// lost.
    pub gate: Arc<Mutex<()>>,
}

impl Pump {
    /// Starts the thread that carries everything from `source` to `sink`. If that fails, `source` is still the
    /// caller's: the trial would die of a pipe without a reader.
    pub fn start(
        self,
        source: &Arc<File>,
        sink: OwnedFd,
        spec: &CollectSpec,
    ) -> Result<(), io::Error> {
        let scanner = StreamScanner::new(spec, self.stream);
        let name = match self.stream {
            Stream::Stdout => "stdout",
            Stream::Stderr => "stderr",
        };
        let source = Arc::clone(source);
        // Nobody joins it: it ends with the trial's last writer, which we do not wait for for ever.
        thread::Builder::new()
            .name(name.to_owned())
            .stack_size(READER_STACK)
            .spawn(move || self.carry(&source, File::from(sink), scanner))?;
        Ok(())
    }

    fn carry(mut self, mut source: &File, sink: File, mut scanner: StreamScanner) {
        let mut sink = Sink { file: sink, open: true, told: false };
        let mut buffer = vec![0; FIRST_CHUNK];
        drop(self.gate.lock().unwrap_or_else(PoisonError::into_inner));
        loop {
            let bytes = match source.read(&mut buffer) {
                Ok(0) => break,
                Ok(FIRST_CHUNK) if buffer.len() == FIRST_CHUNK => {
                    buffer.resize(CHUNK, 0);
                    &buffer[..FIRST_CHUNK]
                }
                Ok(length) => &buffer[..length],
                Err(source) if source.kind() == io::ErrorKind::Interrupted => continue,
                Err(source) => {
                    self.trouble("output-unreadable", format!("cannot read the output: {source}"));
                    break;
                }
            };
            crate::faults::here("pump");
            // First what must not wait for a slow consumer.
            let mut found = Vec::new();
            scanner.feed(bytes, &mut found);
            self.tell(found, |cutter, lines| cutter.feed(bytes, lines));
            self.tail.lock().unwrap_or_else(PoisonError::into_inner).push(bytes);
            if let Some(shipper) = &self.shipper {
                shipper.feed(bytes);
            }
            self.capture.output(self.stream, bytes);
            if let Err(source) = sink.pass_on(bytes) {
                self.trouble("output-closed", format!("cannot pass the output on: {source}"));
            }
        }
        let mut found = Vec::new();
        scanner.finish(&mut found);
        self.tell(found, LineCutter::finish);
        if let Some(shipper) = &self.shipper {
            shipper.flush(true);
        }
        self.send(Heard::Closed(self.stream));
    }

    fn tell(&mut self, found: Vec<Finding>, cut: impl FnOnce(&mut LineCutter, &mut Vec<Line>)) {
        match &mut self.lines {
            None if found.is_empty() => {}
            None => self.send(Heard::Findings(found)),
            Some(cutter) => {
                let mut lines = Vec::new();
                cut(cutter, &mut lines);
                if !(lines.is_empty() && found.is_empty()) {
                    self.send(Heard::Lines(lines, found));
                }
            }
        }
    }

    fn trouble(&self, code: &'static str, message: String) {
        self.send(Heard::Trouble { code, message });
    }

    fn send(&self, heard: Heard) {
        // Waits for the main task, which waits for nobody. It may have gone: then the bytes still flow.
        self.heard.blocking_send(heard).ok();
    }
}

/// Our own stdout or stderr.
struct Sink {
    file: File,
    open: bool,
    told: bool,
}

impl Sink {
    /// Writes everything; an error is returned the first time only.
    fn pass_on(&mut self, mut bytes: &[u8]) -> Result<(), io::Error> {
        while self.open && !bytes.is_empty() {
            match self.file.write(bytes) {
                Ok(length) => bytes = &bytes[length..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // Whoever gave us the descriptor made it non-blocking.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.wait(),
                Err(error) => {
                    // A reader that went away does not come back; a full disk may have room later.
                    self.open = error.kind() != io::ErrorKind::BrokenPipe;
                    let told = std::mem::replace(&mut self.told, true);
                    return if told { Ok(()) } else { Err(error) };
                }
            }
        }
        Ok(())
    }

    fn wait(&self) {
        let mut fds = [PollFd::new(self.file.as_fd(), PollFlags::POLLOUT)];
        // Whatever it returns, the next write tells what is the case.
        poll(&mut fds, PollTimeout::NONE).ok();
    }
}

#[cfg(test)]
mod tests {
    use std::io::{PipeReader, pipe};

    use super::*;
    use crate::capture::Places;

    fn pump(heard: mpsc::Sender<Heard>) -> (Pump, SharedTail) {
        let tail = SharedTail::default();
        let capture = Capture::new(Places::default());
        let stream = Stream::Stdout;
        let (tail_of_pump, gate) = (Arc::clone(&tail), Arc::default());
        let pump =
            Pump { stream, capture, tail: tail_of_pump, shipper: None, lines: None, heard, gate };
        (pump, tail)
    }

    fn file(source: PipeReader) -> Arc<File> {
        Arc::new(File::from(OwnedFd::from(source)))
    }

    #[test]
    fn bytes_pass_unchanged_and_the_end_is_told() {
        let (tell, mut told) = mpsc::channel(8);
        let (pump, tail) = pump(tell);
        let ((source, mut trial), (mut ours, sink)) = (pipe().unwrap(), pipe().unwrap());
        pump.start(&file(source), sink.into(), &CollectSpec::default()).unwrap();
        trial.write_all(b"a\xff\r\nno newline").unwrap();
        drop(trial);
        let mut passed = Vec::new();
        ours.read_to_end(&mut passed).unwrap();
        assert_eq!(passed, b"a\xff\r\nno newline");
        assert!(matches!(told.blocking_recv(), Some(Heard::Closed(Stream::Stdout))));
        assert_eq!(tail.lock().unwrap().bytes(), passed);
    }

    #[test]
    fn reading_goes_on_when_our_own_output_is_closed() {
        let (tell, mut told) = mpsc::channel(8);
        let (pump, tail) = pump(tell);
        let ((source, mut trial), (ours, sink)) = (pipe().unwrap(), pipe().unwrap());
        drop(ours);
        pump.start(&file(source), sink.into(), &CollectSpec::default()).unwrap();
        for _ in 0..4 {
            trial.write_all(&vec![b'x'; CHUNK]).unwrap();
        }
        drop(trial);
        assert!(matches!(told.blocking_recv(), Some(Heard::Trouble { code: "output-closed", .. })));
        assert!(matches!(told.blocking_recv(), Some(Heard::Closed(Stream::Stdout))), "said once");
        assert_eq!(tail.lock().unwrap().total(), 4 * u64::try_from(CHUNK).unwrap());
    }

    #[test]
    fn a_descriptor_that_does_not_block_is_waited_for() {
        let (tell, _told) = mpsc::channel(8);
        let (pump, _) = pump(tell);
        let ((source, mut trial), (mut ours, sink)) = (pipe().unwrap(), pipe().unwrap());
        let flags = nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK);
        nix::fcntl::fcntl(&sink, flags).unwrap();
        pump.start(&file(source), sink.into(), &CollectSpec::default()).unwrap();
        let writer = thread::spawn(move || trial.write_all(&vec![b'x'; 8 * CHUNK]).unwrap());
        let mut passed = Vec::new();
        ours.read_to_end(&mut passed).unwrap();
        assert_eq!(passed.len(), 8 * CHUNK);
        writer.join().unwrap();
    }
}
