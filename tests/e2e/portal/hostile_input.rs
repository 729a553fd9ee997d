//! Hostile or unusual names and values of a real trial in a real browser. They contain markup, control
//! characters, bidirectional overrides and extreme numbers. Pages show them as text and do not become wider
//! than the screen.

use serde_json::{Value, json};
use trialkeeper_tests::{Browser, Search, TestBed, WAIT_TIMEOUT};

const MARKUP: &str = "<img src=x onerror=window.hacked=1><script>window.hacked=1</script>";
/// The first sequence changes the colour of terminals. The bidirectional override makes browsers reverse the
/// following text.
const CONTROL_CHARACTERS: &str = "\u{1b}[31mred\u{7}\u{0}\u{202e}txet\u{2066}\u{85}";

/// A trial that reports curves with such names and values, and prints terminal control sequences.
const TRIAL_SCRIPT: &str = r#"
import json, os, sys
markup, wild = json.loads(sys.argv[1])
def report(kind, sequence, value):
    inner = {"parameter_id": 0, "trial_job_id": os.environ["NNI_TRIAL_JOB_ID"], "type": kind, "sequence": sequence, "value": json.dumps(value)}
    print("NNISDK_MEb'" + json.dumps(inner) + "'", flush=True)
huge = [1e38, 1e308, -1e308, 1e-300, 3.0, float("nan"), float("inf")]
for step, value in enumerate(huge):
    report("PERIODICAL", step, {"default": value, markup: step, wild: 2.0 * step, "__proto__": 1, "x" * 3000: step})
report("FINAL", 0, {"default": 1e308 if os.environ["NNI_TRIAL_SEQ_ID"] == "0" else -1e308, markup: 1})
for stream in sys.stdout, sys.stderr:
    print(markup + wild + " " + "y" * 5000, file=stream)
sys.exit(0)
"#;

/// A script that returns the forbidden effects and the text of a page.
const INSPECT_PAGE: &str = "const wild = /[\\u0000-\\u0008\\u000b-\\u001f\\u007f-\\u009f\\u200e\\u200f\\u202a-\\u202e\\u2066-\\u2069]/;
  return { hacked: window.hacked ?? null, wide: document.documentElement.scrollWidth > innerWidth + 1, images: document.images.length,
    scripts: document.querySelectorAll('main script').length, wild: wild.test(document.body.textContent), text: document.body.textContent };";

#[test]
#[ignore = "needs a browser"]
#[expect(clippy::too_many_lines, reason = "one scenario")]
fn hostile_names_and_values_are_text_on_every_page() {
    let browser = Browser::start();
    let bed = TestBed::new();
    bed.write("code/trial.py", TRIAL_SCRIPT);
    let (name, space) = (format!("{MARKUP}{CONTROL_CHARACTERS}"), |key: &str, values: Value| {
        (key.to_owned(), json!({"_type": "choice", "_value": values}))
    });
    let space: serde_json::Map<String, Value> = [
        space(MARKUP, json!([MARKUP, CONTROL_CHARACTERS])),
        space(CONTROL_CHARACTERS, json!([1, 2])),
        space("__proto__", json!(["a", "b"])),
        space(&"z".repeat(500), json!(["w".repeat(3000), "v"])),
    ]
    .into_iter()
    .collect();
    bed.write("code/words.json", &json!([MARKUP, CONTROL_CHARACTERS]).to_string());
    let command = "python3 trial.py \"$(cat words.json)\"";
    let search =
        Search::new(command, 3).with("experimentName", name).with("searchSpace", space).run(&bed);
    search.expect_done(3, 0);
    let (_serving, url) = bed.serve(&search.id);
    let (one, two) = (&search.trial(0).id, &search.trial(1).id);
    for (path, ready, shows) in [
        ("/".to_owned(), "[data-plot=parallel] canvas", vec![MARKUP]),
        ("/trials?sort=final&order=desc".to_owned(), "tbody tr", vec!["<img src=x"]),
        (
            format!("/trials/{one}"),
            "[data-chart=metrics] canvas",
            vec![MARKUP, "red\u{2407}\u{2400}\u{fffd}txet"],
        ),
        (
            format!("/compare?trial={one}&trial={two}"),
            "[data-plot=compare] canvas",
            vec!["<img src=x"],
        ),
        ("/configuration".to_owned(), "main", vec![MARKUP]),
    ] {
        for width in [360, 1280] {
            browser.set_viewport(width, 900, false);
            browser.open(&format!("{url}{path}"));
            let what = format!("{path} to be loaded");
            // A plot is drawn once it is in view.
            let drawn = format!(
                "document.querySelector('[data-plot=parallel]')?.scrollIntoView(); return document.querySelector('{ready}')"
            );
            browser.wait_for(&what, WAIT_TIMEOUT, &drawn);
            // Opens all details and shows all curves.
            browser.run_script("document.querySelectorAll('details').forEach((one) => { one.open = true; }); document.querySelectorAll('[role=switch][aria-checked=false]').forEach((one) => one.click());");
            let seen = browser.run_script(INSPECT_PAGE);
            for shown in shows.iter().copied() {
                let text = seen["text"].as_str().unwrap();
                assert!(text.contains(shown), "{shown:?} on {path}: {text}");
            }
            for (what, good) in [
                ("hacked", json!(null)),
                ("wide", json!(false)),
                ("images", json!(0)),
                ("scripts", json!(0)),
                ("wild", json!(false)),
            ] {
                assert_eq!(seen[what], good, "{what} on {path} at {width}");
            }
        }
    }
    let messages = browser.console_messages();
    let bad =
        |message: &&String| message.contains("Content Security") || message.contains("Uncaught");
    assert_eq!(messages.iter().find(bad), None);
}

/// A script that draws values. Returns the labels of the axes and the number of the curve's painted pixels.
const DRAW_VALUES: &str = "return import('/assets/charts.js').then(({ draw }) => {
  const figure = document.createElement('figure');
  document.querySelector('main').prepend(figure);
  const marks = [], { fillText } = CanvasRenderingContext2D.prototype;
  CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) { marks.push(text); return fillText.call(this, text, ...rest); };
  const [places, values] = arguments[0];
  draw(figure, [{ label: 'loss', stroke: '#ff0000', width: 2 }], [places, values], { x: 'step' });
  return new Promise((done) => setTimeout(done, 50)).then(() => {
    CanvasRenderingContext2D.prototype.fillText = fillText;
    const canvas = figure.querySelector('canvas');
    const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
    let painted = 0;
    for (let at = 0; at < data.length; at += 4) if (data[at] > 200 && data[at + 1] < 60 && data[at + 3] > 200) painted += 1;
    figure.remove();
    return { marks, painted };
  });
});";

#[test]
#[ignore = "needs a browser"]
fn numbers_of_any_size_have_an_axis_and_a_curve() {
    let browser = Browser::start();
    let bed = TestBed::new();
    trialkeeper_tests::seed::create_store(&bed.data_folder(), "small", 3, 3, 10).unwrap();
    let (_serving, url) = bed.serve("small");
    browser.set_viewport(1280, 900, false);
    // The page of a trial loads the library of the curves.
    browser.open(&format!("{url}/trials"));
    browser.wait_for(
        "the trials",
        WAIT_TIMEOUT,
        "return document.querySelector('tbody a[href*=\"/trials/\"]')",
    );
    browser.run_script("document.querySelector('tbody a[href*=\"/trials/\"]').click()");
    browser.wait_for("the curves", WAIT_TIMEOUT, "return typeof uPlot !== 'undefined'");
    let few = json!([0, 1, 2]);
    for (places, values, mark) in [
        (&few, json!([0.1, 0.2, 0.3]), "0.2"),
        (&few, json!([1e37, 5e37, 1e38]), "6e37"),
        (&few, json!([1e308, -1e308, 1.0]), "-1e308"),
        (&few, json!([1.797e308, 1.0, 0.0]), "1e308"),
        (&few, json!([1e308, null, 1e308]), "1e308"),
        (&few, json!([1e-310, 5e-310, 9e-310]), "4e-310"),
        (&few, json!([1e-40, 5e-40, 9e-40]), "4e-40"),
        // Adjacent floating-point numbers.
        (&few, json!([1e17, 100_000_000_000_000_016.0_f64, 1e17]), "1e17"),
        (&json!([1.7e18, 1.7e18 + 256.0, 1.7e18 + 512.0]), json!([1, 2, 3]), "2"),
        (&json!([0, 1e12, 2e12]), json!([1, 2, 3]), "1,000,000,000,000"),
    ] {
        let data = json!([places, values]);
        let drawn = browser.run_script(&DRAW_VALUES.replace("arguments[0]", &data.to_string()));
        let marks: Vec<String> = serde_json::from_value(drawn["marks"].clone()).unwrap();
        assert!(marks.iter().any(|text| text == mark), "{mark} for {data}: {marks:?}");
        assert!(marks.len() < 60, "{data}: {marks:?}");
        assert!(drawn["painted"].as_u64() > Some(20), "{data}: {drawn}");
    }
}
