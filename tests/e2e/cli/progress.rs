//! The progress of `run` and `resume` on a terminal and in a log.

use trialkeeper_tests::{Gate, Search, Terminal, TestBed, WAIT_TIMEOUT, wait_for};

/// Returns the drawn lines, without the codes that move the cursor and the echo of Ctrl-C.
fn drawn_lines(terminal: &Terminal) -> Vec<String> {
    let output = terminal.output().replace('\r', "\n");
    let mut parts = output.split("\u{1b}[");
    let first = parts.next().unwrap_or_default().to_owned();
    let plain = parts.fold(first, |text, part| {
        let end = part.find(|c: char| c.is_ascii_alphabetic()).map_or(0, |at| at + 1);
        text + &part[end..]
    });
    plain.lines().map(|line| line.trim_end_matches([' ', '^', 'C']).to_owned()).collect()
}

#[test]
fn progress_continues_after_resume_and_fits_the_terminal() {
    let bed = TestBed::new();
    let gate = Gate::new(&bed.path("gate"));
    bed.write("score", "0.2488420074426644");
    let file = Search::new("read _ <../gate; echo score=$(cat ../score)", 6).write(&bed);
    let start = |arguments: &[&str]| {
        let mut command = bed.manager_command();
        command.args(arguments).args(["--port", "0", "--data-dir"]).arg(bed.data_folder());
        Terminal::start(&command, 60, 30)
    };
    let until = |terminal: &Terminal, words: &[&str]| {
        wait_for(&format!("{words:?}"), WAIT_TIMEOUT, || {
            let lines = drawn_lines(terminal);
            let is_found = |line: &String| words.iter().all(|word| line.contains(word));
            lines.iter().any(is_found).then_some(())
        });
    };
    let mut first = start(&["run", file.to_str().unwrap()]);
    gate.release(3);
    until(&first, &["3/6 trials, 1 running", "best 0.2488"]);
    first.press_keys("\u{3}");
    assert_eq!(wait_for("the end", WAIT_TIMEOUT, || first.exit_code()), Some(130));

    bed.write("score", "0.125");
    let mut second = start(&["resume", &bed.experiment_id()]);
    until(&second, &["3/6 trials", "best 0.2488"]);
    gate.release(1);
    until(&second, &["4/6 trials, 1 running", "best 0.2488", " left"]);
    gate.release(2);
    assert_eq!(wait_for("the end", WAIT_TIMEOUT, || second.exit_code()), Some(0));
    wait_for("the results", WAIT_TIMEOUT, || {
        second.output().contains("DONE: 6 trials").then_some(())
    });
    for terminal in [&first, &second] {
        let progress: Vec<_> =
            drawn_lines(terminal).into_iter().filter(|line| line.contains("/6 trials, ")).collect();
        let is_wide = |line: &&String| line.chars().count() >= 60;
        assert_eq!(progress.iter().find(is_wide), None, "it reaches the last column");
    }
}

#[test]
fn progress_in_a_log_has_the_best_result_of_earlier_managers() {
    let bed = TestBed::new();
    let gate = Gate::new(&bed.path("gate"));
    bed.write("score", "0.2488420074426644");
    let running = Search::new("read _ <../gate; echo score=$(cat ../score)", 3).start(&bed);
    gate.release(1);
    wait_for("a status line", WAIT_TIMEOUT, || {
        let line = "1 of 3 trials ended, 0 running, best 0.2488 (trial 0), ";
        running.stderr().contains(line).then_some(())
    });
    running.signal(nix::sys::signal::Signal::SIGINT);
    let id = trialkeeper_tests::Outcome::parse(running.finish(WAIT_TIMEOUT)).id;
    bed.write("score", "0.125");
    gate.release(9);
    let resumed = trialkeeper_tests::Outcome::run_resume(&bed, &id);
    let line = resumed.stderr.lines().find(|line| line.starts_with("2 of 3 trials ended"));
    let line = line.unwrap_or_else(|| panic!("no status line: {}", resumed.stderr));
    assert!(line.contains("best 0.2488 (trial 0), ") && line.ends_with(" left"), "{line}");
}

#[test]
fn progress_with_several_objectives_has_the_first_one_and_the_front() {
    let bed = TestBed::new();
    let objective = |metric: &str, direction: &str| serde_json::json!({"metric": metric, "direction": direction});
    let search = Search::new("echo loss=0.25; echo speed=3", 2)
        .with("tuner", serde_json::json!({"name": "Random", "classArgs": {"seed": 7}}))
        .with("objectives", vec![objective("loss", "minimize"), objective("speed", "maximize")]);
    let found = search.run(&bed);
    let line = "1 of 2 trials ended, 0 running, best loss 0.25 (trial 0), Pareto front of 1, ";
    assert!(found.stderr.contains(line), "{}", found.stderr);
}
