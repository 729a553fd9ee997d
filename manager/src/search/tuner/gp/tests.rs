use proptest::prelude::*;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};
use trial_protocol::{Direction, MetricValue};

use super::process::Settings;
use super::*;
use crate::search::goals::Goals;
use crate::search::tuner::Outcome;

fn numbers(list: &Value) -> Vec<f64> {
    list.as_array().unwrap().iter().map(|n| n.as_f64().unwrap()).collect()
}

fn vectors(list: &Value) -> Vec<Vec<f64>> {
    list.as_array().unwrap().iter().map(numbers).collect()
}

#[test]
fn posterior_and_acquisition_equal_nnis() {
    let cases: Vec<Value> =
        serde_json::from_str(include_str!("../../../../fixtures/tuner/nni_gp.json")).unwrap();
    for case in cases {
        let kernel = Matern::from_nu(case["nu"].as_f64().unwrap()).unwrap();
        let inverse = numbers(&case["scales"]).iter().map(|scale| scale.powi(-2)).collect();
        let settings = Settings { inverse, noise: case["noise"].as_f64().unwrap() };
        let process = Process::new(kernel, settings, vectors(&case["x"]), numbers(&case["y"]));
        let largest = case["largest"].as_f64().unwrap();
        let near = |actual: f64, name: &str, i: usize| {
            let expected = numbers(&case[name])[i];
            assert!(
                (actual - expected).abs() < 1e-6 * expected.abs().max(1.0),
                "{name}: {actual} {expected}"
            );
        };
        for (i, place) in vectors(&case["places"]).iter().enumerate() {
            let (mean, deviation) = process.predict(place);
            near(mean, "mean", i);
            near(deviation, "deviation", i);
            near(Utility::Improvement { xi: 0.01 }.rate(mean, deviation, largest), "ei", i);
            near(Utility::Bound { kappa: 5.0 }.rate(mean, deviation, largest), "ucb", i);
            near(Utility::Probability { xi: 0.01 }.rate(mean, deviation, largest), "poi", i);
        }
    }
}

fn space() -> SearchSpace {
    let json = json!({
        "r": {"_type": "loguniform", "_value": [0.01, 1]},
        "q": {"_type": "quniform", "_value": [0, 10, 5]},
        "i": {"_type": "randint", "_value": [0, 5]},
        "n": {"_type": "choice", "_value": [32, 8, 16]},
        "c": {"_type": "choice", "_value": [{"_name": "a"}, {"_name": "b", "k": {"_type": "normal", "_value": [0, 1]}}]}
    });
    SearchSpace::parse(&json).unwrap()
}

#[test]
fn parameters_are_scaled_by_their_distribution() {
    let space = space();
    let features = Features::new(&space);
    let at = |json: Value| features.vector_of(&space.locate(json.as_object().unwrap()).unwrap());
    let set = std::f64::consts::FRAC_1_SQRT_2;
    let absent = at(json!({"r": 0.1, "q": 5, "i": 4, "n": 16, "c": {"_name": "a"}}));
    let present = at(json!({"r": 1, "q": 10, "i": 0, "n": 8, "c": {"_name": "b", "k": 0}}));
    let near = |a: &[f64], b: &[f64]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-12);
    assert!(near(&absent, &[0.5, 0.5, 1.0, 0.5, set, 0.0, 0.5]), "{absent:?}");
    assert!(near(&present, &[1.0, 1.0, 0.0, 0.0, 0.0, set, 0.5]), "{present:?}");
}

#[test]
fn a_fit_finds_the_length_scales() {
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let places: Vec<Vec<f64>> = (0..40).map(|_| (0..2).map(|_| rng.random()).collect()).collect();
    // The second feature does not matter.
    let values: Vec<f64> = places.iter().map(|x: &Vec<f64>| (6.0 * x[0]).sin()).collect();
    let process = process::fit(Matern::Twice, 1e-6, &places, &values);
    for i in 0..10_u8 {
        let x = f64::from(i) / 10.0 + 0.05;
        let (mean, deviation) = process.predict(&[x, 0.5]);
        assert!(
            (mean - (6.0 * x).sin()).abs() < 0.05 && deviation < 0.1,
            "{x}: {mean} {deviation}"
        );
    }
}

#[test]
fn the_process_has_the_best_and_the_latest_trials() {
    let mut trials = Trials::new(Direction::Minimize, &Goals::default());
    for id in 0..500_u32 {
        trials.propose(u64::from(id), vec![Some(Coordinate::Real(f64::from(id)))]);
        let metric = MetricValue::from(f64::from((id * 77) % 500));
        trials.observe(u64::from(id), &Outcome::Result(metric));
    }
    let chosen = select_trials(&trials);
    assert_eq!(chosen.len(), MAX_PROCESS_TRIALS);
    assert_eq!(chosen.iter().filter(|(_, loss)| *loss < 60.0).count(), 60);
    assert_eq!(chosen.last().unwrap().0, &vec![Some(Coordinate::Real(499.0))]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn random_results_lead_to_a_suggestion(
        results in prop::collection::vec(prop_oneof![
            any::<f64>(), Just(f64::INFINITY), Just(0.0), -1.0..1.0,
        ], 0..30),
        seed: u64,
    ) {
        let space = space();
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut trials = Trials::new(Direction::Maximize, &Goals::default());
        for (id, result) in (0..).zip(results) {
            trials.propose(id, space.sample_point(&mut rng));
            if id % 5 != 0 {
                trials.observe(id, &Outcome::Result(MetricValue::from(result)));
            }
        }
        let none = serde_json::Map::new();
        let model = Gp::from_arguments(&mut Arguments::new("tuner", &none)).unwrap();
        let model = Gp { cold_start: 2, warm_up: 20, ..model };
        let point = model.suggest(&space, &trials, &mut rng);
        prop_assert_eq!(space.validate(&space.parameters(&point)), Ok(()));
    }
}
