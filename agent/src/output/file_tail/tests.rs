use std::fs::OpenOptions;
use std::io::Write;

use super::*;

fn append(path: &Path, bytes: &[u8]) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let mut file = OpenOptions::new().create(true).append(true).open(path).unwrap();
    file.write_all(bytes).unwrap();
}

fn summarized(found: &mut Vec<Finding>) -> Vec<String> {
    let summarize = |finding: Finding| match finding {
        Finding::Metric(found) => format!("{}={}", found.name, found.value.as_json()),
        Finding::Unreadable { why, .. } => format!("!{why}"),
    };
    found.drain(..).map(summarize).collect()
}

#[test]
fn a_file_is_read_from_the_last_offset() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    let mut tail = FileTail::new(&path);
    let mut buffer = vec![1];
    let mut read = |tail: &mut FileTail| {
        let progress = tail.read(&mut buffer).unwrap();
        (buffer.clone(), progress.replaced, progress.more)
    };

    assert_eq!(read(&mut tail), (vec![], false, false), "absent");
    append(&path, b"one");
    assert_eq!(read(&mut tail), (b"one".to_vec(), false, false));
    assert_eq!(read(&mut tail), (vec![], false, false), "nothing new");
    append(&path, b"two");
    assert_eq!(read(&mut tail), (b"two".to_vec(), false, false));
    fs::write(&path, b"x").unwrap();
    assert_eq!(read(&mut tail), (b"x".to_vec(), true, false), "truncated and rewritten");
    let other = dir.path().join("other");
    fs::write(&other, b"other file").unwrap();
    fs::rename(&other, &path).unwrap();
    assert_eq!(read(&mut tail), (b"other file".to_vec(), true, false), "replaced");
    fs::remove_file(&path).unwrap();
    assert_eq!(read(&mut tail), (vec![], false, false), "removed");
}

#[test]
fn a_large_file_is_read_in_portions() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    let portion = usize::try_from(PORTION_BYTES).unwrap();
    fs::write(&path, vec![7; 2 * portion + 1]).unwrap();
    let mut tail = FileTail::new(&path);
    let mut buffer = Vec::new();
    let sizes = [(); 3].map(|()| {
        let progress = tail.read(&mut buffer).unwrap();
        (buffer.len(), progress.more)
    });
    assert_eq!(sizes, [(portion, true), (portion, true), (1, false)]);
}

#[test]
fn paths_that_are_no_files_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let pipe = dir.path().join("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    for path in [Path::new("/dev/null"), &pipe, dir.path()] {
        assert!(FileTail::new(path).read(&mut Vec::new()).is_err(), "{}", path.display());
    }
}

#[test]
fn every_kind_of_file_is_followed() {
    let dir = tempfile::tempdir().unwrap();
    let (metrics, lines) = (dir.path().join(".nni/metrics"), dir.path().join("log.jsonl"));
    let events = dir.path().join("runs/a/events.out.tfevents.1.host");
    let files = FileSpec {
        metric_file: Some(metrics.clone()),
        line_files: vec![lines.clone()],
        event_dirs: vec![dir.path().join("runs")],
    };
    let mut collectors = FileCollectors::new(&CollectSpec::default(), files);
    let mut found = Vec::new();
    collectors.poll(&mut found);
    assert_eq!(summarized(&mut found), [""; 0]);

    let record = include_bytes!("../../../fixtures/sdk/local.metrics.bin");
    let scalars = include_bytes!("../../../fixtures/tfevents/tensorboardx.bin");
    append(&metrics, &record[..120]);
    append(&lines, b"{\"acc\": 0.5}\n{\"acc\"");
    append(&events, &scalars[..100]);
    append(&dir.path().join("runs/a/notes.txt"), b"no event file");
    collectors.poll(&mut found);
    assert_eq!(summarized(&mut found), ["default=0.5", "acc=0.5", "train/loss=1.0"]);

    append(&metrics, &record[120..279]);
    append(&lines, b": 0.75}");
    append(&events, &scalars[100..150]);
    collectors.poll(&mut found);
    assert_eq!(summarized(&mut found).len(), 2);

    append(&lines, b"");
    collectors.finish(&mut found);
    assert_eq!(summarized(&mut found), ["acc=0.75"]);
}

#[test]
fn a_replaced_file_is_read_from_its_beginning() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("log");
    let files = FileSpec { line_files: vec![path.clone()], ..FileSpec::default() };
    let mut collectors = FileCollectors::new(&CollectSpec::default(), files);
    let mut found = Vec::new();
    append(&path, b"acc=0.5\nacc=0.75");
    collectors.poll(&mut found);
    fs::write(&path, b"acc=1\n").unwrap();
    collectors.poll(&mut found);
    assert_eq!(summarized(&mut found), ["acc=0.5", "acc=0.75", "acc=1"]);
}

#[test]
fn earlier_records_are_skipped_and_later_ones_read() {
    let dir = tempfile::tempdir().unwrap();
    let scalars = include_bytes!("../../../fixtures/tfevents/tensorboardx.bin");
    let (lines, runs) = (dir.path().join("log"), dir.path().join("runs"));
    let (log, event) = (lines.clone(), |name: &str| runs.join(format!("{name}.tfevents")));
    let files =
        FileSpec { line_files: vec![log], event_dirs: vec![runs.clone()], ..FileSpec::default() };
    append(&lines, b"acc=0.5\n");
    for old in 0..2 * MAX_EARLIER_EVENT_FILES {
        append(&event(&format!("{old:04}")), scalars);
    }
    let mut collectors = FileCollectors::new(&CollectSpec::default(), files);
    collectors.skip();
    let mut found = Vec::new();
    collectors.poll(&mut found);
    assert_eq!(summarized(&mut found), [""; 0], "nothing new");

    append(&lines, b"acc=0.75\n");
    append(&event(&format!("{:04}", 2 * MAX_EARLIER_EVENT_FILES - 1)), &scalars[..100]);
    append(&event("new"), &scalars[..100]);
    collectors.poll(&mut found);
    assert_eq!(summarized(&mut found), ["acc=0.75", "train/loss=1.0", "train/loss=1.0"]);

    for more in 0..MAX_EVENT_FILES {
        append(&event(&format!("z{more:04}")), &scalars[..100]);
    }
    collectors.poll(&mut found);
    let findings = summarized(&mut found);
    assert_eq!(findings.len(), 1 + MAX_EVENT_FILES - MAX_EARLIER_EVENT_FILES - 1);
    assert!(findings[0].starts_with("!of more than 1024 event files"), "{}", findings[0]);
    collectors.poll(&mut found);
    assert_eq!(found.len(), 0, "reported once");
}

#[test]
fn a_file_rewritten_in_place_is_read_from_its_beginning() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("metrics.json");
    let files = FileSpec { line_files: vec![path.clone()], ..FileSpec::default() };
    let earlier = "{\"acc\": 0.1}";
    fs::write(&path, earlier).unwrap();
    let mut collectors = FileCollectors::new(&CollectSpec::default(), files);
    collectors.skip();
    let mut found = Vec::new();
    #[rustfmt::skip]
    let table: [(&str, &str, &[&str]); 7] = [
        ("what was there",     earlier,                  &[]),
        ("of the same length", "{\"acc\": 0.2}",         &[]),
        ("the same again",     "{\"acc\": 0.2}",         &[]),
        ("longer",             "{\"acc\": 0.25}",        &["acc=0.2"]),
        ("of the same length", "{\"acc\": 0.35}",        &["acc=0.25"]),
        ("shorter",            "{\"acc\": 4}\n",         &["acc=0.35", "acc=4"]),
        ("grown",              "{\"acc\": 4}\nacc=5\n",  &["acc=5"]),
    ];
    for (case, text, expected) in table {
        fs::write(&path, text).unwrap();
        collectors.poll(&mut found);
        assert_eq!(summarized(&mut found), expected, "{case}: {text}");
    }
    let long = "#".repeat(1_000);
    for (text, expected) in
        [(format!("{long}\nacc=6\n"), "acc=6"), (format!("{long}\nacc=7\n"), "acc=7")]
    {
        fs::write(&path, text).unwrap();
        collectors.poll(&mut found);
        assert_eq!(summarized(&mut found), [expected]);
    }
}

#[test]
fn one_tag_in_two_folders_is_two_metrics() {
    let dir = tempfile::tempdir().unwrap();
    let scalars = include_bytes!("../../../fixtures/tfevents/tensorboardx.bin");
    let files = FileSpec { event_dirs: vec![dir.path().to_owned()], ..FileSpec::default() };
    let mut collectors = FileCollectors::new(&CollectSpec::default(), files);
    let mut found = Vec::new();
    for name in ["train/1.tfevents", "validation/1.tfevents", "train/2.tfevents"] {
        append(&dir.path().join(name), scalars);
    }
    collectors.poll(&mut found);
    let findings = summarized(&mut found);
    let count = |name: &str| findings.iter().filter(|finding| finding.starts_with(name)).count();
    assert_eq!((count("accuracy="), count("validation/accuracy=")), (4, 2), "{findings:?}");
}

#[test]
fn the_search_for_event_files_is_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let deepest = dir.path().join("1/2/3/x.tfevents");
    append(&deepest, b"");
    append(&dir.path().join("1/2/3/4/x.tfevents"), b"");
    std::os::unix::fs::symlink(dir.path(), dir.path().join("1/circle")).unwrap();
    let mut paths = Vec::new();
    append_event_files(dir.path(), MAX_EVENT_DIR_DEPTH, &mut paths);
    assert_eq!(paths, [deepest]);
}
