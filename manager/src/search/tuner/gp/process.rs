//! Gaussian process regression: Matérn kernels with a length scale per feature, unit variance and a nugget.

/// The smoothness of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Matern {
    /// nu = 0.5.
    Rough,
    /// nu = 1.5.
    Once,
    /// nu = 2.5.
    Twice,
}

impl Matern {
    /// Returns the kernel for `nu`, if it has a closed form.
    pub(super) fn from_nu(nu: f64) -> Option<Self> {
        let is = |other: f64| (nu - other).abs() < 1e-9;
        match () {
            () if is(0.5) => Some(Self::Rough),
            () if is(1.5) => Some(Self::Once),
            () if is(2.5) => Some(Self::Twice),
            () => None,
        }
    }

    /// Returns the correlation at a squared, scaled distance.
    fn correlation(self, squared: f64) -> f64 {
        match self {
            Self::Rough => (-squared.sqrt()).exp(),
            Self::Once => {
                let d = (3.0 * squared).sqrt();
                (1.0 + d) * (-d).exp()
            }
            Self::Twice => {
                let d = (5.0 * squared).sqrt();
                (1.0 + d + d * d / 3.0) * (-d).exp()
            }
        }
    }
}

/// The hyper-parameters of the process.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Settings {
    /// The inverse squared length scale of each feature.
    pub(super) inverse: Vec<f64>,
    /// The variance of an observation around the process, whose own variance is 1.
    pub(super) noise: f64,
}

/// A process with observed values.
#[derive(Debug)]
pub(super) struct Process {
    kernel: Matern,
    settings: Settings,
    places: Vec<Vec<f64>>,
    /// The observed values, not standardised.
    values: Vec<f64>,
    /// The mean of the initial values.
    centre: f64,
    /// The standard deviation of the initial values.
    spread: f64,
    /// The lower triangle of the covariance's Cholesky factor, row by row.
    factor: Vec<Vec<f64>>,
    /// The factor's solution for the standardised values.
    solved: Vec<f64>,
}

impl Process {
    /// Creates a process with given settings, and standardises the values.
    pub(super) fn new(
        kernel: Matern,
        settings: Settings,
        places: Vec<Vec<f64>>,
        values: Vec<f64>,
    ) -> Self {
        let count = values.iter().fold(0.0, |n, _| n + 1.0);
        let centre = values.iter().sum::<f64>() / count;
        let variance = values.iter().map(|y| (y - centre).powi(2)).sum::<f64>() / count;
        let spread = if variance > 0.0 { variance.sqrt() } else { 1.0 };
        let empty = Self {
            kernel,
            settings,
            places: Vec::new(),
            values: Vec::new(),
            centre,
            spread,
            factor: Vec::new(),
            solved: Vec::new(),
        };
        places.into_iter().zip(values).fold(empty, |mut process, (place, value)| {
            process.push(place, value);
            process
        })
    }

    /// Adds a value, which adds a row to the factor.
    pub(super) fn push(&mut self, place: Vec<f64>, value: f64) {
        let mut row = self.forward(&place);
        let left = 1.0 + self.settings.noise - row.iter().map(|x| x * x).sum::<f64>();
        // For places that are equal except for rounding, nothing would remain.
        let diagonal = left.max(self.settings.noise.max(1e-10)).sqrt();
        let known: f64 = row.iter().zip(&self.solved).map(|(a, b)| a * b).sum();
        self.solved.push(((value - self.centre) / self.spread - known) / diagonal);
        row.push(diagonal);
        self.factor.push(row);
        self.places.push(place);
        self.values.push(value);
    }

    /// Returns the predicted mean and standard deviation at a place.
    pub(super) fn predict(&self, place: &[f64]) -> (f64, f64) {
        let row = self.forward(place);
        let (mut mean, mut explained) = (0.0, 0.0);
        for (x, y) in row.iter().zip(&self.solved) {
            mean += x * y;
            explained += x * x;
        }
        let variance = (1.0 - explained).max(1e-12);
        (self.centre + self.spread * mean, self.spread * variance.sqrt())
    }

    /// Returns the largest value.
    pub(super) fn largest(&self) -> f64 {
        self.values.iter().copied().fold(f64::NEG_INFINITY, f64::max)
    }

    /// Returns the logarithm of the likelihood of the standardised values, up to a constant.
    fn log_likelihood(&self) -> f64 {
        let fit: f64 = self.solved.iter().map(|x| x * x).sum();
        let size: f64 = self.factor.iter().filter_map(|row| row.last()).map(|d| d.ln()).sum();
        -0.5 * fit - size
    }

    /// Solves the factor for the covariances of a place with the observed places.
    fn forward(&self, place: &[f64]) -> Vec<f64> {
        let mut solution: Vec<f64> = Vec::with_capacity(self.places.len() + 1);
        for (other, row) in self.places.iter().zip(&self.factor) {
            let known: f64 = row.iter().zip(&solution).map(|(a, b)| a * b).sum();
            let diagonal = row[solution.len()];
            solution.push((self.covariance(place, other) - known) / diagonal);
        }
        solution
    }

    fn covariance(&self, a: &[f64], b: &[f64]) -> f64 {
        let scaled = a.iter().zip(b).zip(&self.settings.inverse);
        self.kernel.correlation(scaled.map(|((a, b), inverse)| (a - b).powi(2) * inverse).sum())
    }
}

/// The maximum cost of a fit, in multiplications.
const MAX_FIT_COST: usize = 12_000_000;

/// Returns the process with the settings that make the values most likely.
///
/// First, a common length scale and the noise are chosen from a few combinations. Then each scale in turn is tried
/// longer and shorter, as often as the effort allows; the more values, the fewer tries. A wide prior limits the
/// scales of features that hardly matter.
pub(super) fn fit(
    kernel: Matern,
    least_noise: f64,
    places: &[Vec<f64>],
    values: &[f64],
) -> Process {
    let features = places.first().map_or(1, Vec::len).max(1);
    let n = values.len();
    let cost = n * n * (n / 6 + features) + 1;
    let mut left = (MAX_FIT_COST / cost).clamp(6, 300);
    let usual = 0.5 * f64::from(u32::try_from(features).unwrap_or(u32::MAX)).sqrt();
    let attempt = |scales: &[f64], noise: f64| {
        let inverse = scales.iter().map(|scale| 1.0 / (scale * scale)).collect();
        let settings = Settings { inverse, noise: noise.max(least_noise) };
        let process = Process::new(kernel, settings, places.to_vec(), values.to_vec());
        let prior: f64 = scales.iter().map(|scale| (scale / usual).ln().powi(2)).sum();
        // The prior: with a probability of two thirds, each scale is within a factor of 3 of the usual scale.
        (process.log_likelihood() - prior / 2.4, process)
    };
    let mut scales = vec![usual; features];
    let mut noise = 1e-3;
    let mut best = attempt(&scales, noise);
    for (factor, other) in [(0.3, 1e-3), (2.0, 1e-3), (1.0, 1e-6), (0.5, 3e-2), (0.5, 1e-6)] {
        let tried = vec![usual * factor; features];
        let next = attempt(&tried, other);
        if next.0 > best.0 {
            (best, scales, noise) = (next, tried, other);
        }
    }
    left -= 6;
    let mut stride = 2.0;
    while left > 0 && stride > 1.1 {
        let before = best.0;
        for feature in (0..features).cycle().take(features.min(left / 2 + 1)) {
            for factor in [stride, 1.0 / stride] {
                left = left.saturating_sub(1);
                let mut tried = scales.clone();
                tried[feature] *= factor;
                let next = attempt(&tried, noise);
                if next.0 > best.0 {
                    (best, scales) = (next, tried);
                    break;
                }
            }
        }
        for other in [noise * 10.0, noise / 10.0] {
            left = left.saturating_sub(1);
            let next = attempt(&scales, other.clamp(1e-8, 0.3));
            if next.0 > best.0 {
                (best, noise) = (next, other.clamp(1e-8, 0.3));
            }
        }
        if best.0 - before < 0.1 {
            stride = f64::sqrt(stride);
        }
    }
    best.1
}
