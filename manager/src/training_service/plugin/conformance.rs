//! The conformance test of plugins: the required behaviour, tried on a plugin with the real agent and real process
//! deaths.
//!
//! The test acts as a small manager without a server, so agents cannot deliver reports. Each trial's command records
//! its own start, so that the test notices a trial that runs twice.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};

use self::harness::Harness;
use self::job::ConformanceJob;
use super::Error;
use super::wire::{GoneReason, Remedy};
use crate::config::PluginSpec;

mod harness;
mod job;

/// The time in which a plugin must report an event on its platform.
const STATE_TIMEOUT: Duration = Duration::from_mins(2);
/// The grace period for the command of a stopped trial in these cases. A command that needs a second to react must have
/// enough time on a slow machine.
const SHORT_GRACE: Duration = Duration::from_secs(6);
/// The delays after which the test kills a plugin during a submit.
const KILL_DELAYS_MS: [u64; 8] = [0, 2, 5, 10, 20, 50, 200, 1_000];
/// The time limit for the end of a job before the plugin is restarted. The job may never have started.
const END_BEFORE_RESTART: Duration = Duration::from_secs(2);
/// The pause between the pieces of a request that arrives slowly.
const PIECE_PAUSE: Duration = Duration::from_millis(100);
/// The number of jobs that are submitted at once.
const MANY_JOBS: usize = 20;

/// A case of the test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Case {
    /// The program identifies itself when a user starts it by hand.
    StartByHand,
    /// The plugin refuses an unsupported version.
    UnsupportedVersion,
    /// The plugin ignores lines that are not requests.
    InvalidLines,
    /// The plugin understands a request that arrives slowly.
    SlowRequest,
    /// A job that succeeds ends with code 0.
    JobSucceeds,
    /// A job that fails ends with its exit code.
    JobFails,
    /// A submit that arrives three times starts one job.
    SubmitTwice,
    /// A plugin that dies during a submit starts exactly one job in the end.
    DeathAtSubmit,
    /// A stopped job receives SIGTERM.
    CancelRunning,
    /// A job that ignores SIGTERM is ended after its grace period.
    CancelIgnored,
    /// A stop right after the submit has its effect, even if the agent has not started.
    CancelEarly,
    /// The plugin answers repeated and late stops.
    CancelAgain,
    /// The plugin reports the end of a job whose agent was killed.
    AgentKilled,
    /// An attempt that is stopped before its submit never starts.
    CancelFirst,
    /// Jobs outlive the plugin, and the next process knows them.
    DeathOfPlugin,
    /// The plugin reports the end of a job that ended while no plugin ran.
    EndedMeanwhile,
    /// The plugin still reports the end of a job after a restart.
    GoneAgain,
    /// The plugin does not claim to know a job that never existed.
    UnknownJob,
    /// Each of many concurrent jobs runs once.
    ManyJobs,
    /// The room is a number of jobs, or unknown.
    Room,
    /// A plugin ends on request, and its jobs continue.
    Close,
    /// Nothing remains after `clean_up`.
    CleanUp,
}

impl Case {
    /// All cases, in the order in which they run.
    pub const ALL: [Self; 22] = [
        Self::StartByHand,
        Self::UnsupportedVersion,
        Self::InvalidLines,
        Self::SlowRequest,
        Self::JobSucceeds,
        Self::JobFails,
        Self::SubmitTwice,
        Self::DeathAtSubmit,
        Self::CancelRunning,
        Self::CancelIgnored,
        Self::CancelEarly,
        Self::CancelAgain,
        Self::AgentKilled,
        Self::CancelFirst,
        Self::DeathOfPlugin,
        Self::EndedMeanwhile,
        Self::GoneAgain,
        Self::UnknownJob,
        Self::ManyJobs,
        Self::Room,
        Self::Close,
        Self::CleanUp,
    ];

    /// Returns the case as a sentence.
    pub fn sentence(self) -> &'static str {
        match self {
            Self::StartByHand => "identifies itself when a user starts it by hand",
            Self::UnsupportedVersion => "refuses an unsupported version",
            Self::InvalidLines => "ignores lines that are not requests",
            Self::SlowRequest => "understands a request that arrives in pieces",
            Self::JobSucceeds => "reports the end of a job that succeeds",
            Self::JobFails => "reports the exit code of a job that fails",
            Self::SubmitTwice => "starts a job only once if it is submitted three times",
            Self::DeathAtSubmit => "starts a job only once if it dies at the submit",
            Self::CancelRunning => "lets a job end gracefully when it is stopped",
            Self::CancelIgnored => "kills a stopped job that ignores SIGTERM",
            Self::CancelEarly => "stops a job right after its submit",
            Self::CancelAgain => "answers repeated and late stops",
            Self::AgentKilled => "notices that a job's agent was killed",
            Self::CancelFirst => "never starts an attempt that was stopped before its submit",
            Self::DeathOfPlugin => "finds its jobs again after a restart",
            Self::EndedMeanwhile => "reports the end of a job that ended while no process ran",
            Self::GoneAgain => "reports an end again after a restart",
            Self::UnknownJob => "does not claim to know a job that never existed",
            Self::ManyJobs => "runs each of many jobs once",
            Self::Room => "reports its room as a number of jobs",
            Self::Close => "ends on request, and its jobs continue",
            Self::CleanUp => "leaves nothing behind after clean_up",
        }
    }
}

/// The result of a case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CaseResult {
    /// The plugin behaved as required.
    Passed,
    /// The plugin did not behave as required, for this reason.
    Failed(String),
    /// The case did not run, for this reason.
    Skipped(&'static str),
}

/// Tries a case on a plugin. Each case has its own experiment.
///
/// # Errors
///
/// A folder for the experiment cannot be created.
pub async fn try_case(case: Case, spec: &PluginSpec, agent: PathBuf) -> Result<CaseResult, Error> {
    let mut harness = Harness::new(spec, agent)?;
    let tried = run_case(case, &mut harness).await;
    let last_errors = harness.last_errors();
    harness.end().await;
    Ok(match tried {
        Ok(None) => CaseResult::Passed,
        Ok(Some(why)) => CaseResult::Skipped(why),
        Err(why) => CaseResult::Failed(format!("{why}{last_errors}")),
    })
}

/// Tries a case. `Some`: the reason why it could not run.
async fn run_case(case: Case, harness: &mut Harness) -> Result<Option<&'static str>, String> {
    match case {
        Case::StartByHand => harness.start_by_hand().await?,
        Case::UnsupportedVersion => harness.offer_unsupported_version().await?,
        Case::InvalidLines => harness.send_invalid_lines().await?,
        Case::SlowRequest => check_slow_request(harness).await?,
        Case::JobSucceeds => check_success(harness).await?,
        Case::JobFails => {
            harness.open().await?;
            let job = harness.submit_new("exit 3").await?;
            let gone = harness.wait_until_gone(&job).await?;
            expect_equal(
                (gone.exit.shell_code(), gone.reason),
                (Some(3), GoneReason::Exit),
                "its end",
            )?;
        }
        Case::SubmitTwice => check_repeated_submit(harness).await?,
        Case::DeathAtSubmit => check_death_at_submit(harness).await?,
        Case::CancelRunning => check_cancel_of_running_job(harness).await?,
        Case::CancelIgnored => check_ignored_cancel(harness).await?,
        Case::CancelEarly => check_early_cancel(harness).await?,
        Case::CancelAgain => check_repeated_cancel(harness).await?,
        Case::AgentKilled => return check_killed_agent(harness).await,
        Case::CancelFirst => check_cancel_before_submit(harness).await?,
        Case::DeathOfPlugin => check_death_of_plugin(harness).await?,
        Case::EndedMeanwhile => check_end_without_plugin(harness).await?,
        Case::GoneAgain => check_repeated_end_report(harness).await?,
        Case::UnknownJob => check_unknown_job(harness).await?,
        Case::ManyJobs => check_many_jobs(harness).await?,
        Case::Room => return check_room(harness).await,
        Case::Close => check_close(harness).await?,
        Case::CleanUp => return check_clean_up(harness).await,
    }
    Ok(None)
}

async fn check_success(harness: &mut Harness) -> Result<(), String> {
    harness.open().await?;
    let job = harness.submit_new("true").await?;
    expect_equal(harness.wait_until_gone(&job).await?.exit.shell_code(), Some(0), "its exit code")?;
    expect_equal(job.count_starts(), 1, "its starts")?;
    // While the next job runs, a plugin that repeats itself reports the first end again.
    let next = harness.submit_new("true").await?;
    harness.wait_until_gone(&next).await?;
    expect_equal(harness.count_gone(&job), 1, "reports of its end")
}

async fn check_slow_request(harness: &mut Harness) -> Result<(), String> {
    harness.open().await?;
    let job = harness.new_job("true");
    harness.submit_in_pieces(&job).await?;
    harness.wait_until_gone(&job).await?;
    expect_equal(job.count_starts(), 1, "its starts")
}

async fn check_repeated_submit(harness: &mut Harness) -> Result<(), String> {
    harness.open().await?;
    let job = harness.job_at_gate();
    let (first, second) = tokio::join!(harness.submit(&job), harness.submit(&job));
    first.and(second)?;
    harness.submit(&job).await?;
    job.wait_for_start().await?;
    job.open_gate()?;
    harness.wait_until_gone(&job).await?;
    expect_equal(job.count_starts(), 1, "its starts")
}

async fn check_death_at_submit(harness: &mut Harness) -> Result<(), String> {
    for (number, delay) in KILL_DELAYS_MS.map(Duration::from_millis).into_iter().enumerate() {
        harness.open().await?;
        let job = harness.job_at_gate();
        harness.submit_and_kill(&job, delay).await;
        // In every second iteration, a started job ends before the plugin is restarted.
        if number % 2 == 1 {
            job.open_gate()?;
            job.wait_for_end_within(END_BEFORE_RESTART).await;
        }
        harness.open().await?;
        harness.submit(&job).await?;
        job.wait_for_start().await?;
        job.open_gate()?;
        harness.wait_until_gone(&job).await?;
        let what = format!("its starts after a death {} ms after the submit", delay.as_millis());
        expect_equal(job.count_starts(), 1, &what)?;
        harness.kill().await;
    }
    Ok(())
}

async fn check_cancel_of_running_job(harness: &mut Harness) -> Result<(), String> {
    harness.open().await?;
    let job = harness.run_trapping("echo heard; exit 7").await?;
    expect_equal(harness.cancel(&job, false).await?, true, "`known` in the answer to cancel")?;
    harness.wait_until_gone(&job).await?;
    expect_equal(job.output().contains("heard"), true, "SIGTERM received by the trial")
}

async fn check_ignored_cancel(harness: &mut Harness) -> Result<(), String> {
    harness.open().await?;
    // The trial outlives SIGTERM. The second line shows that it had time to react.
    let job = harness.run_trapping("echo heard; sleep 1; echo stayed").await?;
    expect_equal(harness.cancel(&job, false).await?, true, "`known` in the answer to cancel")?;
    harness.wait_until_gone(&job).await?;
    job.wait_for_end().await?;
    let output = job.output();
    expect_equal(output.contains("heard"), true, "SIGTERM received by the trial")?;
    expect_equal(output.contains("stayed"), true, "a grace period after SIGTERM")
}

async fn check_early_cancel(harness: &mut Harness) -> Result<(), String> {
    harness.open().await?;
    let job = harness.job_trapping("echo heard; exit 7");
    harness.submit(&job).await?;
    expect_equal(harness.cancel(&job, false).await?, true, "`known` in the answer to cancel")?;
    harness.wait_until_gone(&job).await?;
    // The trial may never start. If it does, it receives the signal.
    let is_stopped = job.count_starts() == 0 || job.output().contains("heard");
    expect_equal(is_stopped, true, "SIGTERM received by the trial")
}

/// Returns the reason why the case could not run.
async fn check_killed_agent(harness: &mut Harness) -> Result<Option<&'static str>, String> {
    harness.open().await?;
    let job = harness.run_at_gate().await?;
    if !job.kill_agent() {
        return Ok(Some("its agents are not processes of this machine"));
    }
    let code = harness.wait_until_gone(&job).await?.exit.shell_code();
    expect_equal(code == Some(0), false, "success in the report of its end")?;
    expect_equal(job.count_starts(), 1, "its starts")?;
    Ok(None)
}

async fn check_repeated_cancel(harness: &mut Harness) -> Result<(), String> {
    harness.open().await?;
    let job = harness.run_at_gate().await?;
    let (first, second) = tokio::join!(harness.cancel(&job, false), harness.cancel(&job, false));
    first.and(second)?;
    harness.wait_until_gone(&job).await?;
    expect_equal(
        harness.cancel(&job, false).await?,
        false,
        "`known` in the answer to a late cancel",
    )
}

async fn check_cancel_before_submit(harness: &mut Harness) -> Result<(), String> {
    harness.open().await?;
    let job = harness.new_job("true");
    expect_equal(harness.cancel(&job, false).await?, false, "`known` in the answer to cancel")?;
    match harness.submit_refused(&job).await? {
        Some(Remedy::Cancelled) => {}
        other => return Err(format!("the answer to the submit is {other:?}, not -32006")),
    }
    let next = harness.submit_new("true").await?;
    harness.wait_until_gone(&next).await?;
    expect_equal(job.count_starts(), 0, "starts of the attempt")
}

async fn check_death_of_plugin(harness: &mut Harness) -> Result<(), String> {
    harness.open().await?;
    let job = harness.run_at_gate().await?;
    harness.kill().await;
    harness.open().await?;
    expect_equal(harness.adopt(&job).await?, "running".to_owned(), "its phase")?;
    job.open_gate()?;
    harness.wait_until_gone(&job).await?;
    expect_equal(job.count_starts(), 1, "its starts")
}

async fn check_end_without_plugin(harness: &mut Harness) -> Result<(), String> {
    harness.open().await?;
    let job = harness.run_at_gate().await?;
    harness.kill().await;
    job.open_gate()?;
    job.wait_for_end().await?;
    harness.open().await?;
    let gone = harness.adopt_until_gone(&job).await?;
    // A process that did not run then may not know the exit code.
    let is_known_end = matches!(gone.exit.shell_code(), None | Some(0));
    let is_own_end = matches!(gone.reason, GoneReason::Exit | GoneReason::Unknown);
    expect_equal((is_known_end, is_own_end), (true, true), "its exit code and its reason")?;
    expect_equal(job.count_starts(), 1, "its starts")
}

async fn check_repeated_end_report(harness: &mut Harness) -> Result<(), String> {
    harness.open().await?;
    let job = harness.submit_new("exit 3").await?;
    harness.wait_until_gone(&job).await?;
    harness.kill().await;
    harness.open().await?;
    expect_equal(harness.adopt(&job).await?, "gone".to_owned(), "its phase")
}

async fn check_unknown_job(harness: &mut Harness) -> Result<(), String> {
    harness.open().await?;
    let job = harness.new_job("true");
    expect_equal(harness.adopt(&job).await?, "unknown".to_owned(), "its phase")?;
    expect_equal(harness.cancel(&job, false).await?, false, "`known` in the answer to cancel")
}

async fn check_close(harness: &mut Harness) -> Result<(), String> {
    harness.open().await?;
    let job = harness.run_at_gate().await?;
    harness.close().await?;
    expect_equal(job.has_ended(), false, "the end of its job")?;
    harness.open().await?;
    job.open_gate()?;
    harness.adopt_until_gone(&job).await.map(drop)
}

/// Returns the reason why the case could not run.
async fn check_clean_up(harness: &mut Harness) -> Result<Option<&'static str>, String> {
    if !harness.open().await?.clean_up {
        return Ok(Some("it has no capability clean_up"));
    }
    let jobs = [harness.run_at_gate().await?, harness.run_at_gate().await?];
    let left = harness.ask("clean_up", &json!({})).await?["left"].clone();
    expect_equal(left.as_array().is_none_or(Vec::is_empty), true, "nothing left")?;
    for job in &jobs {
        job.wait_for_end().await?;
    }
    expect_equal(harness.count_listed().await?, 0, "jobs in the list")?;
    harness.kill().await;
    harness.open().await?;
    expect_equal(harness.count_listed().await?, 0, "jobs in the list after a restart")?;
    Ok(None)
}

async fn check_many_jobs(harness: &mut Harness) -> Result<(), String> {
    harness.open().await?;
    let jobs: Vec<ConformanceJob> = (0..MANY_JOBS).map(|_| harness.new_job("true")).collect();
    let submits = jobs.iter().map(|job| harness.submit(job));
    for submitted in futures_util::future::join_all(submits).await {
        submitted?;
    }
    for job in &jobs {
        harness.wait_until_gone(job).await?;
        expect_equal(job.count_starts(), 1, "starts of a job")?;
    }
    Ok(())
}

/// Returns the reason why the case could not run.
async fn check_room(harness: &mut Harness) -> Result<Option<&'static str>, String> {
    if !harness.open().await?.room {
        return Ok(Some("it has no capability room"));
    }
    ask_for_room(harness).await?;
    let job = harness.run_at_gate().await?;
    ask_for_room(harness).await?;
    job.open_gate()?;
    harness.wait_until_gone(&job).await?;
    ask_for_room(harness).await?;
    Ok(None)
}

async fn ask_for_room(harness: &Harness) -> Result<(), String> {
    let answer = harness.ask("room", &json!({})).await?;
    let free = &answer["free"];
    // A plugin may be unable to determine its room.
    if free.is_null() || free.is_u64() {
        return Ok(());
    }
    Err(format!("the answer to `room` is {free}, which is not a number of jobs"))
}

#[expect(clippy::needless_pass_by_value, reason = "callers pass temporary values")]
fn expect_equal<T: PartialEq + std::fmt::Debug>(
    found: T,
    expected: T,
    what: &str,
) -> Result<(), String> {
    if found == expected {
        Ok(())
    } else {
        Err(format!("{what}: {found:?} instead of {expected:?}"))
    }
}

/// Returns the parameters of `initialize` for a version that does not exist.
fn unsupported_version_params(state_dir: &std::path::Path) -> Value {
    json!({
        "protocol": {"min": 7, "max": 9},
        "manager": {"name": "trial-manager", "version": env!("CARGO_PKG_VERSION")},
        "experiment": {"id": "conformance"},
        "state_dir": state_dir,
        "settings": {},
    })
}
