use proptest::prelude::*;

use super::*;

const INTERVAL: Duration = Duration::from_secs(5);

const H200: &str =
    "0, GPU-5f0c, 97, 120000, 143771, 512.31, 700.00, 61, 1980, 0, Disabled, NVIDIA H200";

fn reading(line: &str) -> GpuSample {
    match parse_row(line) {
        ProbeRow::Reading(sample) => sample,
        ProbeRow::Lost { .. } | ProbeRow::Other => panic!("{line}"),
    }
}

#[test]
fn a_full_row_is_read() {
    let expected = GpuSample {
        index: 0,
        uuid: Some("GPU-5f0c".to_owned()),
        name: Some("NVIDIA H200".to_owned()),
        utilization_percent: Some(97.0),
        memory_used_bytes: Some(120_000 * BYTES_PER_MIB),
        memory_total_bytes: Some(143_771 * BYTES_PER_MIB),
        power_watts: Some(512.31),
        power_limit_watts: Some(700.0),
        temperature_celsius: Some(61.0),
        sm_clock_mhz: Some(1_980),
        ecc_uncorrected: Some(0),
        mig_enabled: Some(false),
    };
    assert_eq!(reading(H200), expected);
    assert_eq!(reading(&format!("{H200}\r\n")), expected);
}

#[test]
fn recorded_output_is_read() {
    let rows: Vec<_> =
        include_str!("../../../../fixtures/gpu/h200/rows.csv").lines().map(reading).collect();
    assert_eq!(rows.len(), 4);
    for gpu in rows {
        assert_eq!((gpu.index, gpu.name.as_deref()), (0, Some("NVIDIA H200")));
        assert_eq!((gpu.utilization_percent, gpu.memory_used_bytes), (Some(0.0), Some(0)));
        assert_eq!(gpu.memory_total_bytes, Some(143_771 * BYTES_PER_MIB));
        assert!(gpu.power_watts.is_some_and(|watts| (80.0..84.0).contains(&watts)), "{gpu:?}");
        assert_eq!((gpu.power_limit_watts, gpu.sm_clock_mhz), (Some(700.0), Some(345)));
        assert_eq!((gpu.ecc_uncorrected, gpu.mig_enabled), (Some(0), Some(false)));
    }
    let no_gpu = include_str!("../../../../fixtures/gpu/h200/no_such_gpu.txt");
    assert!(
        matches!(parse_row(no_gpu), ProbeRow::Lost { line } if line == "No devices were found")
    );
    let other = include_str!("../../../../fixtures/gpu/h200/unknown_field.txt");
    assert!(other.lines().all(|line| parse_row(line) == ProbeRow::Other));
}

#[test]
fn unreadable_values_are_absent_and_never_zero() {
    #[rustfmt::skip]
    let table = [
        ("a consumer card",   "1, GPU-2, 0, 10, 24564, 25.10, 450.00, 35, 210, [N/A], [N/A], NVIDIA GeForce RTX 4090"),
        ("an older tool",     "1, GPU-2, [Not Supported], 10, 24564, [Not Supported], [Not Supported], 35, [Not Supported], [Not Supported], [Not Supported], Tesla K80"),
        ("a split GPU",       "1, GPU-2, [N/A], 10, 24564, 80.00, 400.00, 35, 210, 0, Enabled, NVIDIA A100-SXM4-80GB"),
        ("a broken sensor",   "1, GPU-2, 3, 10, 24564, [Unknown Error], ERR!, 35, 210, 0, [N/A], X"),
        ("a name in parts",   "1, GPU-2, 3, 10, 24564, 1, 1, 35, 210, 0, [N/A], NVIDIA X, with a comma"),
        ("nonsense numbers",  "1, GPU-2, 300, -1, 99999999999999999999, nan, -5, inf, 1.5, x, maybe, "),
    ];
    let read: Vec<_> = table
        .iter()
        .map(|(case, line)| {
            let gpu = reading(line);
            let power = gpu.power_watts.map(|watts| watts > 0.0);
            (*case, gpu.utilization_percent, power, gpu.ecc_uncorrected, gpu.mig_enabled, gpu.name)
        })
        .collect();
    let name = |name: &str| Some(name.to_owned());
    #[rustfmt::skip]
    let expected = [
        ("a consumer card",   Some(0.0), Some(true), None,    None,        name("NVIDIA GeForce RTX 4090")),
        ("an older tool",     None,      None,       None,    None,        name("Tesla K80")),
        ("a split GPU",       None,      Some(true), Some(0), Some(true),  name("NVIDIA A100-SXM4-80GB")),
        ("a broken sensor",   Some(3.0), None,       Some(0), None,        name("X")),
        ("a name in parts",   Some(3.0), Some(true), Some(0), None,        name("NVIDIA X, with a comma")),
        ("nonsense numbers",  None,      None,       None,    None,        None),
    ];
    assert_eq!(read, expected);
}

#[test]
fn other_lines_are_not_rows() {
    #[rustfmt::skip]
    let table = [
        ("",                                                                                                  false),
        ("WARNING: infoROM is corrupted at gpu 0000:17:00.0",                                                 false),
        ("Field \"mig.mode.current\" is not a valid field to query.",                                         false),
        ("1, 2, 3",                                                                                           false),
        ("x, GPU-2, 3, 10, 24564, 1, 1, 35, 210, 0, [N/A], X",                                                false),
        ("No devices were found",                                                                             true),
        ("Failed to initialize NVML: Unknown Error",                                                          true),
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that ...",  true),
        ("Unable to determine the device handle for GPU0: 0000:17:00.0: Unknown Error",                       true),
        ("0, GPU-5f0c, [GPU is lost], [GPU is lost], [GPU is lost], [GPU is lost], , , , , , NVIDIA H200",    true),
    ];
    for (line, gone) in table {
        match parse_row(line) {
            ProbeRow::Lost { .. } => assert!(gone, "{line}"),
            ProbeRow::Other => assert!(!gone, "{line}"),
            ProbeRow::Reading(_) => panic!("{line}"),
        }
    }
}

fn row(index: u32) -> ProbeRow {
    let uuid = Some(format!("GPU-{index}"));
    ProbeRow::Reading(GpuSample { index, uuid, ..GpuSample::default() })
}

fn gone(line: &str) -> ProbeRow {
    ProbeRow::Lost { line: line.to_owned() }
}

#[test]
fn rounds_and_losses_follow_the_rows() {
    #[rustfmt::skip]
    let table: [(&str, Vec<ProbeRow>, &[&str]); 11] = [
        ("one GPU",                 vec![row(0), row(0), row(0)],                                  &["1", "1", "1"]),
        ("two GPUs",                vec![row(0), row(1), row(0), row(1), row(0)],                  &["2", "2"]),
        ("one of two disappears",   vec![row(0), row(1), row(0), row(1), row(0), row(0)],          &["2", "2", "-GPU-1", "1", "1"]),
        ("and returns",             vec![row(0), row(1), row(0), row(1), row(0), row(0), row(0), row(1), row(0), row(1)], &["2", "2", "-GPU-1", "1", "1", "1", "2"]),
        ("lost by name",            vec![row(0), row(1), row(0), gone("1, GPU-1, [GPU is lost]")], &["2", "-GPU-1"]),
        ("lost once",               vec![row(0), row(0), gone("0, x, [GPU is lost]"), gone("GPU is lost")], &["1", "1", "-GPU-0"]),
        ("all at once",             vec![row(0), row(1), row(0), gone("Failed to initialize NVML")], &["2", "-GPU-0", "-GPU-1"]),
        ("one by its address",      vec![row(0), row(1), row(0), gone("Unable to determine the device handle for GPU 0000:3B:00.0: GPU is lost.")], &["2", "-GPU 0000:3B:00.0"]),
        ("the only one by address", vec![row(0), row(0), gone("Unable to determine the device handle for GPU0: 0000:17:00.0: Unknown Error")], &["1", "1", "-GPU-0"]),
        ("there was none",          vec![gone("No devices were found"), ProbeRow::Other],          &[]),
        ("other lines are ignored", vec![row(0), ProbeRow::Other, row(0)],                         &["1", "1"]),
    ];
    for (case, rows, expected) in table {
        let mut table = GpuTable::new(INTERVAL, VisibleGpus::default());
        let mut events = Vec::new();
        for row in rows {
            events.extend(table.add_row(row, Duration::ZERO));
        }
        let described: Vec<_> = events
            .iter()
            .map(|event| match event {
                GpuTableEvent::Round(gpus) => gpus.len().to_string(),
                GpuTableEvent::Lost(gpu) => format!("-{gpu}"),
            })
            .collect();
        assert_eq!(described, expected, "{case}");
    }
}

#[test]
fn gpus_of_other_trials_are_neither_shown_nor_lost() {
    let address = "Unable to determine the device handle for GPU 0000:3B:00.0: GPU is lost.";
    #[rustfmt::skip]
    let table: [(&str, Vec<ProbeRow>, &[&str]); 5] = [
        ("it disappears",              vec![row(0)],                               &[]),
        ("it is lost by name",         vec![gone("1, GPU-1, [GPU is lost]")],      &[]),
        ("one of them by its address", vec![gone(address)],                        &[]),
        ("and the trial's by a round", vec![gone(address), row(1), row(1), row(1)], &["GPU-0"]),
        ("all at once",                vec![gone("Failed to initialize NVML")],    &["GPU-0"]),
    ];
    for (case, rows, lost) in table {
        let own = VisibleGpus::from_variables(&|name| {
            (name == "CUDA_VISIBLE_DEVICES").then(|| "0".into())
        });
        let mut table = GpuTable::new(INTERVAL, own);
        for row in [row(0), row(1), row(0)].into_iter().chain(rows) {
            table.add_row(row, Duration::ZERO);
        }
        assert!(
            table.last_readings().iter().all(|gpu| gpu.index == 0),
            "{case}: {:?}",
            table.last_readings()
        );
        assert_eq!(table.lost_gpus(), lost, "{case}");
    }
}

#[test]
fn a_restarted_probe_loses_no_gpu() {
    let mut table = GpuTable::new(INTERVAL, VisibleGpus::default());
    let mut events = Vec::new();
    for row in [row(0), row(1), row(0), row(1), row(0)] {
        events.extend(table.add_row(row, Duration::ZERO));
    }
    table.discard_round();
    for row in [row(0), row(1)] {
        events.extend(table.add_row(row, Duration::ZERO));
    }
    assert_eq!((events.len(), table.lost_gpus().len()), (3, 0));
}

proptest! {
    #[test]
    fn random_rows_never_panic(line: String) {
        parse_row(&line);
    }

    #[test]
    fn random_rows_never_make_more_gpus_than_there_are(
        lines in proptest::collection::vec("[0-3], GPU-[0-3], [0-9\\[\\]N/A]{0,4}, 1, 2, 3, 4, 5, 6, 7, , X", 0..40),
    ) {
        let mut table = GpuTable::new(INTERVAL, VisibleGpus::default());
        let mut events = Vec::new();
        for line in &lines {
            events.extend(table.add_row(parse_row(line), Duration::ZERO));
        }
        prop_assert!(table.last_readings().len() <= 4 && table.lost_gpus().len() <= 4);
    }
}

#[test]
fn the_recording_script_queries_the_same_columns() {
    let script = include_str!("../../../../fixtures/gpu/record.sh");
    assert!(script.contains(&format!("query={QUERY_COLUMNS}\n")));
}
