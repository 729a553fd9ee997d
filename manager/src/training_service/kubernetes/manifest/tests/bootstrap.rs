//! Tests of the script that fetches the agent, run by a real shell with the test's own programs.

use std::path::Path;

use super::super::pod;

/// Runs the script that fetches the agent with only these programs and a shell.
fn run_bootstrap(folder: &Path, programs: &[(&str, &str)]) -> (Option<i32>, String) {
    run_bootstrap_with(folder, programs, "parameters")
}

/// Runs the script in a pod that must fetch these files.
fn run_bootstrap_with(
    folder: &Path,
    programs: &[(&str, &str)],
    fetch: &str,
) -> (Option<i32>, String) {
    use std::os::unix::fs::PermissionsExt as _;
    let bin = folder.join("bin");
    std::fs::create_dir_all(&bin).unwrap();
    for (name, script) in programs {
        std::fs::write(bin.join(name), script).unwrap();
        std::fs::set_permissions(bin.join(name), std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    for name in ["mkdir", "chmod", "mv", "rm", "tail", "cat"] {
        drop(std::os::unix::fs::symlink(format!("/bin/{name}"), bin.join(name)));
        drop(std::os::unix::fs::symlink(format!("/usr/bin/{name}"), bin.join(name)));
    }
    std::fs::write(folder.join("token"), "t\n").unwrap();
    std::fs::write(folder.join("manager.url"), "https://m\n").unwrap();
    let mut shell = std::process::Command::new("/bin/sh");
    shell
        .args(["-c", pod::container::BOOTSTRAP_SCRIPT, "trialkeeper", "true"])
        .arg(folder)
        .env_clear();
    shell.env("PATH", &bin).env("TRIALKEEPER_TOKEN_FILE", folder.join("token"));
    shell.env("TRIALKEEPER_MANAGER_FILE", folder.join("manager.url"));
    shell.env("TRIALKEEPER_CA_FILE", folder.join("ca.pem"));
    shell.env("https_proxy", "http://proxy.example:3128").env("TRIALKEEPER_FETCH", fetch);
    let output = shell.output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn an_image_that_cannot_fetch_the_agent_reports_it_at_once() {
    let nothing: &[(&str, &str)] = &[];
    let busybox = "#!/bin/sh\ncase $1 in --version) echo 'wget: unrecognized option' >&2; exit 1;; esac\nexit 9\n";
    for (programs, expected) in [
        (nothing, "none of curl, python3 and wget"),
        (&[("wget", busybox)][..], "wget: cannot check the manager's certificate"),
        (
            &[("python3", BROKEN_PROGRAM)][..],
            "python3: ModuleNotFoundError: No module named 'shutil'",
        ),
        (
            &[("python3", BROKEN_PROGRAM), ("curl", BROKEN_PROGRAM), ("wget", busybox)][..],
            "curl: ModuleNotFound",
        ),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let (code, stderr) = run_bootstrap(folder.path(), programs);
        assert_eq!(code, Some(125), "{stderr}");
        assert!(stderr.contains(expected), "{stderr}");
    }
}

#[test]
fn every_program_that_fetches_the_agent_executes_it_and_has_timeouts() {
    // Each program leaves an agent at the requested path. Files next to it record the program's arguments, its proxy
    // and its configuration.
    let agent = "printf '#!/bin/sh\\n[ \"$1\" = version ] || echo agent $https_proxy >&2\\n'";
    let wget = format!(
        "#!/bin/sh\n[ \"$1\" != --version ] || {{ echo GNU Wget; exit; }}\nfor to; do [ \"$last\" = -O ] && out=$to; last=$to; done\n\
         echo \"$@\" $https_proxy >\"$out.args\"; cat \"${{WGETRC:--}}\" >\"$out.told\"; {agent} >\"$out\"\n"
    );
    let curl = wget.replace("-O", "-o");
    for (name, script, bound) in
        [("wget", wget.as_str(), "-T 10 -t 1"), ("curl", curl.as_str(), "--connect-timeout 10")]
    {
        let folder = tempfile::tempdir().unwrap();
        let (code, stderr) = run_bootstrap(folder.path(), &[(name, script)]);
        let agent = "agent http://proxy.example:3128";
        assert_eq!((code, stderr.trim()), (Some(0), agent), "{name}: the trial has its own proxy");
        let read = |file: &str| std::fs::read_to_string(folder.path().join("bin").join(file));
        let arguments = read("trialkeeper.part.args").unwrap();
        assert!(arguments.contains(bound), "{arguments}");
        assert!(!arguments.contains("proxy") && !arguments.contains("Bearer"), "{arguments}");
        let token_text = read("trialkeeper.part.told").unwrap();
        assert!(
            token_text.starts_with("header = ") && token_text.contains("Authorization: Bearer t"),
            "{token_text}"
        );
        assert!(read("trialkeeper.part.rc").is_err(), "the file with the token is removed");
    }
}

/// Returns a program that leaves an agent that prints its code archive. Each of the two downloads ends only after both
/// have begun. The download of the code fails if `fails` is set.
fn curl_script_for_both(fails: bool) -> String {
    let code = if fails { "exit 22" } else { "echo archive >\"$out\"" };
    format!(
        "#!/bin/sh\n[ \"$1\" != --version ] || exit 0\n\
         for to; do [ \"$last\" = -o ] && out=$to; last=$to; done\n: >\"$out.begun\"\n\
         folder=${{out%/*}}; folder=${{folder%/bin}}; n=0\n\
         until [ -e \"$folder/code.tar.gz.begun\" ] && [ -e \"$folder/bin/trialkeeper.part.begun\" ]; do\n\
         n=$((n + 1)); [ $n -lt 1000000 ] || exit 9; done\n\
         case $last in */code) {code} ;; *) printf '#!/bin/sh\\n[ \"$1\" = version ] || echo \"archive ${{TRIALKEEPER_CODE_ARCHIVE##*/}}\" >&2\\n' >\"$out\" ;; esac\n"
    )
}

#[test]
fn the_code_is_fetched_beside_the_agent_or_else_by_the_agent() {
    for (fails, expected) in [(false, "archive code.tar.gz"), (true, "archive")] {
        let folder = tempfile::tempdir().unwrap();
        let curl = curl_script_for_both(fails);
        let (code, stderr) =
            run_bootstrap_with(folder.path(), &[("curl", &curl)], "parameters,code");
        assert_eq!((code, stderr.trim()), (Some(0), expected));
        assert_eq!(folder.path().join("code.tar.gz").exists(), !fails);
    }
}

/// A program that exists and never works, such as the `python3` of Debian's `python3-minimal`.
const BROKEN_PROGRAM: &str = "#!/bin/sh\necho Traceback >&2\necho \"ModuleNotFoundError: No module named 'shutil'\" >&2\nexit 1\n";

#[test]
fn a_broken_program_is_skipped() {
    let agent = "printf '#!/bin/sh\\n[ \"$1\" = version ] || echo agent >&2\\n'";
    let fetches = |option: &str| {
        format!(
            "#!/bin/sh\n[ \"$1\" != --version ] || {{ echo GNU Wget; exit; }}\n\
             for to; do [ \"$last\" = {option} ] && out=$to; last=$to; done\n{agent} >\"$out\"\n"
        )
    };
    let (curl, wget) = (fetches("-o"), fetches("-O"));
    let [curl, wget] = [("curl", curl.as_str()), ("wget", wget.as_str())];
    let crippled = [("python3", BROKEN_PROGRAM), ("curl", BROKEN_PROGRAM)];
    for programs in [vec![crippled[0], curl], vec![crippled[0], crippled[1], wget]] {
        let folder = tempfile::tempdir().unwrap();
        let (code, stderr) = run_bootstrap(folder.path(), &programs);
        // A program that works prints nothing else: the script reports every failed try.
        assert_eq!((code, stderr.trim()), (Some(0), "agent"), "{programs:?}");
    }
}

#[test]
fn an_agent_that_does_not_run_in_the_image_is_reported() {
    let curl = "#!/bin/sh\n[ \"$1\" != --version ] || exit 0\nfor to; do [ \"$last\" = -o ] && out=$to; last=$to; done\necho '#!/no/such/loader' >\"$out\"\n";
    let folder = tempfile::tempdir().unwrap();
    let (code, stderr) = run_bootstrap(folder.path(), &[("curl", curl)]);
    assert_eq!(code, Some(125), "{stderr}");
    assert!(stderr.contains("does not run in this image"), "{stderr}");
}
