//! Examines machines for `doctor`: login, shell, files, clock, GPUs, and the connection back to the manager. It leaves
//! nothing on a machine.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use futures_util::future::join_all;
use tempfile::TempDir;
use tokio::io::BufReader;
use tokio::net::UnixListener;
use tokio::process::Child;
use tokio::time::timeout;

use super::logind::{self, Logind};
use super::output::skip_banner;
use super::shell::{
    FURTHER_TOOLS, LINE_MARK, SESSION_TOOLS, folders, may_be_shared, missing_tools_fault,
    missing_tools_script,
};
use super::ssh::{COMMAND_TIMEOUT, Ssh};
use crate::config::MachineSpec;
use crate::training_service::platform::Finding;
use crate::util::files::write_file;
use crate::util::shell::quote;

/// The least free space of a machine, which must suffice for an agent, the code, and the trials' files.
const MIN_FREE_SPACE_MIB: u64 = 200;
/// The tolerated difference between two clocks. A trial's timestamps come from its machine's clock.
pub(super) const CLOCK_TOLERANCE: Duration = Duration::from_secs(30);

/// The answers of a machine.
#[derive(Debug, Default, PartialEq, Eq)]
struct MachineAnswers {
    system: String,
    /// The missing programs.
    missing_programs: Vec<String>,
    /// The folder into which the user cannot write.
    unwritable: Option<String>,
    space_kib: Option<u64>,
    file_system: String,
    time_s: Option<i64>,
    gpus: usize,
    logind: Logind,
}

/// Examines all machines at once. `now_s` is the time of this machine's clock, in seconds since the Unix epoch.
pub(super) async fn examine(
    machines: &[MachineSpec],
    gpus: Option<u32>,
    now_s: i64,
) -> Vec<Finding> {
    let mut builder = tempfile::Builder::new();
    let sockets = match builder.prefix("tk-").tempdir_in("/tmp") {
        Ok(sockets) => sockets,
        Err(error) => {
            return vec![finding("/tmp", Err(format!("cannot create a folder: {error}")))];
        }
    };
    let mut machines = machines.to_vec();
    for (_, _, secret) in MachineSpec::take_secrets(&mut machines, sockets.path()) {
        if let Err(error) = write_file(&secret.path, 0o600, &format!("{}\n", secret.text.reveal()))
        {
            return vec![finding("/tmp", Err(format!("cannot write a secret: {error}")))];
        }
    }
    let found = machines.iter().enumerate().map(|(number, machine)| {
        let ssh = Ssh::new(machine, sockets.path(), number);
        let sockets = &sockets;
        async move { examine_machine(&ssh, machine, sockets, number, gpus, now_s).await }
    });
    join_all(found).await.into_iter().flatten().collect()
}

fn finding(name: &str, found: Result<String, String>) -> Finding {
    let with_name = |text: String| format!("{name}: {text}");
    Finding { found: found.map(with_name).map_err(with_name) }
}

async fn examine_machine(
    ssh: &Ssh,
    machine: &MachineSpec,
    sockets: &TempDir,
    number: usize,
    gpus: Option<u32>,
    now_s: i64,
) -> Vec<Finding> {
    let name = &machine.name;
    // The connection ends when this value is dropped.
    let _control = match ssh.connect().await {
        Ok(control) => control,
        Err(why) => return vec![finding(name, Err(format!("cannot log in: {why}")))],
    };
    let (_, root) = folders(machine);
    let answers = match ssh.run(&questions_script(&root)).await {
        Ok(text) => read_answers(&text),
        Err(why) => {
            return vec![finding(name, Err(format!("its shell cannot run a script: {why}")))];
        }
    };
    let mut findings: Vec<_> = judge_answers(&answers, gpus, now_s)
        .into_iter()
        .map(|found| finding(name, found))
        .collect();
    // In a search, the helper has a session of its own while others are opened.
    let _helper = hold_session(ssh).await;
    findings.push(finding(name, try_tunnel(ssh, sockets.path(), number).await));
    findings
}

/// Opens a session that ends when the value is dropped. If it does not open, neither do others, which have a message.
async fn hold_session(ssh: &Ssh) -> Option<Child> {
    let mut command = ssh.script_command(&format!("echo {LINE_MARK}; exec cat >/dev/null"));
    let mut held = command.stdin(Stdio::piped()).stderr(Stdio::null()).spawn().ok()?;
    let mut output = BufReader::new(held.stdout.as_mut()?);
    timeout(COMMAND_TIMEOUT, skip_banner(&mut output)).await.ok()??;
    Some(held)
}

/// Returns the script that asks the questions. It marks the line of each answer, to distinguish it from a login shell's
/// banner.
fn questions_script(root: &str) -> String {
    format!(
        r#"root={root}; at=$root
while [ ! -d "$at" ]; do at=$(dirname "$at"); done
echo "{LINE_MARK}system $(uname -sm)"
{}
{}
[ -w "$at" ] || echo "{LINE_MARK}unwritable $at"
echo "{LINE_MARK}space $(df -Pk "$at" | awk 'NR == 2 {{ print $4 }}')"
echo "{LINE_MARK}files $(stat -f -c %T "$at" 2>/dev/null)"
echo "{LINE_MARK}time $(date +%s)"
echo "{LINE_MARK}gpus $(nvidia-smi -L 2>/dev/null | grep -c '^GPU ')"
{}
:"#,
        missing_tools_script(&SESSION_TOOLS),
        missing_tools_script(&FURTHER_TOOLS),
        logind::questions_script()
    )
}

/// PURE: reads the answers and skips other lines.
fn read_answers(text: &str) -> MachineAnswers {
    let mut answers = MachineAnswers::default();
    for line in text.lines().filter_map(|line| line.strip_prefix(LINE_MARK)) {
        let (word, value) = line.split_once(' ').unwrap_or((line, ""));
        let value = value.trim();
        match word {
            "system" => value.clone_into(&mut answers.system),
            "lacks" => answers.missing_programs.push(value.to_owned()),
            "unwritable" => answers.unwritable = Some(value.to_owned()),
            "space" => answers.space_kib = value.parse().ok(),
            "files" => value.clone_into(&mut answers.file_system),
            "time" => answers.time_s = value.parse().ok(),
            "logind" => answers.logind.read_line(value),
            "gpus" => answers.gpus = value.parse().unwrap_or(0),
            _ => {}
        }
    }
    answers
}

/// PURE: judges the answers.
fn judge_answers(
    answers: &MachineAnswers,
    gpus: Option<u32>,
    now_s: i64,
) -> Vec<Result<String, String>> {
    let ours = format!("Linux {}", std::env::consts::ARCH);
    let system = if answers.system == ours {
        Ok(format!("login and shell work; its system is {ours}"))
    } else {
        Err(format!("its system is {:?}, but the agent is for {ours}", answers.system))
    };
    let mut judged = vec![system];
    let lacks: Vec<&str> = answers.missing_programs.iter().map(String::as_str).collect();
    judged.extend(missing_tools_fault(&lacks).map(Err));
    judged.extend(answers.unwritable.as_ref().map(|folder| {
        Err(format!(
            "you may not write into {folder} there; set `remoteDirectory` to a folder of yours"
        ))
    }));
    judged.push(judge_space(answers));
    judged.extend(file_system_fault(&answers.file_system).map(Err));
    judged.push(judge_clock(answers.time_s, now_s));
    judged.extend(answers.logind.fault().map(Err));
    let wanted = gpus.map_or(0, |gpus| usize::try_from(gpus).unwrap_or(usize::MAX));
    judged.push(if answers.gpus < wanted {
        let there = answers.gpus;
        Err(format!("nvidia-smi shows {there} GPUs there, but trialGpuNumber is {wanted}"))
    } else {
        Ok(format!("nvidia-smi shows {} GPUs there", answers.gpus))
    });
    judged
}

fn judge_space(answers: &MachineAnswers) -> Result<String, String> {
    match answers.space_kib.map(|kib| kib / 1024) {
        Some(mib) if mib < MIN_FREE_SPACE_MIB => Err(format!(
            "it has {mib} MiB of free space; free some, or set `remoteDirectory` to a folder on another disk"
        )),
        Some(mib) => Ok(format!("it has {mib} MiB of free space")),
        None => Err("df does not show the free space".to_owned()),
    }
}

/// Returns the reason why a file system may be unsuitable: the agents' locks and sockets may be unreliable on it.
pub(super) fn file_system_fault(kind: &str) -> Option<String> {
    may_be_shared(kind).then(|| {
        format!(
            "its folder for trials lies on {kind}, which machines may share: locks and sockets may be unreliable; set \
             `remoteDirectory` to a folder on a disk of the machine"
        )
    })
}

/// Compares a machine's clock with this one's, in seconds since the Unix epoch.
pub(super) fn judge_clock(theirs: Option<i64>, ours: i64) -> Result<String, String> {
    let Some(theirs) = theirs else { return Err("date does not show the time".to_owned()) };
    let apart = theirs.saturating_sub(ours);
    if Duration::from_secs(apart.unsigned_abs()) <= CLOCK_TOLERANCE {
        return Ok("its clock is right".to_owned());
    }
    let word = if apart > 0 { "ahead of" } else { "behind" };
    Err(format!(
        "its clock is {} s {word} this machine's, and so are the times of its trials; set the clock, best with NTP",
        apart.unsigned_abs()
    ))
}

/// Forwards a socket on the machine to one on this machine, as the manager does.
async fn try_tunnel(ssh: &Ssh, sockets: &Path, number: usize) -> Result<String, String> {
    let here = sockets.join(format!("back-{number}"));
    let _listener = UnixListener::bind(&here).map_err(|error| format!("no socket: {error}"))?;
    let folder = ssh.run("umask 077; mktemp -d /tmp/tk-XXXXXX").await?;
    let folder = folder.lines().last().unwrap_or_default().trim();
    let forwarded = ssh.forward(&format!("{folder}/sock"), &here).await;
    ssh.run(&format!("rm -rf {}", quote(folder))).await?;
    forwarded.map(|()| "it can reach the manager through SSH".to_owned()).map_err(|why| {
        format!(
            "it forwards no socket to the manager; AllowStreamLocalForwarding in its sshd_config must allow it, or the machine \
             reach a manager with `--host` and `--advertise`: {why}"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_judged_by_its_answers() {
        let fine = MachineAnswers {
            system: format!("Linux {}", std::env::consts::ARCH),
            missing_programs: Vec::new(),
            unwritable: None,
            space_kib: Some(1 << 30),
            file_system: "ext2/ext3".to_owned(),
            time_s: Some(1_000_000),
            gpus: 2,
            logind: Logind::default(),
        };
        let of = |change: fn(&mut MachineAnswers)| {
            let mut answers = MachineAnswers {
                system: fine.system.clone(),
                missing_programs: Vec::new(),
                unwritable: None,
                file_system: fine.file_system.clone(),
                logind: Logind::default(),
                ..fine
            };
            change(&mut answers);
            answers
        };
        #[rustfmt::skip]
        let table: [(MachineAnswers, &[&str]); 11] = [
            // the answers                                              the failures
            (of(|_| {}),                                                            &[]),
            (of(|answers| answers.system = "Darwin arm64".to_owned()),              &["Darwin arm64"]),
            (of(|answers| answers.missing_programs = vec!["sha256sum".to_owned()]), &["lacks sha256sum; install coreutils"]),
            (of(|answers| answers.unwritable = Some("/".to_owned())),               &["may not write into /"]),
            (of(|answers| answers.space_kib = Some(1024)),                          &["1 MiB"]),
            (of(|answers| answers.space_kib = None),                                &["df"]),
            (of(|answers| answers.file_system = "nfs".to_owned()),                  &["remoteDirectory"]),
            (of(|answers| answers.time_s = Some(1_003_600)),                        &["3600 s ahead of"]),
            (of(|answers| answers.time_s = Some(996_400)),                          &["3600 s behind"]),
            (of(|answers| answers.gpus = 0),                                        &["0 GPUs"]),
            (of(|answers| answers.logind.read_line("KillUserProcesses=yes")),       &["enable-linger"]),
        ];
        for (answers, failing) in table {
            let judged = judge_answers(&answers, Some(1), 1_000_000);
            let failures: Vec<_> = judged.into_iter().filter_map(Result::err).collect();
            assert_eq!(failures.len(), failing.len(), "{failures:?}");
            for (failure, part) in failures.iter().zip(failing) {
                assert!(failure.contains(part), "{failure}");
            }
        }
    }

    #[test]
    fn a_login_banner_is_skipped() {
        let text = format!(
            "Welcome!\n{LINE_MARK}system Linux x86_64\n{LINE_MARK}lacks a\n{LINE_MARK}lacks b\n{LINE_MARK}gpus many\nbye"
        );
        let answers = read_answers(&text);
        assert_eq!(
            (answers.system.as_str(), answers.missing_programs.join(" ")),
            ("Linux x86_64", "a b".to_owned())
        );
        assert_eq!((answers.gpus, answers.space_kib), (0, None));
    }
}
