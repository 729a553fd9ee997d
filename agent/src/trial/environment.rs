//! PURE: how the trial's environment differs from the agent's.
//!
//! The trial sees what NNI's SDK needs, its parameters in three forms, and none of the agent's own
//! settings: a keeper inside a keeper must not report under the outer one's name.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use trial_protocol::MetricValue;

use crate::collect::number;
use crate::trial::guard::RUN_VARIABLE;
use crate::trial::parameters::Parameters;

/// The longest value put into a variable, in bytes. The kernel's limit is 128 KiB (`MAX_ARG_STRLEN`), and
/// over it nothing starts at all; longer parameters are in the file only.
pub const LONGEST_VALUE: usize = 100 * 1024;

/// The most that all variables for parameters take together, in bytes. The kernel's limit for arguments and variables
/// is a quarter of the stack's (`man 2 execve`), as a rule 2 MiB. This is a quarter of that.
pub const LONGEST_TOTAL: usize = 512 * 1024;

/// The changes to make. Everything else is inherited.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    /// Variables that the trial must not see.
    pub remove: Vec<OsString>,
    /// Variables set, after the removals.
    pub set: Vec<(OsString, OsString)>,
}

/// The facts that the trial is given. `None`: no flag said so; then the caller's variable stands, where it has one.
#[derive(Debug, Clone, Copy)]
pub struct Facts<'a> {
    /// `NNI_PLATFORM`.
    pub platform: Option<&'a str>,
    /// `NNI_EXP_ID`.
    pub experiment: Option<&'a str>,
    /// `NNI_TRIAL_JOB_ID`.
    pub trial: Option<&'a str>,
    /// `NNI_TRIAL_SEQ_ID`.
    pub sequence: Option<u64>,
    /// `NNI_SYS_DIR` and `NNI_OUTPUT_DIR`, if asked for by a flag.
    pub output_dir: Option<&'a Path>,
    /// The output directory, if the user named none.
    pub fallback_dir: Option<&'a Path>,
    /// The directory the command is run in.
    pub code_dir: Option<&'a Path>,
    /// The parameters.
    pub parameters: &'a Parameters,
    /// A file that holds them as one JSON object.
    pub parameters_file: Option<&'a Path>,
    /// Further facts: of the pod and its peers.
    pub peers: &'a [(String, String)],
    /// The mark of this run's processes, see [`RUN_VARIABLE`].
    pub run: &'a str,
}

/// The changes to make to the environment `inherited`.
pub fn changes(inherited: &[(OsString, OsString)], facts: &Facts<'_>) -> Changes {
    let ours = |name: &OsStr| name.as_bytes().starts_with(b"TRIALKEEPER_");
    let remove =
        inherited.iter().map(|(name, _)| name).filter(|name| ours(name)).cloned().collect();
    let mut set = Setter { inherited, set: Vec::new(), left: LONGEST_TOTAL };

    set.or_inherit("NNI_PLATFORM", facts.platform.map(OsString::from), "local");
    set.or_inherit("NNI_EXP_ID", facts.experiment.map(OsString::from), "standalone");
    set.or_inherit("NNI_TRIAL_JOB_ID", facts.trial.map(OsString::from), "standalone");
    set.or_inherit("NNI_TRIAL_SEQ_ID", facts.sequence.map(|n| n.to_string().into()), "0");
    for name in ["NNI_SYS_DIR", "NNI_OUTPUT_DIR"] {
        let fallback = || facts.fallback_dir.filter(|_| !set.inherits(name));
        if let Some(dir) = facts.output_dir.or_else(fallback) {
            set.put(name, dir.as_os_str());
        }
    }
    // The one folder that is this trial's alone: several trials share their code's, where one's `model.pt` is the next one's.
    if let Some(dir) = set.value_of("NNI_OUTPUT_DIR") {
        set.put("TRIALKEEPER_OUTPUT_DIR", dir);
    }
    if let Some(dir) = facts.code_dir.filter(|_| !set.inherits("NNI_CODE_DIR")) {
        set.put("NNI_CODE_DIR", dir.as_os_str());
    }
    // Makes the SDK print its metrics to stdout, where the agent reads them, and leave `sys.stdout` alone.
    set.put("REUSE_MODE", "true");
    set.put("MULTI_PHASE", "false");
    // Else Python keeps up to 8 KiB back, and with them the metrics of a trial that is killed.
    set.or_inherit("PYTHONUNBUFFERED", None, "1");

    set.put(RUN_VARIABLE, facts.run);
    for (name, value) in facts.peers {
        set.put(name, value);
    }
    set.value("TRIALKEEPER_PARAMETERS", facts.parameters.to_json().into_bytes());
    if let Some(file) = facts.parameters_file {
        set.put("TRIALKEEPER_PARAMETERS_FILE", file.as_os_str());
    }
    for (name, value) in &facts.parameters.values {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        set.value(&format!("TRIALKEEPER_PARAM_{}", plain_name(name)), text.into_bytes());
    }
    Changes { remove, set: set.set }
}

/// The variables of a trial with these changes that are numbers.
pub fn numbers(
    inherited: impl IntoIterator<Item = (OsString, OsString)>,
    changes: &Changes,
) -> Vec<(String, MetricValue)> {
    // A variable that is set anew hides the inherited value, which no program prints.
    let all = changes.set.iter().cloned().chain(inherited);
    all.filter_map(|(name, value)| Some((name.into_string().ok()?, number(value.to_str()?)?)))
        .collect()
}

/// Parameters of which only the last is there one by one, since their variables have one name.
pub fn collisions(parameters: &Parameters) -> Vec<(&str, &str)> {
    let mut names: Vec<_> =
        parameters.values.keys().map(|name| (plain_name(name), name.as_str())).collect();
    names.sort();
    let same = names.windows(2).filter(|pair| pair[0].0 == pair[1].0);
    same.map(|pair| (pair[0].1, pair[1].1)).collect()
}

/// The part of a variable's name that stands for a parameter's.
fn plain_name(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect()
}

struct Setter<'a> {
    inherited: &'a [(OsString, OsString)],
    set: Vec<(OsString, OsString)>,
    /// The bytes that parameters may still take.
    left: usize,
}

impl Setter<'_> {
    fn inherits(&self, name: &str) -> bool {
        self.inherited.iter().any(|(other, _)| other == name)
    }

    /// The value that the trial will see.
    fn value_of(&self, name: &str) -> Option<OsString> {
        let all = self.set.iter().rev().chain(self.inherited);
        all.into_iter().find(|(other, _)| other == name).map(|(_, value)| value.clone())
    }

    fn put(&mut self, name: &str, value: impl AsRef<OsStr>) {
        self.set.push((name.into(), value.as_ref().to_owned()));
    }

    fn or_inherit(&mut self, name: &str, wanted: Option<OsString>, fallback: &str) {
        match wanted {
            Some(value) => self.put(name, value),
            None if self.inherits(name) => {}
            None => self.put(name, fallback),
        }
    }

    /// Sets what a variable can hold: no NUL, and not so long that the kernel refuses to start anything.
    fn value(&mut self, name: &str, value: Vec<u8>) {
        let size = name.len() + value.len();
        if value.len() <= LONGEST_VALUE && size <= self.left && !value.contains(&0) {
            self.left -= size;
            self.put(name, OsString::from_vec(value));
        }
    }
}

#[cfg(test)]
mod tests;
