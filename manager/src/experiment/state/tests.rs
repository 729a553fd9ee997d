//! Tests of the experiment's guarantees: one scenario per test, and a model check of the invariants.

use std::collections::{HashMap, VecDeque};

use proptest::prelude::*;
use serde_json::json;
use trial_protocol::{Cause, Class, Confidence, Evidence, TrialExit};

use super::*;
use crate::search::search_space::Parameters;

mod policy;
mod user_change;

const SECOND: Duration = Duration::from_secs(1);

fn limits(concurrency: usize, trials: u64) -> Limits {
    Limits { concurrency, trials: Some(trials), duration: None, trial_duration: None }
}

fn id(number: u64) -> TrialJobId {
    TrialJobId::new(format!("t{number}")).unwrap()
}

fn point(number: u64) -> Parameters {
    json!({ "x": number }).as_object().unwrap().clone()
}

fn proposed_event(number: u64) -> Event {
    let proposal = Proposal::Parameters(point(number));
    Event::Proposed { parameter_id: number, proposal, trial: id(number) }
}

fn launch_effect(number: u64) -> Effect {
    Effect::Launch {
        trial: id(number),
        sequence: number,
        parameter_id: number,
        parameters: point(number),
    }
}

fn propose_effect(parameter_id: u64) -> Effect {
    Effect::Propose { parameter_id }
}

fn observe_effect(number: u64, state: JobState, outcome: Outcome) -> Effect {
    Effect::Observe { trial: id(number), parameter_id: Some(number), state, outcome }
}

fn stop_effect(number: u64, reason: StopReason) -> Effect {
    Effect::StopTrial { trial: id(number), reason }
}

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

fn unknown_end() -> JobEnd {
    JobEnd::default()
}

fn success_event(number: u64, value: f64) -> Event {
    Event::JobGone {
        trial: id(number),
        job_end: JobEnd { exit_code: Some(0), ..JobEnd::default() },
        verdict: Some(Box::new(verdict(Cause::Succeeded, TrialExit::Code(0)))),
        result: Some(value.into()),
    }
}

fn failure_event(number: u64) -> Event {
    Event::JobGone {
        trial: id(number),
        job_end: JobEnd { exit_code: Some(3), ..JobEnd::default() },
        verdict: Some(Box::new(verdict(Cause::Exit, TrialExit::Code(3)))),
        result: None,
    }
}

fn recorded_ends(effects: &[Effect]) -> Vec<(TrialJobId, JobState)> {
    let end = |effect: &Effect| {
        let Effect::RecordEnd { trial, end } = effect else { return None };
        Some((trial.clone(), end.state))
    };
    effects.iter().filter_map(end).collect()
}

#[test]
fn a_search_runs_to_its_limit() {
    use ExperimentState::{Done, NoMoreTrial, Running};
    let mut state = State::new(limits(2, 3));
    let now = Duration::ZERO;
    assert_eq!(
        state.step(Event::Begin, now),
        [Effect::RecordState(Running), propose_effect(0), propose_effect(1)]
    );
    assert_eq!(state.step(proposed_event(0), now), [launch_effect(0)]);
    assert_eq!(state.step(proposed_event(1), now), [launch_effect(1)]);
    let running = Effect::RecordRunning { trial: id(0) };
    assert_eq!(state.step(Event::Started { trial: id(0) }, now), [running]);
    assert_eq!(state.step(Event::Started { trial: id(0) }, now), [], "a repeated event");
    let effects = state.step(success_event(0, 0.5), now);
    assert_eq!(recorded_ends(&effects), [(id(0), JobState::Succeeded)]);
    let outcome = Outcome::Result(0.5.into());
    assert_eq!(effects[1..], [observe_effect(0, JobState::Succeeded, outcome), propose_effect(2)]);
    let effects = state.step(proposed_event(2), now);
    assert_eq!(effects, [launch_effect(2), Effect::RecordState(NoMoreTrial)]);
    let effects = state.step(failure_event(2), now);
    assert_eq!(recorded_ends(&effects), [(id(2), JobState::Failed)]);
    let failure = observe_effect(2, JobState::Failed, Outcome::Failed);
    assert_eq!(
        effects.last(),
        Some(&failure),
        "the tuner learns the failure, and no trial is started"
    );
    let effects = state.step(success_event(1, 0.7), now);
    assert_eq!(effects.last(), Some(&Effect::RecordState(Done)));
}

#[test]
fn a_second_end_of_a_trial_has_no_effect() {
    let mut state = State::new(limits(1, 5));
    state.step(Event::Begin, Duration::ZERO);
    state.step(proposed_event(0), Duration::ZERO);
    assert_ne!(state.step(success_event(0, 1.0), Duration::ZERO), []);
    assert_eq!(state.step(success_event(0, 1.0), Duration::ZERO), []);
    assert_eq!(state.step(failure_event(0), Duration::ZERO), []);
}

#[test]
fn a_used_up_space_ends_the_search() {
    let mut state = State::new(limits(2, 100));
    state.step(Event::Begin, Duration::ZERO);
    state.step(proposed_event(0), Duration::ZERO);
    let exhausted =
        Event::Proposed { parameter_id: 1, proposal: Proposal::Exhausted, trial: id(1) };
    let effects = state.step(exhausted, Duration::ZERO);
    assert_eq!(effects, [Effect::RecordState(ExperimentState::TunerNoMoreTrial)]);
    let effects = state.step(success_event(0, 1.0), Duration::ZERO);
    assert_eq!(effects.last(), Some(&Effect::RecordState(ExperimentState::Done)));
}

#[test]
fn a_tuner_that_waits_is_asked_again_after_a_result() {
    let mut state = State::new(limits(2, 100));
    state.step(Event::Begin, Duration::ZERO);
    state.step(proposed_event(0), Duration::ZERO);
    let wait = Event::Proposed { parameter_id: 1, proposal: Proposal::Wait, trial: id(1) };
    assert_eq!(state.step(wait, Duration::ZERO), []);
    assert_eq!(state.step(Event::Tick, Duration::ZERO), [], "nothing changed");
    let effects = state.step(success_event(0, 1.0), Duration::ZERO);
    assert_eq!(
        effects[2..],
        [propose_effect(1), propose_effect(2)],
        "the id without a proposal comes first"
    );
}

#[test]
fn a_tuner_that_needs_no_result_ends_the_search() {
    let mut state = State::new(limits(1, 100));
    state.step(Event::Begin, Duration::ZERO);
    let wait = Event::Proposed { parameter_id: 0, proposal: Proposal::Wait, trial: id(0) };
    let effects = state.step(wait, Duration::ZERO);
    assert_eq!(effects, [Effect::RecordState(ExperimentState::Done)]);
}

#[test]
fn a_stop_ends_the_trials_and_starts_none() {
    let mut state = State::new(limits(2, 100));
    state.step(Event::Begin, Duration::ZERO);
    state.step(proposed_event(0), Duration::ZERO);
    let effects = state.step(Event::ExperimentStopRequested, Duration::ZERO);
    let stopping = Effect::RecordState(ExperimentState::Stopping);
    assert_eq!(effects, [stop_effect(0, StopReason::ManagerShutdown), stopping]);
    assert_eq!(state.step(Event::ExperimentStopRequested, Duration::ZERO), [], "a repeated event");
    assert_eq!(
        state.step(proposed_event(1), Duration::ZERO),
        [],
        "the tuner's answer arrives too late"
    );
    let gone = Event::JobGone {
        trial: id(0),
        job_end: unknown_end(),
        verdict: None,
        result: Some(1.0.into()),
    };
    let effects = state.step(gone, Duration::ZERO);
    assert_eq!(recorded_ends(&effects), [(id(0), JobState::SysCanceled)]);
    let stopped = Effect::RecordState(ExperimentState::Stopped);
    assert_eq!(
        effects[1..],
        [stopped],
        "the tuner does not learn this end, because the trial will run again"
    );
}

#[test]
fn a_resumed_search_continues() {
    let known = |number, state| StoredTrial {
        retries: 0,
        trial: id(number),
        sequence: number,
        parameter_id: Some(number),
        state,
        intent: None,
    };
    let alive = StoredTrialState::Alive { running_for: Some(SECOND) };
    let known = vec![
        known(0, StoredTrialState::Ended),
        known(1, alive),
        known(2, StoredTrialState::Waiting),
    ];
    let mut state = State::resume(limits(2, 4), 10 * SECOND, known);
    let effects = state.step(Event::Begin, 10 * SECOND);
    let again = Effect::StartNextAttempt { trial: id(2) };
    assert_eq!(effects, [Effect::RecordState(ExperimentState::Running), again]);
    let effects = state.step(success_event(1, 1.0), 11 * SECOND);
    assert_eq!(effects.last(), Some(&propose_effect(3)), "neither id nor sequence is used twice");
    assert_eq!(state.step(proposed_event(3), 11 * SECOND)[0], launch_effect(3));
}

#[test]
fn a_resume_keeps_the_number_of_retries() {
    let known = StoredTrial {
        retries: 1,
        trial: id(0),
        sequence: 0,
        parameter_id: Some(0),
        state: StoredTrialState::Alive { running_for: None },
        intent: None,
    };
    for (retries, tried_again) in [(1, false), (2, true)] {
        let policy = SearchPolicy { retries, ..SearchPolicy::default() };
        let mut state =
            State::resume(limits(1, 1), SECOND, vec![known.clone()]).with_policy(policy);
        let job_end = JobEnd::default();
        // The end is unknown, because the machine went down.
        let event = Event::JobGone { trial: id(0), job_end, verdict: None, result: None };
        let effects = state.step(event, SECOND);
        let again = effects.iter().any(|effect| matches!(effect, Effect::RecordRetry { .. }));
        assert_eq!(again, tried_again, "{retries}: {effects:?}");
    }
}

#[test]
fn a_replaced_attempt_is_no_failure() {
    use StopReason::{ManagerShutdown, User};
    let replaced = || JobEnd {
        message: Some("gpu1 is out of reach".to_owned()),
        replaced: true,
        ..JobEnd::default()
    };
    let fine = verdict(Cause::Succeeded, TrialExit::Code(0));
    #[rustfmt::skip]
    let table = [
        // the case                        intent                 verdict      the final state
        ("no verdict and no stop",          None,                  None,        None),
        ("a requested stop",                Some(User),            None,        Some(JobState::UserCanceled)),
        ("the end of the search",           Some(ManagerShutdown), None,        Some(JobState::SysCanceled)),
        ("a verdict of success",            None,                  Some(&fine), Some(JobState::Succeeded)),
    ];
    for (case, intent, verdict, end) in table {
        let policy =
            SearchPolicy { failures: FailureLimit::Consecutive(1), ..SearchPolicy::default() };
        let mut state = State::new(limits(1, 9)).with_policy(policy);
        state.step(Event::Begin, Duration::ZERO);
        state.step(proposed_event(0), Duration::ZERO);
        if let Some(reason) = intent {
            state.step(Event::StopRequested { trial: id(0), reason }, Duration::ZERO);
        }
        let verdict = verdict.cloned().map(Box::new);
        let gone = Event::JobGone { trial: id(0), job_end: replaced(), verdict, result: None };
        let effects = state.step(gone, Duration::ZERO);
        assert_eq!(recorded_ends(&effects).into_iter().map(|(_, end)| end).next(), end, "{case}");
        assert_eq!(messages(&effects), Vec::<String>::new(), "{case}: nothing holds the search");
        let again = [
            Effect::RecordReplacement { trial: id(0), message: "gpu1 is out of reach".to_owned() },
            Effect::StartNextAttempt { trial: id(0) },
        ];
        assert_eq!(effects == again, end.is_none(), "{case}: {effects:?}");
    }
}

#[test]
fn a_preempted_trial_is_tried_again_as_often_as_a_failed_one() {
    for (retries, intent, tried_again) in
        [(0, None, false), (1, None, true), (1, Some(StopReason::User), false)]
    {
        let known = StoredTrial {
            retries: 0,
            trial: id(0),
            sequence: 0,
            parameter_id: Some(0),
            state: StoredTrialState::Alive { running_for: None },
            intent,
        };
        let policy = SearchPolicy { retries, ..SearchPolicy::default() };
        let mut state = State::resume(limits(1, 1), SECOND, vec![known]).with_policy(policy);
        let taken =
            Verdict { class: Class::Transient, ..verdict(Cause::Preempted, TrialExit::Signal(15)) };
        let verdict = Some(Box::new(taken));
        let event = Event::JobGone { trial: id(0), job_end: unknown_end(), verdict, result: None };
        let effects = state.step(event, SECOND);
        let again = effects.iter().any(|effect| matches!(effect, Effect::RecordRetry { .. }));
        assert_eq!(again, tried_again, "{retries}: {effects:?}");
        let end = if intent.is_some() { JobState::UserCanceled } else { JobState::SysCanceled };
        let ended = recorded_ends(&effects);
        assert!(tried_again && ended.is_empty() || ended == [(id(0), end)], "{effects:?}");
    }
}

#[test]
fn an_interrupted_trial_runs_again_after_its_job_is_gone() {
    let known = StoredTrial {
        retries: 0,
        trial: id(0),
        sequence: 0,
        parameter_id: Some(0),
        state: StoredTrialState::Alive { running_for: None },
        intent: Some(StopReason::ManagerShutdown),
    };
    let mut state = State::resume(limits(1, 1), SECOND, vec![known]);
    state.step(Event::Begin, SECOND);
    let gone = Event::JobGone { trial: id(0), job_end: unknown_end(), verdict: None, result: None };
    let effects = state.step(gone, SECOND);
    assert_eq!(recorded_ends(&effects), [(id(0), JobState::SysCanceled)]);
    assert_eq!(effects[1..], [Effect::StartNextAttempt { trial: id(0) }]);
}

#[test]
fn a_trial_that_runs_too_long_is_stopped() {
    let mut state = State::new(Limits { trial_duration: Some(5 * SECOND), ..limits(1, 1) });
    state.step(Event::Begin, Duration::ZERO);
    state.step(proposed_event(0), Duration::ZERO);
    assert_eq!(state.next_deadline(), None, "waiting does not count");
    state.step(Event::Started { trial: id(0) }, 2 * SECOND);
    assert_eq!(state.next_deadline(), Some(7 * SECOND));
    assert_eq!(state.step(Event::Tick, 6 * SECOND), []);
    let effects = state.step(Event::Tick, 7 * SECOND);
    assert_eq!(effects, [stop_effect(0, StopReason::Deadline)]);
    assert_eq!(state.next_deadline(), None, "the trial is stopped once");
    assert_eq!(state.step(Event::Tick, 8 * SECOND), []);
}

#[test]
fn after_the_time_limit_the_last_trials_continue() {
    let mut state = State::new(Limits { duration: Some(5 * SECOND), ..limits(1, 100) });
    state.step(Event::Begin, Duration::ZERO);
    state.step(proposed_event(0), Duration::ZERO);
    assert_eq!(state.next_deadline(), Some(5 * SECOND));
    let effects = state.step(Event::Tick, 5 * SECOND);
    assert_eq!(effects.last(), Some(&Effect::RecordState(ExperimentState::NoMoreTrial)));
    assert_eq!(messages(&effects).len(), 1);
    assert_eq!(state.next_deadline(), None);
    let effects = state.step(success_event(0, 1.0), 9 * SECOND);
    assert_eq!(effects.last(), Some(&Effect::RecordState(ExperimentState::Done)));
}

#[test]
fn the_end_of_the_time_is_reported_even_if_no_trials_remain() {
    let mut state = State::new(Limits { duration: Some(5 * SECOND), ..limits(2, 2) });
    state.step(Event::Begin, Duration::ZERO);
    state.step(proposed_event(0), Duration::ZERO);
    state.step(proposed_event(1), Duration::ZERO);
    assert_eq!(state.experiment_state(), ExperimentState::NoMoreTrial);
    assert_eq!(state.next_deadline(), Some(5 * SECOND));
    let effects = state.step(Event::Tick, 5 * SECOND);
    let message = "maxExperimentDuration has passed: no more trials are started, and the 2 running trials continue";
    assert_eq!(effects, [Effect::Notify(message.to_owned())]);
    assert_eq!(state.next_deadline(), None);
    assert_eq!(state.step(Event::Tick, 6 * SECOND), [], "once");
}

#[test]
fn a_result_without_a_number_is_no_result() {
    let mut state = State::new(limits(1, 1));
    state.step(Event::Begin, Duration::ZERO);
    state.step(proposed_event(0), Duration::ZERO);
    let gone = Event::JobGone {
        trial: id(0),
        job_end: unknown_end(),
        verdict: Some(Box::new(verdict(Cause::Succeeded, TrialExit::Code(0)))),
        result: Some(MetricValue::from(json!("fine"))),
    };
    let effects = state.step(gone, Duration::ZERO);
    assert_eq!(recorded_ends(&effects), [(id(0), JobState::Succeeded)]);
    assert_eq!(effects[1], observe_effect(0, JobState::Succeeded, Outcome::Failed));
}

/// The next step of the model. The numbers choose among the live trials.
#[derive(Debug, Clone)]
enum Move {
    Start(usize),
    Succeed(usize),
    Fail(usize),
    Cancel(usize),
    Pass(u64),
    Stop,
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let one = prop_oneof![
        4 => any::<usize>().prop_map(Move::Start),
        8 => any::<usize>().prop_map(Move::Succeed),
        3 => any::<usize>().prop_map(Move::Fail),
        1 => any::<usize>().prop_map(Move::Cancel),
        3 => (0..5_u64).prop_map(Move::Pass),
        1 => Just(Move::Stop),
    ];
    prop::collection::vec(one, 0..120)
}

proptest! {
    #[test]
    fn the_invariants_hold_for_all_sequences_of_events(
        moves in moves(),
        concurrency in 1..5_usize,
        trials in prop::option::of(1..20_u64),
        waits in prop::collection::vec(any::<bool>(), 40),
    ) {
        let limits = Limits {
            concurrency,
            trials,
            duration: Some(60 * SECOND),
            trial_duration: Some(7 * SECOND),
        };
        let mut state = State::new(limits);
        let mut alive: Vec<TrialJobId> = Vec::new();
        let mut observed: HashMap<u64, u32> = HashMap::new();
        let mut recorded: HashMap<TrialJobId, u32> = HashMap::new();
        let (mut launched, mut proposals, mut stopped) = (0, 0, false);
        let mut now = Duration::ZERO;
        let mut todo = VecDeque::from(state.step(Event::Begin, now));
        let mut moves = moves.into_iter();
        loop {
            while let Some(effect) = todo.pop_front() {
                match effect {
                    Effect::Propose { parameter_id } => {
                        proposals += 1;
                        let wait = !alive.is_empty() && waits.get(proposals % 40) == Some(&true);
                        let proposal = if wait {
                            Proposal::Wait
                        } else {
                            Proposal::Parameters(point(parameter_id))
                        };
                        let trial = id(1000 + u64::try_from(proposals).unwrap());
                        let answer = Event::Proposed { parameter_id, proposal, trial };
                        todo.extend(state.step(answer, now));
                    }
                    Effect::Enqueue(_) | Effect::ObserveUserTrial { .. } => {
                        prop_assert!(false, "no user added a trial");
                    }
                    Effect::Launch { trial, .. } | Effect::StartNextAttempt { trial } => {
                        prop_assert!(!stopped, "started after the stop");
                        launched += 1;
                        alive.push(trial);
                        prop_assert!(alive.len() <= concurrency, "too many at a time");
                        prop_assert!(trials.is_none_or(|limit| launched <= limit), "too many in all");
                    }
                    Effect::RecordEnd { trial, .. } => *recorded.entry(trial).or_default() += 1,
                    Effect::Observe { parameter_id: Some(id), .. } => {
                        *observed.entry(id).or_default() += 1;
                    }
                    Effect::Observe { parameter_id: None, .. } => {
                        unreachable!("no user adds trials here");
                    }
                    Effect::StopTrial { .. }
                    | Effect::RecordRunning { .. }
                    | Effect::RecordState(_)
                    | Effect::Notify(_)
                    | Effect::Hold(_)
                    | Effect::RecordRetry { .. }
                    | Effect::RecordReplacement { .. } => {}
                }
            }
            let over = matches!(state.experiment_state(), ExperimentState::Done | ExperimentState::Stopped);
            if over {
                break;
            }
            let pick = |n: usize| alive.get(n % alive.len().max(1)).cloned();
            let event = match moves.next() {
                Some(Move::Start(n)) => pick(n).map(|trial| Event::Started { trial }),
                Some(Move::Cancel(n)) => {
                    pick(n).map(|trial| Event::StopRequested { trial, reason: StopReason::User })
                }
                Some(Move::Pass(seconds)) => {
                    now += Duration::from_secs(seconds);
                    Some(Event::Tick)
                }
                Some(Move::Stop) => {
                    stopped = true;
                    Some(Event::ExperimentStopRequested)
                }
                Some(Move::Succeed(n)) => pick(n).map(|trial| end_event(trial, Cause::Succeeded)),
                Some(Move::Fail(n)) => pick(n).map(|trial| end_event(trial, Cause::Exit)),
                // After the moves, the live trials end, and the experiment is stopped.
                None => match pick(0) {
                    Some(trial) => Some(end_event(trial, Cause::Succeeded)),
                    None => break,
                },
            };
            let Some(event) = event else { continue };
            if let Event::JobGone { trial, .. } = &event {
                alive.retain(|other| other != trial);
            }
            stopped |= now >= 60 * SECOND && alive.is_empty();
            todo.extend(state.step(event, now));
            if moves.len() == 0 && !stopped {
                stopped = true;
                todo.extend(state.step(Event::ExperimentStopRequested, now));
                // Proposals that were requested before the stop may still arrive.
                todo.retain(|effect| !matches!(effect, Effect::Launch { .. }));
            }
        }
        prop_assert!(recorded.values().all(|times| *times == 1), "an end recorded twice");
        prop_assert!(observed.values().all(|times| *times == 1), "a proposal observed twice");
        if matches!(state.experiment_state(), ExperimentState::Done | ExperimentState::Stopped) {
            prop_assert_eq!(state.live_count(), 0, "the experiment has ended, and a trial is alive");
        }
    }
}

fn end_event(trial: TrialJobId, cause: Cause) -> Event {
    let code = TrialExit::Code(u8::from(cause != Cause::Succeeded));
    let verdict = Some(Box::new(verdict(cause, code)));
    Event::JobGone { trial, job_end: unknown_end(), verdict, result: Some(1.0.into()) }
}

fn messages(effects: &[Effect]) -> Vec<String> {
    let text = |effect: &'_ Effect| {
        if let Effect::Notify(text) | Effect::Hold(text) = effect {
            Some(text.clone())
        } else {
            None
        }
    };
    effects.iter().filter_map(text).collect()
}
