//! The preparation of a trial: its settings, its parameters, its directory, its environment.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use nix::unistd::{AccessFlags, access};
use serde_json::Value;
use trial_protocol::Verdict;

use super::LazyRuntime;
use super::launch::StartFailure;
use super::pod_setup::PodSetup;
use crate::cli::RunArgs;
use crate::cli::legacy::NniKeeperArgs;
use crate::commands::inspect::REPORTS_FILE;
use crate::output::run_dir::{self, DirRequest, PARAMETERS_FILE, RunDir};
use crate::run::settings::{RunSeed, Settings, is_inline};
use crate::trial::TrialCommand;
use crate::trial::environment::{self, EnvironmentInputs};
use crate::trial::parameters::Parameters;
use crate::trial::signals::Signals;

/// Everything that is prepared before the trial starts.
pub(super) struct PreparedRun {
    pub(super) settings: Settings,
    pub(super) command: TrialCommand,
    /// The parameters as NNI's record.
    pub(super) parameter_record: String,
    pub(super) dir: Option<PathBuf>,
    /// The verdict of an earlier attempt in the same directory.
    pub(super) earlier_verdict: Option<Verdict>,
    /// The directory of NNI's SDK.
    pub(super) sys_dir: Option<PathBuf>,
    /// The id of the parameters, which an NNI manager requires with each metric.
    pub(super) parameter_id: Value,
    /// The signals, if they were already opened.
    pub(super) signals: Option<Signals>,
    /// The time of the preparation, in milliseconds since 1970.
    pub(super) since_ms: u64,
    /// The reason for not starting the trial.
    pub(super) start_failure: Option<StartFailure>,
}

/// The shell with which NNI runs a trial's command.
const BASH_PATH: &str = "/bin/bash";

/// Returns the shell for a command line: `bash`, for which command lines are usually written, or `sh` if the image has
/// no `bash`. In place of NNI's own keeper it is always `sh`, like NNI's.
fn shell(legacy: bool, bash: &'static str) -> &'static str {
    if !legacy && access(bash, AccessFlags::X_OK).is_ok() { bash } else { "/bin/sh" }
}

pub(super) fn prepare(
    args: &RunArgs,
    now_ms: i64,
    random: u64,
    runtime: &LazyRuntime,
) -> Result<PreparedRun, Box<dyn std::error::Error>> {
    crate::util::faults::inject_at("prepare");
    let variable = |name: &str| std::env::var_os(name);
    for warning in &args.warnings {
        tracing::warn!("{warning}");
    }
    let (shell, seed) = (shell(args.legacy.is_some(), BASH_PATH), RunSeed { random });
    let mut settings = Settings::resolve(args, &variable, shell, seed)?;
    if let Some(legacy) = &settings.legacy {
        write_job_id_file(legacy);
    }
    let inherited_sys_dir =
        variable("NNI_SYS_DIR").map(PathBuf::from).filter(|_| args.output.output_dir.is_none());
    let sys_dir = inherited_sys_dir.as_deref().or(settings.output_dir.as_deref());
    let mut setup = PodSetup::new(&settings, runtime);
    let fetched = setup.fetch_parameters();
    let parameters = match &fetched {
        Some(record) => Parameters::parse(record).map_err(ParametersError::ParseFetched)?,
        None => read_parameters(args, sys_dir)?,
    };

    let request = match &settings.output_dir {
        Some(dir) => DirRequest::Dir(dir.clone()),
        None => DirRequest::New { now_ms, random },
    };
    // Given parameters take precedence over those of an earlier attempt in the directory.
    let given = fetched.is_some() || args.metrics.parameters.is_some();
    let private =
        args.legacy.is_none() && args.trial.platform.as_deref().is_none_or(|p| p == "local");
    let RunDir { path: dir, earlier_verdict, warnings } =
        run_dir::prepare(&request, &parameters, given, private);
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    let (directory, peers) = setup.prepare_code_and_peers(dir.as_deref());
    let (signals, start_failure) = setup.close();
    let run_mark = format!("{random:016x}");
    let command =
        trial_command(args, &settings, &parameters, dir.as_deref(), directory, &peers, run_mark);
    settings.collect.parameters = parameters.numbers();
    let parameter_id = parameters.id();
    Ok(PreparedRun {
        command,
        parameter_record: parameters.record,
        sys_dir: inherited_sys_dir.or_else(|| dir.clone()),
        dir,
        earlier_verdict,
        parameter_id,
        signals,
        since_ms: u64::try_from(now_ms).unwrap_or_default(),
        start_failure,
        settings,
    })
}

/// Returns the process to start, with its environment. `code` is the directory of its code, if the agent created one.
fn trial_command(
    args: &RunArgs,
    settings: &Settings,
    parameters: &Parameters,
    dir: Option<&Path>,
    code: Option<PathBuf>,
    peers: &[(String, String)],
    run_mark: String,
) -> TrialCommand {
    let code_dir = code.clone().or_else(|| std::env::current_dir().ok());
    let parameters_file = dir.map(|dir| dir.join(PARAMETERS_FILE));
    let ids = &settings.sender;
    for (one, other) in environment::name_collisions(parameters) {
        tracing::warn!(
            "the parameters {one:?} and {other:?} share one TRIALKEEPER_PARAM_ variable; TRIALKEEPER_PARAMETERS has both"
        );
    }
    let inputs = EnvironmentInputs {
        platform: args.trial.platform.as_deref(),
        experiment: args.trial.experiment.as_ref().map(|_| ids.experiment.as_str()),
        trial: args.trial.trial.as_ref().map(|_| ids.trial.as_str()),
        sequence: args.trial.sequence,
        output_dir: dir.filter(|_| args.output.output_dir.is_some()),
        fallback_dir: dir,
        code_dir: code_dir.as_deref(),
        parameters,
        parameters_file: parameters_file.as_deref(),
        reports_file: Some(REPORTS_FILE).filter(|_| settings.metric_files.is_empty()),
        peers,
        run_mark: &run_mark,
    };
    let inherited: Vec<(OsString, OsString)> = std::env::vars_os().collect();
    let environment = environment::changes(&inherited, &inputs);
    let (program, arguments) =
        settings.command.split_first().expect("clap requires a command or a shell line");
    TrialCommand {
        program: program.clone(),
        arguments: arguments.to_vec(),
        directory: code,
        environment,
        run_mark,
        detach_on_death: settings.detach_on_death,
    }
}

/// Writes the agent's process id for NNI's manager, as its keeper does before the trial's start.
fn write_job_id_file(legacy: &NniKeeperArgs) {
    if let Some(path) = &legacy.job_id_file
        && let Err(error) = std::fs::write(path, std::process::id().to_string())
    {
        tracing::warn!("cannot write the job id file {}: {error}", path.display());
    }
}

/// The errors of reading the parameters. The trial is then not started, because its result would belong to other
/// parameters.
#[derive(Debug, thiserror::Error)]
enum ParametersError {
    #[error("cannot read the parameters in {}", .path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("cannot parse the parameters in {}", .path.display())]
    Parse { path: PathBuf, source: crate::trial::parameters::Error },
    #[error("cannot parse the parameters from the manager")]
    ParseFetched(#[source] crate::trial::parameters::Error),
    #[error("cannot parse the value of --parameters or TRIALKEEPER_PARAMETERS")]
    ParseInline(#[source] crate::trial::parameters::Error),
}

fn read_parameters(args: &RunArgs, sys_dir: Option<&Path>) -> Result<Parameters, ParametersError> {
    let path = match &args.metrics.parameters {
        Some(text) if is_inline(text) => {
            return Parameters::parse(&text.to_string_lossy())
                .map_err(ParametersError::ParseInline);
        }
        Some(path) => PathBuf::from(path),
        // The creator of the directory may have put the record there.
        None => match sys_dir.map(|dir| dir.join("parameter.cfg")).filter(|path| path.exists()) {
            Some(path) => path,
            None => return Ok(Parameters::none()),
        },
    };
    match std::fs::read_to_string(&path) {
        Ok(text) => {
            Parameters::parse(&text).map_err(|source| ParametersError::Parse { path, source })
        }
        Err(source) => Err(ParametersError::Read { path, source }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bash_runs_a_shell_line_if_it_exists() {
        #[rustfmt::skip]
        let table = [
            ("a bash",                    false, "/proc/self/exe", "/proc/self/exe"),
            ("none",                      false, "/no/such/bash",  "/bin/sh"),
            ("one that cannot be run",    false, "/proc/version",  "/bin/sh"),
            ("the place of NNI's keeper", true,  "/proc/self/exe", "/bin/sh"),
        ];
        for (case, legacy, bash, runs) in table {
            assert_eq!(shell(legacy, bash), runs, "{case}");
        }
    }
}
