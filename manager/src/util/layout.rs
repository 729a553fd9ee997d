//! The layout of the data directory: one folder per experiment, which contains one folder per trial. This module only
//! computes and lists paths.

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

    /// Returns the path of the folder.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Returns the path of the database of browser sessions. A running home has it open for writing.
    pub fn database(&self) -> PathBuf {
        self.0.join("home.db")
    }

    /// Returns the path of the token for the home, which only its owner can read.
    pub fn token(&self) -> PathBuf {
        self.0.join("home.token")
    }

    /// Returns the path of the file with the base URL of the home in its first line.
    pub fn url(&self) -> PathBuf {
        self.0.join("home.url")
    }

    /// Returns the path of the socket on which the home answers commands on this machine.
    pub fn socket(&self) -> PathBuf {
        self.0.join("home.sock")
    }

    /// Returns the path of the summaries of the experiments, each as of its last reading.
    pub fn summaries(&self) -> PathBuf {
        self.0.join("summaries.json")
    }

    /// Returns the path of the folder of the users' notes about experiments.
    pub fn notes(&self) -> PathBuf {
        self.0.join("notes")
    }

    /// Returns the path of the home's own certificate authority, with its key.
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

    /// Returns the path of the folder.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Returns the path of the store's database.
    pub fn database(&self) -> PathBuf {
        self.0.join("trialkeeper.db")
    }

    /// Returns the path of the file with the manager's base URL in its first line. Agents read it again after each
    /// failed delivery, so a restarted manager may listen on another address.
    pub fn manager_url(&self) -> PathBuf {
        self.0.join("manager.url")
    }

    /// Returns the path of the socket on which the manager answers agents and commands on this machine.
    pub fn manager_socket(&self) -> PathBuf {
        self.0.join("manager.sock")
    }

    /// Returns the path of the socket on which a server that only serves the experiment answers commands on this
    /// machine.
    pub fn view_socket(&self) -> PathBuf {
        self.0.join("view.sock")
    }

    /// Returns the path of the file with the base URL of a server that serves the experiment without running it, in
    /// its first line.
    pub fn view_url(&self) -> PathBuf {
        self.0.join("view.url")
    }

    /// Returns the path of the folder of the passwords and passphrases that the experiment file contained.
    pub fn passwords(&self) -> PathBuf {
        self.0.join("passwords")
    }

    /// Returns the path of the secret from which the tokens of the experiment's trials are derived. Only its owner can
    /// read the file.
    pub fn secret(&self) -> PathBuf {
        self.0.join("secret")
    }

    /// Returns the path of the user's token, which only its owner can read.
    pub fn user_token(&self) -> PathBuf {
        self.0.join("user.token")
    }

    /// Returns the path of the user's token for programs that read a `.netrc`. Only its owner can read the
    /// file.
    pub fn netrc(&self) -> PathBuf {
        self.0.join("netrc")
    }

    /// Returns the path of the mark that the database cannot be written. The file exists from the notification of the
    /// failure to that of the recovery.
    pub fn degraded(&self) -> PathBuf {
        self.0.join("degraded")
    }

    /// Returns the path of the manager's own certificate authority, with its key.
    pub fn authority(&self) -> PathBuf {
        self.0.join("tls")
    }

    /// Returns the path of the authority's certificate, which is the only one that agents trust.
    pub fn ca_file(&self) -> PathBuf {
        self.authority().join("ca.pem")
    }

    /// Returns the path of the trials' code as of the experiment's first start.
    pub fn code_archive(&self) -> PathBuf {
        self.0.join("code.tar.gz")
    }

    /// Returns the path of the diffs between the code and git's commit at the starts of trials. Only their owner
    /// can read them.
    pub fn code_diffs(&self) -> PathBuf {
        self.0.join(DIFFS_FOLDER)
    }

    /// Returns the path of the folder with the unpacked archive, from which agents on this machine copy their trials'
    /// code.
    pub fn code_base(&self) -> PathBuf {
        self.0.join("code-base")
    }

    /// Returns the path of the packages of the user's Python, if the experiment records them.
    pub fn packages(&self) -> PathBuf {
        self.0.join(PACKAGES_FILE)
    }

    /// Returns the path of the folder in which trials store checkpoints for other trials. The ids of trials are
    /// shorter.
    pub fn checkpoints(&self) -> PathBuf {
        self.0.join("checkpoint")
    }

    /// Returns the path of the folder of an external tuner or assessor. The ids of trials are shorter.
    pub fn advisers(&self) -> PathBuf {
        self.0.join("dispatcher")
    }

    /// Returns the path of the folder of a plugin's records. The ids of trials are shorter.
    pub fn plugin(&self) -> PathBuf {
        self.0.join(self.name_of_part("training-service"))
    }

    /// Returns the path of the record of the remote machines and of the attempts that were fenced there. The ids of
    /// trials are shorter.
    pub fn remote_machines(&self) -> PathBuf {
        self.0.join(self.name_of_part("remote-machines") + ".json")
    }

    /// Returns `name`, followed by the number of the training service if there are several.
    fn name_of_part(&self, name: &str) -> String {
        self.1.map_or_else(|| name.to_owned(), |part| format!("{name}-{part}"))
    }

    /// Returns the folder of a trial.
    pub fn trial(&self, trial: &TrialJobId) -> TrialDir {
        TrialDir(self.0.join(trial.as_str()))
    }

    /// Returns the entries whose name is the id of a trial.
    pub fn trials(&self) -> Vec<TrialJobId> {
        let entries = std::fs::read_dir(&self.0).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        names.filter_map(|name| TrialJobId::new(name).ok()).collect()
    }
}

/// The folder of a trial: the agent's output directory and NNI's `NNI_SYS_DIR`.
#[derive(Debug, Clone)]
pub struct TrialDir(PathBuf);

impl TrialDir {
    /// Returns the path of the folder.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Returns the path of the parameter record, as NNI's SDK reads it.
    pub fn parameters(&self) -> PathBuf {
        self.0.join("parameter.cfg")
    }

    /// Returns the path of the trial's bearer token, which only its owner can read.
    pub fn token(&self) -> PathBuf {
        self.0.join("token")
    }

    /// Returns the path of the verdict on the trial, as the agent of its last attempt wrote it.
    pub fn verdict(&self) -> PathBuf {
        self.0.join("verdict.json")
    }

    /// Returns the path of the agent's log.
    pub fn agent_log(&self) -> PathBuf {
        self.0.join("trialkeeper.log")
    }

    /// Returns the path of the folder of the reports that the agent has not delivered: a folder per attempt, with
    /// files `*.seg` as long as reports remain.
    pub fn spool(&self) -> PathBuf {
        self.0.join("spool")
    }

    /// Returns the path of the file that the agent locks while it runs. Its first line is the agent's process id.
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
