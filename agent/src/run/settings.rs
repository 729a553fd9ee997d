//! PURE: the command line and the caller's variables -> what a run is to do.

use core::net::SocketAddr;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use trial_protocol::{AttemptId, ExperimentId, IdError, TrialJobId};

use crate::cli::legacy::Legacy;
use crate::cli::{Collect, ExitCodeMap, LogCollection, RunArgs, SdkWay, WatchArgs};
use crate::collect::CollectSpec;
use crate::delivery::ManagerAddress;
use crate::observe;
use crate::observe::detect::{DetectSpec, StopOn};
use crate::observe::sample::gpu::GpuAllotment;
use crate::output::log_lines::{self, Secrets};
use crate::spool::{Dialect, Sender};

mod pod;

pub use pod::Pod;

/// The settings of a run.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Program and arguments; never empty.
    pub command: Vec<OsString>,
    /// The trial that the reports belong to.
    pub sender: Sender,
    /// The parties that know the run.
    pub identity: Identity,
    /// Id of the attempt.
    pub attempt: AttemptId,
    /// The manager; `None` for a run on its own.
    pub manager: Option<ManagerAddress>,
    /// The manager's token.
    pub token_file: Option<PathBuf>,
    /// The authority that signed the manager's certificate.
    pub ca_file: Option<PathBuf>,
    /// The output directory, if a certain one is wanted.
    pub output_dir: Option<PathBuf>,
    /// The spool, if it is wanted in a certain place.
    pub spool_dir: Option<PathBuf>,
    /// Size over which the spool sheds.
    pub spool_bytes: u64,
    /// Size over which a file of output is set aside.
    pub rotate_bytes: Option<u64>,
    /// A file for the verdict in short.
    pub termination_log: Option<PathBuf>,
    /// The platform whose exit codes are used.
    pub exit_code_map: Option<ExitCodeMap>,
    /// The formats to collect.
    pub collect: CollectSpec,
    /// The form in which the output is sent, if it is.
    pub logs: Option<log_lines::Spec>,
    /// Files of lines with metrics.
    pub metric_files: Vec<PathBuf>,
    /// Directories with `TensorBoard`'s event files.
    pub tensorboard: Vec<PathBuf>,
    /// `true` if the SDK's HTTP channel is served.
    pub sdk_channel: bool,
    /// From the request to end to the kill.
    pub grace: Duration,
    /// From the end of the trial's own process to the end of everything.
    pub drain: Duration,
    /// For delivery after the trial's end.
    pub flush: Duration,
    /// Longest silence towards the manager.
    pub heartbeat: Duration,
    /// The observations while the trial runs.
    pub observe: observe::Spec,
    /// Names of variables whose values are secret.
    pub secret_variables: Vec<String>,
    /// The address of the status page.
    pub listen: Option<SocketAddr>,
    /// Let the trial live on if the agent is killed.
    pub detach_on_death: bool,
    /// The preparations of a pod, and its place among the trial's pods.
    pub pod: Pod,
    /// The options of an NNI manager, if one started the agent.
    pub legacy: Option<Legacy>,
    /// The version of NNI that this keeper stands in for. `None`: any that speaks its words.
    pub nni_version: Option<String>,
    /// The detail of the log: metrics and summary from 1, what the agent does from 2.
    pub verbose: u8,
}

/// The parties that know a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Identity {
    /// No party: the run has no name, no manager and no spool of the user's choice. It need not be kept from running
    /// twice, and its reports have no reader.
    None,
    /// A party that named the attempt, or chose the manager or the spool.
    Attempt,
    /// A manager, perhaps later: it is a trial of an experiment's.
    Trial,
}

/// The errors of the options of a run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A manager cannot be told whose reports these are.
    #[error("--{flag} is needed with a manager (or the variable {variable})")]
    NoId {
        /// The flag that is missing.
        flag: &'static str,
        /// The variable that may stand for it.
        variable: &'static str,
    },
    /// A variable of the caller's holds something else.
    #[error("the variable {variable} names no trial; correct it, or give the id with a flag")]
    BadId {
        /// Name of the variable.
        variable: &'static str,
        /// The problem with it.
        #[source]
        source: IdError,
    },
    /// The condition that is to end the trial is seen in samples.
    #[error("--{0} needs samples, and --sample-interval 0 takes none; leave one of them out")]
    Unseen(&'static str),
    /// The condition that is to end the trial is never looked for.
    #[error(
        "--{0} ends a trial after the time that --{1} gives, and 0 is never; leave one of them out"
    )]
    Never(&'static str, &'static str),
    /// The options of a pod do not fit together.
    #[error(transparent)]
    Pod(#[from] pod::Error),
}

/// The caller's variables, by name.
pub type Lookup<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// The identity of a run.
#[derive(Debug, Clone, Copy)]
pub struct Start {
    /// A random number.
    pub random: u64,
}

impl Settings {
    /// Resolves the settings from the arguments and variables. `shell` runs a line that stands for a command; `start` makes an unnamed attempt
    /// unique.
    pub fn resolve(
        args: &RunArgs,
        variable: Lookup<'_>,
        shell: &str,
        start: Start,
    ) -> Result<Self, Error> {
        let manager = args.manager.address();
        let needed = manager.is_some();
        check_stops(&args.watch)?;
        let command = match &args.shell {
            Some(line) => vec![shell.into(), "-c".into(), line.clone()],
            None => args.command.clone(),
        };
        let output_dir = args.output_dir.clone().or_else(|| {
            variable("NNI_OUTPUT_DIR").filter(|dir| !dir.is_empty()).map(PathBuf::from)
        });
        let values = args.mask_env.iter().filter_map(|name| variable(name));
        let secrets = Secrets::new(values.map(OsString::into_vec));
        let attempt = attempt(args, variable, start.random)?;
        let (pod, attempt) = pod::resolve(args, variable, attempt)?;
        Ok(Self {
            command,
            identity: identity(args, variable, needed),
            sender: sender(args, &IdLookup { needed, variable })?,
            attempt,
            pod,
            manager,
            token_file: args.manager.token_file.clone(),
            ca_file: args.manager.ca_file.clone(),
            output_dir,
            spool_dir: args.spool_dir.clone(),
            spool_bytes: args.spool_bytes,
            rotate_bytes: args.rotate_bytes,
            termination_log: args.termination_log.clone(),
            exit_code_map: args.exit_code_map,
            collect: collectors(args),
            logs: (args.log_collection == LogCollection::Http).then(|| log_lines::Spec {
                line_bytes: args.log_line_bytes,
                bytes_per_second: args.log_rate,
                secrets: secrets.clone(),
            }),
            metric_files: args.metric_file.clone(),
            tensorboard: args.tensorboard.clone(),
            sdk_channel: args.sdk_channel == SdkWay::Http,
            grace: args.grace,
            drain: args.drain,
            flush: args.flush,
            heartbeat: args.heartbeat,
            observe: observation(&args.watch, GpuAllotment::by(variable), secrets),
            secret_variables: args.mask_env.clone(),
            listen: args.listen,
            detach_on_death: args.detach_on_death,
            legacy: args.legacy.clone(),
            nni_version: text(variable("TRIALKEEPER_NNI_VERSION")),
            verbose: args.verbose,
        })
    }
}

/// Returns the attempt that a flag or the platform names, or else a random one.
fn attempt(args: &RunArgs, variable: Lookup<'_>, random: u64) -> Result<AttemptId, Error> {
    const UID: &str = "FC_TASK_ATTEMPT_INSTANCE_UID";
    match (&args.attempt, text(variable(UID))) {
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

/// Returns the parties that know the run. `needed`: there is a manager.
fn identity(args: &RunArgs, variable: Lookup<'_>, needed: bool) -> Identity {
    let given = |given: bool, name| given || text(variable(name)).is_some();
    let attempt_named = given(args.attempt.is_some(), "FC_TASK_ATTEMPT_INSTANCE_UID");
    let experiment_named = given(args.experiment.is_some(), "NNI_EXP_ID");
    let trial_named = given(args.trial.is_some(), "NNI_TRIAL_JOB_ID");
    let named = experiment_named && trial_named;
    match (named, needed || attempt_named || args.spool_dir.is_some()) {
        (true, _) => Identity::Trial,
        (false, true) => Identity::Attempt,
        (false, false) => Identity::None,
    }
}

fn sender(args: &RunArgs, ids: &IdLookup<'_>) -> Result<Sender, Error> {
    let (experiment, trial) = (args.experiment.as_ref(), args.trial.as_ref());
    Ok(Sender {
        experiment: ids.find(experiment, "experiment", "NNI_EXP_ID", ExperimentId::new)?,
        trial: ids.find(trial, "trial", "NNI_TRIAL_JOB_ID", TrialJobId::new)?,
        dialect: match args.legacy {
            Some(_) => Dialect::Nni,
            None => Dialect::Native,
        },
    })
}

fn collectors(args: &RunArgs) -> CollectSpec {
    CollectSpec {
        objective: args.objective.clone(),
        direction: args.direction,
        // NNI's manager knows one metric: others that a trial prints are collected on request only.
        text: args.collect.contains(&Collect::Text)
            && (args.legacy.is_none() || args.objective.is_some()),
        json_lines: args.collect.contains(&Collect::Json),
        patterns: args.metric_pattern.clone(),
        // Read when the trial runs.
        variables: Vec::new(),
        parameters: Vec::new(),
    }
}

/// Checks that the agent can see the conditions that are to stop the trial.
fn check_stops(watch: &WatchArgs) -> Result<(), Error> {
    let idle = ("stop-on-gpu-idle", watch.stop_on_gpu_idle);
    let hang = ("stop-on-gpu-hang", watch.stop_on_gpu_hang);
    let never = [
        (idle, "gpu-idle-after", watch.gpu_idle_after),
        (hang, "gpu-hang-after", watch.gpu_hang_after),
    ];
    for (name, asked) in [("stop-on-stall", watch.stop_on_stall), idle, hang] {
        if asked && watch.sample_interval.is_zero() {
            return Err(Error::Unseen(name));
        }
    }
    match never.into_iter().find(|((_, asked), _, after)| *asked && after.is_zero()) {
        Some(((name, _), after, _)) => Err(Error::Never(name, after)),
        None => Ok(()),
    }
}

fn observation(watch: &WatchArgs, own_gpus: GpuAllotment, secrets: Secrets) -> observe::Spec {
    let unless_zero = |time: Duration| Some(time).filter(|time| !time.is_zero());
    let asks = |program: &PathBuf| *program != Path::new("none") && !own_gpus.is_none();
    let gpu_program = Some(watch.gpu_program.clone()).filter(asks);
    let detect = DetectSpec {
        stall_after: unless_zero(watch.stall_after),
        gpu_idle_after: unless_zero(watch.gpu_idle_after),
        gpu_hang_after: unless_zero(watch.gpu_hang_after),
        stop: StopOn {
            stall: watch.stop_on_stall,
            gpu_idle: watch.stop_on_gpu_idle,
            gpu_hang: watch.stop_on_gpu_hang,
        },
        ..DetectSpec::default()
    };
    let interval = unless_zero(watch.sample_interval);
    observe::Spec { interval, gpu_program, own_gpus, detect, secrets }
}

/// An id is a flag's, else a variable's; a run without a manager needs none.
struct IdLookup<'a> {
    needed: bool,
    variable: Lookup<'a>,
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
        match (given, text((self.variable)(name))) {
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

fn text(value: Option<OsString>) -> Option<String> {
    value.filter(|value| !value.is_empty()).map(|value| value.to_string_lossy().into_owned())
}

/// Returns whether the value of `--parameters` is the parameters themselves, and not the name of their file.
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
            Start { random: 7 },
        )
    }

    type Row<'a> = (&'a str, &'a [&'a str], &'a [(&'a str, &'a str)], Option<[&'a str; 3]>);

    #[test]
    fn ids_come_from_flags_then_variables_then_nowhere() {
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
            ("a run on its own",           &["x"],   &[],  Some(["standalone", "standalone", "0000000000000007"])),
            ("variables",                  &manager, &nni, Some(["e1", "t1", "u1"])),
            ("flags outrank variables",    &flags,   &nni, Some(["e2", "t2", "a2"])),
            ("a manager needs to know",    &manager, &[],  None),
            ("and to know well",           &manager, &bad, None),
            ("on its own it is no matter", &["x"],   &bad, Some(["standalone", "t1", "0000000000000007"])),
        ];
        for (says, words, variables, ids) in table {
            let found = resolve(words, variables).ok();
            let found = found.as_ref().map(|settings| {
                let Sender { experiment, trial, .. } = &settings.sender;
                [experiment.as_str(), trial.as_str(), settings.attempt.as_str()]
            });
            assert_eq!(found, ids, "{says}");
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
            ("--stop-on-gpu-idle --gpu-idle-after 0 x",   Some("the time that --gpu-idle-after gives")),
            ("--stop-on-gpu-hang --gpu-hang-after 0 x",   Some("the time that --gpu-hang-after gives")),
        ];
        for (line, refusal) in table {
            let words: Vec<_> = line.split(' ').collect();
            let refused = resolve(&words, &[]).err().map(|error| error.to_string());
            match refusal {
                None => assert_eq!(refused, None, "{line}"),
                Some(says) => assert!(refused.unwrap_or_default().contains(says), "{line}"),
            }
        }
    }

    #[test]
    fn a_shell_line_is_for_the_shell() {
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
