//! Tests of the transition table.

use super::*;

const DRAIN: Duration = Duration::from_secs(2);
const STOP_GRACE: Duration = Duration::from_secs(20);

#[test]
fn step_follows_the_table() {
    use Event::{Checked, DeadlinePassed, Exited, SecondStopSignal, StopRequested};
    use Phase::{Done, Draining, Killing, KillingLeftovers, Running, Stopping, StoppingLeftovers};

    let t = Instant::now();
    let later = |seconds| t + Duration::from_secs(seconds);
    let exit = TrialExit::Signal(15);
    let nothing = Remaining::NOTHING;
    let output = Remaining { output: true, processes: false };
    let both = Remaining { output: true, processes: true };
    let tree = Remaining { output: false, processes: true };
    let stop = StopRequested { grace: STOP_GRACE };
    let late = DeadlinePassed(both);
    let (term, kill) = (Some(Effect::Stop), Some(Effect::Kill));

    let stopping = |seconds| Stopping { kill_at: later(seconds) };
    let killing = Killing { give_up_at: t + KILL_WAIT };
    let draining = Draining { exit, terminate_at: later(1), kill_at: later(2) };
    let stop_rest = |seconds| StoppingLeftovers { exit, kill_at: later(seconds) };
    let kill_rest = KillingLeftovers { exit, give_up_at: t + KILL_WAIT };
    let done = Done(Some(exit));

    #[rustfmt::skip]
    let table = [
        // case                                     from          event                          to            effect
        ("a stop sends SIGTERM",                    Running,      stop,                          stopping(20), term),
        ("a second stop request changes nothing",   stopping(20), stop,                          stopping(20), None),
        ("a shorter grace counts",                  stopping(20), StopRequested { grace: DRAIN }, stopping(2), None),
        ("a longer one does not",                   stopping(2),  stop,                          stopping(2),  None),
        ("a second TERM shortens the grace",        stopping(20), SecondStopSignal,              stopping(1),  None),
        ("grace ends in a kill",                    stopping(20), late,                          killing.clone(), kill),
        ("a process that survives is abandoned",    killing.clone(), late,                       Done(None),   None),
        ("an end with nothing left is the end",     Running,      Exited { exit, left: nothing }, done.clone(), None),
        ("also after a stop",                       stopping(20), Exited { exit, left: nothing }, done.clone(), None),
        ("also after a kill",                       killing.clone(), Exited { exit, left: nothing }, done.clone(), None),
        ("an open output is drained",               Running,      Exited { exit, left: output }, draining.clone(), None),
        ("its holder may continue a little",        Running,      Exited { exit, left: both },   draining.clone(), None),
        ("silent leftovers get SIGTERM at once",    Running,      Exited { exit, left: tree },   stop_rest(2),  term),
        ("after a stop the tree keeps its grace",   stopping(20), Exited { exit, left: both },   stop_rest(20),None),
        ("an output alone gets the drain",          stopping(20), Exited { exit, left: output }, stop_rest(2),  None),
        ("a kill is repeated for leftovers",        killing.clone(), Exited { exit, left: tree }, kill_rest.clone(), kill),
        ("the drain ends when nothing is left",     draining.clone(), Checked(nothing),          done.clone(), None),
        ("the drain continues during output",       draining.clone(), Checked(both),             draining.clone(), None),
        ("the output's end sends SIGTERM",          draining.clone(), Checked(tree),             stop_rest(2),  term),
        ("or at half time",                         draining.clone(), late,                      stop_rest(2),  term),
        ("or at a stop",                            draining.clone(), stop,                      stop_rest(2),  term),
        ("a TERM in the drain hurries",             draining.clone(), SecondStopSignal,              stop_rest(1),  term),
        ("the stop ends when nothing is left",      stop_rest(20),Checked(nothing),              done.clone(), None),
        ("with the tree gone only output counts",   stop_rest(20),Checked(output),               stop_rest(2),  None),
        ("with the tree alive the grace continues", stop_rest(20),Checked(tree),                 stop_rest(20),None),
        ("a second TERM hurries it too",            stop_rest(20),SecondStopSignal,              stop_rest(1),  None),
        ("a stop in it shortens at most",           stop_rest(20),StopRequested { grace: DRAIN }, stop_rest(2), None),
        ("it ends in a kill",                       stop_rest(20),late,                          kill_rest.clone(), kill),
        ("output held outside the tree is ignored", stop_rest(20),DeadlinePassed(output),        done.clone(), None),
        ("verified is done",                        kill_rest.clone(), Checked(nothing),         done.clone(), None),
        ("a survivor delays the end",               kill_rest.clone(), Checked(both),            kill_rest.clone(), None),
        ("until the deadline",                      kill_rest.clone(), late,                     done.clone(), None),
        ("done stays done",                         done.clone(), stop,                          done.clone(), None),
        ("an output's end alone changes nothing",   Running,      Checked(nothing),              Running,      None),
    ];
    for (case, from, event, to, effect) in table {
        assert_eq!(from.step(event, t, DRAIN), (to, effect), "{case}");
    }
}

#[test]
fn every_waiting_phase_has_a_deadline() {
    let t = Instant::now();
    let exit = TrialExit::Code(0);
    assert_eq!(Phase::Running.deadline(), None);
    for phase in [
        Phase::Stopping { kill_at: t },
        Phase::Killing { give_up_at: t },
        Phase::Draining { exit, terminate_at: t, kill_at: t + DRAIN },
        Phase::StoppingLeftovers { exit, kill_at: t },
        Phase::KillingLeftovers { exit, give_up_at: t },
    ] {
        assert_eq!(phase.deadline(), Some(t), "{phase:?}");
    }
}
