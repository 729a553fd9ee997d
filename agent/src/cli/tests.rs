use proptest::prelude::*;

use super::*;

fn run(words: &[&str]) -> Result<RunArgs, clap::Error> {
    let words = insert_run(words.iter().map(OsString::from));
    let Command::Run(args) = Cli::try_parse_from(words)?.command else { panic!("not a run") };
    Ok(*args)
}

#[test]
fn the_clap_definition_is_valid() {
    Cli::command().debug_assert();
}

#[test]
fn every_flag_has_its_variable() {
    let command = Cli::command();
    let run = command.find_subcommand("run").unwrap();
    for flag in run.get_arguments().filter(|flag| flag.get_long().is_some()) {
        let long = flag.get_long().unwrap();
        if ["help", "verbose", "print-config"].contains(&long) {
            continue;
        }
        let variable = format!("TRIALKEEPER_{}", long.to_uppercase().replace('-', "_"));
        assert_eq!(flag.get_env(), Some(variable.as_ref()), "--{long}");
    }
}

#[test]
fn a_command_is_found_in_every_form_of_the_command_line() {
    #[rustfmt::skip]
    let table: [&[&str]; 5] = [
        &["trialkeeper", "run", "--", "python", "-u", "train.py", "--grace", "1"],
        &["trialkeeper", "--", "python", "-u", "train.py", "--grace", "1"],
        &["trialkeeper", "--drain", "1s", "--", "python", "-u", "train.py", "--grace", "1"],
        &["trialkeeper", "run", "python", "-u", "train.py", "--grace", "1"],
        &["trialkeeper", "-v", "python", "-u", "train.py", "--grace", "1"],
    ];
    for words in table {
        let args = run(words).unwrap();
        assert_eq!(args.command, ["python", "-u", "train.py", "--grace", "1"], "{words:?}");
        assert_eq!(args.supervision.grace, Duration::from_secs(20), "{words:?}");
    }
}

#[test]
fn bad_command_lines_are_refused() {
    #[rustfmt::skip]
    let table: [&[&str]; 7] = [
        &["trialkeeper"],
        &["trialkeeper", "run"],
        &["trialkeeper", "run", "--"],
        &["trialkeeper", "run", "--shell", "x", "--", "y"],
        &["trialkeeper", "run", "--grace", "soon", "--", "y"],
        &["trialkeeper", "run", "--experiment", "a/b", "--", "y"],
        &["trialkeeper", "run", "--manager", "http://x", "--manager-file", "f", "--", "y"],
    ];
    for words in table {
        assert!(run(words).is_err(), "{words:?}");
    }
}

#[test]
fn values_that_are_too_small_are_refused_with_advice() {
    #[rustfmt::skip]
    let table = [
        ("--rotate-bytes",    "0",     Some("at least 4096")),
        ("--rotate-bytes",    "4095",  Some("at least 4096")),
        ("--rotate-bytes",    "-1",    Some("at least 4096")),
        ("--rotate-bytes",    "10M",   Some("such as 104857600")),
        ("--rotate-bytes",    "4096",  None),
        ("--log-line-bytes",  "0",     Some("at least 64")),
        ("--log-line-bytes",  "64",    None),
        ("--heartbeat",       "0",     Some("at least 100ms")),
        ("--heartbeat",       "99ms",  Some("at least 100ms")),
        ("--heartbeat",       "100ms", None),
        ("--sample-interval", "1ms",   Some("at least 10ms")),
        ("--sample-interval", "10ms",  None),
        ("--sample-interval", "0",     None),
    ];
    for (flag, value, refusal) in table {
        let refused = run(&["trialkeeper", "run", &format!("{flag}={value}"), "--", "x"]).err();
        match refusal {
            None => assert!(refused.is_none(), "{flag}={value}"),
            Some(advice) => {
                let refused = refused.expect(flag).to_string();
                assert!(refused.contains(advice) && refused.contains(flag), "{refused}");
            }
        }
    }
}

#[test]
fn a_manager_is_named_by_its_url() {
    #[rustfmt::skip]
    let table = [
        ("http://10.0.0.1:8080",    true),
        ("HTTPS://host/prefix/",    true),
        ("http://[::1]:8080",       true),
        ("http://trial_manager:80", true),
        ("10.0.0.1:8080",           false),
        ("localhost",               false),
        ("ftp://host",              false),
        ("http://",                 false),
        ("http:///path",            false),
        ("http://:8080",            false),
        ("http://host name",        false),
        ("http://host\n",           false),
    ];
    for (url, is_one) in table {
        let words = ["trialkeeper", "run", "--manager", url, "--", "x"];
        match run(&words) {
            Ok(args) => assert!(is_one && args.manager.manager.as_deref() == Some(url), "{url:?}"),
            Err(refused) => {
                let refused = refused.to_string();
                assert!(!is_one && refused.contains("such as http://10.0.0.1:8080"), "{refused}");
            }
        }
    }
}

#[test]
fn times_have_units() {
    #[rustfmt::skip]
    let table = [
        ("20s",   Some(20_000)), ("20", Some(20_000)), ("500ms", Some(500)), ("1.5m", Some(90_000)),
        ("2h",    Some(7_200_000)), ("0", Some(0)), ("-1s", None), ("1w", None), ("", None), ("s", None),
        ("inf",   None), ("NaN", None), ("1e300h", None), ("1 s", None),
    ];
    for (text, millis) in table {
        assert_eq!(duration(text).ok(), millis.map(Duration::from_millis), "{text:?}");
    }
}

proptest! {
    #[test]
    fn random_durations_never_panic(text in ".*") {
        drop(duration(&text));
    }
}
