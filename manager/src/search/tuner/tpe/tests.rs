use rand::SeedableRng;
use serde_json::{Value, json};

use super::*;
use crate::search::search_space::Real;

fn nni_cases(part: &str) -> Vec<Value> {
    let all: Value =
        serde_json::from_str(include_str!("../../../../fixtures/tuner/nni_tpe.json")).unwrap();
    all[part].as_array().unwrap().clone()
}

fn numbers(list: &Value) -> Vec<f64> {
    list.as_array().unwrap().iter().map(|n| n.as_f64().unwrap_or(f64::NEG_INFINITY)).collect()
}

fn model(case: &Value) -> Tpe {
    let given = json!({"tpe_args": case["tpe_args"]});
    Tpe::from_arguments(&mut Arguments::new("tuner", given.as_object().unwrap())).unwrap()
}

fn prior(case: &Value, model: &Tpe) -> (Real, Prior) {
    let number = |name: &str| case[name].as_f64().unwrap();
    let bounds =
        case["clip"].as_array().map(|clip| (clip[0].as_f64().unwrap(), clip[1].as_f64().unwrap()));
    let shape = match bounds {
        Some((low, high)) => Shape::Uniform { low, high },
        None => Shape::Normal { mu: number("mu"), sigma: number("sigma") },
    };
    (
        Real { shape, log: false, q: None, bounds, integer: false },
        Prior::for_shape(shape, model.prior_weight),
    )
}

fn is_near(a: f64, b: f64) -> bool {
    a.total_cmp(&b).is_eq() || (a - b).abs() <= 1e-9 * a.abs().max(1.0)
}

fn are_all_near(a: &[f64], b: &[f64]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| is_near(*a, *b))
}

fn reals(values: &[Coordinate]) -> Vec<f64> {
    let real = |value: &Coordinate| match value {
        Coordinate::Real(x) => *x,
        Coordinate::Index(_) => f64::NAN,
    };
    values.iter().map(real).collect()
}

fn ranked(case: &Value, coordinate: impl Fn(&Value) -> Coordinate) -> Vec<Coordinate> {
    let record = |pair: &Value| (coordinate(&pair[0]), pair[1].as_f64().unwrap());
    let mut records: Vec<_> = case["history"].as_array().unwrap().iter().map(record).collect();
    sort_by_loss(&mut records);
    records.into_iter().map(|(value, _)| value).collect()
}

#[test]
fn numeric_parameters_are_chosen_as_in_nni() {
    for case in nni_cases("normal") {
        let label = &case["says"];
        let model = model(&case);
        let (_, prior) = prior(&case, &model);
        let history = ranked(&case, |value| Coordinate::Real(value.as_f64().unwrap()));
        let (below, above) = model.split(history);
        assert_eq!(reals(&below), numbers(&case["below"]), "{label}");
        assert_eq!(reals(&above), numbers(&case["above"]), "{label}");

        let good = model.mixture(&below, prior);
        let parts: Vec<f64> = good.parts.iter().flat_map(|p| [p.weight, p.mu, p.sigma]).collect();
        let expected: Vec<f64> =
            case["parts"].as_array().unwrap().iter().flat_map(numbers).collect();
        assert!(are_all_near(&parts, &expected), "{label}: {parts:?} {expected:?}");

        let candidates = numbers(&case["candidates"]);
        let bad = model.mixture(&above, prior);
        let density = |mixture: &Mixture| -> Vec<f64> {
            candidates.iter().map(|x| mixture.log_density(*x)).collect()
        };
        assert!(are_all_near(&density(&good), &numbers(&case["good"])), "{label}");
        assert!(are_all_near(&density(&bad), &numbers(&case["bad"])), "{label}");
        let chosen = best_candidate(&candidates, |x| good.log_density(*x) - bad.log_density(*x));
        assert_eq!(chosen.copied(), case["chosen"].as_f64(), "{label}");
    }
}

#[test]
fn categorical_parameters_are_chosen_as_in_nni() {
    for case in nni_cases("categorical") {
        let label = &case["says"];
        let model = model(&case);
        let options = case["size"].as_u64().unwrap();
        let history = ranked(&case, |value| Coordinate::Index(value.as_u64().unwrap()));
        let (below, above) = model.split(history);
        let (good, bad) = (model.categories(&below, options), model.categories(&above, options));
        let probabilities: Vec<f64> = (0..options).map(|i| good.log_probability(i)).collect();
        assert!(are_all_near(&probabilities, &numbers(&case["good"])), "{label}");
        let candidates: Vec<u64> =
            case["candidates"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).collect();
        let chosen =
            best_candidate(&candidates, |i| good.log_probability(*i) - bad.log_probability(*i));
        assert_eq!(chosen.copied(), case["chosen"].as_u64(), "{label}");
    }
}

#[test]
fn old_values_have_the_same_weights_as_in_nni() {
    for case in nni_cases("weights") {
        let n = usize::try_from(case[0].as_u64().unwrap()).unwrap();
        assert!(are_all_near(&Tpe::default().weights(n), &numbers(&case[1])), "{n}");
    }
}

#[test]
fn numeric_suggestions_are_distributed_as_in_nni() {
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    for case in nni_cases("normal") {
        let label = &case["says"];
        let model = Tpe { startup: 0, ..model(&case) };
        let (real, _) = prior(&case, &model);
        let domain = Domain::Real(real);
        let history = ranked(&case, |value| Coordinate::Real(value.as_f64().unwrap()));
        let mut draws: Vec<f64> = (0..2000)
            .flat_map(|_| reals(&[model.coordinate(&domain, history.clone(), &mut rng)]))
            .collect();
        draws.sort_by(f64::total_cmp);
        for pair in case["quantiles"].as_array().unwrap() {
            let (p, x) = (pair[0].as_f64().unwrap(), pair[1].as_f64().unwrap());
            let below = count_to_f64(draws.partition_point(|draw| *draw < x)) / 2000.0;
            // Four standard errors of two samples of this size.
            assert!((below - p).abs() < 0.07, "{label}: {below} of {p} below {x}");
        }
    }
}

#[test]
fn categorical_suggestions_are_distributed_as_in_nni() {
    let mut rng = ChaCha8Rng::seed_from_u64(2);
    for case in nni_cases("categorical") {
        let model = Tpe { startup: 0, ..model(&case) };
        let size = case["size"].as_u64().unwrap();
        let domain = Domain::Integer { low: 0, size };
        let history = ranked(&case, |value| Coordinate::Index(value.as_u64().unwrap()));
        let mut seen = vec![0.0; usize::try_from(size).unwrap()];
        for _ in 0..2000 {
            match model.coordinate(&domain, history.clone(), &mut rng) {
                Coordinate::Index(i) => seen[usize::try_from(i).unwrap()] += 1.0 / 2000.0,
                Coordinate::Real(_) => panic!("an integer"),
            }
        }
        for (actual, expected) in seen.iter().zip(numbers(&case["shares"])) {
            assert!((actual - expected).abs() < 0.07, "{}: {actual} {expected}", case["says"]);
        }
    }
}

#[test]
fn suggestions_need_neither_a_prior_nor_a_history() {
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    let model = Tpe { startup: 0, prior_weight: 0.0, ..Tpe::default() };
    let shape = Shape::Uniform { low: 0.0, high: 1.0 };
    let real =
        Domain::Real(Real { shape, log: false, q: None, bounds: Some((0.0, 1.0)), integer: false });
    for history in [vec![], vec![Coordinate::Real(0.3)]] {
        let x = reals(&[model.coordinate(&real, history, &mut rng)])[0];
        assert!((0.0..=1.0).contains(&x), "{x}");
    }
    let category = Domain::Integer { low: 0, size: 3 };
    let index = model.coordinate(&category, vec![], &mut rng);
    assert!(matches!(index, Coordinate::Index(0..3)), "{index:?}");
}
