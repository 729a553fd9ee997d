//! PURE: numbers that a seed decides, the same on every machine and for ever.

/// A generator that a seed determines (`SplitMix64`: every seed is as good as any other).
#[derive(Debug, Clone)]
pub struct Dice(u64);

impl Dice {
    /// The dice of a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `limit`, which must not be 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// A number from `least` to `most`.
    pub fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.below(most - least + 1)
    }

    /// Likewise, for counts.
    pub fn count(&mut self, least: usize, most: usize) -> usize {
        let narrow = |number: usize| u64::try_from(number).expect("a count is small");
        usize::try_from(self.between(narrow(least), narrow(most))).expect("it is at most a count")
    }

    /// True in `of_hundred` of a hundred cases.
    pub fn chance(&mut self, of_hundred: u64) -> bool {
        self.below(100) < of_hundred
    }

    /// One of them.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.count(0, from.len() - 1)]
    }
}
