//! Pods without a cluster: agents without a shared folder fetch code and parameters from the manager, find
//! one another through it, and report as one trial.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use rusqlite::{Connection, OpenFlags};
use serde_json::json;
use trialkeeper_tests::{Gate, Outcome, RunningProgram, Search, TestBed, WAIT_TIMEOUT, wait_for};

/// The trial to which the pods belong. It waits at the gate.
const ANCHOR_TRIAL: &str = "read _ <\"$BED/gate\"; echo score=1";

/// The pods' command, which needs files and variables from the manager.
const TRAIN_SCRIPT: &str = r#"#!/bin/sh
test "$(cat deep/er/data)" = data || exit 3
test ! -e notes.txt || exit 4
grep -q '"x":' "$NNI_SYS_DIR/parameter.cfg" || exit 5
echo "code=$NNI_CODE_DIR pwd=$(pwd) given <$TRIALKEEPER_PARAM_x>"
echo "workers=$FB_WORKER_ADDRESSES ps=$FB_PS_IPS:$FB_PS_PORT"
echo "role=$TRIALKEEPER_ROLE:$TRIALKEEPER_ROLE_INDEX rank=$TRIALKEEPER_RANK/$TRIALKEEPER_WORLD_SIZE"
echo "score=0.$TRIALKEEPER_RANK"
"#;

/// Returns the attempts that reported metrics, with the numbers of metrics, and the ended attempts.
fn reported_attempts(bed: &TestBed, id: &str) -> (Vec<(String, i64)>, Vec<String>) {
    let file = bed.data_folder().join(id).join("trialkeeper.db");
    let store = Connection::open_with_flags(file, OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap();
    let mut select = store
        .prepare(
            "SELECT attempt.name, count(*) FROM report JOIN attempt ON report.attempt = attempt.key \
             WHERE kind = ?1 GROUP BY attempt.name ORDER BY attempt.name",
        )
        .unwrap();
    let mut of = |kind: &str| -> Vec<(String, i64)> {
        let rows = select.query_map([kind], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
        rows.map(Result::unwrap).collect()
    };
    let metrics = of("metric");
    (metrics, of("ended").into_iter().map(|(name, _)| name).collect())
}

#[test]
#[expect(clippy::too_many_lines, reason = "one scenario")]
fn pods_fetch_from_the_manager_and_report_as_one_trial() {
    let bed = TestBed::new();
    let gate = Gate::new(&bed.path("gate"));
    bed.write_script("code/train.sh", TRAIN_SCRIPT);
    bed.write("code/deep/er/data", "data");
    bed.write("code/notes.txt", "private");
    bed.write("code/.nniignore", "*.txt\n");
    let mut manager = Search::new(ANCHOR_TRIAL, 1).command(&bed);
    let manager = bed.start(manager.env("BED", bed.folder()));
    let token = wait_for("the trial's token", WAIT_TIMEOUT, || {
        let experiments = fs::read_dir(bed.data_folder()).ok()?;
        let trials = experiments.flatten().filter_map(|folder| fs::read_dir(folder.path()).ok());
        trials
            .flatten()
            .flatten()
            .map(|trial| trial.path().join("token"))
            .find(|token| token.exists())
    });
    let trial = token.parent().unwrap();
    let experiment = trial.parent().unwrap();
    let name = |folder: &std::path::Path| folder.file_name().unwrap().to_str().unwrap().to_owned();

    let pod = |role: &str, index: u32| -> RunningProgram {
        let mut agent = bed.agent_command();
        let out = bed.path(&format!("pods/{role}-{index}"));
        agent.args(["run", "--attempt", "pods-1", "--log-collection", "http"]);
        agent.args(["--experiment", &name(experiment), "--trial", &name(trial)]);
        agent.arg("--manager-file").arg(experiment.join("manager.url"));
        agent.arg("--token-file").arg(&token).arg("--output-dir").arg(out);
        agent.args(["--fetch", "code,parameters", "--roles", "worker:2,ps:1:5000"]);
        // The variables of FrameworkController.
        agent.env("FC_TASKROLE_NAME", role).env("FC_TASK_INDEX", index.to_string());
        agent.args(["--metrics-from", "worker:1", "--", "./train.sh"]);
        bed.start(&mut agent)
    };
    let pods = [("ps", 0, 2), ("worker", 1, 1), ("worker", 0, 0)]
        .map(|(role, index, rank)| (role, index, rank, pod(role, index)));
    for (role, index, rank, pod) in pods {
        let ended = pod.finish(WAIT_TIMEOUT);
        assert_eq!(ended.code, Some(0), "{role}:{index}\n{}", ended.stderr);
        let stdout = String::from_utf8(ended.stdout).unwrap();
        let code = bed.path(&format!("pods/{role}-{index}/code"));
        for line in [
            format!("code={} pwd={} given <0.", code.display(), code.display()),
            "workers=127.0.0.1:4000,127.0.0.1:4000 ps=127.0.0.1:5000".to_owned(),
            format!("role={role}:{index} rank={rank}/3"),
        ] {
            assert!(stdout.contains(&line), "{line}\n{stdout}");
        }
        let mode = fs::metadata(code.join("train.sh")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o755);
    }

    gate.release(1);
    let search = Outcome::parse(manager.finish(WAIT_TIMEOUT));
    search.expect_done(1, 0);
    assert_eq!(search.trial(0).final_result, json!(1), "the pods are another attempt");
    let (metrics, ended) = reported_attempts(&bed, &search.id);
    let own = format!("{}-1", search.trial(0).id);
    let mut expected = vec![(own.clone(), 2), ("pods-1".to_owned(), 2)];
    expected.sort();
    assert_eq!(metrics, expected, "exactly one pod must report metrics");
    let mut expected =
        vec![own, "pods-1".to_owned(), "pods-1-ps-0".to_owned(), "pods-1-worker-0".to_owned()];
    expected.sort();
    assert_eq!(ended, expected, "each pod must report its end");
}
