//! The report of a search: one HTML file that shows everything without scripts and other files.

use trialkeeper_tests::{Search, TestBed, WAIT_TIMEOUT, seed};

/// Writes the report of an experiment and returns it.
fn write_report(bed: &TestBed, id: &str) -> String {
    let mut command = bed.manager_command();
    command.args(["experiment", "report", id, "--to"]).arg(bed.path("report.html"));
    let finished = bed.start(command.arg("--data-dir").arg(bed.data_folder())).finish(WAIT_TIMEOUT);
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    let page = bed.read("report.html");
    for elsewhere in ["<script", "<link", "<img", "http://", "https://", "src=", "url(", "@import"]
    {
        assert!(!page.contains(elsewhere), "the report contains {elsewhere:?}");
    }
    assert!(!page.contains("NaN"), "{page}");
    page
}

/// Returns the part of a page between a heading and the next one.
fn section<'a>(page: &'a str, heading: &str) -> &'a str {
    let begin = format!("<h2>{heading}</h2>");
    let (_, rest) = page.split_once(&begin).unwrap_or_else(|| panic!("no {heading}: {page}"));
    rest.split_once("<h2>").map_or(rest, |(section, _)| section)
}

#[test]
fn a_report_draws_every_trial_and_every_parameter() {
    let bed = TestBed::new();
    seed::create_store(&bed.data_folder(), "small", 60, 5, 10).unwrap();
    let page = write_report(&bed, "small");
    let history = section(&page, "History");
    let count = |what: &str| {
        let (before, _) = history.split_once(&format!(" {what}")).unwrap();
        let digits = before.rsplit(|c: char| !c.is_ascii_digit()).next().unwrap();
        digits.parse::<usize>().unwrap()
    };
    let (succeeded, failed) = (count("succeeded"), count("failed"));
    assert!(succeeded > 30 && failed > 0, "{history}");
    assert_eq!(history.matches("<circle class=\"succeeded\"").count(), succeeded);
    assert_eq!(history.matches("<text class=\"failed\"").count(), failed);
    assert!(history.contains("best so far") && history.contains("<polyline"), "{history}");
    let importance = section(&page, "Parameter importance");
    assert!(importance.contains("PED-ANOVA"), "{importance}");
    assert_eq!(importance.matches("<rect").count(), 4, "{importance}");
    let panels = section(&page, "Results by parameter");
    for name in ["lr", "momentum", "units", "activation"] {
        assert!(panels.contains(&format!(" by {name}: ")), "{name}: {panels}");
    }
    assert!(panels.contains(">relu</text>") && panels.contains(">0.001</text>"), "{panels}");
    let curves = section(&page, "Intermediate results of the best trials");
    assert_eq!(curves.matches("<polyline").count(), 8, "{curves}");
    section(&page, "Best trials");
    section(&page, "Failures by cause");
    assert!(section(&page, "Configuration").contains("loguniform"), "{page}");
}

#[test]
fn a_report_shows_stopped_trials_the_code_and_the_pareto_front() {
    let bed = TestBed::new();
    // The assessor judges second results. The first trial has the best one, and the second trial is stopped.
    let command = "echo loss={{x}}; echo speed=$NNI_TRIAL_SEQ_ID; case $NNI_TRIAL_SEQ_ID in \
                   0) echo loss=-9 ;; 1) echo loss=9; exec sleep 600 ;; 2) exit 3 ;; esac";
    let search = Search::new(command, 8)
        .with("assessor", serde_json::json!({"name": "Medianstop", "classArgs": {"start_step": 2}}))
        .with("tuner", serde_json::json!({"name": "Random", "classArgs": {"seed": 7}}))
        .with(
            "objectives",
            serde_json::json!([
                {"metric": "loss", "direction": "minimize"},
                {"metric": "speed", "direction": "maximize"},
            ]),
        );
    bed.write("code/train.py", "");
    let found = search.run(&bed);
    assert_eq!(found.state, "DONE", "{}", found.stderr);
    let page = write_report(&bed, &found.id);
    assert!(page.contains("<dt>Stopped early</dt><dd>1</dd>"), "{page}");
    assert!(page.contains("<dt>Failed</dt><dd>1</dd>"), "{page}");
    assert!(!page.contains("<h2>History</h2>") && !page.contains("<h2>Best trials</h2>"), "{page}");
    let front = section(&page, "Pareto front");
    let on_front = front.matches("<circle class=\"succeeded\"").count();
    let others = front.matches("<circle class=\"stopped\"").count();
    assert!(on_front > 0 && on_front + others == 6, "{front}");
    assert_eq!(front.matches("<th class=\"number\" scope=\"row\">").count(), on_front, "{front}");
    assert!(front.contains("loss (minimize)") && front.contains("speed (maximize)"), "{front}");
    assert!(section(&page, "Code").contains("all trials"), "{page}");
}
