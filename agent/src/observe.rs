//! Observes the trial from outside while it runs: samples, and the alarms that they raise. The verdict is based on
//! these observations.
//!
//! All reads here are short reads of kernel files. A GPU driver may hang, so it is read in a process of its own, see
//! [`gpu`], or on a thread of its own, see [`amd_gpus`].

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::PoisonError;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;
use trial_protocol::{CgroupSample, GpuSample, LogChunk, ProcessSample, Sample, Stream};

use crate::observe::detect::{Alarm, DetectSpec, DetectorInput, Detectors};
use crate::observe::sample::cgroup::{CgroupReader, cpu_percent, memory_percent};
use crate::observe::sample::gpu::{GpuTableEvent, VisibleGpus};
use crate::observe::sample::process::ProcessReader;
use crate::output::log_lines::last_lines;
use crate::output::{IntakeEvent, SharedTail};
use crate::trial::reap::Reaper;
use crate::util::numbers::to_millis;
use crate::util::secrets::Secrets;
use crate::verdict::Observations;

mod amd_gpus;
pub mod detect;
mod gpu;
pub mod sample;

use amd_gpus::AmdGpus;
use gpu::NvidiaGpus;

/// The settings of the observation.
#[derive(Debug, Clone, PartialEq)]
pub struct Spec {
    /// Time between two samples. `None`: no samples are taken.
    pub interval: Option<Duration>,
    /// The program that reads NVIDIA's GPUs. `None`: no such program is used.
    pub gpu_program: Option<PathBuf>,
    /// The GPUs of the trial.
    pub own_gpus: VisibleGpus,
    /// The limits for the detectors.
    pub detect: DetectSpec,
    /// The secrets to mask in excerpts of the trial's output.
    pub secrets: Secrets,
}

/// An observation for the trial's timeline.
#[derive(Debug, Clone, PartialEq)]
pub enum ObserverEvent {
    /// An alarm of a detector.
    Alarm(Alarm),
    /// A GPU has disappeared. Its UUID or index.
    GpuLost(String),
}

impl ObserverEvent {
    /// Returns the stable name of the event's kind.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Alarm(alarm) => alarm.code(),
            Self::GpuLost(_) => "gpu-lost",
        }
    }

    /// Returns a sentence for the user.
    pub fn message(&self) -> String {
        match self {
            Self::Alarm(alarm) => alarm.message(),
            Self::GpuLost(gpu) => format!("{gpu} has disappeared."),
        }
    }
}

/// Observes the trial from outside.
#[derive(Debug)]
pub struct Observer {
    spec: Spec,
    reaper: Reaper,
    started: Instant,
    stdout: SharedTail,
    stderr: SharedTail,
    printed_bytes: u64,
    cgroup: Option<CgroupReader>,
    cgroup_before: Option<CgroupSample>,
    processes: Option<ProcessReader>,
    process_peak_bytes: Option<u64>,
    gpus: NvidiaGpus,
    amd_gpus: AmdGpus,
    detectors: Detectors,
    last: Option<Sample>,
    last_at: Duration,
}

impl Observer {
    /// Returns an observer for a trial that is about to start. It reads nothing yet.
    pub fn new(
        spec: Spec,
        reaper: Reaper,
        events: mpsc::Sender<IntakeEvent>,
        stdout: SharedTail,
        stderr: SharedTail,
    ) -> Self {
        let interval = spec.interval.unwrap_or_default();
        Self {
            amd_gpus: AmdGpus::new(Path::new("/"), interval, spec.own_gpus.clone(), events.clone()),
            gpus: NvidiaGpus::new(
                spec.gpu_program.clone(),
                interval,
                spec.own_gpus.clone(),
                reaper.clone(),
                events,
            ),
            detectors: Detectors::new(spec.detect.clone(), Duration::ZERO),
            spec,
            reaper,
            started: Instant::now(),
            stdout,
            stderr,
            printed_bytes: 0,
            cgroup: None,
            cgroup_before: None,
            processes: None,
            process_peak_bytes: None,
            last: None,
            last_at: Duration::ZERO,
        }
    }

    /// Returns the trial's running time.
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Returns the last sample.
    pub fn last_sample(&self) -> Option<&Sample> {
        self.last.as_ref()
    }

    /// Returns the idle time of each GPU, in milliseconds.
    pub fn gpu_idle_ms(&self) -> BTreeMap<String, u64> {
        let idle = self.detectors.gpu_idle_total().into_iter();
        idle.map(|(gpu, time)| (gpu, to_millis(time))).filter(|(_, time)| *time > 0).collect()
    }

    /// Reads the values for comparison at the trial's end, once. The trial may already be running, but its use is still
    /// negligible.
    pub fn read_baseline(&mut self) {
        if self.cgroup.is_some() {
            return;
        }
        self.cgroup = CgroupReader::find(Path::new("/"));
        self.cgroup_before = self.cgroup.as_ref().map(CgroupReader::read);
    }

    /// Returns the time of the next sample after `now`.
    pub fn next_sample(&self, now: Instant) -> Option<Instant> {
        let interval = self.spec.interval?;
        // The first sample is early, so that a trial of a few seconds has one.
        let first = self.started + interval.min(Duration::from_secs(1));
        Some(if now < first { first } else { now + interval })
    }

    /// Takes a sample.
    pub fn sample(&mut self, observer_events: &mut Vec<ObserverEvent>) -> Sample {
        let now = self.started.elapsed();
        self.gpus.step_probe(now);
        let reader = &mut self.processes;
        if reader.is_none() {
            *reader = ProcessReader::new();
        }
        let helpers = self.reaper.helpers();
        let process =
            reader.as_mut().and_then(|reader| reader.read(std::process::id(), &helpers, now));
        let memory = process.as_ref().map(|process: &ProcessSample| process.memory_bytes);
        self.process_peak_bytes = self.process_peak_bytes.max(memory);
        if self.gpus.table.is_empty() {
            self.amd_gpus.request_reading();
        }
        let nvidia = self.gpus.table.current_readings(now);
        let gpus =
            if nvidia.is_empty() { self.amd_gpus.table.current_readings(now) } else { nvidia };
        let elapsed = now.saturating_sub(std::mem::replace(&mut self.last_at, now));
        let elapsed_us = u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX);
        let before = self.last.take().and_then(|last| last.cgroup);
        let mut cgroup = self.cgroup.as_ref().map(CgroupReader::read);
        if let Some(cgroup) = &mut cgroup {
            cgroup.memory_percent = memory_percent(cgroup);
            cgroup.cpu_percent = before.and_then(|before| cpu_percent(&before, cgroup, elapsed_us));
        }
        let sample = Sample { process, cgroup, gpus };

        let printed_bytes = total_bytes(&self.stdout) + total_bytes(&self.stderr);
        let mut alarms = Vec::new();
        if std::mem::replace(&mut self.printed_bytes, printed_bytes) != printed_bytes {
            alarms.extend(self.detectors.observe(DetectorInput::Output, now));
        }
        alarms.extend(self.detectors.observe(DetectorInput::Sample(&sample), now));
        observer_events.extend(alarms.into_iter().map(ObserverEvent::Alarm));
        self.last = Some(sample.clone());
        sample
    }

    /// Returns the condition in the last sample that requires the trial's end.
    pub fn reason_to_stop(&self) -> Option<Alarm> {
        self.detectors.reason_to_stop(self.last_at)
    }

    /// Records that the trial has completed a step.
    pub fn record_step(&mut self) -> Vec<ObserverEvent> {
        let alarms = self.detectors.observe(DetectorInput::Metric, self.started.elapsed());
        alarms.into_iter().map(ObserverEvent::Alarm).collect()
    }

    /// Processes a line from the GPU probe.
    pub fn record_gpu_row(&mut self, line: &str) -> Vec<ObserverEvent> {
        let events = self.gpus.add_row(line, self.started.elapsed());
        to_lost_events(events)
    }

    /// Processes a reading of AMD GPUs.
    pub fn record_amd_gpus(&mut self, gpus: Vec<GpuSample>) -> Vec<ObserverEvent> {
        let events = self.amd_gpus.add_reading(gpus, self.started.elapsed());
        to_lost_events(events)
    }

    /// Ends the GPU probe.
    pub fn end_probes(&mut self) {
        self.gpus.end_probe();
    }

    fn masked_tail(&self, bytes: &SharedTail) -> Vec<u8> {
        let mut last = bytes.lock().unwrap_or_else(PoisonError::into_inner).bytes();
        self.spec.secrets.mask(&mut last);
        last
    }

    /// Returns the observations after a trial that printed nothing and succeeded. The control group is not read in this
    /// case.
    pub fn observations_of_fast_success(&self) -> Observations {
        Observations { duration_ms: Some(to_millis(self.elapsed())), ..Observations::default() }
    }

    /// Returns all observations except the trial's exit.
    pub fn observations(&self) -> Observations {
        Observations {
            duration_ms: Some(to_millis(self.elapsed())),
            stdout_tail: self.masked_tail(&self.stdout),
            stderr_tail: self.masked_tail(&self.stderr),
            // The first process of a container. Elsewhere, other trials may be in the same control group.
            is_alone_in_cgroup: std::process::id() == 1,
            cgroup_before: self.cgroup_before.clone(),
            cgroup_after: self.cgroup.as_ref().map(CgroupReader::read),
            process_peak_bytes: self.process_peak_bytes,
            gpus: [self.gpus.table.last_readings(), self.amd_gpus.table.last_readings()].concat(),
            gpu_idle_ms: self.gpu_idle_ms(),
            gpus_lost: [self.gpus.table.lost_gpus(), self.amd_gpus.table.lost_gpus()].concat(),
            ..Observations::default()
        }
    }

    /// Returns the last lines of both streams, for a manager that received no logs.
    pub fn last_lines(&self, observed: &Observations) -> impl Iterator<Item = LogChunk> {
        let stdout = last_lines(Stream::Stdout, total_bytes(&self.stdout), &observed.stdout_tail);
        let stderr = last_lines(Stream::Stderr, total_bytes(&self.stderr), &observed.stderr_tail);
        stdout.into_iter().chain(stderr)
    }

    /// Returns the observations while the trial runs.
    pub fn observations_so_far(&self) -> Observations {
        let working_set_bytes = self.cgroup.as_ref().and_then(CgroupReader::working_set);
        Observations { working_set_bytes, ..self.observations() }
    }
}

fn to_lost_events(events: Vec<GpuTableEvent>) -> Vec<ObserverEvent> {
    let lost = events.into_iter().filter_map(|event| match event {
        GpuTableEvent::Lost(gpu) => Some(ObserverEvent::GpuLost(gpu)),
        GpuTableEvent::Round(_) => None,
    });
    lost.collect()
}

fn total_bytes(bytes: &SharedTail) -> u64 {
    bytes.lock().unwrap_or_else(PoisonError::into_inner).total()
}
