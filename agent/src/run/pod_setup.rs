//! The setup of a pod before its trial starts. The manager provides code, parameters and the other pods' addresses. The
//! code is fetched during the rendezvous of the pods.
//!
//! If no flag requests code, parameters or a rendezvous, the setup does nothing. If a part is missing, the trial is not
//! started. The run continues as after a failed start, so that the manager gets the reason.

use std::path::{Path, PathBuf};

use tokio::runtime::Runtime;
use trial_protocol::Member;

use super::launch::StartFailure;
use super::{LazyRuntime, new_runtime};
use crate::pod::fetch::{self, ManagerClient};
use crate::pod::peers;
use crate::pod::rendezvous::wait_for_peers;
use crate::run::settings::{PodSettings, Settings};
use crate::trial::signals::Signals;
use crate::util::errors::chain;

/// The state of the setup.
pub(super) struct PodSetup<'a> {
    settings: &'a Settings,
    session: Option<SetupSession<'a>>,
    /// The reason why the trial cannot start.
    start_failure: Option<StartFailure>,
}

struct SetupSession<'a> {
    runtime: &'a Runtime,
    manager: ManagerClient,
    /// A stop may be requested during the setup, and as PID 1 only the agent receives the signal.
    signals: Signals,
}

impl<'a> PodSetup<'a> {
    pub(super) fn new(settings: &'a Settings, runtime: &'a LazyRuntime) -> Self {
        let pod = &settings.pod;
        let is_requested = pod.fetch_code || pod.fetch_parameters || pod.rendezvous.is_some();
        let Some(address) = settings.manager.clone().filter(|_| is_requested) else {
            return Self { settings, session: None, start_failure: None };
        };
        let open = || {
            let runtime = runtime.get_or_init(new_runtime);
            let runtime = runtime.as_ref().map_err(|error| chain(error))?;
            let _inside = runtime.enter();
            let signals = Signals::listen().map_err(|error| chain(&error))?;
            let (token_file, ca_file) = (settings.token_file.clone(), settings.ca_file.as_deref());
            let manager = ManagerClient::new(address, token_file, ca_file, pod.start_timeout);
            Ok(SetupSession { runtime, manager: manager.map_err(|error| chain(&error))?, signals })
        };
        match open() {
            Ok(session) => Self { settings, session: Some(session), start_failure: None },
            Err(why) => {
                Self { settings, session: None, start_failure: Some(StartFailure::Unready(why)) }
            }
        }
    }

    /// Returns the parameter record, if it must be fetched.
    pub(super) fn fetch_parameters(&mut self) -> Option<String> {
        self.step(self.settings.pod.fetch_parameters, async |manager| {
            manager.fetch_parameters().await
        })
    }

    /// Fetches or unpacks the trial's code. Returns its directory, and the trial's variables about its pod and its
    /// peers. `None`: the trial needs no code. `dir` is the run's directory.
    pub(super) fn prepare_code_and_peers(
        &mut self,
        dir: Option<&Path>,
    ) -> (Option<PathBuf>, Vec<(String, String)>) {
        let pod = &self.settings.pod;
        let into = code_dir(pod, dir).filter(|_| pod.fetch_code || pod.code_archive.is_some());
        if (pod.fetch_code || pod.code_archive.is_some()) && into.is_none() {
            let why = "no directory for the code; set --code-dir".to_owned();
            self.start_failure.get_or_insert(StartFailure::Unready(why));
        }
        let unpacked = into.as_deref().zip(pod.code_archive.as_deref()).map(|(into, archive)| {
            fetch::open_archive(archive)
                .and_then(|archive| fetch::place_code(&archive, pod.code_base.as_deref(), into))
        });
        let is_unpacked = matches!(unpacked, Some(Ok(())));
        // A missing or damaged archive is fetched again. If that fails too, its error is reported.
        if let Some(Err(error)) = unpacked
            && !pod.fetch_code
        {
            self.start_failure.get_or_insert(StartFailure::Unready(chain(&error)));
        }
        let fetched = into.as_deref().filter(|_| pod.fetch_code && !is_unpacked);
        let rendezvous = pod.rendezvous.as_ref();
        let members = self.step(fetched.is_some() || rendezvous.is_some(), async |manager| {
            let code = async {
                match fetched {
                    Some(into) => manager.fetch_code(into).await,
                    None => Ok(()),
                }
            };
            let members = async {
                match rendezvous {
                    Some(rendezvous) => wait_for_peers(manager, rendezvous).await.map(Some),
                    None => Ok(None),
                }
            };
            tokio::try_join!(code, members).map(|((), members)| members)
        });
        let directory = into.filter(|_| self.start_failure.is_none()).and_then(|into| {
            // The path must be absolute: it is the trial's working directory and stays valid if the trial changes to
            // another.
            let absolute = std::path::absolute(&into)
                .map_err(|source| fetch::Error::Write { path: into, source });
            absolute
                .map_err(|error| self.start_failure = Some(StartFailure::Unready(chain(&error))))
                .ok()
        });
        (directory, self.variables(members.flatten().as_deref()))
    }

    fn variables(&self, members: Option<&[Member]>) -> Vec<(String, String)> {
        let Some(own) = &self.settings.pod.task else { return Vec::new() };
        let mut variables = vec![
            ("TRIALKEEPER_ROLE".to_owned(), own.role.clone()),
            ("TRIALKEEPER_ROLE_INDEX".to_owned(), own.index.to_string()),
        ];
        if let Some((rendezvous, members)) = self.settings.pod.rendezvous.as_ref().zip(members) {
            variables.extend(peers::variables(own, &rendezvous.roles, members));
        }
        variables
    }

    /// Returns the signals for the rest of the run, if they were opened, and the reason why the trial cannot start.
    pub(super) fn close(self) -> (Option<Signals>, Option<StartFailure>) {
        (self.session.map(|session| session.signals), self.start_failure)
    }

    /// Performs one step, unless an earlier one failed.
    fn step<T>(
        &mut self,
        wanted: bool,
        work: impl AsyncFnOnce(&ManagerClient) -> Result<T, fetch::Error>,
    ) -> Option<T> {
        let session = self.session.as_mut().filter(|_| wanted && self.start_failure.is_none())?;
        let SetupSession { runtime, manager, signals } = session;
        let done = runtime.block_on(async {
            tokio::select! {
                done = work(manager) => done.map_err(|error| StartFailure::Unready(chain(&error))),
                signal = signals.wait_for_stop_signal() => Err(StartFailure::Stopped(signal)),
            }
        });
        done.map_err(|why| self.start_failure = Some(why)).ok()
    }
}

/// Returns the directory for a trial's code; `dir` is the run's directory.
fn code_dir(pod: &PodSettings, dir: Option<&Path>) -> Option<PathBuf> {
    pod.code_dir.clone().or_else(|| Some(dir?.join("code")))
}

/// Removes unpacked code that the trial has not changed, unless the code was fetched. Files that the trial created
/// stay.
pub(super) fn remove_code(pod: &PodSettings, dir: Option<&Path>) {
    if !pod.fetch_code
        && let Some(archive) = &pod.code_archive
        && let Ok(archive) = fetch::open_archive(archive)
        && let Some(into) = code_dir(pod, dir)
    {
        fetch::remove_unchanged_code(&archive, pod.code_base.as_deref(), &into);
    }
}
