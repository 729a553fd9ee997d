//! The way to a machine over SSH: the login with its secrets, the programs there, and the checks of `doctor`.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use nix::sys::signal::Signal;
use serde_json::json;
use trialkeeper_tests::{Gate, Machines, Outcome, Search, TestBed, WAIT_TIMEOUT, wait_for};

use super::gated_trial::{expect_complete_output, wait_for_starts};
use super::remote::search;

#[test]
#[ignore = "needs sshd"]
fn a_machine_without_a_needed_program_is_named_with_the_remedy() {
    let bed = TestBed::new();
    let machines = Machines::new(&bed);
    let machine = machines.add("one");
    for tool in ["cat", "chmod", "dirname", "ln", "mkdir", "mv", "rm", "tr", "uname"] {
        let program = format!("#!/bin/sh\nexec /usr/bin/{tool} \"$@\"\n");
        bed.write_script(&format!("few/{tool}"), &program);
    }
    let shell = bed.write_script(
        "shell.sh",
        &format!(
            "#!/bin/sh\nPATH={} exec /bin/sh -c \"$SSH_ORIGINAL_COMMAND\"\n",
            bed.path("few").display()
        ),
    );
    machines.add_sshd_option("one", &format!("ForceCommand {}", shell.display()));
    let search = search(&bed, &[machine], 1);
    let mut doctor = bed.manager_command();
    doctor.arg("doctor").arg(search.write(&bed));
    let found = String::from_utf8(bed.start(&mut doctor).finish(WAIT_TIMEOUT).stdout).unwrap();
    assert!(found.contains("FAIL  place  one: it lacks sha256sum, awk, "), "{found}");
    let running = search.start(&bed);
    let reason = "not connected: it lacks sha256sum; install coreutils there";
    wait_for("the reason", WAIT_TIMEOUT, || running.stderr().contains(reason).then_some(()));
    running.signal(Signal::SIGKILL);
    running.finish(WAIT_TIMEOUT);
}

#[test]
#[ignore = "needs sshd"]
fn a_passphrase_file_must_be_private() {
    let bed = TestBed::new();
    let machines = Machines::new(&bed);
    let gate = Gate::new(&bed.path("gate"));
    gate.release(1);
    let phrase = bed.write("phrase", "correct horse\n");
    let mut keygen = std::process::Command::new("ssh-keygen");
    keygen.args(["-q", "-p", "-N", "correct horse", "-f"]).arg(bed.path("id"));
    assert!(keygen.status().unwrap().success());
    let mut machine = machines.add("one");
    machine["sshPassphraseFile"] = json!(phrase);
    let search = search(&bed, &[machine], 1);
    fs::set_permissions(&phrase, fs::Permissions::from_mode(0o644)).unwrap();
    let refused = search.start(&bed).finish(WAIT_TIMEOUT);
    assert!(refused.stderr.contains("run `chmod 600 "), "{}", refused.stderr);
    fs::set_permissions(&phrase, fs::Permissions::from_mode(0o600)).unwrap();
    expect_complete_output(&bed, &search.run(&bed), 1);
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
        let mut command = bed.manager_command();
        command.arg(word).arg(&file).arg("--data-dir").arg(bed.data_folder()).args(["--port", "0"]);
        bed.start(&mut command)
    };
    let refused = run("run", 0o644).finish(WAIT_TIMEOUT);
    let advice = format!("run `chmod 600 {}`", file.display());
    assert!(
        refused.stderr.contains(&advice) && !refused.stderr.contains(secret),
        "{}",
        refused.stderr
    );
    let doctor = run("doctor", 0o600).finish(WAIT_TIMEOUT);
    assert_eq!(doctor.code, Some(0), "{}", String::from_utf8_lossy(&doctor.stdout));
    let running = run("run", 0o600);
    wait_for_starts(&bed, 1);
    for (_, words) in bed.processes() {
        assert!(!words.contains(secret), "{words}");
    }
    running.signal(Signal::SIGKILL);
    running.finish(WAIT_TIMEOUT);
    gate.release(1);
    let id = bed.experiment_id();
    let done = Outcome::run_resume(&bed, &id);
    expect_complete_output(&bed, &done, 1);
    let own = bed.data_folder().join(&id).join("passwords/0-sshPassphraseFile");
    assert_eq!(files_with(&bed.data_folder(), secret), std::slice::from_ref(&own));
    assert_eq!(files_with(&bed.path("one"), secret), [""; 0].map(std::path::PathBuf::from));
    assert_eq!(fs::metadata(own).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(!done.stderr.contains(secret), "{}", done.stderr);
    let mut show = bed.manager_command();
    show.args(["experiment", "show", "--output", "json"])
        .arg(&id)
        .arg("--data-dir")
        .arg(bed.data_folder());
    let shown = bed.start(&mut show).finish(WAIT_TIMEOUT);
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
    let mut doctor = bed.manager_command();
    doctor.arg("doctor").arg(file);
    let found = bed.start(&mut doctor).finish(WAIT_TIMEOUT);
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

#[test]
#[ignore = "needs root and sshd"]
fn a_password_of_the_experiment_file_logs_in() {
    let bed = TestBed::new();
    let machines = Machines::new(&bed);
    let gate = Gate::new(&bed.path("gate"));
    let secret = "correct horse battery";
    let mut both = ["right", "wrong"].map(|name| {
        let mut machine = machines.add(name);
        machines.require_password(name, secret);
        machine["user"] = json!("root");
        machine.as_object_mut().unwrap().remove("sshKeyFile");
        machine
    });
    both[0]["password"] = json!(secret);
    // The prompt for the password then names the alias.
    both[0]["sshOptions"].as_array_mut().unwrap().push(json!("HostKeyAlias=fleet"));
    both[1]["password"] = json!("guessed");
    let mut command = search(&bed, &both, 2).command(&bed);
    let file = bed.path("experiment.yml");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let mut doctor = bed.manager_command();
    let found = bed.start(doctor.arg("doctor").arg(&file)).finish(WAIT_TIMEOUT);
    let found = String::from_utf8(found.stdout).unwrap();
    assert!(found.contains("ok    place  right: login and shell work"), "{found}");
    let refused = "the machine does not accept the password; correct `password` or the content of `passwordFile`";
    assert!(found.contains("FAIL  place  wrong: ") && found.contains(refused), "{found}");
    let running = bed.start(&mut command);
    // The search may end before the wrong password is refused.
    running.wait_for_stderr(refused);
    gate.release(2);
    let done = Outcome::parse(running.finish(WAIT_TIMEOUT));
    expect_complete_output(&bed, &done, 2);
    assert!(wait_for_starts(&bed, 2).iter().all(|line| line.starts_with("right ")));
    let own = bed.data_folder().join(&done.id).join("passwords/0-passwordFile");
    assert_eq!(files_with(&bed.data_folder(), secret), [own]);
    assert!(!done.stderr.contains(secret) && !found.contains(secret), "{}", done.stderr);
}

/// `ssh` runs commands of its configuration, such as a `ProxyCommand`, in this shell.
#[test]
#[ignore = "needs sshd"]
fn the_shell_of_the_managers_user_may_print() {
    let bed = TestBed::new();
    let machines = Machines::new(&bed);
    let gate = Gate::new(&bed.path("gate"));
    gate.release(1);
    let shell = bed.write_script("shell.sh", "#!/bin/sh\necho Welcome\nexec /bin/sh \"$@\"\n");
    let mut command = search(&bed, &[machines.add("one")], 1).command(&bed);
    let done = bed.start(command.env("SHELL", shell)).finish(WAIT_TIMEOUT);
    expect_complete_output(&bed, &Outcome::parse(done), 1);
}

/// Returns the output of `doctor`.
fn run_doctor(bed: &TestBed, search: &Search) -> String {
    let mut doctor = bed.manager_command();
    let found = bed.start(doctor.arg("doctor").arg(search.write(bed))).finish(WAIT_TIMEOUT);
    String::from_utf8(found.stdout).unwrap()
}

#[test]
#[ignore = "needs sshd"]
fn the_message_of_an_account_without_a_shell_is_shown() {
    let bed = TestBed::new();
    let machines = Machines::new(&bed);
    let machine = machines.add("one");
    let message = "This account is currently not available.";
    // As `nologin` does.
    machines.add_sshd_option("one", &format!("ForceCommand echo '{message}'; exit 1"));
    let found = run_doctor(&bed, &search(&bed, &[machine], 1));
    assert!(found.contains(&format!("FAIL  place  one: cannot log in: {message}")), "{found}");
}

#[test]
#[ignore = "needs sshd"]
fn a_machine_that_permits_too_few_sessions_is_named_with_the_remedy() {
    let bed = TestBed::new();
    let machines = Machines::new(&bed);
    let gate = Gate::new(&bed.path("gate"));
    let both = [machines.add("few"), machines.add("enough")];
    machines.add_sshd_option("few", "MaxSessions 2");
    machines.add_sshd_option("enough", "MaxSessions 3");
    let search = search(&bed, &both, 1);
    let remedy = "raise MaxSessions in its sshd_config to 10, the default";
    let found = run_doctor(&bed, &search);
    let failures: Vec<_> = found.lines().filter(|line| line.contains(remedy)).collect();
    assert!(failures.len() == 1 && failures[0].contains("FAIL  place  few: "), "{found}");
    assert!(found.contains("ok    place  enough: it can reach the manager"), "{found}");
    let running = search.start(&bed);
    // The trial may end before the other machine is ready.
    running.wait_for_stderr(remedy);
    gate.release(1);
    expect_complete_output(&bed, &Outcome::parse(running.finish(WAIT_TIMEOUT)), 1);
    assert!(wait_for_starts(&bed, 1)[0].starts_with("enough "));
}

/// Settings that suit a login at a terminal, and would prevent commands, forwards or messages.
const ODD_CONFIGURATION: &str = "\
LogLevel QUIET
Host one
  LocalForward /no/such/folder/socket localhost:1
  ExitOnForwardFailure yes
  StdinNull yes
Host two
  ClearAllForwardings yes
  SessionType none
  ForkAfterAuthentication yes
";

#[test]
#[ignore = "needs sshd"]
fn settings_for_a_login_at_a_terminal_do_not_apply() {
    let bed = TestBed::new();
    let machines = Machines::new(&bed);
    let gate = Gate::new(&bed.path("gate"));
    let all = ["one", "two", "changed"].map(|name| {
        let mut machine = machines.add(name);
        machine["maxTrialNumber"] = json!(1);
        machine
    });
    machines.replace_host_key("changed");
    let configuration = bed.write("ssh_config", ODD_CONFIGURATION).display().to_string();
    let script = format!("#!/bin/sh\nexec /usr/bin/ssh -F {configuration} \"$@\"\n");
    bed.write_script("programs/ssh", &script);
    let path = format!("{}:/usr/bin:/bin", bed.path("programs").display());
    let running = bed.start(search(&bed, &all, 2).command(&bed).env("PATH", path));
    running.wait_for_stderr("the key of changed has changed to SHA256:");
    wait_for_starts(&bed, 2);
    gate.release(2);
    expect_complete_output(&bed, &Outcome::parse(running.finish(WAIT_TIMEOUT)), 2);
}

/// Writes a script that replaces a program of a machine, in the folder `tools` of the bed.
fn write_tool(bed: &TestBed, name: &str, lines: &str) {
    bed.write_script(&format!("tools/{name}"), &format!("#!/bin/sh\n{lines}\n"));
}

/// Makes a machine use the programs in the folder `tools` of the bed.
fn use_tools(bed: &TestBed, machines: &Machines<'_>, name: &str) {
    let tools = bed.path("tools").display().to_string();
    let line = format!("PATH={tools}:$PATH exec sh -c \"$SSH_ORIGINAL_COMMAND\"");
    let shell = bed.write_script("tools-shell.sh", &format!("#!/bin/sh\n{line}\n"));
    machines.add_sshd_option(name, &format!("ForceCommand {}", shell.display()));
}

#[test]
#[ignore = "needs sshd"]
fn the_problem_of_a_machine_is_named_and_trials_run_elsewhere() {
    let bed = TestBed::new();
    let machines = Machines::new(&bed);
    let gate = Gate::new(&bed.path("gate"));
    let (mut refused, mut silent, mut nowhere) =
        (machines.add("refused"), machines.add("silent"), machines.add("nowhere"));
    let fine = machines.add("fine");
    // The machine has another key than the user.
    let conf = bed.read("refused.conf").replace("/id.pub", "/fine-host.pub");
    bed.write("refused.conf", &conf);
    refused["user"] = json!("root");
    // A machine that accepts a connection and says nothing.
    silent["sshOptions"][0] = json!("ProxyCommand=sleep 600");
    silent["sshOptions"].as_array_mut().unwrap().push(json!("ConnectTimeout=1"));
    nowhere["sshOptions"].as_array_mut().unwrap().remove(0);
    nowhere["host"] = json!("no-such-machine.invalid");
    let search = search(&bed, &[refused, silent, nowhere, fine], 2);
    #[rustfmt::skip]
    let problems = [
        ("refused", "Permission denied (publickey", "add the public key there (`ssh-copy-id`), name a key"),
        ("silent",  "timed out",                    "check the network, and that the machine is on"),
        ("nowhere", "Could not resolve hostname",   "correct `host`, or define this alias in ~/.ssh/config"),
    ];
    let mut doctor = bed.manager_command();
    let found = bed.start(doctor.arg("doctor").arg(search.write(&bed))).finish(WAIT_TIMEOUT);
    let found = String::from_utf8(found.stdout).unwrap();
    let running = search.start(&bed);
    // The trials may end before the slowest connection fails.
    for (_, problem, _) in problems {
        running.wait_for_stderr(problem);
    }
    gate.release(2);
    let done = Outcome::parse(running.finish(WAIT_TIMEOUT));
    expect_complete_output(&bed, &done, 2);
    assert!(wait_for_starts(&bed, 2).iter().all(|line| line.starts_with("fine ")));
    for (machine, problem, remedy) in problems {
        let fail = format!("FAIL  place  {machine}: cannot log in: ");
        let warning = "not connected: ".to_owned();
        for (output, start) in [(&found, &fail), (&done.stderr, &warning)] {
            let line = output.lines().find(|line| {
                line.contains(start.as_str()) && line.contains(problem) && line.contains(remedy)
            });
            assert!(line.is_some_and(|line| line.contains(machine)), "{machine}: {output}");
        }
    }
}

#[test]
#[ignore = "needs root and sshd"]
fn a_machine_without_bash_with_a_wrong_clock_and_a_shared_disk_runs_trials() {
    let bed = TestBed::new();
    let machines = Machines::new(&bed);
    let gate = Gate::new(&bed.path("gate"));
    gate.release(2);
    let machine = machines.add("odd");
    bed.write("no-bash", "");
    machines.replace_file("odd", "no-bash", "/bin/bash");
    // The login shell is not Bash, either.
    let passwd = fs::read_to_string("/etc/passwd").unwrap().replace("/bin/bash", "/bin/sh");
    bed.write("passwd", &passwd);
    machines.replace_file("odd", "passwd", "/etc/passwd");
    write_tool(&bed, "date", "exec /bin/date -d '1 hour' \"$@\"");
    write_tool(&bed, "stat", "echo nfs");
    use_tools(&bed, &machines, "odd");
    let search = search(&bed, &[machine], 2);
    let problems = [
        " s ahead of this machine's, and so are the times of its trials; set the clock, best with NTP",
        "its folder for trials lies on nfs, which machines may share: locks and sockets may be unreliable; set `remoteDirectory` to a folder",
    ];
    let mut doctor = bed.manager_command();
    let found = bed.start(doctor.arg("doctor").arg(search.write(&bed))).finish(WAIT_TIMEOUT);
    let found = String::from_utf8(found.stdout).unwrap();
    let done = search.run(&bed);
    expect_complete_output(&bed, &done, 2);
    for problem in problems {
        for output in [&found, &done.stderr] {
            let line = output.lines().find(|line| line.contains(problem));
            assert!(line.is_some_and(|line| line.contains("odd")), "{problem}: {output}");
        }
    }
}
