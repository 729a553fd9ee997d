//! The records that outlive a manager: the machines of the experiment, the machine of each trial, and the fenced
//! attempts.
//!
//! A fence is written before its trial may run on another machine, and is sent until its machine has confirmed it. It
//! is never removed, so that the next manager also ignores the attempt.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use trial_protocol::{AttemptId, TrialJobId};

use crate::config::MachineSpec;
use crate::util::files::{create_private_folder, write_file};

/// The name of the file in a trial's folder with the latest attempt and its machine.
const PLACEMENT_FILE: &str = "machine";

/// An attempt that no longer counts, and that its machine must not run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Fence {
    pub(super) machine: String,
    pub(super) trial: TrialJobId,
    pub(super) attempt: AttemptId,
    /// True if the machine has confirmed that the attempt does not run there and never will.
    pub(super) confirmed: bool,
}

/// The content of the file.
#[derive(Debug, Default, Serialize, Deserialize)]
struct RecordFile {
    machines: Vec<MachineSpec>,
    fences: Vec<Fence>,
}

/// The record of an experiment's machines and fences.
#[derive(Debug)]
pub(super) struct Records {
    path: PathBuf,
    content: RecordFile,
}

impl Records {
    /// Reads the file, which does not exist for a new experiment.
    pub(super) fn load(path: PathBuf) -> io::Result<Self> {
        let content = match fs::read_to_string(&path) {
            Ok(text) => serde_json::from_str(&text)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => RecordFile::default(),
            Err(error) => return Err(error),
        };
        Ok(Self { path, content })
    }

    /// Records the machines of the experiment file, and returns the earlier machines that the file no longer names.
    pub(super) fn record_machines(
        &mut self,
        named: &[MachineSpec],
    ) -> io::Result<Vec<MachineSpec>> {
        let retired: Vec<MachineSpec> = self.retired_machines(named).cloned().collect();
        self.content.machines = named.iter().chain(&retired).cloned().collect();
        self.write()?;
        Ok(retired)
    }

    /// Returns the machines that the experiment file no longer names.
    pub(super) fn retired_machines<'a>(
        &'a self,
        named: &'a [MachineSpec],
    ) -> impl Iterator<Item = &'a MachineSpec> {
        let is_named = |machine: &&MachineSpec| named.iter().any(|one| one.name == machine.name);
        self.content.machines.iter().filter(move |machine| !is_named(machine))
    }

    /// Records fences. If that fails, no fence of the list holds.
    pub(super) fn record_fences(&mut self, fences: Vec<Fence>) -> io::Result<()> {
        let before = self.content.fences.len();
        self.content.fences.extend(fences);
        self.write().inspect_err(|_| self.content.fences.truncate(before))
    }

    /// Returns whether an attempt is fenced.
    pub(super) fn is_fenced(&self, trial: &TrialJobId, attempt: &AttemptId) -> bool {
        let mut fences = self.content.fences.iter();
        fences.any(|fence| fence.trial == *trial && fence.attempt == *attempt)
    }

    /// Returns the fences that a machine has not confirmed.
    pub(super) fn unconfirmed_fences(&self, machine: &str) -> Vec<Fence> {
        let fences = self.content.fences.iter();
        fences.filter(|fence| fence.machine == machine && !fence.confirmed).cloned().collect()
    }

    /// Records that a machine has confirmed these fences.
    pub(super) fn confirm_fences(&mut self, confirmed: &[Fence]) -> io::Result<()> {
        if confirmed.is_empty() {
            return Ok(());
        }
        for fence in &mut self.content.fences {
            fence.confirmed |= confirmed.contains(fence);
        }
        self.write()
    }

    fn write(&self) -> io::Result<()> {
        write_file(&self.path, 0o600, &serde_json::to_string(&self.content)?)
    }
}

/// The machine and the GPUs of a trial.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TrialPlacement {
    pub(super) attempt: AttemptId,
    /// The name of the machine.
    pub(super) machine: String,
    /// The GPUs of the trial. `None`: its GPU variables stay unchanged.
    pub(super) gpus: Option<Vec<u64>>,
}

impl TrialPlacement {
    /// Writes the placement into a trial's folder.
    pub(super) fn write(&self, folder: &Path) -> io::Result<()> {
        create_private_folder(folder)?;
        let Self { attempt, machine, gpus } = self;
        let gpus = gpus.as_ref().map(|gpus| {
            let indices: Vec<String> = gpus.iter().map(u64::to_string).collect();
            format!("{}\n", indices.join(","))
        });
        let text = format!("{attempt}\n{machine}\n{}", gpus.unwrap_or_default());
        write_file(&folder.join(PLACEMENT_FILE), 0o600, &text)
    }

    /// Reads the placement from a trial's folder. `None`: the trial has no machine.
    pub(super) fn read(folder: &Path) -> Option<Self> {
        let text = fs::read_to_string(folder.join(PLACEMENT_FILE)).ok()?;
        let mut lines = text.lines();
        let attempt = AttemptId::new(lines.next()?).ok()?;
        let machine = lines.next()?.to_owned();
        let gpus = lines.next();
        let gpus =
            gpus.map(|list| list.split(',').filter_map(|index| index.parse().ok()).collect());
        Some(Self { attempt, machine, gpus })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(name: &str) -> TrialJobId {
        TrialJobId::new(name).unwrap()
    }

    fn attempt(name: &str) -> AttemptId {
        AttemptId::new(name).unwrap()
    }

    #[test]
    fn written_placements_are_read() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(TrialPlacement::read(folder.path()), None);
        for gpus in [None, Some(vec![]), Some(vec![0, 3])] {
            let machine = "me@gpu1:22".to_owned();
            let place = TrialPlacement { attempt: attempt("t-1"), machine, gpus };
            place.write(folder.path()).unwrap();
            assert_eq!(TrialPlacement::read(folder.path()), Some(place));
        }
    }

    #[test]
    fn a_fence_outlives_its_manager_even_after_its_confirmation() {
        let folder = tempfile::tempdir().unwrap();
        let load = || Records::load(folder.path().join("machines.json")).unwrap();
        let fence = |name: &str| Fence {
            machine: "one".to_owned(),
            trial: id(name),
            attempt: attempt(&format!("{name}-1")),
            confirmed: false,
        };
        let mut records = load();
        records.record_fences(vec![fence("a"), fence("b")]).unwrap();
        records.confirm_fences(&[fence("a")]).unwrap();
        let read = load();
        assert_eq!(read.unconfirmed_fences("one"), [fence("b")]);
        assert_eq!(read.unconfirmed_fences("two"), []);
        assert!(
            read.is_fenced(&id("a"), &attempt("a-1")) && read.is_fenced(&id("b"), &attempt("b-1"))
        );
        assert!(!read.is_fenced(&id("a"), &attempt("a-2")), "its replacement runs");
    }

    #[test]
    fn a_fence_that_cannot_be_written_does_not_hold() {
        let folder = tempfile::tempdir().unwrap();
        let mut records = Records::load(folder.path().join("absent/machines.json")).unwrap();
        let machine = "one".to_owned();
        let fence = Fence { machine, trial: id("a"), attempt: attempt("a-1"), confirmed: false };
        assert!(records.record_fences(vec![fence]).is_err());
        assert!(!records.is_fenced(&id("a"), &attempt("a-1")));
    }
}
