//! The portal of a running search in a real browser: its content, live updates, hostile output and
//! accessibility.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::json;
use trialkeeper_tests::{Browser, Gate, Search, TestBed, WAIT_TIMEOUT, wait_for};

/// A trial that prints steps, markup and control sequences. All trials but the first four wait at the gate.
const TRIAL_SCRIPT: &str = r#"#!/bin/sh
seq="$NNI_TRIAL_SEQ_ID"
printf 'hello <img src=x onerror=window.hacked=1> \033[31mred\033[0m \342\200\256\n'
echo "warning <script>window.hacked=1</script>" >&2
for step in 1 2 3 4 5; do echo "score=0.$seq$step"; done
if [ "$seq" = 3 ]; then exit 3; fi
if [ "$seq" -gt 3 ]; then
  echo >>"$BED/waits"
  read _ <"$BED/gate"
  echo "score=0.99"
  echo "after the gate"
  read _ <"$BED/gate"
fi
"#;

/// A script that checks accessibility: one heading, names of controls, and sufficient contrast.
const CHECK_ACCESSIBILITY: &str = r"
const problems = [];
if (document.documentElement.lang !== 'en') problems.push('no language');
if (document.querySelectorAll('h1').length !== 1) problems.push('not one h1');
for (const input of document.querySelectorAll('input:not([type=hidden]), select')) {
  if (!input.labels.length && !input.getAttribute('aria-label')) problems.push('no label: ' + input.outerHTML);
}
for (const one of document.querySelectorAll('[role=img], [role=group], [role=slider], [role=region], nav, meter, progress')) {
  if (!one.getAttribute('aria-label') && !one.getAttribute('aria-labelledby')) problems.push('no name: ' + one.tagName);
}
for (const one of document.querySelectorAll('a, button')) {
  if (!one.textContent.trim()) problems.push('no text: ' + one.outerHTML);
}
const parse = (colour) => (colour.match(/[\d.]+/g) ?? []).map(Number);
const light = ([r, g, b]) => [r, g, b].map((c) => c / 255).map((c) => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
  .reduce((sum, c, at) => sum + c * [0.2126, 0.7152, 0.0722][at], 0);
for (const one of document.querySelectorAll('body *')) {
  if (![...one.childNodes].some((node) => node.nodeType === 3 && node.data.trim())) continue;
  const box = one.getBoundingClientRect();
  if (!box.width || !box.height || one.closest('.uplot, option, .hidden, .skip')) continue;
  let behind = one;
  while (behind && (parse(getComputedStyle(behind).backgroundColor)[3] ?? 1) === 0) behind = behind.parentElement;
  const back = behind ? parse(getComputedStyle(behind).backgroundColor) : [255, 255, 255];
  const [a, b] = [light(parse(getComputedStyle(one).color)), light(back)];
  const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  if (contrast < 4.5) problems.push(`contrast ${contrast.toFixed(2)}: ${one.outerHTML.slice(0, 80)}`);
}
if (document.documentElement.scrollWidth > innerWidth + 1) problems.push('wider than the screen: ' + document.documentElement.scrollWidth);
return problems;
";

#[test]
#[ignore = "needs a browser"]
#[expect(clippy::too_many_lines, reason = "one scenario")]
fn a_running_search_is_shown_live() {
    let browser = Browser::start();
    let bed = TestBed::new();
    let gate = Gate::new(&bed.path("gate"));
    bed.write_script("code/trial.sh", TRIAL_SCRIPT);
    let command = format!("BED='{}' ./trial.sh", bed.folder().display());
    let search = Search::new(&command, 6).with("experimentName", "<b>bold</b>");
    let running = search.start(&bed);
    wait_for("the fifth trial to wait", WAIT_TIMEOUT, || {
        (!bed.read("waits").is_empty()).then_some(())
    });
    let url = bed.manager_url();
    let token = bed.user_token();
    let pictures = std::env::var_os("TRIALKEEPER_TEST_PICTURES").map(PathBuf::from);

    browser.open(&url);
    browser.wait_for(
        "the chart",
        WAIT_TIMEOUT,
        "document.querySelector('[data-plot=parallel]')?.scrollIntoView(); return document.querySelectorAll('[data-plot][data-drawn]').length === 2",
    );
    let shown = browser.run_script("return document.querySelector('h1').textContent");
    assert!(shown.as_str().unwrap().starts_with("<b>bold</b>"), "{shown}");
    let causes = browser.run_script("return document.getElementById('causes').textContent");
    assert_eq!(causes, "the command failed1");

    // The fifth trial's page, before and after another step.
    let last = "return [...document.querySelectorAll('#newest tbody tr')].map((row) => row.querySelector('a').href)[0]";
    let trial = browser.run_script(last).as_str().unwrap().to_owned();
    browser.open(&trial);
    browser.wait_for(
        "the curve",
        WAIT_TIMEOUT,
        "return document.querySelector('[data-chart=metrics] canvas')",
    );
    let output = "return document.getElementById('log-stdout').textContent";
    // Agents collect output before they send it, so it may arrive after the page.
    browser.wait_for(
        "the output so far",
        WAIT_TIMEOUT,
        &format!("{output}.includes('<img src=x onerror=window.hacked=1> red \u{fffd}')"),
    );
    gate.release(1);
    let has_new_output = format!("{output}.includes('after the gate')");
    browser.wait_for("the new output", WAIT_TIMEOUT, &has_new_output);
    let latest = "return document.getElementById('summary').textContent.includes('0.99')";
    browser.wait_for("the new step", WAIT_TIMEOUT, latest);
    assert_eq!(
        browser.run_script("return window.hacked ?? null"),
        json!(null),
        "a script in the output was run"
    );

    // A logged-in user stops the trial, and the page shows it without a reload.
    browser.open(&format!("{url}/login"));
    browser.run_script(&format!(
        "document.getElementById('token').value = {}; document.querySelector('main form').submit()",
        json!(token)
    ));
    browser.wait_for("the overview", WAIT_TIMEOUT, "return location.pathname === '/'");
    browser.open(&trial);
    let stop = "const form = document.querySelector('form[action^=\"/trials/\"][action$=stop]'); if (form) form.submit(); return !!form";
    browser.wait_for("the button", WAIT_TIMEOUT, stop);
    browser.wait_for(
        "the end",
        WAIT_TIMEOUT,
        "return document.querySelector('[data-state=USER_CANCELED]') !== null",
    );
    gate.release(2);
    let finished = running.finish(WAIT_TIMEOUT);
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);

    // The same pages from the stored search, at three widths and in both themes.
    let id = bed.experiment_id();
    let mut serve = bed.manager_command();
    serve.args(["serve", "--experiment", &id, "--port", "0", "--data-dir"]).arg(bed.data_folder());
    let serving = bed.start(&mut serve);
    let url = wait_for("the second server", WAIT_TIMEOUT, || {
        let now = std::fs::read_to_string(bed.experiment_folder().join("view.url")).ok()?;
        Some(now.trim().to_owned())
    });
    let number = trial.rsplit('/').next().unwrap();
    let trial = format!("/trials/{number}");
    let compared = format!("/compare?trial={number}");
    let sorted = "/trials?sort=final&order=desc";
    for path in [
        "/",
        sorted,
        &trial,
        &compared,
        "/configuration",
        "/api",
        "/login",
        "/login?ticket=x",
        "/nowhere",
    ] {
        browser.open(&format!("{url}{path}"));
        for (width, height) in [(360, 780), (1280, 900), (3840, 2160)] {
            for dark in [false, true] {
                browser.set_viewport(width, height, dark);
                let problems = browser.run_script(CHECK_ACCESSIBILITY);
                assert_eq!(problems, json!([]), "{path} at {width}, dark: {dark}");
                if let Some(folder) = &pictures {
                    std::thread::park_timeout(Duration::from_millis(600));
                    let name = path.trim_start_matches('/').replace(['/', '?', '='], "_");
                    let theme = if dark { "dark" } else { "light" };
                    browser.screenshot(&folder.join(format!("{name}-{width}-{theme}.png")));
                }
            }
        }
    }
    let messages = browser.console_messages();
    assert!(messages.iter().all(|message| !message.contains("Content Security")), "{messages:?}");
    serving.signal(nix::sys::signal::Signal::SIGTERM);
    assert_eq!(serving.finish(WAIT_TIMEOUT).code, Some(0));
}
