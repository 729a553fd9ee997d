//! The normal distribution of CMA-ES and its update, with the names and defaults from appendix A of Hansen's tutorial.

use rand::Rng;

use crate::search::search_space::normal::standard_normal;

/// The weights of a generation's members, the best first, and the learning rates.
#[derive(Debug, Clone)]
pub(super) struct Weights {
    /// The weights: positive for the better half, negative for the others.
    members: Vec<f64>,
    parents: usize,
    mass: f64,
    c_sigma: f64,
    d_sigma: f64,
    c_c: f64,
    c_1: f64,
    c_mu: f64,
}

/// Converts a count to a double.
fn count_to_f64(n: usize) -> f64 {
    u32::try_from(n).map_or(f64::INFINITY, f64::from)
}

impl Weights {
    /// Returns the default size of a generation: 4 + 3 ln n.
    pub(super) fn default_population(dimensions: usize) -> usize {
        let is_below = |more: &usize| 3.0 * count_to_f64(dimensions).ln() >= count_to_f64(*more);
        4 + (1..200).take_while(is_below).count()
    }

    fn for_population(n: f64, population: usize) -> Self {
        let parents = (population / 2).max(1);
        let raw = |i: usize| (count_to_f64(population + 1) / 2.0).ln() - count_to_f64(i + 1).ln();
        let raw: Vec<f64> = (0..population).map(raw).collect();
        let (better, worse) = raw.split_at(parents);
        let sum = |weights: &[f64]| weights.iter().sum::<f64>();
        let mass = |weights: &[f64]| {
            let squares: f64 = weights.iter().map(|w| w * w).sum();
            if squares > 0.0 { sum(weights).powi(2) / squares } else { 0.0 }
        };
        let (m, m_minus) = (mass(better), mass(worse));
        let c_1 = 2.0 / ((n + 1.3).powi(2) + m);
        let c_mu = (2.0 * (m - 2.0 + 1.0 / m) / ((n + 2.0).powi(2) + m)).min(1.0 - c_1 - 1e-8);
        let c_mu = c_mu.max(1e-9);
        let shrink = (1.0 + c_1 / c_mu)
            .min(1.0 + 2.0 * m_minus / (m + 2.0))
            .min((1.0 - c_1 - c_mu) / (n * c_mu));
        let (plus, minus) = (sum(better), -raw.iter().filter(|w| **w < 0.0).sum::<f64>());
        let scaled = |w: &f64| if *w >= 0.0 { w / plus } else { shrink * w / minus };
        let members = raw.iter().map(scaled).collect();
        let c_sigma = (m + 2.0) / (n + m + 5.0);
        let d_sigma = 1.0 + 2.0 * (((m - 1.0) / (n + 1.0)).sqrt() - 1.0).max(0.0) + c_sigma;
        let c_c = (4.0 + m / n) / (n + 4.0 + 2.0 * m / n);
        Self { members, parents, mass: m, c_sigma, d_sigma, c_c, c_1, c_mu }
    }
}

/// A normal distribution, and its evolution paths.
#[derive(Debug, Clone)]
pub(super) struct Distribution {
    mean: Vec<f64>,
    sigma: f64,
    covariance: Vec<Vec<f64>>,
    /// The eigenvectors of the covariance.
    axes: Vec<Vec<f64>>,
    /// The square roots of the eigenvalues.
    lengths: Vec<f64>,
    path_sigma: Vec<f64>,
    path_c: Vec<f64>,
    generations: i32,
    weights: Weights,
}

impl Distribution {
    pub(super) fn new(mean: Vec<f64>, sigma: f64, population: usize) -> Self {
        let n = mean.len();
        let unit = |i: usize| (0..n).map(|j| if i == j { 1.0 } else { 0.0 }).collect::<Vec<f64>>();
        let identity: Vec<Vec<f64>> = (0..n).map(unit).collect();
        Self {
            mean,
            sigma,
            covariance: identity.clone(),
            axes: identity,
            lengths: vec![1.0; n],
            path_sigma: vec![0.0; n],
            path_c: vec![0.0; n],
            generations: 0,
            weights: Weights::for_population(count_to_f64(n), population),
        }
    }

    /// Returns the largest standard deviation along a parameter.
    pub(super) fn width(&self) -> f64 {
        let widths = self.covariance.iter().enumerate().map(|(i, row)| row[i].max(0.0).sqrt());
        self.sigma * widths.fold(0.0, f64::max)
    }

    pub(super) fn draw(&self, rng: &mut impl Rng) -> Vec<f64> {
        let steps: Vec<f64> =
            self.lengths.iter().map(|length| length * standard_normal(rng)).collect();
        let mut draw = self.mean.clone();
        for (axis, step) in self.axes.iter().zip(steps) {
            for (x, part) in draw.iter_mut().zip(axis) {
                *x += self.sigma * step * part;
            }
        }
        draw
    }

    /// Returns the whitened vector: C^(-1/2) times the vector.
    fn whitened(&self, vector: &[f64]) -> Vec<f64> {
        let mut white = vec![0.0; vector.len()];
        for (axis, length) in self.axes.iter().zip(&self.lengths) {
            let part = dot(axis, vector) / length;
            for (x, a) in white.iter_mut().zip(axis) {
                *x += part * a;
            }
        }
        white
    }

    /// Updates the distribution with a generation, the best member first.
    pub(super) fn update(&mut self, ranked: &[&[f64]]) {
        let n = count_to_f64(self.mean.len());
        let w = self.weights.clone();
        self.generations += 1;
        // A member that was not drawn from this distribution is pulled to the distance of such a draw.
        let farthest = n.sqrt() + 2.0 * n / (n + 2.0) + 1.0;
        let step = |x: &&[f64]| {
            let step: Vec<f64> =
                x.iter().zip(&self.mean).map(|(x, m)| (x - m) / self.sigma).collect();
            let far = norm(&self.whitened(&step));
            let scale = if far > farthest { farthest / far } else { 1.0 };
            (step.into_iter().map(|part| part * scale).collect::<Vec<f64>>(), far.min(farthest))
        };
        let steps: Vec<(Vec<f64>, f64)> = ranked.iter().map(step).collect();
        let mut mean_step = vec![0.0; self.mean.len()];
        for ((step, _), weight) in steps.iter().zip(&w.members).take(w.parents) {
            add_multiple(&mut mean_step, *weight, step);
        }
        let white = self.whitened(&mean_step);
        add_multiple(&mut self.mean, self.sigma, &mean_step);
        for share in &mut self.mean {
            *share = share.clamp(0.0, 1.0);
        }
        let kept = 1.0 - w.c_sigma;
        self.path_sigma.iter_mut().for_each(|part| *part *= kept);
        add_multiple(&mut self.path_sigma, (w.c_sigma * (2.0 - w.c_sigma) * w.mass).sqrt(), &white);
        let expected = n.sqrt() * (1.0 - 1.0 / (4.0 * n) + 1.0 / (21.0 * n * n));
        let length = norm(&self.path_sigma);
        let steady = (1.0 - kept.powi(2 * self.generations)).sqrt();
        let is_moving = length / steady < (1.4 + 2.0 / (n + 1.0)) * expected;
        self.path_c.iter_mut().for_each(|part| *part *= 1.0 - w.c_c);
        if is_moving {
            add_multiple(&mut self.path_c, (w.c_c * (2.0 - w.c_c) * w.mass).sqrt(), &mean_step);
        }
        self.learn_covariance(&steps, is_moving);
        let growth = w.c_sigma / w.d_sigma * (length / expected - 1.0);
        self.sigma = (self.sigma * growth.min(1.0).exp()).min(1.0);
        (self.axes, self.lengths) = principal_axes(&self.covariance);
    }

    fn learn_covariance(&mut self, steps: &[(Vec<f64>, f64)], is_moving: bool) {
        let w = &self.weights;
        let n = count_to_f64(self.mean.len());
        let lost = if is_moving { 0.0 } else { w.c_c * (2.0 - w.c_c) };
        let total: f64 = w.members.iter().sum();
        let kept = 1.0 + w.c_1 * lost - w.c_1 - w.c_mu * total;
        for i in 0..self.mean.len() {
            for j in 0..=i {
                let mut value = kept * self.covariance[i][j];
                value += w.c_1 * self.path_c[i] * self.path_c[j];
                for ((step, far), weight) in steps.iter().zip(&w.members) {
                    // A bad step removes at most the variance in its direction.
                    let scale = if *weight < 0.0 { n / (far * far).max(1e-12) } else { 1.0 };
                    value += w.c_mu * weight * scale * step[i] * step[j];
                }
                self.covariance[i][j] = value;
                self.covariance[j][i] = value;
            }
        }
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn norm(vector: &[f64]) -> f64 {
    dot(vector, vector).sqrt()
}

fn add_multiple(to: &mut [f64], times: f64, vector: &[f64]) {
    for (x, part) in to.iter_mut().zip(vector) {
        *x += times * part;
    }
}

/// The minimum square root of an eigenvalue, as a guard against rounding.
const MIN_AXIS_LENGTH: f64 = 1e-10;

/// Returns the eigenvectors of a symmetric matrix and the square roots of its eigenvalues, after Jacobi.
fn principal_axes(matrix: &[Vec<f64>]) -> (Vec<Vec<f64>>, Vec<f64>) {
    let n = matrix.len();
    let mut a = matrix.to_vec();
    let unit = |i: usize| (0..n).map(|j| if i == j { 1.0 } else { 0.0 }).collect::<Vec<f64>>();
    let mut vectors: Vec<Vec<f64>> = (0..n).map(unit).collect();
    for _ in 0..30 {
        let apart: f64 =
            (0..n).flat_map(|i| (0..i).map(move |j| (i, j))).map(|(i, j)| a[i][j].abs()).sum();
        let scale: f64 = (0..n).map(|i| a[i][i].abs()).sum();
        if apart <= scale * 1e-14 {
            break;
        }
        for p in 0..n {
            for q in p + 1..n {
                rotate(&mut a, &mut vectors, p, q);
            }
        }
    }
    let lengths = (0..n).map(|i| a[i][i].max(0.0).sqrt().max(MIN_AXIS_LENGTH)).collect();
    (vectors, lengths)
}

/// Makes the element (i, j) of the matrix zero by a rotation. `i` is less than `j`. The rows of `vectors` are the axes.
fn rotate(matrix: &mut [Vec<f64>], vectors: &mut [Vec<f64>], i: usize, j: usize) {
    if matrix[i][j].abs() < f64::MIN_POSITIVE {
        return;
    }
    let theta = (matrix[j][j] - matrix[i][i]) / (2.0 * matrix[i][j]);
    let tangent = theta.signum() / (theta.abs() + (theta * theta + 1.0).sqrt());
    let tangent = if theta.abs() < f64::MIN_POSITIVE { 1.0 } else { tangent };
    let cosine = 1.0 / (tangent * tangent + 1.0).sqrt();
    let angle = (cosine, tangent * cosine);
    for row in matrix.iter_mut() {
        (row[i], row[j]) = rotate_pair(row[i], row[j], angle);
    }
    for rows in [matrix, vectors] {
        let (before, from) = rows.split_at_mut(j);
        for (one, other) in before[i].iter_mut().zip(&mut from[0]) {
            (*one, *other) = rotate_pair(*one, *other, angle);
        }
    }
}

fn rotate_pair(one: f64, other: f64, (cosine, sine): (f64, f64)) -> (f64, f64) {
    (cosine * one - sine * other, sine * one + cosine * other)
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    use super::*;

    #[test]
    fn axes_and_lengths_reproduce_the_matrix() {
        let matrix = vec![vec![4.0, 1.0, 0.5], vec![1.0, 3.0, -1.0], vec![0.5, -1.0, 2.0]];
        let (axes, lengths) = principal_axes(&matrix);
        for i in 0..3 {
            for j in 0..3 {
                let value: f64 = (0..3).map(|k| lengths[k].powi(2) * axes[k][i] * axes[k][j]).sum();
                assert!((value - matrix[i][j]).abs() < 1e-12, "{i} {j}: {value}");
            }
        }
    }

    #[test]
    fn generations_have_the_size_from_the_tutorial() {
        let sizes = [1, 2, 5, 10, 40].map(Weights::default_population);
        assert_eq!(sizes, [4, 6, 8, 10, 15]);
        let weights = Weights::for_population(5.0, 8);
        let better: f64 = weights.members.iter().filter(|w| **w > 0.0).sum();
        assert!((better - 1.0).abs() < 1e-12 && weights.members[7] < 0.0);
    }

    #[test]
    fn the_minimum_of_a_rotated_narrow_valley_is_found() {
        // A rotated ellipsoid with the condition number 10,000.
        let loss = |x: &[f64]| {
            let (u, v) = (x[0] - 0.3 + x[1] - 0.6, x[0] - 0.3 - (x[1] - 0.6));
            u * u + 10_000.0 * v * v
        };
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let mut distribution = Distribution::new(vec![0.5, 0.5], 0.2, 6);
        for _ in 0..150 {
            let mut draws: Vec<Vec<f64>> = (0..6).map(|_| distribution.draw(&mut rng)).collect();
            draws.sort_by(|a, b| loss(a).total_cmp(&loss(b)));
            distribution.update(&draws.iter().map(Vec::as_slice).collect::<Vec<_>>());
        }
        assert!(loss(&distribution.mean) < 1e-9, "{:?}", distribution.mean);
    }
}
