//! Starts the threads that read the trial's output.

use std::io;
use std::os::fd::OwnedFd;
use std::process::Stdio;
use std::sync::Arc;

use tokio::sync::mpsc;
use trial_protocol::Stream;

use crate::capture::Capture;
use crate::clock::Clock;
use crate::collect::LineCutter;
use crate::log_ship::Shipper;
use crate::output::{Heard, Pump, SharedTail};
use crate::settings::Settings;
use crate::spool::Spool;

/// What the pumps of both streams have in common.
pub(super) struct Pumps<'a> {
    settings: &'a Settings,
    capture: &'a Capture,
    tell: mpsc::Sender<Heard>,
    spool: &'a Spool,
    clock: &'a Arc<dyn Clock>,
    running: Running,
}

/// What was started.
#[derive(Default)]
pub(super) struct Running {
    /// Streams that are read.
    pub(super) open: Vec<Stream>,
    /// The logs of those, if they are collected.
    pub(super) shippers: Vec<Arc<Shipper>>,
}

impl<'a> Pumps<'a> {
    /// None is started yet.
    pub(super) fn new(
        settings: &'a Settings,
        capture: &'a Capture,
        tell: mpsc::Sender<Heard>,
        spool: &'a Spool,
        clock: &'a Arc<dyn Clock>,
    ) -> Self {
        Self { settings, capture, tell, spool, clock, running: Running::default() }
    }

    /// What the trial gets as `stream`: a pipe with a pump behind it that writes to `sink`, or, where that
    /// cannot be had, our own.
    pub(super) fn start(
        &mut self,
        stream: Stream,
        sink: Result<OwnedFd, io::Error>,
    ) -> (Stdio, SharedTail) {
        let tail = SharedTail::default();
        // An NNI manager wants lines, and no log of ours.
        let legacy = self.settings.legacy.as_ref();
        let logs = self.settings.logs.clone().filter(|_| legacy.is_none());
        let shipper = logs.map(|spec| {
            Arc::new(Shipper::new(stream, spec, self.spool.clone(), Arc::clone(self.clock)))
        });
        let pump = Pump {
            stream,
            capture: self.capture.clone(),
            tail: Arc::clone(&tail),
            shipper: shipper.clone(),
            lines: legacy.map(|legacy| LineCutter::new(legacy.collect_logs)),
            heard: self.tell.clone(),
        };
        let started = sink.and_then(|sink| {
            let (source, trials) = io::pipe()?;
            pump.start(source.into(), sink, &self.settings.collect)?;
            Ok(trials)
        });
        match started {
            Ok(trials) => {
                self.running.open.push(stream);
                self.running.shippers.extend(shipper);
                (Stdio::from(trials), tail)
            }
            Err(source) => {
                tracing::warn!(
                    "cannot read the trial's output ({source}); no metrics are found in it"
                );
                (Stdio::inherit(), tail)
            }
        }
    }

    /// What was started. The pumps alone hold their channel from now on.
    pub(super) fn running(self) -> Running {
        self.running
    }
}
