//! The way to a machine over SSH: the login with its secrets, the programs there, and the checks of `doctor`.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use nix::sys::signal::Signal;
use serde_json::json;
use trialkeeper_tests::{BOUND, Gate, Machines, Outcome, TestBed, wait_for};

use super::remote::{expect_whole, search, started};

#[test]
#[ignore = "needs sshd"]
fn a_machine_without_a_needed_program_is_named_with_the_remedy() {
    let bed = TestBed::new();
    let machines = Machines::new(&bed);
    let machine = machines.add("one");
    for tool in ["cat", "chmod", "dirname", "ln", "mkdir", "mv", "rm", "tr", "uname"] {
        let program = format!("#!/bin/sh\nexec /usr/bin/{tool} \"$@\"\n");
        bed.script(&format!("few/{tool}"), &program);
    }
    let shell = bed.script(
        "shell.sh",
        &format!(
            "#!/bin/sh\nPATH={} exec /bin/sh -c \"$SSH_ORIGINAL_COMMAND\"\n",
            bed.path("few").display()
        ),
    );
    machines.configure("one", &format!("ForceCommand {}", shell.display()));
    let search = search(&bed, &[machine], 1);
    let mut doctor = bed.manager();
    doctor.arg("doctor").arg(search.write(&bed));
    let found = String::from_utf8(bed.start(&mut doctor).finish(BOUND).stdout).unwrap();
    assert!(found.contains("FAIL  place  one: it lacks sha256sum, awk, "), "{found}");
    let running = search.start(&bed);
    let reason = "not connected: it lacks sha256sum; install coreutils there";
    wait_for("the reason", BOUND, || running.stderr().contains(reason).then_some(()));
    running.signal(Signal::SIGKILL);
    running.finish(BOUND);
}

#[test]
#[ignore = "needs sshd"]
fn a_passphrase_file_must_be_private() {
    let bed = TestBed::new();
    let machines = Machines::new(&bed);
    let gate = Gate::new(&bed.path("gate"));
    gate.open(1);
    let phrase = bed.write("phrase", "correct horse\n");
    let mut keygen = std::process::Command::new("ssh-keygen");
    keygen.args(["-q", "-p", "-N", "correct horse", "-f"]).arg(bed.path("id"));
    assert!(keygen.status().unwrap().success());
    let mut machine = machines.add("one");
    machine["sshPassphraseFile"] = json!(phrase);
    let search = search(&bed, &[machine], 1);
    fs::set_permissions(&phrase, fs::Permissions::from_mode(0o644)).unwrap();
    let refused = search.start(&bed).finish(BOUND);
    assert!(refused.stderr.contains("run `chmod 600 "), "{}", refused.stderr);
    fs::set_permissions(&phrase, fs::Permissions::from_mode(0o600)).unwrap();
    expect_whole(&bed, &search.run(&bed), 1);
}

/// Returns the files below a folder that contain a text.
fn files_with(folder: &std::path::Path, text: &str) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap().flatten() {
        let (path, kind) = (entry.path(), entry.file_type().unwrap());
        if kind.is_dir() {
            found.extend(files_with(&path, text));
        } else if kind.is_file() {
            let bytes = fs::read(&path).unwrap();
            let has_text = bytes.windows(text.len()).any(|piece| piece == text.as_bytes());
            found.extend(has_text.then_some(path));
        }
    }
    found
}

#[test]
#[ignore = "needs sshd"]
fn a_secret_of_a_private_experiment_file_is_only_in_a_file_of_its_own() {
    let bed = TestBed::new();
    let machines = Machines::new(&bed);
    let gate = Gate::new(&bed.path("gate"));
    let secret = "correct horse battery";
    let mut keygen = std::process::Command::new("ssh-keygen");
    keygen.args(["-q", "-p", "-N", secret, "-f"]).arg(bed.path("id"));
    assert!(keygen.status().unwrap().success());
    let mut machine = machines.add("one");
    machine["sshPassphrase"] = json!(secret);
    let search = search(&bed, &[machine], 1).with("trialCodeDirectory", ".");
    // The code directory contains the file, as in NNI's examples.
    let file = bed.path("code/experiment.json");
    fs::copy(search.write(&bed), &file).unwrap();
    let run = |word: &str, mode: u32| {
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        let mut command = bed.manager();
        command.arg(word).arg(&file).arg("--data-dir").arg(bed.data()).args(["--port", "0"]);
        bed.start(&mut command)
    };
    let refused = run("run", 0o644).finish(BOUND);
    let advice = format!("run `chmod 600 {}`", file.display());
    assert!(
        refused.stderr.contains(&advice) && !refused.stderr.contains(secret),
        "{}",
        refused.stderr
    );
    let doctor = run("doctor", 0o600).finish(BOUND);
    assert_eq!(doctor.code, Some(0), "{}", String::from_utf8_lossy(&doctor.stdout));
    let running = run("run", 0o600);
    started(&bed, 1);
    for (_, words) in bed.processes() {
        assert!(!words.contains(secret), "{words}");
    }
    running.signal(Signal::SIGKILL);
    running.finish(BOUND);
    gate.open(1);
    let id = fs::read_dir(bed.data()).unwrap().next().unwrap().unwrap().file_name();
    let done = Outcome::of_resume(&bed, id.to_str().unwrap());
    expect_whole(&bed, &done, 1);
    let own = bed.data().join(&id).join("passwords/0-sshPassphraseFile");
    assert_eq!(files_with(&bed.data(), secret), std::slice::from_ref(&own));
    assert_eq!(files_with(&bed.path("one"), secret), [""; 0].map(std::path::PathBuf::from));
    assert_eq!(fs::metadata(own).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(!done.stderr.contains(secret), "{}", done.stderr);
    let mut show = bed.manager();
    show.args(["experiment", "show", "--output", "json"])
        .arg(&id)
        .arg("--data-dir")
        .arg(bed.data());
    let shown = bed.start(&mut show).finish(BOUND);
    assert!(!String::from_utf8(shown.stdout).unwrap().contains(secret));
    // The agent unpacks the code for each trial.
    let trials = fs::read_dir(bed.path("one").join(&id).join("trials")).unwrap().flatten();
    for trial in trials {
        assert!(!trial.path().join("code/experiment.json").exists(), "the code contains the file");
    }
}

#[test]
#[ignore = "needs sshd"]
fn doctor_checks_each_machine_and_leaves_no_files() {
    let bed = TestBed::new();
    let machines = Machines::new(&bed);
    let all = [machines.add("fine"), machines.add("away"), machines.add("changed")];
    machines.disconnect("away");
    machines.replace_host_key("changed");
    let file = search(&bed, &all, 1).write(&bed);
    let mut doctor = bed.manager();
    doctor.arg("doctor").arg(file);
    let found = bed.start(&mut doctor).finish(BOUND);
    assert_eq!(found.code, Some(1), "{}", found.stderr);
    let stdout = String::from_utf8(found.stdout).unwrap();
    #[rustfmt::skip]
    let expected = [
        "ok    place  fine: login and shell work",
        "MiB of free space",
        "ok    place  fine: its clock is right",
        "ok    place  fine: it can reach the manager through SSH",
        "FAIL  place  away: cannot log in: ",
        "FAIL  place  changed: cannot log in: Host key verification failed; the key of changed has changed to SHA256:",
        "known_hosts:1 has another key; if the machine was installed again, run `ssh-keygen -",
    ];
    for part in expected {
        assert!(stdout.contains(part), "{part}: {stdout}");
    }
    assert!(!bed.path("fine").exists(), "`doctor` must leave no files");
    bed.wait_until_empty();
}
