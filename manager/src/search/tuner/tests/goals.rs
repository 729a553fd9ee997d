//! Tuners with several objectives and constraints.

use serde_json::{Value, json};
use trial_protocol::{Direction, MetricValue};

use super::super::{Outcome, TunerSpec, build};
use super::{batch_space, mixed_space, propose_all, space, spec};
use crate::search::goals::{Constraint, Goals, Objective};
use crate::search::pareto;

fn two_objectives() -> Goals {
    let objective =
        |metric: &str| Objective { metric: metric.to_owned(), direction: Direction::Minimize };
    Goals { objectives: vec![objective("loss"), objective("latency")], constraints: Vec::new() }
}

fn with_limit(goals: Goals) -> Goals {
    let limit = Constraint { metric: "memory".to_owned(), min: None, max: Some(1.0) };
    Goals { constraints: vec![limit], ..goals }
}

#[test]
fn unsupported_goals_are_refused_with_the_tuners_that_support_them() {
    let refused = |name: &str, goals: Goals| {
        let spec = TunerSpec { goals, ..spec(name, &json!({})) };
        let json = if name == "Batch" { batch_space() } else { mixed_space() };
        build(&spec, &space(&json), 0).err().map(|error| error.to_string())
    };
    for name in ["TPE", "NSGA-II", "QMC", "Random", "GridSearch", "Batch"] {
        assert_eq!(refused(name, with_limit(two_objectives())), None, "{name}");
    }
    for name in ["Anneal", "Evolution", "GP", "Hyperband", "BOHB", "CMA-ES"] {
        let error = refused(name, two_objectives()).unwrap();
        let expected = format!(
            "tuner.name: {name} supports only one objective; for several objectives, use TPE or NSGA-II"
        );
        assert!(error.starts_with(&expected), "{error}");
        let error = refused(name, with_limit(Goals::default()));
        assert_eq!(error.is_none(), name == "CMA-ES", "{name}: {error:?}");
    }
    let as_nni = TunerSpec { goals: two_objectives(), ..spec("TPE", &json!({"tpe_args": {}})) };
    assert!(build(&as_nni, &space(&mixed_space()), 0).is_err());
}

/// Returns the hypervolume of a tuner's results on ZDT1 in four dimensions, and the share of its later trials within
/// the limit.
fn volume_on_zdt1(name: &str, goals: &Goals, seed: u64, trials: u64) -> (f64, f64) {
    let unit = json!({"_type": "uniform", "_value": [0, 1]});
    let json = json!({"x0": unit, "x1": unit, "x2": unit, "x3": unit});
    let spec = TunerSpec { goals: goals.clone(), ..spec(name, &json!({})) };
    let mut tuner = build(&spec, &space(&json), seed).unwrap();
    let (mut found, mut kept) = (Vec::new(), 0.0);
    for id in 0..trials {
        let parameters = propose_all(tuner.as_mut(), id, id + 1).remove(0);
        let x: Vec<f64> = parameters.values().filter_map(Value::as_f64).collect();
        let g = 1.0 + 3.0 * (x[1] + x[2] + x[3]);
        let both = vec![x[0], g * (1.0 - (x[0] / g).sqrt())];
        let memory = x[0] * 2.0;
        let value =
            json!({"default": both[0], "loss": both[0], "latency": both[1], "memory": memory});
        if memory <= 1.0 && id >= trials / 2 {
            kept += 2.0 / f64::from(u32::try_from(trials).unwrap());
        }
        if memory <= 1.0 || goals.constraints.is_empty() {
            found.push(both);
        }
        tuner.observe(id, &Outcome::Result(MetricValue::from(value)));
    }
    let found: Vec<&[f64]> = found.iter().map(Vec::as_slice).collect();
    (pareto::hypervolume(&found, &[1.1, 6.0]), kept)
}

#[test]
fn tuners_optimise_several_objectives_and_satisfy_limits() {
    let mean = |name: &str, goals: &Goals| {
        let found = (0..5).map(|seed| volume_on_zdt1(name, goals, seed, 200));
        found.fold((0.0, 0.0), |(a, b), (volume, kept)| (a + volume / 5.0, b + kept / 5.0))
    };
    let goals = two_objectives();
    let random = mean("Random", &goals).0;
    for name in ["TPE", "NSGA-II"] {
        let (volume, _) = mean(name, &goals);
        // The best possible volume is 6.27.
        assert!(6.27 - volume < (6.27 - random) / 1.5, "{name}: {volume}, by chance {random}");
        let (_, kept) = mean(name, &with_limit(goals.clone()));
        assert!(kept > 0.75, "{name}: {kept}, by chance 0.5");
    }
}
