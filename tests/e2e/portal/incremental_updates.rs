//! Requests of an open page during changes: only new data is fetched.

use rusqlite::{Connection, params};
use serde_json::{Value, json};
use trialkeeper_tests::{Browser, TestBed, WAIT_TIMEOUT, seed};

/// A connection to a stored search, through which a test changes it.
struct ChangingStore(Connection);

impl ChangingStore {
    /// Adds a step to an ended trial, as the fact of this number, counted from the attempt's first.
    fn add_step(&self, trial: i64, step: i64, value: f64) {
        let body = json!({"kind": "metric", "name": "default", "type": "intermediate", "sequence": step, "value": value});
        let report = "INSERT INTO report VALUES (?, 0, ?, 0, 0, 'metric', ?, 0)";
        self.0
            .execute(report, params![trial, seed::FIRST_REPORT_SEQ + step, body.to_string()])
            .unwrap();
        self.notify(trial);
    }

    /// Changes the final result of a trial.
    fn set_result(&self, trial: i64, value: f64) {
        let other = "UPDATE report SET body = json_set(body, '$.value', ?) WHERE attempt = ? AND sums_up = 1 AND kind = 'metric'";
        assert_eq!(self.0.execute(other, params![value, trial]).unwrap(), 1);
        self.notify(trial);
    }

    /// Adds an event, which notifies open lists.
    fn notify(&self, trial: i64) {
        let event = "INSERT INTO trial_event (trial, at_ms, state, attempt, message) \
                     SELECT key, ended_at_ms, state, attempt, message FROM trial WHERE key = ?";
        self.0.execute(event, [trial]).unwrap();
    }
}

/// Creates a stored search and serves its pages. Returns the server process, the URL and the connection for
/// changes.
fn serve_search(
    bed: &TestBed,
    trials: i64,
    steps: i64,
) -> (trialkeeper_tests::RunningProgram, String, ChangingStore) {
    seed::create_store(&bed.data_folder(), "small", trials, steps, 10).unwrap();
    let (serving, url) = bed.serve("small");
    let store = Connection::open(bed.data_folder().join("small/trialkeeper.db")).unwrap();
    (serving, url, ChangingStore(store))
}

/// Returns the page's requests since its load whose paths contain `path`: their queries and their transferred
/// bytes.
fn requests_of(browser: &Browser, path: &str) -> Vec<(String, f64)> {
    let script = format!(
        "return performance.getEntriesByType('resource').map(({{ name, transferSize }}) => [name, transferSize])
           .filter(([name]) => name.includes({}))",
        json!(path)
    );
    let entries: Vec<(String, f64)> = serde_json::from_value(browser.run_script(&script)).unwrap();
    entries
        .into_iter()
        .map(|(name, size)| (name.rsplit('?').next().unwrap().to_owned(), size))
        .collect()
}

const READ_ROWS: &str = "return [...document.querySelectorAll('.trials tbody tr')].map((row) => [...row.cells].map((cell) => cell.textContent.trim()))";

fn read_rows(browser: &Browser) -> Vec<Vec<String>> {
    serde_json::from_value(browser.run_script(READ_ROWS)).unwrap()
}

#[test]
#[ignore = "needs a browser"]
#[expect(clippy::too_many_lines, reason = "one scenario")]
fn a_table_fetches_only_new_rows_and_stays_sorted() {
    let browser = Browser::start();
    let bed = TestBed::new();
    let (_serving, url, store) = serve_search(&bed, 300, 3);
    browser.set_viewport(1280, 900, false);
    browser.open(&format!("{url}/trials?sort=final&order=desc"));
    browser.wait_for(
        "the script",
        WAIT_TIMEOUT,
        "return document.querySelectorAll('.trials tbody tr').length === 100",
    );
    let before = read_rows(&browser);
    let whole = browser.transferred_bytes();
    browser.run_script("document.querySelectorAll('.trials tbody input')[3].click(); document.querySelectorAll('.trials tr')[5].same = true;");

    // A trial from far below becomes the best. It moves to the first row, and all other rows keep their
    // order.
    let last = browser.run_script("return fetch('/api/v1/trials?sort=final&limit=1').then((answer) => answer.json()).then(({ trials }) => trials[0].id)");
    let last: i64 = last.as_str().unwrap().trim_start_matches('t').parse().unwrap();
    store.set_result(last, 7.0);
    browser.wait_for(
        "the best to be the first",
        WAIT_TIMEOUT,
        "return document.querySelector('.trials tbody td:nth-child(5)').textContent === '7'",
    );
    let after = read_rows(&browser);
    assert_eq!(after[0][2], format!("t{last:05}"));
    assert_eq!(after[1..], before[..99]);
    let chosen =
        "return [...document.querySelectorAll('.trials input:checked')].map((box) => box.value)";
    assert_eq!(browser.run_script(chosen), json!([before[3][2]]), "the selection was lost");
    let same = "return [...document.querySelectorAll('.trials tr')].findIndex((row) => row.same)";
    assert_eq!(
        browser.run_script(same),
        json!(6),
        "an unchanged row must be the same element, one place further down"
    );
    let updates = requests_of(&browser, "/trials?");
    assert!(
        !updates.is_empty() && updates.iter().all(|(_, bytes)| *bytes < 4000.0),
        "{updates:?} of {whole}"
    );

    // The server applies the filter: a row appears when its trial begins to match, and disappears when it no
    // longer matches. After a failed request, the page must fetch the change again, because the server
    // reports it only once.
    browser.open(&format!("{url}/trials?state=FAILED"));
    browser.wait_for(
        "the page",
        WAIT_TIMEOUT,
        "return location.search === '?state=FAILED' && document.readyState === 'complete'",
    );
    let failed = read_rows(&browser).len();
    browser.run_script(
        "const real = window.fetch; let refused = 0;
         window.fetch = (...request) => {
           refused += 1;
           if (refused === 1) return Promise.reject(new TypeError('the network is away'));
           if (refused === 2) return Promise.resolve(new Response('', { status: 503 }));
           return real(...request);
         };",
    );
    store
        .0
        .execute("UPDATE trial SET state = 'FAILED', message = '<b>late</b>' WHERE key = ?", [last])
        .unwrap();
    store.notify(last);
    let one_more =
        format!("return document.querySelectorAll('.trials tbody tr').length === {}", failed + 1);
    browser.wait_for("the row of the failed trial", WAIT_TIMEOUT, &one_more);
    let shown =
        read_rows(&browser).into_iter().find(|row| row[2] == format!("t{last:05}")).unwrap();
    assert_eq!(shown.last().unwrap(), "<b>late</b>");
    store.0.execute("UPDATE trial SET state = 'SUCCEEDED' WHERE key = ?", [last]).unwrap();
    store.notify(last);
    let gone = format!("return document.querySelectorAll('.trials tbody tr').length === {failed}");
    browser.wait_for("the row to disappear", WAIT_TIMEOUT, &gone);

    // The selection includes the trial that has no row now.
    let members =
        "return [...new FormData(document.querySelector('form#compare')).getAll('trial')]";
    assert_eq!(browser.run_script(members), json!([before[3][2]]));
}

#[test]
#[ignore = "needs a browser"]
fn selected_columns_are_kept_for_the_next_visit() {
    let browser = Browser::start();
    let bed = TestBed::new();
    let (_serving, url, _) = serve_search(&bed, 12, 3);
    browser.set_viewport(1280, 900, false);
    browser
        .open(&format!("{url}/trials?sort=final&column=final&column=machine&column=parameters.lr"));
    let heads = "return [...document.querySelectorAll('.trials thead th')].slice(1).map((one) => one.textContent)";
    let chosen = json!(["Trial", "Result", "Machine", "lr"]);
    assert_eq!(browser.run_script(heads), chosen);
    let first = read_rows(&browser)[0].len();
    assert_eq!(first, 5);
    // The filter form and the headings keep the columns.
    let sorted =
        browser.run_script("return document.querySelector('.trials thead a').getAttribute('href')");
    assert!(
        sorted.as_str().unwrap().ends_with("column=final&column=machine&column=parameters.lr"),
        "{sorted}"
    );
    browser.open(&format!("{url}/trials?state=SUCCEEDED"));
    browser.wait_for(
        "the columns of the last visit",
        WAIT_TIMEOUT,
        "return document.querySelectorAll('.trials thead th').length === 5",
    );
    assert_eq!(browser.run_script(heads), chosen);
    assert_eq!(
        browser.run_script("return new URLSearchParams(location.search).get('state')"),
        "SUCCEEDED"
    );
    browser.run_script("document.querySelector('[data-usual]').click()");
    browser.wait_for(
        "the usual columns",
        WAIT_TIMEOUT,
        "return document.querySelectorAll('.trials thead th').length > 8",
    );
}

#[test]
#[ignore = "needs a browser"]
fn compared_curves_fetch_only_new_steps() {
    let browser = Browser::start();
    let bed = TestBed::new();
    let (_serving, url, store) = serve_search(&bed, 10, 400);
    browser.set_viewport(1280, 900, false);
    browser.open(&format!("{url}/compare?trial=t00001&trial=t00003"));
    browser.wait_for(
        "the curves",
        WAIT_TIMEOUT,
        "return document.querySelector('[data-plot=compare][data-drawn]') !== null",
    );
    let first = requests_of(&browser, "/metrics?");
    let whole = |(query, _): &(String, f64)| query == "type=intermediate&points=1000";
    assert!(first.len() == 2 && first.iter().all(whole), "{first:?}");

    // The seed's verdict is fact 402, so this number is free.
    store.add_step(1, 500, 3.5);
    browser.wait_for(
        "the table to show the step",
        WAIT_TIMEOUT,
        "return document.querySelector('#list').textContent.includes('3.5')",
    );
    let twice = "return performance.getEntriesByType('resource').filter(({ name }) => name.includes('after=')).length >= 1";
    browser.wait_for("the curve's new step", WAIT_TIMEOUT, twice);
    let updates = requests_of(&browser, "t00001/metrics?").split_off(1);
    let after = format!("type=intermediate&after={}", (seed::FIRST_REPORT_SEQ + 400) / 100);
    let small = |(query, bytes): &(String, f64)| query.starts_with(&after) && *bytes < 1000.0;
    assert!(updates.iter().all(small), "{updates:?}");
    assert_eq!(
        requests_of(&browser, "t00003/metrics?").len(),
        1,
        "an unchanged curve was fetched again"
    );
    // The curve ends at the new step: it is the last mark.
    let last = "const host = document.querySelector('[data-plot=compare] .plot-host'); host.focus();
      host.dispatchEvent(new KeyboardEvent('keydown', { key: 'End' }));
      return document.querySelector('[data-plot=compare] .tip').textContent.includes('step 500: 3.5')";
    browser.wait_for("the new step to be the last mark", WAIT_TIMEOUT, last);

    // Steps of another attempt are another curve.
    store.0.execute_batch(
        "INSERT INTO attempt (key, trial, name, last_heard_ms, facts_through) VALUES (1000, 1, 't00001-2', 0, 1);
         INSERT INTO report VALUES (1000, 0, 0, 0, 0, 'metric', '{\"name\": \"default\", \"type\": \"intermediate\", \"sequence\": 0, \"value\": 8.25}', 0);
         UPDATE trial SET attempt = 't00001-2' WHERE key = 1;",
    ).unwrap();
    store.notify(1);
    let again = |_: &Value| {
        requests_of(&browser, "t00001/metrics?").iter().filter(|one| whole(one)).count() == 2
    };
    trialkeeper_tests::wait_for("the second request for the whole curve", WAIT_TIMEOUT, || {
        again(&Value::Null).then_some(())
    });
}
