//! Different states of a directory have different versions, and equal states have the same.

use std::fs;
use std::process::Command as Program;

use super::*;

#[test]
fn a_version_changes_with_the_code_and_only_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let put = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        // Replaces the old file: with a coarse clock, a change in place might not be detected.
        let new = folder.path().join(".nniignored");
        fs::write(&new, text).unwrap();
        fs::rename(new, path).unwrap();
    };
    put("train.py", "1");
    put("data/read.py", "2");
    put(".nniignore", "*.pt\n");
    let mut tracker = CodeTracker::new(folder.path().to_owned());
    let mut last = tracker.scan().unwrap();
    assert_eq!((last.files, last.bytes, last.cut), (3, 7, false));
    assert_eq!(last.changed, Vec::<String>::new());
    let none: &[&str] = &[];
    let table = [
        ("train.py", "2", ["train.py"].as_slice()),
        ("train.py", "2", none),
        ("model.pt", "weights", none),
        ("__pycache__/train.pyc", "x", none),
        (".git/HEAD", "x", none),
        ("data/read.py", "3", &["data/read.py"]),
    ];
    for (name, text, changed) in table {
        put(name, text);
        let now = tracker.scan().unwrap();
        if changed.is_empty() {
            assert_eq!(now, last, "{name}");
        } else {
            assert_ne!(now.sha256, last.sha256, "{name}");
            assert_eq!(now.changed, changed, "{name}");
        }
        let fresh = CodeTracker::new(folder.path().to_owned()).scan().unwrap();
        assert_eq!(fresh.sha256, now.sha256, "the remembered state equals the real one: {name}");
        last = now;
    }
    put("log.txt", "a trial's output");
    assert_eq!(tracker.scan().unwrap(), last, "a trial's output is not code");
    fs::remove_file(folder.path().join("train.py")).unwrap();
    assert_eq!(tracker.scan().unwrap().changed, ["train.py"]);
}

#[test]
fn a_file_too_large_to_read_counts_by_its_size() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.bin");
    File::create(&path).unwrap().set_len(READ_LIMITS.bytes + 1).unwrap();
    let mut tracker = CodeTracker::new(folder.path().to_owned());
    let first = tracker.scan().unwrap();
    assert!(first.cut);
    File::create(&path).unwrap().set_len(READ_LIMITS.bytes + 2).unwrap();
    assert_ne!(tracker.scan().unwrap().sha256, first.sha256);
}

#[tokio::test]
async fn the_state_of_a_work_tree_has_the_commit_and_whether_it_is_dirty() {
    let folder = tempfile::tempdir().unwrap();
    assert!(git_state(folder.path()).await.is_none());
    let run = |arguments: &[&str]| {
        let mut git = Program::new("git");
        git.arg("-C").arg(folder.path()).args(["-c", "user.name=n", "-c", "user.email=e@e"]);
        assert!(git.args(arguments).output().unwrap().status.success(), "{arguments:?}");
    };
    fs::write(folder.path().join("train.py"), "1").unwrap();
    run(&["init", "-b", "topic"]);
    run(&["add", "."]);
    run(&["commit", "-m", "m"]);
    let (clean, _) = git_state(folder.path()).await.unwrap();
    assert_eq!((clean.branch.as_deref(), clean.dirty), (Some("topic"), Some(false)));
    assert_eq!((clean.commit.len(), clean.diff_sha256), (40, None));
    let state = async || git_state(folder.path()).await.unwrap().0;
    fs::write(folder.path().join("new.py"), "3").unwrap();
    let untracked = state().await;
    assert_eq!((untracked.dirty, untracked.diff_sha256), (Some(true), None), "not yet added");
    fs::write(folder.path().join(".git/info/exclude"), "new.py\n").unwrap();
    assert_eq!(state().await.dirty, Some(false), "an ignored file is not a change");
    fs::write(folder.path().join("train.py"), "22").unwrap();
    let dirty = state().await;
    assert_eq!((dirty.commit == clean.commit, dirty.dirty), (true, Some(true)));
    let digest = dirty.diff_sha256.unwrap();

    // The diff is stored for its owner, up to a limit.
    let kept = tempfile::tempdir().unwrap();
    let diffs = kept.path().join("diffs");
    let scan = async || {
        let tracker = CodeTracker::new(folder.path().to_owned()).with_diff_folder(diffs.clone());
        tracker.read_version_with_git().await.1.unwrap().git.unwrap().diff_sha256.unwrap()
    };
    assert_eq!(scan().await, digest);
    let file = diff_file(&diffs, &digest);
    assert!(fs::read_to_string(&file).unwrap().contains("\n-1\n"), "as git writes it");
    let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
    assert_eq!((mode(&file), mode(&diffs)), (0o600, 0o700));
    fs::write(folder.path().join("train.py"), "x\n".repeat(MAX_STORED_DIFF_BYTES)).unwrap();
    let cut = fs::read_to_string(diff_file(&diffs, &scan().await)).unwrap();
    assert!(cut.ends_with("the limit is 256 KiB]\n") && cut.len() < MAX_STORED_DIFF_BYTES + 100);
    run(&["checkout", "--detach"]);
    assert_eq!(state().await.branch, None);
}
