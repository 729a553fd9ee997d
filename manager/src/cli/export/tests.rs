use serde_json::json;

use super::*;
use crate::view::export::defuse_formula;

fn trials() -> Vec<Trial> {
    let metric = |kind: &str, step: u64, value: Value| json!({"name": "a/cc", "type": kind, "step": step, "value": value, "observed_at_ms": 5});
    let object = json!({"name": "default", "type": "intermediate", "step": 1, "value": {"acc": 0.5, "loss": 2}, "observed_at_ms": 6});
    vec![
        (
            json!({"id": "t", "sequence": 0, "state": "SUCCEEDED", "final": 0.5, "created_at_ms": 1000,
                   "parameters": {"act": "re,\"lu", "layer": {"size": 3}}}),
            vec![metric("intermediate", 0, json!(0.25)), metric("final", 0, json!("NaN")), object],
        ),
        (json!({"id": "u", "sequence": 1, "state": "FAILED", "parameters": {"..": 1}}), vec![]),
    ]
}

#[test]
fn csv_has_a_line_per_trial() {
    let expected = "sequence,id,state,final,latest,latest_step,started_at_ms,ended_at_ms,cause,\
                    parameters.act,parameters.layer.size,parameters...\r\n\
                    0,t,SUCCEEDED,0.5,,,,,,\"re,\"\"lu\",3,\r\n\
                    1,u,FAILED,,,,,,,,,1\r\n";
    let trials: Vec<_> = trials().into_iter().map(|(trial, _)| trial).collect();
    assert_eq!(trials_csv(&trials), expected);
}

#[test]
fn the_origin_of_a_trial_has_columns_only_if_it_is_recorded() {
    let mut trials: Vec<_> = trials().into_iter().map(|(trial, _)| trial).collect();
    trials[0]["git_branch"] = json!("=topic");
    trials[0]["git_dirty"] = json!(false);
    trials[1]["host"] = json!("node-1");
    let text = trials_csv(&trials);
    let rows: Vec<_> = text.lines().collect();
    assert!(rows[0].ends_with("parameters...,host,git_branch,git_dirty"), "{text}");
    assert!(rows[1].ends_with(",,'=topic,false") && rows[2].ends_with(",node-1,,"), "{text}");
}

#[test]
fn a_spreadsheet_never_reads_a_text_as_a_formula() {
    #[rustfmt::skip]
    let table = [
        ("=HYPERLINK(\"http://x\")", "'=HYPERLINK(\"http://x\")"), ("@SUM(A1)", "'@SUM(A1)"), ("-O2", "'-O2"),
        ("+cmd|' /C calc'!A0", "'+cmd|' /C calc'!A0"), ("\t=1", "'\t=1"), ("\r=1", "'\r=1"),
        ("\n=1+1", "'\n=1+1"), (" =1+1", "' =1+1"), ("\u{a0}\r\n@SUM(A1)", "'\u{a0}\r\n@SUM(A1)"), ("\0=1", "'\0=1"),
        ("a\n=1", "a\n=1"), ("\nrelu", "\nrelu"),
        ("-0.5", "-0.5"), ("+1e-4", "+1e-4"), ("-Infinity", "-Infinity"), ("relu", "relu"), ("", ""),
    ];
    for (text, shown) in table {
        assert_eq!(defuse_formula(text.to_owned()), shown);
    }
    let trial =
        json!({"id": "t", "sequence": 0, "final": "=1+1", "parameters": {"a": "=1+1", "b": -1}});
    let text = trials_csv(&[trial]);
    assert!(text.ends_with(",,,,,'=1+1,-1\r\n") && text.contains("0,t,,'=1+1,"), "{text}");
}

#[test]
fn no_two_names_share_a_file() {
    #[rustfmt::skip]
    let table = [
        ("acc", "acc"), ("val_acc", "val_acc"), ("a/b", "a_u2f_b"), ("a_b", "a_b"), ("a:b", "a_u3a_b"), ("\u{e9}", "_ue9_"),
        ("a_u2f_b", "a_u5f_u2f_b"), ("_u", "_u"), ("", "_u_"), ("_u_", "_u5f_u_"), ("..", "_u2e_."), (" x", "_u20_x"), ("_use_", "_use_"),
        ("_ue_", "_u5f_ue_"),
    ];
    for (name, file) in table {
        assert_eq!(file_name(name), file, "{name:?}");
    }
    let long = |last: &str| format!("{}{last}", "x".repeat(300));
    let files = [file_name(&long("a")), file_name(&long("b"))];
    assert!(files[0] != files[1] && files[0].len() < 250, "{files:?}");
    let curves = [
        ("acc", true),
        ("acc.final", false),
        ("acc.final", true),
        ("acc_final", false),
        ("acc_u2e_final", false),
    ];
    let files = curves.map(|(name, is_final)| curve_name(name, is_final));
    assert_eq!(
        files,
        ["acc.final", "acc_u2e_final", "acc.final.final", "acc_final", "acc_u5f_u2e_final"]
    );
}

#[test]
fn a_file_gets_its_name_when_it_is_complete() {
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("all.json");
    for trials in [trials(), vec![]] {
        fs::write(&to, "before").unwrap();
        let mut writer = Writer::new(ExportForm::Json, Some(&to)).unwrap();
        for trial in &trials {
            writer.add(trial).unwrap();
        }
        assert_eq!(fs::read_to_string(&to).unwrap(), "before");
        writer.finish().unwrap();
        let whole = trials.iter().map(|(trial, metrics)| {
            let mut trial = trial.clone();
            trial["metrics"] = json!(metrics);
            trial
        });
        let whole = format!("{:#}\n", whole.collect::<Value>());
        assert_eq!(fs::read_to_string(&to).unwrap(), whole);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}

#[test]
fn an_export_writes_only_within_its_folder() {
    let folder = tempfile::tempdir().unwrap();
    for (form, name) in [(ExportForm::Mlflow, "m"), (ExportForm::Tensorboard, "t")] {
        let to = folder.path().join(name);
        let mut writer = Writer::new(form, Some(&to)).unwrap();
        for trial in &trials() {
            writer.add(trial).unwrap();
        }
        writer.finish().unwrap();
        assert!(matches!(Writer::new(form, Some(&to)), Err(Error::Exists(_))));
        assert!(matches!(Writer::new(form, None), Err(Error::NeedsFolder)));
    }
    let runs = fs::read_dir(folder.path().join("m/0")).unwrap().flatten();
    let runs: Vec<_> = runs.map(|run| run.path()).filter(|path| path.is_dir()).collect();
    assert_eq!(runs.len(), 2);
    let metric = runs.iter().find_map(|run| fs::read_to_string(run.join("metrics/a_u2f_cc")).ok());
    assert_eq!(metric.as_deref(), Some("5 0.25 0\n"));
    assert!(runs.iter().any(|run| run.join("params/_u2e_.").exists()));
    // Each number of an object is a curve.
    for (name, line) in [("acc", "6 0.5 1\n"), ("loss", "6 2 1\n")] {
        let found =
            runs.iter().find_map(|run| fs::read_to_string(run.join("metrics").join(name)).ok());
        assert_eq!(found.as_deref(), Some(line), "{name}");
    }
    let events =
        fs::read(folder.path().join("t/00000-t/events.out.tfevents.1.trialkeeper")).unwrap();
    // The first record has 26 bytes of data.
    assert_eq!(events[..8], 26_u64.to_le_bytes());
    for part in [b"brain.Event:2".as_slice(), b"\x03acc", b"\x04loss"] {
        assert!(events.windows(part.len()).any(|window| window == part), "{part:?}");
    }
}
