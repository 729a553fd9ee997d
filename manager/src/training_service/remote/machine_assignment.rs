//! PURE: the assignment of trials to machines, the waiting trials, and the requests to each machine. It passes requests
//! to the machines' sessions through channels, which does not block.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::Instant;
use trial_protocol::{AttemptId, TrialJobId};

use super::super::local::gpus::{Gpu, GpuRequest, Gpus};
use super::super::{FreeRoom, TrialJobSpec};
use super::session::{MachineFacts, ROOM_REQUEST_ID, request_line};
use crate::config::MachineSpec;
use crate::util::backoff::Backoff;

/// The greatest number of requests to a helper for an agent's remaining reports.
const MAX_REPLAYS: u32 = 5;
/// The first and the longest pause of a machine that could not start a trial. It gets no trial during the pause.
const MACHINE_PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_mins(1));
/// The percentage of available memory below which a machine gets no further trial.
const MIN_MEMORY_PERCENT: u64 = 10;
/// The time for which the stop of a trial waits for an absent machine.
const STOP_ABSENCE_TIMEOUT: Duration = Duration::from_secs(10);

/// All machines and jobs.
#[derive(Debug)]
pub(super) struct Assignments {
    /// The jobs on machines.
    pub(super) jobs: HashMap<TrialJobId, AssignedJob>,
    /// The jobs without a machine, the oldest first.
    waiting: VecDeque<WaitingJob>,
    machines: Vec<Machine>,
    /// The time for which a machine may be absent before its trials run elsewhere.
    max_absence: Duration,
    /// The last reported reason why trials wait.
    reported_reason: String,
}

#[derive(Debug)]
struct WaitingJob {
    spec: TrialJobSpec,
    /// True if the present reason was reported for it.
    is_reported: bool,
}

/// A job on a machine.
#[derive(Debug)]
pub(super) struct AssignedJob {
    pub(super) attempt: AttemptId,
    /// The position of the machine in the list.
    pub(super) machine: usize,
    /// The submission. `None`: an earlier manager submitted the job.
    pub(super) spec: Option<TrialJobSpec>,
    /// The GPUs of the job. `None`: its GPU variables stay unchanged.
    pub(super) gpus: Option<Vec<u64>>,
    /// The UUIDs of the GPUs that the machine locks for the job, if the manager submits it.
    pub(super) gpu_uuids: Vec<String>,
    /// `true` if no other experiment may use these GPUs.
    pub(super) has_exclusive_gpus: bool,
    /// The time at which its stop was requested.
    stop_requested: Option<Instant>,
    replays: u32,
}

impl AssignedJob {
    pub(super) fn is_stop_requested(&self) -> bool {
        self.stop_requested.is_some()
    }
}

/// A request without an answer yet.
#[derive(Debug)]
pub(super) struct PendingRequest {
    pub(super) method: &'static str,
    pub(super) trial: TrialJobId,
    pub(super) attempt: AttemptId,
    asked_at: Instant,
}

/// A job on a machine that has been absent for too long.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct AbsentJob {
    pub(super) trial: TrialJobId,
    pub(super) attempt: AttemptId,
    pub(super) machine: usize,
    /// The reason, for the user.
    pub(super) why: String,
}

/// A job for which a stop was requested.
#[derive(Debug)]
pub(super) enum JobToStop {
    /// The job waited for a machine.
    Waiting(AttemptId),
    /// The job is on this machine.
    Assigned { machine: usize, attempt: AttemptId },
}

#[derive(Debug)]
struct Machine {
    name: String,
    wanted: GpuRequest,
    /// `maxTrialNumber`.
    max_trials: Option<usize>,
    /// True if the experiment file no longer names the machine. The machine keeps its trials, and gets no new ones.
    is_retired: bool,
    /// The number of trials on the machine.
    trials: usize,
    cores: usize,
    /// True if little memory is available, which the present trials may need.
    lacks_memory: bool,
    /// The GPUs for the machine's trials, according to the last reading. An error is the reason for too few GPUs.
    gpus: Result<Gpus, String>,
    /// The UUID of each GPU, according to the last reading.
    gpu_uuids: HashMap<u64, String>,
    /// True from the time at which another experiment took a GPU until the next reading.
    has_lost_gpu: bool,
    /// The GPUs of the manager's own trials when a reading was requested. `None`: no reading is pending.
    pending_reading: Option<HashSet<u64>>,
    link: Option<UnboundedSender<String>>,
    /// The reason why there is no link, and the time since which there is none.
    absence_reason: String,
    absent_since: Instant,
    pause: Option<Pause>,
    last_id: u64,
    pending: HashMap<u64, PendingRequest>,
}

/// The pause of a machine that could not start a trial.
#[derive(Debug)]
struct Pause {
    pauses: Backoff,
    until: Instant,
    why: String,
}

impl Machine {
    fn new(
        spec: &MachineSpec,
        gpus_per_trial: Option<u32>,
        is_retired: bool,
        now: Instant,
    ) -> Self {
        Self {
            name: spec.name.clone(),
            wanted: GpuRequest {
                per_trial: gpus_per_trial,
                trials_per_gpu: spec.max_trial_number_per_gpu,
                indices: spec.gpu_indices.clone(),
                includes_active: spec.use_active_gpu,
            },
            max_trials: spec
                .max_trial_number
                .map(|most| usize::try_from(most).unwrap_or(usize::MAX)),
            is_retired,
            trials: 0,
            cores: 1,
            lacks_memory: false,
            gpus: Err(String::new()),
            gpu_uuids: HashMap::new(),
            has_lost_gpu: false,
            pending_reading: None,
            link: None,
            absence_reason: "not connected yet".to_owned(),
            absent_since: now,
            pause: None,
            last_id: 0,
            pending: HashMap::new(),
        }
    }

    fn is_paused(&self, now: Instant) -> bool {
        self.pause.as_ref().is_some_and(|pause| pause.until > now)
    }

    /// Returns true if trials must not get GPUs that other processes use.
    fn is_avoiding_busy_gpus(&self) -> bool {
        self.wanted.per_trial.is_some_and(|each| each > 0) && !self.wanted.includes_active
    }

    /// Returns the number of further trials that the machine can run. Without any other limit, the machine runs one
    /// trial for each processor.
    fn free_room(&self) -> usize {
        let is_open = !self.lacks_memory && !self.has_lost_gpu;
        let Some(gpus) = self.gpus.as_ref().ok().filter(|_| is_open) else { return 0 };
        let bounds = [gpus.capacity(), self.max_trials];
        let room = bounds.into_iter().flatten().min().unwrap_or(self.cores);
        room.saturating_sub(self.trials)
    }

    /// Returns the number of trials for each processor after one more trial.
    fn load(&self) -> usize {
        (self.trials + 1).saturating_mul(1 << 10) / self.cores
    }

    /// Returns the reason why the machine gets no trial.
    fn unavailable_reason(&self, now: Instant) -> String {
        let why = match (&self.link, &self.pause, &self.gpus) {
            (None, _, _) => self.absence_reason.clone(),
            (Some(_), Some(pause), _) if pause.until > now => {
                format!("it pauses, because it could not start a trial: {}", pause.why)
            }
            (Some(_), _, Err(too_few)) => too_few.clone(),
            (Some(_), _, Ok(_)) if self.lacks_memory => {
                format!("less than {MIN_MEMORY_PERCENT} % of its memory is available")
            }
            (Some(_), _, Ok(_)) if self.max_trials.is_some_and(|most| self.trials >= most) => {
                "maxTrialNumber trials run there".to_owned()
            }
            (Some(_), _, Ok(gpus)) if gpus.capacity().is_none() => {
                "it runs as many trials as it has processors, and `maxTrialNumber` is not set"
                    .to_owned()
            }
            (Some(_), _, Ok(_)) => "its GPUs are in use".to_owned(),
        };
        format!("{}: {why}", self.name)
    }
}

impl Assignments {
    /// Creates the assignments of these machines, without trials. The experiment file no longer names the machines from
    /// position `retired_from` on.
    pub(super) fn new(
        machines: &[MachineSpec],
        retired_from: usize,
        gpus_per_trial: Option<u32>,
        max_absence: Duration,
        now: Instant,
    ) -> Self {
        let machines = machines.iter().enumerate();
        let machines =
            machines.map(|(at, spec)| Machine::new(spec, gpus_per_trial, at >= retired_from, now));
        Self {
            jobs: HashMap::new(),
            waiting: VecDeque::new(),
            machines: machines.collect(),
            max_absence,
            reported_reason: String::new(),
        }
    }

    /// Records the connection to a machine. Returns the reason for too few GPUs, if it is new.
    pub(super) fn record_connection(
        &mut self,
        number: usize,
        facts: &MachineFacts,
        link: UnboundedSender<String>,
    ) -> Option<String> {
        let machine = &mut self.machines[number];
        machine.cores = facts.cores.unwrap_or(1).max(1);
        machine.link = Some(link);
        self.record_facts(number, facts, HashSet::new())
    }

    /// Requests a new reading of the available memory and, if they matter, of the GPUs in use.
    pub(super) fn request_reading(&mut self, number: usize) {
        let own = self.own_gpus(number).collect();
        let machine = &mut self.machines[number];
        let Some(link) = &machine.link else { return };
        if !machine.is_retired && machine.pending_reading.is_none() {
            machine.pending_reading = Some(own);
            let params = json!({"gpus": machine.is_avoiding_busy_gpus()});
            // The send fails if the session has ended. The next session begins with a reading.
            drop(link.send(request_line(ROOM_REQUEST_ID, "room", &params)));
        }
    }

    /// Records the answer to [`Self::request_reading`]. Returns the reason for too few GPUs, if it is new.
    pub(super) fn record_reading(&mut self, number: usize, facts: &MachineFacts) -> Option<String> {
        let own = self.machines[number].pending_reading.take()?;
        self.record_facts(number, facts, own)
    }

    fn record_facts(
        &mut self,
        number: usize,
        facts: &MachineFacts,
        own: HashSet<u64>,
    ) -> Option<String> {
        let percent = facts.available_memory_percent;
        self.machines[number].lacks_memory = percent.is_some_and(|of| of < MIN_MEMORY_PERCENT);
        self.update_gpus(number, facts.gpus.as_ref()?, own)
    }

    /// Offers the GPUs that no other user has. A GPU that a trial of the manager uses, or used at the time of the
    /// request, is busy in the reading but has no other user.
    fn update_gpus(
        &mut self,
        number: usize,
        found: &[Gpu],
        mut own: HashSet<u64>,
    ) -> Option<String> {
        own.extend(self.own_gpus(number));
        let found = found.iter().cloned();
        let found: Vec<Gpu> =
            found.map(|gpu| Gpu { busy: gpu.busy && !own.contains(&gpu.index), ..gpu }).collect();
        let machine = &mut self.machines[number];
        machine.gpu_uuids = found.iter().map(|gpu| (gpu.index, gpu.uuid.clone())).collect();
        machine.has_lost_gpu = false;
        let mut gpus = Gpus::new(&machine.wanted, &found).map_err(|error| error.to_string());
        if let Ok(gpus) = &mut gpus {
            for (trial, job) in self.jobs.iter().filter(|(_, job)| job.machine == number) {
                if let Some(indices) = &job.gpus {
                    gpus.restore(trial, indices);
                }
            }
        }
        let before = std::mem::replace(&mut machine.gpus, gpus);
        let too_few = machine.gpus.as_ref().err();
        too_few.filter(|why| !machine.is_retired && before.err().as_ref() != Some(*why)).cloned()
    }

    /// Returns the GPUs of the manager's trials on a machine.
    fn own_gpus(&self, number: usize) -> impl Iterator<Item = u64> {
        let on = self.jobs.values().filter(move |job| job.machine == number);
        on.filter_map(|job| job.gpus.as_ref()).flatten().copied()
    }

    /// Records the loss of the connection to a machine.
    pub(super) fn record_disconnection(&mut self, number: usize, why: String, now: Instant) {
        let machine = &mut self.machines[number];
        if machine.link.take().is_some() {
            machine.absent_since = now;
        }
        machine.pending.clear();
        machine.pending_reading = None;
        machine.absence_reason = why;
    }

    /// Adds a job to the queue of jobs that wait for a machine.
    pub(super) fn enqueue(&mut self, spec: TrialJobSpec) {
        self.waiting.push_back(WaitingJob { spec, is_reported: false });
    }

    /// Assigns the first waiting job to the machine with room that has the fewest trials for each processor. Returns
    /// the job and the machine.
    pub(super) fn place(&mut self, now: Instant) -> Option<(TrialJobId, usize)> {
        let has_room = |machine: &Machine| {
            let takes = machine.link.is_some() && !machine.is_retired;
            takes && !machine.is_paused(now) && machine.free_room() > 0
        };
        let free = self.machines.iter().enumerate().filter(|(_, machine)| has_room(machine));
        let (number, _) = free.min_by_key(|(_, machine)| (machine.load(), machine.trials))?;
        let WaitingJob { spec, .. } = self.waiting.pop_front()?;
        let (trial, attempt) = (spec.trial.clone(), spec.attempt.clone());
        let machine = &mut self.machines[number];
        machine.trials += 1;
        let gpus = machine.gpus.as_mut().ok().and_then(|gpus| {
            gpus.assign(&trial)?;
            gpus.gpus_of(&trial).map(<[u64]>::to_vec)
        });
        let uuids = gpus.iter().flatten().filter_map(|index| machine.gpu_uuids.get(index).cloned());
        let job = AssignedJob {
            attempt,
            machine: number,
            spec: Some(spec),
            gpu_uuids: uuids.collect(),
            has_exclusive_gpus: machine.is_avoiding_busy_gpus(),
            gpus,
            stop_requested: None,
            replays: 0,
        };
        self.jobs.insert(trial.clone(), job);
        Some((trial, number))
    }

    /// Returns the room of the connected machines, minus the waiting jobs.
    pub(super) fn free_room(&self, now: Instant) -> FreeRoom {
        let takes = |machine: &&Machine| {
            let is_ready = machine.link.is_some() && machine.gpus.is_ok();
            is_ready && !machine.is_retired && !machine.is_paused(now)
        };
        let mut ready = self.machines.iter().filter(takes).peekable();
        if ready.peek().is_none() {
            return FreeRoom::Unreachable(self.wait_reason(now));
        }
        let free: usize = ready.map(Machine::free_room).sum();
        FreeRoom::Jobs(free.saturating_sub(self.waiting.len()))
    }

    /// Withdraws a job that waits for a machine. Returns `false` if the job does not wait.
    pub(super) fn withdraw_waiting(&mut self, trial: &TrialJobId) -> bool {
        let before = self.waiting.len();
        self.waiting.retain(|job| job.spec.trial != *trial);
        self.waiting.len() < before
    }

    /// Returns the trials on a machine.
    pub(super) fn trials_on(&self, number: usize) -> impl Iterator<Item = &TrialJobId> {
        self.jobs.iter().filter(move |(_, job)| job.machine == number).map(|(trial, _)| trial)
    }

    fn wait_reason(&self, now: Instant) -> String {
        let named = self.machines.iter().filter(|machine| !machine.is_retired);
        let all: Vec<String> = named.map(|machine| machine.unavailable_reason(now)).collect();
        format!("no machine has room ({})", all.join("; "))
    }

    /// Returns the reason why trials wait, for the user, and the trials for which it was not reported yet.
    pub(super) fn unreported_waits(
        &mut self,
        now: Instant,
    ) -> (String, Vec<(TrialJobId, AttemptId)>) {
        if self.waiting.is_empty() {
            return (String::new(), Vec::new());
        }
        let why = self.wait_reason(now);
        let is_new = why != self.reported_reason;
        let mut unreported_waits = Vec::new();
        for job in self.waiting.iter_mut().filter(|job| is_new || !job.is_reported) {
            job.is_reported = true;
            unreported_waits.push((job.spec.trial.clone(), job.spec.attempt.clone()));
        }
        self.reported_reason.clone_from(&why);
        (why, unreported_waits)
    }

    /// Sends a request about a job if its machine is connected. Otherwise, the next session sends all requests.
    pub(super) fn request(
        &mut self,
        number: usize,
        trial: &TrialJobId,
        method: &'static str,
        params: &Value,
        now: Instant,
    ) {
        let Some(job) = self.jobs.get(trial) else { return };
        let machine = &mut self.machines[number];
        let Some(link) = &machine.link else { return };
        machine.last_id += 1;
        let (trial, attempt) = (trial.clone(), job.attempt.clone());
        let pending = PendingRequest { method, trial, attempt, asked_at: now };
        machine.pending.insert(machine.last_id, pending);
        // The send fails if the session has ended. The next session sends the request again.
        drop(link.send(request_line(machine.last_id, method, params)));
    }

    /// Removes the request with this number, which has been answered, and returns it.
    pub(super) fn complete_request(&mut self, number: usize, id: u64) -> Option<PendingRequest> {
        self.machines[number].pending.remove(&id)
    }

    /// Returns a request of a machine that was sent before `since` and has no answer.
    pub(super) fn late_request(&self, number: usize, since: Instant) -> Option<&'static str> {
        let mut pending = self.machines[number].pending.values();
        pending.find(|pending| pending.asked_at < since).map(|pending| pending.method)
    }

    /// Starts a pause for a machine that could not start a trial, so that other machines get the next trials. Returns
    /// the length of the pause.
    pub(super) fn pause_machine(&mut self, number: usize, why: String, now: Instant) -> Duration {
        let machine = &mut self.machines[number];
        let last = machine.pause.take().map(|pause| pause.pauses);
        let mut pauses = last.unwrap_or_else(|| Backoff::new(MACHINE_PAUSES.0, MACHINE_PAUSES.1));
        let pause = pauses.next_pause();
        machine.pause = Some(Pause { pauses, until: now + pause, why });
        pause
    }

    /// Withdraws a job whose GPU another experiment has just taken. Its machine gets no trial until the next reading,
    /// which is requested. Returns `false` if the job must not run any more.
    pub(super) fn lose_gpu(
        &mut self,
        number: usize,
        trial: &TrialJobId,
        attempt: &AttemptId,
    ) -> bool {
        let job = self.jobs.get(trial).filter(|job| job.attempt == *attempt);
        let lost = job.and_then(|job| job.gpus.clone()).unwrap_or_default();
        let waits = self.requeue(trial, attempt);
        let machine = &mut self.machines[number];
        machine.has_lost_gpu = true;
        // In a pending reading, the GPUs count as those of another user.
        if let Some(own) = &mut machine.pending_reading {
            own.retain(|index| !lost.contains(index));
        }
        self.request_reading(number);
        waits
    }

    /// Resets the pauses of a machine whose trial has run.
    pub(super) fn reset_pauses(&mut self, number: usize) {
        self.machines[number].pause = None;
    }

    /// Removes a refused job from its machine, so that it waits for another one. Returns `false` if the job must not
    /// run any more.
    pub(super) fn requeue(&mut self, trial: &TrialJobId, attempt: &AttemptId) -> bool {
        let here =
            self.jobs.get(trial).filter(|job| job.attempt == *attempt && !job.is_stop_requested());
        let Some(spec) = here.and_then(|job| job.spec.clone()) else { return false };
        self.remove(trial, attempt);
        self.waiting.push_front(WaitingJob { spec, is_reported: false });
        true
    }

    /// Returns whether a helper may be asked once more for a job's remaining reports, and counts the request.
    pub(super) fn begin_replay(
        &mut self,
        number: usize,
        trial: &TrialJobId,
        attempt: &AttemptId,
    ) -> bool {
        let job = self.jobs.get_mut(trial);
        let job = job.filter(|job| job.machine == number && job.attempt == *attempt);
        let Some(job) = job.filter(|job| job.replays < MAX_REPLAYS) else { return false };
        job.replays += 1;
        true
    }

    /// Takes over a job that an earlier manager assigned to a machine, with its GPUs.
    pub(super) fn take_over(
        &mut self,
        trial: &TrialJobId,
        attempt: &AttemptId,
        number: usize,
        given: Option<Vec<u64>>,
    ) {
        let machine = &mut self.machines[number];
        machine.trials += 1;
        if let (Ok(gpus), Some(given)) = (&mut machine.gpus, &given) {
            gpus.restore(trial, given);
        }
        let attempt = attempt.clone();
        let job = AssignedJob {
            attempt,
            machine: number,
            spec: None,
            gpus: given,
            gpu_uuids: Vec::new(),
            has_exclusive_gpus: false,
            stop_requested: None,
            replays: 0,
        };
        self.jobs.insert(trial.clone(), job);
    }

    /// Removes a job from its machine. Returns `false` if the job was not there.
    pub(super) fn remove(&mut self, trial: &TrialJobId, attempt: &AttemptId) -> bool {
        let Some(job) = self.jobs.get(trial).filter(|job| job.attempt == *attempt) else {
            return false;
        };
        let machine = &mut self.machines[job.machine];
        machine.trials = machine.trials.saturating_sub(1);
        if let Ok(gpus) = &mut machine.gpus {
            gpus.release(trial);
        }
        self.jobs.remove(trial).is_some()
    }

    /// Records a stop request. A job that waits for a machine is removed. Returns `None` if the trial has no job.
    pub(super) fn request_stop(&mut self, trial: &TrialJobId, now: Instant) -> Option<JobToStop> {
        if let Some(at) = self.waiting.iter().position(|job| job.spec.trial == *trial) {
            return self.waiting.remove(at).map(|job| JobToStop::Waiting(job.spec.attempt));
        }
        let job = self.jobs.get_mut(trial)?;
        job.stop_requested.get_or_insert(now);
        Some(JobToStop::Assigned { machine: job.machine, attempt: job.attempt.clone() })
    }

    /// Returns the jobs that no longer wait for their absent machines, sorted by id. The caller must fence them.
    pub(super) fn absent_jobs(&self, now: Instant) -> Vec<AbsentJob> {
        let late =
            self.jobs.iter().filter(|(_, job)| self.deadline(job).is_some_and(|at| at <= now));
        let absent = late.map(|(trial, job)| {
            let Machine { name, absence_reason: why, absent_since, .. } = &self.machines[job.machine];
            let seconds = now.saturating_duration_since(*absent_since).as_secs();
            let why = format!(
                "{name} has been out of reach for {seconds} s ({why}); the trial's run there is ignored, and it runs again \
                 on another machine"
            );
            AbsentJob {
                trial: trial.clone(),
                attempt: job.attempt.clone(),
                machine: job.machine,
                why,
            }
        });
        let mut absent: Vec<AbsentJob> = absent.collect();
        absent.sort_by(|one, other| one.trial.cmp(&other.trial));
        absent
    }

    /// Returns the time of the next change without an event: the end of a wait for an absent machine, or of a pause.
    pub(super) fn next_change(&self, now: Instant) -> Option<Instant> {
        let deadlines = self.jobs.values().filter_map(|job| self.deadline(job));
        let pauses = self.machines.iter().filter_map(|machine| machine.pause.as_ref());
        let pauses = pauses.map(|pause| pause.until).filter(|until| *until > now);
        deadlines.chain(pauses).min()
    }

    /// Returns the time until which a job waits for its machine. `None`: the machine is connected.
    fn deadline(&self, job: &AssignedJob) -> Option<Instant> {
        let machine = &self.machines[job.machine];
        if machine.link.is_some() {
            return None;
        }
        let absent_since = machine.absent_since;
        let stop = job.stop_requested.map(|at| at.max(absent_since) + STOP_ABSENCE_TIMEOUT);
        let limit = absent_since + self.max_absence;
        Some(stop.map_or(limit, |stop| stop.min(limit)))
    }
}

#[cfg(test)]
mod tests;
