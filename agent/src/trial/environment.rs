//! PURE: the differences between the trial's environment and the agent's.
//!
//! The trial gets the variables of NNI's SDK, its parameters in three forms, and none of the agent's settings.
//! Otherwise, an agent that the trial starts would report under the outer agent's name.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use trial_protocol::MetricValue;

use crate::collect::parse_number;
use crate::trial::guard::RUN_VARIABLE;
use crate::trial::parameters::Parameters;

/// The maximum length of a variable's value, in bytes. The kernel refuses to start a program with a value above 128 KiB
/// (`MAX_ARG_STRLEN`). Longer parameters are only in the file.
pub const MAX_VALUE_BYTES: usize = 100 * 1024;

/// The maximum total size of the variables for parameters, in bytes. The kernel's limit for arguments and variables is
/// a quarter of the stack limit (`man 2 execve`), usually 2 MiB. This is a quarter of that.
pub const MAX_TOTAL_BYTES: usize = 512 * 1024;

/// The changes to the environment. All other variables are inherited.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EnvironmentChanges {
    /// Variables to remove.
    pub remove: Vec<OsString>,
    /// Variables to set after the removals.
    pub set: Vec<(OsString, OsString)>,
}

/// The values for the trial's environment. `None`: no flag gives the value, and an inherited variable keeps its value.
#[derive(Debug, Clone, Copy)]
pub struct EnvironmentInputs<'a> {
    /// `NNI_PLATFORM`.
    pub platform: Option<&'a str>,
    /// `NNI_EXP_ID`.
    pub experiment: Option<&'a str>,
    /// `NNI_TRIAL_JOB_ID`.
    pub trial: Option<&'a str>,
    /// `NNI_TRIAL_SEQ_ID`.
    pub sequence: Option<u64>,
    /// `NNI_SYS_DIR` and `NNI_OUTPUT_DIR`, if a flag sets them.
    pub output_dir: Option<&'a Path>,
    /// The output directory if the user gave none.
    pub fallback_dir: Option<&'a Path>,
    /// The working directory of the command.
    pub code_dir: Option<&'a Path>,
    /// The parameters.
    pub parameters: &'a Parameters,
    /// A file with the parameters as one JSON object.
    pub parameters_file: Option<&'a Path>,
    /// The file for reports of a trial whose output is redirected, below `NNI_SYS_DIR`, if the agent reads it. With the
    /// user's own files of metrics it does not, because the redirected output may be one of them.
    pub reports_file: Option<&'a str>,
    /// Further variables about the pod and its peers.
    pub peers: &'a [(String, String)],
    /// The mark of this run's processes, see [`RUN_VARIABLE`].
    pub run_mark: &'a str,
}

/// Returns the changes to make to the environment `inherited`.
pub fn changes(
    inherited: &[(OsString, OsString)],
    inputs: &EnvironmentInputs<'_>,
) -> EnvironmentChanges {
    let is_agents = |name: &OsStr| name.as_bytes().starts_with(b"TRIALKEEPER_");
    let remove =
        inherited.iter().map(|(name, _)| name).filter(|name| is_agents(name)).cloned().collect();
    let mut set =
        VariableSetter { inherited, set: Vec::new(), parameter_bytes_left: MAX_TOTAL_BYTES };

    set.set_or_inherit("NNI_PLATFORM", inputs.platform.map(OsString::from), "local");
    set.set_or_inherit("NNI_EXP_ID", inputs.experiment.map(OsString::from), "standalone");
    set.set_or_inherit("NNI_TRIAL_JOB_ID", inputs.trial.map(OsString::from), "standalone");
    set.set_or_inherit("NNI_TRIAL_SEQ_ID", inputs.sequence.map(|n| n.to_string().into()), "0");
    for name in ["NNI_SYS_DIR", "NNI_OUTPUT_DIR"] {
        let fallback = || inputs.fallback_dir.filter(|_| !set.has_inherited(name));
        if let Some(dir) = inputs.output_dir.or_else(fallback) {
            set.set_variable(name, dir.as_os_str());
        }
    }
    // The only directory that this trial does not share: trials with the same code directory would overwrite each
    // other's `model.pt`.
    if let Some(dir) = set.value_of("NNI_OUTPUT_DIR") {
        set.set_variable("TRIALKEEPER_OUTPUT_DIR", dir);
    }
    if let Some((dir, file)) = set.value_of("NNI_SYS_DIR").zip(inputs.reports_file) {
        set.set_variable("TRIALKEEPER_REPORTS_FILE", Path::new(&dir).join(file));
    }
    if let Some(dir) = inputs.code_dir.filter(|_| !set.has_inherited("NNI_CODE_DIR")) {
        set.set_variable("NNI_CODE_DIR", dir.as_os_str());
    }
    // `REUSE_MODE` makes the SDK print its metrics to stdout, where the agent reads them, and leave `sys.stdout`
    // unchanged.
    set.set_variable("REUSE_MODE", "true");
    set.set_variable("MULTI_PHASE", "false");
    // Without it, Python buffers up to 8 KiB of output. A trial that is killed would lose the metrics in it.
    set.set_or_inherit("PYTHONUNBUFFERED", None, "1");

    set.set_variable(RUN_VARIABLE, inputs.run_mark);
    for (name, value) in inputs.peers {
        set.set_variable(name, value);
    }
    set.set_if_allowed("TRIALKEEPER_PARAMETERS", inputs.parameters.to_json().into_bytes());
    if let Some(file) = inputs.parameters_file {
        set.set_variable("TRIALKEEPER_PARAMETERS_FILE", file.as_os_str());
    }
    for (name, value) in &inputs.parameters.values {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        set.set_if_allowed(
            &format!("TRIALKEEPER_PARAM_{}", variable_suffix(name)),
            text.into_bytes(),
        );
    }
    EnvironmentChanges { remove, set: set.set }
}

/// Returns the variables of a trial with these changes whose values are numbers.
pub fn numeric_variables(
    inherited: impl IntoIterator<Item = (OsString, OsString)>,
    changes: &EnvironmentChanges,
) -> Vec<(String, MetricValue)> {
    // A variable that is set again hides the inherited value; it does no harm in this list.
    let all = changes.set.iter().cloned().chain(inherited);
    all.filter_map(|(name, value)| Some((name.into_string().ok()?, parse_number(value.to_str()?)?)))
        .collect()
}

/// Returns the pairs of parameters whose variables have the same name. Only the last of each pair has its own variable.
pub fn name_collisions(parameters: &Parameters) -> Vec<(&str, &str)> {
    let mut names: Vec<_> =
        parameters.values.keys().map(|name| (variable_suffix(name), name.as_str())).collect();
    names.sort();
    let same = names.windows(2).filter(|pair| pair[0].0 == pair[1].0);
    same.map(|pair| (pair[0].1, pair[1].1)).collect()
}

/// Returns a parameter's name in the form for a variable's name.
fn variable_suffix(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect()
}

struct VariableSetter<'a> {
    inherited: &'a [(OsString, OsString)],
    set: Vec<(OsString, OsString)>,
    /// The remaining bytes for parameters.
    parameter_bytes_left: usize,
}

impl VariableSetter<'_> {
    fn has_inherited(&self, name: &str) -> bool {
        self.inherited.iter().any(|(other, _)| other == name)
    }

    /// The value that the trial will see.
    fn value_of(&self, name: &str) -> Option<OsString> {
        let all = self.set.iter().rev().chain(self.inherited);
        all.into_iter().find(|(other, _)| other == name).map(|(_, value)| value.clone())
    }

    fn set_variable(&mut self, name: &str, value: impl AsRef<OsStr>) {
        self.set.push((name.into(), value.as_ref().to_owned()));
    }

    fn set_or_inherit(&mut self, name: &str, wanted: Option<OsString>, fallback: &str) {
        match wanted {
            Some(value) => self.set_variable(name, value),
            None if self.has_inherited(name) => {}
            None => self.set_variable(name, fallback),
        }
    }

    /// Sets the variable, unless the value contains a NUL or is so long that the kernel would refuse to start the
    /// program.
    fn set_if_allowed(&mut self, name: &str, value: Vec<u8>) {
        let size = name.len() + value.len();
        if value.len() <= MAX_VALUE_BYTES
            && size <= self.parameter_bytes_left
            && !value.contains(&0)
        {
            self.parameter_bytes_left -= size;
            self.set_variable(name, OsString::from_vec(value));
        }
    }
}

#[cfg(test)]
mod tests;
