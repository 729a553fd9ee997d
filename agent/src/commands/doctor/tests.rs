use super::*;

fn checks() -> Vec<Check> {
    vec![
        Check::ok("name", "m is 10.0.0.1"),
        Check::warn("clock", "60 s behind", "set the clock"),
        Check::fail("token", "refused (401)", "take the trial's own"),
        Check::fail("spool", "cannot be written", "mount a volume"),
        Check::skipped("GPU", "none"),
    ]
}

#[test]
fn the_first_failure_is_named() {
    assert_eq!(to_report(checks()).first_failure, Some("token"));
    assert!(!to_report(checks()).ok);
    let well =
        to_report(checks().into_iter().filter(|check| check.state != CheckState::Fail).collect());
    assert_eq!((well.ok, well.first_failure), (true, None));
    assert!(render_text(&well).ends_with("\nNo check failed.\n"));
}

#[test]
fn the_text_report_is_a_table() {
    let expected = "\
ok    name   m is 10.0.0.1
warn  clock  60 s behind
             -> set the clock
FAIL  token  refused (401)
             -> take the trial's own
FAIL  spool  cannot be written
             -> mount a volume
-     GPU    none

First failure: token.
";
    assert_eq!(render_text(&to_report(checks())), expected);
}
