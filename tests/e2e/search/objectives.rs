//! Several objectives and constraints, from the experiment file to the Pareto front.

use serde_json::{Value, json};
use trialkeeper_tests::{Browser, Search, TestBed, WAIT_TIMEOUT};

/// Creates a search of four trials. The second trial dominates the third, and the fourth exceeds the limit.
fn search() -> Search {
    let sets = json!([
        {"loss": 1, "latency": 9, "memory": 4},
        {"loss": 3, "latency": 2, "memory": 4},
        {"loss": 4, "latency": 5, "memory": 4},
        {"loss": 0, "latency": 0, "memory": 40}
    ]);
    let command =
        "for loss in 7 {{loss}}; do echo latency={{latency}} memory={{memory}} loss=$loss; done";
    Search::new(command, 4)
        .with("searchSpace", json!({"sets": {"_type": "choice", "_value": sets}}))
        .with("tuner", json!({"name": "Batch"}))
        .with("constraints", json!([{"metric": "memory", "max": 16}]))
}

fn show(bed: &TestBed, id: &str, format: &str) -> String {
    let mut show = bed.manager_command();
    show.args(["experiment", "show", id, "--output", format, "--data-dir"]);
    let shown = bed.start(show.arg(bed.data_folder())).finish(WAIT_TIMEOUT);
    String::from_utf8(shown.stdout).unwrap()
}

#[test]
#[ignore = "needs a browser"]
fn the_pareto_front_contains_only_trials_within_the_constraints() {
    let bed = TestBed::new();
    let objectives = json!([
        {"metric": "loss", "direction": "minimize"},
        {"metric": "latency", "direction": "minimize"}
    ]);
    let done = search().with("objectives", objectives).run(&bed);
    assert_eq!((done.state.as_str(), done.code, &done.best), ("DONE", 0, &None), "{done:#?}");
    let view: Value = serde_json::from_str(&show(&bed, &done.id, "json")).unwrap();
    assert_eq!(view["best"], Value::Null);
    let both = |trial: &Value| ["loss", "latency"].map(|name| trial["final"][name].as_f64());
    let front: Vec<_> = view["pareto"].as_array().unwrap().iter().map(both).collect();
    assert_eq!(front, [[Some(1.0), Some(9.0)], [Some(3.0), Some(2.0)]], "{view}");
    let table = show(&bed, &done.id, "table");
    assert!(table.contains("minimize loss, minimize latency"), "{table}");
    assert!(table.contains("by trial 0") && !table.contains("by trial 2"), "{table}");
    let doubt = "succeeded, but it violates the constraints";
    assert!(done.stderr.contains(doubt), "{}", done.stderr);

    // The Pareto front also has a plot.
    let browser = Browser::start();
    let (_serving, url) = bed.serve(&done.id);
    browser.set_viewport(1280, 900, false);
    browser.open(&format!("{url}/plots"));
    let plot = "const plot = document.querySelector('[data-plot=pareto]'); plot.scrollIntoView({ block: 'center' });";
    let drawn = format!("{plot} return Number(plot.dataset.drawn) >= 2");
    browser.wait_for("the plot", WAIT_TIMEOUT, &drawn);
    browser.run_script(&format!("{plot} plot.querySelector('details').open = true"));
    let rows = format!(
        "{plot} const rows = [...plot.querySelectorAll('tbody tr')].filter((row) => row.cells[3].textContent === 'yes');
         return rows.length && rows.map((row) => [row.cells[1].textContent, row.cells[2].textContent])"
    );
    let rows = browser.wait_for("the table of the plot", WAIT_TIMEOUT, &rows);
    assert_eq!(rows, json!([["1", "9"], ["3", "2"]]));

    // All plots use the selected objective.
    let choose = "const choice = [...document.querySelectorAll('[data-plot=history] select')][0];
         choice.value = '1'; choice.dispatchEvent(new Event('change'))";
    browser.run_script(choose);
    let most = "return document.querySelector('[aria-label=\"latency, at most\"]')?.getAttribute('aria-valuetext')";
    let most = browser.wait_for("the axis of the other objective", WAIT_TIMEOUT, most);
    assert!(most.as_str().unwrap().starts_with("9;"), "{most}");
    let tables = "return [...document.querySelectorAll('#improvements [data-objective]')].filter((one) => getComputedStyle(one).display !== 'none').map((one) => one.querySelector('h3').textContent)";
    assert_eq!(browser.run_script(tables), json!(["latency"]), "the improvements of the objective");
    let best = "return document.querySelectorAll('#front-table tbody tr').length";
    assert_eq!(browser.run_script(best), json!(2), "the front as a table");

    // A trial's page names each objective and draws a curve for each.
    let trials =
        browser.run_script("return fetch('/api/v1/trials').then((response) => response.json())");
    let page = |sequence: usize| {
        let id = trials["trials"][sequence]["id"].as_str().unwrap();
        browser.open(&format!("{url}/trials/{id}"));
        let charts = "const shown = [...document.querySelectorAll('figure[data-chart]:not([hidden])')].filter((one) => one.querySelector('canvas'));
                      return shown.length === 3 && shown.map((one) => one.getAttribute('aria-label'))";
        let curves = browser.wait_for("the curves", WAIT_TIMEOUT, charts);
        assert_eq!(curves, json!(["loss", "latency", "memory"]));
        browser.run_script("return Object.fromEntries([...document.querySelectorAll('.tiles > div')].map((one) => [...one.children].map((part) => part.textContent)))")
    };
    let tiles = page(0);
    for (name, value) in
        [("Final loss minimize", "1"), ("Final latency minimize", "9"), ("Final memory", "4")]
    {
        assert_eq!(tiles[name], value, "{tiles}");
    }
    assert_eq!(page(3)["Final memory"], "40 above 16");
}

#[test]
fn the_best_trial_keeps_the_constraints() {
    let bed = TestBed::new();
    let objective = json!({"metric": "loss", "direction": "minimize"});
    let done = search().with("objective", objective).run(&bed);
    assert_eq!(done.best.map(|best| best.sequence), Some(0), "{}", done.stderr);
}
