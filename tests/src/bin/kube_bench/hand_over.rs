//! Measures the hand-over, part by part: from a trial's last instruction to the next trial's first. The
//! agents are real. The delays between Jobs and their pods are those of a real cluster.

use std::collections::HashMap;
use std::time::Instant;

use serde_json::{Value, json};
use trialkeeper_tests::kube::{Behavior, Kube};
use trialkeeper_tests::{Outcome, Search, TestBed, WAIT_TIMEOUT};

use super::{WorkloadKind, wall_now_ms};

/// A trial that writes the times of its first and its last instruction, in nanoseconds.
const TRIAL_SCRIPT: &str = r#"b=$(date +%s%N); echo score=1; [ "$TRIALKEEPER_ROLE_INDEX" != 0 ] || echo "$NNI_TRIAL_JOB_ID $b $(date +%s%N)" >>"$TEST_BED/stamps""#;

/// The times of a hand-over, in milliseconds since the first trial's last instruction.
struct HandOver {
    verdict_stored: f64,
    object_ended: f64,
    next_made: f64,
    next_started: f64,
    next_begun: f64,
}

/// The trials to measure.
#[derive(Clone, Copy)]
enum PodLayout {
    /// A Job of one pod.
    One,
    /// A Job of two identical pods.
    Two,
    /// A `JobSet` of a worker, and of a server that does not end by itself.
    Roles,
}

impl PodLayout {
    fn description(self) -> &'static str {
        match self {
            Self::One => "one pod",
            Self::Two => "two pods",
            Self::Roles => "worker and server",
        }
    }

    fn plural(self) -> &'static str {
        match self {
            Self::One | Self::Two => "jobs",
            Self::Roles => "jobsets",
        }
    }

    /// Returns the fields of the section that describe the pods.
    fn fields(self) -> Value {
        let never = json!({"minFailedTaskCount": 1, "minSucceedTaskCount": -1});
        match self {
            Self::One => json!({"dockerImage": "any"}),
            Self::Two => json!({"dockerImage": "any", "taskNumber": 2}),
            Self::Roles => json!({"metricsFrom": "worker", "taskRoles": [
                {"name": "worker", "dockerImage": "any"},
                {"name": "ps", "dockerImage": "any", "command": "exec sleep 600",
                    "frameworkAttemptCompletionPolicy": never},
            ]}),
        }
    }
}

/// Measures both values of `handOver`: with the code in the image and from the manager, and with several pods.
pub(super) fn print_hand_overs(trials: u32) {
    println!("median (maximum) of {trials} sequential trials, ms");
    let cases = [
        (PodLayout::One, "image"),
        (PodLayout::One, "http"),
        (PodLayout::Two, "image"),
        (PodLayout::Roles, "image"),
    ];
    for (pods, storage) in cases {
        for hand_over in ["verdict", "object"] {
            let what = format!("{hand_over}, storage {storage}, {}", pods.description());
            print_medians(&what, &run_search(trials, hand_over, storage, pods));
        }
    }
}

fn run_search(trials: u32, hand_over: &str, storage: &str, pods: PodLayout) -> Vec<HandOver> {
    let bed = TestBed::new();
    let kube = Kube::start(bed.folder(), |_| Behavior::PacedProcesses);
    kube.write_kubeconfig(&bed.path("kubeconfig"));
    bed.write("code/train.py", "print('score=1')\n");
    let mut section = pods.fields();
    section["platform"] = json!("kubernetes");
    (section["storage"], section["handOver"]) = (json!(storage), json!(hand_over));
    section["kubeconfig"] = json!(bed.path("kubeconfig").display().to_string());
    let search = Search::new(TRIAL_SCRIPT, trials).with("objective", "score");
    let search = search.with("trainingService", section);
    let mut command = search.command(&bed);
    command.args(["--host", "127.0.0.1"]);
    let outcome = Outcome::parse(bed.start(&mut command).finish(WAIT_TIMEOUT * trials.max(1)));
    outcome.expect_done(usize::try_from(trials).unwrap(), 0);

    let store = bed.find_store().expect("the experiment has a store");
    let (wall, now) = (wall_now_ms(&store), Instant::now());
    let wall_ms = |at: Instant| wall - now.duration_since(at).as_secs_f64() * 1e3;
    let moments = |plural: &str, fits: &dyn Fn(&Value) -> bool| -> HashMap<String, f64> {
        let of_trial = |object: &Value| {
            object["metadata"]["labels"]["trialkeeper/trial"].as_str().map(str::to_owned)
        };
        let since = kube.first_matches(plural, fits).into_iter();
        since.filter_map(|(object, at)| Some((of_trial(&object)?, wall_ms(at)))).collect()
    };
    let made = moments(pods.plural(), &|_| true);
    let ended = moments(pods.plural(), &|job| WorkloadKind::Jobs.has_ended(job));
    let started = moments("pods", &|pod| pod["status"]["phase"] == "Running");
    let stored = stored_end_times(&store);
    let stamps = bed.read("stamps");
    let stamps: Vec<(&str, f64, f64)> = stamps.lines().map(parse_times).collect();
    stamps
        .windows(2)
        .map(|pair| {
            let [(this, _, last), (next, begun, _)] = pair else { unreachable!("two at a time") };
            HandOver {
                verdict_stored: stored[*this] - last,
                object_ended: ended[*this] - last,
                next_made: made[*next] - last,
                next_started: started[*next] - last,
                next_begun: begun - last,
            }
        })
        .collect()
}

/// Reads a line that [`TRIAL_SCRIPT`] wrote: the trial's id, and its two times in milliseconds.
fn parse_times(line: &str) -> (&str, f64, f64) {
    let mut words = line.split(' ');
    let trial = words.next().unwrap();
    let mut ms = || words.next().unwrap().parse::<f64>().unwrap() / 1e6;
    (trial, ms(), ms())
}

/// Returns the time at which each trial ended in the store, in milliseconds.
fn stored_end_times(store: &rusqlite::Connection) -> HashMap<String, f64> {
    let mut ends = store.prepare("SELECT id, ended_at_ms FROM trial").unwrap();
    let ends = ends.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
    ends.map(Result::unwrap).collect()
}

/// A printed part of a hand-over, and its time in milliseconds.
type HandOverPart = (&'static str, fn(&HandOver) -> f64);

const HAND_OVER_PARTS: [HandOverPart; 6] = [
    ("last instruction to the end in the store", |of| of.verdict_stored),
    ("last instruction to the object's end", |of| of.object_ended),
    ("the end in the store to the next object", |of| of.next_made - of.verdict_stored),
    ("the next object to its container", |of| of.next_started - of.next_made),
    ("its container to its first instruction", |of| of.next_begun - of.next_started),
    ("last instruction to the next one's first", |of| of.next_begun),
];

fn print_medians(what: &str, all: &[HandOver]) {
    println!("{what}:");
    for (part, time) in HAND_OVER_PARTS {
        let mut times: Vec<f64> = all.iter().map(time).collect();
        times.sort_by(f64::total_cmp);
        let most = times.last().copied().unwrap_or(f64::NAN);
        let median = times.get(times.len() / 2).copied().unwrap_or(f64::NAN);
        println!("  {part:<42} {median:>7.0} ({most:.0})");
    }
}
