//! `clean`: deletes what an experiment left in its cluster.

use std::process::ExitCode;

use trial_protocol::ExperimentId;

use super::{BAD_INPUT, DONE, NOTHING_SUCCEEDED, fail};
use crate::app;
use crate::layout::ExperimentDir;

/// Deletes what the experiment left.
pub(super) fn clean(dir: &ExperimentDir, id: &ExperimentId) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => return fail(&error, NOTHING_SUCCEEDED),
    };
    match runtime.block_on(app::clean(dir, id)) {
        Ok(()) => ExitCode::from(DONE),
        Err(error) => fail(&error, if error.is_usage() { BAD_INPUT } else { NOTHING_SUCCEEDED }),
    }
}
