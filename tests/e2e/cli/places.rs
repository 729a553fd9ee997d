//! Relative paths are relative to the manager's working directory, although trials run in another one.

use std::os::unix::fs::symlink;

use trialkeeper_tests::{BOUND, Outcome, Search, TestBed};

#[test]
fn a_relative_data_folder_and_agent_serve_trials_that_run_elsewhere() {
    let bed = TestBed::new();
    bed.write("code/value", "score=0.5\n");
    symlink(bed.keeper().get_program(), bed.path("keeper")).unwrap();
    let file = Search::new("cat value", 1).write(&bed);
    let mut command = bed.manager();
    command.arg("run").arg(file).args(["--port", "0", "--output", "json"]);
    command.args(["--data-dir", "data", "--agent", "./keeper"]);
    let search = Outcome::of(bed.start(&mut command).finish(BOUND));
    search.expect_done(1, 0);
    assert_eq!(search.trial(0).final_result, 0.5);
}
