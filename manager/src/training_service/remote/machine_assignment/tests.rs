use super::*;
use crate::training_service::Token;
use serde_json::json;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use trial_protocol::ExperimentId;

const SECOND: Duration = Duration::from_secs(1);

fn id(name: &str) -> TrialJobId {
    TrialJobId::new(name).unwrap()
}

fn attempt(name: &str) -> AttemptId {
    AttemptId::new(format!("{name}-1")).unwrap()
}

fn job(name: &str) -> TrialJobSpec {
    TrialJobSpec {
        experiment: ExperimentId::new("e").unwrap(),
        trial: id(name),
        attempt: attempt(name),
        sequence: 0,
        command: "true".to_owned(),
        parameter_record: json!({}),
        token: Token(String::new()),
    }
}

fn machine(name: &str, max_trial_number: Option<u64>) -> MachineSpec {
    MachineSpec { max_trial_number, ..MachineSpec::new(name) }
}

fn facts(cores: usize, busy: &[bool]) -> MachineFacts {
    let uuid = |index| format!("GPU-{index}");
    let gpu = |(index, busy): (u64, &bool)| Gpu { index, uuid: uuid(index), busy: *busy };
    let gpus = Some((0..).zip(busy).map(gpu).collect());
    MachineFacts { gpus, cores: Some(cores), available_memory_percent: Some(50) }
}

/// Machines, and the requests to each of them.
struct TestBed {
    assignments: Assignments,
    now: Instant,
    links: Vec<UnboundedReceiver<String>>,
}

impl TestBed {
    fn new(machines: &[MachineSpec], each: Option<u32>) -> Self {
        let now = Instant::now();
        let assignments = Assignments::new(machines, machines.len(), each, 300 * SECOND, now);
        Self { assignments, now, links: Vec::new() }
    }

    fn connect(&mut self, number: usize, facts: &MachineFacts) -> Option<String> {
        let (sender, receiver) = unbounded_channel();
        self.links.push(receiver);
        self.assignments.record_connection(number, facts, sender)
    }

    /// Enqueues a job, and returns the machine to which it is assigned.
    fn enqueue_and_place(&mut self, name: &str) -> Option<usize> {
        self.assignments.enqueue(job(name));
        self.assignments.place(self.now).map(|(_, machine)| machine)
    }
}

#[test]
fn a_trial_is_assigned_to_the_machine_with_the_fewest_trials_per_processor() {
    let machines = [machine("small", None), machine("large", None)];
    let mut bed = TestBed::new(&machines, None);
    assert_eq!(bed.enqueue_and_place("a"), None, "no machine is connected");
    assert_eq!(bed.connect(0, &facts(2, &[])), None);
    assert_eq!(bed.connect(1, &facts(6, &[])), None);
    let mut on = vec![bed.assignments.place(bed.now).unwrap().1];
    on.extend((1..4).map(|number| bed.enqueue_and_place(&format!("t{number}")).unwrap()));
    assert_eq!(on.iter().filter(|machine| **machine == 0).count(), 1, "{on:?}");
}

#[test]
fn a_machine_runs_at_most_its_max_trial_number() {
    let mut bed = TestBed::new(&[machine("one", Some(1))], None);
    assert_eq!(bed.connect(0, &facts(8, &[])), None);
    assert_eq!((bed.enqueue_and_place("a"), bed.enqueue_and_place("b")), (Some(0), None));
    let (why, unreported_waits) = bed.assignments.unreported_waits(bed.now);
    assert_eq!(why, "no machine has room (one: maxTrialNumber trials run there)");
    assert_eq!(unreported_waits, [(id("b"), attempt("b"))]);
    assert!(bed.assignments.remove(&id("a"), &attempt("a")));
    assert_eq!(bed.assignments.place(bed.now), Some((id("b"), 0)));
}

#[test]
fn a_machine_without_other_limits_runs_a_trial_for_each_processor() {
    for each in [None, Some(0)] {
        let mut bed = TestBed::new(&[machine("small", None), machine("wide", Some(3))], each);
        assert_eq!(bed.connect(0, &facts(2, &[])), None);
        let mut on: Vec<_> =
            ["a", "b", "c"].iter().map(|name| bed.enqueue_and_place(name)).collect();
        assert_eq!(on, [Some(0), Some(0), None]);
        let why = bed.assignments.unreported_waits(bed.now).0;
        assert!(why.contains("small: it runs as many trials as it has processors"), "{why}");
        assert_eq!(bed.connect(1, &facts(1, &[])), None);
        let room = |bed: &TestBed| bed.assignments.free_room(bed.now);
        assert_eq!(
            room(&bed),
            FreeRoom::Jobs(2),
            "`maxTrialNumber` takes precedence, and one trial waits"
        );
        on = (0..3).map(|_| bed.assignments.place(bed.now).map(|(_, machine)| machine)).collect();
        assert_eq!((on, room(&bed)), (vec![Some(1), None, None], FreeRoom::Jobs(2)));
    }
    let shared = MachineSpec { max_trial_number_per_gpu: 4, ..machine("one", None) };
    let mut bed = TestBed::new(&[shared], Some(1));
    assert_eq!(bed.connect(0, &facts(1, &[false])), None);
    let on: Vec<_> = (0..5).map(|number| bed.enqueue_and_place(&format!("t{number}"))).collect();
    assert_eq!(on, [Some(0), Some(0), Some(0), Some(0), None], "the GPUs are the limit");
}

#[test]
fn a_machine_with_little_memory_gets_no_further_trial() {
    let with = |percent| MachineFacts { available_memory_percent: percent, ..facts(8, &[]) };
    let mut bed = TestBed::new(&[machine("one", None)], None);
    assert_eq!(bed.connect(0, &with(Some(9))), None);
    assert_eq!(bed.enqueue_and_place("a"), None);
    let why = bed.assignments.unreported_waits(bed.now).0;
    assert_eq!(why, "no machine has room (one: less than 10 % of its memory is available)");
    assert_eq!(bed.assignments.free_room(bed.now), FreeRoom::Jobs(0));
    for percent in [Some(10), None] {
        bed.assignments.request_reading(0);
        bed.assignments.record_reading(0, &MachineFacts { gpus: None, ..with(percent) });
        assert!(
            bed.assignments.place(bed.now).is_some() || bed.enqueue_and_place("b").is_some(),
            "{percent:?}"
        );
    }
}

#[test]
fn a_reason_is_reported_once_for_each_trial() {
    let mut bed = TestBed::new(&[machine("one", None)], None);
    let mut reported = 0;
    for number in 0..100 {
        bed.enqueue_and_place(&format!("t{number}"));
        reported += bed.assignments.unreported_waits(bed.now).1.len();
    }
    assert_eq!(reported, 100, "a new trial does not repeat the reason for the others");
    bed.assignments.record_disconnection(0, "Permission denied".to_owned(), bed.now);
    assert_eq!(
        bed.assignments.unreported_waits(bed.now).1.len(),
        100,
        "a new reason is reported for all trials"
    );
}

#[test]
fn a_machine_that_cannot_start_trials_gets_none_for_a_while() {
    let machines = [machine("full", None), machine("fine", None)];
    let mut bed = TestBed::new(&machines, None);
    assert_eq!(bed.connect(0, &facts(4, &[])), None);
    assert_eq!(bed.connect(1, &facts(2, &[])), None);
    assert_eq!(bed.enqueue_and_place("a"), Some(0), "the machine with the most processors");
    let space = "No space left on device".to_owned();
    let pause = bed.assignments.pause_machine(0, space.clone(), bed.now);
    assert!(bed.assignments.requeue(&id("a"), &attempt("a")));
    assert_eq!(bed.assignments.place(bed.now), Some((id("a"), 1)), "the same attempt elsewhere");
    assert_eq!(bed.enqueue_and_place("b"), Some(1));
    bed.assignments.record_disconnection(1, "the connection was lost".to_owned(), bed.now);
    assert_eq!(bed.enqueue_and_place("c"), None);
    let why = bed.assignments.unreported_waits(bed.now).0;
    assert!(why.contains("full: it pauses, because it could not start a trial: No space"), "{why}");
    assert_eq!(bed.assignments.next_change(bed.now), Some(bed.now + pause));
    bed.now += pause;
    assert_eq!(bed.assignments.place(bed.now), Some((id("c"), 0)), "the machine is tried again");
    let longer = bed.assignments.pause_machine(0, space.clone(), bed.now);
    assert!(longer > pause, "{longer:?}");
    bed.assignments.reset_pauses(0);
    assert_eq!(
        bed.assignments.pause_machine(0, space, bed.now),
        pause,
        "after a trial has run, the first pause applies"
    );
}

#[test]
fn a_trial_that_must_stop_is_not_assigned_again() {
    let mut bed = TestBed::new(&[machine("one", None)], None);
    assert_eq!(bed.connect(0, &facts(1, &[])), None);
    bed.enqueue_and_place("a");
    bed.assignments.request_stop(&id("a"), bed.now);
    assert!(!bed.assignments.requeue(&id("a"), &attempt("a")));
}

#[test]
fn the_jobs_of_an_absent_machine_are_fenced_after_the_time_limits() {
    let mut bed = TestBed::new(&[machine("one", None)], None);
    assert_eq!(bed.connect(0, &facts(8, &[])), None);
    for name in ["a", "b", "c"] {
        bed.enqueue_and_place(name);
    }
    bed.assignments.request_stop(&id("a"), bed.now);
    let start = bed.now;
    assert_eq!(bed.assignments.next_change(start), None, "the machine is connected");
    let lost = start + 60 * SECOND;
    bed.assignments.record_disconnection(0, "cut".to_owned(), lost);
    bed.assignments.record_disconnection(0, "still cut".to_owned(), lost + 5 * SECOND);
    bed.assignments.request_stop(&id("b"), lost + 20 * SECOND);
    let absent = |assignments: &Assignments, seconds: u32| {
        let absent = assignments.absent_jobs(lost + seconds * SECOND).into_iter();
        absent.map(|job| job.trial.as_str().to_owned()).collect::<Vec<_>>()
    };
    #[rustfmt::skip]
    let table: [(u32, &[&str]); 6] = [
        // seconds after the loss   the jobs to fence
        (9,                         &[]),
        (10,                        &["a"]), // Its stop was requested before the loss.
        (29,                        &["a"]),
        (30,                        &["a", "b"]),
        (299,                       &["a", "b"]),
        (300,                       &["a", "b", "c"]),
    ];
    for (seconds, expected) in table {
        assert_eq!(absent(&bed.assignments, seconds), expected, "after {seconds} s");
    }
    assert_eq!(bed.assignments.next_change(lost), Some(lost + 10 * SECOND));
    let why = bed.assignments.absent_jobs(lost + 10 * SECOND).remove(0).why;
    assert!(why.starts_with("one has been out of reach for 10 s (still cut)"), "{why}");
    assert_eq!(bed.connect(0, &facts(8, &[])), None);
    assert_eq!(absent(&bed.assignments, 999), [""; 0], "the machine is connected again");
}

#[test]
fn gpus_of_adopted_trials_are_neither_foreign_nor_free() {
    for adopted_first in [true, false] {
        let mut bed = TestBed::new(&[machine("one", None)], Some(1));
        let all_busy = facts(8, &[true, true, false]);
        let adopt = |bed: &mut TestBed| {
            bed.assignments.take_over(&id("a"), &attempt("a"), 0, Some(vec![1]));
        };
        if adopted_first {
            adopt(&mut bed);
        }
        assert_eq!(bed.connect(0, &all_busy), None);
        if !adopted_first {
            adopt(&mut bed);
        }
        assert_eq!(bed.enqueue_and_place("b"), Some(0));
        assert_eq!(bed.assignments.jobs[&id("b")].gpus, Some(vec![2]), "the free one");
        assert_eq!(bed.enqueue_and_place("c"), None, "another user has the first GPU");
        bed.assignments.remove(&id("a"), &attempt("a"));
        assert_eq!(bed.assignments.place(bed.now), Some((id("c"), 0)));
        assert_eq!(
            bed.assignments.jobs[&id("c")].gpus,
            Some(vec![1]),
            "a trial of the manager had the GPU"
        );
    }
}

#[test]
fn gpus_of_other_users_are_avoided_during_the_search() {
    let mut bed = TestBed::new(&[machine("one", None)], Some(1));
    let read = |bed: &mut TestBed, busy: &[bool]| {
        bed.assignments.request_reading(0);
        let request = bed.links[0].try_recv().unwrap();
        assert!(request.contains("\"room\""), "{request}");
        bed.assignments.record_reading(0, &facts(8, busy))
    };
    let given = |bed: &TestBed, name: &str| bed.assignments.jobs[&id(name)].gpus.clone();
    let none_free = bed.connect(0, &facts(8, &[true, true])).unwrap();
    assert!(
        none_free.contains("of the GPUs that nvidia-smi shows (2, 2 in use) only 0"),
        "{none_free}"
    );
    assert_eq!(bed.enqueue_and_place("a"), None);
    assert!(
        bed.assignments.unreported_waits(bed.now).0.contains(&none_free),
        "the trial waits for that"
    );
    let room = bed.assignments.free_room(bed.now);
    assert!(matches!(&room, FreeRoom::Unreachable(why) if why.contains(&none_free)), "{room:?}");
    assert_eq!(read(&mut bed, &[true, true]), None, "the reason was already reported");

    assert_eq!(read(&mut bed, &[true, false]), None);
    assert_eq!(bed.assignments.place(bed.now), Some((id("a"), 0)));
    assert_eq!((given(&bed, "a"), bed.enqueue_and_place("b")), (Some(vec![1]), None));
    assert_eq!(
        read(&mut bed, &[false, true]),
        None,
        "the first GPU is free now, and a trial of the manager has the second"
    );
    assert_eq!(bed.assignments.place(bed.now), Some((id("b"), 0)));
    assert_eq!((given(&bed, "b"), bed.enqueue_and_place("c")), (Some(vec![0]), None));

    bed.assignments.remove(&id("b"), &attempt("b"));
    assert_eq!(read(&mut bed, &[true, true]), None, "another user has taken the released GPU");
    assert_eq!(bed.assignments.place(bed.now), None);
    bed.assignments.remove(&id("a"), &attempt("a"));
    assert_eq!(bed.assignments.place(bed.now), Some((id("c"), 0)));
    assert_eq!(given(&bed, "c"), Some(vec![1]));
}

#[test]
fn a_gpu_that_a_trial_released_during_a_reading_is_free() {
    let mut bed = TestBed::new(&[machine("one", None)], Some(1));
    assert_eq!(bed.connect(0, &facts(8, &[false])), None);
    bed.enqueue_and_place("a");
    bed.assignments.request_reading(0);
    bed.assignments.request_reading(0);
    bed.assignments.remove(&id("a"), &attempt("a"));
    assert_eq!(
        bed.assignments.record_reading(0, &facts(8, &[true])),
        None,
        "a trial of the manager had the GPU"
    );
    assert!(
        bed.assignments.record_reading(0, &facts(8, &[])).is_none(),
        "no reading was requested"
    );
    assert_eq!(bed.enqueue_and_place("b"), Some(0));
    assert!(
        bed.links[0].try_recv().is_ok() && bed.links[0].try_recv().is_err(),
        "one reading at a time"
    );
}

#[test]
fn a_machine_with_a_lost_gpu_gets_no_trial_until_the_next_reading() {
    let mut bed = TestBed::new(&[machine("one", None)], Some(1));
    assert_eq!(bed.connect(0, &facts(8, &[false, false])), None);
    let given = |bed: &TestBed| {
        let job = &bed.assignments.jobs[&id("a")];
        (job.gpus.clone().unwrap(), job.gpu_uuids.clone(), job.has_exclusive_gpus)
    };
    assert_eq!(bed.enqueue_and_place("a"), Some(0));
    assert_eq!(given(&bed), (vec![0], vec!["GPU-0".to_owned()], true));
    // The trial counted as the GPU's user when this reading was requested.
    bed.assignments.request_reading(0);
    assert!(bed.assignments.lose_gpu(0, &id("a"), &attempt("a")));
    assert!(bed.links[0].try_recv().unwrap().contains("\"room\""), "a reading is requested");
    assert_eq!(bed.assignments.place(bed.now), None);
    assert_eq!(bed.assignments.free_room(bed.now), FreeRoom::Jobs(0));
    assert_eq!(bed.assignments.record_reading(0, &facts(8, &[true, false])), None);
    assert_eq!(bed.assignments.place(bed.now), Some((id("a"), 0)));
    assert_eq!(given(&bed), (vec![1], vec!["GPU-1".to_owned()], true));
}

#[test]
fn gpus_are_read_again_only_if_busy_ones_are_avoided() {
    let one = || machine("one", None);
    let shared = MachineSpec { use_active_gpu: true, ..one() };
    let table = [(one(), None, false), (shared, Some(1), false), (one(), Some(1), true)];
    for (machine, each, expected) in table {
        let mut bed = TestBed::new(&[machine], each);
        assert_eq!(bed.connect(0, &facts(8, &[false])), None);
        bed.assignments.request_reading(0);
        let request: Value = serde_json::from_str(&bed.links[0].try_recv().unwrap()).unwrap();
        assert_eq!(
            (&request["method"], &request["params"]["gpus"]),
            (&"room".into(), &expected.into())
        );
    }
}

#[test]
fn a_retired_machine_keeps_its_trials_and_gets_no_new_ones() {
    let now = Instant::now();
    let machines = [machine("named", None), machine("retired", None)];
    let assignments = Assignments::new(&machines, 1, Some(1), 300 * SECOND, now);
    let mut bed = TestBed { assignments, now, links: Vec::new() };
    bed.assignments.take_over(&id("a"), &attempt("a"), 1, Some(vec![0]));
    assert_eq!(bed.connect(1, &facts(8, &[])), None);
    assert_eq!(bed.enqueue_and_place("b"), None);
    let why = bed.assignments.unreported_waits(now).0;
    assert_eq!(why, "no machine has room (named: not connected yet)");
    assert!(bed.assignments.remove(&id("a"), &attempt("a")));
}

#[test]
fn a_request_that_is_not_answered_is_found() {
    let mut bed = TestBed::new(&[machine("one", None)], None);
    assert_eq!(bed.connect(0, &facts(1, &[])), None);
    bed.enqueue_and_place("a");
    bed.assignments.request(0, &id("a"), "submit", &json!({}), bed.now);
    assert_eq!(bed.assignments.late_request(0, bed.now), None);
    assert_eq!(bed.assignments.late_request(0, bed.now + SECOND), Some("submit"));
    assert!(bed.links[0].try_recv().unwrap().contains("\"submit\""));
    bed.assignments.complete_request(0, 1);
    assert_eq!(bed.assignments.late_request(0, bed.now + SECOND), None);
}
