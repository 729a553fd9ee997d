//! PURE: resolves the command line and the environment variables into the settings of a run.

use core::net::SocketAddr;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use trial_protocol::{AttemptId, ExperimentId, IdError, TrialJobId};

use crate::cli::legacy::NniKeeperArgs;
use crate::cli::{Collect, ExitCodeMap, LogCollection, RunArgs, SdkChannelKind, WatchArgs};
use crate::collect::CollectSpec;
use crate::delivery::ManagerAddress;
use crate::observe;
use crate::observe::detect::{DetectSpec, StopConditions};
use crate::observe::sample::gpu::VisibleGpus;
use crate::output::log_lines;
use crate::spool::{Dialect, Sender};
use crate::util::secrets::Secrets;

mod pod;

pub use pod::PodSettings;

/// The settings of a run.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Program and arguments; never empty.
    pub command: Vec<OsString>,
    /// The trial to which the reports belong.
    pub sender: Sender,
    /// The names by which others can find the run.
    pub identity: Identity,
    /// Id of the attempt.
    pub attempt: AttemptId,
    /// The manager; `None` for a standalone run.
    pub manager: Option<ManagerAddress>,
    /// The file with the manager's token.
    pub token_file: Option<PathBuf>,
    /// The certificate of the authority that signed the manager's.
    pub ca_file: Option<PathBuf>,
    /// The output directory, if the user set it.
    pub output_dir: Option<PathBuf>,
    /// The spool's directory, if the user set it.
    pub spool_dir: Option<PathBuf>,
    /// Maximum size of the spool in bytes. Above it, the spool drops logs and samples.
    pub spool_bytes: u64,
    /// Maximum size of an output file in bytes. Above it, the file is rotated.
    pub rotate_bytes: Option<u64>,
    /// A file for the short form of the verdict.
    pub termination_log: Option<PathBuf>,
    /// The platform whose exit codes are used.
    pub exit_code_map: Option<ExitCodeMap>,
    /// The metrics to collect, and their formats.
    pub collect: CollectSpec,
    /// The options for sending the output, if it is sent.
    pub logs: Option<log_lines::Spec>,
    /// Line-based files with metrics.
    pub metric_files: Vec<PathBuf>,
    /// Directories with `TensorBoard`'s event files.
    pub tensorboard: Vec<PathBuf>,
    /// `true` if the SDK's HTTP channel is served.
    pub sdk_channel: bool,
    /// The time from the request to stop to SIGKILL.
    pub grace: Duration,
    /// The time from the end of the trial's own process to the end of its whole tree.
    pub drain: Duration,
    /// The time for delivery after the trial's end.
    pub flush: Duration,
    /// The maximum time between two batches to the manager.
    pub heartbeat: Duration,
    /// The conditions to observe while the trial runs.
    pub observe: observe::Spec,
    /// Names of variables whose values are secret.
    pub secret_variables: Vec<String>,
    /// The address of the status page.
    pub listen: Option<SocketAddr>,
    /// `true` if the trial continues when the agent is killed.
    pub detach_on_death: bool,
    /// The setup of a pod, and its place among the trial's pods.
    pub pod: PodSettings,
    /// The options of an NNI manager, if one started the agent.
    pub legacy: Option<NniKeeperArgs>,
    /// The version of NNI that this agent replaces. `None`: any version with the same messages.
    pub nni_version: Option<String>,
    /// The detail of the log: metrics and summary from 1, the agent's actions from 2.
    pub verbose: u8,
}

/// The names by which others can find a run, its spool and its reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Identity {
    /// No name: no id is given, there is no manager, and the user chose no spool. The run may take place twice, and its
    /// reports have no reader.
    None,
    /// The attempt: its id, a manager or a spool is given.
    Attempt,
    /// The trial and its experiment: both ids are given. A manager, possibly a later one, can find the run.
    Trial,
}

/// The errors of the options of a run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An id that the manager needs is missing.
    #[error("--{flag} is needed with a manager (or the variable {variable})")]
    NoId {
        /// The missing flag.
        flag: &'static str,
        /// The variable to use instead of the flag.
        variable: &'static str,
    },
    /// An environment variable does not contain a valid id.
    #[error("the variable {variable} is not a valid id; correct it, or pass the id as a flag")]
    BadId {
        /// Name of the variable.
        variable: &'static str,
        /// The violated rule.
        #[source]
        source: IdError,
    },
    /// A stop condition needs samples, and samples are disabled.
    #[error("--{0} needs samples, but --sample-interval 0 disables them; remove one of the two")]
    NeedsSamples(&'static str),
    /// A stop condition needs a time, and the time is zero.
    #[error("--{0} needs a time above 0 in --{1}")]
    ZeroTime(&'static str, &'static str),
    /// The options of a pod do not fit together.
    #[error(transparent)]
    Pod(#[from] pod::Error),
}

/// A function that returns the value of an environment variable.
pub type VariableLookup<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// The inputs that make a run unique.
#[derive(Debug, Clone, Copy)]
pub struct RunSeed {
    /// A random number.
    pub random: u64,
}

impl Settings {
    /// Resolves the settings from the arguments and variables. `shell` runs a command that is given as a line. `seed`
    /// makes an unnamed attempt unique.
    pub fn resolve(
        args: &RunArgs,
        variable: VariableLookup<'_>,
        shell: &str,
        seed: RunSeed,
    ) -> Result<Self, Error> {
        let manager = args.manager.address();
        let needed = manager.is_some();
        check_stop_conditions(&args.watch)?;
        let command = match &args.trial.shell {
            Some(line) => vec![shell.into(), "-c".into(), line.clone()],
            None => args.command.clone(),
        };
        let output_dir = args.output.output_dir.clone().or_else(|| {
            variable("NNI_OUTPUT_DIR").filter(|dir| !dir.is_empty()).map(PathBuf::from)
        });
        let values = args.output.mask_env.iter().filter_map(|name| variable(name));
        let secrets = Secrets::new(values.map(OsString::into_vec));
        let attempt = resolve_attempt(args, variable, seed.random)?;
        let (pod, attempt) = pod::resolve(args, variable, attempt)?;
        let own_gpus = VisibleGpus::from_variables(variable);
        Ok(Self {
            command,
            identity: resolve_identity(args, variable, needed),
            sender: resolve_sender(args, &IdLookup { needed, variable })?,
            attempt,
            pod,
            manager,
            token_file: args.manager.token_file.clone(),
            ca_file: args.manager.ca_file.clone(),
            output_dir,
            spool_dir: args.output.spool_dir.clone(),
            spool_bytes: args.output.spool_bytes,
            rotate_bytes: args.output.rotate_bytes,
            termination_log: args.output.termination_log.clone(),
            exit_code_map: args.output.exit_code_map,
            collect: resolve_collectors(args),
            logs: (args.output.log_collection == LogCollection::Http).then(|| log_lines::Spec {
                line_bytes: args.output.log_line_bytes,
                bytes_per_second: args.output.log_rate,
                secrets: secrets.clone(),
            }),
            metric_files: args.metrics.metric_file.clone(),
            tensorboard: args.metrics.tensorboard.clone(),
            sdk_channel: args.metrics.sdk_channel == SdkChannelKind::Http,
            grace: args.supervision.grace,
            drain: args.supervision.drain,
            flush: args.supervision.flush,
            heartbeat: args.supervision.heartbeat,
            observe: resolve_observation(&args.watch, own_gpus, secrets),
            secret_variables: args.output.mask_env.clone(),
            listen: args.diagnostics.listen,
            detach_on_death: args.supervision.detach_on_death,
            legacy: args.legacy.clone(),
            nni_version: non_empty_text(variable("TRIALKEEPER_NNI_VERSION")),
            verbose: args.verbose,
        })
    }
}

/// Returns the attempt given by a flag or the platform, or else a random one.
fn resolve_attempt(
    args: &RunArgs,
    variable: VariableLookup<'_>,
    random: u64,
) -> Result<AttemptId, Error> {
    const UID: &str = "FC_TASK_ATTEMPT_INSTANCE_UID";
    match (&args.trial.attempt, non_empty_text(variable(UID))) {
        (Some(attempt), _) => Ok(attempt.clone()),
        (None, Some(uid)) => {
            AttemptId::new(uid).map_err(|source| Error::BadId { variable: UID, source })
        }
        (None, None) => {
            let id = AttemptId::new(format!("{random:016x}"));
            Ok(id.expect("hexadecimal digits are allowed"))
        }
    }
}

/// Returns the names by which others can find the run. `needed`: there is a manager.
fn resolve_identity(args: &RunArgs, variable: VariableLookup<'_>, needed: bool) -> Identity {
    let given = |given: bool, name| given || non_empty_text(variable(name)).is_some();
    let attempt_named = given(args.trial.attempt.is_some(), "FC_TASK_ATTEMPT_INSTANCE_UID");
    let experiment_named = given(args.trial.experiment.is_some(), "NNI_EXP_ID");
    let trial_named = given(args.trial.trial.is_some(), "NNI_TRIAL_JOB_ID");
    let named = experiment_named && trial_named;
    match (named, needed || attempt_named || args.output.spool_dir.is_some()) {
        (true, _) => Identity::Trial,
        (false, true) => Identity::Attempt,
        (false, false) => Identity::None,
    }
}

fn resolve_sender(args: &RunArgs, ids: &IdLookup<'_>) -> Result<Sender, Error> {
    let (experiment, trial) = (args.trial.experiment.as_ref(), args.trial.trial.as_ref());
    Ok(Sender {
        experiment: ids.find(experiment, "experiment", "NNI_EXP_ID", ExperimentId::new)?,
        trial: ids.find(trial, "trial", "NNI_TRIAL_JOB_ID", TrialJobId::new)?,
        dialect: match args.legacy {
            Some(_) => Dialect::Nni,
            None => Dialect::Native,
        },
    })
}

fn resolve_collectors(args: &RunArgs) -> CollectSpec {
    CollectSpec {
        objective: args.metrics.objective.clone(),
        direction: args.metrics.direction,
        // NNI's manager has one metric: other metrics that a trial prints are collected only on request.
        text: args.metrics.collect.contains(&Collect::Text)
            && (args.legacy.is_none() || args.metrics.objective.is_some()),
        json_lines: args.metrics.collect.contains(&Collect::Json),
        patterns: args.metrics.metric_pattern.clone(),
        // Filled in later, when the trial runs.
        variables: Vec::new(),
        parameters: Vec::new(),
    }
}

/// Checks that the agent can detect the conditions that stop the trial.
fn check_stop_conditions(watch: &WatchArgs) -> Result<(), Error> {
    let idle = ("stop-on-gpu-idle", watch.stop_on_gpu_idle);
    let hang = ("stop-on-gpu-hang", watch.stop_on_gpu_hang);
    let never = [
        (idle, "gpu-idle-after", watch.gpu_idle_after),
        (hang, "gpu-hang-after", watch.gpu_hang_after),
    ];
    for (name, enabled) in [("stop-on-stall", watch.stop_on_stall), idle, hang] {
        if enabled && watch.sample_interval.is_zero() {
            return Err(Error::NeedsSamples(name));
        }
    }
    match never.into_iter().find(|((_, enabled), _, after)| *enabled && after.is_zero()) {
        Some(((name, _), after, _)) => Err(Error::ZeroTime(name, after)),
        None => Ok(()),
    }
}

fn resolve_observation(
    watch: &WatchArgs,
    own_gpus: VisibleGpus,
    secrets: Secrets,
) -> observe::Spec {
    let unless_zero = |time: Duration| Some(time).filter(|time| !time.is_zero());
    let is_enabled = |program: &PathBuf| *program != Path::new("none") && !own_gpus.has_none();
    let gpu_program = Some(watch.gpu_program.clone()).filter(is_enabled);
    let detect = DetectSpec {
        stall_after: unless_zero(watch.stall_after),
        gpu_idle_after: unless_zero(watch.gpu_idle_after),
        gpu_hang_after: unless_zero(watch.gpu_hang_after),
        stop: StopConditions {
            stall: watch.stop_on_stall,
            gpu_idle: watch.stop_on_gpu_idle,
            gpu_hang: watch.stop_on_gpu_hang,
        },
        ..DetectSpec::default()
    };
    let interval = unless_zero(watch.sample_interval);
    observe::Spec { interval, gpu_program, own_gpus, detect, secrets }
}

/// Looks up an id: from a flag, or else from a variable. A run without a manager needs none.
struct IdLookup<'a> {
    needed: bool,
    variable: VariableLookup<'a>,
}

impl IdLookup<'_> {
    fn find<Id: Clone>(
        &self,
        given: Option<&Id>,
        flag: &'static str,
        name: &'static str,
        check: fn(String) -> Result<Id, IdError>,
    ) -> Result<Id, Error> {
        let standalone = || check("standalone".to_owned()).expect("letters are allowed");
        match (given, non_empty_text((self.variable)(name))) {
            (Some(id), _) => Ok(id.clone()),
            (None, Some(text)) => match check(text) {
                Err(source) if self.needed => Err(Error::BadId { variable: name, source }),
                checked => Ok(checked.unwrap_or_else(|_| standalone())),
            },
            (None, None) if self.needed => Err(Error::NoId { flag, variable: name }),
            (None, None) => Ok(standalone()),
        }
    }
}

fn non_empty_text(value: Option<OsString>) -> Option<String> {
    value.filter(|value| !value.is_empty()).map(|value| value.to_string_lossy().into_owned())
}

/// Returns whether the value of `--parameters` contains the parameters themselves, and not a file's name.
pub fn is_inline(value: &OsStr) -> bool {
    value.as_bytes().trim_ascii_start().starts_with(b"{")
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::cli::{Cli, Command};

    fn resolve(words: &[&str], variables: &[(&str, &str)]) -> Result<Settings, Error> {
        let variables: HashMap<&str, &str> = variables.iter().copied().collect();
        let words = ["trialkeeper", "run"].iter().chain(words).map(OsString::from);
        let Ok(Cli { command: Command::Run(args) }) = crate::cli::parse(words) else {
            panic!("a good command line")
        };
        Settings::resolve(
            &args,
            &|name| variables.get(name).map(OsString::from),
            "/any/sh",
            RunSeed { random: 7 },
        )
    }

    type Row<'a> = (&'a str, &'a [&'a str], &'a [(&'a str, &'a str)], Option<[&'a str; 3]>);

    #[test]
    fn ids_come_from_flags_then_variables_then_defaults() {
        let nni = [
            ("NNI_EXP_ID", "e1"),
            ("NNI_TRIAL_JOB_ID", "t1"),
            ("FC_TASK_ATTEMPT_INSTANCE_UID", "u1"),
        ];
        let bad = [("NNI_EXP_ID", "../x"), ("NNI_TRIAL_JOB_ID", "t1")];
        let flags = ["--experiment", "e2", "--trial", "t2", "--attempt", "a2", "x"];
        let manager = ["--manager", "http://m", "x"];
        #[rustfmt::skip]
        let table: [Row<'_>; 6] = [
            ("a standalone run",               &["x"],   &[],  Some(["standalone", "standalone", "0000000000000007"])),
            ("variables",                      &manager, &nni, Some(["e1", "t1", "u1"])),
            ("flags outrank variables",        &flags,   &nni, Some(["e2", "t2", "a2"])),
            ("a manager needs ids",            &manager, &[],  None),
            ("and valid ids",                  &manager, &bad, None),
            ("standalone needs no valid ids",  &["x"],   &bad, Some(["standalone", "t1", "0000000000000007"])),
        ];
        for (case, words, variables, ids) in table {
            let found = resolve(words, variables).ok();
            let found = found.as_ref().map(|settings| {
                let Sender { experiment, trial, .. } = &settings.sender;
                [experiment.as_str(), trial.as_str(), settings.attempt.as_str()]
            });
            assert_eq!(found, ids, "{case}");
        }
    }

    #[test]
    fn a_stop_on_an_unreadable_quantity_is_an_error() {
        #[rustfmt::skip]
        let table: [(&str, Option<&str>); 9] = [
            ("--stop-on-stall x",                         None),
            ("--stop-on-stall --stall-after 0 x",         None),
            ("--sample-interval 0 x",                     None),
            ("--stop-on-gpu-idle --stop-on-gpu-hang x",   None),
            ("--stop-on-stall --sample-interval 0 x",     Some("--stop-on-stall needs samples")),
            ("--stop-on-gpu-idle --sample-interval 0 x",  Some("--stop-on-gpu-idle needs samples")),
            ("--stop-on-gpu-hang --sample-interval 0 x",  Some("--stop-on-gpu-hang needs samples")),
            ("--stop-on-gpu-idle --gpu-idle-after 0 x",   Some("needs a time above 0 in --gpu-idle-after")),
            ("--stop-on-gpu-hang --gpu-hang-after 0 x",   Some("needs a time above 0 in --gpu-hang-after")),
        ];
        for (line, refusal) in table {
            let words: Vec<_> = line.split(' ').collect();
            let refused = resolve(&words, &[]).err().map(|error| error.to_string());
            match refusal {
                None => assert_eq!(refused, None, "{line}"),
                Some(text) => assert!(refused.unwrap_or_default().contains(text), "{line}"),
            }
        }
    }

    #[test]
    fn a_shell_line_becomes_a_shell_command() {
        let settings = resolve(&["--shell", "a | b"], &[]).unwrap();
        assert_eq!(settings.command, ["/any/sh", "-c", "a | b"]);
    }

    #[test]
    fn parameters_may_be_given_inline() {
        for (value, inline) in [(" {\"a\":1}", true), ("{}", true), ("a.json", false), ("", false)]
        {
            assert_eq!(is_inline(OsStr::new(value)), inline, "{value:?}");
        }
    }
}
