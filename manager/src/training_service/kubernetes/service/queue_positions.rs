//! Follows the positions of waiting trials in their queue, if Kueue serves them and the account may read them.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::action_runner::ActionRunner;
use super::context::ServiceContext;
use crate::training_service::kubernetes::client::{Cluster, Error};
use crate::training_service::kubernetes::kueue;

/// The pause between two checks for waiting trials.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);
/// The pause between two requests.
const REQUEST_INTERVAL: Duration = Duration::from_secs(30);

/// Follows the positions of trials in this queue until Kueue refuses to tell them.
pub(super) async fn follow_positions(
    context: Arc<ServiceContext>,
    runner: ActionRunner,
    queue: String,
) {
    loop {
        tokio::time::sleep(CHECK_INTERVAL).await;
        if !context.tracker().is_waiting_in_queue() {
            continue;
        }
        match pending_workloads(context.cluster(), &queue).await {
            Ok(pending) => {
                let actions = context.tracker().handle_positions(&kueue::positions(&pending));
                runner.perform(actions);
            }
            // The positions are optional. Without them, Kueue's messages are complete.
            Err(Error::NotFound { .. } | Error::NotAllowed { .. }) => return,
            Err(_) => {}
        }
        tokio::time::sleep(REQUEST_INTERVAL).await;
    }
}

async fn pending_workloads(cluster: &Cluster, queue: &str) -> Result<Value, Error> {
    let [newest, older] = kueue::API_VERSIONS
        .map(|version| kueue::pending_workloads_path(version, cluster.namespace(), queue));
    match cluster.get_path(&newest).await {
        Err(Error::NotFound { .. }) => cluster.get_path(&older).await,
        answer => answer,
    }
}
