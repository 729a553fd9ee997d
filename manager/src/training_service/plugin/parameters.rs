//! The parameters of requests to the plugin, and the files that they name.

use std::path::Path;

use serde_json::{Value, json};
use tracing::warn;

use super::Settings;
use super::handshake::resources;
use super::wire::AttemptKey;
use crate::training_service::agent_arguments::{AgentArguments, AgentPath};
use crate::training_service::{AGENT_END_TIMEOUT, TrialJobSpec};
use crate::util::files::{create_private_folder, write_file};

/// Creates the parameters of the requests, and writes the files that they name.
#[derive(Debug, Clone, Copy)]
pub(super) struct RequestParameters<'a> {
    settings: &'a Settings,
    url_file: &'a Path,
}

impl<'a> RequestParameters<'a> {
    /// Creates parameters with `url_file`, the file with the manager's address for agents.
    pub(super) fn new(settings: &'a Settings, url_file: &'a Path) -> Self {
        Self { settings, url_file }
    }

    /// Returns the parameters of `open`: the files that all jobs share.
    pub(super) fn open_params(&self) -> Value {
        let Settings { agent, dir, ca_file, .. } = self.settings;
        let file = |name: &str, path: &Path| json!({"name": name, "path": path});
        let mut files =
            vec![file("manager.url", self.url_file), file("code.tar.gz", &dir.code_archive())];
        files.extend(ca_file.as_ref().map(|path| file("ca.pem", path)));
        json!({"agent": agent, "files": files})
    }

    /// Writes a job's files and returns the parameters of `submit`.
    pub(super) fn submit_params(
        &self,
        key: &AttemptKey,
        spec: &TrialJobSpec,
    ) -> Result<Value, String> {
        let dir = self.settings.dir.trial(&key.trial);
        let write = |path: &Path, text: &str| {
            write_file(path, 0o600, text)
                .map_err(|error| format!("cannot write {}: {error}", path.display()))
        };
        create_private_folder(dir.path())
            .map_err(|error| format!("cannot create {}: {error}", dir.path().display()))?;
        write(&dir.parameters(), &spec.parameter_record.to_string())?;
        write(&dir.token(), &spec.token.0)?;
        Ok(json!({
            "key": key,
            "name": format!("tk-{}-{}", key.experiment, key.attempt).to_lowercase(),
            "sequence": spec.sequence,
            "folder": dir.path(),
            "args": self.agent_arguments(spec),
            "files": [
                {"name": "token", "path": dir.token(), "secret": true},
                {"name": "parameter.cfg", "path": dir.parameters()},
            ],
            "resources": resources(self.settings.gpus_each),
            "grace_ms": AGENT_END_TIMEOUT.as_millis(),
        }))
    }

    /// Returns the agent's arguments. The plugin fills in the paths.
    fn agent_arguments(&self, spec: &TrialJobSpec) -> Vec<Value> {
        let arguments = AgentArguments {
            settings: &self.settings.agents,
            job: spec,
            platform: "plugin",
            requests_output: true,
            serves_sdk: false,
        };
        let place = |folder: &str, name: &str| Some(json!({"in": folder, "name": name}));
        arguments.message(|path| match path {
            AgentPath::ManagerUrl => place("shared", "manager.url"),
            AgentPath::Authority => {
                self.settings.ca_file.as_ref().and_then(|_| place("shared", "ca.pem"))
            }
            AgentPath::Token => place("job", "token"),
            AgentPath::Output => place("work", ""),
            AgentPath::Spool => place("work", "spool"),
            AgentPath::Parameters => place("job", "parameter.cfg"),
            AgentPath::CodeArchive => place("shared", "code.tar.gz"),
            AgentPath::CodeBase => None,
            AgentPath::Log => place("work", "trialkeeper.log"),
        })
    }

    /// Renews a job's token and returns the parameters of `adopt`. The old token may have expired while no manager ran.
    pub(super) fn adopt_params(&self, key: &AttemptKey) -> Value {
        let Settings { dir, secret, experiment, .. } = self.settings;
        let token = secret.trial_token(experiment, &key.trial, secret.now_ms());
        let path = dir.trial(&key.trial).token();
        if let Err(error) = write_file(&path, 0o600, &token) {
            let trial = &key.trial;
            warn!(%trial, "a new token for its agent cannot be written, so the agent keeps the old one: {error}");
        }
        json!({"key": key, "files": [{"name": "token", "path": path, "secret": true}]})
    }
}
