//! `clean`: stops the trials that an experiment without a manager left, and deletes what it left outside its folder.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use trial_protocol::ExperimentId;

use super::terminal::plain_text::pluralize;
use super::{EXIT_BAD_INPUT, EXIT_DONE, EXIT_FAILED, fail};
use crate::app;
use crate::training_service::kubernetes::client::Access;
use crate::util::layout::ExperimentDir;

/// The cluster, if the experiment's store is lost or does not name the cluster.
#[derive(Debug, Args)]
pub(super) struct ClusterArgs {
    /// Kubeconfig file of the experiment's cluster. With --kubeconfig, --context or --namespace, the experiment's
    /// data is not needed.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Context in the kubeconfig file [default: the current context].
    #[arg(long)]
    context: Option<String>,
    /// Namespace of the experiment's pods [default: the namespace of the context].
    #[arg(long)]
    namespace: Option<String>,
}

/// Cleans the experiment's platform. `cluster` replaces the one that its store names.
pub(super) fn clean(dir: &ExperimentDir, id: &ExperimentId, cluster: ClusterArgs) -> ExitCode {
    let ClusterArgs { kubeconfig, context, namespace } = cluster;
    let named = kubeconfig.is_some() || context.is_some() || namespace.is_some();
    let place = named.then_some(Access { kubeconfig, context, namespace });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => return fail(&error, EXIT_FAILED),
    };
    match runtime.block_on(app::clean(dir, id, place)) {
        Ok(open_trials) => {
            if open_trials > 0 {
                // Ignored: standard error may be closed.
                drop(writeln!(std::io::stderr().lock(), "{}", open_trials_note(id, open_trials)));
            }
            ExitCode::from(EXIT_DONE)
        }
        Err(error) => fail(&error, if error.is_usage() { EXIT_BAD_INPUT } else { EXIT_FAILED }),
    }
}

/// Returns the note about trials that were stopped and whose ends are not recorded.
fn open_trials_note(id: &ExperimentId, open_trials: usize) -> String {
    let (trials, have) =
        (pluralize(open_trials, "trial"), if open_trials == 1 { "has" } else { "have" });
    format!(
        "{trials} of experiment {id} {have} no recorded end, because only a manager can receive the last reports; `trial-manager resume {id}` records how the trials ended, and runs interrupted ones again"
    )
}
