use proptest::prelude::*;

use super::*;

fn find(fixture: &str) -> Option<CgroupReader> {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/cgroup");
    CgroupReader::find(&Path::new(root).join(fixture))
}

#[test]
fn every_layout_is_read() {
    #[rustfmt::skip]
    let table = vec![
        ("v2, a pod's container", "v2-container", CgroupSample {
            memory_bytes: Some(402_653_184),
            memory_limit_bytes: Some(536_870_912),
            memory_peak_bytes: Some(520_093_696),
            cpu_limit_cores: Some(1.5),
            cpu_usage_us: Some(81_223_456),
            cpu_throttled_us: Some(1_234_567),
            memory_pressure_percent: Some(3.27),
            cpu_pressure_percent: Some(41.5),
            io_pressure_percent: Some(0.0),
            oom_events: Some(2),
            oom_kills: Some(1),
            ..CgroupSample::default()
        }),
        ("v2, a session of a desktop, limited by its slice", "v2-session", CgroupSample {
            memory_bytes: Some(1_048_576),
            memory_limit_bytes: Some(8_589_934_592),
            cpu_limit_cores: Some(4.0),
            cpu_usage_us: Some(500_000),
            oom_events: Some(0),
            oom_kills: Some(0),
            ..CgroupSample::default()
        }),
        ("v1, a Docker container", "v1-container", CgroupSample {
            memory_bytes: Some(104_857_600),
            memory_limit_bytes: Some(268_435_456),
            memory_peak_bytes: Some(268_435_456),
            cpu_limit_cores: Some(0.5),
            cpu_usage_us: Some(7_654_321),
            cpu_throttled_us: Some(2_500),
            oom_kills: Some(3),
            ..CgroupSample::default()
        }),
        ("v1 without limits, an old kernel", "v1-unlimited", CgroupSample {
            memory_bytes: Some(23_977_984),
            memory_peak_bytes: Some(30_000_000),
            cpu_throttled_us: Some(0),
            ..CgroupSample::default()
        }),
    ];
    for (case, fixture, expected) in table {
        assert_eq!(find(fixture).expect(case).read(), expected, "{case}");
    }
}

#[test]
fn page_cache_is_not_held() {
    #[rustfmt::skip]
    let table = [
        ("v2-container", Some(402_653_184 - 100_000_000 - 2_653_184)),
        ("v2-session",   None),
        ("v1-container", Some(104_857_600 - 50_000_000 - 857_600)),
    ];
    for (fixture, held) in table {
        assert_eq!(find(fixture).unwrap().working_set(), held, "{fixture}");
    }
}

#[test]
fn a_machine_without_control_groups_has_no_reader() {
    let empty = tempfile::tempdir().unwrap();
    assert_eq!(CgroupReader::find(empty.path()), None);
}

#[test]
fn shares_are_of_the_limit() {
    let limited = find("v2-container").unwrap().read();
    assert_eq!(memory_percent(&limited), Some(75.0));
    let later = CgroupSample {
        cpu_usage_us: limited.cpu_usage_us.map(|us| us + 750_000),
        ..limited.clone()
    };
    assert_eq!(cpu_percent(&limited, &later, 1_000_000), Some(50.0));
    assert_eq!(cpu_percent(&later, &limited, 1_000_000), None);
    assert_eq!(cpu_percent(&limited, &later, 0), None);
    assert_eq!(memory_percent(&find("v1-unlimited").unwrap().read()), None);
}

#[test]
fn the_groups_of_a_process_are_parsed() {
    let own = parse_process_cgroups(
        "4:memory:/docker/abc\n2:cpu,cpuacct:/x:y\n0::/user.slice\nnonsense\n",
    );
    assert_eq!(own.v2.as_deref(), Some("/user.slice"));
    assert_eq!(own.v1("memory"), Some("/docker/abc"));
    assert_eq!(own.v1("cpuacct"), Some("/x:y"));
    assert_eq!(own.v1("blkio"), None);
}

#[test]
fn single_files_are_parsed_or_ignored() {
    #[rustfmt::skip]
    let cpu = [("200000 100000\n", Some(2.0)), ("max 100000\n", None), ("100 0", None), ("x", None), ("", None)];
    for (text, expected) in cpu {
        assert_eq!(parse_cpu_max(text), expected, "{text:?}");
    }
    #[rustfmt::skip]
    let pressure = [
        ("some avg10=1.50 avg60=0.00 avg300=0.00 total=9\nfull avg10=9.00 avg60=0 avg300=0 total=0\n", Some(1.5)),
        ("full avg10=9.00\n", None),
        ("some avg10=NaN\n", None),
        ("", None),
    ];
    for (text, expected) in pressure {
        assert_eq!(parse_pressure(text), expected, "{text:?}");
    }
    assert_eq!(number_after_key("oom_kill_disable 0\noom 4\noom_kill 3\n", "oom_kill"), Some(3));
    assert_eq!(number_after_key("oom_kill_disable 0\n", "oom_kill"), None);
}

#[test]
fn this_machine_is_read_without_failing() {
    if let Some(reader) = CgroupReader::find(Path::new("/")) {
        let sample = reader.read();
        assert!(sample.memory_bytes != Some(0), "{sample:?}");
    }
}

proptest! {
    #[test]
    fn random_cgroup_files_never_panic(text: String) {
        parse_process_cgroups(&text);
        parse_cpu_max(&text);
        parse_pressure(&text);
        number_after_key(&text, "oom");
    }

    #[test]
    fn a_random_path_never_leaves_the_mount(path in "[/.a]{0,12}") {
        let mount = tempfile::tempdir().unwrap();
        std::fs::write(mount.path().join("file"), "1").unwrap();
        let found = find_group_dir(mount.path(), Some(&path), "file");
        prop_assert!(found.is_none_or(|found| found.starts_with(mount.path())));
    }
}
