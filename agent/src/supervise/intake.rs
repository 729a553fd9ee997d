//! The intake of observations: passes the findings of pumps, files, probes and the SDK's channel to the recorder, and
//! the data for the verdict to the observer.

use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};
use trial_protocol::ReportBody;

use crate::collect::Finding;
use crate::observe::{Observer, ObserverEvent};
use crate::output::IntakeEvent;
use crate::supervise::recorder::Recorder;
use crate::supervise::rules::{RuleViolation, Rules};

/// The maximum wait for the last read of the metric files.
const LAST_READING_WAIT: Duration = Duration::from_secs(1);

/// The sources and the receivers of observations.
pub struct Intake {
    recorder: Recorder,
    observer: Observer,
    events: mpsc::Receiver<IntakeEvent>,
    channel: mpsc::Receiver<Finding>,
}

impl Intake {
    /// Creates an intake of the messages of pumps and other threads, and of the findings of the SDK's channel.
    pub fn new(
        recorder: Recorder,
        observer: Observer,
        events: mpsc::Receiver<IntakeEvent>,
        channel: mpsc::Receiver<Finding>,
    ) -> Self {
        Self { recorder, observer, events, channel }
    }

    /// Returns the recorder and the observer, after the trial's end.
    pub fn into_parts(self) -> (Recorder, Observer) {
        (self.recorder, self.observer)
    }

    /// Waits for the next event. Cancel-safe.
    pub(super) async fn next_event(&mut self) -> IntakeEvent {
        tokio::select! {
            biased;
            Some(event) = self.events.recv() => event,
            Some(finding) = self.channel.recv() => IntakeEvent::Findings(vec![finding]),
            else => std::future::pending().await,
        }
    }

    /// Returns the observer.
    pub(super) fn observer(&self) -> &Observer {
        &self.observer
    }

    /// Returns the time of the next sample.
    pub(super) fn next_sample(&self, now: Instant) -> Option<Instant> {
        self.observer.next_sample(now)
    }

    /// Ends the observer's probes.
    pub(super) fn end_observing(&mut self) {
        self.observer.end_probes();
    }

    /// Returns the recorder.
    pub(super) fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    /// Returns the rules for stopping the trial.
    pub(super) fn rules(&mut self) -> &mut Rules {
        self.recorder.rules()
    }

    /// Returns the rule that the latest metrics have violated, once.
    pub(super) fn take_violation(&mut self) -> Option<RuleViolation> {
        self.recorder.take_violation()
    }

    /// Records a note.
    pub(super) fn note(&self, code: &str, message: impl Into<String>) {
        self.recorder.note(code, message.into());
    }

    /// Takes a sample and records it.
    pub(super) fn take_sample(&mut self) {
        let mut observer_events = Vec::new();
        let sample = self.observer.sample(&mut observer_events);
        self.recorder.report(ReportBody::Sample(Box::new(sample)));
        self.record_observer_events(&observer_events);
    }

    /// Records an event.
    pub(super) fn record(&mut self, event: IntakeEvent) {
        match event {
            IntakeEvent::Findings(findings) => {
                let steps = self.recorder.record(findings);
                self.record_steps(steps);
            }
            IntakeEvent::Lines(lines, findings) => {
                let steps = self.recorder.record_lines(lines, findings);
                self.record_steps(steps);
            }
            IntakeEvent::GpuRow(line) => {
                let observer_events = self.observer.record_gpu_row(&line);
                self.record_observer_events(&observer_events);
            }
            IntakeEvent::AmdReading(gpus) => {
                let observer_events = self.observer.record_amd_gpus(gpus);
                self.record_observer_events(&observer_events);
            }
            IntakeEvent::Problem { code, message } => {
                tracing::warn!("{message}");
                self.recorder.note(code, message);
            }
            IntakeEvent::Closed(_) | IntakeEvent::MetricFilesRead => {}
        }
    }

    fn record_steps(&mut self, steps: u64) {
        for _ in 0..steps {
            let observer_events = self.observer.record_step();
            self.record_observer_events(&observer_events);
        }
    }

    fn record_observer_events(&self, observer_events: &[ObserverEvent]) {
        for event in observer_events {
            tracing::warn!("{}", event.message());
            self.recorder.note(event.code(), event.message());
        }
    }

    /// Records events until the metric files were read for the last time.
    pub(super) async fn record_last_reading(&mut self) {
        let bound = Instant::now() + LAST_READING_WAIT;
        loop {
            match timeout_at(bound, self.events.recv()).await {
                Ok(Some(IntakeEvent::MetricFilesRead) | None) => return,
                Ok(Some(event)) => self.record(event),
                Err(_) => {
                    let message = "the metric files did not respond; their ends are missing";
                    self.recorder.note("metric-files", message.to_owned());
                    return;
                }
            }
        }
    }

    /// Records all events that have arrived by now.
    pub(super) fn record_arrived_events(&mut self) {
        while let Ok(event) = self.events.try_recv() {
            self.record(event);
        }
        while let Ok(finding) = self.channel.try_recv() {
            self.record(IntakeEvent::Findings(vec![finding]));
        }
    }
}
