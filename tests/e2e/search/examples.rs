//! The examples, run as the README describes.

use std::fs;

use serde_json::Value;
use trialkeeper_tests::{Outcome, TestBed, WAIT_TIMEOUT, examples_folder};

#[test]
fn the_first_command_of_the_readme_runs_iris_to_its_end() {
    let bed = TestBed::new();
    let search = Outcome::run_file(&bed, &examples_folder().join("iris/experiment.yml"));
    search.expect_done(20, 0);

    for trial in &search.trials {
        let number = |name: &str| trial.parameters[name].as_f64().unwrap();
        assert!((0.0005..=0.5).contains(&number("learning_rate")), "{trial:?}");
        assert!((0.0..=0.95).contains(&number("momentum")), "{trial:?}");
        assert!((0.00001..=0.1).contains(&number("weight_decay")), "{trial:?}");
        assert!((2..17).contains(&trial.parameters["hidden_units"].as_i64().unwrap()), "{trial:?}");
        assert!([4, 8, 16, 32].contains(&trial.parameters["batch_size"].as_i64().unwrap()));
        assert!(["tanh", "relu"].contains(&trial.parameters["activation"].as_str().unwrap()));
        assert_eq!(trial.parameters.len(), 6, "{trial:?}");

        // One accuracy per epoch, in order. The last one is the result.
        let folder = bed.data_folder().join(&search.id).join(&trial.id);
        let stdout = fs::read_to_string(folder.join("stdout")).unwrap();
        let printed: Vec<Value> = stdout
            .lines()
            .map(|line| serde_json::from_str(line.split_once("accuracy=").unwrap().1).unwrap())
            .collect();
        assert_eq!(printed.len(), 20);
        assert_eq!(trial.intermediate, printed, "{trial:?}");
        assert_eq!(Some(&trial.final_result), printed.last(), "{trial:?}");

        let record = fs::read_to_string(folder.join("parameter.cfg")).unwrap();
        let record: Value = serde_json::from_str(&record).unwrap();
        assert_eq!(record["parameters"], Value::Object(trial.parameters.clone()));
        assert_eq!(fs::read_to_string(folder.join("stderr")).unwrap(), "");
        assert!(folder.join("spool").is_dir());
    }

    let mut results: Vec<f64> =
        search.trials.iter().map(trialkeeper_tests::Trial::final_number).collect();
    results.sort_by(f64::total_cmp);
    let (worst, best) = (results[0], results[19]);
    assert!(best >= 0.9, "the search finds no good parameters: {results:?}");
    assert!(worst < best - 0.2, "the parameters make no difference: {results:?}");
    assert_eq!(search.best.unwrap().final_number().to_bits(), best.to_bits());
    assert!(
        search.stderr.contains("http://127.0.0.1:"),
        "the address is missing: {}",
        search.stderr
    );
}

#[test]
fn the_iris_data_match_fisher_s_means() {
    let data = fs::read_to_string(examples_folder().join("iris/iris.csv")).unwrap();
    let rows: Vec<&str> = data.lines().skip(1).collect();
    assert_eq!(rows.len(), 150);
    for species in ["setosa", "versicolor", "virginica"] {
        assert_eq!(rows.iter().filter(|row| row.ends_with(species)).count(), 50, "{species}");
    }
    let sum = |column: usize| -> f64 {
        rows.iter().map(|row| row.split(',').nth(column).unwrap().parse::<f64>().unwrap()).sum()
    };
    // The means of Fisher's paper: 5.843, 3.057, 3.758, 1.199 cm.
    for (column, total) in [(0, 876.5), (1, 458.6), (2, 563.7), (3, 179.9)] {
        assert!((sum(column) - total).abs() < 1e-6, "column {column}: {}", sum(column));
    }
}

#[test]
fn the_same_seed_gives_the_same_search() {
    let bed = TestBed::new();
    let run = || Outcome::run_file(&bed, &examples_folder().join("shell/experiment.yml"));
    let (first, second) = (run(), run());
    first.expect_done(40, 0);
    second.expect_done(40, 0);
    assert_ne!(first.id, second.id);
    for sequence in 0..40 {
        let (first, second) = (first.trial(sequence), second.trial(sequence));
        assert_eq!(first.parameters, second.parameters);
        assert_eq!(first.final_result, second.final_result);
    }
    let best =
        first.trials.iter().map(trialkeeper_tests::Trial::final_number).fold(f64::MAX, f64::min);
    assert_eq!(
        first.best.unwrap().final_number().to_bits(),
        best.to_bits(),
        "the best trial does not have the smallest loss"
    );
}

#[test]
fn a_grid_is_tried_once_and_json_lines_are_read() {
    let bed = TestBed::new();
    let search = Outcome::run_file(&bed, &examples_folder().join("shell/json-lines.yml"));
    // Four starts and two numbers. Only the end of the grid ends the search.
    search.expect_done(8, 0);
    let mut points: Vec<String> = search
        .trials
        .iter()
        .map(|trial| format!("{} {}", trial.parameters["start"], trial.parameters["number"]))
        .collect();
    points.sort_unstable();
    points.dedup();
    assert_eq!(points.len(), 8, "{points:?}");
    for trial in &search.trials {
        assert_eq!(trial.intermediate.len(), 6, "{trial:?}");
        assert_eq!(Some(&trial.final_result), trial.intermediate.last());
    }
    assert!(search.best.unwrap().final_number() < 1e-6);
}

#[test]
fn the_table_names_the_best_trial_and_its_parameters() {
    let bed = TestBed::new();
    let mut command = bed.manager_command();
    command.arg("run").arg(examples_folder().join("shell/experiment.yml"));
    command.args(["--port", "0", "--data-dir"]).arg(bed.data_folder());
    let finished = bed.start(&mut command).finish(WAIT_TIMEOUT);
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    let table = String::from_utf8(finished.stdout).unwrap();

    // The seed is fixed, so a second run with JSON output has the same results.
    let search = Outcome::run_file(&bed, &examples_folder().join("shell/experiment.yml"));
    let best = search.best.unwrap();
    assert!(
        table.contains(&format!("{:.4}", best.final_number())[..5]),
        "the best loss is missing:\n{table}"
    );
    for (name, value) in &best.parameters {
        let value = &value.to_string()[..5];
        assert!(table.contains(name) && table.contains(value), "{name} {value}:\n{table}");
    }
    assert!(table.contains("40 succeeded"), "{table}");
}
