//! Options for the end of a trial, and for the contact with its manager.

use std::time::Duration;

use super::flags::{flags, switch, value};
use super::values::{duration, heartbeat};

flags! {
    /// The times that a trial and its reports have.
    pub struct SupervisionArgs {
        /// Time for the trial to end after a stop request, before it is killed.
        grace: Duration = value("TIME", duration).default("20s"),
        /// Time that processes left behind by the trial may continue.
        drain: Duration = value("TIME", duration).default("2s"),
        /// Time for delivery after the trial's end. Remaining reports stay in the spool.
        flush: Duration = value("TIME", duration).default("5s"),
        /// Maximum time between two messages to the manager.
        heartbeat: Duration = value("TIME", heartbeat).default("5s"),
        /// Let the trial continue if trialkeeper itself is killed.
        detach_on_death: bool = switch(),
    }
}
