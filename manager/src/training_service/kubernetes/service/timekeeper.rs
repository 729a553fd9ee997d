//! Waits for the deadlines of the tracker.

use std::sync::Arc;
use std::time::Duration;

use super::action_runner::ActionRunner;
use super::context::ServiceContext;

/// The pause after each look at the deadlines, which are seconds away. Every event may move one closer, and each look
/// reads all workloads: without the pause, hundreds of concurrent trials cost a fifth of the processor time.
const CHECK_PAUSE: Duration = Duration::from_millis(250);

/// Waits for the tracker's deadlines, and carries out the resulting actions until the service closes.
pub(super) async fn run_deadlines(context: Arc<ServiceContext>, runner: ActionRunner) {
    loop {
        let next = context.tracker().next_deadline();
        let due = async {
            match next {
                Some(at) => tokio::time::sleep_until(context.moment_of(at)).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = due => {}
            () = context.wait_for_nearer_deadline() => {}
        }
        let actions = context.tracker().tick(context.now());
        runner.perform(actions);
        tokio::time::sleep(CHECK_PAUSE).await;
    }
}
