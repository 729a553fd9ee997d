//! `NSGA-II` (Deb and others, 2002) for several objectives, one child at a time (Durillo and others, 2009).
//!
//! The population consists of the best known trials: front after front, and the least crowded trials of the last
//! front. A child has two parents, each the better of two random members. Its numbers are crossed and mutated as in
//! Deb's method (simulated binary crossover, polynomial mutation), each on the scale of its own distribution. Its
//! options are those of a parent, or random. There are no generations, because a generation would wait for its
//! slowest trial.

use rand::Rng;
use rand_chacha::ChaCha8Rng;

use super::Error;
use super::model_based::{Model, Trials};
use crate::search::class_args::Arguments;
use crate::search::goals::Merit;
use crate::search::pareto::{crowding_distances, sort_into_fronts};
use crate::search::search_space::{Coordinate, Domain, Point, SearchSpace};

/// Deb's distribution index of the crossover. The larger it is, the nearer a child is to its parents.
const CROSSOVER_INDEX: f64 = 15.0;
/// Deb's distribution index of the mutation. The larger it is, the smaller a mutation is.
const MUTATION_INDEX: f64 = 20.0;

/// The model of `NSGA-II`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Nsga2 {
    /// The number of trials in the population.
    population: usize,
    /// The probability that a child has two parents. Other children are mutants of one parent.
    crossover: f64,
    /// The probability of a mutation, for each parameter. With `None`, one parameter mutates on average.
    mutation: Option<f64>,
}

/// A member of the population. A smaller front is better, then a larger crowding distance.
struct Member<'a> {
    point: &'a Point,
    front: usize,
    distance: f64,
}

impl Nsga2 {
    /// Reads `classArgs`.
    pub(super) fn from_arguments(arguments: &mut Arguments<'_>) -> Result<Self, Error> {
        let population = arguments.integer("population_size", 2..=10_000)?.unwrap_or(40);
        let population = usize::try_from(population).unwrap_or(usize::MAX);
        let mut chance = |name| match arguments.number(name, 0.0)? {
            Some(chance) if chance > 1.0 => {
                arguments.fault(name, format!("expected a number from 0 to 1, found {chance}"))
            }
            chance => Ok(chance),
        };
        let crossover = chance("crossover_prob")?.unwrap_or(0.9);
        Ok(Self { population, crossover, mutation: chance("mutation_prob")? })
    }

    /// Returns the population, the best member first.
    fn population<'a>(&self, trials: &'a Trials) -> Vec<Member<'a>> {
        let (points, merits): (Vec<&Point>, Vec<&Merit>) = trials.merits().unzip();
        let mut members = Vec::new();
        for (front, indices) in sort_into_fronts(&merits, self.population).into_iter().enumerate() {
            let of_front: Vec<&Merit> = indices.iter().map(|at| merits[*at]).collect();
            let mut ranked: Vec<(f64, usize)> =
                crowding_distances(&of_front).into_iter().zip(indices).collect();
            ranked.sort_by(|(a, one), (b, other)| b.total_cmp(a).then(one.cmp(other)));
            let room = self.population - members.len();
            let of_front = ranked.into_iter().take(room);
            members.extend(of_front.map(|(distance, at)| Member {
                point: points[at],
                front,
                distance,
            }));
        }
        members
    }
}

impl Model for Nsga2 {
    fn is_starting(&self, trials: &Trials) -> bool {
        trials.merits().count() < self.population.div_ceil(2)
    }

    fn suggest(&self, space: &SearchSpace, trials: &Trials, rng: &mut ChaCha8Rng) -> Point {
        let population = self.population(trials);
        if population.is_empty() {
            return space.sample_point(rng);
        }
        let one = select_parent(&population, rng);
        let is_crossed = rng.random::<f64>() < self.crossover;
        let other = if is_crossed { select_parent(&population, rng) } else { one };
        self.breed_child(space, one, other, rng)
    }
}

/// Returns the better of two random members.
fn select_parent<'a>(population: &[Member<'a>], rng: &mut impl Rng) -> &'a Point {
    let one = &population[rng.random_range(0..population.len())];
    let other = &population[rng.random_range(0..population.len())];
    let is_better = (one.front, -one.distance) <= (other.front, -other.distance);
    if is_better { one.point } else { other.point }
}

impl Nsga2 {
    fn breed_child(
        &self,
        space: &SearchSpace,
        one: &Point,
        other: &Point,
        rng: &mut impl Rng,
    ) -> Point {
        let present = one.iter().filter(|at| at.is_some()).count().max(1);
        let one_of_them = 1.0 / f64::from(u32::try_from(present).unwrap_or(u32::MAX));
        let mutation = self.mutation.unwrap_or(one_of_them);
        let mut child: Point = Vec::with_capacity(one.len());
        for (index, dimension) in space.dimensions().iter().enumerate() {
            if !space.is_present(index, &child) {
                child.push(None);
                continue;
            }
            let domain = &dimension.domain;
            let inherited = match (one[index], other[index]) {
                (Some(a), Some(b)) => cross_coordinates(domain, a, b, rng),
                (Some(at), None) | (None, Some(at)) => at,
                (None, None) => domain.sample(rng),
            };
            let mutates = rng.random::<f64>() < mutation;
            child.push(Some(if mutates {
                mutate_coordinate(domain, inherited, rng)
            } else {
                inherited
            }));
        }
        child
    }
}

/// Returns the coordinate that a child inherits from two parents.
fn cross_coordinates(
    domain: &Domain,
    one: Coordinate,
    other: Coordinate,
    rng: &mut impl Rng,
) -> Coordinate {
    let (one, other) = if rng.random() { (one, other) } else { (other, one) };
    if one == other || !domain.is_numeric() || rng.random() {
        return one;
    }
    let (x, y) = (domain.share(one), domain.share(other));
    let u: f64 = rng.random();
    let power = 1.0 / (CROSSOVER_INDEX + 1.0);
    let spread = if u <= 0.5 { (2.0 * u).powf(power) } else { (2.0 * (1.0 - u)).powf(-power) };
    coordinate_at_share(domain, f64::midpoint(x, y) + spread * (x - y) / 2.0)
}

/// Returns a position near `at` for a number, or a random option.
fn mutate_coordinate(domain: &Domain, at: Coordinate, rng: &mut impl Rng) -> Coordinate {
    if !domain.is_numeric() {
        return domain.sample(rng);
    }
    let x = domain.share(at);
    let u: f64 = rng.random();
    let power = MUTATION_INDEX + 1.0;
    let step = if u < 0.5 {
        let far = (1.0 - x).powf(power);
        (2.0 * u + (1.0 - 2.0 * u) * far).powf(1.0 / power) - 1.0
    } else {
        let far = x.powf(power);
        1.0 - (2.0 * (1.0 - u) + (2.0 * u - 1.0) * far).powf(1.0 / power)
    };
    coordinate_at_share(domain, x + step)
}

/// Returns the position at a share of the distribution. Excludes the infinite ends of a normal distribution.
fn coordinate_at_share(domain: &Domain, share: f64) -> Coordinate {
    let margin = match domain {
        Domain::Real(real) if real.bounds.is_none() => 1e-6,
        Domain::Real(_) | Domain::Integer { .. } | Domain::Choice(_) | Domain::Nested(_) => 0.0,
    };
    domain.at_share(share.clamp(margin, 1.0 - margin))
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use serde_json::json;

    use super::*;

    #[test]
    fn children_are_within_the_space_and_near_their_parents() {
        let space = SearchSpace::parse(&json!({
            "a": {"_type": "uniform", "_value": [0, 1]},
            "n": {"_type": "lograndint", "_value": [1, 1000]},
            "b": {"_type": "choice", "_value": [
                {"_name": "p"}, {"_name": "q", "c": {"_type": "normal", "_value": [0, 1]}}]},
            "k": {"_type": "randint", "_value": [0, 9]}
        }))
        .unwrap();
        let mut rng = ChaCha8Rng::seed_from_u64(2);
        let nsga = Nsga2 { population: 9, crossover: 1.0, mutation: None };
        let (mut distance, mut apart) = (0.0, 0.0);
        for _ in 0..500 {
            let (one, other) = (space.sample_point(&mut rng), space.sample_point(&mut rng));
            let child = nsga.breed_child(&space, &one, &other, &mut rng);
            assert_eq!(space.validate(&space.parameters(&child)), Ok(()));
            let share = |point: &Point| space.dimensions()[0].domain.share(point[0].unwrap());
            let to = |point: &Point| (share(&child) - share(point)).abs();
            distance += to(&one).min(to(&other));
            apart += (share(&one) - share(&other)).abs();
        }
        assert!(distance < apart / 5.0, "{distance} {apart}");
    }
}
