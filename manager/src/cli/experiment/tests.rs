use super::description::experiment;
use super::list::experiments;
use super::*;
use crate::cli::terminal::plain_text::tests::{assert_harmless, hostile_text};
use crate::cli::terminal::text_style::TextStyle;

/// The style of a pipe, where lines may have any length.
const PIPE_STYLE: TextStyle = TextStyle { width: None, colours: false, links: false };

#[test]
fn the_description_of_an_experiment_links_to_its_pages() {
    let style = TextStyle { links: true, ..PIPE_STYLE };
    let page = "http://127.0.0.1:8080";
    let link =
        |path: &str, id: &str| format!("\u{1b}]8;;{page}{path}\u{1b}\\{id}\u{1b}]8;;\u{1b}\\");
    let best = json!({"id": "b", "sequence": 4, "final": 0.5});
    let shown = experiment(&json!({"id": "e", "best": best, PAGE_MEMBER: page}), style);
    assert!(shown.contains(&format!("id    {}\n", link("", "e"))), "{shown}");
    assert!(shown.contains(&format!("by trial 4 ({})\n", link("/trials/b", "b"))), "{shown}");
    let plain = experiment(&json!({"id": "e", "best": best}), style);
    assert!(!plain.contains('\u{1b}'), "{plain}");
}

/// Text from a foreign manager must not control the terminal or flood the screen.
#[test]
fn hostile_names_and_values_of_an_experiment_are_a_few_plain_characters() {
    let hostile = hostile_text();
    let one = json!({"id": hostile, "name": hostile, "best": {"parameters": {hostile.as_str(): hostile}},
        "counts": {hostile.as_str(): 1}, "trouble": hostile});
    assert_harmless(&experiment(&one, PIPE_STYLE));
    assert_harmless(&experiments(&json!([one]), PIPE_STYLE));
}

#[test]
fn the_parameters_of_the_best_trial_follow_its_line() {
    let best = json!({"id": "t1", "sequence": 1, "final": 0.5, "parameters": {"lr": 0.1}});
    let code = json!([{"sha256": "a".repeat(64), "files": 1, "bytes": 1, "cut": false}]);
    let shown = experiment(&json!({"id": "x", "best": best, "code": code}), PIPE_STYLE);
    let labels: Vec<_> = shown.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(labels, ["id", "best", "lr", "code"], "{shown}");
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
fn a_list_of_experiments_is_a_table() {
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
}
