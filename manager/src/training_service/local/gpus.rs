//! The GPUs of this machine and their distribution among trials.
//!
//! A trial that requests GPUs gets the least used ones and sees no others (`CUDA_VISIBLE_DEVICES`). The concurrency
//! never exceeds [`Gpus::capacity`], so a trial that starts never waits for GPUs.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::process::Command;

use trial_protocol::TrialJobId;

/// The GPUs for trials, and their present users.
#[derive(Debug)]
pub struct Gpus {
    /// The number of GPUs of each trial. `None`: the trials' GPU variables stay unchanged. `Some(0)`: trials see none.
    per_trial: Option<usize>,
    /// The number of trials that may share a GPU.
    trials_per_gpu: usize,
    /// The number of trials on each GPU, by its index.
    users: BTreeMap<u64, usize>,
    assigned: HashMap<TrialJobId, Vec<u64>>,
}

/// The trials' demand for the machine's GPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuRequest {
    /// `trialGpuNumber`.
    pub per_trial: Option<u32>,
    /// `maxTrialNumberPerGpu`.
    pub trials_per_gpu: u64,
    /// `gpuIndices`. `None`: all GPUs.
    pub indices: Option<Vec<u64>>,
    /// `useActiveGpu`: includes GPUs on which other processes compute.
    pub includes_active: bool,
}

/// The machine cannot satisfy the demand.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("trialGpuNumber (`trial.gpuNum` in a version 1 file) is {wanted}, but {problem}")]
pub struct Error {
    wanted: usize,
    problem: String,
}

/// A GPU of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpu {
    /// The index that `nvidia-smi` shows.
    pub index: u64,
    /// The name that is unique among all GPUs.
    pub uuid: String,
    /// `true` if a process computes on it.
    pub busy: bool,
}

impl Gpus {
    /// Selects from `machine`'s GPUs those that satisfy the demand.
    pub fn new(request: &GpuRequest, machine: &[Gpu]) -> Result<Self, Error> {
        let each = request.per_trial.map(|each| usize::try_from(each).unwrap_or(usize::MAX));
        let allowed = |gpu: &&Gpu| {
            request.indices.as_ref().is_none_or(|indices| indices.contains(&gpu.index))
                && (request.includes_active || !gpu.busy)
        };
        let users: BTreeMap<_, _> =
            machine.iter().filter(allowed).map(|gpu| (gpu.index, 0)).collect();
        let sharers = usize::try_from(request.trials_per_gpu).unwrap_or(usize::MAX);
        if let Some(each) = each
            && users.len() < each
        {
            let busy = machine.iter().filter(|gpu| gpu.busy).count();
            let there = if machine.is_empty() {
                "nvidia-smi shows no GPU on this machine, or is not installed; omit the field or set it to 0, or run the trials on a \
                 machine with GPUs"
                    .to_owned()
            } else {
                format!(
                    "of the GPUs that nvidia-smi shows ({}, {busy} in use) only {} may be used; see gpuIndices and useActiveGpu of `trainingService` (`localConfig` in version 1)",
                    machine.len(),
                    users.len(),
                )
            };
            return Err(Error { wanted: each, problem: there });
        }
        Ok(Self { per_trial: each, trials_per_gpu: sharers, users, assigned: HashMap::new() })
    }

    /// Returns the number of trials that can run at a time. `None`: GPUs set no limit.
    pub fn capacity(&self) -> Option<usize> {
        let each = self.per_trial.filter(|each| *each > 0)?;
        Some(self.users.len().saturating_mul(self.trials_per_gpu) / each)
    }

    /// Returns the number of further trials that can run now. `None`: GPUs set no limit.
    pub fn free(&self) -> Option<usize> {
        self.capacity().map(|room| room.saturating_sub(self.assigned.len()))
    }

    /// Gives a trial its GPUs and returns the value for `CUDA_VISIBLE_DEVICES`. `None`: the variable stays unchanged.
    pub fn assign(&mut self, trial: &TrialJobId) -> Option<String> {
        let each = self.per_trial?;
        let mut by_use: Vec<_> = self.users.iter().map(|(index, users)| (*users, *index)).collect();
        by_use.sort_unstable();
        let mut taken: Vec<_> = by_use.into_iter().take(each).map(|(_, index)| index).collect();
        taken.sort_unstable();
        for index in &taken {
            *self.users.entry(*index).or_default() += 1;
        }
        let visible = taken.iter().map(u64::to_string).collect::<Vec<_>>().join(",");
        self.assigned.insert(trial.clone(), taken);
        Some(visible)
    }

    /// Returns the GPUs that a trial uses.
    pub fn gpus_of(&self, trial: &TrialJobId) -> Option<&[u64]> {
        self.assigned.get(trial).map(Vec::as_slice)
    }

    /// Reserves the GPUs that an earlier manager gave to a trial.
    pub fn restore(&mut self, trial: &TrialJobId, indices: &[u64]) {
        for index in indices {
            *self.users.entry(*index).or_default() += 1;
        }
        self.assigned.insert(trial.clone(), indices.to_vec());
    }

    /// Releases a trial's GPUs.
    pub fn release(&mut self, trial: &TrialJobId) {
        for index in self.assigned.remove(trial).into_iter().flatten() {
            if let Some(users) = self.users.get_mut(&index) {
                *users = users.saturating_sub(1);
            }
        }
    }
}

/// Returns this machine's GPUs according to `nvidia-smi`, or an empty list if `nvidia-smi` cannot be run.
pub fn list_gpus() -> Vec<Gpu> {
    let ask = |query: &str| {
        let output = Command::new("nvidia-smi").args([query, "--format=csv,noheader"]).output();
        let text = output.ok().filter(|output| output.status.success()).map(|output| output.stdout);
        String::from_utf8_lossy(&text.unwrap_or_default()).into_owned()
    };
    let gpus = ask("--query-gpu=index,uuid");
    let busy =
        if gpus.trim().is_empty() { String::new() } else { ask("--query-compute-apps=gpu_uuid") };
    parse_nvidia_smi(&gpus, &busy)
}

/// Reads the two answers of `nvidia-smi` and skips unknown lines.
fn parse_nvidia_smi(gpus: &str, busy: &str) -> Vec<Gpu> {
    let busy: HashSet<_> = busy.lines().map(str::trim).collect();
    let gpu = |line: &str| {
        let (index, uuid) = line.split_once(',')?;
        let uuid = uuid.trim();
        let (index, busy) = (index.trim().parse().ok()?, busy.contains(uuid));
        Some(Gpu { index, uuid: uuid.to_owned(), busy })
    };
    gpus.lines().filter_map(gpu).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn machine(count: u64) -> Vec<Gpu> {
        let uuid = |index| format!("GPU-{index}");
        (0..count).map(|index| Gpu { index, uuid: uuid(index), busy: index == 1 }).collect()
    }

    fn request(each: Option<u32>) -> GpuRequest {
        GpuRequest { per_trial: each, trials_per_gpu: 1, indices: None, includes_active: true }
    }

    fn trial(number: usize) -> TrialJobId {
        TrialJobId::new(format!("t{number}")).unwrap()
    }

    #[test]
    fn gpus_are_distributed_as_requested() {
        let indices = Some(vec![0, 2]);
        #[rustfmt::skip]
        let table = [
            // the case              request                                                    GPUs  room           the GPUs of three trials
            ("unchanged",            request(None),                                             2,    Some(None),    [None, None, None]),
            ("hidden",               request(Some(0)),                                          2,    Some(None),    [Some(""), Some(""), Some("")]),
            ("hidden, without GPUs", request(Some(0)),                                          0,    Some(None),    [Some(""), Some(""), Some("")]),
            ("one each",             request(Some(1)),                                          3,    Some(Some(3)), [Some("0"), Some("1"), Some("2")]),
            ("a machine with one",   request(Some(1)),                                          1,    Some(Some(1)), [Some("0"), Some("0"), Some("0")]),
            ("two each, shared",     GpuRequest { trials_per_gpu: 2, ..request(Some(2)) },      3,    Some(Some(3)), [Some("0,1"), Some("0,2"), Some("1,2")]),
            ("only these",           GpuRequest { indices, ..request(Some(1)) },                4,    Some(Some(2)), [Some("0"), Some("2"), Some("0")]),
            ("without busy ones",    GpuRequest { includes_active: false, ..request(Some(1)) }, 3,    Some(Some(2)), [Some("0"), Some("2"), Some("0")]),
            ("more than exist",      request(Some(2)),                                          1,    None,          [None, None, None]),
            ("none at all",          request(Some(1)),                                          0,    None,          [None, None, None]),
        ];
        for (case, request, count, room, seen) in table {
            let gpus = Gpus::new(&request, &machine(count));
            assert_eq!(gpus.as_ref().ok().map(Gpus::capacity), room, "{case}");
            let Ok(mut gpus) = gpus else { continue };
            for (number, visible) in seen.into_iter().enumerate() {
                assert_eq!(gpus.assign(&trial(number)).as_deref(), visible, "{case}");
            }
        }
    }

    #[test]
    fn the_error_for_missing_gpus_names_the_field() {
        for (count, also) in [(0, "set it to 0"), (1, "gpuIndices and useActiveGpu")] {
            let refused = Gpus::new(&request(Some(2)), &machine(count)).unwrap_err().to_string();
            let field = "trialGpuNumber (`trial.gpuNum` in a version 1 file) is 2, but ";
            assert!(refused.starts_with(field) && refused.contains(also), "{refused}");
        }
    }

    #[test]
    fn released_gpus_are_used_again() {
        let mut gpus = Gpus::new(&request(Some(1)), &machine(2)).unwrap();
        assert_eq!((gpus.free(), gpus.assign(&trial(0)).as_deref()), (Some(2), Some("0")));
        assert_eq!(gpus.assign(&trial(1)).as_deref(), Some("1"));
        assert_eq!(gpus.free(), Some(0));
        gpus.release(&trial(0));
        gpus.release(&trial(0)); // Without effect.
        assert_eq!(gpus.free(), Some(1));
        assert_eq!(gpus.assign(&trial(2)).as_deref(), Some("0"));
    }

    #[test]
    fn the_gpus_of_adopted_trials_are_taken() {
        let mut gpus = Gpus::new(&request(Some(1)), &machine(2)).unwrap();
        gpus.restore(&trial(0), &[0]);
        assert_eq!(gpus.assign(&trial(1)).as_deref(), Some("1"));
        gpus.release(&trial(0));
        assert_eq!(gpus.assign(&trial(2)).as_deref(), Some("0"));
    }

    #[test]
    fn the_output_of_nvidia_smi_is_read() {
        let found = parse_nvidia_smi("0, GPU-0\n1, GPU-1\nnonsense\n", "GPU-1\nGPU-1\n");
        assert_eq!(found, machine(2));
    }

    proptest! {
        #[test]
        fn random_nvidia_smi_output_never_panics(gpus in ".*", busy in ".*") {
            drop(parse_nvidia_smi(&gpus, &busy));
        }
    }
}
