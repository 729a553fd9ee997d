//! Measures the speed and the quality of the tuners. Prints two tables:
//!
//! * the milliseconds for a proposal after 1,000 results in 20 dimensions;
//! * the best loss after 100 trials on standard functions, as the median of 30 seeds, one trial at a time.
//!
//! `cargo bench -p trial-manager --bench tuners`. `benches/tuners_table.py` compares the figures with NNI's and
//! Optuna's.
//!
//! * `--json` prints a line of JSON for each loss, and no times.
//! * `--seeds N` sets the number of seeds (default: 30).
//! * `--digits PYTHON` adds the search of `benches/tuners_digits.py`.
//! * `--problems 'NAME;...'` and `--tuners 'NAME;...'` select problems and tuners.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

use serde_json::{Map, Value, json};
use trial_manager::search::search_space::{Parameters, SearchSpace};
use trial_manager::search::tuner::{self, Outcome, Proposal, Tuner, TunerSpec};
use trial_protocol::MetricValue;

const TUNER_NAMES: [&str; 7] = ["Random", "QMC", "Evolution", "Anneal", "TPE", "CMA-ES", "GP"];
const SEED_COUNT: u64 = 30;
const TRIAL_COUNT: u64 = 100;

fn build_tuner(name: &str, space: &Value, seed: u64) -> Box<dyn Tuner> {
    let args = Map::from_iter([("optimize_mode".to_owned(), json!("minimize"))]);
    let space = SearchSpace::parse(space).expect("a valid space");
    let spec = TunerSpec::new(name, args).expect("a known name");
    tuner::build(&spec, &space, seed).expect("good arguments")
}

fn uniform_space(names: &[String], low: f64, high: f64) -> Value {
    let entry = json!({"_type": "uniform", "_value": [low, high]});
    Value::Object(names.iter().map(|name| (name.clone(), entry.clone())).collect())
}

fn numbered_names(count: usize) -> Vec<String> {
    (0..count).map(|i| format!("x{i}")).collect()
}

fn parameter_number(parameters: &Parameters, name: &str) -> f64 {
    parameters[name].as_f64().unwrap_or(f64::NAN)
}

fn parameter_vector(parameters: &Parameters) -> Vec<f64> {
    parameters.values().filter_map(Value::as_f64).collect()
}

/// The Branin function. Its minimum is 0.397887.
fn branin(p: &Parameters) -> f64 {
    let (x, y) = (parameter_number(p, "x"), parameter_number(p, "y"));
    let pi = std::f64::consts::PI;
    let bowl = y - 5.1 / (4.0 * pi * pi) * x * x + 5.0 / pi * x - 6.0;
    bowl * bowl + 10.0 * (1.0 - 1.0 / (8.0 * pi)) * x.cos() + 10.0
}

/// The Hartmann function in six dimensions. Its minimum is -3.32237.
fn hartmann6(p: &Parameters) -> f64 {
    const SHARES: [f64; 4] = [1.0, 1.2, 3.0, 3.2];
    const A: [[f64; 6]; 4] = [
        [10.0, 3.0, 17.0, 3.5, 1.7, 8.0],
        [0.05, 10.0, 17.0, 0.1, 8.0, 14.0],
        [3.0, 3.5, 1.7, 10.0, 17.0, 8.0],
        [17.0, 8.0, 0.05, 10.0, 0.1, 14.0],
    ];
    const P: [[f64; 6]; 4] = [
        [0.1312, 0.1696, 0.5569, 0.0124, 0.8283, 0.5886],
        [0.2329, 0.4135, 0.8307, 0.3736, 0.1004, 0.9991],
        [0.2348, 0.1451, 0.3522, 0.2883, 0.3047, 0.6650],
        [0.4047, 0.8828, 0.8732, 0.5743, 0.1091, 0.0381],
    ];
    let x = parameter_vector(p);
    let term = |i: usize| {
        let distance: f64 = (0..6).map(|j| A[i][j] * (x[j] - P[i][j]).powi(2)).sum();
        SHARES[i] * (-distance).exp()
    };
    -(0..4).map(term).sum::<f64>()
}

/// The Rosenbrock function in five dimensions. Its minimum is 0.
fn rosenbrock5(p: &Parameters) -> f64 {
    let x = parameter_vector(p);
    x.windows(2).map(|w| 100.0 * (w[1] - w[0] * w[0]).powi(2) + (1.0 - w[0]).powi(2)).sum()
}

/// A function of typical choices for a neural network. Its minimum is 0.
fn mixed_choices(p: &Parameters) -> f64 {
    let rate = (parameter_number(p, "lr").log10() + 2.5).powi(2);
    let layers = (parameter_number(p, "layers") - 3.0).powi(2) * 0.1;
    let net = match p["net"]["_name"].as_str() {
        Some("conv") => {
            let drop = p["net"]["drop"].as_f64().unwrap_or(0.0);
            (drop - 0.3).powi(2) * 4.0 + if p["net"]["kernel"] == 3 { 0.0 } else { 0.3 }
        }
        _ => 0.5 + (p["net"]["width"].as_f64().unwrap_or(0.0) - 64.0).abs() / 100.0,
    };
    rate + layers + net
}

/// The name, the search space and the loss function of a problem.
type Problem = (&'static str, Value, fn(&Parameters) -> f64);

fn problems() -> [Problem; 4] {
    let branin_space = json!({
        "x": {"_type": "uniform", "_value": [-5, 10]},
        "y": {"_type": "uniform", "_value": [0, 15]}
    });
    let mixed_space = json!({
        "lr": {"_type": "loguniform", "_value": [0.00001, 1]},
        "layers": {"_type": "randint", "_value": [1, 9]},
        "net": {"_type": "choice", "_value": [
            {"_name": "conv", "kernel": {"_type": "choice", "_value": [1, 3, 5, 7]},
             "drop": {"_type": "uniform", "_value": [0, 0.9]}},
            {"_name": "dense", "width": {"_type": "quniform", "_value": [8, 256, 8]}}]}
    });
    [
        ("Branin", branin_space, branin),
        ("Hartmann-6", uniform_space(&numbered_names(6), 0.0, 1.0), hartmann6),
        ("Rosenbrock-5", uniform_space(&numbered_names(5), -2.0, 2.0), rosenbrock5),
        ("mixed, nested", mixed_space, mixed_choices),
    ]
}

/// Runs a trial: proposes a point, computes its loss and passes it to the tuner.
fn run_trial(tuner: &mut dyn Tuner, id: u64, mut loss: impl FnMut(&Parameters) -> f64) -> f64 {
    let Proposal::Parameters(parameters) = tuner.propose(id) else { return f64::INFINITY };
    let loss = loss(&parameters);
    tuner.observe(id, &Outcome::Result(MetricValue::from(loss)));
    loss
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    f64::midpoint(values[(values.len() - 1) / 2], values[values.len() / 2])
}

fn sphere(p: &Parameters) -> f64 {
    parameter_vector(p).iter().map(|x| (x - 0.3).powi(2)).sum()
}

/// Returns the milliseconds for a proposal when `results` results are known.
fn measure_proposal_ms(name: &str, results: u64, dimensions: usize) -> f64 {
    let space = uniform_space(&numbered_names(dimensions), 0.0, 1.0);
    let (mut random, mut tuner) = (build_tuner("Random", &space, 1), build_tuner(name, &space, 1));
    for id in 0..results {
        if let Proposal::Parameters(parameters) = random.propose(id) {
            tuner.adopt(id, &parameters);
            tuner.observe(id, &Outcome::Result(MetricValue::from(sphere(&parameters))));
        }
    }
    let once = |id: u64| {
        let before = Instant::now();
        run_trial(tuner.as_mut(), id, sphere);
        before.elapsed().as_secs_f64() * 1000.0
    };
    median((results..results + 21).map(once).collect())
}

/// The process of `benches/tuners_digits.py`, which computes the loss of a point.
struct Digits {
    space: Value,
    ask: ChildStdin,
    answers: BufReader<ChildStdout>,
    child: Child,
}

impl Digits {
    fn start(python: &str) -> Self {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/tuners_digits.py");
        let mut command = Command::new(python);
        command.arg(script).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the interpreter exists");
        let ask = child.stdin.take().expect("it is piped");
        let mut answers = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut line = String::new();
        answers.read_line(&mut line).expect("the script prints its space");
        let space = serde_json::from_str(&line).expect("the space is JSON");
        Self { space, ask, answers, child }
    }

    fn compute_loss(&mut self, parameters: &Parameters) -> f64 {
        writeln!(self.ask, "{}", Value::Object(parameters.clone())).expect("the script reads");
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("the script answers");
        line.trim().parse().expect("a loss is a number")
    }

    /// Ends the process by closing its input.
    fn end(mut self) {
        drop(self.ask);
        self.child.wait().expect("it is a child of this process");
    }
}

/// Returns the median, over the seeds, of the best loss after [`TRIAL_COUNT`] trials.
fn median_best_loss(
    name: &str,
    space: &Value,
    seeds: u64,
    mut loss: impl FnMut(&Parameters) -> f64,
) -> f64 {
    let mut best = |seed| {
        let mut tuner = build_tuner(name, space, seed);
        (0..TRIAL_COUNT)
            .map(|id| run_trial(tuner.as_mut(), id, &mut loss))
            .fold(f64::INFINITY, f64::min)
    };
    median((0..seeds).map(&mut best).collect())
}

/// The command line.
struct CommandLine(Vec<String>);

impl CommandLine {
    /// Returns the value of an option.
    fn option_value(&self, option: &str) -> Option<&str> {
        let at = self.0.iter().position(|word| word == option)?;
        self.0.get(at + 1).map(String::as_str)
    }

    /// Returns whether the option's list contains a name. Without the option, all names are selected.
    fn is_selected(&self, option: &str, name: &str) -> bool {
        self.option_value(option).is_none_or(|list| list.split(';').any(|wanted| wanted == name))
    }
}

#[expect(clippy::print_stdout, reason = "the tables are the purpose")]
fn main() {
    let command_line = CommandLine(std::env::args().collect());
    let seeds = command_line
        .option_value("--seeds")
        .map_or(SEED_COUNT, |seeds| seeds.parse().expect("a number of seeds"));
    let json = command_line.0.iter().any(|word| word == "--json");
    let show = |problem: &str, name: &str, loss: f64| {
        if json {
            println!(
                "{}",
                json!({"tuner": name, "problem": problem, "seeds": seeds, "loss": loss})
            );
        } else {
            println!("  {problem:<14} {name:<10} {loss:10.4}");
        }
    };
    let tuners: Vec<_> =
        TUNER_NAMES.into_iter().filter(|name| command_line.is_selected("--tuners", name)).collect();
    if !json {
        println!("one proposal after 1,000 results in 20 dimensions, median in ms");
        for name in &tuners {
            println!("  {name:<10} {:8.3}", measure_proposal_ms(name, 1000, 20));
        }
        println!("best loss after {TRIAL_COUNT} trials, median of {seeds} seeds");
    }
    for (problem, space, loss) in problems() {
        for name in tuners.iter().filter(|_| command_line.is_selected("--problems", problem)) {
            show(problem, name, median_best_loss(name, &space, seeds, loss));
        }
    }
    if let Some(python) = command_line.option_value("--digits") {
        let mut digits = Digits::start(python);
        let space = digits.space.clone();
        for name in &tuners {
            show(
                "digits",
                name,
                median_best_loss(name, &space, seeds, |parameters| digits.compute_loss(parameters)),
            );
        }
        digits.end();
    }
}
