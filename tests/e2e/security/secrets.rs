//! Remote connections are encrypted, and secrets stay private. An experiment's database can be copied and
//! checked.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use trialkeeper_tests::{Gate, Outcome, Search, TestBed, WAIT_TIMEOUT, wait_for};

#[test]
fn remote_reports_are_encrypted() {
    let bed = TestBed::new();
    let mut command = Search::new("echo score={{x}}", 2).command(&bed);
    let outcome =
        Outcome::parse(bed.start(command.args(["--host", "0.0.0.0"])).finish(WAIT_TIMEOUT));
    assert_eq!(outcome.code, 0, "{}", outcome.stderr);
    let url = fs::read_to_string(bed.data_folder().join(&outcome.id).join("manager.url")).unwrap();
    assert!(url.starts_with("https://"), "{url}");
    for trial in &outcome.trials {
        assert_eq!(
            trial.final_result, trial.parameters["x"],
            "the result was not delivered over TLS"
        );
    }
}

/// Returns every secret in an experiment's folder: the user's token, the trials' tokens, and their key.
fn find_secrets(data: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let files = list_files(data).into_iter();
    let is_secret = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default();
        ["secret", "user.token", "token"].iter().any(|secret| name == *secret)
    };
    let read = |path: PathBuf| {
        let bytes = fs::read(&path).unwrap();
        (path, bytes.trim_ascii().to_vec())
    };
    files.filter(is_secret).map(read).collect()
}

/// Returns all files below a folder. The folder may be missing.
fn list_files(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let entries = entries.map(|entry| entry.unwrap());
    let below = entries.flat_map(|entry| match entry.file_type().unwrap() {
        kind if kind.is_dir() => list_files(&entry.path()),
        kind if kind.is_file() => vec![entry.path()],
        _ => Vec::new(),
    });
    below.collect()
}

fn contains(bytes: &[u8], secret: &[u8]) -> bool {
    bytes.windows(secret.len()).any(|part| part == secret)
}

#[test]
fn secrets_are_in_no_log_command_line_page_or_readable_file() {
    let bed = TestBed::new();
    let gate = Gate::new(&bed.path("gate"));
    // The trial prints its environment, which must contain no secret.
    let line = format!("env; read _ <{}; echo score=1", gate.path().display());
    let mut command = Search::new(&line, 1).command(&bed);
    command.args(["--host", "0.0.0.0"]).env("TRIAL_MANAGER_LOG", "trace");
    let running = bed.start(&mut command);
    let begun = wait_for("the trial to run", WAIT_TIMEOUT, || {
        let secrets = find_secrets(&bed.data_folder());
        let processes = bed.processes();
        (secrets.len() == 3 && processes.iter().any(|(_, line)| line.contains("read _")))
            .then_some((secrets, processes))
    });
    let (secrets, processes) = begun;
    assert!(secrets.iter().all(|(_, secret)| secret.len() >= 16), "{secrets:?}");
    for (_, line) in &processes {
        assert!(!secrets.iter().any(|(_, secret)| contains(line.as_bytes(), secret)), "{line}");
    }
    // The pages and the API, as a logged-in user sees them.
    let id = bed.experiment_id();
    let folder = bed.data_folder().join(&id);
    let url = bed.manager_url();
    for page in [
        "",
        "configuration",
        "api/v1/experiment",
        "api/v1/experiment/configuration",
        "api/v1/trials",
        "api/v1/nni/experiment",
    ] {
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--show-error", "--fail", "--cacert"])
            .arg(folder.join("tls/ca.pem"));
        curl.arg("--netrc-file").arg(folder.join("netrc"));
        let output = curl.arg(format!("{url}/{page}")).output().unwrap();
        assert!(output.status.success(), "{page}: {}", String::from_utf8_lossy(&output.stderr));
        for (path, secret) in &secrets {
            assert!(!contains(&output.stdout, secret), "{page} shows {}", path.display());
        }
    }
    gate.release(1);
    let finished = running.finish(WAIT_TIMEOUT);
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    for (path, secret) in &secrets {
        let logs = [finished.stdout.as_slice(), finished.stderr.as_bytes()];
        assert!(!logs.iter().any(|log| contains(log, secret)), "{}", path.display());
        for file in list_files(bed.folder()).iter().filter(|file| *file != gate.path()) {
            if contains(&fs::read(file).unwrap(), secret) {
                let mode = fs::metadata(file).unwrap().permissions().mode();
                assert_eq!(mode & 0o077, 0, "{} is in {}", path.display(), file.display());
                let name = file.file_name().unwrap();
                let known =
                    ["secret", "user.token", "token", "netrc"].iter().any(|known| name == *known);
                assert!(known, "{} is in {}", path.display(), file.display());
            }
        }
    }
}

/// Wraps a command so that its umask removes no permissions.
fn without_umask(command: &Command) -> Command {
    let mut open = Command::new("sh");
    open.args(["-c", "umask 000; exec \"$@\"", "sh"]).arg(command.get_program());
    open.args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => open.env(name, value),
            None => open.env_remove(name),
        };
    }
    if let Some(folder) = command.get_current_dir() {
        open.current_dir(folder);
    }
    open
}

fn file_mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn only_its_owner_can_read_an_experiment_under_any_umask() {
    let bed = TestBed::new();
    let gate = Gate::new(&bed.path("gate"));
    let line =
        format!("umask >$NNI_OUTPUT_DIR/umask; read _ <{}; echo score=1", gate.path().display());
    let command = Search::new(&line, 1).command(&bed);
    let running = bed.start(&mut without_umask(&command));
    let folder = wait_for("the trial to run", WAIT_TIMEOUT, || {
        let folder = bed.find_experiment_folder()?;
        let trial =
            fs::read_dir(&folder).ok()?.flatten().find(|e| e.path().join("umask").exists())?;
        (!fs::read_to_string(trial.path().join("umask")).ok()?.is_empty()).then_some(folder)
    });
    assert_eq!(file_mode(&bed.data_folder()), 0o700);
    assert_eq!(file_mode(&folder), 0o700);
    for name in [
        "trialkeeper.db",
        "trialkeeper.db-wal",
        "trialkeeper.db-shm",
        "secret",
        "user.token",
        "netrc",
        "manager.sock",
        "manager.url",
    ] {
        assert_eq!(file_mode(&folder.join(name)), 0o600, "{name}");
    }
    let token = list_files(&folder).into_iter().find(|file| file.ends_with("token")).unwrap();
    let trial = token.parent().unwrap();
    assert_eq!((file_mode(trial), file_mode(&token)), (0o700, 0o600));
    assert_eq!(
        fs::read_to_string(trial.join("umask")).unwrap().trim(),
        "0000",
        "the trial must keep the user's umask"
    );

    running.signal(nix::sys::signal::Signal::SIGKILL);
    running.finish(WAIT_TIMEOUT);
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(folder.join("trialkeeper.db"), fs::Permissions::from_mode(0o644)).unwrap();
    gate.release(1);
    let outcome = Outcome::run_resume(&bed, folder.file_name().unwrap().to_str().unwrap());
    outcome.expect_done(1, 0);
    assert_eq!((file_mode(&folder), file_mode(&folder.join("trialkeeper.db"))), (0o700, 0o600));
    let count = outcome.stderr.matches("other users could enter").count();
    assert_eq!(count, 1, "{}", outcome.stderr);
}

#[test]
fn a_database_is_checked_and_copied() {
    let bed = TestBed::new();
    let outcome = Search::new("echo score=1", 1).run(&bed);
    let copy = bed.path("copy.db");
    let run = |words: &[&str]| {
        let mut command = bed.manager_command();
        command.args(words).arg("--data-dir").arg(bed.data_folder());
        bed.start(&mut command).finish(WAIT_TIMEOUT)
    };
    let to = copy.to_str().unwrap();
    #[rustfmt::skip]
    let table: [(&str, &[&str], i32); 5] = [
        ("a good database",         &["check", &outcome.id],          0),
        ("its copy",                &["backup", &outcome.id, to],     0),
        ("a copy is not replaced",  &["backup", &outcome.id, to],     2),
        ("no such experiment",      &["check", "nothere"],            2),
        ("an id that is a path",    &["check", "../etc"],             2),
    ];
    for (case, words, code) in table {
        let finished = run(words);
        assert_eq!(finished.code, Some(code), "{case}: {}", finished.stderr);
    }
    // Another program can read the copy.
    let read = Command::new("python3")
        .args(["-c", "import sqlite3, sys; print(sqlite3.connect(sys.argv[1]).execute('SELECT count(*) FROM trial').fetchone()[0])"])
        .arg(&copy)
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&read.stdout).trim(), "1");
}
