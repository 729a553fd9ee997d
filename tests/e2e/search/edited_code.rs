//! A user edits the code during a search.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use trialkeeper_tests::{
    Gate, Outcome, RunningProgram, Search, TestBed, WAIT_TIMEOUT, http_get, wait_for,
};

/// Writes the search's code: a script that waits at the gate, writes a file to its own folder and prints
/// `score`.
fn write_script(bed: &TestBed, gate: &Gate, score: u32) {
    let gate = gate.path().display();
    let text =
        format!("#!/bin/sh\nread _ <{gate}; echo $NNI_TRIAL_SEQ_ID >model; echo score={score}\n");
    bed.write_script("code/new.sh", &text);
    fs::rename(bed.path("code/new.sh"), bed.path("code/train.sh")).unwrap();
}

fn manager_url(bed: &TestBed) -> String {
    wait_for("the manager's address", WAIT_TIMEOUT, || bed.find_manager_url())
}

/// Reads a path of the manager's API. Returns `None` if the answer is not 200.
fn read_api(bed: &TestBed, path: &str) -> Option<Value> {
    let (status, body) = http_get(&manager_url(bed), path)?;
    (status == 200).then(|| serde_json::from_str::<Value>(&body).unwrap())
}

/// Returns a trial's id and the hash of its code, once the hash is recorded.
fn code_of(bed: &TestBed, sequence: u64) -> (String, String) {
    wait_for("the trial's code", WAIT_TIMEOUT, || {
        let trials = read_api(bed, "/api/v1/trials")?;
        let all = trials["trials"].as_array()?;
        let trial = all.iter().find(|trial| trial["sequence"] == sequence)?;
        let id = trial["id"].as_str()?.to_owned();
        let detail = read_api(bed, &format!("/api/v1/trials/{id}"))?;
        Some((id, detail["code"]["sha256"].as_str()?.to_owned()))
    })
}

fn show(bed: &TestBed, words: &[&str]) -> String {
    let mut command = bed.manager_command();
    command.args(words).arg("--data-dir").arg(bed.data_folder());
    let shown: RunningProgram = bed.start(&mut command);
    String::from_utf8(shown.finish(WAIT_TIMEOUT).stdout).unwrap()
}

#[test]
fn a_snapshot_gives_each_trial_its_own_copy_of_the_first_code() {
    let bed = TestBed::new();
    let gate = Gate::new(&bed.path("gate"));
    write_script(&bed, &gate, 1);
    let search = Search::new("./train.sh", 3)
        .with("trialConcurrency", 1)
        .with("codeSnapshot", true)
        .with("recordPackages", true);
    let manager = search.start(&bed);
    let (_, first) = code_of(&bed, 0);
    write_script(&bed, &gate, 2);
    gate.release(1);
    let (second, code) = code_of(&bed, 1);
    assert_eq!(code, first, "the edit changed the code of a trial");
    gate.release(1);
    code_of(&bed, 2);
    let files = format!("/api/v1/trials/{second}/files");
    let listed = wait_for("the trial's files without the code", WAIT_TIMEOUT, || {
        let listed = read_api(&bed, &files)?;
        let names = listed["files"].as_array()?;
        (names.len() == 1).then_some(listed)
    });
    assert_eq!(listed["files"][0]["name"], "code/model");
    let file = |name: &str| read_api(&bed, &format!("/api/v1/trials/{second}/file?name={name}"));
    assert_eq!(file("code/model"), Some(1.into()), "the API returns the wrong content");
    for other in ["token", "../secret", "code/train.sh"] {
        assert_eq!(file(other), None, "{other}");
    }
    gate.release(1);
    let done = Outcome::parse(manager.finish(WAIT_TIMEOUT));
    done.expect_done(3, 0);
    assert!(!bed.path("code/model").exists(), "a trial ran in the original folder");
    let scores = show(&bed, &["trial", "ls", "-e", &done.id, "--output", "json"]);
    let scores: Value = serde_json::from_str(&scores).unwrap();
    let scores: Vec<_> = scores.as_array().unwrap().iter().map(|trial| &trial["final"]).collect();
    assert_eq!(scores, [1, 1, 1]);
    let packages = show(&bed, &["experiment", "show", &done.id]);
    let packages = packages.lines().find_map(|line| line.strip_prefix("packages")).unwrap().trim();
    assert!(fs::metadata(packages).unwrap().is_file(), "{packages}");
    let files = show(&bed, &["trial", "files", "2", "-e", &done.id]);
    assert!(files.contains("code/model") && !files.contains("train.sh"), "{files}");
}

/// A Btrfs file system in a file. Dropping it unmounts it.
struct Btrfs(PathBuf);

impl Btrfs {
    /// Mounts a file system of 160 MiB at `at`.
    fn mount(bed: &TestBed, at: &Path) -> Self {
        let image = bed.path("btrfs.img");
        fs::File::create(&image).unwrap().set_len(160 << 20).unwrap();
        fs::create_dir_all(at).unwrap();
        let succeeds = |program: &str, words: &[&OsStr]| {
            Command::new(program).args(words).output().is_ok_and(|done| done.status.success())
        };
        let (image, place) = (image.as_os_str(), at.as_os_str());
        let made =
            succeeds("mkfs.btrfs", &["-q".as_ref(), "-m".as_ref(), "single".as_ref(), image])
                && succeeds("mount", &["-o".as_ref(), "loop".as_ref(), image, place]);
        assert!(made, "Btrfs cannot be mounted; install btrfs-progs, and run as root");
        Self(at.to_owned())
    }
}

impl Drop for Btrfs {
    fn drop(&mut self) {
        // A lazy unmount: processes that still use it end with the bed.
        drop(Command::new("umount").arg("--lazy").arg(&self.0).status());
    }
}

#[test]
#[ignore = "needs root and btrfs-progs, to mount Btrfs"]
fn copies_of_the_code_share_their_blocks_on_btrfs() {
    let bed = TestBed::new();
    let _mounted = Btrfs::mount(&bed, &bed.data_folder());
    let gate = Gate::new(&bed.path("gate"));
    fs::create_dir_all(bed.path("code")).unwrap();
    // The base and six trials would need seven times this size, which exceeds the file system.
    fs::write(bed.path("code/data"), vec![0; 32 << 20]).unwrap();
    let line = format!(
        "echo >>{0}/begun; read _ <{0}/gate; echo x >>data; echo score=$(wc -c <data)",
        bed.folder().display()
    );
    let search =
        Search::new(&line, 6).with("trialConcurrency", 6).with("codeSnapshot", true).start(&bed);
    wait_for("six copies", WAIT_TIMEOUT, || {
        let begun = fs::read_to_string(bed.path("begun")).unwrap_or_default();
        (begun.lines().count() == 6).then_some(())
    });
    gate.release(6);
    let done = Outcome::parse(search.finish(WAIT_TIMEOUT));
    done.expect_done(6, 0);
    let size = f64::from((32 << 20) + 2);
    assert!(
        done.trials.iter().all(|trial| (trial.final_number() - size).abs() < 0.5),
        "trials share a copy: {done:#?}"
    );
    let folder = bed.data_folder().join(&done.id);
    assert!(!folder.join("code-base").exists(), "the base remains after the search");
    bed.wait_until_empty();
}

/// Checks in a CSV table that the first two of four trials ran the code `first`, and the others an edited
/// one. Returns the hash of the edit.
fn expect_origins(table: &str, first: &str, commit: &str) -> String {
    let rows: Vec<Vec<_>> = table.lines().map(|line| line.split(',').collect()).collect();
    let column = |name: &str| {
        let at =
            rows[0].iter().position(|known| *known == name).unwrap_or_else(|| panic!("{table}"));
        rows[1..].iter().map(|row| row[at]).collect::<Vec<_>>()
    };
    let hashes = column("code_sha256");
    assert_eq!(hashes[..2], [first; 2]);
    assert_ne!(hashes[2], first);
    assert_eq!(column("git_commit"), [commit; 4]);
    assert_eq!(column("git_branch"), ["topic"; 4]);
    assert_eq!(column("git_dirty")[2..], ["true"; 2], "{table}");
    let diffs = column("git_diff_sha256");
    assert!(diffs[0] != diffs[2] && diffs[2].len() == 64, "{table}");
    assert!(column("host").iter().all(|host| !host.is_empty()), "{table}");
    diffs[2].to_owned()
}

#[test]
fn a_script_edited_during_the_search_is_reported() {
    let bed = TestBed::new();
    let gate = Gate::new(&bed.path("gate"));
    let script = |score| write_script(&bed, &gate, score);
    script(1);
    let git = |arguments: &[&str]| {
        let mut git = Command::new("git");
        git.arg("-C").arg(bed.path("code")).args(["-c", "user.name=n", "-c", "user.email=e@e"]);
        let done = git.args(arguments).output().unwrap();
        assert!(done.status.success(), "{arguments:?}");
        String::from_utf8(done.stdout).unwrap().trim().to_owned()
    };
    for words in [&["init", "-b", "topic"][..], &["add", "."], &["commit", "-m", "m"]] {
        git(words);
    }
    let commit = git(&["rev-parse", "HEAD"]);
    let manager = Search::new("./train.sh", 4).with("trialConcurrency", 1).start(&bed);
    let read = |path: &str| read_api(&bed, path);
    // The trial waits at the gate.
    let code = |sequence| code_of(&bed, sequence).1;
    let first = code(0);
    gate.release(1);
    assert_eq!(code(1), first, "the code must not change without an edit");
    assert_eq!(read("/api/v1/experiment").unwrap()["code_difference"], Value::Null);
    script(2);
    gate.release(1);
    assert_ne!(code(2), first);
    gate.release(1);
    assert_ne!(code(3), first);
    let difference = "trials 2-3 (train.sh) ran other code than trials 0-1";
    let now = read("/api/v1/experiment").unwrap();
    let remedy = "; list files that are not code in .nniignore";
    assert_eq!(now["code_difference"], format!("{difference}{remedy}"));
    assert_eq!(
        (&now["code"][0]["trials"], &now["code"][1]["trials"]),
        (&"0-1".into(), &"2-3".into())
    );
    let (_, page) = http_get(&manager_url(&bed), "/").unwrap();
    assert!(page.contains(difference), "{page}");
    gate.release(1);
    let done = Outcome::parse(manager.finish(WAIT_TIMEOUT));
    done.expect_done(4, 0);
    let experiment = show(&bed, &["experiment", "show", &done.id]);
    assert!(experiment.contains(difference), "{experiment}");
    let table = show(&bed, &["experiment", "export", &done.id, "--format", "csv"]);
    let diff = expect_origins(&table, &first, &commit);
    let with_changes = format!("with changes {}", &diff[..12]);
    assert!(experiment.contains(&with_changes), "{experiment}");
    let to = bed.path("mlruns").display().to_string();
    show(&bed, &["experiment", "export", &done.id, "--format", "mlflow", "--to", &to]);
    let runs = fs::read_dir(bed.path("mlruns/0")).unwrap().flatten();
    let tags = runs.map(|run| run.path().join("tags/mlflow.source.git.commit"));
    let commits: Vec<_> = tags.filter_map(|tag| fs::read_to_string(tag).ok()).collect();
    assert_eq!(commits, [commit.as_str(); 4]);
}

#[test]
fn the_managers_redirected_output_is_not_code() {
    let bed = TestBed::new();
    bed.write_script("code/train.sh", "#!/bin/sh\nexit 1\n");
    // Each failure adds a line to the output, and the next trial starts afterwards.
    let search = Search::new("./train.sh", 3).with("maxConsecutiveFailures", 0);
    search.with("trialConcurrency", 1).write(&bed);
    let lines = "cd code; trial-manager run ../experiment.yml >run.out 2>run.err || true";
    assert_eq!(bed.start(&mut bed.shell_command(lines)).finish(WAIT_TIMEOUT).code, Some(0));
    assert_eq!(bed.read("code/run.err").matches("FAILED").count(), 3);
    let experiment = show(&bed, &["experiment", "show"]);
    assert!(!experiment.contains("ran other code"), "{experiment}");
}
