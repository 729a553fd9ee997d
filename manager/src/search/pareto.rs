//! PURE: Pareto fronts, the crowding of a front, and the volume that a front dominates (the hypervolume).

use super::goals::Merit;

/// Returns fronts of indices until they contain at least `enough` merits. The first front has the merits that no merit
/// dominates, the second front those that only the first front dominates, and so on. Each front is sorted by
/// [`Merit::compare`].
pub fn sort_into_fronts(merits: &[&Merit], enough: usize) -> Vec<Vec<usize>> {
    let mut left: Vec<usize> = (0..merits.len()).collect();
    left.sort_by(|a, b| merits[*a].compare(merits[*b]).then(a.cmp(b)));
    let (mut fronts, mut count) = (Vec::new(), 0);
    while !left.is_empty() && count < enough {
        let mut front: Vec<usize> = Vec::new();
        // In this order, a merit precedes the merits that it dominates.
        left.retain(|index| {
            let is_dominated = front.iter().any(|at| merits[*at].dominates(merits[*index]));
            if !is_dominated {
                front.push(*index);
            }
            is_dominated
        });
        count += front.len();
        fronts.push(front);
    }
    fronts
}

/// Returns the indices of the `count` best merits: front after front, and from the last front the merits that together
/// dominate the largest volume. With one objective, returns the smallest losses; of equal losses, the earlier first.
pub fn select_best(merits: &[&Merit], count: usize) -> Vec<usize> {
    let mut chosen = Vec::new();
    if merits.first().is_none_or(|merit| merit.losses.len() < 2) {
        chosen.extend(0..merits.len());
        // The sort is stable: of equal merits, the earlier is first.
        chosen.sort_by(|a, b| merits[*a].compare(merits[*b]));
        chosen.truncate(count);
        return chosen;
    }
    for front in sort_into_fronts(merits, count) {
        let room = count - chosen.len();
        if front.len() <= room {
            chosen.extend(front);
            continue;
        }
        let points: Vec<&[f64]> = front.iter().map(|at| merits[*at].losses.as_slice()).collect();
        let reference = reference_point(&points);
        chosen.extend(select_by_volume(&points, &reference, room).into_iter().map(|at| front[at]));
    }
    chosen
}

/// Returns a reference point that is slightly worse than the worst finite loss of each objective.
fn reference_point(points: &[&[f64]]) -> Vec<f64> {
    let objectives = points.first().map_or(0, |point| point.len());
    let limit = |objective: usize| {
        let losses = points.iter().map(|point| point[objective]).filter(|loss| loss.is_finite());
        let (least, most) = losses
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), loss| {
                (least.min(loss), most.max(loss))
            });
        let margin = ((most - least) * 0.1).max(most.abs() * 1e-9).max(f64::MIN_POSITIVE);
        if most.is_finite() { most + margin } else { 0.0 }
    };
    (0..objectives).map(limit).collect()
}

/// Returns the crowding distance of each merit of a front: the distance between its neighbours, relative to the front's
/// extent, summed over the objectives. It is infinite at the ends of the front.
pub fn crowding_distances(front: &[&Merit]) -> Vec<f64> {
    let mut distances = vec![0.0; front.len()];
    let objectives = front.first().map_or(0, |merit| merit.losses.len());
    for objective in 0..objectives {
        let loss = |at: usize| front[at].losses[objective];
        let mut order: Vec<usize> = (0..front.len()).collect();
        order.sort_by(|a, b| loss(*a).total_cmp(&loss(*b)));
        let (first, last) = (order[0], order[order.len() - 1]);
        let extent = loss(last) - loss(first);
        distances[first] = f64::INFINITY;
        distances[last] = f64::INFINITY;
        for three in order.windows(3) {
            let gap = loss(three[2]) - loss(three[0]);
            if extent > 0.0 && gap.is_finite() {
                distances[three[1]] += gap / extent;
            }
        }
    }
    distances
}

/// Returns the hypervolume: the volume between a reference point and the points that are better than it, for any
/// number of objectives, which are all minimised.
///
/// The result is exact. The cost is n log n steps for two objectives and n² for three. Each further objective
/// multiplies it by n at worst.
pub fn hypervolume(points: &[&[f64]], reference: &[f64]) -> f64 {
    let is_better = |point: &&&[f64]| point.iter().zip(reference).all(|(x, limit)| x < limit);
    let points: Vec<&[f64]> = points.iter().filter(is_better).copied().collect();
    sum_slices(points, reference)
}

/// Returns the hypervolume of points that are all better than the reference, as a sum of slices along the last
/// objective.
fn sum_slices(mut points: Vec<&[f64]>, reference: &[f64]) -> f64 {
    let Some((last, rest)) = reference.split_last() else { return 0.0 };
    let depth = rest.len();
    points.sort_by(|a, b| a[depth].total_cmp(&b[depth]));
    match depth {
        0 => points.first().map_or(0.0, |point| last - point[0]),
        1 => {
            let mut reached = reference[0];
            let strip = |point: &[f64]| {
                let width = (reached - point[0]).max(0.0);
                reached = reached.min(point[0]);
                width * (last - point[1])
            };
            points.into_iter().map(strip).sum()
        }
        _ => {
            let (mut sum, mut slice) = (0.0, Vec::<&[f64]>::new());
            for (at, point) in points.iter().enumerate() {
                let is_dominated =
                    |known: &&[f64]| known.iter().zip(&point[..depth]).all(|(a, b)| a <= b);
                if !slice.iter().any(is_dominated) {
                    slice.retain(|known| !known.iter().zip(&point[..depth]).all(|(a, b)| b <= a));
                    slice.push(&point[..depth]);
                }
                let next = points.get(at + 1).map_or(*last, |next| next[depth]);
                if next > point[depth] {
                    sum += (next - point[depth]) * sum_slices(slice.clone(), rest);
                }
            }
            sum
        }
    }
}

/// Returns the indices of `count` points that together dominate a large volume. Greedy: repeatedly takes the point that
/// adds most to the volume. Infinite points are taken last.
pub fn select_by_volume(points: &[&[f64]], reference: &[f64], count: usize) -> Vec<usize> {
    let mut chosen: Vec<usize> = Vec::new();
    let mut taken: Vec<&[f64]> = Vec::new();
    let alone = |point: &[f64]| hypervolume(&[point], reference);
    // A point's gain never grows when other points are taken, so an earlier gain is an upper bound.
    let mut bounds: Vec<(f64, usize)> =
        points.iter().enumerate().map(|(at, point)| (alone(point), at)).collect();
    let mut volume = 0.0;
    while chosen.len() < count.min(points.len()) {
        bounds.sort_by(|(a, one), (b, other)| b.total_cmp(a).then(one.cmp(other)));
        let mut best: Option<(f64, usize)> = None;
        for (bound, at) in &mut bounds {
            if best.is_some_and(|(known, _)| *bound <= known) {
                break;
            }
            taken.push(points[*at]);
            *bound = hypervolume(&taken, reference) - volume;
            taken.pop();
            if best.is_none_or(|(known, _)| *bound > known) {
                best = Some((*bound, *at));
            }
        }
        let Some((gain, at)) = best else { break };
        volume += gain;
        taken.push(points[at]);
        chosen.push(at);
        bounds.retain(|(_, other)| *other != at);
    }
    chosen
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn merits(losses: &[[f64; 2]]) -> Vec<Merit> {
        losses.iter().map(|l| Merit { losses: l.to_vec(), violation: 0.0 }).collect()
    }

    #[test]
    fn fronts_are_returned_until_they_contain_enough_merits() {
        let all = merits(&[[2.0, 2.0], [1.0, 3.0], [3.0, 1.0], [3.0, 3.0], [2.0, 2.0], [9.0, 9.0]]);
        let all: Vec<&Merit> = all.iter().collect();
        assert_eq!(sort_into_fronts(&all, 9), [vec![1, 0, 4, 2], vec![3], vec![5]]);
        assert_eq!(sort_into_fronts(&all, 5).len(), 2);
    }

    #[test]
    fn the_ends_of_a_front_have_an_infinite_distance() {
        let front = merits(&[[0.0, 4.0], [1.0, 2.0], [4.0, 0.0]]);
        let distances = crowding_distances(&front.iter().collect::<Vec<_>>());
        assert_eq!(distances, [f64::INFINITY, 2.0, f64::INFINITY]);
    }

    /// A name, points, a reference and the volume.
    type Row = (&'static str, &'static [&'static [f64]], &'static [f64], f64);

    #[test]
    fn hypervolumes_of_simple_shapes_are_exact() {
        let volume = |points: &[&[f64]], reference: &[f64]| hypervolume(points, reference);
        #[rustfmt::skip]
        let table: [Row; 8] = [
            ("nothing",              &[],                                                       &[1.0, 1.0],           0.0),
            ("one objective",        &[&[0.25], &[0.5]],                                        &[1.0],                0.75),
            ("a staircase",          &[&[1.0, 3.0], &[2.0, 2.0], &[3.0, 1.0]],                  &[4.0, 4.0],           6.0),
            ("a dominated one",      &[&[1.0, 1.0], &[2.0, 2.0]],                               &[3.0, 3.0],           4.0),
            ("beyond the reference", &[&[1.0, 5.0], &[2.0, 2.0]],                               &[3.0, 3.0],           1.0),
            ("a cube",               &[&[0.0, 0.0, 0.0]],                                       &[1.0, 2.0, 3.0],      6.0),
            // Three bars of 1 x 1 x 3 that share a corner cube.
            ("three bars",           &[&[2.0, 2.0, 0.0], &[2.0, 0.0, 2.0], &[0.0, 2.0, 2.0]],   &[3.0, 3.0, 3.0],      7.0),
            ("four objectives",      &[&[0.0, 0.0, 0.0, 1.0], &[1.0, 0.0, 0.0, 0.0]],           &[2.0, 1.0, 1.0, 2.0], 3.0),
        ];
        for (label, points, reference, expected) in table {
            assert!((volume(points, reference) - expected).abs() < 1e-12, "{label}");
        }
        // The square up to the reference without a quarter of a circle.
        let arc: Vec<[f64; 2]> = (0..=4000)
            .map(|i| (f64::from(i) / 4000.0 * std::f64::consts::FRAC_PI_2).sin_cos())
            .map(|(x, y)| [x, y])
            .collect();
        let arc: Vec<&[f64]> = arc.iter().map(<[f64; 2]>::as_slice).collect();
        let expected = 1.1 * 1.1 - std::f64::consts::FRAC_PI_4;
        assert!((hypervolume(&arc, &[1.1, 1.1]) - expected).abs() < 1e-3);
    }

    #[test]
    fn the_points_that_add_most_volume_are_taken_first() {
        let points: [&[f64]; 4] = [&[0.0, 3.0], &[1.0, 1.0], &[1.1, 0.9], &[3.0, 0.0]];
        let mut chosen = select_by_volume(&points, &[4.0, 4.0], 3);
        assert_eq!(chosen[0], 1, "the largest alone");
        chosen.sort_unstable();
        assert_eq!(chosen, [0, 1, 3]);
        assert_eq!(select_by_volume(&points, &[4.0, 4.0], 9).len(), 4);
    }

    proptest! {
        #[test]
        fn the_volume_of_three_objectives_is_that_of_its_cells(
            points in prop::collection::vec(prop::array::uniform3(0_u8..4), 0..7),
        ) {
            let points: Vec<[f64; 3]> = points.into_iter().map(|p| p.map(f64::from)).collect();
            let points: Vec<&[f64]> = points.iter().map(<[f64; 3]>::as_slice).collect();
            let mut cells = 0.0;
            for x in 0..4 {
                for y in 0..4 {
                    for z in 0..4 {
                        let cell = [f64::from(x), f64::from(y), f64::from(z)];
                        let covers = |p: &&&[f64]| p.iter().zip(&cell).all(|(a, b)| a <= b);
                        cells += f64::from(u8::from(points.iter().any(|p| covers(&p))));
                    }
                }
            }
            prop_assert!((hypervolume(&points, &[4.0; 3]) - cells).abs() < 1e-9);
        }

        #[test]
        fn fronts_contain_all_merits_and_no_dominated_ones(
            losses in prop::collection::vec(prop::array::uniform2(0_u8..5), 0..30),
        ) {
            let all = merits(&losses.iter().map(|l| l.map(f64::from)).collect::<Vec<_>>());
            let all: Vec<&Merit> = all.iter().collect();
            let found = sort_into_fronts(&all, usize::MAX);
            prop_assert_eq!(found.iter().map(Vec::len).sum::<usize>(), all.len());
            for (at, front) in found.iter().enumerate() {
                for one in front {
                    prop_assert!(front.iter().all(|other| !all[*other].dominates(all[*one])));
                    let before = at.checked_sub(1).map(|at| &found[at]);
                    let is_below = before.is_none_or(|before| {
                        before.iter().any(|other| all[*other].dominates(all[*one]))
                    });
                    prop_assert!(is_below);
                }
            }
        }
    }
}
