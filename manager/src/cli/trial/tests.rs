use serde_json::json;

use super::description::trial;
use super::list::trials;
use super::*;
use crate::cli::terminal::plain_text::tests::{assert_harmless, hostile_text};

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
fn the_description_of_a_trial_links_to_its_page() {
    let style = TextStyle { links: true, ..PIPE_STYLE };
    let page = "http://127.0.0.1:8080";
    let link = format!("\u{1b}]8;;{page}/trials/t1\u{1b}\\t1\u{1b}]8;;\u{1b}\\");
    let mut one = sample_trial();
    one[PAGE_MEMBER] = format!("{page}/trials/t1").into();
    let shown = trial(&one, style);
    assert!(shown.contains(&format!("id             {link}\n")), "{shown}");
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

/// Text from a trial, its parameters or a foreign manager must not control the terminal or flood the screen.
#[test]
fn hostile_names_and_values_of_a_trial_are_a_few_plain_characters() {
    let hostile = hostile_text();
    let mut one = sample_trial();
    for member in ["id", "state", "message", "metric", "host", "attempt"] {
        one[member] = json!(hostile);
    }
    one["parameters"] = json!({hostile.as_str(): hostile, "nested": {hostile.as_str(): [hostile]}});
    one["verdict"]["evidence"] = json!({hostile.as_str(): hostile, "stderr_tail": hostile});
    one["timeline"] = json!([{"at_ms": 0, "by": hostile, "what": hostile, "message": hostile}]);
    let metric =
        json!({"name": hostile, "type": hostile, "step": 0, "value": {hostile.as_str(): hostile}});
    assert_harmless(&trials(&json!([one]), PIPE_STYLE));
    assert_harmless(&trial(&one, PIPE_STYLE));
    assert_harmless(&explanation(&one, PIPE_STYLE));
    assert_harmless(&metric_table(&json!([metric]), PIPE_STYLE));
}

#[test]
fn a_long_reason_is_wrapped_over_several_lines() {
    let mut one = sample_trial();
    let reason = "The trial exited with code 137, which stands for SIGKILL; its last words were \"Killed\": a person, \
                  the platform or the kernel did it.";
    one["message"] = json!(reason);
    one["timeline"] = json!([{"at_ms": 0, "by": "agent", "what": "ended", "message": reason}]);
    let shown = explanation(&one, PIPE_STYLE);
    assert!(shown.lines().all(|line| line.chars().count() <= 140), "{shown}");
    let words = shown.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains(&format!("why {reason}")), "{shown}");
    assert!(shown.contains("\n       "), "the next line is indented: {shown}");
    assert!(words.ends_with("the kernel did it."), "{shown}");
    let description = trial(&one, PIPE_STYLE);
    let words = description.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains(reason), "{description}");
}

#[test]
fn a_list_of_trials_has_a_column_for_each_of_a_few_parameters() {
    let shown =
        trials(&json!([{"id": "t", "parameters": {"c": {"_name": "x", "size": 3}}}]), PIPE_STYLE);
    assert!(shown.contains("c._name   c.size"), "{shown}");
    let many: serde_json::Map<_, _> = (0..9).map(|at| (format!("p{at}"), json!(at))).collect();
    let shown = trials(&json!([{"id": "t", "parameters": many}]), PIPE_STYLE);
    assert!(shown.ends_with("3 more parameters; `trial show` and `-o json` show all\n"), "{shown}");
}

#[test]
fn a_list_of_metrics_is_a_table() {
    let metric = json!({"name": "acc", "type": "final", "step": 0, "value": "NaN"});
    let shown = metric_table(&json!([metric]), PIPE_STYLE);
    assert_eq!(shown.lines().nth(2).map(str::trim), Some("acc      final      0   NaN"));
}
