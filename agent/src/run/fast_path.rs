//! A trial that is over before there was anything to observe: neither a thread nor a spool is made for it.

use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitStatus;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::sync::oneshot;

use crate::trial::reap::Reaper;
use crate::trial::signals::BlockedSignals;

/// The time that a silent trial is only waited for, and how long it has the processor to itself.
const LONGEST_FAST_RUN: Duration = Duration::from_millis(20);
const PROCESSOR_LEFT_ALONE: Duration = Duration::from_millis(1);

/// Waits for the end of a short trial. Returns `None`, and the trial must be supervised, if it prints something, a
/// signal comes, or [`LONGEST_FAST_RUN`] is over. The work of `meanwhile` begins after [`PROCESSOR_LEFT_ALONE`].
/// Otherwise the trial has exited by itself, has printed nothing, and no process is left of it. `nothing_else` then
/// says that it left nothing to be read either.
pub(super) fn wait(
    signals: &BlockedSignals,
    outputs: &[Option<OwnedFd>; 2],
    exit: &mut oneshot::Receiver<ExitStatus>,
    reaper: &Reaper,
    meanwhile: impl FnOnce(),
    nothing_else: impl FnOnce() -> bool,
) -> Option<ExitStatus> {
    // The agent would not know the end of a stream that it cannot read.
    let mut open: Vec<&OwnedFd> = outputs.iter().map(Option::as_ref).collect::<Option<_>>()?;
    let [at_once, brief] = [PROCESSOR_LEFT_ALONE, LONGEST_FAST_RUN]
        .map(|time| PollTimeout::try_from(time).unwrap_or(PollTimeout::ZERO));
    let mut meanwhile = Some(meanwhile);
    loop {
        let timeout = if meanwhile.is_some() { at_once } else { brief };
        let Some((signalled, printed)) = poll_streams(Some(signals), &mut open, timeout) else {
            meanwhile.take()?();
            continue;
        };
        if printed {
            return None;
        }
        if signalled {
            let left = reaper.sweep();
            let status = exit.try_recv().ok()?;
            let (_, printed) = poll_streams(None, &mut open, PollTimeout::ZERO).unwrap_or_default();
            let alone = !left && open.is_empty();
            if status.code().is_some() && alone && !printed && nothing_else() {
                return Some(status);
            }
            // A later caller waits on the same receiver.
            let (tell, again) = oneshot::channel();
            tell.send(status).ok();
            *exit = again;
            return None;
        }
    }
}

/// Waits for a signal, for something printed, or for the end of a stream, which is taken out of `open`. Whether
/// there was a signal, and something printed; `None`: nothing came.
fn poll_streams(
    signals: Option<&BlockedSignals>,
    open: &mut Vec<&OwnedFd>,
    timeout: PollTimeout,
) -> Option<(bool, bool)> {
    let wanted = signals.map(AsFd::as_fd).into_iter().chain(open.iter().map(|fd| fd.as_fd()));
    let mut fds: Vec<_> = wanted.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
    if poll(&mut fds, timeout).ok()? == 0 {
        return None;
    }
    let seen = |fd: &PollFd<'_>| fd.revents().unwrap_or(PollFlags::POLLIN);
    let readable = |fd: &PollFd<'_>| seen(fd).contains(PollFlags::POLLIN);
    let streams = &fds[usize::from(signals.is_some())..];
    let found = (signals.is_some() && readable(&fds[0]), streams.iter().any(readable));
    let ended: Vec<bool> = streams.iter().map(|fd| !seen(fd).is_empty()).collect();
    let mut ended = ended.into_iter();
    open.retain(|_| !ended.next().unwrap_or(false));
    Some(found)
}
