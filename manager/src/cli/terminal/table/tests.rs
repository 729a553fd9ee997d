use serde_json::json;

use super::*;

/// The style of a pipe, where lines may have any length.
const PIPE_STYLE: TextStyle = TextStyle { width: None, colours: false, links: false };

fn sample_trial() -> Value {
    json!({
        "id": "t1", "sequence": 3, "state": "FAILED", "parameters": {"lr": 0.1, "act": "re\nlu"},
        "final": null, "latest": 0.25, "latest_step": 4, "started_at_ms": 1000, "ended_at_ms": 3500,
        "message": "it exited with 3", "exit_code": 3, "attempt": "t1-1", "metric": "score",
        "command": ["sh", "-c", "false\n  false\n"], "host": "h", "attempts": [{}],
        "verdict": {
            "message": "it exited with 3", "cause": "exit", "class": "user-error", "confidence": "certain",
            "exit": {"code": 3}, "duration_ms": 2500,
            "evidence": {"stderr_tail": "Traceback\nboom\u{1b}[0m\n", "oom_kills": 0, "memory_peak_bytes": 5_345_300_480_u64},
        },
        "timeline": [
            {"at_ms": 0, "by": "manager", "what": "WAITING", "message": null},
            {"at_ms": 3500, "by": "agent", "what": "ended", "message": "it exited with 3"},
        ],
    })
}

#[test]
fn a_list_of_trials_has_a_line_for_each_trial() {
    let expected = [
        " trial   id   state    why                score   latest    time   lr    act",
        "───────────────────────────────────────────────────────────────────────────────",
        "     3   t1   FAILED   it exited with 3             0.25   2.5 s   0.1   re\u{fffd}lu",
    ];
    let shown = trials(&json!([sample_trial()]), PIPE_STYLE);
    assert_eq!(shown.lines().collect::<Vec<_>>(), expected, "\n{shown}");
}

#[test]
fn a_list_of_trials_names_its_results() {
    let trial = |metric: Option<&str>, last: Value| json!({"id": "t", "sequence": 0, "state": "SUCCEEDED", "metric": metric, "final": last});
    let several = json!({"default": "Infinity", "loss": 0.123_456, "speed": 3, "note": "x"});
    #[rustfmt::skip]
    let table = [
        (trial(None, json!(0.5)),                      [" trial   id   state       final", "     0   t    SUCCEEDED     0.5"]),
        (trial(Some("default"), json!({"default": 7})), [" trial   id   state       final", "     0   t    SUCCEEDED       7"]),
        (trial(Some("loss"), several),                 [" trial   id   state         loss   speed", "     0   t    SUCCEEDED   0.1235       3"]),
    ];
    for (trial, expected) in table {
        let shown = trials(&json!([trial]), PIPE_STYLE);
        let lines: Vec<_> = shown.lines().filter(|line| !line.starts_with('─')).collect();
        assert_eq!(lines, expected, "\n{shown}");
    }
}

#[test]
fn descriptions_link_to_the_pages() {
    let style = TextStyle { links: true, ..PIPE_STYLE };
    let page = "http://127.0.0.1:8080";
    let link =
        |path: &str, id: &str| format!("\u{1b}]8;;{page}{path}\u{1b}\\{id}\u{1b}]8;;\u{1b}\\");
    let mut one = sample_trial();
    one[PAGE_MEMBER] = format!("{page}/trials/t1").into();
    let shown = trial(&one, style);
    assert!(shown.contains(&format!("id             {}\n", link("/trials/t1", "t1"))), "{shown}");
    let best = json!({"id": "b", "sequence": 4, "final": 0.5});
    let shown = experiment(&json!({"id": "e", "best": best, PAGE_MEMBER: page}), style);
    assert!(shown.contains(&format!("id    {}\n", link("", "e"))), "{shown}");
    assert!(shown.contains(&format!("by trial 4 ({})\n", link("/trials/b", "b"))), "{shown}");
    let plain = experiment(&json!({"id": "e", "best": best}), style);
    assert!(!plain.contains('\u{1b}'), "{plain}");
}

#[test]
fn a_list_of_trials_shows_places_if_they_differ() {
    let trials_at = |places: &[Value]| {
        let all = places.iter().map(|place| {
            let mut trial =
                json!({"id": "t", "sequence": 0, "state": "RUNNING", "parameters": {"lr": 1}});
            trial.as_object_mut().unwrap().extend(place.as_object().unwrap().clone());
            trial
        });
        trials(&all.collect::<Value>(), PIPE_STYLE)
    };
    let at = |index: usize, host: &str| json!({"host": host, "training_service": {"index": index, "platform": "remote"}});
    let expected = [
        " trial   id   state     final   where      lr",
        "──────────────────────────────────────────────",
        "     0   t    RUNNING           [0] gpu1   1",
        "     0   t    RUNNING           [1] gpu2   1",
        "     0   t    RUNNING                      1",
    ];
    let shown = trials_at(&[at(0, "gpu1"), at(1, "gpu2"), json!({})]);
    assert_eq!(shown.lines().collect::<Vec<_>>(), expected, "\n{shown}");
    for one in [json!({"host": "gpu1"}), json!({})] {
        assert!(!trials_at(&[one.clone(), one]).contains("where"));
    }
}

#[test]
fn a_trial_is_shown_with_all_its_fields() {
    let expected = "\
trial          3
id             t1
state          FAILED
why            it exited with 3
metric         score
latest         0.25
started (UTC)  1970-01-01 00:00:01
ended (UTC)    1970-01-01 00:00:03
time           2.5 s
exit code      3
command        sh -c 'false
                 false
               '
host           h
attempt        t1-1
attempts       1
  lr           0.1
  act          re\u{fffd}lu
";
    assert_eq!(trial(&sample_trial(), PIPE_STYLE), expected);
}

#[test]
fn why_shows_verdict_evidence_and_timeline() {
    let shown = explanation(&sample_trial(), PIPE_STYLE);
    let expected = "\
state  FAILED
why    it exited with 3

verdict
  cause       exit
  class       user-error
  confidence  certain
  exit        code 3
  duration    2.5 s
evidence
  oom kills    0
  memory peak  5.3 GB
  stderr tail
    | Traceback
    | boom\u{fffd}[0m

";
    assert!(shown.starts_with(expected), "{shown}");
    assert!(
        shown.contains("1970-01-01 00:00:03   agent     ended     it exited with 3"),
        "{shown}"
    );
}

#[test]
fn a_violated_constraint_is_named_and_its_result_is_not_cut() {
    let result = json!({"val_accuracy": 0.694_812_345_678_901_2, "params": 1_234_567, "default": "-Infinity"});
    let mut one = sample_trial();
    one["final"] = result.clone();
    one["violations"] =
        json!(["val_accuracy is 0.6948, below 0.9", "params is 1234567, above 1000000"]);
    let shown = trial(&one, PIPE_STYLE);
    assert!(shown.contains(&format!("final          {result}\n")), "{shown}");
    let shown = explanation(&one, PIPE_STYLE);
    let expected =
        "violates  val_accuracy is 0.6948, below 0.9\n          params is 1234567, above 1000000\n";
    assert!(shown.contains(expected), "{shown}");
}

#[test]
fn the_parameters_of_the_best_trial_follow_its_line() {
    let best = json!({"id": "t1", "sequence": 1, "final": 0.5, "parameters": {"lr": 0.1}});
    let code = json!([{"sha256": "a".repeat(64), "files": 1, "bytes": 1, "cut": false}]);
    let shown = super::experiment(&json!({"id": "x", "best": best, "code": code}), PIPE_STYLE);
    let labels: Vec<_> = shown.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(labels, ["id", "best", "lr", "code"], "{shown}");
}

/// Text from a trial, its parameters or a foreign manager must not control the terminal or flood the screen.
#[test]
fn hostile_names_and_values_are_a_few_plain_characters() {
    let hostile = format!("\u{1b}[2J\u{9b}31m\u{202e}{}\u{7}", "x".repeat(1000));
    let mut trial = sample_trial();
    for member in ["id", "state", "message", "metric", "host", "attempt"] {
        trial[member] = json!(hostile);
    }
    trial["parameters"] =
        json!({hostile.as_str(): hostile, "nested": {hostile.as_str(): [hostile]}});
    trial["verdict"]["evidence"] = json!({hostile.as_str(): hostile, "stderr_tail": hostile});
    trial["timeline"] = json!([{"at_ms": 0, "by": hostile, "what": hostile, "message": hostile}]);
    let experiment = json!({"id": hostile, "name": hostile, "best": {"parameters": {hostile.as_str(): hostile}},
        "counts": {hostile.as_str(): 1}, "trouble": hostile});
    let metric =
        json!({"name": hostile, "type": hostile, "step": 0, "value": {hostile.as_str(): hostile}});
    for shown in [
        trials(&json!([trial]), PIPE_STYLE),
        super::trial(&trial, PIPE_STYLE),
        explanation(&trial, PIPE_STYLE),
        super::experiment(&experiment, PIPE_STYLE),
        experiments(&json!([experiment]), PIPE_STYLE),
        metrics(&json!([metric]), PIPE_STYLE),
    ] {
        let steers = |c: char| c.is_control() && c != '\n' || crate::view::is_direction_mark(c);
        assert!(!shown.contains(steers), "{shown:?}");
        // Reasons are shown in full length.
        assert!(shown.len() < 20_000, "{} bytes", shown.len());
    }
}

#[test]
fn a_long_reason_is_wrapped_over_several_lines() {
    let mut trial = sample_trial();
    let reason = "The trial exited with code 137, which stands for SIGKILL; its last words were \"Killed\": a person, \
                  the platform or the kernel did it.";
    trial["message"] = json!(reason);
    trial["timeline"] = json!([{"at_ms": 0, "by": "agent", "what": "ended", "message": reason}]);
    let shown = explanation(&trial, PIPE_STYLE);
    assert!(shown.lines().all(|line| line.chars().count() <= 140), "{shown}");
    let words = shown.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains(&format!("why {reason}")), "{shown}");
    assert!(shown.contains("\n       "), "the next line is indented: {shown}");
    assert!(words.ends_with("the kernel did it."), "{shown}");
    assert!(
        super::trial(&trial, PIPE_STYLE)
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ")
            .contains(reason)
    );
}

#[test]
fn an_experiment_without_a_manager_is_shown_as_such() {
    let trouble = "its manager was killed; run `trial-manager resume e`";
    let shown = experiment(
        &json!({"id": "e", "state": "RUNNING", "elapsed_ms": 0, "trouble": trouble}),
        PIPE_STYLE,
    );
    assert_eq!(shown, format!("id       e\nstate    RUNNING\ntrouble  {trouble}\n"));
}

#[test]
fn an_experiment_is_shown_line_by_line() {
    let shown = experiment(
        &json!({
            "id": "e", "name": null, "state": "DONE", "created_at_ms": 0, "elapsed_ms": 61_000, "trials": 2,
            "trial_concurrency": 1, "counts": {"FAILED": 1, "SUCCEEDED": 1}, "causes": {"exit": 1},
            "best": {"id": "t", "sequence": 0, "final": 0.5, "parameters": {"lr": 0.1}},
        }),
        PIPE_STYLE,
    );
    let expected = "\
id             e
state          DONE
created (UTC)  1970-01-01 00:00:00
run time       1 min 1 s
trials         2
concurrency    1
counts         FAILED 1, SUCCEEDED 1
failures       exit 1
best           0.5 by trial 0 (t)
  lr           0.1
";
    assert_eq!(shown, expected);
}

#[test]
fn lists_of_experiments_and_metrics_are_tables() {
    let shown = experiments(
        &json!([
            {"id": "a", "state": "DONE", "created_at_ms": 0, "name": "digits"},
            {"id": "b", "state": "UNREADABLE", "trouble": "it is damaged"},
        ]),
        PIPE_STYLE,
    );
    let lines: Vec<_> = shown.lines().map(str::trim).collect();
    assert_eq!(lines[0], "id   state        created (UTC)         name     trouble");
    assert_eq!(lines[2], "a    DONE         1970-01-01 00:00:00   digits");
    assert_eq!(lines[3], "b    UNREADABLE                                  it is damaged");
    let shown = experiments(
        &json!([
            {"id": "a", "state": "RUNNING", "created_at_ms": 0, "url": "http://127.0.0.1:8080"},
            {"id": "b", "state": "DONE", "created_at_ms": 0},
        ]),
        PIPE_STYLE,
    );
    let lines: Vec<_> = shown.lines().map(str::trim).collect();
    assert_eq!(lines[0], "id   state     created (UTC)         name   address");
    assert_eq!(lines[2], "a    RUNNING   1970-01-01 00:00:00          http://127.0.0.1:8080");
    let best = json!({"value": 0.123_456});
    let shown = experiments(
        &json!([
            {"id": "a", "state": "RUNNING", "created_at_ms": 0, "trials": 6, "max_trial_number": 20, "succeeded": 3, "failed": 1, "running": 2, "best": best},
            {"id": "b", "state": "DONE", "created_at_ms": 0, "trials": 2, "succeeded": 2, "failed": 0, "running": 0, "best": null},
        ]),
        PIPE_STYLE,
    );
    let lines: Vec<String> =
        shown.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    assert_eq!(lines[0], "id state created (UTC) name trials succeeded failed running best");
    assert_eq!(lines[2], "a RUNNING 1970-01-01 00:00:00 6 of 20 3 1 2 0.1235");
    assert_eq!(lines[3], "b DONE 1970-01-01 00:00:00 2 2");
    let shown =
        metrics(&json!([{"name": "acc", "type": "final", "step": 0, "value": "NaN"}]), PIPE_STYLE);
    assert_eq!(shown.lines().nth(2).map(str::trim), Some("acc      final      0   NaN"));
}

#[test]
fn parameters_of_different_branches_each_have_a_column() {
    let all =
        [json!({"a": 1, "b": 2}), json!({"b": 1, "c": {"_name": "x", "size": 3}}), json!(null)];
    assert_eq!(
        parameter_columns(all.iter(), 9),
        (["a", "b", "c._name", "c.size"].map(str::to_owned).to_vec(), 0)
    );
    assert_eq!(parameter_columns(all.iter(), 3).1, 1);
    let shown =
        trials(&json!([{"id": "t", "parameters": {"c": {"_name": "x", "size": 3}}}]), PIPE_STYLE);
    assert!(shown.contains("c._name   c.size"), "{shown}");
    let many: serde_json::Map<_, _> = (0..9).map(|at| (format!("p{at}"), json!(at))).collect();
    let shown = trials(&json!([{"id": "t", "parameters": many}]), PIPE_STYLE);
    assert!(shown.ends_with("3 more parameters; `trial show` and `-o json` show all\n"), "{shown}");
}

#[test]
fn a_column_shows_four_digits() {
    #[rustfmt::skip]
    let table = [
        (json!(0.284_934_476_086_128_8), "0.2849"),
        (json!(0.000_030_557_031_8),     "3.056e-5"),
        (json!(123_456.789),             "123500"),
        (json!(-2.5e30),                 "-2.5e30"),
        (json!(0.0),                     "0"),
        (json!(16),                      "16"),
        (json!("relu"),                  "relu"),
        (json!("a\nb"),                  "a\u{fffd}b"),
        (json!([1, 2]),                  "[1,2]"),
    ];
    for (value, text) in table {
        assert_eq!(brief(&value), text, "{value}");
    }
}
