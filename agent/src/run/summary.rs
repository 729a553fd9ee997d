//! The first report and the last messages of a run: its start, its exit code, and the summary for the user.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use trial_protocol::{Cause, Started, Verdict};

use crate::cli::{AGENT_FAULT, ExitCodeMap};
use crate::delivery::{self, ManagerAddress};
use crate::run::settings::Settings;
use crate::run::summary_text;
use crate::supervise::recorder::MetricSummary;
use crate::trial::signals::signal_byte;
use crate::trial::{self, Trial};
use crate::util::log;
use crate::verdict::{TrialEnd, exit_code_for_frameworkcontroller};

/// The exit code of a process that SIGTERM ended, as a shell shows it.
const STOPPED_CODE: u8 = 143;
/// The maximum wait for the reader of the summary.
const SUMMARY_WAIT: Duration = Duration::from_secs(2);

pub(super) fn started_report(settings: &Settings, trial: Option<&Trial>) -> Started {
    let task = settings.pod.task.as_ref();
    let secrets = &settings.observe.secrets;
    let words = settings.command.iter().map(|word| word.to_string_lossy().into_owned());
    let command = words.map(|word| secrets.mask_text(word));
    Started {
        command: command.collect(),
        pid: trial.map(Trial::pid),
        host: nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok()),
        agent_version: env!("CARGO_PKG_VERSION").to_owned(),
        role: task.map(|task| task.role.clone()),
        role_index: task.map(|task| task.index),
    }
}

/// Returns a sentence about the earlier attempt in this directory.
pub(super) fn describe_earlier_attempt(earlier: &Verdict) -> String {
    let how = match earlier.exit {
        Some(_) => "ended",
        None => "was cut off together with its agent; its last written verdict",
    };
    format!("An earlier attempt in this directory {how}: {}", earlier.message)
}

pub(super) fn trial_end_of(error: &trial::Error) -> TrialEnd {
    let source = |source: &io::Error| source.to_string();
    match error {
        trial::Error::NotFound { program, .. } => {
            TrialEnd::NotFound { program: program.display().to_string() }
        }
        trial::Error::NotExecutable { program, source: why } => {
            TrialEnd::NotExecutable { program: program.display().to_string(), why: source(why) }
        }
        trial::Error::Unready { why } => TrialEnd::AgentFailed { why: why.clone() },
        trial::Error::Stopped { signal } => {
            TrialEnd::StoppedBefore { signal: signal_byte(*signal) }
        }
        trial::Error::Spawn { source: why, .. } => {
            TrialEnd::AgentFailed { why: format!("cannot start a process: {why}") }
        }
    }
}

/// Returns the exit code: the trial's own, unless the platform expects the verdict's class.
pub(super) fn exit_code(end: &TrialEnd, verdict: &Verdict, map: Option<ExitCodeMap>) -> u8 {
    let own = match end {
        TrialEnd::Exited { exit, .. } => exit.shell_code(),
        TrialEnd::StoppedBefore { signal } => 128_u8.saturating_add(*signal),
        TrialEnd::NotFound { .. } => 127,
        TrialEnd::NotExecutable { .. } => 126,
        TrialEnd::AgentFailed { .. } | TrialEnd::Running => AGENT_FAULT,
    };
    match map {
        Some(ExitCodeMap::Frameworkcontroller) => {
            exit_code_for_frameworkcontroller(verdict.class, own)
        }
        Some(ExitCodeMap::Kubernetes) if verdict.cause == Cause::Stopped => STOPPED_CODE,
        Some(ExitCodeMap::Kubernetes) | None => own,
    }
}

/// The undelivered reports.
pub(super) struct Undelivered {
    pub(super) outcome: delivery::Outcome,
    /// The spool with the reports. `None`: the reports are lost.
    pub(super) spool: Option<PathBuf>,
}

/// Returns the command that delivers the reports in a spool.
fn replay_command(settings: &Settings, spool: &Path) -> String {
    let (url, file) = match &settings.manager {
        Some(ManagerAddress::Url(url)) => (Some(Path::new(url)), None),
        Some(ManagerAddress::File(file)) => (None, Some(file.as_path())),
        None => (None, None),
    };
    let options = [
        ("manager", url),
        ("manager-file", file),
        ("token-file", settings.token_file.as_deref()),
        ("ca-file", settings.ca_file.as_deref()),
    ];
    let options = options.into_iter().filter_map(|(name, value)| Some((name, value?)));
    let command = format!("trialkeeper replay {}", shell_word(spool));
    options
        .fold(command, |command, (name, value)| format!("{command} --{name} {}", shell_word(value)))
}

/// Returns a path or URL as one word for a shell.
fn shell_word(path: &Path) -> String {
    let text = path.display().to_string();
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:".contains(&byte);
    if text.bytes().all(is_plain) { text } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

pub(super) fn log_summary(
    settings: &Settings,
    verdict: &Verdict,
    metrics: &MetricSummary,
    dir: Option<&Path>,
    left: Option<&Undelivered>,
) {
    if let Some(Undelivered { outcome, spool }) = left
        && let Some(error) = &outcome.last_error
    {
        let count = outcome.undelivered;
        match spool {
            Some(spool) => tracing::warn!(
                "{count} reports were not delivered ({error}); on the manager's machine, `trial-manager resume` delivers \
                 them; elsewhere, run `{}`",
                replay_command(settings, spool)
            ),
            None => tracing::warn!(
                "{count} reports were not delivered ({error}), and are lost: no spool could be written"
            ),
        }
    }
    if settings.manager.is_none() || settings.verbose >= 1 {
        let undelivered = left.map(|left| left.outcome.undelivered);
        let run = summary_text::RunSummary { verdict, metrics, dir, undelivered };
        log::print(&summary_text::render_summary(&run), SUMMARY_WAIT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_one_word_for_a_shell() {
        #[rustfmt::skip]
        let table = [
            ("/tmp/a-1/spool",        "/tmp/a-1/spool"),
            ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
            ("/tmp/my run/spool",     "'/tmp/my run/spool'"),
            ("/tmp/it's $x",          r"'/tmp/it'\''s $x'"),
        ];
        for (path, word) in table {
            assert_eq!(shell_word(Path::new(path)), word);
        }
    }
}
