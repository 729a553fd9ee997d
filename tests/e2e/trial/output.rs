//! Unusual output of trials is preserved byte for byte, and its metrics are found.

use std::fs;

use serde_json::{Value, json};
use trialkeeper_tests::{Search, TestBed};

#[test]
fn unusual_output_is_preserved_and_its_metrics_are_found() {
    let long = 10 * 1024 * 1024;
    let long_line = [vec![b'x'; long], b"\nscore=0.5\n".to_vec()].concat();
    #[rustfmt::skip]
    let table: [(&str, String, Vec<u8>, Value); 9] = [
        ("invalid UTF-8",        r"printf '\377\376 score=\300\nscore=0.5\n'".into(),      b"\xff\xfe score=\xc0\nscore=0.5\n".to_vec(), json!(0.5)),
        ("NUL bytes",            r"printf 'a\0b\nscore=0.5\n'".into(),                     b"a\0b\nscore=0.5\n".to_vec(), json!(0.5)),
        ("a 10 MB line",         format!("head -c {long} /dev/zero | tr '\\0' x; printf '\\nscore=0.5\\n'"), long_line, json!(0.5)),
        ("no final newline",     "printf score=0.5".into(),                                b"score=0.5".to_vec(), json!(0.5)),
        ("an apostrophe",        r#"echo "it's {score=0.5}"; echo "it's score=0.25""#.into(), b"it's {score=0.5}\nit's score=0.25\n".to_vec(), json!(0.25)),
        ("NaN",                  "echo score=0.5; echo score=NaN".into(),                  b"score=0.5\nscore=NaN\n".to_vec(), json!("NaN")),
        ("infinity",             "echo '{\"score\": -Infinity}'".into(),                   b"{\"score\": -Infinity}\n".to_vec(), json!("-Infinity")),
        ("two final results",    r#"echo '{"type": "final", "score": 1}'; echo '{"type": "final", "score": 2}'"#.into(), b"{\"type\": \"final\", \"score\": 1}\n{\"type\": \"final\", \"score\": 2}\n".to_vec(), json!(1)),
        ("carriage returns",     r"printf 'score=0.1\rscore=0.5\r\n'".into(),              b"score=0.1\rscore=0.5\r\n".to_vec(), json!(0.5)),
    ];
    for (case, command, printed, result) in table {
        let bed = TestBed::new();
        let search = Search::new(&command, 1).run(&bed);
        search.expect_done(1, 0);
        let folder = bed.data_folder().join(&search.id).join(&search.trial(0).id);
        let kept = fs::read(folder.join("stdout")).unwrap();
        assert!(kept == printed, "{case}: {} bytes kept of {}", kept.len(), printed.len());
        assert_eq!(search.trial(0).final_result, result, "{case}");
        assert!(!search.stderr.contains("panicked"), "{case}: {}", search.stderr);
    }
}

#[test]
fn an_sdk_line_with_an_apostrophe_and_two_final_results_is_read() {
    let bed = TestBed::new();
    bed.write(
        "code/lines",
        r#"NNISDK_MEb'{"parameter_id": 0, "trial_job_id": "t", "type": "PERIODICAL", "sequence": 0, "value": "{\"default\": 0.5, \"note\": \"it's\"}"}'
NNISDK_MEb'{"parameter_id": 0, "trial_job_id": "t", "type": "FINAL", "sequence": 0, "value": "NaN"}'
NNISDK_MEb'{"parameter_id": 0, "trial_job_id": "t", "type": "FINAL", "sequence": 0, "value": "0.75"}'
"#,
    );
    let search = Search::new("cat lines", 1).run(&bed);
    search.expect_done(1, 0);
    assert_eq!(search.trial(0).intermediate, [json!({"default": 0.5, "note": "it's"})]);
    assert_eq!(search.trial(0).final_result, json!("NaN"));
}

#[test]
fn stderr_is_separate_and_has_no_metrics() {
    let bed = TestBed::new();
    let search = Search::new("echo score=1; echo score=2 >&2", 1).run(&bed);
    search.expect_done(1, 0);
    let folder = bed.data_folder().join(&search.id).join(&search.trial(0).id);
    assert_eq!(fs::read_to_string(folder.join("stdout")).unwrap(), "score=1\n");
    assert_eq!(fs::read_to_string(folder.join("stderr")).unwrap(), "score=2\n");
    assert_eq!(search.trial(0).intermediate, [json!(1)]);
}

#[test]
fn the_metric_is_chosen_among_printed_settings_and_named() {
    let bed = TestBed::new();
    bed.write_script(
        "code/train.sh",
        "#!/bin/sh\necho \"INFO lr=$1 batch_size=32 device=0\"\n\
         echo 'Epoch 1/10 loss: 0.53 acc: 0.8'\necho 'val_acc: 0.91'\necho \"lr=$1\"\n",
    );
    let outcome = Search::new("./train.sh {{x}}", 2).run(&bed);
    outcome.expect_done(2, 0);
    for trial in &outcome.trials {
        assert_eq!(trial.final_result, json!(0.91), "{trial:?}");
    }
    let count = outcome.stderr.matches("\"val_acc\" was chosen as the result").count();
    assert_eq!(count, 1, "not exactly one message: {}", outcome.stderr);
}
