//! Pages show times in the time zone of their reader.

use serde_json::json;
use trialkeeper_tests::{Browser, TestBed, WAIT_TIMEOUT, seed};

#[test]
#[ignore = "needs a browser"]
fn times_are_in_the_time_zone_of_their_reader() {
    let browser = Browser::start();
    let bed = TestBed::new();
    seed::create_store(&bed.data_folder(), "small", 4, 5, 2).unwrap();
    let (_serving, url) = bed.serve("small");
    // This zone's offset is not a whole number of hours.
    browser.set_time_zone("Asia/Kolkata");
    for (page, least) in [("/", 1), ("/trials/t00001", 3)] {
        browser.open(&format!("{url}{page}"));
        let ready = "return document.querySelectorAll('time.exact[data-local]').length > 0";
        browser.wait_for(page, WAIT_TIMEOUT, ready);
        // The times on the page, and the expected local times, computed from their attributes.
        let times = browser.run_script(
            "return [...document.querySelectorAll('time.exact')].map((one) => {
               const shifted = new Date(Date.parse(one.dateTime) + 5.5 * 3600e3).toISOString();
               return [one.textContent, shifted.slice(0, 19).replace('T', ' ')];
             });",
        );
        let times = times.as_array().unwrap();
        assert!(times.len() >= least, "{page}: {times:?}");
        for moment in times {
            assert_eq!(moment[0], moment[1], "{page}");
        }
        let zones = browser.run_script(
            "return [...new Set([...document.querySelectorAll('.zone')].map((one) => one.textContent))]",
        );
        assert_eq!(zones, json!(["GMT+5:30"]), "{page}");
    }
}
