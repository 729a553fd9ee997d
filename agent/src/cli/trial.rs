//! Options that name a trial.

use std::ffi::OsString;

use trial_protocol::{AttemptId, ExperimentId, TrialJobId};

use super::flags::{flags, os_text, parsed, text};

flags! {
    /// The trial and its ids.
    pub struct TrialArgs {
        /// A shell command instead of CMD, run by `/bin/bash -c`, or by `/bin/sh -c` if there is no bash.
        shell: Option<OsString> = os_text("LINE"),
        /// ID of the experiment [default: `$NNI_EXP_ID`].
        experiment: Option<ExperimentId> = parsed("ID"),
        /// ID of the trial [default: `$NNI_TRIAL_JOB_ID`].
        trial: Option<TrialJobId> = parsed("ID"),
        /// ID of this attempt [default: `$FC_TASK_ATTEMPT_INSTANCE_UID`, else random].
        attempt: Option<AttemptId> = parsed("ID"),
        /// Number of the trial in its experiment, from 0.
        sequence: Option<u64> = parsed("N"),
        /// The platform that NNI's SDK sees [default: `$NNI_PLATFORM`, else local].
        platform: Option<String> = text("NAME"),
    }
}
