//! The task that serves the SDK's channel.

use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use crate::collect::Finding;
use crate::http::channel::{CHANNEL_VARIABLE, Channel, no_proxy};
use crate::trial::environment::Changes;
use crate::util::errors::chain;

/// Findings that may wait for the main task.
const FINDINGS_QUEUE: usize = 64;

/// The channel, bound and not yet served.
pub(super) struct SdkChannel(Option<Channel>);

/// The channel that is served.
pub(super) struct Served {
    pub(super) findings: mpsc::Receiver<Finding>,
    pub(super) shutdown: ChannelShutdown,
}

/// The signals that end it.
pub(super) struct ChannelShutdown {
    ended: watch::Sender<bool>,
    _task: Option<JoinHandle<()>>,
}

impl SdkChannel {
    /// Returns no channel.
    pub(super) fn none() -> Self {
        Self(None)
    }

    /// Binds the channel, and puts its address into the trial's environment.
    pub(super) async fn open(environment: &mut Changes) -> Self {
        match Channel::bind().await {
            Ok(channel) => {
                let mut set = |name: &str, value: String| {
                    environment.set.push((name.into(), value.into()));
                };
                set(CHANNEL_VARIABLE, channel.url());
                for name in ["NO_PROXY", "no_proxy"] {
                    set(name, no_proxy(std::env::var(name).ok().as_deref()));
                }
                Self(Some(channel))
            }
            Err(error) => {
                tracing::warn!("{}", chain(&error));
                Self(None)
            }
        }
    }

    /// Serves the channel. `record` is the answer to a trial that asks for its parameters.
    pub(super) fn serve(self, record: String) -> Served {
        let (found, findings) = mpsc::channel(FINDINGS_QUEUE);
        let (ended, watch_end) = watch::channel(false);
        // A task, so that a panic in it does not end the agent. It ends with the runtime at the latest.
        let task = self.0.map(|channel| {
            tokio::spawn(async move { channel.serve(&record, found, watch_end).await })
        });
        Served { findings, shutdown: ChannelShutdown { ended, _task: task } }
    }
}

impl ChannelShutdown {
    /// Answers requests that still wait: the trial is over.
    pub(super) fn shut_down(self) {
        self.ended.send(true).ok();
    }
}
