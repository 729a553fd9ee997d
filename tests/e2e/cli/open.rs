//! `trial-manager open` logs a browser in. The token is in no argument, no readable file and no URL.

use std::os::unix::fs::PermissionsExt as _;

use trialkeeper_tests::{Browser, FinishedProgram, Gate, Search, TestBed, WAIT_TIMEOUT, wait_for};

fn run_open(bed: &TestBed, arguments: &[&str], browser: Option<&str>) -> FinishedProgram {
    let mut command = bed.manager_command();
    command.arg("open").args(arguments).arg("--data-dir").arg(bed.data_folder());
    command.envs(browser.map(|browser| ("BROWSER", browser)));
    bed.start(&mut command).finish(WAIT_TIMEOUT)
}

#[test]
#[ignore = "needs a browser"]
fn open_logs_the_browser_in() {
    let bed = TestBed::new();
    let gate = Gate::new(&bed.path("gate"));
    let running = Search::new("echo score=1; read _ <../gate", 1).start(&bed);
    let url = wait_for("the manager to listen", WAIT_TIMEOUT, || bed.find_manager_url());
    let token = bed.user_token();

    let program = bed.write_script("browser", "#!/bin/sh\necho \"$@\" >>\"$0.arguments\"\n");
    let opened = run_open(&bed, &[], Some(program.to_str().unwrap()));
    assert_eq!(opened.code, Some(0), "{}", opened.stderr);
    let page = bed.data_folder().join("open.html");
    let arguments = bed.read("browser.arguments");
    assert_eq!(arguments, format!("file://{}\n", page.display()), "the browser gets only the file");
    assert_eq!(std::fs::metadata(&page).unwrap().permissions().mode() & 0o777, 0o600);
    let inside = std::fs::read_to_string(&page).unwrap();
    let stdout = String::from_utf8(opened.stdout).unwrap();
    assert!(inside.contains("/login?ticket=") && !inside.contains(&token), "{inside}");
    assert!(stdout.contains(&url) && !stdout.contains("ticket"), "{stdout}");

    let browser = Browser::start();
    browser.open(&format!("file://{}", page.display()));
    let inside =
        "return location.pathname === '/' && document.body.textContent.includes('Log out')";
    browser.wait_for("the overview with a log-out button", WAIT_TIMEOUT, inside);
    assert_eq!(browser.run_script("return document.referrer.includes('ticket')"), false);

    // Without a browser, or with a failing one, the URL is printed. It works once.
    for (arguments, browser) in [(["--print"].as_slice(), None), (&[], None), (&[], Some("false"))]
    {
        let printed = run_open(&bed, arguments, browser);
        let stdout = String::from_utf8(printed.stdout).unwrap();
        let path = stdout.trim_end().strip_prefix(&url).unwrap().to_owned();
        assert!(printed.stderr.contains("within"), "{}", printed.stderr);
        assert!(!stdout.contains(&token), "{stdout}");
        let (_, first) = trialkeeper_tests::http_get(&url, &path).unwrap();
        let (_, again) = trialkeeper_tests::http_get(&url, &path).unwrap();
        assert!(first.contains("Logged in") && again.contains("has been used"), "{first}{again}");
    }
    gate.release(1);
    assert_eq!(running.finish(WAIT_TIMEOUT).code, Some(0));
    let unserved = run_open(&bed, &[], None);
    assert_eq!(unserved.code, Some(2));
    assert!(unserved.stderr.contains("trial-manager serve"), "{}", unserved.stderr);
}
