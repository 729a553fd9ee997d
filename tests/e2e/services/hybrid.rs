//! Several training services in one search: trials run where there is capacity, and the search survives the
//! loss of a service.

use std::fs;
use std::process::Command;

use nix::sys::signal::{Signal, kill};
use serde_json::{Value, json};
use trialkeeper_tests::kube::{Behavior, Kube};
use trialkeeper_tests::{
    Gate, Machines, Outcome, RunningProgram, Search, TestBed, WAIT_TIMEOUT, wait_for,
};

use super::gated_trial::{TRAIN_SCRIPT, expect_complete_output, wait_for_starts};
use super::plugin::repository_root;

/// A plugin that refuses every job.
const REFUSING_PLUGIN: &str = r#"
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    answer = {"jsonrpc": "2.0", "id": message["id"], "result": {}}
    if message["method"] == "initialize":
        answer["result"] = {"protocol": 1}
    if message["method"] == "submit":
        del answer["result"]
        answer["error"] = {"code": -32001, "message": "the account has no hours left"}
    print(json.dumps(answer), flush=True)
"#;

/// Returns the section of the example plugin that runs jobs as processes. It can start while the file `name`
/// exists.
fn process_plugin(bed: &TestBed, name: &str) -> Value {
    let module = repository_root().join("python/src").display().to_string();
    let program = repository_root().join("examples/plugins/processes.py").display().to_string();
    let lives = bed.write(name, "").display().to_string();
    let line = format!("test -e {lives} && PYTHONPATH={module} exec python3 {program} {name}");
    json!({"platform": "plugin", "command": ["sh", "-c", line]})
}

fn local_service(limit: usize) -> Value {
    json!({"platform": "local", "trialConcurrency": limit})
}

fn search(bed: &TestBed, services: Value, trials: u32, concurrency: usize) -> Search {
    bed.write_script("code/train.sh", TRAIN_SCRIPT);
    let command = format!("BED='{}' ./train.sh", bed.folder().display());
    Search::new(&command, trials)
        .with("trialConcurrency", concurrency)
        .with("trainingService", services)
}

/// Waits until the services in the API satisfy a condition, and returns them.
fn wait_for_services(
    running: &RunningProgram,
    what: &str,
    wanted: impl Fn(&[Value]) -> bool,
) -> Vec<Value> {
    wait_for(what, WAIT_TIMEOUT, || {
        let services =
            running.read_api("/api/v1/experiment")?["training_services"].as_array()?.clone();
        wanted(&services).then_some(services)
    })
}

fn run_manager(bed: &TestBed, words: &[&str]) -> String {
    let mut command = bed.manager_command();
    command.args(words).arg("--data-dir").arg(bed.data_folder());
    let done = bed.start(&mut command).finish(WAIT_TIMEOUT);
    String::from_utf8(done.stdout).unwrap() + &done.stderr
}

#[test]
fn trials_run_where_there_is_capacity_and_each_service_is_shown() {
    let bed = TestBed::new();
    let gate = Gate::new(&bed.path("gate"));
    let sections = json!([local_service(1), process_plugin(&bed, "alive")]);
    let manager = search(&bed, sections, 5, 3).start(&bed);
    wait_for_starts(&bed, 3);
    let shown = wait_for_services(&manager, "one trial here and two there", |services| {
        services[0]["running"] == 1 && services[1]["running"] == 2
    });
    assert_eq!((&shown[0]["platform"], &shown[0]["free"]), (&"local".into(), &0.into()));
    assert_eq!((&shown[1]["platform"], &shown[1]["trouble"]), (&"plugin".into(), &Value::Null));
    gate.release(5);
    let done = Outcome::parse(manager.finish(WAIT_TIMEOUT));
    expect_complete_output(&bed, &done, 5);
    let shown = run_manager(&bed, &["experiment", "show", &done.id]);
    assert!(
        shown.contains("[0] local: 0 running, at most 1, ") && shown.contains(" each"),
        "{shown}"
    );
    assert!(shown.contains("[1] plugin: 0 running, "), "{shown}");
    let names: Vec<_> = done
        .trials
        .iter()
        .map(|trial| {
            let shown = run_manager(&bed, &["trial", "show", &trial.id, "-e", &done.id]);
            let line =
                shown.lines().find_map(|line| line.strip_prefix("service")).unwrap_or_default();
            line.trim().to_owned()
        })
        .collect();
    assert!(
        names.iter().all(|name| ["[0] local", "[1] plugin"].contains(&name.as_str())),
        "{names:?}"
    );
    assert!(names.contains(&"[0] local".to_owned()) && names.contains(&"[1] plugin".to_owned()));
    let listed = run_manager(&bed, &["trial", "ls", &done.id]);
    assert!(["   where   ", "   [0] ", "   [1] "].iter().all(|it| listed.contains(it)), "{listed}");
    bed.wait_until_empty();
}

#[test]
fn a_plugin_gets_the_trials_that_it_has_capacity_for() {
    let bed = TestBed::new();
    let gate = Gate::new(&bed.path("gate"));
    let mut plugin = process_plugin(&bed, "alive");
    plugin["settings"] = json!({"jobs": 1});
    let search = search(&bed, json!([plugin, local_service(2)]), 4, 4);
    let output = run_manager(&bed, &["doctor", search.write(&bed).to_str().unwrap()]);
    assert!(
        output.contains(
            "ok    place  trainingService[0]: the plugin Processes has room for 1 job now"
        ),
        "{output}"
    );
    let manager = search.start(&bed);
    wait_for_starts(&bed, 3);
    let shown = wait_for_services(&manager, "one trial there and two here", |services| {
        services[0]["running"] == 1 && services[1]["running"] == 2 && services[0]["free"] == 0
    });
    assert_eq!(shown[0].get("limit"), None, "the limit is the plugin's, not the file's");
    let why = "no training service has room for the trial (trainingService[0] (plugin): it has no room; \
               trainingService[1] (local): it has 2 of at most 2 trials (`trialConcurrency`))";
    wait_for("the fourth trial to wait", WAIT_TIMEOUT, || {
        let shown = manager.read_api("/api/v1/trials")?;
        shown["trials"].as_array()?.iter().any(|trial| trial["message"] == why).then_some(())
    });
    gate.release(4);
    expect_complete_output(&bed, &Outcome::parse(manager.finish(WAIT_TIMEOUT)), 4);
    bed.wait_until_empty();
}

/// A plugin whose jobs wait in its queue while there is no room.
const QUEUEING_PLUGIN: &str = r#"
import pathlib, subprocess, sys
from trialkeeper.service import *

class Queue(TrainingService):
    poll_seconds = 0.2
    queues = True
    children = {}
    def start(self, job):
        # A job of the queue starts when the file `open` exists.
        line = 'until [ -e "$0/open" ]; do sleep 0.05; done; exec "$@"'
        argv = ["sh", "-c", line, str(pathlib.Path.cwd()), *job.argv]
        self.children[job.attempt] = subprocess.Popen(argv, cwd=job.folder, stdin=subprocess.DEVNULL, start_new_session=True)
        return job.attempt
    def room(self):
        return 0
    def stop(self, handle, job, force):
        self.children[handle].kill() if force else self.children[handle].terminate()
    def poll(self, jobs):
        return {handle: self.look(handle) for handle in jobs}
    def look(self, handle):
        code = self.children[handle].poll()
        if code is not None:
            return Gone.of(code)
        return Running() if pathlib.Path("open").exists() else Waiting("the cluster is full")

Queue().serve()
"#;

#[test]
fn one_trial_waits_in_the_queue_of_a_full_cluster() {
    let bed = TestBed::new();
    let gate = Gate::new(&bed.path("gate"));
    bed.write("code/cluster.py", QUEUEING_PLUGIN);
    let module = repository_root().join("python/src").display().to_string();
    let program = ["env", &format!("PYTHONPATH={module}"), "python3", "cluster.py"];
    let cluster = json!({"platform": "plugin", "command": program});
    let manager = search(&bed, json!([cluster, local_service(1)]), 4, 3).start(&bed);
    wait_for_starts(&bed, 1);
    wait_for_services(&manager, "one trial to wait there and one to run here", |services| {
        (&services[0]["waiting"], &services[0]["free"], &services[1]["running"])
            == (&1.into(), &0.into(), &1.into())
    });
    let why = "no training service has room for the trial (trainingService[0] (plugin): another trial already waits \
               there; trainingService[1] (local): it has 1 of at most 1 trials (`trialConcurrency`))";
    wait_for("the third trial to wait", WAIT_TIMEOUT, || {
        let shown = manager.read_api("/api/v1/trials")?;
        shown["trials"].as_array()?.iter().any(|trial| trial["message"] == why).then_some(())
    });
    bed.write("code/open", "");
    gate.release(4);
    expect_complete_output(&bed, &Outcome::parse(manager.finish(WAIT_TIMEOUT)), 4);
    bed.wait_until_empty();
}

#[test]
fn a_search_continues_without_a_dead_service() {
    let bed = TestBed::new();
    let gate = Gate::new(&bed.path("gate"));
    let sections = json!([process_plugin(&bed, "alive"), local_service(2)]);
    let manager = search(&bed, sections, 6, 2).start(&bed);
    wait_for_starts(&bed, 2);
    let plugin = wait_for("the plugin", WAIT_TIMEOUT, || {
        let is_plugin = |words: &str| words.contains("processes.py") && !words.contains("sh -c");
        Some(bed.processes().into_iter().find(|(_, words)| is_plugin(words))?.0)
    });
    // The plugin cannot be started again. Its trial's agent keeps running.
    fs::remove_file(bed.path("alive")).unwrap();
    kill(plugin, Signal::SIGKILL).unwrap();
    wait_for_services(&manager, "the trouble", |services| services[0]["trouble"].is_string());
    gate.release(2);
    // The local trial ends, and the next ones run locally. The plugin's trial ends, which is noticed when the
    // plugin is back.
    wait_for_starts(&bed, 3);
    gate.release(1);
    wait_for_starts(&bed, 4);
    bed.write("alive", "");
    gate.release(3);
    expect_complete_output(&bed, &Outcome::parse(manager.finish(WAIT_TIMEOUT)), 6);
    bed.wait_until_empty();
}

#[test]
fn a_trial_that_one_service_refuses_runs_on_the_other() {
    let bed = TestBed::new();
    let gate = Gate::new(&bed.path("gate"));
    let program = bed.write("refuser.py", REFUSING_PLUGIN);
    let plugin = json!({"platform": "plugin", "command": ["python3", program]});
    let manager = search(&bed, json!([plugin, local_service(1)]), 4, 2).start(&bed);
    // One trial runs locally. The other is offered to the plugin.
    let refusal = "trainingService[0] refuses the trial: the account has no hours left; moving it to another part";
    wait_for("the refusal", WAIT_TIMEOUT, || manager.stderr().contains(refusal).then_some(()));
    gate.release(4);
    expect_complete_output(&bed, &Outcome::parse(manager.finish(WAIT_TIMEOUT)), 4);
    let alone = search(&bed, json!([plugin]), 1, 1).run(&bed);
    let message = format!("{:?}", alone.trials);
    let refusal = "no training service accepts the trial: trainingService[0] (plugin): the account has no hours left";
    assert!(
        message.contains(refusal) || alone.stderr.contains(refusal),
        "{message}{}",
        alone.stderr
    );
}

#[test]
fn a_resumed_manager_finds_its_trials_on_their_services() {
    let bed = TestBed::new();
    let gate = Gate::new(&bed.path("gate"));
    let mut plugins = ["first", "second"].map(|name| process_plugin(&bed, name));
    for plugin in &mut plugins {
        // Each plugin gets one trial, independent of their order.
        plugin["settings"] = json!({"jobs": 1});
    }
    let sections = json!([local_service(1), plugins[0], plugins[1]]);
    let manager = search(&bed, sections, 6, 3).start(&bed);
    wait_for_starts(&bed, 3);
    manager.signal(Signal::SIGKILL);
    manager.finish(WAIT_TIMEOUT);
    let id = bed.experiment_id();
    let resumed = Outcome::start_resume(&bed, &id);
    let shown = wait_for_services(&resumed, "a trial at each part", |services| {
        services.iter().all(|part| part["running"] == 1)
    });
    assert_eq!(shown.len(), 3);
    gate.release(6);
    expect_complete_output(&bed, &Outcome::parse(resumed.finish(WAIT_TIMEOUT)), 6);
    let folder = bed.data_folder().join(id);
    for part in ["training-service-1", "training-service-2"] {
        assert!(folder.join(part).is_dir(), "each plugin must have its own folder");
    }
    bed.wait_until_empty();
}

#[test]
fn a_resumed_search_continues_without_its_cluster_until_it_answers() {
    let bed = TestBed::new();
    let gate = Gate::new(&bed.path("gate"));
    let kube = Kube::start(bed.folder(), |_| Behavior::Processes);
    kube.write_kubeconfig(&bed.path("kubeconfig"));
    let cluster = json!({
        "platform": "kubernetes", "dockerImage": "any", "trialConcurrency": 1,
        "kubeconfig": bed.path("kubeconfig").display().to_string(),
    });
    let search = search(&bed, json!([local_service(1), cluster]), 3, 2);
    let start = |command: &mut Command| bed.start(command.args(["--host", "127.0.0.1"]));
    let manager = start(&mut search.command(&bed));
    let is_running = |services: &[Value]| services.iter().all(|part| part["running"] == 1);
    wait_for_services(&manager, "a trial at each part", is_running);
    wait_for_starts(&bed, 2);
    manager.signal(Signal::SIGKILL);
    manager.finish(WAIT_TIMEOUT);
    let id = bed.experiment_id();
    kube.set_unreachable(true);
    let manager = start(&mut Outcome::resume_command(&bed, &id));
    let shown = wait_for_services(&manager, "a trial at each part", is_running);
    assert!(shown[1]["trouble"].is_string(), "{shown:?}");
    manager.signal(Signal::SIGINT);
    let stopped = manager.finish(WAIT_TIMEOUT);
    assert_eq!(stopped.code, Some(130), "{}", stopped.stderr);
    let warnings = [
        "the manager goes on without the cluster: agents can report, trials wait",
        "1 Jobs and their Secrets, with the label",
        "Once it can be reached, `trial-manager resume",
    ];
    for warning in warnings {
        assert!(stopped.stderr.contains(warning), "{warning}: {}", stopped.stderr);
    }
    let manager = start(&mut Outcome::resume_command(&bed, &id));
    wait_for_services(&manager, "the trouble", |services| services[1]["trouble"].is_string());
    kube.set_unreachable(false);
    wait_for_services(&manager, "the end of the trouble", |services| {
        services[1]["trouble"].is_null()
    });
    gate.release(4);
    let done = Outcome::parse(manager.finish(WAIT_TIMEOUT));
    done.expect_done(3, 0);
    // Ctrl-C ended the trial on this machine, which ran again.
    assert_eq!(wait_for_starts(&bed, 4).len(), 4, "a trial ran twice: {}", bed.read("started"));
    bed.wait_until_empty();
    kube.wait_until_empty();
}

#[test]
#[ignore = "needs sshd"]
fn an_unreachable_machine_delays_no_trial() {
    let bed = TestBed::new();
    let machines = Machines::new(&bed);
    let gate = Gate::new(&bed.path("gate"));
    gate.release(4);
    let mut lost = machines.add("lost");
    lost["sshOptions"] = json!(["ProxyCommand=false"]);
    let remote = json!({"platform": "remote", "machineList": [lost]});
    let done = search(&bed, json!([remote, local_service(2)]), 4, 3).run(&bed);
    expect_complete_output(&bed, &done, 4);
    let shown = run_manager(&bed, &["experiment", "show", &done.id]);
    assert!(shown.contains("[0] remote: 0 running\n"), "{shown}");
    bed.wait_until_empty();
}

#[test]
#[ignore = "needs sshd"]
fn machines_and_this_machine_share_a_search() {
    let bed = TestBed::new();
    let machines = Machines::new(&bed);
    let gate = Gate::new(&bed.path("gate"));
    let remote = json!({"platform": "remote", "machineList": [machines.add("one")]});
    let manager = search(&bed, json!([local_service(1), remote]), 4, 2).start(&bed);
    wait_for_starts(&bed, 2);
    wait_for_services(&manager, "a trial at each", |services| {
        services.iter().all(|part| part["running"] == 1)
    });
    gate.release(4);
    expect_complete_output(&bed, &Outcome::parse(manager.finish(WAIT_TIMEOUT)), 4);
}

#[test]
fn doctor_names_the_failing_service() {
    let bed = TestBed::new();
    let broken = json!({"platform": "plugin", "command": ["./no-such-service"]});
    let file = search(&bed, json!([local_service(1), broken]), 1, 1).write(&bed);
    let mut doctor = bed.manager_command();
    doctor.arg("doctor").arg(&file);
    let done = bed.start(&mut doctor).finish(WAIT_TIMEOUT);
    let output = String::from_utf8(done.stdout).unwrap();
    assert_eq!(done.code, Some(1), "{output}");
    assert!(output.contains("FAIL  place  trainingService[1].command: "), "{output}");
    let good =
        search(&bed, json!([local_service(1), process_plugin(&bed, "alive")]), 1, 1).write(&bed);
    let output = run_manager(&bed, &["doctor", good.to_str().unwrap()]);
    assert!(output.contains("trainingService[0]: this machine can run trials"), "{output}");
    assert!(output.contains("trainingService[1]: the plugin answers"), "{output}");
}

/// Returns a plugin that gives one answer to every request.
fn answering_plugin(answer: &Value) -> Value {
    let program =
        format!("import sys\nfor line in sys.stdin: print({:?}, flush=True)", answer.to_string());
    json!({"platform": "plugin", "command": ["python3", "-c", program]})
}

#[test]
fn a_search_begins_without_a_service_that_cannot_be_used() {
    let other_version = answering_plugin(&json!({"id": 1, "result": {"protocol": 7}}));
    let away = answering_plugin(
        &json!({"id": 1, "error": {"code": -32004, "message": "the cluster is down"}}),
    );
    let old = answering_plugin(
        &json!({"id": 1, "error": {"code": -32007, "message": "update trial-manager"}}),
    );
    #[rustfmt::skip]
    let table = [
        (other_version, "uses version 7 of the protocol, and this trial-manager uses version 1; update trial-manager"),
        (away,          "reports: the cluster is down"),
        (old,           "reports: update trial-manager"),
    ];
    for (part, problem) in table {
        let bed = TestBed::new();
        let gate = Gate::new(&bed.path("gate"));
        let search = search(&bed, json!([local_service(2), part.clone()]), 2, 2);
        let mut doctor = bed.manager_command();
        doctor.arg("doctor").arg(search.write(&bed));
        let found = bed.start(&mut doctor).finish(WAIT_TIMEOUT);
        let stdout = String::from_utf8(found.stdout).unwrap();
        assert_eq!(found.code, Some(1), "{stdout}");
        assert!(stdout.contains("FAIL") && stdout.contains(problem), "{stdout}");
        let manager = search.start(&bed);
        let shown = wait_for_services(&manager, "the trouble", |services| {
            services[1]["trouble"]
                .as_str()
                .is_some_and(|trouble| !trouble.contains("is being started"))
        });
        assert!(shown[1]["trouble"].to_string().contains(problem), "{shown:?}");
        gate.release(2);
        let done = Outcome::parse(manager.finish(WAIT_TIMEOUT));
        expect_complete_output(&bed, &done, 2);
        let warning = "; the search begins without this training service";
        assert!(
            done.stderr.contains("trainingService[1]") && done.stderr.contains(warning),
            "{}",
            done.stderr
        );
        let alone = self::search(&bed, json!([part]), 1, 1).start(&bed).finish(WAIT_TIMEOUT);
        assert_eq!(alone.code, Some(2), "no service is left: {}", alone.stderr);
    }
}

#[test]
fn a_wrong_setting_of_one_service_is_refused() {
    let wrong = json!({"id": 1, "error": {"code": -32008, "message": "settings.queue: unknown"}});
    for part in [answering_plugin(&wrong), json!({"platform": "plugin", "command": ["./nothing"]})]
    {
        let bed = TestBed::new();
        let refused =
            search(&bed, json!([local_service(2), part]), 1, 1).start(&bed).finish(WAIT_TIMEOUT);
        assert_eq!(refused.code, Some(2), "{}", refused.stderr);
        assert!(refused.stderr.contains("trainingService[1]"), "{}", refused.stderr);
    }
}
