//! Tests of the task with a real store and intake. The training service starts nothing, and the clock only moves on a
//! test's request.

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::mpsc as std_mpsc;

use serde_json::json;
use tempfile::TempDir;
use tokio::task::JoinHandle;
use trial_protocol::{
    Cause, Class, Confidence, DirectiveBody, Evidence, ExperimentId, Lane, Metric, MetricKind,
    Offer, Report, ReportAck, ReportBatch, Started, StopRule, StopWhen, TrialExit, Verdict,
};

mod beginning;
mod doubles;
mod full_disk;
mod queues;
mod remaining_reports;
mod rules;
mod stopping;

use self::doubles::{FakeService, RecordingTuner};
use super::*;
use crate::config;
use crate::experiment::command::{Command, CommandError, NewLimits, WrittenDuration};
use crate::ingest::{self, Intake};
use crate::job_state::JobState;
use crate::notifications::OutboxWaker;
use crate::search::assessor::Assessor;
use crate::search::tuner::Outcome;
use crate::store::{Store, TrialRow, simulated_disk};
use crate::token::Secret;
use crate::training_service::{JobEndEvent, JobNews};
use crate::util::clock::SystemClock;

/// The time limit for a state to appear, in simulated time.
const STATE_TIMEOUT: Duration = Duration::from_secs(20);

/// Returns the path of the database in a test's folder.
fn database(folder: &TempDir) -> PathBuf {
    folder.path().join("db")
}

struct TestBed {
    store: Store,
    handle: ExperimentHandle,
    intake: Intake,
    jobs: mpsc::UnboundedSender<JobNews>,
    service: Arc<FakeService>,
    observed: RecordingTuner,
    task: JoinHandle<Result<ExperimentState, store::Error>>,
    /// While the receiver waits, tokio does not advance the clock, even if no task can run.
    _stand_still: std_mpsc::Sender<()>,
    folder: TempDir,
}

impl TestBed {
    async fn new() -> Self {
        Self::with_trials(1, None).await
    }

    /// Returns a search of this number of trials, one after the other.
    async fn with_trials(trials: u32, assessor: Option<Box<dyn Assessor>>) -> Self {
        Self::with_concurrency((1, trials), assessor).await
    }

    /// Returns a search with this concurrency, and this number of trials in all.
    async fn with_concurrency(numbers: (u32, u32), assessor: Option<Box<dyn Assessor>>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = simulated_disk::open(&database(&folder)).unwrap();
        let row = store::ExperimentRow {
            id: ExperimentId::new("e").unwrap(),
            canonical: json!({}),
            seed: 0,
            state: "RUNNING".to_owned(),
            created_at_ms: 0,
            ended_at_ms: None,
            elapsed_ms: 0,
            trouble: None,
        };
        store.experiment().create(row).await.unwrap();
        Self::start(folder, store, FakeService::default(), numbers, assessor)
    }

    /// Kills the manager and starts another, for which the jobs are alive.
    async fn restart_manager(self) -> Self {
        self.restart_manager_with(FakeService { alive: true, ..FakeService::default() }).await
    }

    /// Kills the manager and starts another with this service.
    async fn restart_manager_with(self, service: FakeService) -> Self {
        let (folder, store) = self.kill_manager().await;
        Self::start(folder, store, service, (1, 1), None)
    }

    /// Kills the manager and returns the files and the store for the next one.
    async fn kill_manager(self) -> (TempDir, Store) {
        let Self { folder, store, task, .. } = self;
        task.abort();
        drop(task.await);
        store.close().await;
        let store = simulated_disk::open(&database(&folder)).unwrap();
        (folder, store)
    }

    fn start(
        folder: TempDir,
        store: Store,
        service: FakeService,
        (concurrency, trials): (u32, u32),
        assessor: Option<Box<dyn Assessor>>,
    ) -> Self {
        let file = folder.path().join("experiment.yml");
        let text = format!(
            "{{trialCommand: 'true', trialConcurrency: {concurrency}, maxTrialNumber: {trials}, maxTrialDuration: 900s, \
             searchSpace: {{x: {{_type: choice, _value: [1]}}}}, tuner: {{name: Random}}, trainingService: {{platform: local}}}}"
        );
        std::fs::write(&file, text).unwrap();
        let id = ExperimentId::new("e").unwrap();
        let (handle, events) = ExperimentHandle::new(64);
        let intake = Intake::new(store.clone(), handle.clone(), id.clone(), Arc::new(SystemClock));
        let (jobs, gone) = mpsc::unbounded_channel();
        let (notices, _) = mpsc::unbounded_channel();
        let service = Arc::new(service);
        service.set_intake(&intake);
        let observed = RecordingTuner::default();
        let dependencies = Dependencies {
            id,
            spec: config::load(&file).unwrap(),
            store: store.clone(),
            advisers: Advisers {
                tuner: Some(Box::new(observed.clone())),
                assessor,
                external: None,
            },
            service: Arc::<FakeService>::clone(&service),
            code: None,
            secret: Arc::new(Secret::load_or_create(&folder.path().join("secret")).unwrap()),
            handle: handle.clone(),
            inbox: Inbox::new(handle.clone(), events),
            jobs: gone,
            waker: OutboxWaker::default(),
            notices,
            clock: Arc::new(SystemClock),
            lease: Duration::from_mins(1),
            stays_open: false,
        };
        let task = tokio::spawn(run_experiment(dependencies));
        let (stand_still, standing) = std_mpsc::channel::<()>();
        tokio::task::spawn_blocking(move || standing.recv());
        Self {
            store,
            handle,
            intake,
            jobs,
            service,
            observed,
            task,
            _stand_still: stand_still,
            folder,
        }
    }

    /// Waits until the only trial has this state, and returns it.
    async fn wait_for_trial(&self, wanted: JobState) -> TrialRow {
        let begun = std::time::Instant::now();
        loop {
            let trials = self.store.trials().all().await.unwrap();
            if let Some(row) = trials.iter().find(|row| row.state == wanted) {
                return row.clone();
            }
            assert!(
                begun.elapsed() < STATE_TIMEOUT,
                "the trial does not become {wanted}: {trials:?}"
            );
            tokio::task::yield_now().await;
        }
    }

    /// Waits until the task is idle. Otherwise the clock would run ahead of a task that waits for a slow disk, and the
    /// order of events would depend on the disk.
    async fn wait_until_idle(&self) {
        // The task answers in turn, and handles one due item at a time: a directive, a deadline or a beat.
        for _ in 0..3 {
            let nothing = NewLimits { concurrency: Some(0), ..NewLimits::default() };
            let refused = self.handle.command(Command::ChangeLimits(nothing)).await;
            assert!(
                matches!(refused, Err(CommandError::ZeroLimit(_) | CommandError::NoMoreTrials(_))),
                "{refused:?}"
            );
        }
    }

    /// Lets time pass while the task works.
    async fn pass_time(&self, seconds: u64) {
        self.wait_until_idle().await;
        for _ in 0..seconds {
            tokio::time::advance(Duration::from_secs(1)).await;
            self.wait_until_idle().await;
        }
    }

    /// Lets time pass until the trial is lost.
    async fn wait_until_lost(&self) -> TrialRow {
        for second in 0..100 {
            let row = self.store.trials().all().await.unwrap().remove(0);
            if row.state == JobState::Lost {
                assert!(second >= 60, "a trial is not lost before its lease has expired");
                return row;
            }
            self.pass_time(1).await;
        }
        panic!("the trial is not lost")
    }

    async fn report(
        &self,
        trial: &TrialRow,
        attempt: &str,
        seq: u64,
        bodies: Vec<ReportBody>,
    ) -> Result<ReportAck, ingest::Error> {
        let observed_at_ms = trial.created_at_ms;
        let report = |(seq, body)| Report { seq, observed_at_ms, body };
        let batch = ReportBatch {
            offer: Offer::new([]),
            experiment: ExperimentId::new("e").unwrap(),
            trial: trial.id.clone(),
            attempt: AttemptId::new(attempt).unwrap(),
            lane: Lane::Facts,
            reports: (seq..).zip(bodies).map(report).collect(),
            obeyed: Vec::new(),
            acknowledged: None,
            forgotten: None,
        };
        self.intake.accept(batch).await
    }

    async fn send(&self, trial: &TrialRow, seq: u64, bodies: Vec<ReportBody>) -> ReportAck {
        self.report(trial, trial.attempt.as_str(), seq, bodies).await.unwrap()
    }

    /// Returns a trial that has begun.
    async fn begin_trial(&self) -> TrialRow {
        let trial = self.wait_for_trial(JobState::Waiting).await;
        self.send(&trial, 0, vec![started_body()]).await;
        self.wait_for_trial(JobState::Running).await
    }

    fn end_job(&self, trial: &TrialRow) {
        let (trial, attempt) = (trial.id.clone(), trial.attempt.clone());
        let gone = JobEndEvent::unexplained(trial, attempt);
        self.jobs.send(JobNews::Gone(gone)).unwrap();
    }
}

async fn metrics(store: &Store, trial: &TrialRow) -> Vec<(String, f64)> {
    let rows = store.reports().metrics(&trial.id).await.unwrap();
    let kept = |row: &store::MetricRow| {
        (row.attempt.as_str().to_owned(), row.metric.value.number().unwrap())
    };
    rows.iter().map(kept).collect()
}

fn started_body() -> ReportBody {
    ReportBody::Started(Started {
        command: vec!["true".to_owned()],
        pid: Some(2),
        host: None,
        agent_version: "0".to_owned(),
        role: None,
        role_index: None,
    })
}

fn result_body(value: f64) -> ReportBody {
    ReportBody::Metric(Metric {
        name: "default".to_owned(),
        kind: MetricKind::Final,
        sequence: 0,
        value: value.into(),
        derived: false,
    })
}

fn ended_body(cause: Cause) -> ReportBody {
    ended_body_after(cause, None)
}

fn ended_body_after(cause: Cause, duration_ms: Option<u64>) -> ReportBody {
    ReportBody::Ended(Box::new(Verdict {
        cause,
        class: Class::None,
        confidence: Confidence::Certain,
        exit: Some(TrialExit::Code(u8::from(cause != Cause::Succeeded))),
        message: "over".to_owned(),
        stop: None,
        duration_ms,
        evidence: Evidence::default(),
    }))
}

#[tokio::test(start_paused = true)]
async fn simultaneous_ends_share_one_commit() {
    let bed = TestBed::with_concurrency((20, 60), None).await;
    let trials = |number: usize, wanted: JobState| {
        let store = bed.store.clone();
        async move {
            let begun = std::time::Instant::now();
            loop {
                let rows = store.trials().all().await.unwrap();
                let fit: Vec<_> = rows.into_iter().filter(|row| row.state == wanted).collect();
                if fit.len() == number {
                    return fit;
                }
                assert!(
                    begun.elapsed() < STATE_TIMEOUT,
                    "{} are {wanted}, not {number}",
                    fit.len()
                );
                tokio::task::yield_now().await;
            }
        }
    };
    let first = trials(20, JobState::Waiting).await;
    // The store counts a commit shortly after it. The test's own write is after both commits.
    bed.store.database().probe().await.unwrap();
    let before = bed.store.database().commits();
    for trial in &first {
        bed.end_job(trial);
    }
    let failed = trials(20, JobState::Failed).await;
    assert!(failed.iter().all(|row| row.message.is_some() && row.ended_at_ms.is_some()));
    let second = trials(20, JobState::Waiting).await;
    assert!(second.iter().all(|row| row.sequence >= 20));
    bed.store.database().probe().await.unwrap();
    let commits = bed.store.database().commits() - before;
    assert_eq!(commits, 3, "one for twenty ends, one for twenty beginnings, one of the test's own");
}

#[tokio::test(start_paused = true)]
async fn a_silent_trial_is_lost_and_runs_again_when_it_reports() {
    let bed = TestBed::new().await;
    let trial = bed.begin_trial().await;
    bed.pass_time(50).await;
    bed.send(&trial, 1, Vec::new()).await; // A heartbeat.
    let row = bed.wait_until_lost().await;
    assert!(row.message.unwrap().contains("not reported for 60 s"), "the message has the reason");
    assert_eq!(row.started_at_ms, trial.started_at_ms);
    assert!(
        bed.store.trials().all().await.unwrap().len() == 1,
        "the lost trial still counts towards the concurrency"
    );
    bed.send(&trial, 1, vec![result_body(7.0), ended_body(Cause::Succeeded)]).await;
    let row = bed.wait_for_trial(JobState::Running).await;
    assert_eq!((row.message, row.started_at_ms), (None, trial.started_at_ms));
    bed.end_job(&trial);
    bed.wait_for_trial(JobState::Succeeded).await;
    assert_eq!(bed.task.await.unwrap().unwrap(), ExperimentState::Done);
    assert_eq!(*bed.observed.0.lock().unwrap(), [Outcome::Result(7.0.into())]);
}

#[tokio::test(start_paused = true)]
async fn a_job_that_outlives_the_reported_end_is_ended_and_never_lost() {
    let mut bed = TestBed::new().await;
    let trial = bed.begin_trial().await;
    bed.send(&trial, 1, vec![result_body(7.0), ended_body(Cause::Succeeded)]).await;
    bed.pass_time(50).await;
    bed.send(&trial, 3, Vec::new()).await; // The agent delivers remaining output.
    bed.pass_time(50).await;
    assert!(bed.service.finished.lock().unwrap().is_empty(), "the agent has just reported");
    for resumed in [false, true] {
        if resumed {
            bed = bed.restart_manager().await;
        }
        bed.pass_time(90).await;
        assert_eq!(*bed.service.finished.lock().unwrap(), std::slice::from_ref(&trial.id));
    }
    let events = bed.store.trials().events(&trial.id).await.unwrap();
    assert!(events.iter().all(|event| event.state != JobState::Lost), "{events:?}");
    bed.end_job(&trial);
    bed.wait_for_trial(JobState::Succeeded).await;
}

#[tokio::test(start_paused = true)]
async fn a_delay_of_the_manager_makes_no_trial_lost() {
    let bed = TestBed::new().await;
    let trial = bed.begin_trial().await;
    bed.pass_time(40).await;
    // As after SIGSTOP, on a machine that slept, or with a slow tuner.
    tokio::time::advance(Duration::from_secs(45)).await;
    bed.wait_until_idle().await;
    bed.send(&trial, 1, Vec::new()).await;
    let events = bed.store.trials().events(&trial.id).await.unwrap();
    assert!(events.iter().all(|event| event.state != JobState::Lost), "{events:?}");
}

#[tokio::test(start_paused = true)]
async fn a_killed_manager_leaves_its_running_time() {
    let bed = TestBed::new().await;
    bed.begin_trial().await;
    bed.pass_time(40).await;
    let (_folder, store) = bed.kill_manager().await;
    let elapsed_ms = store.experiment().row().await.unwrap().unwrap().elapsed_ms;
    assert!((25_000..=45_000).contains(&elapsed_ms), "{elapsed_ms}");
}

#[tokio::test(start_paused = true)]
async fn a_lost_trial_is_found_by_the_next_manager() {
    let bed = TestBed::new().await;
    let trial = bed.begin_trial().await;
    bed.wait_until_lost().await;
    let bed = bed.restart_manager().await;
    bed.send(&trial, 1, vec![result_body(1.0)]).await;
    bed.wait_for_trial(JobState::Running).await;
    bed.wait_until_lost().await;
}

#[tokio::test(start_paused = true)]
async fn a_trial_with_a_final_verdict_does_not_run_again_without_its_job() {
    for (cause, runs_again) in [(Cause::Succeeded, false), (Cause::Stopped, true)] {
        let bed = TestBed::new().await;
        let trial = bed.begin_trial().await;
        bed.send(&trial, 1, vec![result_body(7.0), ended_body(cause)]).await;
        bed.wait_until_idle().await;
        // A user deletes the job while no manager runs.
        let bed = bed
            .restart_manager_with(FakeService {
                has_forgotten_jobs: true,
                ..FakeService::default()
            })
            .await;
        if runs_again {
            let begun = std::time::Instant::now();
            while bed.service.submitted.lock().unwrap().is_empty() {
                assert!(begun.elapsed() < STATE_TIMEOUT, "the trial does not run again");
                tokio::task::yield_now().await;
            }
        } else {
            bed.wait_for_trial(JobState::Succeeded).await;
            assert_eq!(bed.task.await.unwrap().unwrap(), ExperimentState::Done);
            assert_eq!(*bed.service.submitted.lock().unwrap(), []);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_next_manager_repeats_a_recorded_stop() {
    let bed = TestBed::new().await;
    let trial = bed.begin_trial().await;
    bed.store.trials().set_intents(&[(trial.id.clone(), Some(StopReason::User))], 0).await.unwrap();
    let bed = bed.restart_manager().await;
    // Until the task has started, acks contain no directive.
    let stop = DirectiveBody::Stop { reason: StopReason::User, grace_ms: None };
    let begun = std::time::Instant::now();
    loop {
        let ack = bed.send(&trial, 1, Vec::new()).await;
        if ack.directives.iter().any(|order| order.body == stop) {
            break;
        }
        assert!(begun.elapsed() < STATE_TIMEOUT, "the ack has no stop: {ack:?}");
        tokio::task::yield_now().await;
    }
    while bed.service.stopped.lock().unwrap().is_empty() {
        assert!(begun.elapsed() < STATE_TIMEOUT, "the service does not stop the job");
        tokio::task::yield_now().await;
    }
}

/// The state of a trial when late reports of it arrive.
#[derive(Clone, Copy)]
enum Before {
    Lost,
    LostThenGone,
    Stopped,
    StoppedThenGone,
    Succeeded,
}

/// Covers the table of `docs/operations.md`, "Late reports".
#[tokio::test(start_paused = true)]
#[expect(clippy::too_many_lines, reason = "a table")]
async fn late_reports_change_the_end_as_documented() {
    use Before::{Lost, LostThenGone, Stopped, StoppedThenGone, Succeeded};
    use JobState::{EarlyStopped, Failed};
    let (fine, killed) = (Cause::Succeeded, Cause::Signal);
    let won = || vec![Outcome::Result(5.0.into())];
    let lost = || vec![Outcome::Failed];
    #[rustfmt::skip]
    let table = [
        // the case                             before           the late verdict  the final state   the tuner's
        // outcomes
        ("lost, then reported a success",      Lost,            fine,   JobState::Succeeded, won()),
        ("lost, then reported a failure",      Lost,            killed, Failed,              lost()),
        ("lost, then its job was gone",        LostThenGone,    fine,   Failed,              lost()),
        ("a stop after the success",           Stopped,         fine,   JobState::Succeeded, won()),
        ("a stop before the end",              Stopped,         killed, EarlyStopped,        lost()),
        ("stopped, then its job was gone",     StoppedThenGone, fine,   EarlyStopped,        lost()),
        ("succeeded",                          Succeeded,       killed, JobState::Succeeded, won()),
    ];
    for (case, before, cause, state, outcomes) in table {
        let bed = TestBed::new().await;
        let trial = bed.begin_trial().await;
        let attempt = trial.attempt.as_str();
        match before {
            Lost | LostThenGone => drop(bed.wait_until_lost().await),
            Stopped | StoppedThenGone => {
                for _ in 0..36 {
                    bed.pass_time(25).await;
                    bed.send(&trial, 1, Vec::new()).await;
                }
                let ack = bed.send(&trial, 1, Vec::new()).await;
                let stop = DirectiveBody::Stop { reason: StopReason::Deadline, grace_ms: None };
                let rule = DirectiveBody::StopRules {
                    rules: vec![StopRule {
                        reason: StopReason::Deadline,
                        lease_ms: None,
                        when: StopWhen::RunningFor { ms: 900_000 },
                    }],
                    lease_ms: 900_000 + 3_600_000,
                };
                let bodies: Vec<_> = ack.directives.iter().map(|order| &order.body).collect();
                assert_eq!(bodies, [&rule, &stop], "{case}: the rule, then the stop");
                assert_eq!(
                    *bed.service.stopped.lock().unwrap(),
                    std::slice::from_ref(&trial.id),
                    "{case}"
                );
            }
            Succeeded => {
                bed.send(&trial, 1, vec![result_body(5.0), ended_body(fine)]).await;
            }
        }
        let gone = match before {
            Lost | Stopped => None,
            LostThenGone => Some(Failed),
            StoppedThenGone => Some(EarlyStopped),
            Succeeded => Some(JobState::Succeeded),
        };
        if let Some(gone) = gone {
            bed.end_job(&trial);
            bed.wait_for_trial(gone).await;
        }
        // The late reports arrive twice, and an earlier attempt reports too.
        for _ in 0..2 {
            bed.send(&trial, 3, vec![result_body(5.0), ended_body(cause)]).await;
            bed.report(
                &trial,
                "before",
                0,
                vec![started_body(), result_body(9.0), ended_body(fine)],
            )
            .await
            .unwrap();
        }
        if gone.is_none() {
            bed.end_job(&trial);
        }
        let row = bed.wait_for_trial(state).await;
        assert_eq!(row.attempt.as_str(), attempt, "{case}");
        let stands = bed.task.await.unwrap().unwrap();
        assert_eq!(stands, ExperimentState::Done, "{case}");
        assert_eq!(*bed.observed.0.lock().unwrap(), outcomes, "{case}");
        // Each report is stored once, and reports after the end do not reach the tuner.
        let mut kept = metrics(&bed.store, &trial).await;
        kept.sort_by(|a, b| a.1.total_cmp(&b.1));
        let own = if matches!(before, Succeeded) { 2 } else { 1 };
        let mut expected = vec![(attempt.to_owned(), 5.0); own];
        expected.push(("before".to_owned(), 9.0));
        assert_eq!(kept, expected, "{case}");
    }
}
