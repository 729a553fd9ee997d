//! Random search: every proposal is drawn independently.

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use super::dedup::Dedup;
use super::{Outcome, Proposal, Sample, Tuner};
use crate::search::search_space::{Parameters, SearchSpace};

/// NNI's `Random`: draws from the space, without repetition.
#[derive(Debug)]
pub(super) struct Random {
    space: SearchSpace,
    seed: u64,
    dedup: Dedup,
}

impl Random {
    pub(super) fn new(space: &SearchSpace, seed: u64) -> Self {
        Self { space: space.clone(), seed, dedup: Dedup::new(space) }
    }
}

impl Tuner for Random {
    fn propose(&mut self, id: u64) -> Proposal {
        let mut rng = generator(self.seed, id);
        match self.dedup.draw_new(|| self.space.sample_point(&mut rng)) {
            Some(parameters) => Proposal::Parameters(parameters),
            None => Proposal::Exhausted,
        }
    }

    fn adopt(&mut self, _id: u64, parameters: &Parameters) {
        self.dedup.adopt(parameters);
    }

    fn observe(&mut self, _id: u64, _outcome: &Outcome) {}

    fn import(&mut self, samples: &[Sample]) {
        for sample in samples {
            self.dedup.adopt(&sample.parameters);
        }
    }
}

/// Returns the random generator for proposal `id`. Each proposal has its own stream, so that it does not depend on
/// other proposals.
pub(super) fn generator(seed: u64, id: u64) -> ChaCha8Rng {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    rng.set_stream(id);
    rng
}
