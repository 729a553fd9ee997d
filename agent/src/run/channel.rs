//! The task that serves the SDK's channel.

use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use crate::collect::Finding;
use crate::http::channel::{CHANNEL_VARIABLE, Channel, no_proxy};
use crate::trial::environment::EnvironmentChanges;
use crate::util::errors::chain;

/// The maximum number of findings that wait for the main task.
const FINDINGS_QUEUE_CAPACITY: usize = 64;

/// The channel, bound but not served yet.
pub(super) struct SdkChannel(Option<Channel>);

/// The served channel.
pub(super) struct RunningChannel {
    pub(super) findings: mpsc::Receiver<Finding>,
    pub(super) shutdown: ChannelShutdown,
}

/// The handles that end the channel.
pub(super) struct ChannelShutdown {
    ended: watch::Sender<bool>,
    _task: Option<JoinHandle<()>>,
}

impl SdkChannel {
    /// Returns an absent channel.
    pub(super) fn none() -> Self {
        Self(None)
    }

    /// Binds the channel, and adds its address to the trial's environment.
    pub(super) async fn open(environment: &mut EnvironmentChanges) -> Self {
        match Channel::bind().await {
            Ok(channel) => {
                let mut set = |name: &str, value: String| {
                    environment.set.push((name.into(), value.into()));
                };
                set(CHANNEL_VARIABLE, channel.url());
                // Many programs read only one of them, or prefer it, so each contains the user's list.
                for [name, other] in [["NO_PROXY", "no_proxy"], ["no_proxy", "NO_PROXY"]] {
                    let list = std::env::var(name).or_else(|_| std::env::var(other));
                    set(name, no_proxy(list.ok().as_deref()));
                }
                Self(Some(channel))
            }
            Err(error) => {
                tracing::warn!("{}", chain(&error));
                Self(None)
            }
        }
    }

    /// Serves the channel. A trial that requests its parameters gets `record`.
    pub(super) fn serve(self, record: String) -> RunningChannel {
        let (found, findings) = mpsc::channel(FINDINGS_QUEUE_CAPACITY);
        let (ended, watch_end) = watch::channel(false);
        // A task of its own, so that a panic in it does not end the agent. It ends with the runtime at the latest.
        let task = self.0.map(|channel| {
            tokio::spawn(async move { channel.serve(&record, found, watch_end).await })
        });
        RunningChannel { findings, shutdown: ChannelShutdown { ended, _task: task } }
    }
}

impl ChannelShutdown {
    /// Answers the pending requests after the trial's end.
    pub(super) fn shut_down(self) {
        self.ended.send(true).ok();
    }
}
