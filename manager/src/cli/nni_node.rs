//! `nni-node`: the command that NNI's client starts instead of Node with NNI's own manager. It listens immediately,
//! receives the experiment over REST, and runs it like `run` or `resume`, until the client ends it.
//!
//! Source of the arguments, the order of requests and the files: nni 3.0, `nni/experiment/launcher.py`.

mod arguments;

use std::fs::OpenOptions;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use self::arguments::{Action, Arguments};
use super::run::{exit_code_of, follow_until_end, settings};
use super::terminal::signals::Signals;
use super::{EXIT_BAD_INPUT, EXIT_DONE, EXIT_INTERRUPTED, ManagerArgs, print_error};
use crate::api;
use crate::api::nni_node::{NniNode, PostedExperiment};
use crate::app::{self, ExperimentStart, NniFiles, RunningManager, Settings};
use crate::config::{self, ExperimentSpec};
use crate::experiment::command::NewLimits;
use crate::util::errors::error_chain;
use crate::util::layout::ExperimentDir;
use crate::view::redact_secrets;

/// The maximum time until the client gets the answer to its experiment; the client gives up after 20 s. If the start
/// fails later, the client sees that in the status.
const START_REPLY_TIMEOUT: Duration = Duration::from_secs(12);

/// The time that a client gets to read the reason for a refusal.
const CLIENT_CLOSE_TIME: Duration = Duration::from_millis(500);

/// The reason why the command could not start.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Arguments(#[from] arguments::Error),
    #[error(
        "cannot listen on port {port} of {host}: is another experiment using it? choose another with --port"
    )]
    Listen { host: &'static str, port: u16, source: io::Error },
    #[error("cannot write the log {}", .path.display())]
    Log { path: PathBuf, source: io::Error },
    #[error("cannot listen for signals")]
    Signals(#[source] io::Error),
}

/// The options of `run`, which only environment variables can set here.
#[derive(Debug, Parser)]
struct Options {
    #[command(flatten)]
    manager_args: ManagerArgs,
}

/// Serves NNI's client and returns the exit code.
pub(super) async fn nni_node(words: &[String]) -> u8 {
    let begun = async {
        let arguments = Arguments::parse(words)?;
        let signals = Signals::new().map_err(Error::Signals)?;
        let listeners = listen(arguments.port).await?;
        if !arguments.foreground {
            redirect_output(&arguments)?;
        }
        Ok::<_, Error>((arguments, signals, listeners))
    };
    let (arguments, mut signals, listeners) = match begun.await {
        Ok(begun) => begun,
        Err(error) => {
            print_error(&error);
            return EXIT_BAD_INPUT;
        }
    };
    let stop = CancellationToken::new();
    let (node, posted) = NniNode::new(arguments.url_prefix.as_deref(), stop.clone());
    let closed = CancellationToken::new();
    let mut servers = JoinSet::new();
    for listener in listeners {
        let closed = closed.clone().cancelled_owned();
        servers.spawn(api::serve(listener, node.router(), closed));
    }
    let session = NniSession { arguments, node, stop };
    let code = Box::pin(session.run(posted, &mut signals)).await;
    closed.cancel();
    // A server that failed has already logged its error.
    while servers.join_next().await.is_some() {}
    code
}

/// Listens on the loopback addresses that the name `localhost` may resolve to.
async fn listen(port: u16) -> Result<Vec<TcpListener>, Error> {
    let mut listeners = Vec::new();
    for host in ["127.0.0.1", "::1"] {
        match TcpListener::bind((host, port)).await {
            Ok(listener) => listeners.push(listener),
            // Ignored: the machine may have no IPv6.
            Err(source) if host == "::1" && source.kind() != io::ErrorKind::AddrInUse => {}
            Err(source) => return Err(Error::Listen { host, port, source }),
        }
    }
    Ok(listeners)
}

/// Redirects standard output and standard error to the log, because the terminal belongs to the client.
fn redirect_output(arguments: &Arguments) -> Result<(), Error> {
    let path = arguments.dir().path().join("log").join("nnimanager.log");
    let fault = |source| Error::Log { path: path.clone(), source };
    std::fs::create_dir_all(path.parent().unwrap_or(&path)).map_err(fault)?;
    let log = OpenOptions::new().create(true).append(true).open(&path).map_err(fault)?;
    rustix::stdio::dup2_stdout(&log).map_err(|error| fault(error.into()))?;
    rustix::stdio::dup2_stderr(&log).map_err(|error| fault(error.into()))
}

/// One start by NNI's client.
struct NniSession {
    arguments: Arguments,
    node: NniNode,
    /// Cancelled when the client ends an experiment that no manager runs.
    stop: CancellationToken,
}

/// The reply to the client's `POST /experiment`.
struct Reply(oneshot::Sender<Result<Value, String>>);

impl Reply {
    fn refuse(self, why: String) {
        // Ignored: the client may have exited.
        drop(self.0.send(Err(why)));
    }
}

impl NniSession {
    /// Receives the experiment and runs it until its end.
    async fn run(&self, mut posted: mpsc::Receiver<PostedExperiment>, signals: &mut Signals) -> u8 {
        let PostedExperiment { configuration, reply } = tokio::select! {
            Some(posted) = posted.recv() => posted,
            () = self.stop.cancelled() => return EXIT_DONE,
            _ = signals.next() => return EXIT_INTERRUPTED,
        };
        let reply = Reply(reply);
        match self.prepare(configuration) {
            Err(why) => {
                self.node.fail(why.clone());
                reply.refuse(why);
                // The client ends this process after reading the answer.
                sleep(CLIENT_CLOSE_TIME).await;
                EXIT_BAD_INPUT
            }
            Ok((Some(start), settings, files)) => {
                let run = Box::pin(self.run_posted(start, settings, &files, reply, signals));
                let code = run.await;
                files.close().await;
                code
            }
            Ok((None, _, files)) => {
                let code = self.show_stored(&files, reply, signals).await;
                files.close().await;
                code
            }
        }
    }

    /// Checks the posted experiment. Returns no [`ExperimentStart`] if the experiment is only shown.
    fn prepare(
        &self,
        configuration: Value,
    ) -> Result<(Option<ExperimentStart>, Settings, NniFiles), String> {
        let Arguments { id, data_dir, port, local, .. } = &self.arguments;
        let words =
            ["trial-manager".into(), "--data-dir".into(), data_dir.clone().into_os_string()];
        let options = Options::try_parse_from(words).map_err(|error| error.to_string())?;
        let mut settings = settings(options.manager_args);
        settings.loopback_port = Some(*port);
        // As in NNI, wider limits continue an experiment that is done.
        settings.stays_open = true;
        // By NNI's convention, the manager uses the next port for trials on other machines, and only for those.
        settings.port = if *local { 0 } else { port.checked_add(1).unwrap_or(0) };
        let (start, posted) = match self.arguments.action {
            Action::View => (None, None),
            Action::Resume => {
                (Some(ExperimentStart::Resume(id.to_string(), NewLimits::default())), None)
            }
            Action::Create => {
                let spec = self.specification(configuration.clone())?;
                if !spec.training_service.section().has_remote_trials() {
                    settings.port = 0;
                }
                // NNI's files contain what its client sent.
                let posted =
                    if spec.has_secrets() { redact_secrets(&configuration) } else { configuration };
                (Some(ExperimentStart::NewWithForeignId(id.clone(), Box::new(spec))), Some(posted))
            }
        };
        Ok((start, settings, NniFiles::new(&home_dir(), data_dir, id, posted)))
    }

    /// Starts the experiment's manager and runs it until its end.
    async fn run_posted(
        &self,
        start: ExperimentStart,
        settings: Settings,
        files: &NniFiles,
        reply: Reply,
        signals: &mut Signals,
    ) -> u8 {
        let mut reply = Some(reply);
        let mut starting = Box::pin(app::start(settings, start));
        let started = tokio::select! {
            started = &mut starting => started,
            () = sleep(START_REPLY_TIMEOUT) => {
                self.accept(reply.take());
                starting.await
            }
        };
        match started {
            Ok(running) => {
                self.node.run(running.loopback_router.clone());
                self.accept(reply);
                self.follow_running(running, files, signals).await
            }
            Err(error) => {
                files.set_status("ERROR").await;
                self.fail(&error, reply, signals).await
            }
        }
    }

    /// Shows an experiment without a manager until the client ends it.
    async fn show_stored(&self, files: &NniFiles, reply: Reply, signals: &mut Signals) -> u8 {
        const STATUS: &str = "VIEWED";
        let Arguments { id, port, .. } = &self.arguments;
        let dir = self.arguments.dir();
        match app::router_on_machine(id, &dir, *port, self.stop.clone()).await {
            Ok(manager) => self.node.show(manager, STATUS),
            Err(error) => return self.fail(&error, Some(reply), signals).await,
        }
        files.set_status(STATUS).await;
        self.accept(Some(reply));
        self.wait_for_stop(signals).await
    }

    /// Reports to the client why there is no experiment, until the client ends this process.
    async fn fail(&self, error: &app::Error, reply: Option<Reply>, signals: &mut Signals) -> u8 {
        print_error(error);
        self.node.fail(error_chain(error));
        if let Some(reply) = reply {
            reply.refuse(error_chain(error));
        }
        self.wait_for_stop(signals).await;
        exit_code_of(error)
    }

    fn accept(&self, reply: Option<Reply>) {
        let answer = match self.arguments.action {
            Action::Create => json!({"experiment_id": self.arguments.id}),
            Action::Resume | Action::View => Value::Null,
        };
        if let Some(Reply(reply)) = reply {
            // Ignored: the client may have exited.
            drop(reply.send(Ok(answer)));
        }
    }

    fn specification(&self, mut configuration: Value) -> Result<ExperimentSpec, String> {
        if let (Some(members), Some(python)) =
            (configuration.as_object_mut(), &self.arguments.python_interpreter)
        {
            members.entry("pythonInterpreter").or_insert_with(|| python.as_str().into());
        }
        config::from_client(configuration).map_err(|error| error_chain(&error))
    }

    /// Logs the progress of the running experiment and updates NNI's files, until the client ends it.
    async fn follow_running(
        &self,
        mut running: RunningManager,
        files: &NniFiles,
        signals: &mut Signals,
    ) -> u8 {
        running.url = format!("http://localhost:{}", self.arguments.port);
        let (following, store) = (files.clone(), running.store.clone());
        let following = tokio::spawn(async move { following.follow(&store).await });
        let (output, on_term) = (super::selection::Format::Table, super::OnTerm::Stop);
        let code = follow_until_end(running, signals, output, on_term, true).await;
        following.abort();
        drop(following.await);
        code
    }

    /// Waits until the client ends an experiment that no manager runs.
    async fn wait_for_stop(&self, signals: &mut Signals) -> u8 {
        tokio::select! {
            () = self.stop.cancelled() => EXIT_DONE,
            _ = signals.next() => EXIT_INTERRUPTED,
        }
    }
}

impl Arguments {
    fn dir(&self) -> ExperimentDir {
        ExperimentDir::new(&self.data_dir, &self.id)
    }
}

/// Returns the home directory, like Python's `os.path.expanduser("~")` with `HOME` set.
fn home_dir() -> PathBuf {
    std::env::var_os("HOME").map_or_else(|| PathBuf::from("/"), PathBuf::from)
}
