//! What a page asks for while something changes: what is new, and no more.

use rusqlite::{Connection, params};
use serde_json::{Value, json};
use trialkeeper_tests::{BOUND, Browser, TestBed, seed};

/// A stored search that somebody else goes on with.
struct Elsewhere(Connection);

impl Elsewhere {
    /// Another step of a trial that has ended, as its attempt's fact of this number.
    fn steps(&self, trial: i64, seq: i64, value: f64) {
        let body = json!({"kind": "metric", "name": "default", "type": "intermediate", "sequence": seq, "value": value});
        let report = "INSERT INTO report VALUES (?, 0, ?, 0, 0, 'metric', ?, 0)";
        self.0.execute(report, params![trial, seq, body.to_string()]).unwrap();
        self.changes(trial);
    }

    /// Another final result of one.
    fn results(&self, trial: i64, value: f64) {
        let other = "UPDATE report SET body = json_set(body, '$.value', ?) WHERE attempt = ? AND sums_up = 1 AND kind = 'metric'";
        assert_eq!(self.0.execute(other, params![value, trial]).unwrap(), 1);
        self.changes(trial);
    }

    /// Whoever keeps a list is told.
    fn changes(&self, trial: i64) {
        let event = "INSERT INTO trial_event (trial, at_ms, state, attempt, message) \
                     SELECT key, ended_at_ms, state, attempt, message FROM trial WHERE key = ?";
        self.0.execute(event, [trial]).unwrap();
    }
}

/// A stored search of so many trials, its pages, and who goes on with it.
fn searched(
    bed: &TestBed,
    trials: i64,
    steps: i64,
) -> (trialkeeper_tests::Running, String, Elsewhere) {
    seed::make(&bed.data(), "small", trials, steps, 10).unwrap();
    let (serving, url) = bed.serve("small");
    let store = Connection::open(bed.data().join("small/trialkeeper.db")).unwrap();
    (serving, url, Elsewhere(store))
}

/// What the page has asked for since it was there, of paths that hold this: their queries and their bytes on the wire.
fn asked(browser: &Browser, path: &str) -> Vec<(String, f64)> {
    let script = format!(
        "return performance.getEntriesByType('resource').map(({{ name, transferSize }}) => [name, transferSize])
           .filter(([name]) => name.includes({}))",
        json!(path)
    );
    let entries: Vec<(String, f64)> = serde_json::from_value(browser.script(&script)).unwrap();
    entries
        .into_iter()
        .map(|(name, size)| (name.rsplit('?').next().unwrap().to_owned(), size))
        .collect()
}

const ROWS: &str = "return [...document.querySelectorAll('.trials tbody tr')].map((row) => [...row.cells].map((cell) => cell.textContent.trim()))";

fn rows(browser: &Browser) -> Vec<Vec<String>> {
    serde_json::from_value(browser.script(ROWS)).unwrap()
}

#[test]
#[ignore = "needs a browser"]
#[expect(clippy::too_many_lines, reason = "one story")]
fn a_table_is_sent_its_new_rows_only_and_stays_sorted() {
    let browser = Browser::start();
    let bed = TestBed::new();
    let (_serving, url, elsewhere) = searched(&bed, 300, 3);
    browser.looks(1280, 900, false);
    browser.open(&format!("{url}/trials?sort=final&order=desc"));
    browser.wait(
        "the script",
        BOUND,
        "return document.querySelectorAll('.trials tbody tr').length === 100",
    );
    let before = rows(&browser);
    let whole = browser.transferred();
    browser.script("document.querySelectorAll('.trials tbody input')[3].click(); document.querySelectorAll('.trials tr')[5].same = true;");

    // A trial from far below becomes the best: whatever came late, it is the first row, and all others follow as they were.
    let last = browser.script("return fetch('/api/v1/trials?sort=final&limit=1').then((answer) => answer.json()).then(({ trials }) => trials[0].id)");
    let last: i64 = last.as_str().unwrap().trim_start_matches('t').parse().unwrap();
    elsewhere.results(last, 7.0);
    browser.wait(
        "the best to be the first",
        BOUND,
        "return document.querySelector('.trials tbody td:nth-child(5)').textContent === '7'",
    );
    let after = rows(&browser);
    assert_eq!(after[0][2], format!("t{last:05}"));
    assert_eq!(after[1..], before[..99]);
    let chosen =
        "return [...document.querySelectorAll('.trials input:checked')].map((box) => box.value)";
    assert_eq!(browser.script(chosen), json!([before[3][2]]), "what was chosen stays chosen");
    let same = "return [...document.querySelectorAll('.trials tr')].findIndex((row) => row.same)";
    assert_eq!(
        browser.script(same),
        json!(6),
        "a row that stays is the same row, a place further down"
    );
    let news = asked(&browser, "/trials?");
    assert!(
        !news.is_empty() && news.iter().all(|(_, bytes)| *bytes < 4000.0),
        "{news:?} of {whole}"
    );

    // A filter is the server's: what begins to be like that comes, what is no longer goes.
    // A page that cannot be had just then is fetched again: the change is told once only.
    browser.open(&format!("{url}/trials?state=FAILED"));
    browser.wait(
        "the page",
        BOUND,
        "return location.search === '?state=FAILED' && document.readyState === 'complete'",
    );
    let failed = rows(&browser).len();
    browser.script(
        "const real = window.fetch; let refused = 0;
         window.fetch = (...request) => {
           refused += 1;
           if (refused === 1) return Promise.reject(new TypeError('the network is away'));
           if (refused === 2) return Promise.resolve(new Response('', { status: 503 }));
           return real(...request);
         };",
    );
    elsewhere
        .0
        .execute("UPDATE trial SET state = 'FAILED', message = '<b>late</b>' WHERE key = ?", [last])
        .unwrap();
    elsewhere.changes(last);
    let one_more =
        format!("return document.querySelectorAll('.trials tbody tr').length === {}", failed + 1);
    browser.wait("the failed trial to come", BOUND, &one_more);
    let shown = rows(&browser).into_iter().find(|row| row[2] == format!("t{last:05}")).unwrap();
    assert_eq!(shown.last().unwrap(), "<b>late</b>");
    elsewhere.0.execute("UPDATE trial SET state = 'SUCCEEDED' WHERE key = ?", [last]).unwrap();
    elsewhere.changes(last);
    let gone = format!("return document.querySelectorAll('.trials tbody tr').length === {failed}");
    browser.wait("it to go", BOUND, &gone);

    // What was chosen is chosen still, also where it has no row.
    let members =
        "return [...new FormData(document.querySelector('form#compare')).getAll('trial')]";
    assert_eq!(browser.script(members), json!([before[3][2]]));
}

#[test]
#[ignore = "needs a browser"]
fn columns_are_chosen_and_kept_for_the_next_visit() {
    let browser = Browser::start();
    let bed = TestBed::new();
    let (_serving, url, _) = searched(&bed, 12, 3);
    browser.looks(1280, 900, false);
    browser
        .open(&format!("{url}/trials?sort=final&column=final&column=machine&column=parameters.lr"));
    let heads = "return [...document.querySelectorAll('.trials thead th')].slice(1).map((one) => one.textContent)";
    let chosen = json!(["Trial", "Result", "Machine", "lr"]);
    assert_eq!(browser.script(heads), chosen);
    let first = rows(&browser)[0].len();
    assert_eq!(first, 5);
    // The form of the filter, and a heading, keep them.
    let sorted =
        browser.script("return document.querySelector('.trials thead a').getAttribute('href')");
    assert!(
        sorted.as_str().unwrap().ends_with("column=final&column=machine&column=parameters.lr"),
        "{sorted}"
    );
    browser.open(&format!("{url}/trials?state=SUCCEEDED"));
    browser.wait(
        "the columns of the last visit",
        BOUND,
        "return document.querySelectorAll('.trials thead th').length === 5",
    );
    assert_eq!(browser.script(heads), chosen);
    assert_eq!(
        browser.script("return new URLSearchParams(location.search).get('state')"),
        "SUCCEEDED"
    );
    browser.script("document.querySelector('[data-usual]').click()");
    browser.wait(
        "the usual columns",
        BOUND,
        "return document.querySelectorAll('.trials thead th').length > 8",
    );
}

#[test]
#[ignore = "needs a browser"]
fn curves_side_by_side_are_sent_their_new_steps_only() {
    let browser = Browser::start();
    let bed = TestBed::new();
    let (_serving, url, elsewhere) = searched(&bed, 10, 400);
    browser.looks(1280, 900, false);
    browser.open(&format!("{url}/compare?trial=t00001&trial=t00003"));
    browser.wait(
        "the curves",
        BOUND,
        "return document.querySelector('[data-chart=compare] canvas') !== null",
    );
    let first = asked(&browser, "/metrics?");
    let whole = |(query, _): &(String, f64)| query == "type=intermediate&points=1000";
    assert!(first.len() == 2 && first.iter().all(whole), "{first:?}");

    // After the last step: the seed's verdict is fact 402.
    elsewhere.steps(1, 500, 3.5);
    browser.wait(
        "the table to show the step",
        BOUND,
        "return document.querySelector('#list').textContent.includes('3.5')",
    );
    let twice = "return performance.getEntriesByType('resource').filter(({ name }) => name.includes('after=')).length >= 1";
    browser.wait("the curve's new step", BOUND, twice);
    let news = asked(&browser, "t00001/metrics?").split_off(1);
    let small = |(query, bytes): &(String, f64)| {
        query.starts_with("type=intermediate&after=4") && *bytes < 1000.0
    };
    assert!(news.iter().all(small), "{news:?}");
    assert_eq!(asked(&browser, "t00003/metrics?").len(), 1, "of it nothing is new");
    // What is drawn reaches as far: the legend tells the last place under the pointer at the right edge.
    let told = "const chart = document.querySelector('[data-chart=compare] .u-over'); const box = chart.getBoundingClientRect();
      chart.dispatchEvent(new MouseEvent('mouseenter', { clientX: box.right - 1, clientY: box.top + 9, bubbles: true }));
      chart.dispatchEvent(new MouseEvent('mousemove', { clientX: box.right - 1, clientY: box.top + 9, bubbles: true }));
      return document.querySelector('[data-chart=compare] .u-legend').textContent.includes('3.5')";
    browser.wait("the legend to tell the new step", BOUND, told);

    // Another attempt's steps are another curve.
    elsewhere.0.execute_batch(
        "INSERT INTO attempt (key, trial, name, last_heard_ms, facts_through) VALUES (1000, 1, 't00001-2', 0, 1);
         INSERT INTO report VALUES (1000, 0, 0, 0, 0, 'metric', '{\"name\": \"default\", \"type\": \"intermediate\", \"sequence\": 0, \"value\": 8.25}', 0);
         UPDATE trial SET attempt = 't00001-2' WHERE key = 1;",
    ).unwrap();
    elsewhere.changes(1);
    let again =
        |_: &Value| asked(&browser, "t00001/metrics?").iter().filter(|one| whole(one)).count() == 2;
    trialkeeper_tests::wait_for("the whole curve to be asked for again", BOUND, || {
        again(&Value::Null).then_some(())
    });
}
