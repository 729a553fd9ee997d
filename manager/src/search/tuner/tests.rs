mod goals;

use proptest::prelude::*;
use serde_json::json;
use trial_protocol::MetricValue;

use super::*;

/// All tuners that search a space of parameters without budgets.
const SEARCHING_TUNERS: [&str; 9] =
    ["TPE", "Anneal", "Evolution", "GP", "CMA-ES", "NSGA-II", "QMC", "Random", "GridSearch"];

fn space(json: &Value) -> SearchSpace {
    SearchSpace::parse(json).unwrap()
}

fn spec(name: &str, class_args: &Value) -> TunerSpec {
    TunerSpec::new(name, class_args.as_object().unwrap().clone()).unwrap()
}

fn tuner(name: &str, json: &Value, seed: u64) -> Box<dyn Tuner> {
    build(&spec(name, &json!({})), &space(json), seed).unwrap()
}

/// Returns the proposals `from..to`, or fewer if the space is exhausted.
fn propose_all(tuner: &mut dyn Tuner, from: u64, to: u64) -> Vec<Parameters> {
    let parameters = |id| match tuner.propose(id) {
        Proposal::Parameters(parameters) => Some(parameters),
        Proposal::Exhausted => None,
        Proposal::Wait => panic!("no trial runs"),
    };
    (from..to).map_while(parameters).collect()
}

fn finite_space() -> Value {
    json!({
        "a": {"_type": "choice", "_value": ["x", "y", "z"]},
        "b": {"_type": "randint", "_value": [0, 4]},
        "c": {"_type": "choice", "_value": [
            {"_name": "off"}, {"_name": "on", "d": {"_type": "quniform", "_value": [0, 1, 0.5]}}]}
    })
}

fn mixed_space() -> Value {
    json!({
        "lr": {"_type": "loguniform", "_value": [0.0001, 0.1]},
        "layers": {"_type": "randint", "_value": [1, 5]},
        "batch": {"_type": "lograndint", "_value": [4, 1025]},
        "drop": {"_type": "quniform", "_value": [0, 0.5, 0.1]},
        "width": {"_type": "qlognormal", "_value": [3, 1, 8]},
        "opt": {"_type": "choice", "_value": [
            {"_name": "sgd", "momentum": {"_type": "uniform", "_value": [0, 1]}}, {"_name": "adam"}]}
    })
}

fn batch_space() -> Value {
    json!({"sets": {"_type": "choice", "_value": [
        {"x": 1, "y": 1}, {"x": 1, "y": 2}, {"x": 1, "y": 1}, {"x": 3}]}})
}

#[test]
fn grid_search_has_the_same_proposals_and_order_as_nni() {
    let vectors: Value =
        serde_json::from_str(include_str!("../../../fixtures/config/nni_vectors.json")).unwrap();
    for case in vectors["grid"].as_array().unwrap() {
        let points = case["points"].as_array().unwrap();
        let mut grid = tuner("GridSearch", &case["space"], 0);
        let limit = points.len().try_into().unwrap();
        let proposed = propose_all(grid.as_mut(), 0, limit);
        assert_eq!(proposed.len(), points.len(), "{}", case["says"]);
        for (actual, expected) in proposed.into_iter().zip(points) {
            assert!(
                is_close(&Value::Object(actual.clone()), expected),
                "{}: {actual:?} {expected}",
                case["says"]
            );
        }
        assert_eq!(
            grid.propose(limit) == Proposal::Exhausted,
            case["exhausted"],
            "{}",
            case["says"]
        );
    }
}

/// Returns whether two values are equal except for the last digits, because `SciPy`'s error function rounds
/// differently.
fn is_close(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|((k, a), (l, b))| k == l && is_close(a, b))
        }
        (Value::Number(x), Value::Number(y)) if x.is_f64() && y.is_f64() => {
            let (x, y) = (x.as_f64().unwrap(), y.as_f64().unwrap());
            (x - y).abs() <= 1e-13 * x.abs().max(1.0)
        }
        _ => a == b,
    }
}

#[test]
fn a_grid_of_unbounded_multiples_ends_at_the_precision_of_doubles() {
    let json = json!({"x": {"_type": "qnormal", "_value": [0, 1, 100]}});
    assert_eq!(propose_all(tuner("GridSearch", &json, 0).as_mut(), 0, 9).len(), 1);
}

#[test]
fn every_point_of_a_finite_space_is_proposed_exactly_once() {
    let size = space(&finite_space()).size().unwrap().try_into().unwrap();
    for name in SEARCHING_TUNERS {
        let mut tuner = tuner(name, &finite_space(), 7);
        let proposed = propose_all(tuner.as_mut(), 0, 1000);
        let different: std::collections::HashSet<String> =
            proposed.iter().map(|p| serde_json::to_string(p).unwrap()).collect();
        assert_eq!((proposed.len(), different.len()), (size, size), "{name}");
        assert_eq!(tuner.propose(1000), Proposal::Exhausted, "{name}");
    }
}

/// Returns the best of `trials` results on a bowl-shaped function, with two concurrent trials.
fn best_on_a_bowl(name: &str, direction: &str, seed: u64, trials: u64) -> f64 {
    let json = json!({
        "x": {"_type": "uniform", "_value": [-5, 5]},
        "y": {"_type": "loguniform", "_value": [0.001, 1000]},
        "z": {"_type": "choice", "_value": ["a", "b", "c"]}
    });
    let args = json!({"optimize_mode": direction});
    let mut tuner = build(&spec(name, &args), &space(&json), seed).unwrap();
    let mut best = f64::INFINITY;
    for pair in 0..trials / 2 {
        for (id, parameters) in
            (pair * 2..).zip(propose_all(tuner.as_mut(), pair * 2, pair * 2 + 2))
        {
            let number = |name: &str| parameters[name].as_f64().unwrap();
            let wrong = if parameters["z"] == "b" { 0.0 } else { 1.0 };
            let loss = (number("x") - 2.0).powi(2) + (number("y").ln() + 1.0).powi(2) + wrong;
            best = best.min(loss);
            let metric = if direction == "minimize" { loss } else { -loss };
            tuner.observe(id, &Outcome::Result(MetricValue::from(metric)));
        }
    }
    best
}

#[test]
fn tuners_that_learn_beat_chance_in_both_modes() {
    let median = |name: &str, direction: &str, trials: u64| {
        let mut bests: Vec<f64> =
            (0..9).map(|seed| best_on_a_bowl(name, direction, seed, trials)).collect();
        bests.sort_by(f64::total_cmp);
        bests[4]
    };
    for (name, trials) in [
        ("TPE", 80),
        ("Anneal", 60),
        ("Evolution", 300),
        ("GP", 24),
        ("CMA-ES", 80),
        ("NSGA-II", 200),
    ] {
        let chance = median("Random", "minimize", trials);
        for direction in ["minimize", "maximize"] {
            let learned = median(name, direction, trials);
            assert!(learned < chance / 2.0, "{name}, {direction}: {learned}, by chance {chance}");
        }
    }
}

#[test]
fn random_searches_differ_by_their_seed() {
    let first = |seed| propose_all(tuner("Random", &mixed_space(), seed).as_mut(), 0, 5);
    assert_eq!(first(1), first(1));
    assert_ne!(first(1), first(2));
    let given = build(&spec("random", &json!({"seed": 1})), &space(&mixed_space()), 2).unwrap();
    let mut given = given;
    assert_eq!(propose_all(given.as_mut(), 0, 5), first(1));
}

#[test]
fn a_batch_is_proposed_in_the_listed_order() {
    let proposed = propose_all(tuner("BatchTuner", &batch_space(), 0).as_mut(), 0, 9);
    let listed = batch_space()["sets"]["_value"].clone();
    assert_eq!(json!(proposed), listed);
}

/// Returns every tuner except PBT, with suitable spaces.
fn all_tuners() -> Vec<(&'static str, Value)> {
    vec![
        ("TPE", mixed_space()),
        ("TPE", finite_space()),
        ("Anneal", mixed_space()),
        ("Anneal", finite_space()),
        ("Evolution", mixed_space()),
        ("Evolution", finite_space()),
        ("GP", mixed_space()),
        ("GP", finite_space()),
        ("CMA-ES", mixed_space()),
        ("CMA-ES", finite_space()),
        ("NSGA-II", mixed_space()),
        ("NSGA-II", finite_space()),
        ("QMC", mixed_space()),
        ("QMC", finite_space()),
        ("Random", mixed_space()),
        ("Random", finite_space()),
        ("GridSearch", mixed_space()),
        ("GridSearch", finite_space()),
        ("Batch", batch_space()),
        ("Hyperband", mixed_space()),
        ("Hyperband", finite_space()),
        ("BOHB", mixed_space()),
        ("BOHB", finite_space()),
    ]
}

/// Returns an outcome for each proposal. Some trials fail, some results are NaN.
fn outcome(id: u64, parameters: &Parameters) -> Outcome {
    match id % 7 {
        3 => Outcome::Failed,
        5 => Outcome::Result(MetricValue::from(f64::NAN)),
        _ => {
            let x = parameters.get("lr").or(parameters.get("b")).and_then(Value::as_f64);
            Outcome::Result(MetricValue::from((x.unwrap_or(0.5) - 0.02).abs()))
        }
    }
}

#[test]
fn a_rebuilt_tuner_continues_like_the_lost_tuner() {
    for (name, json) in all_tuners() {
        for stop in [0, 1, 3, 11, 30] {
            let mut steady = tuner(name, &json, 11);
            let before = propose_all(steady.as_mut(), 0, stop);
            let mut rebuilt = tuner(name, &json, 11);
            for (id, parameters) in (0..).zip(&before) {
                // A round trip through JSON, as with the store.
                let text = serde_json::to_string(parameters).unwrap();
                rebuilt.adopt(id, &serde_json::from_str(&text).unwrap());
            }
            // Two trials still run; the results reach the two tuners in different orders.
            let ended: Vec<_> = (0..).zip(&before).skip(2).collect();
            for ((a, first), (b, last)) in ended.iter().zip(ended.iter().rev()) {
                steady.observe(*a, &outcome(*a, first));
                rebuilt.observe(*b, &outcome(*b, last));
            }
            let (a, b) =
                (propose_all(steady.as_mut(), stop, 40), propose_all(rebuilt.as_mut(), stop, 40));
            assert_eq!(a, b, "{name} after {stop} of {json}");
        }
    }
}

/// Returns results for some points of a space, for an import.
fn samples(json: &Value) -> Vec<Sample> {
    let mut random = tuner(if *json == batch_space() { "Batch" } else { "Random" }, json, 99);
    let known = propose_all(random.as_mut(), 0, 3);
    let value = |parameters: &Parameters| match outcome(0, parameters) {
        Outcome::Result(value) => value,
        Outcome::Failed => panic!("it has a result"),
    };
    known.into_iter().map(|p| Sample { value: value(&p), parameters: p }).collect()
}

#[test]
fn the_time_of_an_import_does_not_change_later_proposals() {
    for (name, json) in all_tuners() {
        let samples = samples(&json);
        let mut steady = tuner(name, &json, 11);
        let mut rebuilt = tuner(name, &json, 11);
        rebuilt.import(&samples);
        let mut proposed = Vec::new();
        for id in 0..30 {
            if id == 15 {
                steady.import(&samples);
            }
            let Proposal::Parameters(parameters) = steady.propose(id) else { break };
            steady.observe(id, &outcome(id, &parameters));
            rebuilt.adopt(id, &parameters);
            rebuilt.observe(id, &outcome(id, &parameters));
            proposed.push(parameters);
        }
        if proposed.len() == 30 {
            let (a, b) =
                (propose_all(steady.as_mut(), 30, 36), propose_all(rebuilt.as_mut(), 30, 36));
            assert_eq!(a, b, "{name} of {json}");
        }
    }
}

#[test]
fn imported_points_are_not_proposed_again() {
    for (name, json) in all_tuners() {
        if ["Hyperband", "BOHB"].contains(&name) || json == mixed_space() {
            continue; // Brackets contain only their own trials. In a continuous space, no point repeats.
        }
        let samples = samples(&json);
        let mut tuner = tuner(name, &json, 3);
        tuner.import(&samples);
        for parameters in propose_all(tuner.as_mut(), 0, 100) {
            let known = samples.iter().any(|sample| sample.parameters == parameters);
            assert!(!known, "{name} proposes {parameters:?} again");
        }
    }
}

#[test]
fn imported_results_count_as_results() {
    let json = json!({"x": {"_type": "uniform", "_value": [0, 1]}});
    for name in ["TPE", "GP", "Anneal", "Evolution", "CMA-ES", "NSGA-II"] {
        let args = json!({"optimize_mode": "minimize"});
        let mut tuner = build(&spec(name, &args), &space(&json), 5).unwrap();
        let known = (0..60).map(|i| f64::from(i) / 60.0);
        let sample = |x: f64| Sample {
            parameters: json!({"x": x}).as_object().unwrap().clone(),
            value: MetricValue::from((x - 0.7).abs()),
        };
        tuner.import(&known.map(sample).collect::<Vec<_>>());
        let proposed = propose_all(tuner.as_mut(), 0, 20);
        let near = proposed.iter().filter(|p| (p["x"].as_f64().unwrap() - 0.7).abs() < 0.2);
        // By chance, two of five would be so near.
        assert!(near.count() >= 12, "{name}: {proposed:?}");
    }
}

#[test]
fn wrong_names_and_arguments_are_refused_with_advice() {
    #[rustfmt::skip]
    let table = [
        ("Rnadom",   json!({}),                          "tuner.name: `Rnadom` is not a tuner; did you mean `Random`? Allowed: TPE, Anneal, Evolution, GP, Hyperband, BOHB, CMA-ES, NSGA-II, PBT, QMC, Random, GridSearch, Batch, TPE_legacy, Metis, SMAC, PPO, DNGO, NetworkMorphism, RegularizedEvolutionTuner; for your own tuner, set `className`"),
        ("Random",   json!({"sede": 1}),                 "tuner.classArgs.sede: is not an argument of Random; did you mean `seed`? Allowed: optimize_mode, seed"),
        ("Random",   json!({"seed": -1}),                "tuner.classArgs.seed: expected an integer of at least 0, found -1"),
        ("TPE",      json!({"tpe_args": {"gama": 1}}),   "tuner.classArgs.tpe_args.gama: is not an argument of tpe_args; did you mean `gamma`? Allowed: constant_liar_type, gamma, linear_forgetting, n_ei_candidates, n_startup_jobs, prior_weight"),
        ("TPE",      json!({"tpe_args": {"constant_liar_type": "bad"}}), "tuner.classArgs.tpe_args.constant_liar_type: \"bad\" is not known; allowed: best, worst, mean, none"),
        ("TPE",      json!({"tpe_args": {"prior_weight": -1}}), "tuner.classArgs.tpe_args.prior_weight: expected a number of at least 0, found -1"),
        ("Random",   json!({"optimize_mode": "up"}),     "tuner.classArgs.optimize_mode: \"up\" is not known; allowed: maximize, minimize"),
        ("Batch",    json!({}),                          "searchSpace: for the tuner Batch it must be one `choice` whose options are whole parameter sets"),
    ];
    for (name, class_args, message) in table {
        let class_args = class_args.as_object().unwrap().clone();
        let built = TunerSpec::new(name, class_args)
            .and_then(|spec| build(&spec, &space(&mixed_space()), 0));
        assert_eq!(built.unwrap_err().to_string(), message);
    }
}

#[test]
fn each_tuner_has_nnis_default_mode() {
    let minimize = ["TPE", "Anneal", "CMA-ES", "NSGA-II"];
    for name in SEARCHING_TUNERS.into_iter().chain(["Hyperband", "BOHB", "PBT", "Batch"]) {
        let expected =
            if minimize.contains(&name) { Direction::Minimize } else { Direction::Maximize };
        assert_eq!(spec(name, &json!({})).default_direction().unwrap(), expected, "{name}");
    }
}

/// A search with several concurrent trials, as the experiment conducts it.
struct ConcurrentSearch {
    tuner: Box<dyn Tuner>,
    /// The proposals in order; `true` if the trial has ended.
    trials: Vec<(u64, Parameters, bool)>,
    /// `false` if the tuner answered that the search must wait, or that the space is exhausted.
    may_propose: bool,
}

impl ConcurrentSearch {
    /// Starts trials until `concurrency` of them run, at most 24 in total.
    fn start_trials(&mut self, concurrency: usize) {
        let live =
            |trials: &[(u64, Parameters, bool)]| trials.iter().filter(|(.., ended)| !ended).count();
        while self.may_propose && live(&self.trials) < concurrency && self.trials.len() < 24 {
            let id = self.trials.len().try_into().unwrap();
            match self.tuner.propose(id) {
                Proposal::Parameters(parameters) => self.trials.push((id, parameters, false)),
                Proposal::Wait | Proposal::Exhausted => self.may_propose = false,
            }
        }
    }

    /// Ends one of the running trials.
    fn end_trial(&mut self, which: usize) {
        let mut live: Vec<_> = self.trials.iter_mut().filter(|(.., ended)| !ended).collect();
        let count = live.len();
        if count > 0 {
            let (id, parameters, ended) = &mut *live[which % count];
            *ended = true;
            self.tuner.observe(*id, &outcome(*id, parameters));
            self.may_propose = true;
        }
    }

    /// Returns the same search after a resume. The store returns trials in the order of their proposals.
    fn resume(&self, mut tuner: Box<dyn Tuner>) -> Self {
        for (id, parameters, ended) in &self.trials {
            tuner.adopt(*id, parameters);
            if *ended {
                tuner.observe(*id, &outcome(*id, parameters));
            }
        }
        Self { tuner, trials: self.trials.clone(), may_propose: true }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6))]

    #[test]
    fn concurrent_trials_continue_the_same_after_a_resume_at_any_time(
        concurrency in 2_usize..6,
        ends in prop::collection::vec(0_usize..6, 28),
        stop in 0_usize..28,
    ) {
        for (name, json) in all_tuners().into_iter().chain([("PBT", mixed_space()), ("PBT", finite_space())]) {
            let made = || tuner(name, &json, 11);
            let mut steady = ConcurrentSearch { tuner: made(), trials: Vec::new(), may_propose: true };
            let mut resumed = None;
            for (step, which) in ends.iter().enumerate() {
                steady.start_trials(concurrency);
                if step == stop {
                    resumed = Some(steady.resume(made()));
                }
                steady.end_trial(*which);
            }
            let mut resumed = resumed.unwrap();
            for which in &ends[stop..] {
                resumed.start_trials(concurrency);
                resumed.end_trial(*which);
            }
            prop_assert_eq!(&steady.trials, &resumed.trials, "{} of {}", name, json);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn every_proposal_is_valid(seed: u64) {
        for name in SEARCHING_TUNERS {
            let mut tuner = tuner(name, &mixed_space(), seed);
            for parameters in propose_all(tuner.as_mut(), 0, 30) {
                prop_assert_eq!(space(&mixed_space()).validate(&parameters), Ok(()));
            }
        }
    }
}
