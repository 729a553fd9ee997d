//! A line of ten megabytes full of terminal control sequences and markup. The page shows a limited part of it
//! as text, both live and afterwards.

use rusqlite::{Connection, params};
use serde_json::json;
use trialkeeper_tests::{Browser, Search, TestBed, WAIT_TIMEOUT, seed};

/// Text that neither terminals nor browsers may interpret.
const HOSTILE_TEXT: &str = "<img src=x onerror=window.hacked=1></pre><script>window.hacked=1</script>\u{1b}[31m\u{1b}]0;title\u{7}\0\u{8}\u{202e}\u{2066}\u{200f}\u{85}";

/// Returns a line of ten megabytes that ends with `word`.
fn long_line(word: &str) -> String {
    format!("{}{word}\n", HOSTILE_TEXT.repeat(10_000_000 / HOSTILE_TEXT.len()))
}

/// Waits until the page shows `word`. Checks that its text is harmless, and returns the number of characters.
fn wait_for_word(browser: &Browser, word: &str) -> usize {
    let text = "document.getElementById('log-stdout').textContent";
    browser.wait_for(
        &format!("the page to show {word}"),
        WAIT_TIMEOUT,
        &format!("return {text}.includes({})", json!(word)),
    );
    let text = browser.run_script(&format!("return {text}"));
    let text = text.as_str().unwrap();
    assert!(
        text.contains("<img src=x onerror=window.hacked=1></pre><script>"),
        "the markup is not shown as text"
    );
    let is_invisible =
        |c: char| c.is_control() && c != '\n' || "\u{202e}\u{2066}\u{200f}".contains(c);
    assert_eq!(text.chars().find(|c| is_invisible(*c)), None);
    assert_eq!(
        browser.run_script("return window.hacked ?? null"),
        json!(null),
        "a script in the output was run"
    );
    text.chars().count()
}

#[test]
#[ignore = "needs a browser"]
fn a_long_line_is_cut_and_later_lines_are_shown() {
    let browser = Browser::start();
    let bed = TestBed::new();
    bed.write("code/line", &long_line("FIRST"));
    let outcome = Search::new("cat line; echo score=1", 1).run(&bed);
    outcome.expect_done(1, 0);
    let (_serving, url) = bed.serve(&outcome.id);
    browser.set_viewport(1280, 900, false);
    browser.open(&format!("{url}/trials/{}", outcome.trials[0].id));
    let whole = "return document.getElementById('log-stdout').textContent.includes(' bytes cut]')";
    browser.wait_for("the note about the cut line", WAIT_TIMEOUT, whole);
    assert!(wait_for_word(&browser, "score=1") < 20_000);
}

#[test]
#[ignore = "needs a browser"]
fn a_page_handles_ten_stored_and_ten_live_megabytes() {
    let browser = Browser::start();
    let bed = TestBed::new();
    seed::create_store(&bed.data_folder(), "small", 3, 3, 10).unwrap();
    let store = Connection::open(bed.data_folder().join("small/trialkeeper.db")).unwrap();
    let mut end: i64 = store
        .query_row(
            "SELECT offset_bytes + length(bytes) FROM log_chunk WHERE attempt = 1",
            [],
            |row| row.get(0),
        )
        .unwrap();
    let mut prints = |text: String, seq: i64| {
        let insert = "INSERT INTO log_chunk (trial, attempt, seq, stream, offset_bytes, observed_at_ms, bytes) VALUES (1, 1, ?, 'stdout', ?, 0, ?)";
        let size = i64::try_from(text.len()).unwrap();
        store.execute(insert, params![seq, end, text.into_bytes()]).unwrap();
        end += size;
    };
    store
        .execute("UPDATE trial SET state = 'RUNNING', ended_at_ms = NULL WHERE key = 1", [])
        .unwrap();
    prints(long_line("FIRST"), 100);
    let (_serving, url) = bed.serve("small");
    browser.set_viewport(1280, 900, false);
    browser.open(&format!("{url}/trials/t00001"));
    assert!(
        wait_for_word(&browser, "FIRST\n") < 70_000,
        "the page shows more than the end of the stored output"
    );
    let first = browser.transferred_bytes();
    assert!((10_000.0..1_500_000.0).contains(&first), "{first} bytes");

    // The page stays responsive during live output, and drops old text.
    prints(long_line("SECOND"), 101);
    assert!(wait_for_word(&browser, "SECOND\n") < 600_000, "the page does not drop old text");
    let nodes =
        browser.run_script("return document.getElementById('log-stdout').childNodes.length");
    assert!(nodes.as_u64().unwrap() < 100, "{nodes}");
}
