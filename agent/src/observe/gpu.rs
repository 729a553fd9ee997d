//! The process that reads NVIDIA's GPUs, and its output.

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use tokio::sync::{mpsc, oneshot};

use crate::observe::sample::gpu::{
    GpuTable, GpuTableEvent, Probe, ProbeAction, ProbeCommand, ProbeEvent, ProbeRow, VisibleGpus,
    parse_row,
};
use crate::output::{HELPER_STACK_BYTES, IntakeEvent};
use crate::trial::reap::{ChildRole, Reaper};

/// The maximum length of a line, in bytes. Longer lines are split.
const MAX_LINE_BYTES: u64 = 4096;

/// The probe process and its readings.
#[derive(Debug)]
pub(super) struct NvidiaGpus {
    program: Option<PathBuf>,
    interval: Duration,
    probe: Probe,
    /// The last readings.
    pub(super) table: GpuTable,
    running: Option<(Child, oneshot::Receiver<ExitStatus>)>,
    reaper: Reaper,
    events: mpsc::Sender<IntakeEvent>,
}

impl NvidiaGpus {
    pub(super) fn new(
        program: Option<PathBuf>,
        interval: Duration,
        own: VisibleGpus,
        reaper: Reaper,
        events: mpsc::Sender<IntakeEvent>,
    ) -> Self {
        let (probe, table) = (Probe::new(interval), GpuTable::new(interval, own));
        Self { program, interval, probe, table, running: None, reaper, events }
    }

    /// Starts, kills or abandons the probe process as needed.
    pub(super) fn step_probe(&mut self, now: Duration) {
        let Some(program) = self.program.clone() else { return };
        if let Some((_, ended)) = &mut self.running
            && ended.try_recv().is_ok()
        {
            self.running = None;
            self.probe.step(ProbeEvent::Ended, now);
        }
        match self.probe.step(ProbeEvent::Tick, now) {
            ProbeAction::Wait(_) => {}
            ProbeAction::Start => {
                let event = self.start(program);
                if event == ProbeEvent::Started {
                    self.table.discard_round();
                }
                self.probe.step(event, now);
            }
            ProbeAction::Kill => self.end_probe(),
            ProbeAction::GiveUp => self.program = None,
        }
    }

    fn start(&mut self, program: PathBuf) -> ProbeEvent {
        let ProbeCommand { program, args } = ProbeCommand::new(program, self.interval);
        let Ok((reader, writer)) = std::io::pipe() else { return ProbeEvent::Ended };
        let Ok(errors) = writer.try_clone() else { return ProbeEvent::Ended };
        let mut command = Command::new(program);
        command.args(args).stdin(Stdio::null()).stdout(writer).stderr(errors);
        // The agent searches for English phrases such as "lost", so the output must not be translated.
        command.env("LC_ALL", "C");
        match self.reaper.spawn(&mut command, ChildRole::Helper) {
            Ok(running) => {
                let events = self.events.clone();
                let named =
                    thread::Builder::new().name("gpu".to_owned()).stack_size(HELPER_STACK_BYTES);
                // Without the thread, the pipe is closed. The tool then ends, and is started again later.
                named.spawn(move || copy_lines(reader, &events)).ok();
                self.running = Some(running);
                ProbeEvent::Started
            }
            // The limit of processes or files may be reached only briefly.
            Err(error)
                if matches!(
                    error.raw_os_error().map(Errno::from_raw),
                    Some(Errno::EAGAIN | Errno::ENOMEM | Errno::EMFILE | Errno::ENFILE)
                ) =>
            {
                ProbeEvent::Ended
            }
            Err(_) => ProbeEvent::Absent,
        }
    }

    /// Processes a line of the probe's output.
    pub(super) fn add_row(&mut self, line: &str, now: Duration) -> Vec<GpuTableEvent> {
        let row = parse_row(line);
        if matches!(row, ProbeRow::Reading(_)) {
            self.probe.step(ProbeEvent::Reading, now);
        }
        self.table.add_row(row, now)
    }

    /// Kills the process, if it is running.
    pub(super) fn end_probe(&mut self) {
        if let Some((child, ended)) = &mut self.running
            // The pid of a reaped process may belong to another process.
            && matches!(ended.try_recv(), Err(oneshot::error::TryRecvError::Empty))
        {
            child.kill().ok();
        }
    }
}

fn copy_lines(pipe: impl Read, events: &mpsc::Sender<IntakeEvent>) {
    let mut reader = BufReader::with_capacity(4096, pipe);
    let mut line = Vec::new();
    loop {
        line.clear();
        match (&mut reader).take(MAX_LINE_BYTES).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        let text = String::from_utf8_lossy(&line).into_owned();
        if events.blocking_send(IntakeEvent::GpuRow(text)).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readings_of_a_silent_probe_are_not_repeated() {
        let interval = Duration::from_secs(5);
        let own = VisibleGpus::default();
        let mut gpus = NvidiaGpus::new(None, interval, own, Reaper::default(), mpsc::channel(1).0);
        for second in [5, 10] {
            gpus.add_row(
                "0, GPU-1, 97, 1, 2, 3, 4, 5, 6, 0, Disabled, X",
                Duration::from_secs(second),
            );
        }
        let last = gpus.table.last_readings();
        assert_eq!(last.len(), 1);
        #[rustfmt::skip]
        let table = [(10, true), (40, true), (41, false), (900, false)];
        for (second, current) in table {
            let expected = if current { &last[..] } else { &[] };
            assert_eq!(
                gpus.table.current_readings(Duration::from_secs(second)),
                expected,
                "at {second} s"
            );
        }
        assert_eq!(gpus.table.last_readings(), last, "the verdict contains the reading");
    }
}
