//! The conformance test of plugins: the required behaviour, tried on a plugin with the real agent and real process
//! deaths.
//!
//! The test acts as a small manager without a server, so agents cannot deliver reports. Each trial's command records
//! its own start, so that the test notices a trial that runs twice.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};

use self::harness::Harness;
use self::job::Job;
use super::Error;
use super::wire::{Reason, Remedy};
use crate::config::PluginSpec;

mod harness;
mod job;

/// The time in which a plugin must report an event on its platform.
const STATE_TIMEOUT: Duration = Duration::from_mins(2);
/// The grace period for the command of a stopped trial in these cases.
const SHORT_GRACE: Duration = Duration::from_secs(3);
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
    ByHand,
    /// The plugin refuses an unsupported version.
    OtherVersion,
    /// The plugin ignores lines that are not requests.
    Garbage,
    /// The plugin understands a request that arrives slowly.
    Slow,
    /// A job that succeeds ends with code 0.
    Succeeds,
    /// A job that fails ends with its exit code.
    Fails,
    /// A submit that arrives three times starts one job.
    SubmitTwice,
    /// A plugin that dies during a submit starts exactly one job in the end.
    DeathAtSubmit,
    /// A stopped job receives SIGTERM.
    CancelRunning,
    /// A job that ignores SIGTERM is ended after its grace period.
    CancelDeaf,
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
    Many,
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
        Self::ByHand,
        Self::OtherVersion,
        Self::Garbage,
        Self::Slow,
        Self::Succeeds,
        Self::Fails,
        Self::SubmitTwice,
        Self::DeathAtSubmit,
        Self::CancelRunning,
        Self::CancelDeaf,
        Self::CancelEarly,
        Self::CancelAgain,
        Self::AgentKilled,
        Self::CancelFirst,
        Self::DeathOfPlugin,
        Self::EndedMeanwhile,
        Self::GoneAgain,
        Self::UnknownJob,
        Self::Many,
        Self::Room,
        Self::Close,
        Self::CleanUp,
    ];

    /// Returns the case as a sentence.
    pub fn sentence(self) -> &'static str {
        match self {
            Self::ByHand => "identifies itself when a user starts it by hand",
            Self::OtherVersion => "refuses an unsupported version",
            Self::Garbage => "ignores lines that are not requests",
            Self::Slow => "understands a request that arrives in pieces",
            Self::Succeeds => "reports the end of a job that succeeds",
            Self::Fails => "reports the exit code of a job that fails",
            Self::SubmitTwice => "starts a job only once if it is submitted three times",
            Self::DeathAtSubmit => "starts a job only once if it dies at the submit",
            Self::CancelRunning => "lets a job end gracefully when it is stopped",
            Self::CancelDeaf => "kills a stopped job that ignores SIGTERM",
            Self::CancelEarly => "stops a job right after its submit",
            Self::CancelAgain => "answers repeated and late stops",
            Self::AgentKilled => "notices that a job's agent was killed",
            Self::CancelFirst => "never starts an attempt that was stopped before its submit",
            Self::DeathOfPlugin => "finds its jobs again after a restart",
            Self::EndedMeanwhile => "reports the end of a job that ended while no process ran",
            Self::GoneAgain => "reports an end again after a restart",
            Self::UnknownJob => "does not claim to know a job that never existed",
            Self::Many => "runs each of many jobs once",
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
    let tried = attempt(case, &mut harness).await;
    let last_errors = harness.last_errors();
    harness.end().await;
    Ok(match tried {
        Ok(None) => CaseResult::Passed,
        Ok(Some(why)) => CaseResult::Skipped(why),
        Err(why) => CaseResult::Failed(format!("{why}{last_errors}")),
    })
}

/// Tries a case. `Some`: the reason why it could not run.
async fn attempt(case: Case, harness: &mut Harness) -> Result<Option<&'static str>, String> {
    match case {
        Case::ByHand => harness.by_hand().await?,
        Case::OtherVersion => harness.other_version().await?,
        Case::Garbage => harness.garbage().await?,
        Case::Slow => slow(harness).await?,
        Case::Succeeds => succeeds(harness).await?,
        Case::Fails => {
            harness.open().await?;
            let job = harness.run("exit 3").await?;
            let gone = harness.gone(&job).await?;
            expect((gone.exit.shell_code(), gone.reason), (Some(3), Reason::Exit), "its end")?;
        }
        Case::SubmitTwice => submit_twice(harness).await?,
        Case::DeathAtSubmit => death_at_submit(harness).await?,
        Case::CancelRunning => cancel_running(harness).await?,
        Case::CancelDeaf => cancel_deaf(harness).await?,
        Case::CancelEarly => cancel_early(harness).await?,
        Case::CancelAgain => cancel_again(harness).await?,
        Case::AgentKilled => return agent_killed(harness).await,
        Case::CancelFirst => cancel_first(harness).await?,
        Case::DeathOfPlugin => death_of_plugin(harness).await?,
        Case::EndedMeanwhile => ended_meanwhile(harness).await?,
        Case::GoneAgain => gone_again(harness).await?,
        Case::UnknownJob => unknown_job(harness).await?,
        Case::Many => many(harness).await?,
        Case::Room => return room(harness).await,
        Case::Close => close(harness).await?,
        Case::CleanUp => return clean_up(harness).await,
    }
    Ok(None)
}

async fn succeeds(harness: &mut Harness) -> Result<(), String> {
    harness.open().await?;
    let job = harness.run("true").await?;
    expect(harness.gone(&job).await?.exit.shell_code(), Some(0), "its exit code")?;
    expect(job.starts(), 1, "its starts")?;
    // While the next job runs, a plugin that repeats itself reports the first end again.
    let next = harness.run("true").await?;
    harness.gone(&next).await?;
    expect(harness.count_gone(&job), 1, "reports of its end")
}

async fn slow(harness: &mut Harness) -> Result<(), String> {
    harness.open().await?;
    let job = harness.job("true");
    harness.submit_in_pieces(&job).await?;
    harness.gone(&job).await?;
    expect(job.starts(), 1, "its starts")
}

async fn submit_twice(harness: &mut Harness) -> Result<(), String> {
    harness.open().await?;
    let job = harness.job_at_gate();
    let (first, second) = tokio::join!(harness.submit(&job), harness.submit(&job));
    first.and(second)?;
    harness.submit(&job).await?;
    job.wait_for_start().await?;
    job.open_gate()?;
    harness.gone(&job).await?;
    expect(job.starts(), 1, "its starts")
}

async fn death_at_submit(harness: &mut Harness) -> Result<(), String> {
    for (number, delay) in KILL_DELAYS_MS.map(Duration::from_millis).into_iter().enumerate() {
        harness.open().await?;
        let job = harness.job_at_gate();
        harness.submit_and_kill(&job, delay).await;
        // In every second iteration, a started job ends before the plugin is restarted.
        if number % 2 == 1 {
            job.open_gate()?;
            job.end_within(END_BEFORE_RESTART).await;
        }
        harness.open().await?;
        harness.submit(&job).await?;
        job.wait_for_start().await?;
        job.open_gate()?;
        harness.gone(&job).await?;
        let what = format!("its starts after a death {} ms after the submit", delay.as_millis());
        expect(job.starts(), 1, &what)?;
        harness.kill().await;
    }
    Ok(())
}

async fn cancel_running(harness: &mut Harness) -> Result<(), String> {
    harness.open().await?;
    let job = harness.run_trapping("echo heard; exit 7").await?;
    expect(harness.cancel(&job, false).await?, true, "`known` in the answer to cancel")?;
    harness.gone(&job).await?;
    expect(job.output().contains("heard"), true, "SIGTERM received by the trial")
}

async fn cancel_deaf(harness: &mut Harness) -> Result<(), String> {
    harness.open().await?;
    // The trial outlives SIGTERM. The second line shows that it had time to react.
    let job = harness.run_trapping("echo heard; sleep 1; echo stayed").await?;
    expect(harness.cancel(&job, false).await?, true, "`known` in the answer to cancel")?;
    harness.gone(&job).await?;
    job.wait_for_end().await?;
    let output = job.output();
    expect(output.contains("heard"), true, "SIGTERM received by the trial")?;
    expect(output.contains("stayed"), true, "a grace period after SIGTERM")
}

async fn cancel_early(harness: &mut Harness) -> Result<(), String> {
    harness.open().await?;
    let job = harness.job_trapping("echo heard; exit 7");
    harness.submit(&job).await?;
    expect(harness.cancel(&job, false).await?, true, "`known` in the answer to cancel")?;
    harness.gone(&job).await?;
    // The trial may never start. If it does, it receives the signal.
    let is_stopped = job.starts() == 0 || job.output().contains("heard");
    expect(is_stopped, true, "SIGTERM received by the trial")
}

/// Returns the reason why the case could not run.
async fn agent_killed(harness: &mut Harness) -> Result<Option<&'static str>, String> {
    harness.open().await?;
    let job = harness.run_at_gate().await?;
    if !job.kill_agent() {
        return Ok(Some("its agents are not processes of this machine"));
    }
    let code = harness.gone(&job).await?.exit.shell_code();
    expect(code == Some(0), false, "success in the report of its end")?;
    expect(job.starts(), 1, "its starts")?;
    Ok(None)
}

async fn cancel_again(harness: &mut Harness) -> Result<(), String> {
    harness.open().await?;
    let job = harness.run_at_gate().await?;
    let (first, second) = tokio::join!(harness.cancel(&job, false), harness.cancel(&job, false));
    first.and(second)?;
    harness.gone(&job).await?;
    expect(harness.cancel(&job, false).await?, false, "`known` in the answer to a late cancel")
}

async fn cancel_first(harness: &mut Harness) -> Result<(), String> {
    harness.open().await?;
    let job = harness.job("true");
    expect(harness.cancel(&job, false).await?, false, "`known` in the answer to cancel")?;
    match harness.submit_refused(&job).await? {
        Some(Remedy::Cancelled) => {}
        other => return Err(format!("the answer to the submit is {other:?}, not -32006")),
    }
    let next = harness.run("true").await?;
    harness.gone(&next).await?;
    expect(job.starts(), 0, "starts of the attempt")
}

async fn death_of_plugin(harness: &mut Harness) -> Result<(), String> {
    harness.open().await?;
    let job = harness.run_at_gate().await?;
    harness.kill().await;
    harness.open().await?;
    expect(harness.adopt(&job).await?, "running".to_owned(), "its phase")?;
    job.open_gate()?;
    harness.gone(&job).await?;
    expect(job.starts(), 1, "its starts")
}

async fn ended_meanwhile(harness: &mut Harness) -> Result<(), String> {
    harness.open().await?;
    let job = harness.run_at_gate().await?;
    harness.kill().await;
    job.open_gate()?;
    job.wait_for_end().await?;
    harness.open().await?;
    let gone = harness.gone_after_adopt(&job).await?;
    // A process that did not run then may not know the exit code.
    let is_known_end = matches!(gone.exit.shell_code(), None | Some(0));
    let is_own_end = matches!(gone.reason, Reason::Exit | Reason::Unknown);
    expect((is_known_end, is_own_end), (true, true), "its exit code and its reason")?;
    expect(job.starts(), 1, "its starts")
}

async fn gone_again(harness: &mut Harness) -> Result<(), String> {
    harness.open().await?;
    let job = harness.run("exit 3").await?;
    harness.gone(&job).await?;
    harness.kill().await;
    harness.open().await?;
    expect(harness.adopt(&job).await?, "gone".to_owned(), "its phase")
}

async fn unknown_job(harness: &mut Harness) -> Result<(), String> {
    harness.open().await?;
    let job = harness.job("true");
    expect(harness.adopt(&job).await?, "unknown".to_owned(), "its phase")?;
    expect(harness.cancel(&job, false).await?, false, "`known` in the answer to cancel")
}

async fn close(harness: &mut Harness) -> Result<(), String> {
    harness.open().await?;
    let job = harness.run_at_gate().await?;
    harness.close().await?;
    expect(job.has_ended(), false, "the end of its job")?;
    harness.open().await?;
    job.open_gate()?;
    harness.gone_after_adopt(&job).await.map(drop)
}

/// Returns the reason why the case could not run.
async fn clean_up(harness: &mut Harness) -> Result<Option<&'static str>, String> {
    if !harness.open().await?.clean_up {
        return Ok(Some("it has no capability clean_up"));
    }
    let jobs = [harness.run_at_gate().await?, harness.run_at_gate().await?];
    let left = harness.ask("clean_up", &json!({})).await?["left"].clone();
    expect(left.as_array().is_none_or(Vec::is_empty), true, "nothing left")?;
    for job in &jobs {
        job.wait_for_end().await?;
    }
    expect(harness.listed().await?, 0, "jobs in the list")?;
    harness.kill().await;
    harness.open().await?;
    expect(harness.listed().await?, 0, "jobs in the list after a restart")?;
    Ok(None)
}

async fn many(harness: &mut Harness) -> Result<(), String> {
    harness.open().await?;
    let jobs: Vec<Job> = (0..MANY_JOBS).map(|_| harness.job("true")).collect();
    let submits = jobs.iter().map(|job| harness.submit(job));
    for submitted in futures_util::future::join_all(submits).await {
        submitted?;
    }
    for job in &jobs {
        harness.gone(job).await?;
        expect(job.starts(), 1, "starts of a job")?;
    }
    Ok(())
}

/// Returns the reason why the case could not run.
async fn room(harness: &mut Harness) -> Result<Option<&'static str>, String> {
    if !harness.open().await?.room {
        return Ok(Some("it has no capability room"));
    }
    ask_for_room(harness).await?;
    let job = harness.run_at_gate().await?;
    ask_for_room(harness).await?;
    job.open_gate()?;
    harness.gone(&job).await?;
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
fn expect<T: PartialEq + std::fmt::Debug>(found: T, expected: T, what: &str) -> Result<(), String> {
    if found == expected {
        Ok(())
    } else {
        Err(format!("{what}: {found:?} instead of {expected:?}"))
    }
}

/// Returns the parameters of `initialize` for a version that does not exist.
fn later_version(state_dir: &std::path::Path) -> Value {
    json!({
        "protocol": {"min": 7, "max": 9},
        "manager": {"name": "trial-manager", "version": env!("CARGO_PKG_VERSION")},
        "experiment": {"id": "conformance"},
        "state_dir": state_dir,
        "settings": {},
    })
}
