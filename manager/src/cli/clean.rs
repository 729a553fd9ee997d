//! `clean`: deletes what an experiment left in its cluster.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use trial_protocol::ExperimentId;

use super::{BAD_INPUT, DONE, NOTHING_SUCCEEDED, fail};
use crate::app;
use crate::training_service::kubernetes::client::Access;
use crate::util::layout::ExperimentDir;

/// Which cluster, where no store says it, or is lost.
#[derive(Debug, Args)]
pub(super) struct ClusterArgs {
    /// The kubeconfig of its cluster. With this or one of the next two the experiment's data is not needed.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Which of the kubeconfig's contexts [default: the current one].
    #[arg(long)]
    context: Option<String>,
    /// The namespace [default: the context's].
    #[arg(long)]
    namespace: Option<String>,
}

/// Deletes what the experiment left, in this cluster or in the one that its store names.
pub(super) fn clean(dir: &ExperimentDir, id: &ExperimentId, cluster: ClusterArgs) -> ExitCode {
    let ClusterArgs { kubeconfig, context, namespace } = cluster;
    let named = kubeconfig.is_some() || context.is_some() || namespace.is_some();
    let place = named.then_some(Access { kubeconfig, context, namespace });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => return fail(&error, NOTHING_SUCCEEDED),
    };
    match runtime.block_on(app::clean(dir, id, place)) {
        Ok(()) => ExitCode::from(DONE),
        Err(error) => fail(&error, if error.is_usage() { BAD_INPUT } else { NOTHING_SUCCEEDED }),
    }
}
