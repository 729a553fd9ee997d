//! The setup of a pod before its trial starts: code, parameters and the other pods' addresses come from the manager.
//!
//! Without a request for any of them, nothing happens here. A part that cannot be had is an obstacle: the trial is not
//! started, and everything else goes on as if it had failed to start, so that the manager learns why.

use std::path::{Path, PathBuf};

use nix::sys::signal::Signal;
use tokio::runtime::Runtime;

use super::{LazyRuntime, new_runtime};
use crate::pod::fetch::{self, Manager};
use crate::pod::peers;
use crate::pod::rendezvous::meet;
use crate::run::settings::{Pod, Settings};
use crate::trial::signals::{ReceivedSignal, Signals};
use crate::util::errors::chain;

/// The setup so far.
pub(super) struct PodSetup<'a> {
    settings: &'a Settings,
    session: Option<SetupSession<'a>>,
    /// The reason why the trial cannot start.
    pub(super) obstacle: Option<String>,
}

struct SetupSession<'a> {
    runtime: &'a Runtime,
    manager: Manager,
    /// A stop may be requested meanwhile, and the agent as PID 1 is the only receiver.
    signals: Signals,
}

impl<'a> PodSetup<'a> {
    pub(super) fn new(settings: &'a Settings, runtime: &'a LazyRuntime) -> Self {
        let pod = &settings.pod;
        let asked = pod.fetch_code || pod.fetch_parameters || pod.meeting.is_some();
        let Some(address) = settings.manager.clone().filter(|_| asked) else {
            return Self { settings, session: None, obstacle: None };
        };
        let open = || {
            let runtime = runtime.get_or_init(new_runtime);
            let runtime = runtime.as_ref().map_err(|error| chain(error))?;
            let _inside = runtime.enter();
            let signals = Signals::listen().map_err(|error| chain(&error))?;
            let (token_file, ca_file) = (settings.token_file.clone(), settings.ca_file.as_deref());
            let manager = Manager::new(address, token_file, ca_file, pod.start_timeout);
            Ok(SetupSession { runtime, manager: manager.map_err(|error| chain(&error))?, signals })
        };
        match open() {
            Ok(session) => Self { settings, session: Some(session), obstacle: None },
            Err(why) => Self { settings, session: None, obstacle: Some(why) },
        }
    }

    /// The parameter record, where it is to be fetched.
    pub(super) fn parameters(&mut self) -> Option<String> {
        self.step(self.settings.pod.fetch_parameters, async |manager| manager.parameters().await)
    }

    /// Returns the directory with the trial's code, after fetching or unpacking it; `None` if neither is to be done. `dir` is
    /// the run's directory.
    pub(super) fn code(&mut self, dir: Option<&Path>) -> Option<PathBuf> {
        let pod = &self.settings.pod;
        if !pod.fetch_code && pod.code_archive.is_none() {
            return None;
        }
        let Some(into) = code_dir(pod, dir) else {
            let why = "no directory is known for the code; name one with --code-dir".to_owned();
            self.obstacle.get_or_insert(why);
            return None;
        };
        // The trial is run there, and what it is told must hold wherever it goes.
        let absolute = |()| {
            std::path::absolute(&into)
                .map_err(|source| fetch::Error::Write { path: into.clone(), source })
        };
        let Some(archive) = &pod.code_archive else {
            return self.step(true, async |manager| manager.code(&into).await.and_then(absolute));
        };
        let unpacked = fetch::open_archive(archive)
            .and_then(|archive| fetch::unpack_code(archive, &into))
            .and_then(absolute);
        unpacked.map_err(|error| self.obstacle.get_or_insert(chain(&error))).ok()
    }

    /// The trial's variables about its pod and its peers.
    pub(super) fn peers(&mut self) -> Vec<(String, String)> {
        let Some(own) = &self.settings.pod.task else { return Vec::new() };
        let mut variables = vec![
            ("TRIALKEEPER_ROLE".to_owned(), own.role.clone()),
            ("TRIALKEEPER_ROLE_INDEX".to_owned(), own.index.to_string()),
        ];
        if let Some(meeting) = &self.settings.pod.meeting
            && let Some(members) = self.step(true, async |manager| meet(manager, meeting).await)
        {
            variables.extend(peers::variables(own, &meeting.roles, &members));
        }
        variables
    }

    /// Returns the signals that were opened, for the rest of the run, and the obstacle.
    pub(super) fn close(self) -> (Option<Signals>, Option<String>) {
        (self.session.map(|session| session.signals), self.obstacle)
    }

    /// Does something, unless there is an obstacle already.
    fn step<T>(
        &mut self,
        wanted: bool,
        work: impl AsyncFnOnce(&Manager) -> Result<T, fetch::Error>,
    ) -> Option<T> {
        let session = self.session.as_mut().filter(|_| wanted && self.obstacle.is_none())?;
        let SetupSession { runtime, manager, signals } = session;
        let done = runtime.block_on(async {
            tokio::select! {
                done = work(manager) => done.map_err(|error| chain(&error)),
                signal = wait_for_stop_signal(signals) => {
                    Err(format!("{signal} requested a stop before the trial was started"))
                }
            }
        });
        done.map_err(|why| self.obstacle = Some(why)).ok()
    }
}

/// Returns the directory for a trial's code; `dir` is the run's directory.
fn code_dir(pod: &Pod, dir: Option<&Path>) -> Option<PathBuf> {
    pod.code_dir.clone().or_else(|| Some(dir?.join("code")))
}

/// Removes unpacked code that the trial has not changed. What it has made stays.
pub(super) fn remove_code(pod: &Pod, dir: Option<&Path>) {
    if let Some(archive) = &pod.code_archive
        && let Ok(archive) = fetch::open_archive(archive)
        && let Some(into) = code_dir(pod, dir)
    {
        fetch::remove_unchanged_code(archive, &into);
    }
}

async fn wait_for_stop_signal(signals: &mut Signals) -> Signal {
    loop {
        if let ReceivedSignal::Sent(
            signal @ (Signal::SIGTERM | Signal::SIGINT | Signal::SIGQUIT | Signal::SIGHUP),
            _,
        ) = signals.next().await
        {
            return signal;
        }
    }
}
