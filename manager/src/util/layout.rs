//! The layout of the data directory: one folder per experiment, which contains one folder per trial. This module only
//! computes paths.

use std::path::{Path, PathBuf};

use trial_protocol::{ExperimentId, TrialJobId};

/// The name of the file in an experiment's folder with the packages of the user's Python.
pub const PACKAGES_FILE: &str = "packages.txt";

/// The name of the folder in an experiment's folder with the diffs of the code. The ids of trials are shorter.
pub const DIFFS_FOLDER: &str = "code-diffs";

/// The folder of the home of a data directory. The ids of experiments never begin with a dot.
#[derive(Debug, Clone)]
pub struct HomeDir(PathBuf);

impl HomeDir {
    /// Returns `<data-dir>/.home`.
    pub fn new(data_dir: &Path) -> Self {
        Self(data_dir.join(".home"))
    }

    /// The folder itself.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The database of browser sessions. A running home has it open for writing.
    pub fn database(&self) -> PathBuf {
        self.0.join("home.db")
    }

    /// The token for the home; readable only by its owner.
    pub fn token(&self) -> PathBuf {
        self.0.join("home.token")
    }

    /// The file with the base URL of the home in its first line.
    pub fn url(&self) -> PathBuf {
        self.0.join("home.url")
    }

    /// The socket on which the home answers commands on this machine.
    pub fn socket(&self) -> PathBuf {
        self.0.join("home.sock")
    }

    /// The summaries of the experiments, each as of its last reading.
    pub fn summaries(&self) -> PathBuf {
        self.0.join("summaries.json")
    }

    /// The folder of the users' notes about experiments.
    pub fn notes(&self) -> PathBuf {
        self.0.join("notes")
    }

    /// The home's own certificate authority, with its key.
    pub fn authority(&self) -> PathBuf {
        self.0.join("tls")
    }
}

/// The folder of one experiment.
#[derive(Debug, Clone)]
pub struct ExperimentDir(PathBuf, Option<usize>);

impl ExperimentDir {
    /// Returns `<data-dir>/<experiment>`.
    pub fn new(data_dir: &Path, experiment: &ExperimentId) -> Self {
        Self(data_dir.join(experiment.as_str()), None)
    }

    /// Returns the same folder for one of several training services, by its position in the list. Files that each
    /// service keeps for itself then have separate paths.
    #[must_use]
    pub fn of_part(&self, part: usize) -> Self {
        Self(self.0.clone(), Some(part))
    }

    /// The folder itself.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The store.
    pub fn database(&self) -> PathBuf {
        self.0.join("trialkeeper.db")
    }

    /// The file with the manager's base URL in its first line. Agents read it again after each failed delivery, so a
    /// restarted manager may listen on another address.
    pub fn manager_url(&self) -> PathBuf {
        self.0.join("manager.url")
    }

    /// The socket on which the manager answers agents and commands on this machine.
    pub fn manager_socket(&self) -> PathBuf {
        self.0.join("manager.sock")
    }

    /// The socket on which a server that only serves the experiment answers commands on this machine.
    pub fn view_socket(&self) -> PathBuf {
        self.0.join("view.sock")
    }

    /// The file with the base URL of a server that serves the experiment without running it, in its first line.
    pub fn view_url(&self) -> PathBuf {
        self.0.join("view.url")
    }

    /// The secret from which the tokens of the experiment's trials are derived; readable only by its owner.
    pub fn secret(&self) -> PathBuf {
        self.0.join("secret")
    }

    /// The user's token; readable only by its owner.
    pub fn user_token(&self) -> PathBuf {
        self.0.join("user.token")
    }

    /// The user's token for programs that read a `.netrc`; readable only by its owner.
    pub fn netrc(&self) -> PathBuf {
        self.0.join("netrc")
    }

    /// A mark that the database cannot be written. It exists from the notification of the failure to that of the
    /// recovery.
    pub fn degraded(&self) -> PathBuf {
        self.0.join("degraded")
    }

    /// The manager's own certificate authority, with its key.
    pub fn authority(&self) -> PathBuf {
        self.0.join("tls")
    }

    /// The authority's certificate, which is the only one that agents trust.
    pub fn ca_file(&self) -> PathBuf {
        self.authority().join("ca.pem")
    }

    /// The trials' code as of its first download.
    pub fn code_archive(&self) -> PathBuf {
        self.0.join("code.tar.gz")
    }

    /// The diffs between the code and git's commit at the starts of trials; readable only by its owner.
    pub fn code_diffs(&self) -> PathBuf {
        self.0.join(DIFFS_FOLDER)
    }

    /// The folder with the unpacked archive, from which agents on this machine copy their trials' code.
    pub fn code_base(&self) -> PathBuf {
        self.0.join("code-base")
    }

    /// The packages of the user's Python, if the experiment records them.
    pub fn packages(&self) -> PathBuf {
        self.0.join(PACKAGES_FILE)
    }

    /// The folder in which trials store checkpoints for other trials. The ids of trials are shorter.
    pub fn checkpoints(&self) -> PathBuf {
        self.0.join("checkpoint")
    }

    /// The folder of an external tuner or assessor. The ids of trials are shorter.
    pub fn outside(&self) -> PathBuf {
        self.0.join("dispatcher")
    }

    /// The folder of a plugin's records. The ids of trials are shorter.
    pub fn plugin(&self) -> PathBuf {
        self.0.join(self.name_of_part("training-service"))
    }

    /// The record of the remote machines and of the attempts that were fenced there. The ids of trials are shorter.
    pub fn remote_machines(&self) -> PathBuf {
        self.0.join(self.name_of_part("remote-machines") + ".json")
    }

    /// Returns `name`, followed by the number of the training service if there are several.
    fn name_of_part(&self, name: &str) -> String {
        self.1.map_or_else(|| name.to_owned(), |part| format!("{name}-{part}"))
    }

    /// The folder of a trial.
    pub fn trial(&self, trial: &TrialJobId) -> TrialDir {
        TrialDir(self.0.join(trial.as_str()))
    }
}

/// The folder of a trial: the agent's output directory and NNI's `NNI_SYS_DIR`.
#[derive(Debug, Clone)]
pub struct TrialDir(PathBuf);

impl TrialDir {
    /// The folder itself.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The parameter record, as NNI's SDK reads it.
    pub fn parameters(&self) -> PathBuf {
        self.0.join("parameter.cfg")
    }

    /// The trial's bearer token; readable only by its owner.
    pub fn token(&self) -> PathBuf {
        self.0.join("token")
    }

    /// The verdict on the trial, as the agent of its last attempt wrote it.
    pub fn verdict(&self) -> PathBuf {
        self.0.join("verdict.json")
    }

    /// The agent's log.
    pub fn agent_log(&self) -> PathBuf {
        self.0.join("trialkeeper.log")
    }

    /// The folder of the reports that the agent has not delivered: a folder per attempt, with files `*.seg` as long
    /// as reports remain.
    pub fn spool(&self) -> PathBuf {
        self.0.join("spool")
    }

    /// The file that the agent locks while it runs. Its first line is the agent's process id.
    pub fn agent_lock(&self) -> PathBuf {
        self.spool().join("lock")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_of_several_services_has_its_own_records() {
        let alone = ExperimentDir::new(Path::new("/data"), &ExperimentId::new("e").unwrap());
        let (first, second) = (alone.of_part(0), alone.of_part(1));
        for path in [ExperimentDir::remote_machines, ExperimentDir::plugin] {
            let paths = [path(&alone), path(&first), path(&second)];
            assert!(paths[0] != paths[1] && paths[1] != paths[2], "{paths:?}");
        }
        assert_eq!(first.remote_machines(), Path::new("/data/e/remote-machines-0.json"));
    }
}
