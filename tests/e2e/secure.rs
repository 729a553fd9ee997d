//! What leaves the machine is encrypted; what an experiment keeps can be copied and checked.

use std::process::Command;

use trialkeeper_tests::{BOUND, Outcome, Search, TestBed};

#[test]
fn off_the_loopback_interface_reports_are_encrypted() {
    let bed = TestBed::new();
    let mut command = Search::new("echo score={{x}}", 2).command(&bed);
    let outcome = Outcome::of(bed.start(command.args(["--host", "0.0.0.0"])).finish(BOUND));
    assert_eq!(outcome.code, 0, "{}", outcome.stderr);
    let url = std::fs::read_to_string(bed.data().join(&outcome.id).join("manager.url")).unwrap();
    assert!(url.starts_with("https://"), "{url}");
    for trial in &outcome.trials {
        assert_eq!(trial.final_result, trial.parameters["x"], "delivered through the encryption");
    }
}

#[test]
fn a_database_is_checked_and_copied() {
    let bed = TestBed::new();
    let outcome = Search::new("echo score=1", 1).run(&bed);
    let copy = bed.path("copy.db");
    let run = |words: &[&str]| {
        let mut command = bed.manager();
        command.args(words).arg("--data-dir").arg(bed.data());
        bed.start(&mut command).finish(BOUND)
    };
    let to = copy.to_str().unwrap();
    #[rustfmt::skip]
    let table: [(&str, &[&str], i32); 5] = [
        ("a good database",         &["check", &outcome.id],          0),
        ("its copy",                &["backup", &outcome.id, to],     0),
        ("a copy is not replaced",  &["backup", &outcome.id, to],     2),
        ("no such experiment",      &["check", "nothere"],            2),
        ("an id that is a path",    &["check", "../etc"],             2),
    ];
    for (says, words, code) in table {
        let finished = run(words);
        assert_eq!(finished.code, Some(code), "{says}: {}", finished.stderr);
    }
    // Another program reads the copy.
    let read = Command::new("python3")
        .args(["-c", "import sqlite3, sys; print(sqlite3.connect(sys.argv[1]).execute('SELECT count(*) FROM trial').fetchone()[0])"])
        .arg(&copy)
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&read.stdout).trim(), "1");
}
