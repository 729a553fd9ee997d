use trial_protocol::ProcessSample;

use super::*;

fn at(second: u64) -> Duration {
    Duration::from_secs(second)
}

/// Limits in seconds, which keep the tables readable.
fn spec() -> DetectSpec {
    DetectSpec {
        stall_after: Some(at(100)),
        stall_steps: 3,
        min_stall: at(10),
        gpu_idle_after: Some(at(20)),
        gpu_hang_after: Some(at(20)),
        gpu_hang_power_percent: 35.0,
        stop: StopConditions { stall: true, gpu_idle: true, gpu_hang: true },
    }
}

fn cpu(percent: f64) -> Box<Sample> {
    let process = ProcessSample { cpu_percent: Some(percent), ..ProcessSample::default() };
    Box::new(Sample { process: Some(process), ..Sample::default() })
}

fn gpu(used: Option<f64>, power: Option<f64>) -> Box<Sample> {
    gpus(&[(used, power)])
}

/// Returns a sample with use and power of each GPU.
fn gpus(readings: &[(Option<f64>, Option<f64>)]) -> Box<Sample> {
    let gpu = |(index, (used, power)): (u32, &(Option<f64>, Option<f64>))| GpuSample {
        index,
        utilization_percent: *used,
        power_watts: *power,
        power_limit_watts: Some(700.0),
        ..GpuSample::default()
    };
    Box::new(Sample { gpus: (0..).zip(readings).map(gpu).collect(), ..Sample::default() })
}

/// An observation and its time in seconds.
enum TimedInput {
    Metric(u64),
    Output(u64),
    Sample(u64, Box<Sample>),
    Tick(u64),
}

fn summarized(spec: DetectSpec, story: Vec<TimedInput>) -> Vec<(u64, &'static str)> {
    let mut detectors = Detectors::new(spec, at(0));
    let mut raised = Vec::new();
    for seen in story {
        let (second, alarms) = match &seen {
            TimedInput::Metric(second) => {
                (*second, detectors.observe(DetectorInput::Metric, at(*second)))
            }
            TimedInput::Output(second) => {
                (*second, detectors.observe(DetectorInput::Output, at(*second)))
            }
            TimedInput::Sample(second, sample) => {
                (*second, detectors.observe(DetectorInput::Sample(sample), at(*second)))
            }
            TimedInput::Tick(second) => {
                (*second, detectors.observe(DetectorInput::Tick, at(*second)))
            }
        };
        raised.extend(alarms.iter().map(|alarm| (second, alarm.code())));
    }
    raised
}

/// Returns `count` metrics, one every `step` seconds.
fn steps(step: u64, count: u64) -> Vec<TimedInput> {
    (1..=count).map(|n| TimedInput::Metric(n * step)).collect()
}

fn followed_by(mut story: Vec<TimedInput>, more: Vec<TimedInput>) -> Vec<TimedInput> {
    story.extend(more);
    story
}

#[test]
fn a_stall_follows_the_table() {
    use TimedInput::{Output, Sample, Tick};
    let none = || Vec::<(u64, &str)>::new();
    #[rustfmt::skip]
    let table = vec![
        ("silence for the fixed time",   vec![Tick(99), Tick(100), Tick(101)],                      vec![(100, "stalled")]),
        ("raised again after output",    vec![Tick(100), Output(110), Tick(209), Tick(210)],        vec![(100, "stalled"), (210, "stalled")]),
        ("output is a sign of life",     vec![Output(90), Tick(189)],                               none()),
        ("processor time is a sign",     vec![Sample(90, cpu(50.0)), Tick(189)],                    none()),
        ("little processor time is not", vec![Sample(90, cpu(0.5)), Tick(100)],                     vec![(100, "stalled")]),
        ("work on a GPU is a sign",      vec![Sample(90, gpu(Some(40.0), None)), Tick(189)],        none()),
        ("an idle GPU is not",           vec![Sample(90, gpu(Some(0.0), None)), Tick(100)],         vec![(100, "stalled")]),
        ("a GPU that hangs is not",      vec![Sample(90, gpu(Some(100.0), Some(90.0))), Tick(100)], vec![(100, "stalled")]),
        ("a missing reading is none",    vec![Sample(90, gpu(None, None)), Tick(100)],              vec![(100, "stalled")]),
        ("three of its own steps",       followed_by(steps(5, 6), vec![Tick(44), Tick(45)]),        vec![(45, "stalled")]),
        ("but at least ten seconds",     followed_by(steps(1, 6), vec![Tick(15), Tick(16)]),        vec![(16, "stalled")]),
        ("and at most the fixed time",   followed_by(steps(60, 6), vec![Tick(459), Tick(460)]),     vec![(460, "stalled")]),
        ("too few steps do not count",   followed_by(steps(5, 5), vec![Tick(124), Tick(125)]),      vec![(125, "stalled")]),
        ("one slow step is forgiven",    followed_by(steps(5, 6), vec![Output(44), TimedInput::Metric(73), Tick(87), Tick(88)]), vec![(88, "stalled")]),
    ];
    for (case, story, expected) in table {
        assert_eq!(summarized(spec(), story), expected, "{case}");
    }
}

#[test]
fn without_a_fixed_time_only_steps_decide() {
    let spec = DetectSpec { stall_after: None, ..spec() };
    assert_eq!(summarized(spec, vec![TimedInput::Tick(1_000_000)]), []);
}

#[test]
fn gpu_alarms_follow_the_table() {
    // Second, utilisation, power.
    type Reading = (u64, Option<f64>, Option<f64>);
    type ExpectedAlarms = &'static [(u64, &'static str)];
    let story = |samples: &[Reading]| {
        samples
            .iter()
            .map(|(second, used, power)| TimedInput::Sample(*second, gpu(*used, *power)))
            .collect()
    };
    let (idle, full) = (Some(0.0), Some(100.0));
    #[rustfmt::skip]
    let table: [(&str, Vec<TimedInput>, ExpectedAlarms); 9] = [
        ("no work for long",         story(&[(0, idle, None), (19, idle, None), (20, idle, None), (30, idle, None)]), &[(20, "gpu-idle")]),
        ("work in between",          story(&[(0, idle, None), (15, Some(5.0), None), (30, idle, None)]),              &[]),
        ("a gap in between",         story(&[(0, idle, None), (15, None, None), (30, idle, None)]),                   &[]),
        ("raised after new work",    story(&[(0, idle, None), (20, idle, None), (21, Some(5.0), None), (22, idle, None), (42, idle, None)]), &[(20, "gpu-idle"), (42, "gpu-idle")]),
        ("full at low power",        story(&[(0, full, Some(120.0)), (19, full, Some(120.0)), (20, full, Some(120.0)), (40, full, Some(120.0))]), &[(20, "gpu-hang")]),
        ("full at full power",       story(&[(0, full, Some(650.0)), (20, full, Some(650.0))]),                       &[]),
        ("full at unknown power",    story(&[(0, full, None), (20, full, None)]),                                     &[]),
        ("nearly full",              story(&[(0, Some(98.0), Some(120.0)), (20, Some(98.0), Some(120.0))]),           &[]),
        ("it draws power again",     story(&[(0, full, Some(120.0)), (10, full, Some(600.0)), (20, full, Some(120.0))]), &[]),
    ];
    for (case, story, expected) in table {
        assert_eq!(summarized(spec(), story), expected, "{case}");
    }
}

#[test]
fn a_missing_reading_ends_an_episode() {
    let idle = || gpu(Some(0.0), None);
    let story = vec![
        TimedInput::Sample(0, idle()),
        TimedInput::Sample(15, Box::default()),
        TimedInput::Sample(30, idle()),
        TimedInput::Sample(49, idle()),
        TimedInput::Sample(50, idle()),
    ];
    assert_eq!(summarized(spec(), story), [(50, "gpu-idle")]);
}

#[test]
fn stop_conditions_follow_the_table() {
    use TimedInput::{Metric, Output, Sample};
    let (idle, busy, hung) =
        ((Some(0.0), None), (Some(50.0), Some(400.0)), (Some(100.0), Some(120.0)));
    let all = StopConditions { stall: true, gpu_idle: true, gpu_hang: true };
    let not = StopConditions::default();
    #[rustfmt::skip]
    let table = [
        ("no reading",               all,                                       vec![Sample(0, Box::default())],                           None),
        ("no sign of life",          all,                                       vec![Sample(100, Box::default())],                         Some("stalled")),
        ("but not requested",        StopConditions { stall: false, ..all },    vec![Sample(100, Box::default())],                         None),
        ("an idle GPU",              all,                                       vec![Sample(0, gpus(&[idle])), Sample(20, gpus(&[idle]))], Some("gpu-idle")),
        ("for too short a time",     all,                                       vec![Sample(0, gpus(&[idle])), Sample(19, gpus(&[idle]))], None),
        ("but not requested",        StopConditions { gpu_idle: false, ..all }, vec![Sample(0, gpus(&[idle])), Sample(20, gpus(&[idle]))], None),
        ("idle despite output",      all,                                       vec![Sample(0, gpus(&[idle])), Output(19), Sample(20, gpus(&[idle]))], Some("gpu-idle")),
        ("both idle",                all,                                       vec![Sample(0, gpus(&[idle, idle])), Sample(20, gpus(&[idle, idle]))], Some("gpu-idle")),
        ("one of two",               all,                                       vec![Sample(0, gpus(&[idle, busy])), Sample(20, gpus(&[idle, busy]))], None),
        ("the second for less time", all,                                       vec![Sample(0, gpus(&[idle, busy])), Sample(1, gpus(&[idle, idle])), Sample(20, gpus(&[idle, idle]))], None),
        ("a GPU that hangs",         all,                                       vec![Sample(0, gpus(&[hung, idle])), Sample(20, gpus(&[hung, busy]))], Some("gpu-hang")),
        ("but not requested",        StopConditions { gpu_hang: false, ..all }, vec![Sample(0, gpus(&[hung])), Sample(20, gpus(&[hung]))], None),
        ("while the trial prints",   all,                                       vec![Sample(0, gpus(&[hung])), Output(1), Sample(20, gpus(&[hung]))], None),
        ("while it reports",         all,                                       vec![Sample(0, gpus(&[hung])), Metric(1), Sample(20, gpus(&[hung]))], None),
        ("until it stops reporting", all,                                       vec![Sample(0, gpus(&[hung])), Metric(1), Sample(21, gpus(&[hung]))], Some("gpu-hang")),
        ("nothing is requested",     not,                                       vec![Sample(0, gpus(&[hung, idle])), Sample(200, gpus(&[hung, idle]))], None),
    ];
    for (case, stop, story, expected) in table {
        let mut detectors = Detectors::new(DetectSpec { stop, ..spec() }, at(0));
        let mut last = at(0);
        for seen in &story {
            match seen {
                Metric(second) => detectors.observe(DetectorInput::Metric, at(*second)),
                Output(second) => detectors.observe(DetectorInput::Output, at(*second)),
                Sample(second, sample) => {
                    last = at(*second);
                    detectors.observe(DetectorInput::Sample(sample), last)
                }
                TimedInput::Tick(second) => detectors.observe(DetectorInput::Tick, at(*second)),
            };
        }
        let reason = detectors.reason_to_stop(last);
        assert_eq!(reason.as_ref().map(Alarm::code), expected, "{case}: {reason:?}");
    }
}

#[test]
fn detectors_that_are_off_raise_no_alarm() {
    let spec = DetectSpec { gpu_idle_after: None, gpu_hang_after: None, ..spec() };
    let story = [(0, Some(0.0)), (90, Some(100.0)), (95, Some(0.0)), (99, Some(100.0))];
    let story = story.map(|(second, used)| TimedInput::Sample(second, gpu(used, Some(120.0))));
    assert_eq!(summarized(spec.clone(), story.into()), []);
    let mut detectors = Detectors::new(spec, at(0));
    for second in [0, 90] {
        detectors.observe(DetectorInput::Sample(&gpu(Some(0.0), None)), at(second));
    }
    assert_eq!(detectors.reason_to_stop(at(90)), None);
}

#[test]
fn idle_time_is_summed_per_gpu() {
    let mut detectors = Detectors::new(spec(), at(0));
    for (second, used) in [(0, 0.0), (5, 0.0), (10, 50.0), (15, 0.0), (25, 0.0)] {
        detectors.observe(DetectorInput::Sample(&gpu(Some(used), None)), at(second));
    }
    let expected = BTreeMap::from([("GPU 0".to_owned(), at(15))]);
    assert_eq!(detectors.gpu_idle_total(), expected);
}

#[test]
fn an_alarms_message_contains_its_duration() {
    let gpu = || "GPU 0".to_owned();
    #[rustfmt::skip]
    let table = [
        (Alarm::Stalled { silent: at(90), step: None },               "No metric, no output and no work on processor or GPU for 90 s."),
        (Alarm::Stalled { silent: at(90), step: Some(at(5)) },        "No metric, no output and no work on processor or GPU for 90 s; a step usually takes 5 s."),
        (Alarm::GpuIdle { gpu: gpu(), idle: at(600) },                "GPU 0 has had no work for 600 s: the trial may wait for its data, or need no GPU."),
        (Alarm::GpuHang { gpu: gpu(), hung: at(300), power_watts: 120.5 }, "GPU 0 has been fully used at only 120.5 W for 300 s: a collective may wait for a process that is gone."),
    ];
    for (alarm, message) in table {
        assert_eq!(alarm.message(), message);
    }
}
