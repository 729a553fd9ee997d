//! PURE: the choice of the part for a trial, and the queue of trials without a part. The time is an argument.
//!
//! # Invariants
//!
//! 1. A trial is at most at one part.
//! 2. A trial that an earlier manager may have submitted to a part is only submitted to that part.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use tokio::time::Instant;
use trial_protocol::{AttemptId, TrialJobId};

use crate::training_service::{FreeRoom, TrialJobSpec};
use crate::util::backoff::Backoff;

/// The first and the longest time for which a part is skipped after it did not start a trial. The time doubles with
/// each further such trial.
const MIN_SKIP_TIME: Duration = Duration::from_secs(5);
const MAX_SKIP_TIME: Duration = Duration::from_mins(5);

/// The parts, and the trials that are at them or wait for them.
#[derive(Debug)]
pub(super) struct Schedule {
    parts: Vec<PartState>,
    /// The trials that wait for a part, the oldest first.
    queue: VecDeque<QueuedTrial>,
    placed: HashMap<TrialJobId, PlacedTrial>,
    /// The parts to which trials are bound.
    bound: HashMap<TrialJobId, usize>,
}

#[derive(Debug)]
struct PartState {
    name: String,
    limit: Option<usize>,
    /// The times for which the part is skipped after successive trials that it has not started.
    skip_times: Backoff,
    skipped_until: Option<Instant>,
}

impl PartState {
    fn skip(&mut self, now: Instant) {
        self.skipped_until = Some(now + self.skip_times.next_pause());
    }
}

#[derive(Debug)]
struct QueuedTrial {
    job: TrialJobSpec,
    /// The parts that have refused the trial, each with its reason.
    refusals: BTreeMap<usize, String>,
    /// The last reason for waiting that was reported.
    reported_reason: Option<String>,
}

/// A trial at a part.
#[derive(Debug)]
struct PlacedTrial {
    part: usize,
    attempt: AttemptId,
    /// The job. `None`: an earlier manager submitted it.
    job: Option<TrialJobSpec>,
    phase: PlacementPhase,
    stop_requested: bool,
    refusals: BTreeMap<usize, String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PlacementPhase {
    Submitted,
    /// The part reports that the trial waits.
    Waiting,
    Running,
}

/// The fate of a trial that a part has refused.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum RefusalResult {
    /// The trial is queued for another part.
    Queued,
    /// All parts have refused the trial, for these reasons.
    ByAll(String),
    /// The trial is not at that part.
    Unknown,
}

impl Schedule {
    /// Returns an empty schedule for parts with these names and limits.
    pub(super) fn new(parts: impl IntoIterator<Item = (String, Option<usize>)>) -> Self {
        let part = |(name, limit)| {
            let skip_times = Backoff::new(MIN_SKIP_TIME, MAX_SKIP_TIME);
            PartState { name, limit, skip_times, skipped_until: None }
        };
        Self {
            parts: parts.into_iter().map(part).collect(),
            queue: VecDeque::new(),
            placed: HashMap::new(),
            bound: HashMap::new(),
        }
    }

    /// Adds a trial to the queue.
    pub(super) fn enqueue(&mut self, job: TrialJobSpec) {
        self.queue.push_back(QueuedTrial { job, refusals: BTreeMap::new(), reported_reason: None });
    }

    /// Takes over a trial that an earlier manager submitted to a part.
    pub(super) fn take_over(&mut self, trial: &TrialJobId, attempt: &AttemptId, part: usize) {
        let placed = PlacedTrial {
            part,
            attempt: attempt.clone(),
            job: None,
            phase: PlacementPhase::Running,
            stop_requested: false,
            refusals: BTreeMap::new(),
        };
        self.placed.insert(trial.clone(), placed);
    }

    /// Binds a trial to a part. An earlier manager may have submitted it there, and it must not run twice.
    pub(super) fn bind(&mut self, trial: &TrialJobId, part: usize) {
        self.bound.insert(trial.clone(), part);
    }

    /// Places the first trial of the queue for which a part has room. If several parts have room, the one with the
    /// fewest trials gets it. A trial goes to a part's own queue only if no part has room. `rooms` is the room of the
    /// parts in addition to their present trials.
    pub(super) fn place_next(
        &mut self,
        rooms: &[FreeRoom],
        now: Instant,
    ) -> Option<(TrialJobSpec, usize)> {
        let (at, part) = self.queue.iter().enumerate().find_map(|(at, queued)| {
            Some((at, self.best_part(&queued.job.trial, &queued.refusals, rooms, now)?))
        })?;
        let QueuedTrial { job, refusals, .. } = self.queue.remove(at)?;
        let placed = PlacedTrial {
            part,
            attempt: job.attempt.clone(),
            job: Some(job.clone()),
            phase: PlacementPhase::Submitted,
            stop_requested: false,
            refusals,
        };
        self.placed.insert(job.trial.clone(), placed);
        Some((job, part))
    }

    fn best_part(
        &self,
        trial: &TrialJobId,
        refusals: &BTreeMap<usize, String>,
        rooms: &[FreeRoom],
        now: Instant,
    ) -> Option<usize> {
        let bound = self.bound.get(trial);
        let open = (0..self.parts.len()).filter(|part| {
            bound.is_none_or(|bound| bound == part)
                && !refusals.contains_key(part)
                && self.full_reason(*part, &rooms[*part], now).is_none()
        });
        open.min_by_key(|part| (rooms[*part] == FreeRoom::Queue, self.trials_at(*part).count()))
    }

    /// Returns the reason why a part accepts no further trial now. `None`: it accepts one.
    fn full_reason(&self, number: usize, room: &FreeRoom, now: Instant) -> Option<String> {
        let part = &self.parts[number];
        let count = self.trials_at(number).count();
        match room {
            FreeRoom::Unreachable(why) => return Some(why.clone()),
            FreeRoom::Jobs(0) => return Some("it has no room".to_owned()),
            FreeRoom::Jobs(_) | FreeRoom::Queue | FreeRoom::Unknown => {}
        }
        if let Some(limit) = part.limit.filter(|limit| count >= *limit) {
            return Some(format!("it has {count} of at most {limit} trials (`trialConcurrency`)"));
        }
        // On a full service, a submitted trial counts as waiting before the service reports it.
        let waits = |placed: &PlacedTrial| match placed.phase {
            PlacementPhase::Waiting => true,
            PlacementPhase::Submitted => *room == FreeRoom::Queue,
            PlacementPhase::Running => false,
        };
        if self.trials_at(number).any(waits) {
            return Some("another trial already waits there".to_owned());
        }
        let is_skipped = part.skipped_until.is_some_and(|until| now < until);
        is_skipped.then(|| "it has not started the last trial".to_owned())
    }

    fn trials_at(&self, part: usize) -> impl Iterator<Item = &PlacedTrial> {
        self.placed.values().filter(move |placed| placed.part == part)
    }

    /// Returns the part of a trial.
    pub(super) fn part_of(&self, trial: &TrialJobId) -> Option<usize> {
        self.placed.get(trial).map(|placed| placed.part)
    }

    /// Records that a trial's agent has reported.
    pub(super) fn mark_running(&mut self, trial: &TrialJobId) {
        if let Some(placed) = self.placed.get_mut(trial) {
            placed.phase = PlacementPhase::Running;
            let part = &mut self.parts[placed.part];
            part.skip_times.reset();
            part.skipped_until = None;
        }
    }

    /// Records that a trial waits at its part.
    pub(super) fn record_wait(&mut self, trial: &TrialJobId, attempt: &AttemptId, requeued: bool) {
        let placed = self.placed.get_mut(trial).filter(|placed| placed.attempt == *attempt);
        if let Some(placed) =
            placed.filter(|placed| requeued || placed.phase != PlacementPhase::Running)
        {
            placed.phase = PlacementPhase::Waiting;
        }
    }

    /// Returns the trials that wait at a part while another part has room for them, each with its present part. A trial
    /// does not move from one queue to another.
    pub(super) fn movable_trials(
        &self,
        rooms: &[FreeRoom],
        now: Instant,
    ) -> Vec<(TrialJobId, usize)> {
        let waiting = self.placed.iter().filter(|(trial, placed)| {
            let elsewhere = || self.best_part(trial, &placed.refusals, rooms, now);
            placed.phase == PlacementPhase::Waiting
                && placed.job.is_some()
                && !placed.stop_requested
                && elsewhere()
                    .is_some_and(|part| part != placed.part && rooms[part] != FreeRoom::Queue)
        });
        waiting.map(|(trial, placed)| (trial.clone(), placed.part)).collect()
    }

    /// Moves a trial that was withdrawn from its part to the head of the queue.
    pub(super) fn requeue(&mut self, trial: &TrialJobId, now: Instant) {
        let Some(PlacedTrial { part, job: Some(job), refusals, .. }) = self.placed.remove(trial)
        else {
            return;
        };
        self.parts[part].skip(now);
        self.queue.push_front(QueuedTrial { job, refusals, reported_reason: None });
    }

    /// Records that a part has refused a trial, and queues the trial for another part if there is one.
    pub(super) fn refuse(
        &mut self,
        trial: &TrialJobId,
        attempt: &AttemptId,
        part: usize,
        why: &str,
        now: Instant,
    ) -> RefusalResult {
        if !self.placed.get(trial).is_some_and(|it| it.attempt == *attempt && it.part == part) {
            return RefusalResult::Unknown;
        }
        let Some(PlacedTrial { job, mut refusals, stop_requested, .. }) = self.placed.remove(trial)
        else {
            return RefusalResult::Unknown;
        };
        refusals.insert(part, why.to_owned());
        self.parts[part].skip(now);
        let may_move = !stop_requested && !self.bound.contains_key(trial);
        let Some(job) = job.filter(|_| refusals.len() < self.parts.len() && may_move) else {
            let reasons = refusals.iter().map(|(part, why)| self.with_part_name(*part, why));
            return RefusalResult::ByAll(reasons.collect::<Vec<_>>().join("; "));
        };
        self.queue.push_front(QueuedTrial { job, refusals, reported_reason: None });
        RefusalResult::Queued
    }

    /// Records that a part could not start a trial, which is gone.
    pub(super) fn record_failed_start(
        &mut self,
        trial: &TrialJobId,
        attempt: &AttemptId,
        now: Instant,
    ) {
        let placed = self.placed.get(trial).filter(|placed| placed.attempt == *attempt);
        if let Some(placed) = placed
            .filter(|placed| placed.phase != PlacementPhase::Running && !placed.stop_requested)
        {
            self.parts[placed.part].skip(now);
        }
    }

    /// Removes a trial that is gone.
    pub(super) fn remove(&mut self, trial: &TrialJobId, attempt: &AttemptId) {
        if self.placed.get(trial).is_some_and(|placed| placed.attempt == *attempt) {
            self.placed.remove(trial);
            self.bound.remove(trial);
        }
    }

    /// Records that a trial must stop, so that it does not move to another part.
    pub(super) fn request_stop(&mut self, trial: &TrialJobId) {
        if let Some(placed) = self.placed.get_mut(trial) {
            placed.stop_requested = true;
        }
    }

    /// Removes a trial from the queue and returns its attempt. `None`: the queue does not have it.
    pub(super) fn remove_queued(&mut self, trial: &TrialJobId) -> Option<AttemptId> {
        let at = self.queue.iter().position(|queued| queued.job.trial == *trial)?;
        self.queue.remove(at).map(|queued| queued.job.attempt)
    }

    /// Returns the waiting trials whose reason for waiting is new, each with the reason.
    pub(super) fn new_wait_reasons(
        &mut self,
        rooms: &[FreeRoom],
        now: Instant,
    ) -> Vec<(TrialJobId, AttemptId, String)> {
        let full: Vec<Option<String>> = rooms
            .iter()
            .enumerate()
            .map(|(part, room)| self.full_reason(part, room, now))
            .collect();
        let names: Vec<String> = self.parts.iter().map(|part| part.name.clone()).collect();
        let mut news = Vec::new();
        for queued in &mut self.queue {
            let bound = self.bound.get(&queued.job.trial);
            let reasons = names.iter().enumerate().filter_map(|(part, name)| {
                if bound.is_some_and(|bound| *bound != part) {
                    return None;
                }
                let why = queued.refusals.get(&part).or(full[part].as_ref())?;
                Some(format!("{name}: {why}"))
            });
            let why = reasons.collect::<Vec<_>>().join("; ");
            let why = format!("no training service has room for the trial ({why})");
            if queued.reported_reason.as_ref() != Some(&why) {
                queued.reported_reason = Some(why.clone());
                news.push((queued.job.trial.clone(), queued.job.attempt.clone(), why));
            }
        }
        news
    }

    /// Returns the number of trials at a part, and the number of those that wait there.
    pub(super) fn trial_counts(&self, part: usize) -> (usize, usize) {
        let waiting =
            self.trials_at(part).filter(|placed| placed.phase == PlacementPhase::Waiting).count();
        (self.trials_at(part).count(), waiting)
    }

    fn with_part_name(&self, part: usize, why: &str) -> String {
        format!("{}: {why}", self.parts[part].name)
    }
}

#[cfg(test)]
mod tests;
