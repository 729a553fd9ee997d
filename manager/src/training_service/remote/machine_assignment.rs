//! PURE: the assignment of trials to machines, the trials that wait, and the requests to each machine.

use std::collections::{HashMap, VecDeque};

use serde_json::Value;
use tokio::sync::mpsc::UnboundedSender;
use trial_protocol::{AttemptId, TrialJobId};

use super::super::local::gpus::{Gpu, Gpus, Wanted};
use super::super::{FreeRoom, TrialJobSpec};
use super::request;
use crate::config::MachineSpec;

/// Times that a helper is asked for reports that were left behind.
const REPLAYS: u32 = 5;

/// All machines and jobs.
#[derive(Debug)]
pub(super) struct Assignments {
    /// Jobs on machines.
    pub(super) jobs: HashMap<TrialJobId, Job>,
    /// Jobs without a machine, the oldest first.
    pub(super) waiting: VecDeque<TrialJobSpec>,
    machines: Vec<Machine>,
}

/// A job that was put on a machine.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) attempt: AttemptId,
    /// Position of the machine in the list.
    pub(super) machine: usize,
    /// `None`: an earlier manager has submitted it.
    pub(super) spec: Option<TrialJobSpec>,
    /// The value for `CUDA_VISIBLE_DEVICES`.
    pub(super) gpus: Option<String>,
    pub(super) stop_requested: bool,
    replays: u32,
}

/// A request that was not answered yet.
#[derive(Debug)]
pub(super) struct PendingRequest {
    pub(super) method: &'static str,
    pub(super) trial: TrialJobId,
    pub(super) attempt: AttemptId,
}

#[derive(Debug)]
struct Machine {
    name: String,
    wanted: Wanted,
    gpus: Option<Gpus>,
    link: Option<UnboundedSender<String>>,
    /// The reason that there is no link.
    why: String,
    last_id: u64,
    asked: HashMap<u64, PendingRequest>,
}

impl Assignments {
    pub(super) fn new(machines: &[MachineSpec], each: Option<u32>) -> Self {
        let machine = |machine: &MachineSpec| Machine {
            name: machine.name.clone(),
            wanted: Wanted {
                each,
                sharers: machine.max_trial_number_per_gpu,
                indices: machine.gpu_indices.clone(),
                active: machine.use_active_gpu,
            },
            gpus: None,
            link: None,
            why: "not connected yet".to_owned(),
            last_id: 0,
            asked: HashMap::new(),
        };
        let machines = machines.iter().map(machine).collect();
        Self { jobs: HashMap::new(), waiting: VecDeque::new(), machines }
    }

    /// A machine can be spoken to. An error is why it can run no trial all the same.
    pub(super) fn connected(
        &mut self,
        number: usize,
        gpus: &[(u64, bool)],
        link: UnboundedSender<String>,
    ) -> Result<(), String> {
        let machine = &mut self.machines[number];
        // Who has which is known from the first time on; a trial of ours makes its GPU look busy later.
        if machine.gpus.is_none() {
            let found: Vec<Gpu> = gpus.iter().map(|&(index, busy)| Gpu { index, busy }).collect();
            let mut gpus = Gpus::new(&machine.wanted, &found).map_err(|error| error.to_string())?;
            for (trial, job) in self.jobs.iter_mut().filter(|(_, job)| job.machine == number) {
                job.gpus = gpus.take(trial);
            }
            machine.gpus = Some(gpus);
        }
        machine.link = Some(link);
        Ok(())
    }

    pub(super) fn disconnected(&mut self, number: usize, why: String) {
        let machine = &mut self.machines[number];
        machine.link = None;
        machine.asked.clear();
        machine.why = why;
    }

    /// Puts the first waiting job on the machine with the fewest trials of those that have room: which job, which machine.
    pub(super) fn place(&mut self) -> Option<(TrialJobId, usize)> {
        let free = (0..self.machines.len()).filter(|number| self.has_room(*number));
        let number = free.min_by_key(|number| self.on(*number).count())?;
        let spec = self.waiting.pop_front()?;
        let (trial, attempt) = (spec.trial.clone(), spec.attempt.clone());
        let gpus = self.machines[number].gpus.as_mut().and_then(|gpus| gpus.take(&trial));
        let job = Job {
            attempt,
            machine: number,
            spec: Some(spec),
            gpus,
            stop_requested: false,
            replays: 0,
        };
        self.jobs.insert(trial.clone(), job);
        Some((trial, number))
    }

    fn has_room(&self, number: usize) -> bool {
        let machine = &self.machines[number];
        let room = machine.gpus.as_ref().and_then(Gpus::room);
        machine.link.is_some() && room.is_none_or(|room| self.on(number).count() < room)
    }

    /// Returns the room of the connected machines beside the jobs that wait.
    pub(super) fn free_room(&self) -> FreeRoom {
        let connected = |number: &usize| self.machines[*number].link.is_some();
        let connected: Vec<usize> = (0..self.machines.len()).filter(connected).collect();
        if connected.is_empty() {
            return FreeRoom::Unreachable(self.why());
        }
        let free = connected.into_iter().map(|number| {
            let room = self.machines[number].gpus.as_ref().and_then(Gpus::room)?;
            Some(room.saturating_sub(self.on(number).count()))
        });
        match free.sum::<Option<usize>>() {
            Some(free) => FreeRoom::Jobs(free.saturating_sub(self.waiting.len())),
            None => FreeRoom::Unknown,
        }
    }

    /// Takes a job back that waits for a machine; `false` if it does not.
    pub(super) fn withdraw(&mut self, trial: &TrialJobId) -> bool {
        let before = self.waiting.len();
        self.waiting.retain(|job| job.trial != *trial);
        self.waiting.len() < before
    }

    /// Trials on a machine.
    pub(super) fn on(&self, number: usize) -> impl Iterator<Item = &TrialJobId> {
        self.jobs.iter().filter(move |(_, job)| job.machine == number).map(|(trial, _)| trial)
    }

    /// Returns the reason that trials wait, for a person.
    pub(super) fn why(&self) -> String {
        let why = |machine: &Machine| match machine.link {
            Some(_) => format!("{}: its GPUs are in use", machine.name),
            None => format!("{}: {}", machine.name, machine.why),
        };
        let all: Vec<String> = self.machines.iter().map(why).collect();
        format!("no machine has room ({})", all.join("; "))
    }

    /// Sends a request about a job, if its machine can be spoken to; else a new session says everything.
    pub(super) fn request(
        &mut self,
        number: usize,
        trial: &TrialJobId,
        method: &'static str,
        params: &Value,
    ) {
        let Some(job) = self.jobs.get(trial) else { return };
        let machine = &mut self.machines[number];
        let Some(link) = &machine.link else { return };
        machine.last_id += 1;
        let asked = PendingRequest { method, trial: trial.clone(), attempt: job.attempt.clone() };
        machine.asked.insert(machine.last_id, asked);
        // A session that has ended is followed by one that says it again.
        drop(link.send(request(machine.last_id, method, params)));
    }

    /// The request of this number, which is answered now.
    pub(super) fn answered(&mut self, number: usize, id: u64) -> Option<PendingRequest> {
        self.machines[number].asked.remove(&id)
    }

    /// Returns whether a helper may be asked once more for what a job left, and counts it.
    pub(super) fn may_replay(
        &mut self,
        number: usize,
        trial: &TrialJobId,
        attempt: &AttemptId,
    ) -> bool {
        let job = self.jobs.get_mut(trial);
        let job = job.filter(|job| job.machine == number && job.attempt == *attempt);
        let Some(job) = job.filter(|job| job.replays < REPLAYS) else { return false };
        job.replays += 1;
        true
    }

    /// Takes a job for one that an earlier manager put on a machine.
    pub(super) fn take_over(&mut self, trial: &TrialJobId, attempt: &AttemptId, number: usize) {
        let gpus = self.machines[number].gpus.as_mut().and_then(|gpus| gpus.take(trial));
        let attempt = attempt.clone();
        let job =
            Job { attempt, machine: number, spec: None, gpus, stop_requested: false, replays: 0 };
        self.jobs.insert(trial.clone(), job);
    }

    /// Takes a job off its machine; `false` if it was not there.
    pub(super) fn remove(&mut self, trial: &TrialJobId, attempt: &AttemptId) -> bool {
        let Some(job) = self.jobs.get(trial).filter(|job| job.attempt == *attempt) else {
            return false;
        };
        if let Some(gpus) = &mut self.machines[job.machine].gpus {
            gpus.give_back(trial);
        }
        self.jobs.remove(trial).is_some()
    }

    /// Notes that a job is to stop: its attempt if it waited for a machine, or its machine and attempt.
    pub(super) fn request_stop(
        &mut self,
        trial: &TrialJobId,
    ) -> (Option<AttemptId>, Option<(usize, AttemptId)>) {
        if let Some(at) = self.waiting.iter().position(|job| job.trial == *trial) {
            return (self.waiting.remove(at).map(|job| job.attempt), None);
        }
        let job = self.jobs.get_mut(trial);
        let on = job.map(|job| {
            job.stop_requested = true;
            (job.machine, job.attempt.clone())
        });
        (None, on)
    }
}
