//! PURE: the user's changes to a running experiment.

use std::time::Duration;

use trial_protocol::TrialJobId;

use super::{DurationLimit, Effect, ExperimentState, State, UserTrial};
use crate::experiment::ending::End;
use crate::job_state::JobState;
use crate::search::search_space::Parameters;
use crate::search::tuner::Outcome;

/// A change by the user.
#[derive(Debug, Clone, PartialEq)]
pub enum UserChange {
    /// Runs an ended trial once more. The tuner has already learned its first end, and does not learn the second one.
    RunAgain(TrialJobId),
    /// Runs trials with the user's own parameters, before any further proposal. The caller has checked that the limit
    /// of trials leaves room for them.
    Add(Vec<(TrialJobId, Parameters)>),
    /// Changes the limits of the experiment. A limit that is `None` stays unchanged.
    Limit {
        /// The greatest number of concurrent trials, at least 1. Trials above it continue to their end.
        concurrency: Option<usize>,
        /// The greatest number of trials in all.
        trials: Option<u64>,
        /// The greatest running time of the experiment.
        duration: Option<Duration>,
    },
    /// The tuner has learned something. If it waited, the state machine requests a proposal again.
    TunerTaught,
    /// The tuner searches another space. If it waited or had no further proposals, the state machine requests one
    /// again.
    Space {
        /// The trials whose ends the tuner must still learn, with the ids of their proposals. The rebuilt tuner treats
        /// their proposals as open. The list includes trials that run again at the user's request.
        open: Vec<(TrialJobId, u64)>,
    },
}

impl State {
    /// Returns the number of trials that have not ended.
    pub fn live(&self) -> usize {
        self.live.len()
    }

    /// Returns whether a trial has not ended.
    pub fn is_live(&self, trial: &TrialJobId) -> bool {
        self.live.contains_key(trial)
    }

    /// Makes a running trial wait for another run from its beginning.
    pub(super) fn requeue(&mut self, trial: &TrialJobId) {
        if let Some(live) = self.live.get_mut(trial) {
            live.running_since = None;
        }
    }

    /// Handles a change by the user at running time `elapsed` and returns the effects.
    pub fn apply_change(&mut self, change: UserChange, elapsed: Duration) -> Vec<Effect> {
        self.elapsed = self.elapsed.max(elapsed);
        let before = self.phase;
        let mut effects = Vec::new();
        match change {
            UserChange::RunAgain(trial) => {
                let known =
                    self.live.contains_key(&trial) || self.rerun_proposals.contains_key(&trial);
                if !known && !self.is_stopping() {
                    self.rerun_proposals.insert(trial.clone(), None);
                    self.rerun_queue.push_back(trial);
                }
            }
            UserChange::Add(points) => {
                if !self.is_stopping() && !points.is_empty() {
                    let own = points.into_iter().map(|(trial, parameters)| {
                        let sequence = self.next_sequence;
                        self.next_sequence += 1;
                        self.own.insert(trial.clone());
                        self.rerun_proposals.insert(trial.clone(), None);
                        self.rerun_queue.push_back(trial.clone());
                        UserTrial { trial, sequence, parameters }
                    });
                    effects.push(Effect::Enqueue(own.collect()));
                }
            }
            UserChange::Limit { concurrency, trials, duration } => {
                self.limits.concurrency = concurrency.unwrap_or(self.limits.concurrency);
                self.limits.trials = trials.or(self.limits.trials);
                self.limits.duration = duration.or(self.limits.duration);
                if duration.is_some() {
                    self.duration = DurationLimit::Active;
                }
                // A search that the last limits had ended continues under the new ones, if they leave room. A search
                // that failures hold does not.
                let wider = trials.is_some() || duration.is_some();
                let is_over =
                    matches!(self.phase, ExperimentState::NoMoreTrial | ExperimentState::Done);
                if is_over && wider && !self.held {
                    self.phase = ExperimentState::Running;
                }
            }
            UserChange::TunerTaught => self.tuner_waits = false,
            UserChange::Space { open } => {
                self.tuner_waits = false;
                for (trial, id) in open {
                    if let Some(live) = self.live.get_mut(&trial) {
                        live.parameter_id = Some(id);
                    } else if let Some(waiting) = self.rerun_proposals.get_mut(&trial) {
                        *waiting = Some(id);
                    }
                }
                let used_up = self.phase == ExperimentState::TunerNoMoreTrial;
                if used_up && !self.tuner_lost && !self.held {
                    self.phase = ExperimentState::Running;
                }
            }
        }
        self.complete_effects(before, effects)
    }
}

impl State {
    /// Returns whether the number of trials has reached its limit.
    pub fn is_full(&self) -> bool {
        self.limits.trials.is_some_and(|limit| self.next_sequence >= limit)
    }

    /// Returns the position of the next trial.
    pub fn next_sequence(&self) -> u64 {
        self.next_sequence
    }

    /// Ends a trial that waits to run again. Returns whether there was one.
    pub(super) fn take_back(&mut self, trial: &TrialJobId, effects: &mut Vec<Effect>) -> bool {
        let Some(parameter_id) = self.rerun_proposals.remove(trial) else { return false };
        self.rerun_queue.retain(|waiting| waiting != trial);
        let state = JobState::UserCanceled;
        let again = if self.own.remove(trial) { "" } else { " again" };
        let message = Some(format!("it was stopped before it ran{again}"));
        let end = End { state, message, exit_code: None };
        effects.push(Effect::RecordEnd { trial: trial.clone(), end });
        if parameter_id.is_some() {
            // A tuner that has not learned the end yet waits for it.
            let (trial, outcome) = (trial.clone(), Outcome::Failed);
            effects.push(Effect::Observe { trial, parameter_id, state, outcome });
            self.tuner_waits = false;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Event, Limits};
    use super::*;
    use crate::experiment::ending::JobEnd;
    use crate::search::tuner::Proposal;
    use trial_protocol::{Cause, Class, Confidence, Evidence, StopReason, TrialExit, Verdict};

    fn trial(name: &str) -> TrialJobId {
        TrialJobId::new(name).unwrap()
    }

    fn state(concurrency: usize, trials: u64) -> State {
        let (trials, duration) = (Some(trials), None);
        State::new(Limits { concurrency, trials, duration, trial_duration: None })
    }

    fn propose(state: &mut State, parameter_id: u64, name: &str) -> Vec<Effect> {
        let proposal = Proposal::Parameters(Parameters::new());
        let trial = trial(name);
        state.step(Event::Proposed { parameter_id, proposal, trial }, Duration::ZERO)
    }

    fn gone(state: &mut State, name: &str) -> Vec<Effect> {
        let gone = JobEnd { exit_code: Some(1), ..JobEnd::default() };
        let event = Event::Gone { trial: trial(name), gone, verdict: None, result: None };
        state.step(event, Duration::ZERO)
    }

    fn limit(concurrency: Option<usize>, trials: Option<u64>) -> UserChange {
        UserChange::Limit { concurrency, trials, duration: None }
    }

    #[test]
    fn an_ended_trial_runs_once_more_and_its_tuner_learns_one_end() {
        let mut state = state(1, 2);
        state.step(Event::Begin, Duration::ZERO);
        propose(&mut state, 0, "a");
        let observations = |effects: &[Effect]| {
            let observations =
                |effect: &&Effect| matches!(effect, Effect::Observe { parameter_id: Some(_), .. });
            effects.iter().filter(observations).count()
        };
        let ended = gone(&mut state, "a");
        assert_eq!(observations(&ended), 1);
        assert_eq!(
            state.apply_change(UserChange::RunAgain(trial("a")), Duration::ZERO),
            [],
            "no free slot yet"
        );
        propose(&mut state, 1, "b");
        assert_eq!(
            state.apply_change(UserChange::RunAgain(trial("a")), Duration::ZERO),
            [],
            "the trial already waits"
        );
        let next = gone(&mut state, "b");
        assert!(next.contains(&Effect::Relaunch { trial: trial("a") }), "{next:?}");
        let last = gone(&mut state, "a");
        assert_eq!(observations(&last), 0, "{last:?}");
        assert_eq!(state.state(), ExperimentState::Done);
    }

    fn add(names: &[&str]) -> UserChange {
        UserChange::Add(names.iter().map(|name| (trial(name), Parameters::new())).collect())
    }

    fn succeeded(state: &mut State, name: &str) -> Vec<Effect> {
        let gone = JobEnd { exit_code: Some(0), ..JobEnd::default() };
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
        let event = Event::Gone { trial: trial(name), gone, verdict, result: Some(0.5.into()) };
        state.step(event, Duration::ZERO)
    }

    #[test]
    fn points_of_the_user_run_before_those_of_the_tuner_and_count() {
        let mut state = state(1, 3);
        let effects = state.apply_change(add(&["x", "y"]), Duration::ZERO);
        let [Effect::Enqueue(own), Effect::Relaunch { trial: first }] = effects.as_slice() else {
            panic!("{effects:?}")
        };
        assert_eq!(own.iter().map(|own| own.sequence).collect::<Vec<_>>(), [0, 1]);
        assert_eq!(first, &trial("x"));
        let next = gone(&mut state, "x");
        assert!(next.contains(&Effect::Relaunch { trial: trial("y") }), "{next:?}");
        let last = gone(&mut state, "y");
        assert!(
            last.contains(&Effect::Propose { parameter_id: 0 }),
            "the tuner proposes one trial: {last:?}"
        );
        assert!(!state.is_full());
        propose(&mut state, 0, "z");
        assert!(state.is_full());
    }

    #[test]
    fn the_tuner_learns_the_result_of_a_users_point_once() {
        let mut state = state(1, 2);
        state.apply_change(add(&["x"]), Duration::ZERO);
        let taught = |effects: &[Effect]| {
            effects.iter().filter(|effect| matches!(effect, Effect::Teach { .. })).count()
        };
        assert_eq!(taught(&succeeded(&mut state, "x")), 1);
        propose(&mut state, 0, "a");
        state.apply_change(UserChange::RunAgain(trial("x")), Duration::ZERO);
        gone(&mut state, "a");
        assert_eq!(taught(&succeeded(&mut state, "x")), 0, "the user ran the trial again");
    }

    #[test]
    fn a_proposal_beyond_the_limit_of_trials_is_not_tried() {
        let mut state = state(2, 2);
        state.step(Event::Begin, Duration::ZERO);
        propose(&mut state, 0, "a");
        let effects = state.apply_change(add(&["x"]), Duration::ZERO);
        assert!(matches!(effects[..], [Effect::Enqueue(_), ..]), "{effects:?}");
        let late = propose(&mut state, 1, "b");
        assert!(!late.iter().any(|effect| matches!(effect, Effect::Launch { .. })), "{late:?}");
    }

    #[test]
    fn a_trial_that_waits_to_run_again_can_be_stopped() {
        let mut state = state(1, 2);
        state.step(Event::Begin, Duration::ZERO);
        propose(&mut state, 0, "a");
        gone(&mut state, "a");
        propose(&mut state, 1, "b");
        state.apply_change(UserChange::RunAgain(trial("a")), Duration::ZERO);
        let stop = || Event::StopRequested { trial: trial("a"), reason: StopReason::User };
        let effects = state.step(stop(), Duration::ZERO);
        let [Effect::RecordEnd { trial: ended, end }] = effects.as_slice() else {
            panic!("{effects:?}")
        };
        assert_eq!((ended, end.state), (&trial("a"), JobState::UserCanceled));
        assert_eq!(state.step(stop(), Duration::ZERO), [], "the trial has ended");
        let last = gone(&mut state, "b");
        assert!(!last.iter().any(|effect| matches!(effect, Effect::Relaunch { .. })), "{last:?}");
        assert_eq!(state.state(), ExperimentState::Done);
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
            propose(&mut state, 0, "a");
            gone(&mut state, "a");
            propose(&mut state, 1, "b");
            state.apply_change(UserChange::RunAgain(trial("a")), Duration::ZERO);
            let open = vec![(trial("a"), 0), (trial("b"), 1)];
            if waits {
                state.apply_change(UserChange::Space { open }, Duration::ZERO);
                assert_eq!(learnt(&gone(&mut state, "b")), [1]);
            } else {
                assert_eq!(learnt(&gone(&mut state, "b")), [1]);
                state.apply_change(
                    UserChange::Space { open: vec![(trial("a"), 0)] },
                    Duration::ZERO,
                );
            }
            assert_eq!(learnt(&gone(&mut state, "a")), [0], "the trial waited: {waits}");
        }
    }

    #[test]
    fn a_search_that_is_done_continues_under_wider_limits() {
        let mut state = state(1, 1);
        state.step(Event::Begin, Duration::ZERO);
        propose(&mut state, 0, "a");
        gone(&mut state, "a");
        assert_eq!(state.state(), ExperimentState::Done);
        assert_eq!(state.apply_change(limit(Some(2), None), Duration::ZERO), [], "no more trials");
        assert_eq!(state.apply_change(limit(None, Some(1)), Duration::ZERO), [], "no room");
        let more = state.apply_change(limit(None, Some(2)), Duration::ZERO);
        let expected =
            [Effect::Propose { parameter_id: 1 }, Effect::RecordState(ExperimentState::Running)];
        assert_eq!(more, expected);
        propose(&mut state, 1, "b");
        gone(&mut state, "b");
        assert_eq!(state.state(), ExperimentState::Done);
    }

    #[test]
    fn other_limits_take_effect_at_once() {
        let mut state = state(1, 1);
        state.step(Event::Begin, Duration::ZERO);
        propose(&mut state, 0, "a");
        assert_eq!(state.state(), ExperimentState::NoMoreTrial);
        let more = state.apply_change(limit(None, Some(3)), Duration::ZERO);
        assert_eq!(more, [Effect::RecordState(ExperimentState::Running)], "no free slot yet");
        let wider = state.apply_change(limit(Some(2), None), Duration::ZERO);
        assert_eq!(wider, [Effect::Propose { parameter_id: 1 }]);
        propose(&mut state, 1, "b");
        let fewer = state.apply_change(limit(None, Some(2)), Duration::ZERO);
        assert_eq!(fewer, [Effect::RecordState(ExperimentState::NoMoreTrial)]);
        let time = UserChange::Limit {
            concurrency: None,
            trials: Some(9),
            duration: Some(Duration::from_secs(1)),
        };
        let late = state.apply_change(time, Duration::from_secs(2));
        assert!(
            matches!(late.as_slice(), [Effect::Notify(_)]),
            "the time limit has passed: {late:?}"
        );
    }

    #[test]
    fn a_new_space_continues_a_search_whose_space_was_used_up() {
        let mut state = state(2, 9);
        state.step(Event::Begin, Duration::ZERO);
        propose(&mut state, 0, "a");
        let exhausted =
            Event::Proposed { parameter_id: 1, proposal: Proposal::Exhausted, trial: trial("x") };
        state.step(exhausted, Duration::ZERO);
        assert_eq!(state.state(), ExperimentState::TunerNoMoreTrial);
        let imported = state.apply_change(UserChange::TunerTaught, Duration::ZERO);
        assert_eq!(imported, [], "imported results do not enlarge the space");
        let effects = state.apply_change(UserChange::Space { open: Vec::new() }, Duration::ZERO);
        let expected =
            [Effect::Propose { parameter_id: 2 }, Effect::RecordState(ExperimentState::Running)];
        assert_eq!(effects, expected);
    }

    #[test]
    fn a_waiting_tuner_is_asked_again_after_an_import() {
        let mut state = state(2, 9);
        state.step(Event::Begin, Duration::ZERO);
        propose(&mut state, 0, "a");
        let waits =
            Event::Proposed { parameter_id: 1, proposal: Proposal::Wait, trial: trial("x") };
        state.step(waits, Duration::ZERO);
        let effects = state.apply_change(UserChange::TunerTaught, Duration::ZERO);
        assert_eq!(effects, [Effect::Propose { parameter_id: 1 }]);
    }

    #[test]
    fn a_stopping_search_starts_no_trials() {
        let mut state = state(2, 9);
        state.step(Event::Begin, Duration::ZERO);
        propose(&mut state, 0, "a");
        state.step(Event::ExperimentStopRequested, Duration::ZERO);
        assert_eq!(state.apply_change(limit(Some(9), None), Duration::ZERO), []);
        assert_eq!(state.apply_change(UserChange::RunAgain(trial("x")), Duration::ZERO), []);
    }
}
