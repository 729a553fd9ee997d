//! Fresh names: random, short, lower-case (Kubernetes' names are, and must not make two ids collide).

use rand::Rng as _;
use trial_protocol::{AttemptId, ExperimentId, TrialJobId};

const LETTERS: &[u8] = b"abcdefghijklmnopqrstuvwxyz";
const LETTERS_AND_DIGITS: &[u8] = b"abcdefghijklmnopqrstuvwxyz0123456789";

/// A new experiment's id: 8 characters.
pub fn experiment() -> ExperimentId {
    ExperimentId::new(name(8)).expect("letters and digits are an id")
}

/// A new trial's id: 5 characters. It may be taken; the caller looks.
pub fn trial() -> TrialJobId {
    TrialJobId::new(name(5)).expect("letters and digits are an id")
}

/// A seed for a search that was given none.
pub fn seed() -> u64 {
    // 53 bits, so that any JSON reader can hold the number.
    rand::rng().random_range(0..1 << 53)
}

/// The name of something that happened, which nothing else ever has.
pub fn event() -> String {
    name(20)
}

/// A part of an address that nobody guesses.
pub fn secret_path() -> String {
    name(24)
}

/// The first attempt of a trial.
pub fn first_attempt(trial: &TrialJobId) -> AttemptId {
    attempt(trial, 1)
}

/// The attempt after `last`.
pub fn next_attempt(trial: &TrialJobId, last: &AttemptId) -> AttemptId {
    let number = last.as_str().rsplit('-').next().and_then(|number| number.parse::<u64>().ok());
    attempt(trial, number.unwrap_or(0).saturating_add(1))
}

fn attempt(trial: &TrialJobId, number: u64) -> AttemptId {
    AttemptId::new(format!("{trial}-{number}"))
        .expect("a trial's id, a dash and a number are an id")
}

fn name(length: usize) -> String {
    let mut rng = rand::rng();
    let mut pick = |from: &[u8]| char::from(from[rng.random_range(0..from.len())]);
    // A letter first: some names in Kubernetes must begin with one.
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
    }
}
