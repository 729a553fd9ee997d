//! `conformance`: runs the test cases that every plugin must pass.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{BAD_INPUT, EXIT_DONE, NOTHING_SUCCEEDED, print_error};
use crate::app;
use crate::config::{self, PluginSpec};
use crate::training_service::plugin::conformance::{Case, CaseResult};

/// Runs the cases whose sentence contains `only`, prints each result, and returns the exit code.
pub(super) async fn conformance(
    settings: Option<&Path>,
    agent: Option<PathBuf>,
    only: &str,
    command: Vec<String>,
) -> u8 {
    let settings = match settings.map(config::read).transpose() {
        Ok(settings) => settings.unwrap_or_else(|| Value::Object(serde_json::Map::new())),
        Err(error) => {
            print_error(&error);
            return BAD_INPUT;
        }
    };
    let spec = PluginSpec { command, settings, advertise: None, api_server: None };
    let cases: Vec<Case> =
        Case::ALL.into_iter().filter(|case| case.sentence().contains(only)).collect();
    let mut failed = 0;
    for &case in &cases {
        let (word, why) = match app::try_case(case, &spec, agent.clone()).await {
            Ok(CaseResult::Passed) => ("ok", String::new()),
            Ok(CaseResult::Skipped(why)) => ("-", format!(": skipped, {why}")),
            Ok(CaseResult::Failed(why)) => {
                failed += 1;
                ("FAIL", format!(": {why}"))
            }
            Err(error) => {
                print_error(&error);
                return BAD_INPUT;
            }
        };
        let line = format!("{}{why}", case.sentence()).replace(char::is_control, " ");
        // Ignored: standard output may be closed.
        drop(writeln!(io::stdout(), "{word:<4}  {line}"));
    }
    if failed > 0 {
        drop(writeln!(io::stdout(), "{failed} of {} failed", cases.len()));
        return NOTHING_SUCCEEDED;
    }
    EXIT_DONE
}
