//! Creates identifiers: random, short and lower-case, because Kubernetes' names are lower-case and two ids must not
//! become equal there.

use rand::Rng as _;
use trial_protocol::{AttemptId, ExperimentId, TrialJobId};

const LETTERS: &[u8] = b"abcdefghijklmnopqrstuvwxyz";
const LETTERS_AND_DIGITS: &[u8] = b"abcdefghijklmnopqrstuvwxyz0123456789";

/// The suffix of an attempt's identifier for the reports of NNI's own keeper.
pub const LEGACY_KEEPER_SUFFIX: &str = "-legacy";

/// Creates the id of an experiment: 8 characters.
pub fn new_experiment_id() -> ExperimentId {
    ExperimentId::new(random_name(8)).expect("letters and digits are an id")
}

/// Creates the id of a trial: 5 characters. The caller must check that it is not in use.
pub fn new_trial_id() -> TrialJobId {
    TrialJobId::new(random_name(5)).expect("letters and digits are an id")
}

/// Returns the id of the trial that a request with this key creates, the same for the same key. The caller must check
/// that it is not in use.
pub fn trial_id_of_key(key: &str) -> TrialJobId {
    let digest = ring::digest::digest(&ring::digest::SHA256, key.as_bytes());
    let letters = digest.as_ref().iter().take(10).enumerate().map(|(at, byte)| {
        let from = if at == 0 { LETTERS } else { LETTERS_AND_DIGITS };
        char::from(from[usize::from(*byte) % from.len()])
    });
    TrialJobId::new(letters.collect::<String>()).expect("letters and digits are an id")
}

/// Creates a seed for a search without a configured one.
pub fn new_seed() -> u64 {
    // 53 bits, so that every JSON parser can represent the number.
    rand::rng().random_range(0..1 << 53)
}

/// Creates the unique id of an event.
pub fn new_event_id() -> String {
    random_name(20)
}

/// Creates a part of an address that cannot be guessed.
pub fn new_secret_path() -> String {
    random_name(24)
}

/// Returns the first attempt of a trial.
pub fn first_attempt(trial: &TrialJobId) -> AttemptId {
    numbered_attempt(trial, 1)
}

/// Returns the attempt after `last`.
pub fn next_attempt(trial: &TrialJobId, last: &AttemptId) -> AttemptId {
    let last = submitted_attempt(last);
    let number = last.as_str().rsplit('-').next().and_then(|number| number.parse::<u64>().ok());
    numbered_attempt(trial, number.unwrap_or(0).saturating_add(1))
}

/// Returns the attempt that was submitted. A cluster may restart a pod itself. Its agent then appends a suffix to the
/// attempt's identifier: two numbers, as in `k3f9a-1_0_1`, of which the first is more significant, or a part of the
/// pod's id, as in `k3f9a-1_p4c7e2b9d1f0a`.
pub fn submitted_attempt(attempt: &AttemptId) -> AttemptId {
    split_attempt(attempt).0
}

/// Returns whether both attempts belong to the same submitted attempt, and `later` is a later try of the cluster.
pub fn is_later(later: &AttemptId, current: &AttemptId) -> bool {
    let ((one, try_one), (other, try_other)) = (split_attempt(later), split_attempt(current));
    match (try_one, try_other) {
        (PodRestart::Counted(one_count), PodRestart::Counted(other_count)) => {
            one == other && one_count > other_count
        }
        (PodRestart::Counted(_) | PodRestart::Pod(_), _) => false,
    }
}

/// Returns whether an attempt is of a pod of the same submitted attempt, and differs from `current`. The identifiers of
/// two pods do not show which pod is later.
pub fn is_another_pod(attempt: &AttemptId, current: &AttemptId) -> bool {
    let (own, other) = (split_attempt(attempt), split_attempt(current));
    matches!(own.1, PodRestart::Pod(_)) && own.0 == other.0 && attempt != current
}

/// Returns whether an attempt is of a pod of the `submitted` attempt.
pub fn is_pod_of(attempt: &AttemptId, submitted: &AttemptId) -> bool {
    matches!(split_attempt(attempt), (of, PodRestart::Pod(_)) if of == *submitted)
}

/// A pod whose metrics are not the trial's, according to the identifier of its reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtherPod {
    /// The role of the pod.
    pub role: String,
    /// The number of the pod in its role.
    pub index: u64,
    /// The part of the identifier that distinguishes the pods that have this place in turn.
    pub run: String,
}

/// Returns the pod that reports as `attempt`, if it is another pod of the submitted attempt than the one whose metrics
/// are the trial's. The identifier ends with the pod's place, as in `k3f9a-1_p4c7e2b9d1f0a-worker-1`.
pub fn other_pod(attempt: &AttemptId, submitted: &AttemptId) -> Option<OtherPod> {
    let rest = attempt.as_str().strip_prefix(submitted.as_str())?;
    let (run, place) =
        rest.split_once('-').filter(|(run, _)| run.is_empty() || run.starts_with('_'))?;
    let (role, index) = place.rsplit_once('-')?;
    Some(OtherPod { role: role.to_owned(), index: index.parse().ok()?, run: run.to_owned() })
}

/// The part of an attempt's identifier that distinguishes the pods that the cluster's own restarts create.
#[derive(Debug, PartialEq, Eq)]
enum PodRestart<'a> {
    /// The numbers of earlier tries of the whole attempt, and of the pod.
    Counted((u64, u64)),
    /// A try in a pod with this id.
    Pod(&'a str),
}

/// Returns the attempt under which the reports of NNI's own keeper about `attempt` are stored. That keeper supports
/// no attempts and does not number its reports.
pub fn legacy_attempt(attempt: &AttemptId) -> AttemptId {
    // TrialKeeper's ids are far shorter than the maximum. For a longer id, the old keeper's reports are stored but
    // not used.
    AttemptId::new(format!("{attempt}{LEGACY_KEEPER_SUFFIX}"))
        .unwrap_or_else(|_| AttemptId::new("legacy").expect("the constant is an id"))
}

fn split_attempt(attempt: &AttemptId) -> (AttemptId, PodRestart<'_>) {
    let split = || {
        let (rest, task) = attempt.as_str().rsplit_once('_')?;
        let is_pod = |id: &&str| !id.is_empty() && id.chars().all(|c| c.is_ascii_alphanumeric());
        if let Some(pod) = task.strip_prefix('p').filter(is_pod) {
            return Some((AttemptId::new(rest).ok()?, PodRestart::Pod(pod)));
        }
        let (name, framework) = rest.rsplit_once('_')?;
        let name = AttemptId::new(name).ok()?;
        Some((name, PodRestart::Counted((framework.parse().ok()?, task.parse().ok()?))))
    };
    split().unwrap_or_else(|| (attempt.clone(), PodRestart::Counted((0, 0))))
}

fn numbered_attempt(trial: &TrialJobId, number: u64) -> AttemptId {
    AttemptId::new(format!("{trial}-{number}"))
        .expect("a trial's id, a dash and a number are an id")
}

fn random_name(length: usize) -> String {
    let mut rng = rand::rng();
    let mut pick = |from: &[u8]| char::from(from[rng.random_range(0..from.len())]);
    // Begins with a letter, because some names in Kubernetes must.
    let first = pick(LETTERS);
    std::iter::once(first).chain((1..length).map(|_| pick(LETTERS_AND_DIGITS))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_are_numbered() {
        let trial = TrialJobId::new("abcde").unwrap();
        let first = first_attempt(&trial);
        assert_eq!(first.as_str(), "abcde-1");
        assert_eq!(next_attempt(&trial, &first).as_str(), "abcde-2");
        assert_eq!(next_attempt(&trial, &pod_attempt("abcde-2_0_7")).as_str(), "abcde-3");
    }

    fn pod_attempt(attempt: &str) -> AttemptId {
        AttemptId::new(attempt).unwrap()
    }

    #[test]
    fn a_clusters_own_tries_are_later_tries_of_the_submitted_attempt() {
        #[rustfmt::skip]
        let table = [
            ("k-1_0_1",      "k-1",     true),
            ("k-1_1_0",      "k-1_0_7", true),
            ("k-1_0_10",     "k-1_0_9", true),
            ("k-1",          "k-1_0_1", false),
            ("k-1_0_1",      "k-1_0_1", false),
            ("k-2_0_1",      "k-1",     false),
            ("k-1_0_1-ps-0", "k-1",     false),
            ("k-1_x_1",      "k-1",     false),
            ("_1_1",         "k-1",     false),
            ("k-1_0_1-legacy", "k-1",   false),
        ];
        for (later, current, is) in table {
            assert_eq!(
                is_later(&pod_attempt(later), &pod_attempt(current)),
                is,
                "{later} {current}"
            );
        }
        assert_eq!(submitted_attempt(&pod_attempt("k-1_2_1")).as_str(), "k-1");
        assert_eq!(submitted_attempt(&pod_attempt("My_trial-1")).as_str(), "My_trial-1");
    }

    #[test]
    fn the_pods_of_an_attempt_are_distinguished_and_have_no_order() {
        #[rustfmt::skip]
        let table = [
            ("k-1_p4c7e",          "k-1",       true),
            ("k-1_p4c7e",          "k-1_p1234", true),
            ("k-1_p4c7e",          "k-1_p4c7e", false),
            ("k-1",                "k-1_p4c7e", false),
            ("k-2_p4c7e",          "k-1",       false),
            ("k-1_p4c7e-worker-1", "k-1",       false),
            ("k-1_p",              "k-1",       false),
            ("k-1_0_7",            "k-1_p4c7e", false),
        ];
        for (attempt, current, is) in table {
            assert_eq!(
                is_another_pod(&pod_attempt(attempt), &pod_attempt(current)),
                is,
                "{attempt} {current}"
            );
            assert!(!is_later(&pod_attempt(attempt), &pod_attempt(current)), "{attempt} {current}");
        }
        assert_eq!(submitted_attempt(&pod_attempt("k-1_p4c7e")).as_str(), "k-1");
        for (attempt, expected) in [
            ("k-1-worker-1", Some(("worker", 1, ""))),
            ("k-1_p4c7e-ps-0", Some(("ps", 0, "_p4c7e"))),
            ("k-1_0_2-big-worker-12", Some(("big-worker", 12, "_0_2"))),
            ("k-1", None),
            ("k-1_p4c7e", None),
            ("k-1-legacy", None),
            ("k-12-worker-1", None),
            ("k-1-worker-x", None),
        ] {
            let pod = other_pod(&pod_attempt(attempt), &pod_attempt("k-1"));
            let found = pod.as_ref().map(|pod| (pod.role.as_str(), pod.index, pod.run.as_str()));
            assert_eq!(found, expected, "{attempt}");
        }
        assert!(is_pod_of(&pod_attempt("k-1_p4c7e"), &pod_attempt("k-1")));
        assert!(!is_pod_of(&pod_attempt("k-1_p4c7e"), &pod_attempt("k-1_p1234")));
    }
}
