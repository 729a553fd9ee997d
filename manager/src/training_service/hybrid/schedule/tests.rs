use FreeRoom::{Jobs, Queue, Unknown, Unreachable};
use serde_json::json;
use trial_protocol::ExperimentId;

use super::*;
use crate::training_service::Token;

fn trial(name: &str) -> TrialJobId {
    TrialJobId::new(name).unwrap()
}

fn attempt(name: &str) -> AttemptId {
    AttemptId::new(format!("{name}-1")).unwrap()
}

fn job(name: &str) -> TrialJobSpec {
    TrialJobSpec {
        experiment: ExperimentId::new("e").unwrap(),
        trial: trial(name),
        attempt: attempt(name),
        sequence: 0,
        command: "true".to_owned(),
        parameter_record: json!({}),
        token: Token("t".to_owned()),
    }
}

/// Returns a schedule for parts with these limits, and these trials.
fn schedule(limits: &[Option<usize>], trials: &[&str]) -> Schedule {
    let parts = limits.iter().enumerate().map(|(i, limit)| (format!("part {i}"), *limit));
    let mut schedule = Schedule::new(parts);
    for name in trials {
        schedule.enqueue(job(name));
    }
    schedule
}

/// Places all trials for which there is room, and returns their names and parts.
fn place_all(schedule: &mut Schedule, rooms: &[FreeRoom], now: Instant) -> Vec<(String, usize)> {
    std::iter::from_fn(|| schedule.place_next(rooms, now))
        .map(|(job, part)| (job.trial.to_string(), part))
        .collect()
}

fn unreachable_room() -> FreeRoom {
    Unreachable("it is down".to_owned())
}

#[test]
fn a_trial_is_placed_at_a_part_with_room() {
    type Row<'a> = (&'a str, &'a [Option<usize>], Vec<FreeRoom>, &'a [usize]);
    let now = Instant::now();
    #[rustfmt::skip]
    let table: [Row<'_>; 10] = [
        ("in turn, the first part first", &[None, None],       vec![Unknown, Unknown],            &[0, 1, 0]),
        ("up to the part's limit",        &[Some(1), None],    vec![Unknown, Unknown],            &[0, 1, 1]),
        ("up to the limits of all parts", &[Some(1), Some(1)], vec![Unknown, Unknown],            &[0, 1]),
        ("not at a part without room",    &[None, None],       vec![Jobs(0), Unknown],            &[1, 1, 1]),
        ("not at an unreachable part",    &[None, None],       vec![Jobs(3), unreachable_room()], &[0, 0, 0]),
        ("nowhere",                       &[None, None],       vec![Jobs(0), unreachable_room()], &[]),
        ("to the only part",              &[Some(2)],          vec![Unknown],                     &[0, 0]),
        ("first where there is room",     &[None, Some(2)],    vec![Queue, Jobs(5)],              &[1, 1, 0]),
        ("first where there may be room", &[None, Some(2)],    vec![Queue, Unknown],              &[1, 1, 0]),
        ("one in each queue",             &[None, None],       vec![Queue, Queue],                &[0, 1]),
    ];
    for (case, limits, rooms, expected) in table {
        let mut schedule = schedule(limits, &["a", "b", "c"]);
        let parts: Vec<_> =
            place_all(&mut schedule, &rooms, now).into_iter().map(|it| it.1).collect();
        assert_eq!(parts, expected, "{case}");
    }
}

#[test]
fn a_part_with_a_waiting_trial_gets_no_further_trial() {
    let now = Instant::now();
    let rooms = [Unknown, Unknown];
    let mut schedule = schedule(&[None, Some(1)], &["a", "b", "c"]);
    place_all(&mut schedule, &rooms, now);
    schedule.record_wait(&trial("a"), &attempt("a"), false);
    schedule.enqueue(job("d"));
    assert_eq!(place_all(&mut schedule, &rooms, now), []);
    let news = schedule.new_wait_reasons(&rooms, now);
    let why = "no training service has room for the trial (part 0: another trial already waits there; \
               part 1: it has 1 of at most 1 trials (`trialConcurrency`))";
    assert_eq!(news, [(trial("d"), attempt("d"), why.to_owned())]);
    assert_eq!(schedule.new_wait_reasons(&rooms, now), [], "a reason is reported once");
    schedule.mark_running(&trial("a"));
    // A late report about an earlier wait changes nothing.
    schedule.record_wait(&trial("a"), &attempt("a"), false);
    assert_eq!(place_all(&mut schedule, &rooms, now), [("d".to_owned(), 0)]);
    assert_eq!((schedule.trial_counts(0), schedule.trial_counts(1)), ((3, 0), (1, 0)));
    schedule.record_wait(&trial("a"), &attempt("a"), true);
    assert_eq!(
        schedule.trial_counts(0),
        (3, 1),
        "the trial waits again after its queue has taken it back"
    );
}

#[test]
fn a_waiting_trial_moves_to_a_part_with_room_and_not_back_at_once() {
    let now = Instant::now();
    let mut schedule = schedule(&[None, None], &["a"]);
    assert_eq!(
        place_all(&mut schedule, &[Unknown, unreachable_room()], now),
        [("a".to_owned(), 0)]
    );
    assert_eq!(schedule.movable_trials(&[Unknown, Unknown], now), [], "the trial does not wait");
    schedule.record_wait(&trial("a"), &attempt("a"), false);
    assert_eq!(
        schedule.movable_trials(&[Unknown, unreachable_room()], now),
        [],
        "no other part has room"
    );
    assert_eq!(schedule.movable_trials(&[Unknown, Unknown], now), [(trial("a"), 0)]);
    schedule.requeue(&trial("a"), now);
    assert_eq!(
        place_all(&mut schedule, &[Unknown, unreachable_room()], now),
        [],
        "the trial does not move back"
    );
    assert_eq!(
        place_all(&mut schedule, &[Unknown, unreachable_room()], now + MIN_SKIP_TIME),
        [("a".to_owned(), 0)]
    );
    schedule.record_wait(&trial("a"), &attempt("a"), false);
    schedule.request_stop(&trial("a"));
    assert_eq!(
        schedule.movable_trials(&[Unknown, Unknown], now + MIN_SKIP_TIME),
        [],
        "a stopped trial does not move"
    );
}

#[test]
fn a_trial_moves_from_a_queue_only_to_a_part_with_room() {
    let now = Instant::now();
    let mut schedule = schedule(&[None, None], &["a", "b"]);
    assert_eq!(place_all(&mut schedule, &[Queue, Jobs(0)], now), [("a".to_owned(), 0)]);
    schedule.record_wait(&trial("a"), &attempt("a"), false);
    assert_eq!(schedule.movable_trials(&[Queue, Jobs(0)], now), []);
    assert_eq!(schedule.movable_trials(&[Queue, Queue], now), []);
    assert_eq!(schedule.movable_trials(&[Queue, Jobs(1)], now), [(trial("a"), 0)]);
    schedule.mark_running(&trial("a"));
    assert_eq!(place_all(&mut schedule, &[Queue, Jobs(0)], now), [("b".to_owned(), 0)]);
}

#[test]
fn a_refused_trial_is_placed_at_each_other_part_once() {
    let now = Instant::now();
    let rooms = [Unknown, Unknown];
    let mut schedule = schedule(&[None, None], &["a"]);
    place_all(&mut schedule, &rooms, now);
    let other = AttemptId::new("a-2").unwrap();
    assert_eq!(schedule.refuse(&trial("a"), &other, 0, "late", now), RefusalResult::Unknown);
    assert_eq!(
        schedule.refuse(&trial("a"), &attempt("a"), 0, "no such queue", now),
        RefusalResult::Queued
    );
    assert_eq!(place_all(&mut schedule, &rooms, now), [("a".to_owned(), 1)]);
    let refused = schedule.refuse(&trial("a"), &attempt("a"), 1, "no token", now);
    let reasons = "part 0: no such queue; part 1: no token";
    assert_eq!(refused, RefusalResult::ByAll(reasons.to_owned()));
    assert_eq!(place_all(&mut schedule, &rooms, now), []);
    schedule.enqueue(job("b"));
    assert_eq!(place_all(&mut schedule, &rooms, now), [], "both parts are skipped for a while");
    let later = now + MIN_SKIP_TIME;
    assert_eq!(place_all(&mut schedule, &rooms, later), [("b".to_owned(), 0)]);
    schedule.request_stop(&trial("b"));
    let refused = schedule.refuse(&trial("b"), &attempt("b"), 0, "no", later);
    assert_eq!(
        refused,
        RefusalResult::ByAll("part 0: no".to_owned()),
        "a stopped trial does not move"
    );
}

#[test]
fn a_part_that_cannot_start_trials_is_skipped_for_a_while() {
    let mut now = Instant::now();
    let rooms = [Unknown, Jobs(0)];
    let mut schedule = schedule(&[None, None], &[]);
    for pause in [5, 10, 20, 40, 80, 160, 300, 300] {
        schedule.enqueue(job("a"));
        assert_eq!(place_all(&mut schedule, &rooms, now), [("a".to_owned(), 0)], "{pause}");
        schedule.record_failed_start(&trial("a"), &attempt("a"), now);
        schedule.remove(&trial("a"), &attempt("a"));
        schedule.enqueue(job("b"));
        let before = now + Duration::from_secs(pause - 1);
        assert_eq!(place_all(&mut schedule, &rooms, before), [], "{pause}");
        schedule.remove_queued(&trial("b"));
        now += Duration::from_secs(pause);
    }
    schedule.enqueue(job("a"));
    place_all(&mut schedule, &rooms, now);
    schedule.mark_running(&trial("a"));
    // The end of a trial that has run does not count as a failed start.
    schedule.record_failed_start(&trial("a"), &attempt("a"), now);
    schedule.enqueue(job("b"));
    assert_eq!(place_all(&mut schedule, &rooms, now), [("b".to_owned(), 0)]);
}

#[test]
fn a_trial_that_may_be_at_a_part_is_only_placed_there() {
    let now = Instant::now();
    let mut schedule = schedule(&[None, None], &[]);
    schedule.take_over(&trial("a"), &attempt("a"), 1);
    assert_eq!(schedule.part_of(&trial("a")), Some(1));
    // The part does not have the trial: the earlier manager died just before or after it submitted the trial.
    schedule.remove(&trial("a"), &attempt("a"));
    schedule.bind(&trial("a"), 1);
    schedule.enqueue(job("a"));
    schedule.enqueue(job("b"));
    assert_eq!(
        place_all(&mut schedule, &[Unknown, unreachable_room()], now),
        [("b".to_owned(), 0)]
    );
    assert_eq!(place_all(&mut schedule, &[Unknown, Unknown], now), [("a".to_owned(), 1)]);
    assert_eq!(
        schedule.refuse(&trial("a"), &attempt("a"), 1, "no", now),
        RefusalResult::ByAll("part 1: no".to_owned())
    );
}

#[test]
fn a_stopped_trial_leaves_the_queue() {
    let now = Instant::now();
    let mut schedule = schedule(&[None], &["a", "b"]);
    assert_eq!(schedule.remove_queued(&trial("a")), Some(attempt("a")));
    assert_eq!(schedule.remove_queued(&trial("a")), None);
    assert_eq!(place_all(&mut schedule, &[Unknown], now), [("b".to_owned(), 0)]);
    schedule.remove(&trial("b"), &AttemptId::new("b-2").unwrap());
    assert_eq!(schedule.part_of(&trial("b")), Some(0), "an end of another attempt has no effect");
    schedule.remove(&trial("b"), &attempt("b"));
    assert_eq!(schedule.part_of(&trial("b")), None);
}
