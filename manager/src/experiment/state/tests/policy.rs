//! Tests of the user's policy (targets, successive failures, retries), and of lost or slow advisers.

use super::*;

fn failure_of_class(number: u64, class: Class) -> Event {
    let mut verdict = verdict(Cause::Exit, TrialExit::Code(3));
    verdict.class = class;
    Event::JobGone {
        trial: id(number),
        job_end: unknown_end(),
        verdict: Some(Box::new(verdict)),
        result: None,
    }
}

/// Returns a search of one trial at a time, with the first one started.
fn search_with_policy(policy: SearchPolicy) -> State {
    let mut state = State::new(limits(1, 9)).with_policy(policy);
    state.step(Event::Begin, Duration::ZERO);
    state.step(proposed_event(0), Duration::ZERO);
    state
}

#[test]
fn a_target_ends_the_search() {
    use trial_protocol::Direction::{Maximize, Minimize};
    #[rustfmt::skip]
    let table = [
        (Maximize, 0.9, 0.8,      false),
        (Maximize, 0.9, 0.9,      true),
        (Maximize, 0.9, 0.95,     true),
        (Minimize, 0.1, 0.2,      false),
        (Minimize, 0.1, 0.1,      true),
        (Minimize, 0.1, f64::NAN, false),
    ];
    for (direction, target, result, ends) in table {
        let mut state = search_with_policy(SearchPolicy {
            target: Some((direction, target)),
            ..SearchPolicy::default()
        });
        let effects = state.step(success_event(0, result), Duration::ZERO);
        assert_eq!(
            state.experiment_state() == ExperimentState::Done,
            ends,
            "{direction:?} {target} {result}"
        );
        assert_eq!(messages(&effects).len(), usize::from(ends));
    }
}

#[test]
fn failures_of_one_class_in_a_row_hold_the_search() {
    use Class::{Permanent, UserError};
    #[rustfmt::skip]
    let table: [(&str, &[Option<Class>], bool); 4] = [
        ("three alike",             &[Some(UserError), Some(UserError), Some(UserError)],       true),
        ("of several classes",      &[Some(UserError), Some(Permanent), Some(UserError)],       false),
        ("with a success between",  &[Some(UserError), Some(UserError), None, Some(UserError)], false),
        ("two",                     &[Some(UserError), Some(UserError)],                        false),
    ];
    for (case, ends, holds) in table {
        let mut state = search_with_policy(SearchPolicy {
            failures: FailureLimit::Consecutive(3),
            ..SearchPolicy::default()
        });
        let mut messages_sent = Vec::new();
        for (number, class) in (0..).zip(ends) {
            let event =
                class.map_or_else(|| success_event(number, 1.0), |c| failure_of_class(number, c));
            let effects = state.step(event, Duration::ZERO);
            messages_sent.extend(messages(&effects));
            state.step(proposed_event(number + 1), Duration::ZERO);
        }
        assert_eq!(
            state.experiment_state() == ExperimentState::Stopped,
            holds,
            "{case}: {messages_sent:?}"
        );
        assert_eq!(messages_sent.len(), usize::from(holds), "one message: {messages_sent:?}");
    }
}

/// A case: the name, the concurrency, the file's limit, the number of ends before a trial reports a metric, the ends,
/// and the number of ends that hold the search.
type Case<'a> =
    (&'a str, usize, Option<u32>, Option<usize>, &'a [(Cause, TrialExit)], Option<usize>);

#[test]
fn first_trials_that_all_fail_alike_hold_the_search_by_default() {
    use Cause::{Exit, NotFound, Signal};
    let (one, two, missing) = (TrialExit::Code(1), TrialExit::Code(2), TrialExit::Code(127));
    let alike = [(Exit, one); 12];
    let mixed = [(Exit, one), (Exit, one), (Exit, one), (Exit, one), (Exit, two), (Signal, one)];
    #[rustfmt::skip]
    let table: [Case<'_>; 9] = [
        // the case,                     concurrency, the file's, reports after, ends,          held after
        ("five alike",                             1, None,       None,    &alike,              Some(5)),
        ("more than the concurrency",               7, None,       None,    &alike,              Some(8)),
        ("with different exit codes",               1, None,       None,    &mixed,              None),
        ("one reported a metric",                  1, None,       Some(4), &alike,              None),
        ("no such program",                        3, None,       None,    &[(NotFound, missing)], Some(1)),
        ("127 without a reason",                   3, None,       None,    &[(Exit, missing)],  Some(1)),
        ("127 of a command that has worked",       1, None,       Some(0), &[(Exit, missing)],  None),
        ("the default is turned off",              1, Some(0),    None,    &alike,              None),
        ("the user's limit",                        1, Some(2),    None,    &alike,              Some(2)),
    ];
    for (case, concurrency, limit, reports, ends, held) in table {
        let failures = FailureLimit::from_setting(limit);
        let policy = SearchPolicy { failures, ..SearchPolicy::default() };
        let mut state = State::new(limits(concurrency, 99)).with_policy(policy);
        state.step(Event::Begin, Duration::ZERO);
        for number in 0..20 {
            state.step(proposed_event(number), Duration::ZERO);
        }
        let mut messages_sent = Vec::new();
        let mut held_after = None;
        for (number, (cause, exit)) in (0..).zip(ends) {
            if reports == usize::try_from(number).ok() {
                state.record_metric();
            }
            let verdict = Some(Box::new(verdict(*cause, *exit)));
            let event =
                Event::JobGone { trial: id(number), job_end: unknown_end(), verdict, result: None };
            messages_sent.extend(messages(&state.step(event, Duration::ZERO)));
            if state.is_held() {
                held_after = held_after.or(usize::try_from(number + 1).ok());
            }
        }
        assert_eq!(held_after, held, "{case}: {messages_sent:?}");
        assert_eq!(
            messages_sent.len(),
            usize::from(held.is_some()),
            "{case}, one message: {messages_sent:?}"
        );
    }
}

#[test]
fn a_lost_agent_between_first_failures_neither_counts_nor_separates_them() {
    let mut state = State::new(limits(1, 99));
    state.step(Event::Begin, Duration::ZERO);
    for number in 0..6 {
        assert!(!state.is_held(), "before trial {number}");
        state.step(proposed_event(number), Duration::ZERO);
        let found = (number != 2).then(|| Box::new(verdict(Cause::Exit, TrialExit::Code(1))));
        let job_end = unknown_end();
        let event = Event::JobGone { trial: id(number), job_end, verdict: found, result: None };
        state.step(event, Duration::ZERO);
    }
    assert!(state.is_held(), "five trials failed in the same way");
}

#[test]
fn a_search_with_nothing_left_to_start_is_done_and_not_held() {
    let mut state = State::new(limits(1, 5));
    state.step(Event::Begin, Duration::ZERO);
    for number in 0..5 {
        state.step(proposed_event(number), Duration::ZERO);
        state.step(failure_of_class(number, Class::UserError), Duration::ZERO);
    }
    assert_eq!(state.experiment_state(), ExperimentState::Done);
}

#[test]
fn attempts_that_never_start_hold_the_search() {
    let lost = |number| Event::JobGone {
        trial: id(number),
        job_end: unknown_end(),
        verdict: None,
        result: None,
    };
    // An attempt that begins restarts the count.
    for (begins, holds) in [(None, true), (Some(2), false)] {
        let mut state = search_with_policy(SearchPolicy::default());
        let mut messages_sent = Vec::new();
        for number in 0..5 {
            if begins == Some(number) {
                state.step(Event::Started { trial: id(number) }, Duration::ZERO);
            }
            messages_sent.extend(messages(&state.step(lost(number), Duration::ZERO)));
            state.step(proposed_event(number + 1), Duration::ZERO);
        }
        assert_eq!(
            state.experiment_state() == ExperimentState::Stopped,
            holds,
            "{messages_sent:?}"
        );
        assert_eq!(messages_sent.len(), usize::from(holds), "one message: {messages_sent:?}");
    }
    // As many trials as run at a time may disappear together with their machine.
    let mut state = State::new(limits(8, 99));
    state.step(Event::Begin, Duration::ZERO);
    for number in 0..16 {
        state.step(proposed_event(number), Duration::ZERO);
    }
    let mut held = (0..16).map(|number| {
        state.step(lost(number), Duration::ZERO);
        state.step(proposed_event(number + 8), Duration::ZERO);
        state.experiment_state() != ExperimentState::Running
    });
    assert_eq!(held.position(|held| held), Some(8));
    // A trial that would be retried waits until a user has removed the cause.
    let mut state = search_with_policy(SearchPolicy { retries: 9, ..SearchPolicy::default() });
    let effects: Vec<Effect> = (0..5).flat_map(|_| state.step(lost(0), Duration::ZERO)).collect();
    assert_eq!((messages(&effects).len(), recorded_ends(&effects)), (1, vec![]), "{effects:?}");
    assert_eq!(state.experiment_state(), ExperimentState::Stopped);
}

#[test]
fn a_temporary_failure_is_retried_up_to_the_limit() {
    let mut state = search_with_policy(SearchPolicy { retries: 2, ..SearchPolicy::default() });
    for time in 1..=2 {
        let effects = state.step(failure_of_class(0, Class::Transient), Duration::ZERO);
        let message = format!("as the agent saw it; it is tried again ({time} of 2)");
        let (retry, attempt) = (
            Effect::RecordRetry { trial: id(0), message },
            Effect::StartNextAttempt { trial: id(0) },
        );
        assert_eq!(effects, [retry, attempt]);
    }
    let effects = state.step(failure_of_class(0, Class::Transient), Duration::ZERO);
    assert_eq!(recorded_ends(&effects), [(id(0), JobState::Failed)], "enough");
    state.step(proposed_event(1), Duration::ZERO);
    let effects = state.step(failure_of_class(1, Class::UserError), Duration::ZERO);
    assert_eq!(
        recorded_ends(&effects),
        [(id(1), JobState::Failed)],
        "a retry would fail in the same way"
    );
    state.step(proposed_event(2), Duration::ZERO);
    let lost = Event::JobGone { trial: id(2), job_end: unknown_end(), verdict: None, result: None };
    let effects = state.step(lost, Duration::ZERO);
    assert!(matches!(effects[0], Effect::RecordRetry { .. }), "a lost agent: {effects:?}");
}

#[test]
fn a_search_with_a_lost_tuner_can_be_resumed() {
    let mut state = search_with_policy(SearchPolicy::default());
    assert_eq!(state.step(Event::TunerLost, Duration::ZERO).len(), 1);
    assert_eq!(state.experiment_state(), ExperimentState::TunerNoMoreTrial);
    state.step(success_event(0, 1.0), Duration::ZERO);
    assert_eq!(state.experiment_state(), ExperimentState::Stopped);
}

#[test]
fn a_stop_does_not_wait_for_the_tuner() {
    let mut state = search_with_policy(SearchPolicy::default());
    state.step(success_event(0, 1.0), Duration::ZERO);
    state.step(Event::ExperimentStopRequested, Duration::ZERO);
    assert_eq!(state.experiment_state(), ExperimentState::Stopped);
    assert_eq!(state.step(proposed_event(1), Duration::ZERO), [], "the proposal arrives too late");
}

#[test]
fn the_tuner_learns_the_last_result_of_an_early_stop() {
    for (reason, learned) in [(StopReason::EarlyStop, true), (StopReason::User, false)] {
        let mut state = search_with_policy(SearchPolicy::default());
        state.step(Event::StopRequested { trial: id(0), reason }, Duration::ZERO);
        let gone = Event::JobGone {
            trial: id(0),
            job_end: unknown_end(),
            verdict: Some(Box::new(verdict(Cause::Signal, TrialExit::Signal(15)))),
            result: Some(0.25.into()),
        };
        let effects = state.step(gone, Duration::ZERO);
        let result = Outcome::Result(0.25.into());
        let found = effects
            .iter()
            .any(|effect| matches!(effect, Effect::Observe { outcome, .. } if *outcome == result));
        assert_eq!(found, learned, "{reason:?}: {effects:?}");
    }
}
