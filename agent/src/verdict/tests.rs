use proptest::prelude::*;
use trial_protocol::StopReason;

use super::evidence::EVIDENCE_TAIL_BYTES;
use super::*;
use crate::trial::tree::Process;

const CUDA: &str = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n";

fn exited(exit: TrialExit) -> Observations {
    Observations { end: TrialEnd::Exited { exit, wait_status: None }, ..Observations::default() }
}

fn exited_with_code(code: u8) -> Observations {
    exited(TrialExit::Code(code))
}

fn ended_by_signal(signal: u8) -> Observations {
    exited(TrialExit::Signal(signal))
}

fn with_stderr(observed: Observations, stderr: &str) -> Observations {
    Observations { stderr_tail: stderr.as_bytes().to_vec(), ..observed }
}

fn with_oom_kills(observed: Observations, before: u64, after: u64) -> Observations {
    let counted = |kills| Some(CgroupSample { oom_kills: Some(kills), ..CgroupSample::default() });
    Observations {
        is_alone_in_cgroup: true,
        cgroup_before: counted(before),
        cgroup_after: counted(after),
        ..observed
    }
}

fn with_memory_peak(observed: Observations, peak: u64, limit: u64) -> Observations {
    let cgroup = CgroupSample {
        memory_peak_bytes: Some(peak),
        memory_limit_bytes: Some(limit),
        ..CgroupSample::default()
    };
    Observations { cgroup_after: Some(cgroup), ..observed }
}

/// The given memory is held, of a limit that page cache reached before.
fn with_memory_held(held: u64, limit: u64) -> Observations {
    Observations {
        working_set_bytes: Some(held),
        ..with_memory_peak(Observations::default(), limit, limit)
    }
}

/// SIGTERM from this process.
fn with_signal_sender(pid: u32, name: Option<&str>, kernel: bool) -> Observations {
    let sender = SignalSender { pid, uid: 1000, name: name.map(str::to_owned), kernel };
    let observed = with_stop(ended_by_signal(15), StopBy::Signal(15), Some(15));
    Observations { sender: Some(sender), ..observed }
}

fn with_stop(observed: Observations, by: StopBy, signal: Option<u8>) -> Observations {
    Observations { stop: Some(Stop { by, signal }), ..observed }
}

/// Processes that got SIGTERM, those that got SIGKILL, and those that are still running.
fn with_leftovers(
    observed: Observations,
    asked: &[u32],
    killed: &[u32],
    there: &[u32],
) -> Observations {
    let tree = |pids: &[u32]| {
        let process = |pid: &u32| {
            let name = "sleep".to_owned();
            Process { pid: *pid, parent: 1, group: *pid, name, zombie: false }
        };
        pids.iter().map(process).collect::<Vec<_>>()
    };
    let mut leftovers = Leftovers::default();
    leftovers.add(&tree(asked));
    leftovers.add_killed(&tree(killed));
    leftovers.record_survivors(&tree(there));
    Observations { leftovers, ..observed }
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn the_cause_follows_the_table() {
    use Confidence::{Certain, Likely, Possible};
    let asked = StopBy::Manager;
    let lost = |observed| Observations { gpus_lost: vec!["GPU-1".to_owned()], ..observed };
    let shared = |observed| Observations { is_alone_in_cgroup: false, ..observed };
    let program = || "train".to_owned();
    let start = |end| Observations { end, ..Observations::default() };
    #[rustfmt::skip]
    let table = vec![
        // case                          known                                                                            cause                 class             confidence
        ("success",                      exited_with_code(0),                                                             Cause::Succeeded,     Class::None,      Certain),
        ("success with noise",           with_stderr(exited_with_code(0), CUDA),                                          Cause::Succeeded,     Class::None,      Certain),
        ("success with a killed child",  with_oom_kills(exited_with_code(0), 0, 1),                                       Cause::Succeeded,     Class::None,      Certain),
        ("an exit code",                 with_stderr(exited_with_code(1), "ValueError: x\n"),                             Cause::Exit,          Class::UserError, Certain),
        ("exit code 255",                exited_with_code(255),                                                           Cause::Exit,          Class::UserError, Certain),
        ("a crash",                      ended_by_signal(11),                                                             Cause::Signal,        Class::UserError, Certain),
        ("a crash behind a shell",       exited_with_code(139),                                                           Cause::Signal,        Class::UserError, Likely),
        ("a kill from outside",          ended_by_signal(9),                                                              Cause::Signal,        Class::Transient, Certain),
        ("TERM from outside",            ended_by_signal(15),                                                             Cause::Signal,        Class::Transient, Certain),
        ("TERM behind a shell",          exited_with_code(143),                                                           Cause::Signal,        Class::Transient, Likely),
        ("a resource limit",             ended_by_signal(24),                                                             Cause::Signal,        Class::Permanent, Certain),
        ("a real-time signal",           ended_by_signal(40),                                                             Cause::Signal,        Class::UserError, Certain),

        ("killed by the kernel",         with_oom_kills(ended_by_signal(9), 3, 4),                                        Cause::OomKernel,     Class::Permanent, Certain),
        ("the same behind a shell",      with_oom_kills(exited_with_code(137), 0, 1),                                     Cause::OomKernel,     Class::Permanent, Certain),
        ("a child killed",               with_oom_kills(exited_with_code(1), 0, 2),                                       Cause::OomKernel,     Class::Permanent, Likely),
        ("the kernel outweighs output",  with_oom_kills(with_stderr(exited_with_code(1), CUDA), 0, 1),                    Cause::OomKernel,     Class::Permanent, Likely),
        ("another trial's kill",         shared(with_oom_kills(exited_with_code(1), 0, 1)),                               Cause::Exit,          Class::UserError, Certain),
        ("its own kill beside others",   shared(with_oom_kills(ended_by_signal(9), 0, 1)),                                Cause::OomKernel,     Class::Permanent, Certain),
        ("its own child's kill",         shared(with_oom_kills(with_stderr(exited_with_code(1), "x is killed by signal: Killed.\n"), 0, 1)), Cause::OomKernel, Class::Permanent, Likely),
        ("the counter says no",          with_oom_kills(ended_by_signal(9), 4, 4),                                        Cause::Signal,        Class::Transient, Certain),
        ("killed at the limit",          with_memory_peak(ended_by_signal(9), 950, 1_000),                                Cause::OomKernel,     Class::Permanent, Possible),
        ("killed below the limit",       with_memory_peak(ended_by_signal(9), 949, 1_000),                                Cause::Signal,        Class::Transient, Certain),
        ("a worker's last output",       with_stderr(exited_with_code(1), "(pid 7) is killed by signal: Killed.\n"),      Cause::OomKernel,     Class::Permanent, Possible),

        ("the GPU's memory",             with_stderr(exited_with_code(1), CUDA),                                          Cause::OomCuda,       Class::UserError, Likely),
        ("the same on stdout",           Observations { stdout_tail: CUDA.into(), ..exited_with_code(1) },                Cause::OomCuda,       Class::UserError, Likely),
        ("a GPU vanished",               lost(exited_with_code(1)),                                                       Cause::GpuLost,       Class::Transient, Likely),
        ("and the trial succeeded",      lost(exited_with_code(0)),                                                       Cause::Succeeded,     Class::None,      Certain),
        ("a failed GPU, by its message", with_stderr(exited_with_code(1), "uncorrectable ECC error\n"),                   Cause::GpuLost,       Class::Transient, Possible),
        ("a full disk",                  with_stderr(exited_with_code(1), "OSError: [Errno 28] No space left\n"),         Cause::DiskFull,      Class::Transient, Likely),
        ("a missing file is an exit",    with_stderr(exited_with_code(1), "x: No such file or directory\n"),              Cause::Exit,          Class::UserError, Certain),

        ("no such program",              start(TrialEnd::NotFound { program: program() }),                                Cause::NotFound,      Class::UserError, Certain),
        ("no such program, by a shell",  with_stderr(exited_with_code(127), "sh: 1: train: not found\n"),                 Cause::NotFound,      Class::UserError, Likely),
        ("127 without output",           exited_with_code(127),                                                           Cause::Exit,          Class::UserError, Certain),
        ("not executable",               start(TrialEnd::NotExecutable { program: program(), why: "EACCES".to_owned() }), Cause::NotExecutable, Class::UserError, Certain),
        ("not executable, by a shell",   with_stderr(exited_with_code(126), "sh: 1: ./x: Permission denied\n"),           Cause::NotExecutable, Class::UserError, Likely),
        ("TERM before the start",        start(TrialEnd::StoppedBefore { signal: 15 }),                                   Cause::Stopped,       Class::Transient, Certain),
        ("the agent's own fault",        start(TrialEnd::AgentFailed { why: "fork failed".to_owned() }),                  Cause::KeeperError,   Class::Transient, Certain),

        ("a person",                     with_stop(ended_by_signal(15), asked(StopReason::User), Some(15)),               Cause::Stopped,       Class::None,      Certain),
        ("an assessor",                  with_stop(ended_by_signal(15), asked(StopReason::EarlyStop), Some(15)),          Cause::EarlyStopped,  Class::None,      Certain),
        ("a deadline",                   with_stop(ended_by_signal(9), asked(StopReason::Deadline), Some(9)),             Cause::Deadline,      Class::None,      Certain),
        ("the experiment's limit",       with_stop(ended_by_signal(15), asked(StopReason::Budget), Some(15)),             Cause::Stopped,       Class::None,      Certain),
        ("the manager's end",            with_stop(ended_by_signal(15), asked(StopReason::ManagerShutdown), Some(15)),    Cause::Stopped,       Class::Transient, Certain),
        ("preemption",                   with_stop(exited_with_code(143), asked(StopReason::Preempted), Some(15)),        Cause::Preempted,     Class::Transient, Certain),
        ("preemption, exit 0",           with_stop(exited_with_code(0), asked(StopReason::Preempted), Some(15)),          Cause::Preempted,     Class::Transient, Likely),
        ("a reason from the future",     with_stop(ended_by_signal(15), asked(StopReason::Other), Some(15)),              Cause::Stopped,       Class::None,      Certain),
        ("Ctrl-C",                       with_stop(ended_by_signal(2), StopBy::Signal(2), Some(2)),                       Cause::Stopped,       Class::None,      Certain),
        ("TERM to the agent",            with_stop(ended_by_signal(15), StopBy::Signal(15), Some(15)),                    Cause::Stopped,       Class::Transient, Certain),
        ("a stall",                      with_stop(ended_by_signal(9), StopBy::Stalled(60_000), Some(9)),                 Cause::Stalled,       Class::Transient, Certain),
        ("idle GPUs",                    with_stop(ended_by_signal(15), StopBy::GpuIdle(60_000), Some(15)),               Cause::Stalled,       Class::UserError, Certain),
        ("a GPU that hangs",             with_stop(ended_by_signal(9), StopBy::GpuHang(60_000), Some(9)),                 Cause::Stalled,       Class::Transient, Certain),
        ("a stop outweighs counters",    with_oom_kills(with_stop(ended_by_signal(9), asked(StopReason::User), Some(9)), 0, 1), Cause::Stopped, Class::None,      Certain),
        ("a stop that came too late",    with_stop(exited_with_code(0), asked(StopReason::User), None),                   Cause::Succeeded,     Class::None,      Certain),
        ("too late for a failure",       with_stop(exited_with_code(1), asked(StopReason::User), None),                   Cause::Exit,          Class::UserError, Certain),

        ("provisional",                  Observations::default(),                                                         Cause::Signal,        Class::Transient, Possible),
        ("provisional near the limit",   with_memory_held(95, 100),                                                       Cause::OomKernel,     Class::Permanent, Possible),
        ("provisional, full of cache",   with_memory_held(50, 100),                                                       Cause::Signal,        Class::Transient, Possible),
        ("provisional after a kill",     with_oom_kills(Observations::default(), 0, 1),                                   Cause::OomKernel,     Class::Permanent, Likely),
    ];
    for (case, observed, cause, class, confidence) in table {
        let verdict = conclude(&observed);
        assert_eq!(
            (verdict.cause, verdict.class, verdict.confidence),
            (cause, class, confidence),
            "{case}: {}",
            verdict.message
        );
    }
}

#[test]
fn the_message_gives_the_cause_and_the_remedy() {
    let mib = 1024 * 1024;
    #[rustfmt::skip]
    let table = vec![
        (exited_with_code(0), "The trial succeeded."),
        (with_stderr(exited_with_code(3), "\u{1b}[31mboom\u{1b}[0m\n"), "The trial exited with code 3; its last output was \"boom\"."),
        (with_stderr(exited_with_code(3), "Traceback ...\nKeyError: 'x'\n"), "The trial exited with code 3; its last output was \"KeyError: 'x'\"."),
        (with_stderr(exited_with_code(1), "Traceback (most recent call last):\nOSError: x\nof y\n"), "The trial exited with code 1; its last error was \"OSError: x\"."),
        (with_oom_kills(exited_with_code(0), 0, 2), "The trial succeeded, although the kernel killed 2 of its processes when memory ran out."),
        (with_memory_peak(ended_by_signal(9), 510 * mib, 512 * mib), "The trial was killed when its memory was nearly used up, probably by the kernel (its container used up to 510 of 512 MiB): give it more memory, or use a smaller batch, data set or number of workers."),
        (ended_by_signal(11), "The trial was ended by SIGSEGV, which trialkeeper did not send: a native library crashed, or was built for another processor."),
        (exited_with_code(139), "The trial exited with code 139, which stands for SIGSEGV: a native library crashed, or was built for another processor."),
        (with_stop(ended_by_signal(9), StopBy::Manager(StopReason::User), Some(9)), "A user stopped the trial; it had to be killed (SIGKILL)."),
        (with_stop(ended_by_signal(15), StopBy::GpuIdle(60_000), Some(15)), "The trial's GPUs had no work for 60 s and it was stopped (--stop-on-gpu-idle): it may have waited for its data, or need no GPU; SIGTERM ended it."),
        (with_stop(ended_by_signal(9), StopBy::GpuHang(60_000), Some(9)), "A GPU of the trial was fully used at low power for 60 s without output from the trial, and it was stopped (--stop-on-gpu-hang): a collective may have waited for a process that was gone; it had to be killed (SIGKILL)."),
        (with_stop(exited_with_code(0), StopBy::Signal(15), Some(15)), "SIGTERM reached trialkeeper from outside; it then exited with code 0."),
        (with_signal_sender(0, None, false), "SIGTERM reached trialkeeper from outside its container; SIGTERM ended it."),
        (with_signal_sender(7, Some("slurmstepd"), false), "SIGTERM reached trialkeeper from process 7 (slurmstepd) of user 1000; SIGTERM ended it."),
        (with_signal_sender(7, None, false), "SIGTERM reached trialkeeper from process 7 of user 1000; SIGTERM ended it."),
        (with_signal_sender(0, None, true), "SIGTERM reached trialkeeper from the terminal; SIGTERM ended it."),
        (with_leftovers(exited_with_code(0), &[9], &[], &[]), "The trial succeeded. 1 leftover process ended on SIGTERM."),
        (with_leftovers(exited_with_code(0), &[9], &[9], &[]), "The trial succeeded. 1 leftover process had to be killed (SIGKILL)."),
        (with_leftovers(exited_with_code(0), &[7, 8, 9], &[8, 9], &[]), "The trial succeeded. 1 leftover process ended on SIGTERM. 2 leftover processes had to be killed (SIGKILL)."),
        (with_leftovers(exited_with_code(0), &[9], &[9], &[9]), "The trial succeeded. 1 leftover process is still running: SIGKILL cannot end a process that hangs in a device or a file system, or belongs to another user."),
        (Observations { gpus_lost: vec!["GPU-1".to_owned()], ..exited_with_code(1) }, "The machine lost GPU-1 during the trial: run it elsewhere, and have the machine's kernel log checked for Xid errors."),
    ];
    for (observed, message) in table {
        assert_eq!(conclude(&observed).message, message);
    }
}

#[test]
fn the_evidence_is_kept_and_bounded() {
    let cgroup = |kills, peak| CgroupSample {
        oom_kills: Some(kills),
        memory_peak_bytes: Some(peak),
        memory_limit_bytes: Some(1_000),
        ..CgroupSample::default()
    };
    let observed = Observations {
        end: TrialEnd::Exited { exit: TrialExit::Signal(9), wait_status: Some(9) },
        duration_ms: Some(5),
        stdout_tail: "line\n".repeat(2_000).into(),
        stderr_tail: b"\xff\n".to_vec(),
        cgroup_before: Some(cgroup(3, 10)),
        cgroup_after: Some(cgroup(5, 990)),
        process_peak_bytes: Some(7),
        ..with_leftovers(Observations::default(), &[17], &[], &[])
    };
    let verdict = conclude(&observed);
    let evidence = verdict.evidence;
    assert_eq!(verdict.exit, Some(TrialExit::Signal(9)));
    assert_eq!(verdict.duration_ms, Some(5));
    assert_eq!(evidence.wait_status, Some(9));
    assert_eq!(evidence.oom_kills, Some(2));
    assert_eq!(evidence.memory_peak_bytes, Some(7));
    assert_eq!(evidence.cgroup_memory_peak_bytes, Some(990));
    assert_eq!(evidence.memory_limit_bytes, Some(1_000));
    assert_eq!(evidence.leftovers, ["17 sleep"]);
    assert_eq!(evidence.stderr_tail, "\u{fffd}\n");
    assert!(evidence.stdout_tail.len() <= EVIDENCE_TAIL_BYTES);
    assert!(evidence.stdout_tail.starts_with("line\n"));
}

proptest! {
    #[test]
    fn a_random_end_has_a_verdict_with_one_bounded_message(
        exit in prop_oneof![any::<u8>().prop_map(TrialExit::Code), any::<u8>().prop_map(TrialExit::Signal)],
        stderr_tail: Vec<u8>,
        sent in proptest::option::of(any::<u8>()),
        received: u8,
        memory in proptest::option::of(any::<(u64, u64)>()),
    ) {
        let mut observed = exited(exit);
        observed.stderr_tail = stderr_tail;
        observed.stop = Some(Stop { by: StopBy::Signal(received), signal: sent });
        if let Some((peak, limit)) = memory {
            observed = with_memory_peak(observed, peak, limit);
        }
        let verdict = conclude(&observed);
        prop_assert_eq!(verdict.exit, Some(exit));
        prop_assert!(verdict.message.ends_with('.') && verdict.message.len() < 4_000);
    }
}
