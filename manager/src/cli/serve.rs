//! `serve`: shows an experiment without a manager, until a signal.

use std::io::Write as _;

use super::ask::{Error, ExperimentArgs};
use super::signals::Signals;
use super::{BAD_INPUT, DONE, NOTHING_SUCCEEDED, show};
use crate::app;

/// Serves the experiment's pages and returns the exit code.
pub(super) async fn serve(place: &ExperimentArgs, host: &str, port: u16) -> u8 {
    let viewing = async {
        let (id, dir) = place.dir().await?;
        let viewing = app::view(&id, &dir, host, port).await?;
        Ok::<_, Error>((id, viewing))
    };
    let mut signals = match Signals::new() {
        Ok(signals) => signals,
        Err(error) => {
            show(&error);
            return NOTHING_SUCCEEDED;
        }
    };
    match viewing.await {
        Ok((id, viewing)) => {
            // A closed standard error is no reason to end.
            drop(writeln!(std::io::stderr().lock(), "experiment {id} on {}", viewing.url));
            signals.next().await;
            viewing.close().await;
            DONE
        }
        Err(error) => {
            show(&error);
            if error.is_usage() { BAD_INPUT } else { NOTHING_SUCCEEDED }
        }
    }
}
