//! PURE: a job, its states and its end.

use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::ExitStatus;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// An attempt of a trial.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// A name for the platform: letters, digits and dashes. It is unique for each attempt.
    pub name: String,
    /// The agent's complete command line.
    pub argv: Vec<String>,
    /// The trial's folder.
    pub folder: PathBuf,
    /// The trial's id.
    pub trial: String,
    /// The attempt's id.
    pub attempt: String,
    /// The experiment's id.
    pub experiment: String,
    /// The number of GPUs that the trial needs. `None`: the experiment does not specify it.
    pub gpus: Option<u64>,
    /// The time in milliseconds that the agent may take to end after SIGTERM.
    pub grace_ms: u64,
    /// All resources that the trial needs, in the manager's form.
    pub resources: Value,
}

impl Job {
    /// Returns a shell script that replaces the shell with the agent.
    pub fn script(&self, head: &str) -> String {
        let quote = |word: &String| format!("'{}'", word.replace('\'', r"'\''"));
        let words: Vec<_> = self.argv.iter().map(quote).collect();
        format!("#!/bin/sh\n{head}\nexec {}\n", words.join(" "))
    }
}

/// The state of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// The job runs.
    Running,
    /// The job has not started. The reason is for the user.
    Waiting(String),
    /// The job has ended.
    Gone(Gone),
}

/// The end of a job. Unknown details are omitted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gone {
    /// The exit code of the job's first process.
    pub code: Option<i32>,
    /// The signal that ended the process.
    pub signal: Option<i32>,
    /// `exit`, `cancelled`, `timeout`, `oom`, `preempted`, `node_lost`, `start_failed`, `revoked` or `unknown`.
    pub reason: &'static str,
    /// A message for the user.
    pub message: Option<String>,
    /// `user-error`, `transient` or `permanent`, which decides about a retry. `None`: the reason decides.
    pub fault: Option<&'static str>,
}

impl Gone {
    /// Creates the end of a job from its process's exit status.
    pub fn of(status: ExitStatus) -> Self {
        Self { code: status.code(), signal: status.signal(), reason: "exit", ..Self::unknown() }
    }

    /// Creates an end without details.
    pub fn unknown() -> Self {
        Self { code: None, signal: None, reason: "unknown", message: None, fault: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_quotes_its_arguments() {
        let job = Job {
            name: "tk-e-t-1".to_owned(),
            argv: ["/bin/agent", "it's $HOME", ""].map(str::to_owned).to_vec(),
            folder: PathBuf::from("/e/t"),
            trial: "t".to_owned(),
            attempt: "t-1".to_owned(),
            experiment: "e".to_owned(),
            gpus: None,
            grace_ms: 1,
            resources: Value::Null,
        };
        let script = "#!/bin/sh\n#SBATCH x\nexec '/bin/agent' 'it'\\''s $HOME' ''\n";
        assert_eq!(job.script("#SBATCH x"), script);
    }

    #[test]
    fn the_end_of_a_job_is_its_process_s_end() {
        // As returned by `wait`: the code is in the second byte, the signal in the first.
        let ended = |status| Gone::of(ExitStatus::from_raw(status));
        assert_eq!((ended(3 << 8).code, ended(3 << 8).signal), (Some(3), None));
        assert_eq!((ended(9).code, ended(9).signal), (None, Some(9)));
    }
}
