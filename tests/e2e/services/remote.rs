//! Trials on machines behind SSH: real `ssh`, real `sshd`, and agents that outlive the connection.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use trialkeeper_tests::{
    Gate, Machines, Outcome, Search, SmallDisk, Terminal, TestBed, Trial, WAIT_TIMEOUT, wait_for,
};

use super::gated_trial::{TRAIN_SCRIPT, expect_complete_output, wait_for_starts};
use crate::security::impersonation::FakeManager;

pub(super) fn search(bed: &TestBed, machines: &[Value], trials: u32) -> Search {
    bed.write_script("code/train.sh", TRAIN_SCRIPT);
    let command = format!("BED='{}' ./train.sh", bed.folder().display());
    let service = json!({"platform": "remote", "machineList": machines});
    Search::new(&command, trials).with("trialConcurrency", 2).with("trainingService", service)
}

#[test]
#[ignore = "needs sshd"]
fn a_search_uses_all_machines_and_every_metric_arrives() {
    let bed = TestBed::new();
    let machines = Machines::new(&bed);
    let gate = Gate::new(&bed.path("gate"));
    let both = [machines.add("one"), machines.add("two")];
    let running = bed.start(search(&bed, &both, 12).command(&bed).env("TRIAL_MANAGER_LOG", "info"));
    // The first trials run on the machine that is ready first. Later ones run on the machine with the fewest
    // trials.
    for machine in ["one", "two"] {
        running.wait_for_stderr(&format!("connected machine={machine}"));
    }
    wait_for_starts(&bed, 2);
    gate.release(12);
    let done = Outcome::parse(running.finish(WAIT_TIMEOUT));
    expect_complete_output(&bed, &done, 12);
    let mut used = BTreeMap::<_, usize>::new();
    for line in wait_for_starts(&bed, 12) {
        *used.entry(line.split(' ').next().unwrap().to_owned()).or_default() += 1;
    }
    assert_eq!(used.keys().collect::<Vec<_>>(), ["one", "two"]);
    let trials = fs::read_dir(bed.path("one").join(&done.id).join("trials")).unwrap();
    assert_eq!(trials.count(), used["one"], "a trial's files must be on its machine");
    bed.wait_until_empty();
}

#[test]
#[ignore = "needs sshd"]
fn a_machine_without_limits_runs_a_trial_per_processor() {
    let bed = TestBed::new();
    let machines = Machines::new(&bed);
    let gate = Gate::new(&bed.path("gate"));
    let cores = std::thread::available_parallelism().unwrap().get();
    let trials = u32::try_from(cores + 1).unwrap();
    let search = search(&bed, &[machines.add("one")], trials).with("trialConcurrency", trials);
    let running = search.start(&bed);
    assert_eq!(wait_for_starts(&bed, cores).len(), cores);
    wait_for("the last trial to wait", WAIT_TIMEOUT, || {
        let shown = running.read_api("/api/v1/trials")?.to_string();
        shown.contains("it runs as many trials as it has processors").then_some(())
    });
    gate.release(cores + 1);
    expect_complete_output(&bed, &Outcome::parse(running.finish(WAIT_TIMEOUT)), cores + 1);
}

#[test]
#[ignore = "needs sshd"]
fn a_cut_connection_is_restored_without_loss() {
    let bed = TestBed::new();
    let machines = Machines::new(&bed);
    let gate = Gate::new(&bed.path("gate"));
    let running = search(&bed, &[machines.add("one")], 2).start(&bed);
    wait_for_starts(&bed, 2);
    machines.cut_connections("one");
    gate.release(2);
    let done = Outcome::parse(running.finish(WAIT_TIMEOUT));
    expect_complete_output(&bed, &done, 2);
    assert!(bed.read("one.pids").lines().count() > 1, "the manager did not connect again");
}

/// A trial that prints numbers, and records each line that it has printed.
const PRINTING_TRIAL: &str = r#"#!/bin/sh
echo "$NNI_TRIAL_JOB_ID" >>"$BED/started"
number=0
while [ "$number" -lt 600 ]; do
  number=$((number + 1))
  echo "score=$number"
  echo "score=$number" >>"$BED/printed"
  sleep 0.01
done
"#;

#[test]
#[ignore = "needs sshd"]
fn a_connection_that_is_cut_within_a_stream_of_output_loses_no_line() {
    let bed = TestBed::new();
    let machines = Machines::new(&bed);
    let search = search(&bed, &[machines.add("one")], 1);
    bed.write_script("code/train.sh", PRINTING_TRIAL);
    let running = search.start(&bed);
    let printed = |lines: usize| {
        wait_for("the trial to print", WAIT_TIMEOUT, || {
            let text = bed.read("printed");
            (text.lines().count() >= lines).then_some(text)
        })
    };
    printed(100);
    machines.disconnect("one");
    printed(400);
    machines.reconnect("one");
    let done = Outcome::parse(running.finish(WAIT_TIMEOUT));
    done.expect_done(1, 0);
    assert_eq!(wait_for_starts(&bed, 1).len(), 1, "the trial ran twice");
    let numbers: Vec<Value> = (1..=600).map(|number| json!(number)).collect();
    assert_eq!(done.trial(0).intermediate, numbers);
    let mut logs = bed.manager_command();
    logs.args(["trial", "logs", "0", "--data-dir"]).arg(bed.data_folder());
    let stored = bed.start(&mut logs).finish(WAIT_TIMEOUT).stdout;
    assert_eq!(String::from_utf8(stored).unwrap(), printed(600));
}

#[test]
#[ignore = "needs sshd"]
fn the_output_of_an_agent_that_cannot_report_is_shown() {
    let bed = TestBed::new();
    let machines = Machines::new(&bed);
    let gate = Gate::new(&bed.path("gate"));
    let mut machine = machines.add("one");
    machine["maxTrialNumber"] = json!(1);
    let running = search(&bed, &[machine], 2).start(&bed);
    // The first agent has a connection, and keeps it. The second one finds no socket.
    wait_for("the first result", WAIT_TIMEOUT, || {
        running.read_api("/api/v1/trials")?.to_string().contains("0.25").then_some(())
    });
    let socket = fs::read_dir(bed.path("one")).unwrap().flatten().find_map(|entry| {
        let socket = entry.path().join("manager.sock");
        socket.exists().then_some(socket)
    });
    let socket = socket.expect("the agent has reported");
    fs::rename(&socket, bed.path("hidden")).unwrap();
    gate.release(1);
    wait_for_starts(&bed, 2);
    let mut logs = bed.manager_command();
    logs.args(["trial", "logs", "-f", "1", "--data-dir"]).arg(bed.data_folder());
    let following = bed.start(&mut logs);
    let expected = "the trial's agent does not report; the output of its job:\nscore=0.25\n";
    wait_for("the output", WAIT_TIMEOUT, || following.stderr().contains(expected).then_some(()));
    fs::rename(bed.path("hidden"), &socket).unwrap();
    gate.release(1);
    expect_complete_output(&bed, &Outcome::parse(running.finish(WAIT_TIMEOUT)), 2);
    let followed = following.finish(WAIT_TIMEOUT);
    assert_eq!(String::from_utf8(followed.stdout).unwrap(), "score=0.25\nscore=0.5\n");
    bed.wait_until_empty();
}

/// Login shells print before they run a command, even without a line break, and need not be Bourne shells.
#[test]
#[ignore = "needs sshd"]
fn a_login_shell_may_print_and_a_configuration_may_have_a_command_of_its_own() {
    let bed = TestBed::new();
    let machines = Machines::new(&bed);
    let gate = Gate::new(&bed.path("gate"));
    gate.release(2);
    let mut machine = machines.add("one");
    // `sshd` runs this instead of the requested command, as a talkative login shell.
    let shell = bed.write_script(
        "shell.sh",
        "#!/bin/sh\nprintf '\\033]0;title\\007{\"a\": 1} tk:'\nexec sh -c \"$SSH_ORIGINAL_COMMAND\"\n",
    );
    machines.add_sshd_option("one", &format!("ForceCommand {}", shell.display()));
    let options = machine["sshOptions"].as_array_mut().unwrap();
    options.push(json!("RemoteCommand=exec tmux attach"));
    options.push(json!("RequestTTY=force"));
    let done = search(&bed, &[machine], 2).run(&bed);
    expect_complete_output(&bed, &done, 2);
}

#[test]
#[ignore = "needs sshd"]
fn a_proxy_that_asks_gets_no_answer_and_the_terminal_no_question() {
    let bed = TestBed::new();
    let machines = Machines::new(&bed);
    let jump = machines.add("jump");
    let connect = jump["sshOptions"][0].as_str().unwrap();
    let mut machine = machines.add("one");
    // As `ProxyJump` runs `ssh` for a jump host: with its own options and the same terminal. Versions before 8.4 ask at
    // any terminal, and otherwise run `SSH_ASKPASS` only if `DISPLAY` is set.
    let answers = bed.path("answers").display().to_string();
    let proxy = bed.write_script(
        "proxy.sh",
        &format!(
            "#!/bin/sh\n(: </dev/tty) 2>/dev/null && echo terminal >>{answers}\necho \"display $DISPLAY\" >>{answers}\n\
             exec ssh -o '{connect}' -o UserKnownHostsFile=/dev/null -o StrictHostKeyChecking=ask jump nc\n"
        ),
    );
    machine["sshOptions"][0] = json!(format!("ProxyCommand={}", proxy.display()));
    let mut command = search(&bed, &[machine], 1).command(&bed);
    command.env_remove("DISPLAY");
    let terminal = Terminal::start(&command, 200, 50);
    wait_for("the refusal", WAIT_TIMEOUT, || {
        terminal.output().contains("Host key verification failed").then_some(())
    });
    let output = terminal.output();
    assert!(!output.contains("continue connecting"), "{output}");
    assert_eq!(bed.read("answers").lines().next(), Some("display :"));
}

#[test]
#[ignore = "needs sshd"]
fn a_resumed_manager_finds_its_trials_on_their_machines() {
    let bed = TestBed::new();
    let machines = Machines::new(&bed);
    let gate = Gate::new(&bed.path("gate"));
    let both = [machines.add("one"), machines.add("two")];
    let running = search(&bed, &both, 2).start(&bed);
    wait_for_starts(&bed, 2);
    running.signal(Signal::SIGKILL);
    running.finish(WAIT_TIMEOUT);
    // The trials end without a manager.
    gate.release(2);
    let id = bed.experiment_id();
    let done = Outcome::run_resume(&bed, &id);
    expect_complete_output(&bed, &done, 2);
}

#[test]
#[ignore = "needs sshd"]
fn a_machine_with_a_changed_host_key_is_not_used() {
    let bed = TestBed::new();
    let machines = Machines::new(&bed);
    let gate = Gate::new(&bed.path("gate"));
    let both = [machines.add("changed"), machines.add("same")];
    machines.replace_host_key("changed");
    let running = search(&bed, &both, 2).start(&bed);
    running.wait_for_stderr("Host key verification failed");
    gate.release(2);
    let done = Outcome::parse(running.finish(WAIT_TIMEOUT));
    expect_complete_output(&bed, &done, 2);
    let elsewhere = wait_for_starts(&bed, 2).iter().all(|line| line.starts_with("same "));
    assert!(elsewhere, "{}", bed.read("started"));
}

#[test]
#[ignore = "needs sshd"]
fn an_interrupted_search_ends_its_trials_with_sigterm() {
    let bed = TestBed::new();
    let machines = Machines::new(&bed);
    let _gate = Gate::new(&bed.path("gate"));
    let running = search(&bed, &[machines.add("one")], 2).start(&bed);
    wait_for_starts(&bed, 2);
    running.signal(Signal::SIGINT);
    let finished = running.finish(WAIT_TIMEOUT);
    assert_eq!(finished.code, Some(130), "{}", finished.stderr);
    assert_eq!(bed.read("cleaned").lines().count(), 2, "a trial could not clean up");
    bed.wait_until_empty();
}

/// Returns the addresses at which another user of a machine could receive agents' reports. It is the address
/// in the experiment's folder, if it is reachable.
fn reachable_addresses(folder: &std::path::Path) -> Vec<String> {
    let named = fs::read_to_string(folder.join("manager.url")).unwrap();
    let named = named.trim().rsplit('/').next().unwrap().to_owned();
    // Port 0 is not reachable.
    if named.ends_with(":0") { Vec::new() } else { vec![named] }
}

#[test]
#[ignore = "needs sshd"]
fn another_user_of_the_machine_gets_no_report() {
    let bed = TestBed::new();
    let machines = Machines::new(&bed);
    let gate = Gate::new(&bed.path("gate"));
    let running = search(&bed, &[machines.add("one")], 2).start(&bed);
    wait_for_starts(&bed, 2);
    let id = bed.experiment_id();
    let folder = bed.path("one").join(id);
    let addresses = reachable_addresses(&folder);
    // Without the manager, no process takes the port back.
    running.signal(Signal::SIGKILL);
    running.finish(WAIT_TIMEOUT);
    machines.cut_connections("one");
    let mut imposters = Vec::new();
    for address in &addresses {
        wait_for("the port", WAIT_TIMEOUT, || std::net::TcpListener::bind(address).ok());
        imposters.push(FakeManager::listen(address));
    }
    gate.release(2);
    let trials = || fs::read_dir(folder.join("trials")).unwrap().flatten();
    wait_for("both verdicts", WAIT_TIMEOUT, || {
        trials().all(|trial| trial.path().join("verdict.json").exists()).then_some(())
    });
    for imposter in imposters {
        assert_eq!(imposter.received(), "", "an agent sent data to another user");
    }
    let socket = fs::symlink_metadata(folder.join("manager.sock")).unwrap();
    assert!(std::os::unix::fs::FileTypeExt::is_socket(&socket.file_type()));
    assert_eq!(fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o700);
    let done = Outcome::run_resume(&bed, folder.file_name().unwrap().to_str().unwrap());
    expect_complete_output(&bed, &done, 2);
}

/// Lets other machines reach the manager at the advertised address.
fn make_reachable(mut command: std::process::Command, advertise: &str) -> std::process::Command {
    command.args(["--host", "0.0.0.0", "--advertise", advertise]);
    command
}

#[test]
#[ignore = "needs sshd"]
fn agents_report_directly_if_their_machine_reaches_the_manager() {
    let bed = TestBed::new();
    let machines = Machines::new(&bed);
    let gate = Gate::new(&bed.path("gate"));
    gate.release(2);
    let one = machines.add("one");
    machines.add_sshd_option("one", "DisableForwarding yes");
    let search = search(&bed, &[one], 2);
    let done =
        bed.start(&mut make_reachable(search.command(&bed), "127.0.0.1")).finish(WAIT_TIMEOUT);
    let done = Outcome::parse(done);
    expect_complete_output(&bed, &done, 2);
    assert!(!bed.path("one").join(&done.id).join("manager.sock").exists());
}

#[test]
#[ignore = "needs sshd"]
fn agents_report_through_ssh_if_their_machine_cannot_reach_the_manager() {
    let bed = TestBed::new();
    let machines = Machines::new(&bed);
    let gate = Gate::new(&bed.path("gate"));
    let search = search(&bed, &[machines.add("one")], 2);
    let running = bed.start(&mut make_reachable(search.command(&bed), "127.0.0.1:1"));
    wait_for_starts(&bed, 2);
    running.signal(Signal::SIGKILL);
    running.finish(WAIT_TIMEOUT);
    gate.release(2);
    let id = bed.experiment_id();
    // The agents have used the socket, and continue with it although the machine reaches the manager.
    let resume = Outcome::resume_command(&bed, &id);
    let done = bed.start(&mut make_reachable(resume, "127.0.0.1")).finish(WAIT_TIMEOUT);
    expect_complete_output(&bed, &Outcome::parse(done), 2);
    let folder = bed.path("one").join(id);
    assert!(folder.join("manager.sock").exists());
    assert_eq!(fs::read_to_string(folder.join("manager.url")).unwrap(), "http://127.0.0.1:0\n");
}

#[test]
#[ignore = "needs sshd"]
fn a_trial_of_an_unreachable_machine_runs_elsewhere() {
    let bed = TestBed::new();
    let machines = Machines::new(&bed);
    let gate = Gate::new(&bed.path("gate"));
    let both = [machines.add("one"), machines.add("two")];
    machines.disconnect("two");
    let service = json!({"platform": "remote", "machineList": both, "machinePatience": "6s"});
    let search = search(&bed, &both, 1).with("trainingService", service);
    let running = bed.start(search.command(&bed).args(["--lease", "3"]));
    // A lease begins with the first report.
    wait_for("the trial to run", WAIT_TIMEOUT, || {
        running.read_api("/api/v1/trials")?.to_string().contains("RUNNING").then_some(())
    });
    machines.disconnect("one");
    // The agent's lease ends before the manager's patience. The state does not last long, so its message is awaited.
    running.wait_for_stderr("the trial is lost");
    assert_eq!(bed.read("started").lines().count(), 1, "the trial ran twice");
    machines.reconnect("two");
    let started = wait_for_starts(&bed, 2);
    let trial = started[0].strip_prefix("one ").expect("only this machine is reachable");
    assert_eq!(started[1].strip_prefix("two "), Some(trial));
    assert_eq!(bed.read("cleaned"), "", "an agent ended its trial without a manager");
    machines.reconnect("one");
    wait_for("the first attempt to be ended", WAIT_TIMEOUT, || {
        (bed.read("cleaned").trim() == trial).then_some(())
    });
    gate.release(1);
    let done = Outcome::parse(running.finish(WAIT_TIMEOUT));
    done.expect_done(1, 0);
    let Trial { id, intermediate, final_result, .. } = done.trial(0);
    assert_eq!((id.as_str(), final_result), (trial, &json!(0.5)));
    assert_eq!(
        *intermediate,
        [json!(0.25), json!(0.5)],
        "results of the first attempt must not be stored"
    );
    bed.wait_until_empty();
}

#[test]
#[ignore = "needs sshd"]
fn a_stop_is_applied_when_an_unreachable_machine_returns() {
    let bed = TestBed::new();
    let machines = Machines::new(&bed);
    let gate = Gate::new(&bed.path("gate"));
    let running = search(&bed, &[machines.add("one")], 2).start(&bed);
    wait_for_starts(&bed, 2);
    machines.disconnect("one");
    running.signal(Signal::SIGINT);
    let finished = running.finish(WAIT_TIMEOUT);
    assert_eq!(finished.code, Some(130), "{}", finished.stderr);
    assert_eq!(bed.read("cleaned"), "", "unreachable trials must keep running");
    machines.reconnect("one");
    let id = bed.experiment_id();
    let resumed = Outcome::start_resume(&bed, &id);
    wait_for_starts(&bed, 4);
    assert_eq!(bed.read("cleaned").lines().count(), 2, "old trials must end before new ones start");
    gate.release(2);
    let done = Outcome::parse(resumed.finish(WAIT_TIMEOUT));
    done.expect_done(2, 0);
    for trial in &done.trials {
        assert_eq!(trial.intermediate, [json!(0.25), json!(0.5)], "{trial:?}");
    }
    bed.wait_until_empty();
}

#[test]
#[ignore = "needs sshd"]
fn a_configuration_that_ignores_host_keys_is_refused() {
    let bed = TestBed::new();
    let machines = Machines::new(&bed);
    let mut machine = machines.add("one");
    machine["sshOptions"][1] = json!("UserKnownHostsFile=/dev/null");
    let finished = search(&bed, &[machine], 1).start(&bed).finish(WAIT_TIMEOUT);
    assert_ne!(finished.code, Some(0));
    for part in ["one", "UserKnownHostsFile /dev/null", "~/.ssh/config"] {
        assert!(finished.stderr.contains(part), "{part}: {}", finished.stderr);
    }
    assert_eq!(bed.read("started"), "");
}

#[test]
#[ignore = "needs sshd"]
fn a_machine_that_cannot_start_trials_gets_no_more_trials() {
    let bed = TestBed::new();
    let machines = Machines::new(&bed);
    let gate = Gate::new(&bed.path("gate"));
    let both = ["one", "two"].map(|name| {
        let mut machine = machines.add(name);
        machine["maxTrialNumber"] = json!(1);
        machine
    });
    let running = search(&bed, &both, 4).start(&bed);
    wait_for_starts(&bed, 2);
    // From now on, the machine cannot create folders of trials.
    let id = bed.experiment_id();
    let trials = bed.path("one").join(id).join("trials");
    fs::rename(&trials, trials.with_extension("aside")).unwrap();
    fs::write(&trials, "").unwrap();
    gate.release(4);
    let done = Outcome::parse(running.finish(WAIT_TIMEOUT));
    expect_complete_output(&bed, &done, 4);
    let started = wait_for_starts(&bed, 4);
    assert_eq!(started.iter().filter(|line| line.starts_with("one ")).count(), 1, "{started:?}");
}

#[test]
#[ignore = "needs root and sshd"]
fn a_machine_whose_disk_permits_no_programs_is_named_and_not_used() {
    let bed = TestBed::new();
    let disk = SmallDisk::mount(&bed.path("one"), "size=512m,noexec");
    let machines = Machines::new(&bed);
    let gate = Gate::new(&bed.path("gate"));
    let running = search(&bed, &[machines.add("one"), machines.add("two")], 2).start(&bed);
    let reason = format!("{}/agent permits no programs (noexec)", bed.path("one").display());
    wait_for("the reason", WAIT_TIMEOUT, || running.stderr().contains(&reason).then_some(()));
    gate.release(2);
    let done = Outcome::parse(running.finish(WAIT_TIMEOUT));
    expect_complete_output(&bed, &done, 2);
    assert!(wait_for_starts(&bed, 2).iter().all(|line| line.starts_with("two ")));
    drop(disk);
}

#[test]
#[ignore = "needs sshd"]
fn experiments_share_their_code_on_a_machine() {
    let bed = TestBed::new();
    let machines = Machines::new(&bed);
    let gate = Gate::new(&bed.path("gate"));
    gate.release(2);
    let search = search(&bed, &[machines.add("one")], 1);
    let ids = [(), ()].map(|()| {
        let done = search.run(&bed);
        done.expect_done(1, 0);
        done.id
    });
    let inodes = ids.each_ref().map(|id| {
        let archive = bed.path("one").join(id).join("code.tar.gz");
        fs::metadata(archive).unwrap().ino()
    });
    assert_eq!(inodes[0], inodes[1], "the second experiment sent the code again");
    for (id, left) in ids.iter().zip([1, 0]) {
        let mut clean = bed.manager_command();
        clean.arg("clean").arg(id).arg("--data-dir").arg(bed.data_folder());
        let cleaned = bed.start(&mut clean).finish(WAIT_TIMEOUT);
        assert_eq!(cleaned.code, Some(0), "{}", cleaned.stderr);
        let archives = fs::read_dir(bed.path("one/.code")).map_or(0, Iterator::count);
        assert_eq!(archives, left);
    }
    assert_eq!(fs::read_dir(bed.path("one")).map_or(0, Iterator::count), 0);
}

/// The `clean` of another experiment, or a program that tidies caches, may remove the agent's file.
#[test]
#[ignore = "needs sshd"]
fn a_machine_whose_agent_was_removed_starts_further_trials() {
    let bed = TestBed::new();
    let machines = Machines::new(&bed);
    let gate = Gate::new(&bed.path("gate"));
    let search = search(&bed, &[machines.add("one")], 2).with("trialConcurrency", 1);
    let running = search.start(&bed);
    wait_for_starts(&bed, 1);
    fs::remove_dir_all(bed.path("one/agent")).unwrap();
    gate.release(2);
    expect_complete_output(&bed, &Outcome::parse(running.finish(WAIT_TIMEOUT)), 2);
}

#[test]
#[ignore = "needs sshd"]
fn clean_ends_agents_and_removes_all_files_on_the_machines() {
    let bed = TestBed::new();
    let machines = Machines::new(&bed);
    let _gate = Gate::new(&bed.path("gate"));
    let both = [machines.add("one"), machines.add("two")];
    let running = search(&bed, &both, 2).start(&bed);
    wait_for_starts(&bed, 2);
    running.signal(Signal::SIGKILL);
    running.finish(WAIT_TIMEOUT);
    let id = bed.experiment_id();
    let clean = || {
        let mut clean = bed.manager_command();
        clean.arg("clean").arg(&id).arg("--data-dir").arg(bed.data_folder());
        bed.start(&mut clean).finish(WAIT_TIMEOUT)
    };
    machines.disconnect("two");
    let partly = clean();
    assert_ne!(partly.code, Some(0), "{}", partly.stderr);
    assert!(partly.stderr.contains("may remain on two: "), "{}", partly.stderr);
    machines.reconnect("two");
    let whole = clean();
    assert_eq!(whole.code, Some(0), "{}", whole.stderr);
    bed.wait_until_empty();
    for machine in ["one", "two"] {
        let left = fs::read_dir(bed.path(machine)).into_iter().flatten().flatten();
        let left: Vec<_> = left.map(|entry| entry.file_name()).collect();
        assert_eq!(left, [""; 0], "{machine}");
    }
}
