//! The layout of the data directory: one folder per experiment, one per trial inside it. Paths
//! only; this file touches nothing.

use std::path::{Path, PathBuf};

use trial_protocol::{ExperimentId, TrialJobId};

/// The name of the file in an experiment's folder that lists the packages of the user's Python.
pub const PACKAGES_FILE: &str = "packages.txt";

/// The name of the folder in an experiment's folder that holds the differences of the code. Trials' ids are shorter.
pub const DIFFS_FOLDER: &str = "code-diffs";

/// The folder of the home of a data directory. No experiment's id begins with a dot.
#[derive(Debug, Clone)]
pub struct HomeDir(PathBuf);

impl HomeDir {
    /// `<data-dir>/.home`.
    pub fn new(data_dir: &Path) -> Self {
        Self(data_dir.join(".home"))
    }

    /// The folder itself.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The sessions of browsers. The home that runs has it open to write.
    pub fn database(&self) -> PathBuf {
        self.0.join("home.db")
    }

    /// The token that opens the home; readable by its owner only.
    pub fn token(&self) -> PathBuf {
        self.0.join("home.token")
    }

    /// First line: the base URL of the home.
    pub fn url(&self) -> PathBuf {
        self.0.join("home.url")
    }

    /// The socket on which the home answers the command lines of this machine.
    pub fn socket(&self) -> PathBuf {
        self.0.join("home.sock")
    }

    /// The summaries of the experiments, as of the last time that each was read.
    pub fn summaries(&self) -> PathBuf {
        self.0.join("summaries.json")
    }

    /// The folder of what people note about experiments.
    pub fn notes(&self) -> PathBuf {
        self.0.join("notes")
    }

    /// The certificate authority that the home made for itself, with its key.
    pub fn authority(&self) -> PathBuf {
        self.0.join("tls")
    }
}

/// The folder of one experiment.
#[derive(Debug, Clone)]
pub struct ExperimentDir(PathBuf, Option<usize>);

impl ExperimentDir {
    /// `<data-dir>/<experiment>`.
    pub fn new(data_dir: &Path, experiment: &ExperimentId) -> Self {
        Self(data_dir.join(experiment.as_str()), None)
    }

    /// Returns the same folder for one of several training services, by its place in the list: what a service keeps there for
    /// itself is apart from that of the others.
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

    /// First line: the manager's base URL. Agents read it again whenever a delivery fails, so a manager
    /// that was started again may listen elsewhere.
    pub fn manager_url(&self) -> PathBuf {
        self.0.join("manager.url")
    }

    /// The socket on which the manager answers the agents and command lines of this machine.
    pub fn manager_socket(&self) -> PathBuf {
        self.0.join("manager.sock")
    }

    /// The socket on which a server that only shows the experiment answers the command lines of this machine.
    pub fn view_socket(&self) -> PathBuf {
        self.0.join("view.sock")
    }

    /// First line: the base URL under which the experiment is shown without being run.
    pub fn view_url(&self) -> PathBuf {
        self.0.join("view.url")
    }

    /// Returns the path of the secret from which the tokens of the experiment's trials are made; readable by its owner
    /// only.
    pub fn secret(&self) -> PathBuf {
        self.0.join("secret")
    }

    /// The user's token; readable by its owner only.
    pub fn user_token(&self) -> PathBuf {
        self.0.join("user.token")
    }

    /// The user's token for programs that read a `.netrc`; readable by its owner only.
    pub fn netrc(&self) -> PathBuf {
        self.0.join("netrc")
    }

    /// A mark that the database cannot be written. It lies there from the notification of that to the notification that
    /// it can be written again.
    pub fn degraded(&self) -> PathBuf {
        self.0.join("degraded")
    }

    /// The certificate authority that the manager made for itself, with its key.
    pub fn authority(&self) -> PathBuf {
        self.0.join("tls")
    }

    /// That authority's certificate, which agents are to trust and no other.
    pub fn ca_file(&self) -> PathBuf {
        self.authority().join("ca.pem")
    }

    /// The trials' code as it was when the first of them asked for it.
    pub fn code_archive(&self) -> PathBuf {
        self.0.join("code.tar.gz")
    }

    /// The differences of the code to git's commit, as they were when trials started; readable by its owner only.
    pub fn code_diffs(&self) -> PathBuf {
        self.0.join(DIFFS_FOLDER)
    }

    /// The folder of the archive's one unpacked copy, from which agents of this machine make their trials' copies.
    pub fn code_base(&self) -> PathBuf {
        self.0.join("code-base")
    }

    /// The packages of the user's Python, where the experiment records them.
    pub fn packages(&self) -> PathBuf {
        self.0.join(PACKAGES_FILE)
    }

    /// The folder in which trials leave checkpoints for one another. Trials' ids are shorter.
    pub fn checkpoints(&self) -> PathBuf {
        self.0.join("checkpoint")
    }

    /// Returns the path of the output of a tuner or an assessor outside the manager. Trials' ids are shorter.
    pub fn outside(&self) -> PathBuf {
        self.0.join("dispatcher")
    }

    /// The folder of a plugin's records. Trials' ids are shorter.
    pub fn plugin(&self) -> PathBuf {
        self.0.join(self.name_of_part("training-service"))
    }

    /// The record of the remote machines and of the attempts that were fenced there. Trials' ids are shorter.
    pub fn remote_machines(&self) -> PathBuf {
        self.0.join(self.name_of_part("remote-machines") + ".json")
    }

    /// Returns `name`, followed by the number of the training service if there are several.
    fn name_of_part(&self, name: &str) -> String {
        self.1.map_or_else(|| name.to_owned(), |part| format!("{name}-{part}"))
    }

    /// The folder of one trial.
    pub fn trial(&self, trial: &TrialJobId) -> TrialDir {
        TrialDir(self.0.join(trial.as_str()))
    }
}

/// The folder of one trial: the agent's output directory and NNI's `NNI_SYS_DIR`.
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

    /// The trial's bearer token; readable by its owner only.
    pub fn token(&self) -> PathBuf {
        self.0.join("token")
    }

    /// Returns the reason that the trial ended, as the agent of its last attempt wrote it.
    pub fn verdict(&self) -> PathBuf {
        self.0.join("verdict.json")
    }

    /// The agent's own log.
    pub fn agent_log(&self) -> PathBuf {
        self.0.join("trialkeeper.log")
    }

    /// Where the agent keeps what it has not delivered: a folder per attempt, with files `*.seg` as long as
    /// there is something in it.
    pub fn spool(&self) -> PathBuf {
        self.0.join("spool")
    }

    /// Locked by the agent for as long as it lives; its first line is the agent's process id.
    pub fn agent_lock(&self) -> PathBuf {
        self.spool().join("lock")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_of_several_services_has_records_of_its_own() {
        let alone = ExperimentDir::new(Path::new("/data"), &ExperimentId::new("e").unwrap());
        let (first, second) = (alone.of_part(0), alone.of_part(1));
        for path in [ExperimentDir::remote_machines, ExperimentDir::plugin] {
            let paths = [path(&alone), path(&first), path(&second)];
            assert!(paths[0] != paths[1] && paths[1] != paths[2], "{paths:?}");
        }
        assert_eq!(first.remote_machines(), Path::new("/data/e/remote-machines-0.json"));
    }
}
