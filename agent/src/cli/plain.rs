//! PURE: the commonest command line, `trialkeeper [run] [--] CMD`, without a flag or a variable of ours. It is
//! read here because a table of fifty flags takes longer to build than a trial takes to start.
//!
//! What it gives is what the table gives; a test compares them.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::Duration;

use super::{Collect, LogCollection, PodArgs, RunArgs, SdkWay, WatchArgs};

/// The run that `words` ask for, if they are so plain. `ours`: whether a variable of ours is set.
pub(super) fn read(words: &[OsString], ours: bool) -> Option<RunArgs> {
    let (run, rest) = match words.get(1..)? {
        [run, rest @ ..] if run == "run" => (true, rest),
        rest => (false, rest),
    };
    let command = match rest {
        [dashes, command @ ..] if dashes == "--" => command,
        command if run && !command.first()?.as_encoded_bytes().starts_with(b"-") => command,
        _ => return None,
    };
    (!ours && !command.is_empty()).then(|| defaults(command.to_vec()))
}

/// How the names of our variables begin.
pub(super) const PREFIX: &str = "TRIALKEEPER_";

/// Whether the variable `name` may set a flag.
pub(super) fn is_ours(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(PREFIX.as_bytes())
}

fn defaults(command: Vec<OsString>) -> RunArgs {
    RunArgs {
        command,
        shell: None,
        experiment: None,
        trial: None,
        attempt: None,
        sequence: None,
        platform: None,
        manager: None,
        manager_file: None,
        token_file: None,
        ca_file: None,
        output_dir: None,
        spool_dir: None,
        spool_bytes: 256 << 20,
        rotate_bytes: None,
        termination_log: None,
        exit_code_map: None,
        log_collection: LogCollection::None,
        log_line_bytes: 16 << 10,
        log_rate: 64 << 20,
        mask_env: Vec::new(),
        parameters: None,
        collect: vec![Collect::Text, Collect::Json],
        metric_pattern: Vec::new(),
        metric_file: Vec::new(),
        tensorboard: Vec::new(),
        sdk_channel: SdkWay::Stdout,
        objective: None,
        grace: Duration::from_secs(20),
        drain: Duration::from_secs(2),
        flush: Duration::from_secs(5),
        heartbeat: Duration::from_secs(5),
        watch: WatchArgs {
            sample_interval: Duration::from_secs(5),
            gpu_program: PathBuf::from("nvidia-smi"),
            stall_after: Duration::from_mins(30),
            stop_on_stall: false,
            gpu_idle_after: Duration::from_mins(10),
            stop_on_gpu_idle: false,
            gpu_hang_after: Duration::from_mins(5),
            stop_on_gpu_hang: false,
        },
        detach_on_death: false,
        listen: None,
        pod: PodArgs {
            fetch: Vec::new(),
            code_dir: None,
            start_timeout: Duration::from_mins(10),
            role: None,
            role_index: None,
            roles: Vec::new(),
            metrics_from: None,
            pod_ip: None,
        },
        config: None,
        print_config: false,
        verbose: 0,
        log_file: None,
        warnings: Vec::new(),
        legacy: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn a_plain_line_is_read_as_the_table_reads_it() {
        for line in [
            "trialkeeper run -- python -u train.py --grace 1",
            "trialkeeper run python -u train.py -- x",
            "trialkeeper -- run",
            "trialkeeper run run",
            "trialkeeper run -- -- x",
        ] {
            let plain = read(&words(line), false).unwrap_or_else(|| panic!("{line:?} is plain"));
            let Ok(super::super::Cli { command: super::super::Command::Run(mut table) }) =
                super::super::parse_own(words(line))
            else {
                panic!("{line:?} is a run")
            };
            // Of variables that the test's caller has set and that set nothing.
            table.warnings.clear();
            assert_eq!(format!("{plain:?}"), format!("{table:?}"), "{line:?}");
        }
    }

    #[test]
    fn what_is_not_plain_is_left_to_the_table() {
        for line in [
            "trialkeeper",
            "trialkeeper run",
            "trialkeeper run --",
            "trialkeeper --",
            "trialkeeper run -v -- x",
            "trialkeeper run --help",
            "trialkeeper --help",
            "trialkeeper version",
        ] {
            assert!(read(&words(line), false).is_none(), "{line:?}");
        }
        assert!(read(&words("trialkeeper run -- x"), true).is_none());
    }
}
