//! `serve`: serves the pages of all experiments of a data directory, or of one experiment without a manager, until a
//! signal.

use std::io::Write as _;

use super::selection::{Error, ExperimentArgs};
use super::terminal::signals::Signals;
use super::{EXIT_BAD_INPUT, EXIT_DONE, EXIT_FAILED, data_dir, print_error};
use crate::app;
use crate::util::layout::HomeDir;

/// Serves the pages of one experiment, or the list of all experiments, and returns the exit code.
pub(super) async fn serve(experiment_args: &ExperimentArgs, host: &str, port: u16) -> u8 {
    let viewing = async {
        if experiment_args.experiment.is_none() {
            let data_dir = data_dir(experiment_args.data_dir.clone());
            let viewing = app::serve_home(&data_dir, host, port).await?;
            let token = HomeDir::new(&data_dir).token();
            let lines = format!(
                "all experiments of {} on {}\nchanges require the token in {}",
                data_dir.display(),
                viewing.url,
                token.display()
            );
            return Ok::<_, Error>((lines, viewing));
        }
        let (id, dir) = experiment_args.dir().await?;
        let running = app::manager_of(&id, &dir).await;
        let viewing = app::serve_stored(&id, &dir, host, port).await?;
        let mut lines = format!("experiment {id} on {}", viewing.url);
        if let Some((_, url)) = running {
            lines.push_str("\nits manager serves it on ");
            lines.push_str(&url);
            lines.push_str("; the pages here are read-only");
        }
        Ok((lines, viewing))
    };
    let mut signals = match Signals::new() {
        Ok(signals) => signals,
        Err(error) => {
            print_error(&error);
            return EXIT_FAILED;
        }
    };
    match viewing.await {
        Ok((lines, viewing)) => {
            // Ignored: standard error may be closed.
            drop(writeln!(std::io::stderr().lock(), "{lines}"));
            signals.next().await;
            viewing.close().await;
            EXIT_DONE
        }
        Err(error) => {
            print_error(&error);
            if error.is_usage() { EXIT_BAD_INPUT } else { EXIT_FAILED }
        }
    }
}
