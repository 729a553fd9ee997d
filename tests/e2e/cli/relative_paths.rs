//! Relative paths are relative to the manager's working directory, although trials run in another one.

use std::os::unix::fs::symlink;

use trialkeeper_tests::{Outcome, Search, TestBed, WAIT_TIMEOUT};

#[test]
fn relative_paths_are_relative_to_the_manager_s_directory() {
    let bed = TestBed::new();
    bed.write("code/value", "score=0.5\n");
    symlink(bed.agent_command().get_program(), bed.path("agent")).unwrap();
    let file = Search::new("cat value", 1).write(&bed);
    let mut command = bed.manager_command();
    command.arg("run").arg(file).args(["--port", "0", "--output", "json"]);
    command.args(["--data-dir", "data", "--agent", "./agent"]);
    let search = Outcome::parse(bed.start(&mut command).finish(WAIT_TIMEOUT));
    search.expect_done(1, 0);
    assert_eq!(search.trial(0).final_result, 0.5);
}
