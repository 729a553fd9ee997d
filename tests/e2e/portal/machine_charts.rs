//! The machine charts of a trial's page in a real browser: memory, utilization, GPU memory and power.

use std::path::PathBuf;

use serde_json::{Value, json};
use trialkeeper_tests::{Browser, TestBed, WAIT_TIMEOUT, seed};

/// A script that returns the name of each machine chart, its legend, and the number of painted pixels per
/// curve.
const READ_CHARTS: &str = "const strokes = ['#2f7fd6', '#d9762b', '#3a9b5c'].map((text) => [1, 3, 5].map((at) => parseInt(text.slice(at, at + 2), 16)));
  return [...document.querySelectorAll('.machine figure')].filter((one) => !one.hidden && one.querySelector('canvas')).map((one) => {
    const canvas = one.querySelector('canvas');
    const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
    const painted = strokes.map((stroke) => { let count = 0;
      for (let at = 0; at < data.length; at += 4) if (stroke.every((part, of) => data[at + of] === part)) count += 1;
      return count; });
    return [one.dataset.chart, [...one.querySelectorAll('.u-series th')].slice(1).map((name) => name.textContent), painted];
  });";

#[test]
#[ignore = "needs a browser"]
fn gpus_are_drawn_on_the_page_of_a_trial() {
    let browser = Browser::start();
    let bed = TestBed::new();
    seed::create_store(&bed.data_folder(), "small", 3, 40, 10).unwrap();
    let (_serving, url) = bed.serve("small");
    let pictures = std::env::var_os("TRIALKEEPER_TEST_PICTURES").map(PathBuf::from);
    let expected = json!([
        ["memory", ["processes", "container", "limit"]],
        ["load", ["GPU 0", "GPU 1", "processor, % of one core"]],
        ["gpu-memory", ["GPU 0", "GPU 1", "memory of one GPU"]],
        ["power", ["GPU 0", "GPU 1"]],
    ]);
    for (width, height) in [(360, 3000), (1280, 2600)] {
        for dark in [false, true] {
            browser.set_viewport(width, height, dark);
            browser.open(&format!("{url}/trials/t00001"));
            let drawn = "return document.querySelectorAll('.machine canvas').length === 4";
            browser.wait_for("the charts of the machine", WAIT_TIMEOUT, drawn);
            let charts = browser.run_script(READ_CHARTS);
            let charts = charts.as_array().unwrap();
            let named: Vec<Value> = charts.iter().map(|one| json!([one[0], one[1]])).collect();
            assert_eq!(json!(named), expected, "at {width}");
            for chart in charts {
                let curves = chart[1].as_array().unwrap().len();
                for painted in &chart[2].as_array().unwrap()[..curves] {
                    assert!(painted.as_u64() > Some(20), "{chart} at {width}");
                }
            }
            if let Some(folder) = &pictures {
                let theme = if dark { "dark" } else { "light" };
                browser.screenshot(&folder.join(format!("machine-{width}-{theme}.png")));
            }
        }
    }
}
