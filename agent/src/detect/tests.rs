use trial_protocol::ProcessSample;

use super::*;

fn at(second: u64) -> Duration {
    Duration::from_secs(second)
}

/// Limits of seconds, so that a table can be read.
fn spec() -> DetectSpec {
    DetectSpec {
        stall_after: Some(at(100)),
        stall_steps: 3,
        stall_least: at(10),
        gpu_idle_after: at(20),
        gpu_hang_after: at(20),
        gpu_hang_power_percent: 35.0,
    }
}

fn cpu(percent: f64) -> Box<Sample> {
    let process = ProcessSample { cpu_percent: Some(percent), ..ProcessSample::default() };
    Box::new(Sample { process: Some(process), ..Sample::default() })
}

fn gpu(used: Option<f64>, power: Option<f64>) -> Box<Sample> {
    let gpu = GpuSample {
        utilization_percent: used,
        power_watts: power,
        power_limit_watts: Some(700.0),
        ..GpuSample::default()
    };
    Box::new(Sample { gpus: vec![gpu], ..Sample::default() })
}

/// What is seen, at which second.
enum S {
    Metric(u64),
    Output(u64),
    Sample(u64, Box<Sample>),
    Tick(u64),
}

fn told(spec: DetectSpec, story: Vec<S>) -> Vec<(u64, &'static str)> {
    let mut detectors = Detectors::new(spec, at(0));
    let mut told = Vec::new();
    for seen in story {
        let (second, alarms) = match &seen {
            S::Metric(second) => (*second, detectors.step(Seen::Metric, at(*second))),
            S::Output(second) => (*second, detectors.step(Seen::Output, at(*second))),
            S::Sample(second, sample) => {
                (*second, detectors.step(Seen::Sample(sample), at(*second)))
            }
            S::Tick(second) => (*second, detectors.step(Seen::Tick, at(*second))),
        };
        told.extend(alarms.iter().map(|alarm| (second, alarm.code())));
    }
    told
}

/// A metric every `step` seconds, `count` times.
fn steps(step: u64, count: u64) -> Vec<S> {
    (1..=count).map(|n| S::Metric(n * step)).collect()
}

fn then(mut story: Vec<S>, more: Vec<S>) -> Vec<S> {
    story.extend(more);
    story
}

#[test]
fn a_stall_follows_the_table() {
    use S::{Output, Sample, Tick};
    let none = || Vec::<(u64, &str)>::new();
    #[rustfmt::skip]
    let table = vec![
        ("silence for the fixed time",   vec![Tick(99), Tick(100), Tick(101)],                                vec![(100, "stalled")]),
        ("told again after a life",      vec![Tick(100), Output(110), Tick(209), Tick(210)],                  vec![(100, "stalled"), (210, "stalled")]),
        ("output is life",               vec![Output(90), Tick(189)],                                         none()),
        ("processor time is life",       vec![Sample(90, cpu(50.0)), Tick(189)],                              none()),
        ("a little of it is not",        vec![Sample(90, cpu(0.5)), Tick(100)],                               vec![(100, "stalled")]),
        ("work on a GPU is life",        vec![Sample(90, gpu(Some(40.0), None)), Tick(189)],                  none()),
        ("an idle GPU is not",           vec![Sample(90, gpu(Some(0.0), None)), Tick(100)],                   vec![(100, "stalled")]),
        ("a GPU that hangs is not",      vec![Sample(90, gpu(Some(100.0), Some(90.0))), Tick(100)],           vec![(100, "stalled")]),
        ("what was not read says nothing", vec![Sample(90, gpu(None, None)), Tick(100)],                      vec![(100, "stalled")]),
        ("three of its own steps",       then(steps(5, 6), vec![Tick(44), Tick(45)]),                         vec![(45, "stalled")]),
        ("but at least ten seconds",     then(steps(1, 6), vec![Tick(15), Tick(16)]),                         vec![(16, "stalled")]),
        ("and at most the fixed time",   then(steps(60, 6), vec![Tick(459), Tick(460)]),                      vec![(460, "stalled")]),
        ("too few steps say nothing",    then(steps(5, 5), vec![Tick(124), Tick(125)]),                       vec![(125, "stalled")]),
        ("one slow step is forgiven",    then(steps(5, 6), vec![Output(44), S::Metric(73), Tick(87), Tick(88)]), vec![(88, "stalled")]),
    ];
    for (says, story, expected) in table {
        assert_eq!(told(spec(), story), expected, "{says}");
    }
}

#[test]
fn without_a_fixed_time_only_steps_decide() {
    let spec = DetectSpec { stall_after: None, ..spec() };
    assert_eq!(told(spec, vec![S::Tick(1_000_000)]), []);
}

#[test]
fn a_gpu_alarms_as_the_table_says() {
    // Second, utilisation, power.
    type Reading = (u64, Option<f64>, Option<f64>);
    type Told = &'static [(u64, &'static str)];
    let story = |samples: &[Reading]| {
        samples.iter().map(|(second, used, power)| S::Sample(*second, gpu(*used, *power))).collect()
    };
    let (idle, full) = (Some(0.0), Some(100.0));
    #[rustfmt::skip]
    let table: [(&str, Vec<S>, Told); 9] = [
        ("no work for long",         story(&[(0, idle, None), (19, idle, None), (20, idle, None), (30, idle, None)]), &[(20, "gpu-idle")]),
        ("work in between",          story(&[(0, idle, None), (15, Some(5.0), None), (30, idle, None)]),              &[]),
        ("an unknown in between",    story(&[(0, idle, None), (15, None, None), (30, idle, None)]),                   &[]),
        ("told again after work",    story(&[(0, idle, None), (20, idle, None), (21, Some(5.0), None), (22, idle, None), (42, idle, None)]), &[(20, "gpu-idle"), (42, "gpu-idle")]),
        ("full at little power",     story(&[(0, full, Some(120.0)), (19, full, Some(120.0)), (20, full, Some(120.0)), (40, full, Some(120.0))]), &[(20, "gpu-hang")]),
        ("full at full power",       story(&[(0, full, Some(650.0)), (20, full, Some(650.0))]),                       &[]),
        ("full at unknown power",    story(&[(0, full, None), (20, full, None)]),                                     &[]),
        ("nearly full",              story(&[(0, Some(98.0), Some(120.0)), (20, Some(98.0), Some(120.0))]),           &[]),
        ("it draws power again",     story(&[(0, full, Some(120.0)), (10, full, Some(600.0)), (20, full, Some(120.0))]), &[]),
    ];
    for (says, story, expected) in table {
        assert_eq!(told(spec(), story), expected, "{says}");
    }
}

#[test]
fn idle_time_is_summed_per_gpu() {
    let mut detectors = Detectors::new(spec(), at(0));
    for (second, used) in [(0, 0.0), (5, 0.0), (10, 50.0), (15, 0.0), (25, 0.0)] {
        detectors.step(Seen::Sample(&gpu(Some(used), None)), at(second));
    }
    let expected = BTreeMap::from([("GPU 0".to_owned(), at(15))]);
    assert_eq!(detectors.gpu_idle_total(), expected);
}

#[test]
fn an_alarm_says_what_and_for_how_long() {
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
