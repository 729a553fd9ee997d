//! A user edits the code while a search runs.

use std::fs;

use serde_json::Value;
use trialkeeper_tests::{BOUND, Gate, Outcome, Search, TestBed, get, wait_for};

#[test]
fn a_script_that_is_edited_in_mid_search_is_reported() {
    let bed = TestBed::new();
    let gate = Gate::new(&bed.path("gate"));
    let script = |score: u32| {
        let text = format!("#!/bin/sh\nread _ <{}; echo score={score}\n", gate.path().display());
        bed.script("code/new.sh", &text);
        fs::rename(bed.path("code/new.sh"), bed.path("code/train.sh")).unwrap();
    };
    script(1);
    let manager = Search::new("./train.sh", 4).with("trialConcurrency", 1).start(&bed);
    let url = wait_for("the manager's address", BOUND, || {
        let folder = fs::read_dir(bed.data()).ok()?.next()?.ok()?.path();
        fs::read_to_string(folder.join("manager.url")).ok()
    });
    let read = |path: &str| {
        let (status, body) = get(url.trim(), path)?;
        (status == 200).then(|| serde_json::from_str::<Value>(&body).unwrap())
    };
    // The code of the trial `sequence`, which waits at the gate.
    let code = |sequence: u64| {
        wait_for("the trial's code", BOUND, || {
            let trials = read("/api/v1/trials")?;
            let all = trials["trials"].as_array()?;
            let trial = all.iter().find(|trial| trial["sequence"] == sequence)?;
            let detail = read(&format!("/api/v1/trials/{}", trial["id"].as_str()?))?;
            detail["code"]["sha256"].as_str().map(str::to_owned)
        })
    };
    let first = code(0);
    gate.open(1);
    assert_eq!(code(1), first, "nothing was edited");
    assert_eq!(read("/api/v1/experiment").unwrap()["code_difference"], Value::Null);
    script(2);
    gate.open(1);
    assert_ne!(code(2), first);
    gate.open(1);
    assert_ne!(code(3), first);
    let said = "trials 2-3 (train.sh) ran other code than trials 0-1";
    let shown = read("/api/v1/experiment").unwrap();
    assert_eq!(shown["code_difference"], said);
    assert_eq!(
        (&shown["code"][0]["trials"], &shown["code"][1]["trials"]),
        (&"0-1".into(), &"2-3".into())
    );
    let (_, page) = get(url.trim(), "/").unwrap();
    assert!(page.contains(said), "{page}");
    gate.open(1);
    let done = Outcome::of(manager.finish(BOUND));
    done.expect_done(4, 0);
    let mut show = bed.manager();
    show.args(["experiment", "show", &done.id]).arg("--data-dir").arg(bed.data());
    let shown = bed.start(&mut show).finish(BOUND);
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains(said), "{shown}");
    let mut export = bed.manager();
    export.args(["experiment", "export", &done.id, "--form", "csv", "--data-dir"]).arg(bed.data());
    let table = bed.start(&mut export).finish(BOUND);
    let table = String::from_utf8(table.stdout).unwrap();
    let hashes: Vec<_> = table.lines().map(|line| line.rsplit(',').next().unwrap()).collect();
    assert_eq!(hashes[0], "code_sha256", "{table}");
    assert_eq!([hashes[1], hashes[2]], [first.as_str(); 2]);
    assert_ne!(hashes[3], first);
}
