//! The probe: one real trial of the experiment, with its command, code and training service, in a temporary data
//! directory.

use std::time::{Duration, Instant};

use trial_protocol::MetricValue;

use crate::app::{self, ExperimentStart, RunningManager, Settings};
use crate::cli::terminal::plain_text::pluralize;
use crate::cli::terminal::progress::{format_number, last_nonempty_lines, result_problem};
use crate::cli::terminal::signals::Signals;
use crate::config::ExperimentSpec;
use crate::experiment::ending::RecordedEnd;
use crate::experiment::notice::Notice;
use crate::experiment::result::TrialResult;
use crate::job_state::JobState;
use crate::search::goals::Goals;
use crate::util::errors::error_chain;

/// The maximum time until the probe's trial starts, and the maximum time that it runs.
const TRIAL_TIMEOUT: Duration = Duration::from_mins(5);

/// Runs one trial of the experiment. Returns its result, or the reason why such trials would fail in the search. Calls
/// `note` with each event. Afterwards, only files remain that the trial's command wrote outside its own folder.
pub(super) async fn run(
    spec: ExperimentSpec,
    settings: Settings,
    mut note: impl FnMut(&str),
) -> Result<String, String> {
    let folder = tempfile::tempdir().map_err(|error| error_chain(&error))?;
    let settings = Settings { data_dir: folder.path().to_owned(), ..settings };
    let mut signals = Signals::new().map_err(|error| error_chain(&error))?;
    let goals = spec.goals.clone();
    let what = ExperimentStart::New(Box::new(reduce_to_one_trial(spec)));
    let mut running = app::start(settings, what).await.map_err(|error| error_chain(&error))?;
    let mut interrupted = false;
    let mut started = Instant::now();
    let mut finding = Err("no trial ended".to_owned());
    loop {
        let notice = tokio::select! {
            notice = running.notices.recv() => notice,
            _ = signals.next() => {
                interrupted = true;
                running.handle.stop();
                continue;
            }
        };
        match notice {
            None => break,
            Some(Notice::Message(message)) => note(&message),
            Some(Notice::Waits { why, .. }) => note(&format!("the trial waits: {why}")),
            Some(Notice::Running { .. }) => {
                started = Instant::now();
                note("the trial runs");
            }
            Some(Notice::Lost { message, .. }) => note(&message),
            Some(Notice::Ended { end, result, last_lines, .. }) => {
                if end.state != JobState::Succeeded {
                    last_nonempty_lines(&last_lines)
                        .for_each(|line| note(&format!("    | {line}")));
                }
                finding = judge_trial(end, &result, &goals, started.elapsed());
            }
            Some(Notice::Found { .. } | Notice::State(_)) => {}
        }
    }
    finish(running).await?;
    if interrupted { Err("it was interrupted".to_owned()) } else { finding }
}

async fn finish(running: RunningManager) -> Result<(), String> {
    let mut ended = running.end().await.map_err(|error| error_chain(&error))?;
    ended.stop_serving().await;
    ended.store.close().await;
    Ok(())
}

/// Returns the experiment with a single trial, and without notifications, retries, an assessor and a hold.
fn reduce_to_one_trial(mut spec: ExperimentSpec) -> ExperimentSpec {
    spec.max_trial_duration =
        Some(spec.max_trial_duration.map_or(TRIAL_TIMEOUT, |own| own.min(TRIAL_TIMEOUT)));
    spec.max_trial_number = Some(1);
    spec.trial_concurrency = 1;
    spec.max_trial_retries = 0;
    spec.max_consecutive_failures = Some(0);
    (spec.max_experiment_duration, spec.target_metric) = (None, None);
    (spec.assessor, spec.notifications) = (None, None);
    spec.tuner_patience = spec.tuner_patience.min(TRIAL_TIMEOUT);
    spec.training_service.section_mut().limit_start_up(TRIAL_TIMEOUT);
    spec
}

/// Judges the probe's trial. A trial that reached the time limit is not a failure.
fn judge_trial(
    end: RecordedEnd,
    result: &TrialResult,
    goals: &Goals,
    took: Duration,
) -> Result<String, String> {
    let seconds = took.as_secs();
    let ran = "a trial ran, and its agent reported";
    let latest = result.intermediate.last().and_then(MetricValue::number);
    let name = result.name.as_deref().unwrap_or("metric");
    match end.state {
        JobState::Succeeded => {
            match (result_problem(result.final_value.as_ref(), goals), &result.final_value) {
                (None, Some(value)) => {
                    let number = value.number().map(format_number).unwrap_or_default();
                    Ok(format!("{ran}: {name} {number} after {seconds} s"))
                }
                (problem, _) => Err(format!(
                    "the trial succeeded {}: no tuner can learn from it",
                    problem.unwrap_or_default()
                )),
            }
        }
        JobState::EarlyStopped => Ok(match latest {
            Some(number) => format!(
                "{ran}: {name} {} when it was stopped after {seconds} s, with {}",
                format_number(number),
                pluralize(result.intermediate.len(), "intermediate result")
            ),
            None => format!("{ran} no metric yet when it was stopped after {seconds} s"),
        }),
        state @ (JobState::Waiting
        | JobState::Running
        | JobState::Failed
        | JobState::UserCanceled
        | JobState::SysCanceled
        | JobState::Lost
        | JobState::Unknown) => {
            let code = end.exit_code.map(|code| format!(" (exit code {code})")).unwrap_or_default();
            Err(format!("the trial {state}{code}: {}", end.message.unwrap_or_default()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_is_judged_by_its_trials_end_and_result() {
        let number = |value: f64| Some(MetricValue::from(value));
        let result = |final_value: Option<MetricValue>, intermediate: Vec<MetricValue>| {
            TrialResult { name: Some("loss".to_owned()), final_value, reported: None, intermediate }
        };
        let failed = Some("the command could not be run");
        #[rustfmt::skip]
        let table = [
            (JobState::Succeeded,    None,   result(number(0.5), vec![]),      "ok a trial ran, and its agent reported: loss 0.5 after 7 s"),
            (JobState::Succeeded,    None,   result(None, vec![]),             "FAIL the trial succeeded and reported no final result: no tuner can learn from it"),
            (JobState::Succeeded,    None,   result(number(f64::NAN), vec![]), "FAIL the trial succeeded but its final result is NaN: no tuner can learn from it"),
            (JobState::EarlyStopped, None,   result(None, vec![0.25.into()]),  "ok a trial ran, and its agent reported: loss 0.25 when it was stopped after 7 s, with 1 intermediate result"),
            (JobState::EarlyStopped, None,   result(None, vec![]),             "ok a trial ran, and its agent reported no metric yet when it was stopped after 7 s"),
            (JobState::Failed,       failed, result(None, vec![]),             "FAIL the trial FAILED (exit code 127): the command could not be run"),
        ];
        for (state, message, result, expected) in table {
            let exit_code = message.map(|_| 127);
            let end = RecordedEnd { state, message: message.map(str::to_owned), exit_code };
            let actual = match judge_trial(end, &result, &Goals::default(), Duration::from_secs(7))
            {
                Ok(text) => format!("ok {text}"),
                Err(text) => format!("FAIL {text}"),
            };
            assert_eq!(actual, expected);
        }
    }
}
