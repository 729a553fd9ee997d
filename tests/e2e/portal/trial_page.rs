//! The page of a trial in a real browser: its output, the changes of its code, and its files.

use std::process::Command;

use serde_json::{Value, json};
use trialkeeper_tests::{Browser, Gate, Search, TestBed, WAIT_TIMEOUT, http_get, wait_for};

/// A trial that prints more lines than fit, one of them long, leaves a file, and then waits at the gate.
const TRIAL_SCRIPT: &str = r#"#!/bin/sh
seq 1 100
printf 'a long line: %0900d\n' 7
echo model >"$NNI_OUTPUT_DIR/model.txt"
echo "before the gate"
read _ <"$BED/gate"
echo "after the gate"
read _ <"$BED/gate"
echo "score=0.5"
echo "at the end"
"#;

/// Makes the code directory a git repository whose script has changed since its commit.
fn create_repository(bed: &TestBed) {
    bed.write_script("code/trial.sh", "#!/bin/sh\n");
    let code = bed.path("code");
    for words in [&["init", "-q"][..], &["add", "."], &["commit", "-q", "-m", "first"]] {
        let mut git = Command::new("git");
        git.args(["-c", "user.name=a", "-c", "user.email=a@example.com"]).args(words);
        assert!(git.current_dir(&code).status().unwrap().success(), "{words:?}");
    }
    bed.write_script("code/trial.sh", TRIAL_SCRIPT);
}

#[test]
#[ignore = "needs a browser"]
#[expect(clippy::too_many_lines, reason = "one scenario")]
fn output_changes_and_files_of_a_trial_are_shown_and_downloaded() {
    let browser = Browser::start();
    let bed = TestBed::new();
    let gate = Gate::new(&bed.path("gate"));
    create_repository(&bed);
    let command = format!("BED='{}' ./trial.sh", bed.folder().display());
    let running = Search::new(&command, 1).start(&bed);
    let url = wait_for("the manager's address", WAIT_TIMEOUT, || bed.find_manager_url());
    let id = wait_for("the trial", WAIT_TIMEOUT, || {
        let list: Value = serde_json::from_str(&http_get(&url, "/api/v1/trials")?.1).ok()?;
        Some(list["trials"].as_array()?.first()?["id"].as_str()?.to_owned())
    });
    browser.set_viewport(1280, 900, false);
    browser.set_download_folder(&bed.path("downloads"));
    browser.open(&format!("{url}/trials/{id}"));
    let log = "const log = document.getElementById('log-stdout');";
    let shows = |text: &str| {
        let script = format!("{log} return log.textContent.includes('{text}')");
        browser.wait_for(text, WAIT_TIMEOUT, &script);
    };
    let box_of = |label: &str| {
        format!(
            "[...document.querySelectorAll('details:has(#log-stdout) label')].find((one) => one.textContent.includes('{label}')).querySelector('input')"
        )
    };

    // The view follows the output until the user looks at another part.
    shows("before the gate");
    let at_end = format!(
        "{log} return log.scrollTop > 0 && log.scrollTop + log.clientHeight > log.scrollHeight - 5"
    );
    browser.wait_for("the view to be at the end", WAIT_TIMEOUT, &at_end);
    gate.release(1);
    shows("after the gate");
    browser.wait_for("the view to follow", WAIT_TIMEOUT, &at_end);
    browser.run_script(&format!("{}.click(); {log} log.scrollTop = 0", box_of("follow")));
    gate.release(1);
    shows("at the end");
    assert_eq!(browser.run_script(&format!("{log} return log.scrollTop")), json!(0));

    // Long lines are wrapped or scrolled, and the browser keeps the choice.
    let is_wide = format!("{log} return log.scrollWidth > log.clientWidth + 5");
    assert_eq!(browser.run_script(&is_wide), json!(false));
    browser.run_script(&format!("{}.click()", box_of("wrap lines")));
    assert_eq!(browser.run_script(&is_wide), json!(true));
    assert_eq!(running.finish(WAIT_TIMEOUT).code, Some(0));
    let (_serving, url) = bed.serve(&bed.experiment_id());
    browser.open(&format!("{url}/trials/{id}"));
    browser.run_script("localStorage.setItem('wrap', 'no')");
    browser.open(&format!("{url}/trials/{id}"));
    browser.wait_for("the choice of the last visit", WAIT_TIMEOUT, &is_wide);

    // Each line has a time beside it, which is not a part of the text.
    let times = format!(
        "{log} return [...log.querySelectorAll('.at')].filter((one) => one.checkVisibility()).map((one) => one.dataset.at)"
    );
    assert_eq!(browser.run_script(&times), json!([]));
    browser.run_script(&format!("{}.click()", box_of("times")));
    let times = browser.run_script(&times);
    let is_time = |time: &Value| time.as_str().is_some_and(|time| time.len() == 8);
    assert!(times.as_array().unwrap().iter().any(is_time), "{times}");
    let text = browser.run_script(&format!("{log} return log.textContent"));
    assert!(text.as_str().unwrap().starts_with("1\n2\n3\n"), "{text}");

    // The output, the changes and the files are downloaded.
    let diff = browser.run_script(
        "const code = [...document.querySelectorAll('summary')].find((one) => one.textContent.includes('changed file')).parentElement;
         code.open = true;
         return [code.querySelector('summary').textContent, code.querySelector('pre').textContent]",
    );
    assert!(diff[0].as_str().unwrap().starts_with("1 changed file since commit "), "{diff}");
    assert!(diff[1].as_str().unwrap().contains("\n+seq 1 100\n"), "{diff}");
    let file = "return document.querySelector('[aria-label=Files] tbody tr').textContent";
    let file = browser.run_script(file);
    assert!(file.as_str().unwrap().starts_with("model.txt6"), "{file}");
    for (link, name, part) in [
        (
            "details:has(#log-stdout) a[download]".to_owned(),
            format!("{id}-stdout.txt"),
            "before the gate\nafter the gate",
        ),
        ("a[download$=diff]".to_owned(), format!("{id}.diff"), "+++ b/trial.sh"),
        ("[aria-label=Files] a".to_owned(), "model.txt".to_owned(), "model"),
    ] {
        browser.run_script(&format!("document.querySelector('{link}').click()"));
        let downloaded = bed.path("downloads").join(&name);
        // The browser creates the file before it writes the content.
        wait_for(&format!("{name} with {part:?}"), WAIT_TIMEOUT, || {
            let text = std::fs::read_to_string(&downloaded).ok()?;
            text.contains(part).then_some(())
        });
    }
}
