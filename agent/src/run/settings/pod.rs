//! PURE: the settings of a run in a pod: its setup, and whether this pod's metrics are the trial's.

use std::path::PathBuf;
use std::time::Duration;

use trial_protocol::{AttemptId, IdError};

use super::{VariableLookup, non_empty_text};
use crate::cli::{Fetch, RunArgs};
use crate::pod::peers::{Role, Task};
use crate::pod::rendezvous::RendezvousSpec;

/// The setup before the trial, and this pod's place among the trial's pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodSettings {
    /// `true` if the code is fetched from the manager.
    pub fetch_code: bool,
    /// `true` if the parameters are fetched from the manager.
    pub fetch_parameters: bool,
    /// The directory for fetched code. `None`: `code` in the output directory.
    pub code_dir: Option<PathBuf>,
    /// A code archive on this machine to unpack. Code is fetched only if that fails.
    pub code_archive: Option<PathBuf>,
    /// The directory for a shared unpacked copy of the archive. `None`: each run unpacks the archive.
    pub code_base: Option<PathBuf>,
    /// The maximum time for the whole setup.
    pub start_timeout: Duration,
    /// The role and index of this pod, if they are known.
    pub task: Option<Task>,
    /// The rendezvous of the pods, if the trial has several.
    pub rendezvous: Option<RendezvousSpec>,
    /// `true` if this pod's metrics are the trial's.
    pub reports_metrics: bool,
}

/// The errors of a pod's options.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The option needs a manager.
    #[error("--{flag} needs a manager; set --manager or --manager-file")]
    NoManager {
        /// Name of the flag.
        flag: &'static str,
    },
    /// The parameters have two sources.
    #[error("--parameters and --fetch parameters exclude each other; choose one")]
    TwoParameters,
    /// The pods need a common attempt id for their rendezvous.
    #[error("--roles needs --attempt (TRIALKEEPER_ATTEMPT), the same for all pods of the trial")]
    NoAttempt,
    /// This pod's role and index are unknown.
    #[error(
        "--{flag} needs --role and --role-index (or FC_TASKROLE_NAME and FC_TASK_INDEX): which pod is this?"
    )]
    NoRole {
        /// Name of the flag.
        flag: &'static str,
    },
    /// The trial has no such pod.
    #[error("{task} ({flag}) is not among the trial's pods: {roles}")]
    UnknownTask {
        /// The given task.
        task: Task,
        /// The flags that give it.
        flag: &'static str,
        /// The roles of the trial.
        roles: String,
    },
    /// `--roles` contains a role twice.
    #[error("the role {role} is named twice in --roles")]
    DuplicateRole {
        /// Name of the role.
        role: String,
    },
    /// The attempt's id and the pod's name are too long together.
    #[error("the attempt's id is too long to add the pod's name")]
    Attempt(#[source] IdError),
}

/// The number of characters of a pod's id that identify the pod among those of its attempt: 48 random bits.
const INCARNATION_LETTERS: usize = 12;

/// Resolves the settings of a pod, and the attempt of its reports.
pub(super) fn resolve(
    args: &RunArgs,
    variable: VariableLookup<'_>,
    attempt: AttemptId,
) -> Result<(PodSettings, AttemptId), Error> {
    let pod = &args.pod;
    // An NNI manager provides none of the setup.
    let managed = args.manager.address().is_some() && args.legacy.is_none();
    let [fetch_parameters, fetch_code] = fetched_parts(args, managed)?;
    let role = pod.role.clone().or_else(|| non_empty_text(variable("FC_TASKROLE_NAME")));
    let index = pod.role_index.or_else(|| non_empty_text(variable("FC_TASK_INDEX"))?.parse().ok());
    let task = role.zip(index).map(|(role, index)| Task { role, index });

    let incarnation = pod.incarnation.as_deref();
    let retry = PodAttempt::from_variables(variable, incarnation)
        .filter(|_| managed && args.trial.attempt.is_some());
    let retry = retry.unwrap_or_default();
    let attempt = retry.attempt_of_reports(attempt).map_err(Error::Attempt)?;

    let first = || Some(Task { role: pod.roles.first()?.name.clone(), index: 0 });
    let metrics_task = pod.metrics_from.clone().or_else(first);
    let flag = if pod.roles.is_empty() { "metrics-from" } else { "roles" };
    let own = || task.clone().ok_or(Error::NoRole { flag });
    let rendezvous = match pod.roles.as_slice() {
        [] => None,
        roles => {
            let own = own()?;
            check_tasks(roles, &own, metrics_task.as_ref())?;
            let attempt = args.trial.attempt.clone().ok_or(Error::NoAttempt)?;
            let attempt = retry.attempt_of_rendezvous(&attempt).map_err(Error::Attempt)?;
            let incarnation = pod.incarnation.clone();
            let (roles, address) = (roles.to_vec(), pod.pod_ip);
            Some(RendezvousSpec { attempt, own, roles, incarnation, address })
        }
    };
    let reports_metrics = match &metrics_task {
        None => true,
        Some(metrics_task) => *metrics_task == own()?,
    };
    let attempt = match &task {
        // Each other pod has an attempt of its own, so that the report numbers of two pods do not clash.
        Some(Task { role, index }) if !reports_metrics => {
            AttemptId::new(format!("{attempt}-{role}-{index}")).map_err(Error::Attempt)?
        }
        Some(_) | None => attempt,
    };
    let pod = PodSettings {
        fetch_code,
        fetch_parameters,
        code_dir: pod.code_dir.clone(),
        code_archive: pod.code_archive.clone(),
        code_base: pod.code_base.clone(),
        start_timeout: pod.start_timeout,
        task,
        rendezvous,
        reports_metrics,
    };
    Ok((pod, attempt))
}

/// Returns whether parameters and code must be fetched. Fails if the parameters also have another source.
fn fetched_parts(args: &RunArgs, managed: bool) -> Result<[bool; 2], Error> {
    let pod = &args.pod;
    for (flag, given) in [("fetch", !pod.fetch.is_empty()), ("roles", !pod.roles.is_empty())] {
        if given && !managed {
            return Err(Error::NoManager { flag });
        }
    }
    let [parameters, code] =
        [Fetch::Parameters, Fetch::Code].map(|source| pod.fetch.contains(&source));
    if parameters && args.metrics.parameters.is_some() {
        return Err(Error::TwoParameters);
    }
    Ok([parameters, code])
}

/// A retry of an attempt by the cluster itself. The manager's attempt id is the same for all tries. The reports of a
/// retry get an attempt id of their own, because their numbers would clash with those of the first try.
#[derive(Debug, Default, PartialEq, Eq)]
enum PodAttempt {
    /// The first or only try.
    #[default]
    First,
    /// A retry counted by `FrameworkController`.
    Numbered {
        /// Number of the try of the whole trial, from 0.
        framework: u64,
        /// Number of the try of the pod within it, from 0.
        task: u64,
    },
    /// A pod with this id, if nothing counts the tries. A time would be unsuitable: the clocks of two nodes may differ.
    Pod(String),
}

impl PodAttempt {
    fn from_variables(variable: VariableLookup<'_>, incarnation: Option<&str>) -> Option<Self> {
        if let Some(incarnation) = incarnation {
            return shorten(incarnation).map(Self::Pod);
        }
        let number = |name| non_empty_text(variable(name))?.parse().ok();
        let framework = number("FC_FRAMEWORK_ATTEMPT_ID")?;
        Some(Self::Numbered { framework, task: number("FC_TASK_ATTEMPT_ID")? })
    }

    /// Returns the attempt of a pod's reports: `k3f9a-1`, `k3f9a-1_0_1`, `k3f9a-1_p4c7e2b9d1f0a`, ...
    fn attempt_of_reports(&self, attempt: AttemptId) -> Result<AttemptId, IdError> {
        match self {
            Self::First | Self::Numbered { framework: 0, task: 0 } => Ok(attempt),
            Self::Numbered { framework, task } => {
                AttemptId::new(format!("{attempt}_{framework}_{task}"))
            }
            Self::Pod(id) => AttemptId::new(format!("{attempt}_p{id}")),
        }
    }

    /// Returns the attempt for the rendezvous. A pod that restarts alone keeps the attempt of the other pods.
    fn attempt_of_rendezvous(&self, attempt: &AttemptId) -> Result<AttemptId, IdError> {
        let whole = match self {
            Self::Numbered { framework, .. } => Self::Numbered { framework: *framework, task: 0 },
            Self::First | Self::Pod(_) => Self::First,
        };
        whole.attempt_of_reports(attempt.clone())
    }
}

/// Returns the last letters and digits of a pod's id, which are random. `None`: the id has none.
fn shorten(incarnation: &str) -> Option<String> {
    let known = incarnation.chars().filter(char::is_ascii_alphanumeric);
    let mut last: Vec<char> = known.rev().take(INCARNATION_LETTERS).collect();
    last.reverse();
    Some(last.into_iter().collect::<String>().to_ascii_lowercase()).filter(|id| !id.is_empty())
}

fn check_tasks(roles: &[Role], own: &Task, metrics_task: Option<&Task>) -> Result<(), Error> {
    for (place, role) in roles.iter().enumerate() {
        if roles.iter().take(place).any(|other| other.name == role.name) {
            return Err(Error::DuplicateRole { role: role.name.clone() });
        }
    }
    let known =
        |task: &Task| roles.iter().any(|role| role.name == task.role && task.index < role.number);
    let tasks = [(Some(own), "--role and --role-index"), (metrics_task, "--metrics-from")];
    for (task, flag) in tasks.into_iter().filter_map(|(task, flag)| Some((task?, flag))) {
        if !known(task) {
            let roles = roles.iter().map(|role| format!("{}:{}", role.name, role.number));
            let roles = roles.collect::<Vec<_>>().join(",");
            return Err(Error::UnknownTask { task: task.clone(), flag, roles });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::ffi::OsString;

    use crate::cli::{Cli, Command};
    use crate::run::settings::{RunSeed, Settings};

    fn resolve(words: &[&str], variables: &[(&str, &str)]) -> Result<Settings, String> {
        let variables: HashMap<&str, &str> = variables.iter().copied().collect();
        let words = ["trialkeeper", "run"].iter().chain(words).map(OsString::from);
        let Ok(Cli { command: Command::Run(args) }) = crate::cli::parse(words) else {
            panic!("a good command line")
        };
        Settings::resolve(
            &args,
            &|name| variables.get(name).map(OsString::from),
            "/bin/sh",
            RunSeed { random: 7 },
        )
        .map_err(|error| crate::util::errors::chain(&error))
    }

    /// A name, the options, the variables, whether the metrics are its own, and the attempt.
    type Row<'a> = (&'a str, Vec<&'a str>, [(&'a str, &'a str); 2], bool, &'a str);

    #[test]
    fn one_pod_reports_the_metrics_and_the_others_are_separate_attempts() {
        let managed =
            ["--manager", "http://m", "--experiment", "e", "--trial", "t", "--attempt", "t-1"];
        let roles = ["--roles", "worker:2,ps:1"];
        let from = ["--metrics-from", "ps:0"];
        let fc = |role, index| [("FC_TASKROLE_NAME", role), ("FC_TASK_INDEX", index)];
        #[rustfmt::skip]
        let table: [Row<'_>; 6] = [
            ("alone",                 vec![],                  fc("", ""),        true,  "t-1"),
            ("alone, with a name",    vec![],                  fc("worker", "0"), true,  "t-1"),
            ("the first of several",  roles.to_vec(),          fc("worker", "0"), true,  "t-1"),
            ("another",               roles.to_vec(),          fc("worker", "1"), false, "t-1-worker-1"),
            ("one that was named",    [roles, from].concat(),  fc("ps", "0"),     true,  "t-1"),
            ("behind a barrier",      from.to_vec(),           fc("worker", "0"), false, "t-1-worker-0"),
        ];
        for (case, words, variables, reports, attempt) in table {
            let words = [&managed, words.as_slice(), &["x"]].concat();
            let settings =
                resolve(&words, &variables).unwrap_or_else(|error| panic!("{case}: {error}"));
            assert_eq!(
                (settings.pod.reports_metrics, settings.attempt.as_str()),
                (reports, attempt),
                "{case}"
            );
            assert_eq!(settings.pod.rendezvous.is_some(), words.contains(&"--roles"), "{case}");
            if let Some(rendezvous) = settings.pod.rendezvous {
                assert_eq!(rendezvous.attempt.as_str(), "t-1", "{case}: all meet as one");
            }
        }
    }

    #[test]
    fn a_retried_pod_is_a_later_attempt() {
        let words = [
            "--manager",
            "http://m",
            "--experiment",
            "e",
            "--trial",
            "t",
            "--attempt",
            "t-1",
            "--roles",
            "worker:1,ps:1",
            "x",
        ];
        #[rustfmt::skip]
        let table = [
            ("worker", "0", "0", "t-1",          "t-1"),
            ("worker", "0", "2", "t-1_0_2",      "t-1"),
            ("worker", "1", "0", "t-1_1_0",      "t-1_1_0"),
            ("worker", "1", "3", "t-1_1_3",      "t-1_1_0"),
            ("ps",     "0", "1", "t-1_0_1-ps-0", "t-1"),
            ("worker", "x", "1", "t-1",          "t-1"),
        ];
        for (role, framework, task, reports, meets) in table {
            let variables = [
                ("FC_TASKROLE_NAME", role),
                ("FC_TASK_INDEX", "0"),
                ("FC_FRAMEWORK_ATTEMPT_ID", framework),
                ("FC_TASK_ATTEMPT_ID", task),
            ];
            let settings = resolve(&words, &variables).unwrap();
            assert_eq!(settings.attempt.as_str(), reports, "{variables:?}");
            assert_eq!(settings.pod.rendezvous.unwrap().attempt.as_str(), meets, "{variables:?}");
        }
    }

    #[test]
    fn pods_of_one_attempt_report_as_separate_attempts() {
        let words =
            ["--manager", "http://m", "--experiment", "e", "--trial", "t", "--attempt", "t-1"];
        #[rustfmt::skip]
        let table = [
            ("727f3d8d",                             "t-1_p727f3d8d"),
            ("0B9F1C7A-5d1e-4f0a-9c3b-4C7E2B9D1F0A", "t-1_p4c7e2b9d1f0a"),
            // Without letters or digits, the value identifies no pod.
            ("",                                     "t-1"),
            ("--",                                   "t-1"),
        ];
        for (incarnation, attempt) in table {
            let incarnation = format!("--incarnation={incarnation}");
            let words = [&words[..], &[incarnation.as_str(), "x"]].concat();
            let settings = resolve(&words, &[("A", ""), ("B", "")]).unwrap();
            assert_eq!(settings.attempt.as_str(), attempt, "{incarnation}");
        }
    }

    #[test]
    fn contradictory_options_of_a_pod_are_refused() {
        let ids = ["--experiment", "e", "--trial", "t"];
        let managed = [&["--manager", "http://m"][..], &ids].concat();
        let attempt = [managed.as_slice(), &["--attempt", "t-1"]].concat();
        let own = ["--role", "worker", "--role-index", "0"];
        #[rustfmt::skip]
        let table: [(Vec<&str>, &str); 8] = [
            (vec!["--fetch", "code"], "--fetch needs a manager"),
            ([&ids[..], &["--roles", "worker:1"]].concat(), "--roles needs a manager"),
            ([&managed[..], &["--fetch", "code,parameters", "--parameters", "{}"]].concat(), "choose one"),
            ([&managed[..], &own, &["--roles", "worker:1"]].concat(), "--roles needs --attempt"),
            ([&attempt[..], &["--roles", "worker:1"]].concat(), "--roles needs --role and --role-index"),
            ([&attempt[..], &["--metrics-from", "worker:1"]].concat(), "--metrics-from needs --role"),
            ([&attempt[..], &own, &["--roles", "ps:1"]].concat(), "worker:0 (--role and --role-index) is not among the trial's pods: ps:1"),
            ([&attempt[..], &own, &["--roles", "worker:1,worker:2"]].concat(), "the role worker is named twice"),
        ];
        for (words, refusal) in table {
            let refused = resolve(&[&words[..], &["x"]].concat(), &[]).unwrap_err();
            assert!(refused.contains(refusal), "{words:?}: {refused}");
        }
    }
}
