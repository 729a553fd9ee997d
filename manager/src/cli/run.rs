//! `run` and `resume`: start the experiment, show its progress, and report the results at its end.

use std::io::Write as _;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Duration;

use super::report::{self, Summary};
use super::selection::Format;
use super::terminal::output::stderr_link;
use super::terminal::progress::Progress;
use super::terminal::signals::{EndSignal, Signals};
use super::{
    EXIT_BAD_INPUT, EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED, EXIT_MANAGER_FAILED,
    EXIT_TRIALS_LEFT, ManagerArgs, OnTerm, data_dir, print_error,
};
use crate::app::{
    self, ExperimentStart, FinishedExperiment, ReachedLimit, RunningManager, Settings,
    UserCertificate,
};
use crate::experiment::notice::Notice;
use crate::experiment::state::ExperimentState;
use crate::util::layout::HomeDir;
use crate::view::TrialCache;

/// The time between two updates of the elapsed time.
const REDRAW_INTERVAL: Duration = Duration::from_secs(1);

/// Returns the settings for the options.
pub(super) fn settings(manager_args: ManagerArgs) -> Settings {
    Settings {
        data_dir: data_dir(manager_args.data_dir),
        host: manager_args.host,
        port: manager_args.port.port,
        agent: manager_args.agent,
        legacy_port: manager_args.legacy_port,
        lease: Duration::from_secs(manager_args.lease),
        certificate: user_certificate(
            manager_args.tls_cert,
            manager_args.tls_key,
            manager_args.tls_ca,
        ),
        advertise: manager_args.advertise,
        loopback_port: None,
        url_prefix: manager_args.url_prefix,
        stays_open: false,
    }
}

/// Runs or resumes an experiment, serves it afterwards if `keep_serving` is set, and returns the exit code.
pub(super) async fn run(
    manager_args: ManagerArgs,
    start: ExperimentStart,
    keep_serving: bool,
) -> u8 {
    let (output, on_term) = (manager_args.output, manager_args.on_term);
    let settings = Settings { stays_open: keep_serving, ..settings(manager_args) };
    let home = settings.data_dir.clone();
    // Before the start, so that no signal is missed.
    let mut signals = match Signals::new() {
        Ok(signals) => signals,
        Err(error) => {
            print_error(&error);
            return EXIT_BAD_INPUT;
        }
    };
    match app::start(settings, start).await {
        Ok(running) => {
            if let Some(url) = app::home_of(&HomeDir::new(&home)).await {
                // Ignored: standard error may be closed.
                let page = stderr_link(&format!("{url}/e/{}/", running.id));
                let line = format!("in the list of all experiments: {page}");
                drop(writeln!(std::io::stderr().lock(), "{line}"));
            }
            follow_until_end(running, &mut signals, output, on_term, keep_serving).await
        }
        Err(app::Error::AlreadyDone { finished }) => show_finished(*finished, output).await,
        Err(error) => {
            print_error(&error);
            exit_code_of(&error)
        }
    }
}

/// Prints the results of an experiment that is already done, and returns the exit code.
async fn show_finished(finished: FinishedExperiment, output: Format) -> u8 {
    if let Err(error) = app::send_remaining(&finished).await {
        print_error(&error);
    }
    let (id, reached) = (finished.id.clone(), finished.reached.clone());
    let summary =
        Summary::read(&finished.store, finished.id, ExperimentState::Done, &finished.spec);
    match summary.await {
        Ok(summary) => {
            if let Some(remedy) = ReachedLimit::remedy(&id, &reached) {
                let why = ReachedLimit::describe(&reached);
                // Ignored: standard error may be closed.
                drop(writeln!(
                    std::io::stderr().lock(),
                    "experiment {id} is done: {why}; {remedy}"
                ));
            }
            if summary.has_failed_trials() {
                let command = format!("trial-manager trial rerun --failed --experiment {id}");
                let note = format!("experiment {id} is done; `{command}` reruns its failed trials");
                // Ignored: standard error may be closed.
                drop(writeln!(std::io::stderr().lock(), "{note}"));
            }
            print_summary(&summary, output)
        }
        Err(error) => {
            print_error(&error);
            EXIT_MANAGER_FAILED
        }
    }
}

/// Shows an experiment until it ends, serves it afterwards if `keep_serving` is set, and returns the exit code.
pub(super) async fn follow_until_end(
    mut running: RunningManager,
    signals: &mut Signals,
    output: Format,
    on_term: OnTerm,
    keep_serving: bool,
) -> u8 {
    let mut progress = Progress::new(&running);
    let trials = TrialCache::of_experiment(running.store.queries().clone(), &running.spec);
    // A store that cannot be read ends the search, with a message of its own.
    if let Ok(snapshot) = trials.refresh().await {
        progress.restore(&snapshot);
    }
    let mut code_when_done = None;
    loop {
        match follow(&mut running, &mut progress, signals, on_term).await {
            ControlFlow::Break(code) => return code,
            ControlFlow::Continue(FollowEnd::Over) => break,
            ControlFlow::Continue(FollowEnd::Done) => {
                if keep_serving && !running.handle.is_end_requested() {
                    code_when_done = Some(report_done(&running, &progress, output).await);
                }
            }
        }
    }
    progress.close();
    finish(running, &progress, signals, output, keep_serving, code_when_done).await
}

/// Prints the results of a search that is done and may continue, and returns the exit code.
async fn report_done(running: &RunningManager, progress: &Progress, output: Format) -> u8 {
    let (id, done) = (running.id.clone(), ExperimentState::Done);
    let summary = Summary::read(&running.store, id, done, &running.spec).await;
    progress.suspend(|| {
        let code = match summary {
            Ok(summary) => print_summary(&summary, output),
            Err(error) => {
                print_error(&error);
                EXIT_MANAGER_FAILED
            }
        };
        report_serving(&running.url);
        code
    })
}

fn report_serving(url: &str) {
    // Ignored: standard error may be closed.
    let line = format!("still serving on {}, until interrupted or stopped", stderr_link(url));
    drop(writeln!(std::io::stderr().lock(), "{line}"));
}

/// Ends an experiment's manager, and returns the exit code. `code_when_done` is the code that belongs to the results
/// that were printed when the search was done.
async fn finish(
    running: RunningManager,
    progress: &Progress,
    signals: &mut Signals,
    output: Format,
    keep_serving: bool,
    code_when_done: Option<u8>,
) -> u8 {
    let (id, spec) = (running.id.clone(), running.spec.clone());
    let (handle, url) = (running.handle.clone(), running.url.clone());
    let socket = running.dir.manager_socket();
    let mut ended = match running.end().await {
        Ok(ended) => ended,
        Err(error) => {
            print_error(&error);
            return exit_code_of(&error);
        }
    };
    if ended.state.is_active() {
        ended.stop_serving().await;
        ended.store.close().await;
        progress.report_detached(&id);
        return EXIT_TRIALS_LEFT;
    }
    // A signal, `experiment stop` or NNI's client requested the stop.
    let wanted = handle.is_stop_requested();
    let keep_serving = keep_serving && !handle.is_end_requested();
    if !keep_serving {
        ended.stop_serving().await;
    }
    let printed = code_when_done.filter(|_| ended.state == ExperimentState::Done);
    let code = match printed {
        Some(code) => code,
        None => match Summary::read(&ended.store, id, ended.state, &spec).await {
            Ok(summary) => {
                let summary = if wanted { summary } else { summary.with_unrequested_stop() };
                print_summary(&summary, output)
            }
            Err(error) => {
                print_error(&error);
                EXIT_MANAGER_FAILED
            }
        },
    };
    if keep_serving {
        report_serving(&url);
        tokio::select! {
            _ = signals.next() => {}
            // NNI's client stops the experiment after reading the results.
            () = handle.wait_for_stop() => {}
        }
        ended.stop_serving().await;
    }
    // No agent runs that needs the socket, and NNI's `nnictl experiment save` cannot copy it. The next manager creates
    // its own as soon as the store is closed.
    drop(std::fs::remove_file(socket));
    ended.store.close().await;
    code
}

/// The reason for which [`follow`] returns.
enum FollowEnd {
    /// The search is done. Its task may continue.
    Done,
    /// The task has ended.
    Over,
}

/// Shows an experiment's notices until the search is done or its task ends. At the second signal, breaks with the exit
/// code.
async fn follow(
    running: &mut RunningManager,
    progress: &mut Progress,
    signals: &mut Signals,
    on_term: OnTerm,
) -> ControlFlow<u8, FollowEnd> {
    let mut code_of_first = None;
    let mut redraw = tokio::time::interval(REDRAW_INTERVAL);
    loop {
        tokio::select! {
            notice = running.notices.recv() => match notice {
                Some(notice) => {
                    let is_done = matches!(notice, Notice::State(ExperimentState::Done));
                    progress.show(notice);
                    if is_done {
                        return ControlFlow::Continue(FollowEnd::Done);
                    }
                }
                None => return ControlFlow::Continue(FollowEnd::Over),
            },
            _ = redraw.tick(), if progress.is_live() => progress.draw(),
            signal = signals.next() => {
                if let Some(code) = code_of_first {
                    // The agents were already asked to stop; `resume` determines their results.
                    progress.report_exit(&running.id);
                    return ControlFlow::Break(code);
                }
                if signal == EndSignal::Terminate && on_term == OnTerm::Leave {
                    code_of_first = Some(EXIT_TRIALS_LEFT);
                    running.handle.leave();
                } else {
                    code_of_first = Some(EXIT_INTERRUPTED);
                    progress.report_stop();
                    running.handle.stop();
                }
            }
        }
    }
}

/// Returns the user's own certificate, if any. The command line requires both files or neither.
fn user_certificate(
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
    ca: Option<PathBuf>,
) -> Option<UserCertificate> {
    Some(UserCertificate { certificate: certificate?, key: key?, ca })
}

/// Prints the results and returns the exit code.
fn print_summary(summary: &Summary, output: Format) -> u8 {
    if output != Format::Table
        && let Some(hint) = summary.missing_result_hint()
    {
        // Ignored: standard error may be closed.
        drop(writeln!(std::io::stderr().lock(), "{hint}"));
    }
    match report::print_results(summary, output) {
        Ok(()) if summary.is_interrupted() => EXIT_INTERRUPTED,
        Ok(()) if summary.is_held() || !summary.has_result() => EXIT_FAILED,
        Ok(()) => EXIT_DONE,
        Err(error) => {
            print_error(&error);
            EXIT_MANAGER_FAILED
        }
    }
}

pub(super) fn exit_code_of(error: &app::Error) -> u8 {
    if matches!(error, app::Error::NotStopped { .. }) {
        EXIT_INTERRUPTED
    } else if error.is_usage() {
        EXIT_BAD_INPUT
    } else {
        EXIT_MANAGER_FAILED
    }
}
