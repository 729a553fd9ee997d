//! PURE: derives a trial's final state from its job's end, the agent's verdict and the manager's intent.
//!
//! # Sources of truth
//!
//! The lifecycle of the job belongs to the training service, which reports when the job is *gone*. Exit and verdict
//! belong to the agent, and the intent belongs to the manager. A trial ends when its job is gone. The first line that
//! fits in this table decides ([`conclude`]):
//!
//! | the agent's verdict             | the manager's intent | the trial is    |
//! | ------------------------------- | -------------------- | --------------- |
//! | succeeded, no stop seen by it   | any                  | `SUCCEEDED`     |
//! | any or none                     | user                 | `USER_CANCELED` |
//! | any or none                     | early stop, deadline | `EARLY_STOPPED` |
//! | any or none                     | another              | `SYS_CANCELED`  |
//! | early stopped, deadline         | none                 | `EARLY_STOPPED` |
//! | preempted ([`service_verdict`]) | none                 | `SYS_CANCELED`  |
//! | stopped (a signal), and the service calls the job a success | none                 | `SUCCEEDED`     |
//! | stopped (a signal), and the service reports the reason | none                 | `FAILED`        |
//! | stopped (a signal)              | none                 | `USER_CANCELED` |
//! | anything else                   | none                 | `FAILED`        |
//! | none                            | none                 | `FAILED`        |

use trial_protocol::{Cause, Class, Confidence, Evidence, StopReason, Verdict};

use crate::job_state::JobState;
use crate::training_service::JobEnd;
use crate::training_service::completion::PodResult;

/// Returns the verdict that follows from the service's report. `None`: the agent's verdict or the manager's intent
/// explains the end, or nothing does.
pub fn service_verdict(
    intent: Option<StopReason>,
    verdict: Option<&Verdict>,
    job_end: &JobEnd,
) -> Option<Verdict> {
    preemption_verdict(intent, verdict, job_end).or_else(|| cause_verdict(intent, verdict, job_end))
}

/// Returns the verdict on a trial whose machine the platform removed. Its agent sees and reports at most a signal, and
/// the service knows the sender. `None`: the machine was not removed, or the manager's intent or the agent's
/// observation explains the end.
fn preemption_verdict(
    intent: Option<StopReason>,
    verdict: Option<&Verdict>,
    job_end: &JobEnd,
) -> Option<Verdict> {
    let disruption = job_end.disruption.clone().filter(|_| intent.is_none())?;
    let explains = |verdict: &Verdict| {
        let lost_peer = job_end.cause == Some(Cause::Preempted);
        let is_of_peer = lost_peer && verdict.cause != Cause::Succeeded;
        !has_only_seen_signal(verdict) && !is_of_peer || verdict.stop.is_some()
    };
    if verdict.is_some_and(explains) {
        return None;
    }
    let evidence = verdict.map(|verdict| verdict.evidence.clone()).unwrap_or_default();
    Some(Verdict {
        cause: Cause::Preempted,
        // The service sets another class if the machine is removed permanently, because a retry would not help.
        class: job_end.class.unwrap_or(Class::Transient),
        confidence: Confidence::Certain,
        exit: verdict.and_then(|verdict| verdict.exit),
        message: job_end.message.clone().unwrap_or_else(|| disruption.clone()),
        stop: None,
        duration_ms: verdict.and_then(|verdict| verdict.duration_ms),
        evidence: Evidence { platform: Some(disruption), ..evidence },
    })
}

/// Returns the verdict on a trial whose agent left none, if the service knows the cause. The kernel's out-of-memory
/// killer may end the agent with the trial.
fn cause_verdict(
    intent: Option<StopReason>,
    verdict: Option<&Verdict>,
    job_end: &JobEnd,
) -> Option<Verdict> {
    let cause = job_end.cause.filter(|_| intent.is_none() && verdict.is_none())?;
    Some(Verdict {
        cause,
        class: job_end.class.unwrap_or(Class::Permanent),
        confidence: Confidence::Certain,
        // The known exit code is the job's, and not the trial's.
        exit: None,
        message: job_end.message.clone().unwrap_or_else(|| "the platform ended the job".to_owned()),
        stop: None,
        duration_ms: None,
        evidence: Evidence::default(),
    })
}

/// Returns whether the service ended a trial's main pod because the trial had already succeeded without that pod.
pub fn has_succeeded_without_pod(
    intent: Option<StopReason>,
    verdict: Option<&Verdict>,
    job_end: &JobEnd,
) -> bool {
    let stopped = verdict.is_some_and(|verdict| verdict.cause == Cause::Stopped);
    intent.is_none() && stopped && job_end.succeeded && job_end.exit_code == Some(0)
}

/// Returns whether a verdict ends its trial regardless of the job. A stop that the manager did not request does not,
/// since the platform may have removed the job's machine and may run the trial again.
pub fn is_final(verdict: &Verdict) -> bool {
    !matches!(verdict.cause, Cause::Stopped | Cause::Preempted) || verdict.stop.is_some()
}

/// Returns the end of a pod's command according to its agent.
pub fn pod_result(verdict: &Verdict) -> PodResult {
    match (verdict.cause, verdict.stop) {
        _ if !is_final(verdict) => PodResult::Signaled,
        (_, Some(_)) | (Cause::EarlyStopped | Cause::Deadline, None) => PodResult::Requested,
        (Cause::Succeeded, None) => PodResult::Succeeded,
        (_, None) => PodResult::Failed,
    }
}

/// Returns whether the agent saw no more of the trial's end than a signal that requests an end. A service may send it
/// to all processes of a job, as Slurm does at its time limit. If it reaches the trial before the agent, the verdict's
/// cause is the signal, not the stop.
fn has_only_seen_signal(verdict: &Verdict) -> bool {
    const HUP_INT_TERM: [u8; 3] = [129, 130, 143];
    let stopped_by_signal =
        verdict.exit.is_some_and(|exit| HUP_INT_TERM.contains(&exit.shell_code()));
    verdict.cause == Cause::Stopped || (verdict.cause == Cause::Signal && stopped_by_signal)
}

/// The recorded end of a trial.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedEnd {
    /// The final state.
    pub state: JobState,
    /// The reason, for the user.
    pub message: Option<String>,
    /// The trial's exit code in the form that a shell shows, if known.
    pub exit_code: Option<i32>,
}

/// Returns the end of a trial according to the table at the head of this module.
pub fn conclude(
    intent: Option<StopReason>,
    verdict: Option<&Verdict>,
    job_end: &JobEnd,
) -> RecordedEnd {
    let succeeded_without_pod = has_succeeded_without_pod(intent, verdict, job_end);
    let exit_code =
        match verdict.and_then(|verdict| verdict.exit).filter(|_| !succeeded_without_pod) {
            Some(exit) => Some(i32::from(exit.shell_code())),
            None => job_end.exit_code,
        };
    let state = match (verdict.map(|verdict| (verdict.cause, verdict.stop)), intent) {
        (Some((Cause::Succeeded, None)), _) => JobState::Succeeded,
        (_, None) if succeeded_without_pod => JobState::Succeeded,
        (_, Some(StopReason::User)) => JobState::UserCanceled,
        (_, Some(StopReason::EarlyStop | StopReason::Deadline)) => JobState::EarlyStopped,
        (
            _,
            Some(
                StopReason::Budget
                | StopReason::ManagerShutdown
                | StopReason::Preempted
                | StopReason::Other,
            ),
        ) => JobState::SysCanceled,
        (Some((Cause::EarlyStopped | Cause::Deadline, _)), None) => JobState::EarlyStopped,
        (Some((Cause::Preempted, _)), None) => JobState::SysCanceled,
        // The manager requested no stop: the pod was removed, or another pod of the trial had failed.
        (Some((Cause::Stopped, _)), None) if job_end.message.is_some() => JobState::Failed,
        (Some((Cause::Stopped, _)), None) => JobState::UserCanceled,
        (Some(_) | None, None) => JobState::Failed,
    };
    // The manager's own intent explains a stop, of which the agent may have seen no more than a signal.
    let message = match (intent.map(stop_reason_text), verdict, &job_end.message, job_end.exit_code)
    {
        (Some(why), _, _, _) => Some(why.to_owned()),
        (None, Some(verdict), Some(message), _)
            if verdict.cause == Cause::Stopped
                || (job_end.class.is_some() && has_only_seen_signal(verdict)) =>
        {
            Some(message.clone())
        }
        (None, Some(verdict), _, _) => Some(verdict.message.clone()),
        (None, None, Some(message), _) => Some(message.clone()),
        (None, None, None, Some(code)) => {
            Some(format!("the agent ended with code {code} and left no verdict"))
        }
        (None, None, None, None) => Some("the agent ended and left no verdict".to_owned()),
    };
    let message = message.filter(|_| state != JobState::Succeeded);
    RecordedEnd { state, message, exit_code }
}

/// Returns the prospect of a retry of a failed trial. The agent's class takes precedence if the agent saw the end of
/// its trial. If it saw only a signal, the service's class does. An agent without a verdict was lost together with its
/// machine or network.
pub fn failure_class(verdict: Option<&Verdict>, job_end: &JobEnd) -> Class {
    match verdict {
        Some(verdict) if !has_only_seen_signal(verdict) => verdict.class,
        Some(verdict) => job_end.class.unwrap_or(verdict.class),
        None => job_end.class.unwrap_or(Class::Transient),
    }
}

/// Returns the reason for a stop by the manager, for the user.
fn stop_reason_text(intent: StopReason) -> &'static str {
    match intent {
        StopReason::User => "stopped on request",
        StopReason::EarlyStop => "stopped early by the assessor",
        StopReason::Deadline => "ran longer than maxTrialDuration allows",
        StopReason::Budget => "the experiment's limit was reached",
        StopReason::ManagerShutdown => "interrupted with the search; it runs again on resume",
        StopReason::Preempted => "the platform took its machine away",
        StopReason::Other => "stopped for a reason that this version does not know",
    }
}

#[cfg(test)]
mod tests {
    use trial_protocol::TrialExit;

    use super::*;

    fn verdict(cause: Cause, exit: TrialExit) -> Verdict {
        Verdict {
            cause,
            class: Class::None,
            confidence: Confidence::Certain,
            exit: Some(exit),
            message: "as the agent saw it".to_owned(),
            stop: None,
            duration_ms: None,
            evidence: Evidence::default(),
        }
    }

    #[test]
    fn a_pod_that_the_platform_removed_is_not_canceled_by_the_user() {
        let stopped = verdict(Cause::Stopped, TrialExit::Signal(15));
        let message = Some("ps 0: the container ended with exit code 1".to_owned());
        let job_end = JobEnd { exit_code: Some(1), message: message.clone(), ..JobEnd::default() };
        let end = conclude(None, Some(&stopped), &job_end);
        assert_eq!((end.state, &end.message), (JobState::Failed, &message));
        let end = conclude(Some(StopReason::User), Some(&stopped), &job_end);
        assert_eq!(end.state, JobState::UserCanceled);
    }

    #[test]
    fn a_pod_that_was_ended_because_another_succeeded_is_a_success() {
        let stopped = verdict(Cause::Stopped, TrialExit::Signal(15));
        let job_end = JobEnd {
            exit_code: Some(0),
            message: Some("its pod succeeded".to_owned()),
            succeeded: true,
            ..JobEnd::default()
        };
        let end = conclude(None, Some(&stopped), &job_end);
        let success = RecordedEnd { state: JobState::Succeeded, message: None, exit_code: Some(0) };
        assert_eq!(end, success);
        let end = conclude(Some(StopReason::User), Some(&stopped), &job_end);
        assert_eq!(end.state, JobState::UserCanceled);
        let broken = verdict(Cause::Exit, TrialExit::Code(7));
        assert_eq!(conclude(None, Some(&broken), &job_end).state, JobState::Failed);
        assert_eq!(
            conclude(None, None, &job_end).state,
            JobState::Failed,
            "without a verdict, the trial has failed"
        );
    }

    #[test]
    fn a_removed_machine_is_a_preemption_if_nothing_else_explains_the_end() {
        let stopped = verdict(Cause::Stopped, TrialExit::Signal(15));
        let ordered = Verdict { stop: Some(StopReason::User), ..stopped.clone() };
        let broken = verdict(Cause::Exit, TrialExit::Code(7));
        let fine = verdict(Cause::Succeeded, TrialExit::Code(0));
        let disruption = "PreemptionByScheduler: default-scheduler: preempting";
        let of_peer = "EvictionByEvictionAPI: Eviction API: evicting";
        #[rustfmt::skip]
        let table = [
            // the intent            the agent's      the platform's  the trial is            code
            (None,                   Some(&stopped),  Some(disruption), JobState::SysCanceled,  Some(143)),
            (None,                   None,            Some(disruption), JobState::SysCanceled,  Some(137)),
            (Some(StopReason::User), Some(&stopped),  Some(disruption), JobState::UserCanceled, Some(143)),
            (None,                   Some(&ordered),  Some(disruption), JobState::Failed,       Some(143)),
            (None,                   Some(&broken),   Some(disruption), JobState::Failed,       Some(7)),
            (None,                   Some(&fine),     Some(disruption), JobState::Succeeded,    Some(0)),
            (None,                   Some(&stopped),  None,       JobState::Failed,       Some(143)),
            // The main pod failed because the platform removed another pod.
            (None,                   Some(&broken),   Some(of_peer), JobState::SysCanceled, Some(7)),
            (None,                   Some(&fine),     Some(of_peer), JobState::Succeeded, Some(0)),
            (Some(StopReason::User), Some(&broken),   Some(of_peer), JobState::UserCanceled, Some(7)),
        ];
        for (intent, verdict, taken, state, code) in table {
            let job_end = JobEnd {
                exit_code: Some(137),
                message: Some("its pod was removed".to_owned()),
                disruption: taken.map(str::to_owned),
                cause: (taken == Some(of_peer)).then_some(Cause::Preempted),
                ..JobEnd::default()
            };
            let own = preemption_verdict(intent, verdict, &job_end);
            assert_eq!(own.is_some(), state == JobState::SysCanceled, "{intent:?} {verdict:?}");
            let end = conclude(intent, own.as_ref().or(verdict), &job_end);
            assert_eq!((end.state, end.exit_code), (state, code), "{intent:?} {verdict:?}");
            let Some(own) = own else { continue };
            assert_eq!(end.message, job_end.message);
            assert_eq!(
                (own.cause, failure_class(Some(&own), &job_end)),
                (Cause::Preempted, Class::Transient)
            );
            assert_eq!(own.evidence.platform.as_deref(), taken);
        }
    }

    #[test]
    fn the_services_message_explains_a_signal_that_it_sent() {
        let signalled = verdict(Cause::Signal, TrialExit::Signal(15));
        let limit = JobEnd {
            message: Some("Slurm says TIMEOUT: TimeLimit".to_owned()),
            class: Some(Class::Permanent),
            ..JobEnd::default()
        };
        assert_eq!(conclude(None, Some(&signalled), &limit).message, limit.message);
        let silent = JobEnd { class: None, ..limit };
        let end = conclude(None, Some(&signalled), &silent);
        assert_eq!((end.state, end.message), (JobState::Failed, Some(signalled.message)));
    }

    #[test]
    fn the_services_cause_counts_if_agent_and_manager_have_none() {
        let broken = verdict(Cause::Exit, TrialExit::Code(7));
        let oom = Some(Cause::OomKernel);
        #[rustfmt::skip]
        let table = [
            // the intent            the agent's     the service's  the cause
            (None,                   None,           oom,           oom),
            (None,                   None,           None,          None),
            (None,                   Some(&broken),  oom,           None),
            (Some(StopReason::User), None,           oom,           None),
        ];
        for (intent, verdict, cause, expected) in table {
            let (exit_code, message) = (Some(137), Some("out of memory".to_owned()));
            let job_end = JobEnd { exit_code, message, cause, ..JobEnd::default() };
            let own = service_verdict(intent, verdict, &job_end);
            let found = own.as_ref().map(|own| own.cause);
            assert_eq!(found, expected, "{intent:?} {verdict:?} {cause:?}");
            let Some(own) = own else { continue };
            let end = conclude(intent, Some(&own), &job_end);
            let failed = RecordedEnd {
                state: JobState::Failed,
                message: job_end.message.clone(),
                exit_code,
            };
            assert_eq!((end, failure_class(Some(&own), &job_end)), (failed, Class::Permanent));
        }
    }

    #[test]
    fn the_class_tells_if_a_retry_would_help() {
        let of = |class, cause| Verdict { class, ..verdict(cause, TrialExit::Signal(15)) };
        let (broken, stopped) =
            (of(Class::UserError, Cause::Exit), of(Class::None, Cause::Stopped));
        let signalled = of(Class::Transient, Cause::Signal);
        let killed =
            Verdict { class: Class::Transient, ..verdict(Cause::Signal, TrialExit::Signal(9)) };
        #[rustfmt::skip]
        let table = [
            (Some(&broken),  None,                   Class::UserError),
            (Some(&broken),  Some(Class::Transient), Class::UserError),
            // The pod was evicted, and the agent saw only a signal.
            (Some(&stopped), Some(Class::Transient), Class::Transient),
            (Some(&stopped), None,                   Class::None),
            // Slurm's time limit: the signal reached the trial before the agent.
            (Some(&signalled), Some(Class::Permanent), Class::Permanent),
            (Some(&signalled), None,                   Class::Transient),
            (Some(&killed),    Some(Class::Permanent), Class::Transient),
            // Out of memory: the agent saw nothing.
            (None,           Some(Class::Permanent), Class::Permanent),
            (None,           None,                   Class::Transient),
        ];
        for (verdict, known, expected) in table {
            let job_end = JobEnd { class: known, ..JobEnd::default() };
            assert_eq!(failure_class(verdict, &job_end), expected, "{verdict:?} {known:?}");
        }
    }

    #[test]
    fn ends_follow_the_table() {
        use StopReason::{Deadline, EarlyStop, ManagerShutdown, User};
        let fine = verdict(Cause::Succeeded, TrialExit::Code(0));
        let stopped = Verdict { stop: Some(User), ..verdict(Cause::Stopped, TrialExit::Code(0)) };
        let deadline = verdict(Cause::Deadline, TrialExit::Signal(15));
        let preempted = verdict(Cause::Preempted, TrialExit::Signal(15));
        let broken = verdict(Cause::Exit, TrialExit::Code(7));
        let killed = verdict(Cause::Signal, TrialExit::Signal(9));
        #[rustfmt::skip]
        let table = [
            // the case                               intent                 verdict           state                  code
            ("success",                               None,                  Some(&fine),      JobState::Succeeded,   Some(0)),
            ("success outruns a stop",                Some(User),            Some(&fine),      JobState::Succeeded,   Some(0)),
            ("a stopped trial that exits with 0",     Some(User),            Some(&stopped),   JobState::UserCanceled, Some(0)),
            ("a stop without a verdict",              Some(User),            None,             JobState::UserCanceled, None),
            ("an early stop",                         Some(EarlyStop),       Some(&killed),    JobState::EarlyStopped, Some(137)),
            ("the manager's deadline",                 Some(Deadline),        Some(&broken),    JobState::EarlyStopped, Some(7)),
            ("the manager's end",                     Some(ManagerShutdown), Some(&killed),    JobState::SysCanceled, Some(137)),
            ("the agent's own deadline",              None,                  Some(&deadline),  JobState::EarlyStopped, Some(143)),
            ("a preemption",                           None,                  Some(&preempted), JobState::SysCanceled, Some(143)),
            ("a signal to the agent",        None,                  Some(&stopped),   JobState::UserCanceled, Some(0)),
            ("a failure",                             None,                  Some(&broken),    JobState::Failed,      Some(7)),
            ("a killed trial",                        None,                  Some(&killed),    JobState::Failed,      Some(137)),
            ("a lost agent",                          None,                  None,             JobState::Failed,      None),
        ];
        for (case, intent, verdict, state, code) in table {
            let end = conclude(intent, verdict, &JobEnd::default());
            assert_eq!((end.state, end.exit_code), (state, code), "{case}");
            assert_eq!(end.message.is_none(), state == JobState::Succeeded, "{case}: a reason");
            let ours = intent.filter(|_| state != JobState::Succeeded).map(stop_reason_text);
            assert!(
                ours.is_none() || end.message.as_deref() == ours,
                "{case}: the manager's own reason"
            );
        }
    }
}
