//! Starts the threads that read the trial's output.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::mpsc;
use trial_protocol::Stream;

use crate::collect::LineCutter;
use crate::output::capture::Capture;
use crate::output::log_shipper::LogShipper;
use crate::output::{IntakeEvent, Pump, SharedTail, StreamForwarder};
use crate::run::settings::Settings;
use crate::spool::Spool;
use crate::trial::reexec::reexec;
use crate::util::clock::Clock;

/// The state that the pumps of both streams share.
pub(super) struct Pumps<'a> {
    settings: &'a Settings,
    capture: &'a Capture,
    events: mpsc::Sender<IntakeEvent>,
    spool: &'a Spool,
    clock: &'a Arc<dyn Clock>,
    start_gate: Arc<Mutex<()>>,
    running: RunningPumps,
}

/// The started pumps.
#[derive(Default)]
pub(super) struct RunningPumps {
    /// The streams that are read.
    pub(super) open: Vec<Stream>,
    /// The forwarders of these streams, to drain at the end.
    pub(super) forwarders: Vec<StreamForwarder>,
    /// The log shippers of these streams, if logs are collected.
    pub(super) shippers: Vec<Arc<LogShipper>>,
}

impl<'a> Pumps<'a> {
    /// Prepares pumps without starting any.
    pub(super) fn new(
        settings: &'a Settings,
        capture: &'a Capture,
        events: mpsc::Sender<IntakeEvent>,
        spool: &'a Spool,
        clock: &'a Arc<dyn Clock>,
    ) -> Self {
        let (start_gate, running) = (Arc::default(), RunningPumps::default());
        Self { settings, capture, events, spool, clock, start_gate, running }
    }

    /// Reads the trial's standard output and error, and copies them to the agent's.
    pub(super) fn start_all(
        mut self,
        outputs: [Option<OwnedFd>; 2],
        tails: [SharedTail; 2],
    ) -> RunningPumps {
        let start_gate = Arc::clone(&self.start_gate);
        let _closed = start_gate.lock().unwrap_or_else(PoisonError::into_inner);
        let ([stdout, stderr], [stdout_tail, stderr_tail]) = (outputs, tails);
        let sink = io::stdout().as_fd().try_clone_to_owned();
        self.start(Stream::Stdout, stdout, sink, stdout_tail);
        let sink = io::stderr().as_fd().try_clone_to_owned();
        self.start(Stream::Stderr, stderr, sink, stderr_tail);
        self.running
    }

    /// Reads `stream` from `source`, and copies it to `sink`. `None`: the trial writes to the agent's stream.
    ///
    /// An unread stream would block the trial once its pipe is full, so a failure here is a fault of the agent.
    fn start(
        &mut self,
        stream: Stream,
        source: Option<OwnedFd>,
        sink: Result<OwnedFd, io::Error>,
        tail: SharedTail,
    ) {
        let Some(source) = source else { return };
        let source = Arc::new(File::from(source));
        // An NNI manager accepts only lines, so the agent ships no logs.
        let legacy = self.settings.legacy.as_ref();
        let logs = self.settings.logs.clone().filter(|_| legacy.is_none());
        let shipper = logs.map(|spec| {
            Arc::new(LogShipper::new(stream, spec, self.spool.clone(), Arc::clone(self.clock)))
        });
        let pump = Pump {
            stream,
            capture: self.capture.clone(),
            tail,
            shipper: shipper.clone(),
            lines: legacy.map(|legacy| LineCutter::new(legacy.collect_logs)),
            events: self.events.clone(),
            start_gate: Arc::clone(&self.start_gate),
        };
        let started = sink.and_then(|sink| pump.start(&source, sink, &self.settings.collect));
        match started {
            Ok(forwarder) => self.running.forwarders.push(forwarder),
            Err(error) => {
                tracing::error!("cannot read the trial's output: {error}");
                reexec();
            }
        }
        self.running.open.push(stream);
        self.running.shippers.extend(shipper);
    }
}
