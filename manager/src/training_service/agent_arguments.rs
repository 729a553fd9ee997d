//! PURE: the settings that the agent of a job gets, in one list for all training services. Each service only renders
//! the paths.

use serde_json::{Value, json};
use trial_protocol::Direction;

use super::TrialJobSpec;
use crate::config::ExperimentSpec;

/// The settings of the agents of all jobs.
#[derive(Debug, Clone, Default)]
pub struct AgentSettings {
    /// The name of the metric to optimise, if it is configured.
    pub objective: Option<String>,
    /// The direction of the search, if the file states it.
    pub direction: Option<Direction>,
}

impl AgentSettings {
    /// Returns the settings for an experiment.
    pub fn of(spec: &ExperimentSpec) -> Self {
        Self { objective: spec.objective.clone(), direction: spec.stated_direction() }
    }
}

/// A file or folder that an argument names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AgentPath {
    /// The file with the manager's address.
    ManagerUrl,
    /// The authority of the manager's certificate.
    Authority,
    /// The file with the trial's token.
    Token,
    /// The folder for the trial's output.
    Output,
    /// The folder for undelivered reports.
    Spool,
    /// The file with the trial's parameters.
    Parameters,
    /// The archive of the code.
    CodeArchive,
    /// The folder with one unpacked copy of the code.
    CodeBase,
    /// The agent's own log.
    Log,
}

/// The arguments of the agent of a job.
#[derive(Debug, Clone, Copy)]
pub(super) struct AgentArguments<'a> {
    pub(super) settings: &'a AgentSettings,
    pub(super) job: &'a TrialJobSpec,
    /// The name of the platform.
    pub(super) platform: &'a str,
    /// True if the manager asks the agent to send the trial's output. Otherwise the agent's own settings decide.
    pub(super) requests_output: bool,
    /// True if the agent serves the channel of NNI's SDK, see [`redirects_output`]. Otherwise the agent's own settings
    /// decide.
    pub(super) serves_sdk: bool,
}

/// Returns whether a command may redirect its output, with which the SDK's printed metrics would be lost. Other trials
/// print them, so that they survive a fault of their agent: the SDK ends a trial whose channel does not answer.
pub(super) fn redirects_output(command: &str) -> bool {
    command.contains(['>', '|'])
}

impl AgentArguments<'_> {
    /// Returns the flags with their values, apart from the command. `path` renders a path, or returns `None` if the
    /// service has no such file.
    pub(super) fn render<T>(
        self,
        text: impl Fn(&str) -> T,
        path: impl Fn(AgentPath) -> Option<T>,
    ) -> Vec<(&'static str, T)> {
        let Self { settings, job, platform, requests_output, serves_sdk } = self;
        let sequence = job.sequence.to_string();
        let text = |value: &str| Some(text(value));
        let arguments = [
            ("--experiment", text(job.experiment.as_str())),
            ("--trial", text(job.trial.as_str())),
            ("--attempt", text(job.attempt.as_str())),
            ("--sequence", text(&sequence)),
            ("--platform", text(platform)),
            ("--manager-file", path(AgentPath::ManagerUrl)),
            ("--ca-file", path(AgentPath::Authority)),
            ("--token-file", path(AgentPath::Token)),
            ("--output-dir", path(AgentPath::Output)),
            // The explicit flag outranks a variable of the user, which could move the spool to where the manager does
            // not find it.
            ("--spool-dir", path(AgentPath::Spool)),
            ("--parameters", path(AgentPath::Parameters)),
            ("--code-archive", path(AgentPath::CodeArchive)),
            ("--code-base", path(AgentPath::CodeBase)),
            ("--log-file", path(AgentPath::Log)),
            ("--log-collection", requests_output.then_some("http").and_then(text)),
            ("--sdk-channel", serves_sdk.then_some("http").and_then(text)),
            ("--objective", settings.objective.as_deref().and_then(text)),
            ("--direction", settings.direction.map(Direction::as_str).and_then(text)),
        ];
        arguments.into_iter().filter_map(|(flag, value)| Some((flag, value?))).collect()
    }

    /// Returns the whole command line after the program, in the form of a message to another process.
    pub(super) fn message(self, path: impl Fn(AgentPath) -> Option<Value>) -> Vec<Value> {
        let flags = self.render(|text| json!(text), path);
        let flags = flags.into_iter().flat_map(|(flag, value)| [json!(flag), value]);
        let command = [json!("--shell"), json!(self.job.command)];
        [json!("run")].into_iter().chain(flags).chain(command).collect()
    }
}

#[cfg(test)]
mod tests {
    use trial_protocol::{AttemptId, ExperimentId, TrialJobId};

    use super::super::Token;
    use super::*;

    #[test]
    fn a_redirection_is_found() {
        for (command, redirects) in [
            ("python3 train.py", false),
            ("python3 train.py >log.txt 2>&1", true),
            ("python3 train.py &>>log", true),
            ("python3 train.py | gzip >log.gz", true),
            ("cd code && python3 train.py", false),
        ] {
            assert_eq!(redirects_output(command), redirects, "{command}");
        }
    }

    #[test]
    fn an_argument_without_a_path_is_left_out() {
        let job = TrialJobSpec {
            experiment: ExperimentId::new("e").unwrap(),
            trial: TrialJobId::new("t").unwrap(),
            attempt: AttemptId::new("a").unwrap(),
            sequence: 7,
            command: "true".to_owned(),
            parameter_record: json!({}),
            token: Token("hush".to_owned()),
        };
        let settings = AgentSettings {
            objective: Some("loss".to_owned()),
            direction: Some(Direction::Minimize),
        };
        let all = AgentArguments {
            settings: &settings,
            job: &job,
            platform: "p",
            requests_output: true,
            serves_sdk: true,
        };
        let words =
            all.message(|path| (path == AgentPath::Token).then(|| json!({"name": "token"})));
        let expected = json!([
            "run", "--experiment", "e", "--trial", "t", "--attempt", "a", "--sequence", "7", "--platform", "p",
            "--token-file", {"name": "token"}, "--log-collection", "http", "--sdk-channel", "http", "--objective", "loss", "--direction",
            "minimize", "--shell", "true"
        ]);
        assert_eq!(json!(words), expected);
        let few = AgentArguments {
            settings: &AgentSettings::default(),
            requests_output: false,
            serves_sdk: false,
            ..all
        };
        let flags = few.render(str::to_owned, |_| None).into_iter().map(|(flag, _)| flag);
        assert_eq!(
            flags.collect::<Vec<_>>(),
            ["--experiment", "--trial", "--attempt", "--sequence", "--platform"]
        );
    }
}
