//! The part of a run between the trial's start and its end: opens everything that watches the trial, and supervises it.
//! [`RunFinisher`] follows.

use std::sync::Arc;

use tokio::sync::mpsc;
use trial_protocol::{Directive, ReportBody};

use super::channel::{ChannelShutdown, RunningChannel};
use super::delivery::Delivery;
use super::finish::{EndedRun, RunFinisher};
use super::launch::{LaunchResult, StartedTrial};
use super::prepare::PreparedRun;
use super::pumps::{Pumps, RunningPumps};
use super::recording::{create_recorder, open_spool};
use super::{StartedRun, observations_at_end, spool_dir, summary};
use crate::http::status::listen;
use crate::output::metric_file::MetricFiles;
use crate::run::settings::Settings;
use crate::supervise::{Intake, StatusSource, Supervisor, TrialStreams, supervise};
use crate::trial;
use crate::trial::environment;
use crate::trial::reap::Reaper;
use crate::trial::signals::Signals;
use crate::util::clock::Clock;
use crate::util::errors::chain;
use crate::verdict::{Observations, TrialEnd};

/// A run whose trial was started, or failed to start.
pub(super) struct WatchedRun {
    started: Result<StartedTrial, trial::Error>,
    /// The supervisor's parts, used if the trial was started.
    parts: SupervisorParts,
    channel: ChannelShutdown,
    finish: RunFinisher,
}

/// The parts of a supervisor besides the trial.
struct SupervisorParts {
    reaper: Reaper,
    signals: Signals,
    intake: Intake,
    streams: TrialStreams,
    metric_files: MetricFiles,
    directives: mpsc::Receiver<Directive>,
    status: StatusSource,
}

impl WatchedRun {
    /// Opens everything that watches the trial.
    pub(super) fn open(run: StartedRun, signals: Signals, clock: Arc<dyn Clock>) -> Self {
        let spool_dir = spool_dir(&run.prepared);
        let PreparedRun {
            mut settings,
            command,
            parameter_record,
            dir,
            earlier_verdict,
            parameter_id,
            ..
        } = run.prepared;
        settings.collect.variables =
            environment::numeric_variables(std::env::vars_os(), &command.environment);
        let LaunchResult { started, outputs } = run.launched;
        let capture = run.capture;
        let spool = open_spool(&settings, spool_dir.clone(), run.spool_lock, clock.now_ms());
        let pumps = Pumps::new(&settings, &capture, run.events_sender, &spool, &clock);
        let RunningPumps { open, forwarders, shippers } = pumps.start_all(outputs, run.tails);

        let RunningChannel { findings, shutdown: channel } = run.channel.serve(parameter_record);
        let recorder = create_recorder(&settings, &spool, clock, parameter_id);
        let trial = started.as_ref().ok().map(|(trial, _)| trial);
        recorder.report(ReportBody::Started(summary::started_report(&settings, trial)));
        if let Some(earlier) = earlier_verdict {
            recorder.note("earlier-attempt", summary::describe_earlier_attempt(&earlier));
        }
        let Delivery { directives, counts, shutdown } =
            Delivery::start(&settings, run.credentials, &spool);

        let (request_status, requests) = mpsc::channel(1);
        if let Some(address) = settings.listen {
            tokio::spawn(listen(address, request_status, shutdown.ended()));
        }
        let (sender, status_spool) = (settings.sender.clone(), spool.clone());
        let parts = SupervisorParts {
            reaper: run.reaper,
            signals,
            intake: Intake::new(recorder, run.observer, run.events, findings),
            streams: TrialStreams::new(open, forwarders.clone(), shippers),
            metric_files: run.metric_files,
            directives,
            status: StatusSource { requests, sender, spool: status_spool, counts },
        };
        let finish = RunFinisher { settings, dir, spool_dir, spool, capture, forwarders, shutdown };
        Self { started, parts, channel, finish }
    }

    /// Supervises the trial to its end, if it was started. Returns the end, and the parts for finishing the run.
    pub(super) async fn supervise(self) -> (EndedRun, RunFinisher) {
        let Self { started, parts, channel, finish } = self;
        let settings = &finish.settings;
        let ended = match started {
            Ok((trial, exit)) => {
                let supervisor = Supervisor {
                    trial,
                    exit,
                    reaper: parts.reaper,
                    signals: parts.signals,
                    intake: parts.intake,
                    streams: parts.streams,
                    metric_files: Some(parts.metric_files),
                    directives: parts.directives,
                    capture: finish.capture.clone(),
                    grace: settings.grace,
                    drain: settings.drain,
                    status: parts.status,
                };
                supervise_trial(settings, supervisor).await
            }
            Err(error) => {
                tracing::error!("{}", chain(&error));
                let (recorder, observer) = parts.intake.into_parts();
                let end = summary::trial_end_of(&error);
                let stop_signalled = matches!(end, TrialEnd::StoppedBefore { .. });
                let observations = Observations { end, ..observer.observations() };
                let signals = parts.signals;
                EndedRun { observations, recorder, signals, stop_signalled, typed_signal: None }
            }
        };
        channel.shut_down();
        (ended, finish)
    }
}

async fn supervise_trial(settings: &Settings, mut supervisor: Supervisor) -> EndedRun {
    let ending = supervise(&mut supervisor).await;
    let Supervisor { intake, signals, .. } = supervisor;
    let (mut recorder, observer) = intake.into_parts();
    let (stop_signalled, typed_signal) = (ending.stop_signalled, ending.typed_signal);
    let succeeded = ending.stop.is_none() && ending.status.is_some_and(|status| status.success());
    recorder.conclude(succeeded);
    let observations = observations_at_end(&observer, ending);
    if settings.manager.is_some() && settings.legacy.is_none() && settings.logs.is_none() {
        for last in observer.last_lines(&observations) {
            recorder.report(ReportBody::Log(last));
        }
    }
    EndedRun { observations, recorder, signals, stop_signalled, typed_signal }
}
