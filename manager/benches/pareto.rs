//! Measures the hypervolume that tuners for several objectives find in 200 trials, one trial at a time. Prints it in
//! percent of the reachable volume, as the median over the seeds.
//!
//! `cargo bench -p trial-manager --bench pareto`. `benches/pareto_optuna.py` measures Optuna's samplers in the same
//! way. `--seeds N` sets the number of seeds (default: 15), `--trials N` the number of trials (default: 200).

use serde_json::{Map, Value, json};
use trial_manager::search::goals::{Goals, Objective};
use trial_manager::search::pareto::hypervolume;
use trial_manager::search::search_space::SearchSpace;
use trial_manager::search::tuner::{self, Outcome, Proposal, TunerSpec};
use trial_protocol::{Direction, MetricValue};

const TUNER_NAMES: [&str; 4] = ["Random", "QMC", "NSGA-II", "TPE"];

/// A problem with several objectives.
struct Problem {
    name: &'static str,
    parameters: usize,
    losses: fn(&[f64]) -> Vec<f64>,
    reference: &'static [f64],
    /// The hypervolume of the true front.
    reachable: f64,
}

fn mean(x: &[f64]) -> f64 {
    x.iter().sum::<f64>() / f64::from(u32::try_from(x.len()).unwrap_or(1))
}

fn zdt1(x: &[f64]) -> Vec<f64> {
    let g = 1.0 + 9.0 * mean(&x[1..]);
    vec![x[0], g * (1.0 - (x[0] / g).sqrt())]
}

fn zdt2(x: &[f64]) -> Vec<f64> {
    let g = 1.0 + 9.0 * mean(&x[1..]);
    vec![x[0], g * (1.0 - (x[0] / g).powi(2))]
}

fn zdt3(x: &[f64]) -> Vec<f64> {
    let g = 1.0 + 9.0 * mean(&x[1..]);
    let wave = x[0] / g * (10.0 * std::f64::consts::PI * x[0]).sin();
    vec![x[0], g * (1.0 - (x[0] / g).sqrt() - wave)]
}

fn dtlz2(x: &[f64]) -> Vec<f64> {
    let g = 1.0 + x[2..].iter().map(|x| (x - 0.5).powi(2)).sum::<f64>();
    let (a, b) = (x[0] * std::f64::consts::FRAC_PI_2, x[1] * std::f64::consts::FRAC_PI_2);
    vec![g * a.cos() * b.cos(), g * a.cos() * b.sin(), g * a.sin()]
}

fn problems() -> [Problem; 4] {
    let along = |losses: fn(&[f64]) -> Vec<f64>, reference: &[f64]| {
        let front: Vec<Vec<f64>> = (0..=20_000)
            .map(|i| losses(&[f64::from(i) / 20_000.0, 0.0, 0.0, 0.0, 0.0, 0.0]))
            .collect();
        let front: Vec<&[f64]> = front.iter().map(Vec::as_slice).collect();
        hypervolume(&front, reference)
    };
    let two: &'static [f64] = &[1.1, 6.0];
    let zdt = |name, losses| Problem {
        name,
        parameters: 6,
        losses,
        reference: two,
        reachable: along(losses, two),
    };
    // The volume of an eighth of a ball, which the front excludes from the cube.
    let ball = std::f64::consts::PI / 6.0;
    [
        zdt("ZDT1", zdt1),
        zdt("ZDT2", zdt2),
        zdt("ZDT3", zdt3),
        Problem {
            name: "DTLZ2, three objectives",
            parameters: 7,
            losses: dtlz2,
            reference: &[1.1, 1.1, 1.1],
            reachable: 1.1_f64.powi(3) - ball,
        },
    ]
}

fn hypervolume_percent(name: &str, problem: &Problem, seed: u64, trials: u64) -> f64 {
    let unit = json!({"_type": "uniform", "_value": [0, 1]});
    let names = (0..problem.parameters).map(|i| (format!("x{i}"), unit.clone()));
    let space = SearchSpace::parse(&Value::Object(names.collect())).expect("a valid space");
    let mut spec = TunerSpec::new(name, Map::new()).expect("a known name");
    let objective = |i: usize| Objective { metric: i.to_string(), direction: Direction::Minimize };
    let objectives = (0..problem.reference.len()).map(objective).collect();
    spec.goals = Goals { objectives, constraints: Vec::new() };
    let mut tuner = tuner::build(&spec, &space, seed).expect("good arguments");
    let mut found: Vec<Vec<f64>> = Vec::new();
    for id in 0..trials {
        let Proposal::Parameters(parameters) = tuner.propose(id) else { break };
        let x: Vec<f64> = parameters.values().filter_map(Value::as_f64).collect();
        let losses = (problem.losses)(&x);
        let members = losses.iter().enumerate().map(|(i, loss)| (i.to_string(), json!(loss)));
        let value = MetricValue::from(Value::Object(members.collect()));
        tuner.observe(id, &Outcome::Result(value));
        found.push(losses);
    }
    let found: Vec<&[f64]> = found.iter().map(Vec::as_slice).collect();
    hypervolume(&found, problem.reference) / problem.reachable * 100.0
}

#[expect(clippy::print_stdout, reason = "the table is the purpose")]
fn main() {
    let words: Vec<String> = std::env::args().collect();
    let after = |option: &str, plain: u64| {
        let at = words.iter().position(|word| word == option);
        let given = at.and_then(|at| words.get(at + 1));
        given.map_or(plain, |given| given.parse().expect("a number"))
    };
    let (seeds, trials) = (after("--seeds", 15), after("--trials", 200));
    println!("hypervolume after {trials} trials in percent, median of {seeds} seeds");
    for problem in problems() {
        for name in TUNER_NAMES {
            let mut volumes: Vec<f64> =
                (0..seeds).map(|seed| hypervolume_percent(name, &problem, seed, trials)).collect();
            volumes.sort_by(f64::total_cmp);
            let (a, b) = (volumes[(volumes.len() - 1) / 2], volumes[volumes.len() / 2]);
            println!("  {:<24} {name:<8} {:6.2}", problem.name, f64::midpoint(a, b));
        }
    }
}
