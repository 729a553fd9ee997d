//! `conformance`: runs the test cases that every plugin must pass.

use std::io::{self, Write as _};
use std::path::PathBuf;

use clap::Args;
use futures_util::StreamExt as _;
use futures_util::stream;
use serde_json::Value;

use super::{EXIT_BAD_INPUT, EXIT_DONE, EXIT_FAILED, print_error};
use crate::app;
use crate::config::{self, PluginSpec};
use crate::training_service::plugin::conformance::{Case, CaseResult};

/// The arguments of `conformance`.
#[derive(Debug, Args)]
pub(super) struct ConformanceArgs {
    /// File with the plugin's settings (JSON or YAML).
    #[arg(long, value_name = "FILE")]
    settings: Option<PathBuf>,
    /// Path of the agent program [default: `trialkeeper` in the folder of this program, else in PATH].
    #[arg(long, env = "TRIAL_MANAGER_AGENT")]
    agent: Option<PathBuf>,
    /// Run only the cases whose description contains this text. May be repeated.
    #[arg(long = "case", value_name = "TEXT")]
    cases: Vec<String>,
    /// Number of cases that run at a time. Each has its own process of the plugin.
    #[arg(long, value_name = "COUNT", default_value = "1", value_parser = clap::value_parser!(u8).range(1..))]
    parallel: u8,
    /// Program of the plugin, with its arguments.
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

/// Runs the wanted cases, prints each result, and returns the exit code.
pub(super) async fn conformance(arguments: ConformanceArgs) -> u8 {
    let ConformanceArgs { settings, agent, cases: texts, parallel, command } = arguments;
    let settings = match settings.as_deref().map(config::read_document).transpose() {
        Ok(settings) => settings.unwrap_or_else(|| Value::Object(serde_json::Map::new())),
        Err(error) => {
            print_error(&error);
            return EXIT_BAD_INPUT;
        }
    };
    let spec = PluginSpec { command, settings, advertise: None, api_server: None };
    let is_wanted = |case: &Case| texts.iter().any(|text| case.sentence().contains(text.as_str()));
    let cases: Vec<Case> =
        Case::ALL.into_iter().filter(|case| texts.is_empty() || is_wanted(case)).collect();
    let results = stream::iter(&cases)
        .map(|&case| app::try_case(case, &spec, agent.clone()))
        .buffered(usize::from(parallel));
    let mut results = std::pin::pin!(stream::iter(&cases).zip(results));
    let mut failed = 0;
    while let Some((case, result)) = results.next().await {
        let (word, why) = match result {
            Ok(CaseResult::Passed) => ("ok", String::new()),
            Ok(CaseResult::Skipped(why)) => ("-", format!(": skipped, {why}")),
            Ok(CaseResult::Failed(why)) => {
                failed += 1;
                ("FAIL", format!(": {why}"))
            }
            Err(error) => {
                print_error(&error);
                return EXIT_BAD_INPUT;
            }
        };
        let line = format!("{}{why}", case.sentence()).replace(char::is_control, " ");
        // Ignored: standard output may be closed.
        drop(writeln!(io::stdout(), "{word:<4}  {line}"));
    }
    if failed > 0 {
        drop(writeln!(io::stdout(), "{failed} of {} failed", cases.len()));
        return EXIT_FAILED;
    }
    EXIT_DONE
}
