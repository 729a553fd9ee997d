//! Tests of the user's changes to a running experiment.

use super::super::*;
use crate::search::search_space::Parameters;
use trial_protocol::{Class, Confidence, Evidence, TrialExit};

fn trial(name: &str) -> TrialJobId {
    TrialJobId::new(name).unwrap()
}

fn state(concurrency: usize, trials: u64) -> State {
    let (trials, duration) = (Some(trials), None);
    State::new(Limits { concurrency, trials, duration, trial_duration: None })
}

fn propose_trial(state: &mut State, parameter_id: u64, name: &str) -> Vec<Effect> {
    let proposal = Proposal::Parameters(Parameters::new());
    let trial = trial(name);
    state.step(Event::Proposed { parameter_id, proposal, trial }, Duration::ZERO)
}

fn end_job(state: &mut State, name: &str) -> Vec<Effect> {
    let job_end = JobEnd { exit_code: Some(1), ..JobEnd::default() };
    let event = Event::JobGone { trial: trial(name), job_end, verdict: None, result: None };
    state.step(event, Duration::ZERO)
}

fn limits_change(concurrency: Option<usize>, trials: Option<u64>) -> UserChange {
    UserChange::ChangeLimits { concurrency, trials, duration: None }
}

#[test]
fn an_ended_trial_runs_once_more_and_its_tuner_learns_one_end() {
    let mut state = state(1, 2);
    state.step(Event::Begin, Duration::ZERO);
    propose_trial(&mut state, 0, "a");
    let observations = |effects: &[Effect]| {
        let observations =
            |effect: &&Effect| matches!(effect, Effect::Observe { parameter_id: Some(_), .. });
        effects.iter().filter(observations).count()
    };
    let ended = end_job(&mut state, "a");
    assert_eq!(observations(&ended), 1);
    assert_eq!(
        state.apply_change(UserChange::Rerun(trial("a")), Duration::ZERO),
        [],
        "no free slot yet"
    );
    propose_trial(&mut state, 1, "b");
    assert_eq!(
        state.apply_change(UserChange::Rerun(trial("a")), Duration::ZERO),
        [],
        "the trial already waits"
    );
    let next = end_job(&mut state, "b");
    assert!(next.contains(&Effect::StartNextAttempt { trial: trial("a") }), "{next:?}");
    let last = end_job(&mut state, "a");
    assert_eq!(observations(&last), 0, "{last:?}");
    assert_eq!(state.experiment_state(), ExperimentState::Done);
}

fn add_trials_change(names: &[&str]) -> UserChange {
    UserChange::AddTrials(names.iter().map(|name| (trial(name), Parameters::new())).collect())
}

fn succeed_trial(state: &mut State, name: &str) -> Vec<Effect> {
    let job_end = JobEnd { exit_code: Some(0), ..JobEnd::default() };
    let verdict = Verdict {
        cause: Cause::Succeeded,
        class: Class::None,
        confidence: Confidence::Certain,
        exit: Some(TrialExit::Code(0)),
        message: String::new(),
        stop: None,
        duration_ms: None,
        evidence: Evidence::default(),
    };
    let verdict = Some(Box::new(verdict));
    let event = Event::JobGone { trial: trial(name), job_end, verdict, result: Some(0.5.into()) };
    state.step(event, Duration::ZERO)
}

#[test]
fn points_of_the_user_run_before_those_of_the_tuner_and_count() {
    let mut state = state(1, 3);
    let effects = state.apply_change(add_trials_change(&["x", "y"]), Duration::ZERO);
    let [Effect::Enqueue(own), Effect::StartNextAttempt { trial: first }] = effects.as_slice()
    else {
        panic!("{effects:?}")
    };
    assert_eq!(own.iter().map(|own| own.sequence).collect::<Vec<_>>(), [0, 1]);
    assert_eq!(first, &trial("x"));
    let next = end_job(&mut state, "x");
    assert!(next.contains(&Effect::StartNextAttempt { trial: trial("y") }), "{next:?}");
    let last = end_job(&mut state, "y");
    assert!(
        last.contains(&Effect::Propose { parameter_id: 0 }),
        "the tuner proposes one trial: {last:?}"
    );
    assert!(!state.is_full());
    propose_trial(&mut state, 0, "z");
    assert!(state.is_full());
}

#[test]
fn the_tuner_learns_the_result_of_a_users_point_once() {
    let mut state = state(1, 2);
    state.apply_change(add_trials_change(&["x"]), Duration::ZERO);
    let taught = |effects: &[Effect]| {
        effects.iter().filter(|effect| matches!(effect, Effect::ObserveUserTrial { .. })).count()
    };
    assert_eq!(taught(&succeed_trial(&mut state, "x")), 1);
    propose_trial(&mut state, 0, "a");
    state.apply_change(UserChange::Rerun(trial("x")), Duration::ZERO);
    end_job(&mut state, "a");
    assert_eq!(taught(&succeed_trial(&mut state, "x")), 0, "the user ran the trial again");
}

#[test]
fn a_proposal_beyond_the_limit_of_trials_is_not_tried() {
    let mut state = state(2, 2);
    state.step(Event::Begin, Duration::ZERO);
    propose_trial(&mut state, 0, "a");
    let effects = state.apply_change(add_trials_change(&["x"]), Duration::ZERO);
    assert!(matches!(effects[..], [Effect::Enqueue(_), ..]), "{effects:?}");
    let late = propose_trial(&mut state, 1, "b");
    assert!(!late.iter().any(|effect| matches!(effect, Effect::Launch { .. })), "{late:?}");
}

#[test]
fn a_trial_that_waits_to_run_again_can_be_stopped() {
    let mut state = state(1, 2);
    state.step(Event::Begin, Duration::ZERO);
    propose_trial(&mut state, 0, "a");
    end_job(&mut state, "a");
    propose_trial(&mut state, 1, "b");
    state.apply_change(UserChange::Rerun(trial("a")), Duration::ZERO);
    let stop = || Event::StopRequested { trial: trial("a"), reason: StopReason::User };
    let effects = state.step(stop(), Duration::ZERO);
    let [Effect::RecordEnd { trial: ended, end }] = effects.as_slice() else {
        panic!("{effects:?}")
    };
    assert_eq!((ended, end.state), (&trial("a"), JobState::UserCanceled));
    assert_eq!(state.step(stop(), Duration::ZERO), [], "the trial has ended");
    let last = end_job(&mut state, "b");
    assert!(
        !last.iter().any(|effect| matches!(effect, Effect::StartNextAttempt { .. })),
        "{last:?}"
    );
    assert_eq!(state.experiment_state(), ExperimentState::Done);
}

#[test]
fn a_rebuilt_tuner_learns_the_end_of_a_trial_that_the_user_runs_again() {
    let learnt = |effects: &[Effect]| -> Vec<u64> {
        let of = |effect: &Effect| {
            if let Effect::Observe { parameter_id, .. } = effect { *parameter_id } else { None }
        };
        effects.iter().filter_map(of).collect()
    };
    for waits in [false, true] {
        let mut state = state(1, 2);
        state.step(Event::Begin, Duration::ZERO);
        propose_trial(&mut state, 0, "a");
        end_job(&mut state, "a");
        propose_trial(&mut state, 1, "b");
        state.apply_change(UserChange::Rerun(trial("a")), Duration::ZERO);
        let open = vec![(trial("a"), 0), (trial("b"), 1)];
        if waits {
            state.apply_change(UserChange::ChangeSpace { open }, Duration::ZERO);
            assert_eq!(learnt(&end_job(&mut state, "b")), [1]);
        } else {
            assert_eq!(learnt(&end_job(&mut state, "b")), [1]);
            state.apply_change(
                UserChange::ChangeSpace { open: vec![(trial("a"), 0)] },
                Duration::ZERO,
            );
        }
        assert_eq!(learnt(&end_job(&mut state, "a")), [0], "the trial waited: {waits}");
    }
}

#[test]
fn a_search_that_is_done_continues_under_wider_limits() {
    let mut state = state(1, 1);
    state.step(Event::Begin, Duration::ZERO);
    propose_trial(&mut state, 0, "a");
    end_job(&mut state, "a");
    assert_eq!(state.experiment_state(), ExperimentState::Done);
    assert_eq!(
        state.apply_change(limits_change(Some(2), None), Duration::ZERO),
        [],
        "no more trials"
    );
    assert_eq!(state.apply_change(limits_change(None, Some(1)), Duration::ZERO), [], "no room");
    let more = state.apply_change(limits_change(None, Some(2)), Duration::ZERO);
    let expected =
        [Effect::Propose { parameter_id: 1 }, Effect::RecordState(ExperimentState::Running)];
    assert_eq!(more, expected);
    propose_trial(&mut state, 1, "b");
    end_job(&mut state, "b");
    assert_eq!(state.experiment_state(), ExperimentState::Done);
}

#[test]
fn other_limits_take_effect_at_once() {
    let mut state = state(1, 1);
    state.step(Event::Begin, Duration::ZERO);
    propose_trial(&mut state, 0, "a");
    assert_eq!(state.experiment_state(), ExperimentState::NoMoreTrial);
    let more = state.apply_change(limits_change(None, Some(3)), Duration::ZERO);
    assert_eq!(more, [Effect::RecordState(ExperimentState::Running)], "no free slot yet");
    let wider = state.apply_change(limits_change(Some(2), None), Duration::ZERO);
    assert_eq!(wider, [Effect::Propose { parameter_id: 1 }]);
    propose_trial(&mut state, 1, "b");
    let fewer = state.apply_change(limits_change(None, Some(2)), Duration::ZERO);
    assert_eq!(fewer, [Effect::RecordState(ExperimentState::NoMoreTrial)]);
    let time = UserChange::ChangeLimits {
        concurrency: None,
        trials: Some(9),
        duration: Some(Duration::from_secs(1)),
    };
    let late = state.apply_change(time, Duration::from_secs(2));
    assert!(matches!(late.as_slice(), [Effect::Notify(_)]), "the time limit has passed: {late:?}");
}

#[test]
fn a_new_space_continues_a_search_whose_space_was_used_up() {
    let mut state = state(2, 9);
    state.step(Event::Begin, Duration::ZERO);
    propose_trial(&mut state, 0, "a");
    let exhausted =
        Event::Proposed { parameter_id: 1, proposal: Proposal::Exhausted, trial: trial("x") };
    state.step(exhausted, Duration::ZERO);
    assert_eq!(state.experiment_state(), ExperimentState::TunerNoMoreTrial);
    let imported = state.apply_change(UserChange::TunerUpdated, Duration::ZERO);
    assert_eq!(imported, [], "imported results do not enlarge the space");
    let effects = state.apply_change(UserChange::ChangeSpace { open: Vec::new() }, Duration::ZERO);
    let expected =
        [Effect::Propose { parameter_id: 2 }, Effect::RecordState(ExperimentState::Running)];
    assert_eq!(effects, expected);
}

#[test]
fn a_waiting_tuner_is_asked_again_after_an_import() {
    let mut state = state(2, 9);
    state.step(Event::Begin, Duration::ZERO);
    propose_trial(&mut state, 0, "a");
    let waits = Event::Proposed { parameter_id: 1, proposal: Proposal::Wait, trial: trial("x") };
    state.step(waits, Duration::ZERO);
    let effects = state.apply_change(UserChange::TunerUpdated, Duration::ZERO);
    assert_eq!(effects, [Effect::Propose { parameter_id: 1 }]);
}

#[test]
fn a_stopping_search_starts_no_trials() {
    let mut state = state(2, 9);
    state.step(Event::Begin, Duration::ZERO);
    propose_trial(&mut state, 0, "a");
    state.step(Event::ExperimentStopRequested, Duration::ZERO);
    assert_eq!(state.apply_change(limits_change(Some(9), None), Duration::ZERO), []);
    assert_eq!(state.apply_change(UserChange::Rerun(trial("x")), Duration::ZERO), []);
}
