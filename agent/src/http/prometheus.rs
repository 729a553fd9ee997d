//! PURE: formats the state of a trial in Prometheus' text format (version 0.0.4).
//!
//! GPU values have DCGM's names and units if the meaning is the same (DCGM field identifiers, `dcgm_fields.h`), so that
//! dashboards for its exporter work. All other names begin with `trialkeeper_`. Unknown values are omitted.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use trial_protocol::{GpuSample, Sample};

use crate::util::numbers::{BYTES_PER_MIB, to_f64};

/// The media type of the page.
pub const MEDIA_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The values to expose.
#[derive(Debug, Clone, Copy)]
pub struct PageValues<'a> {
    /// Version of the program, experiment, trial and attempt.
    pub ids: [&'a str; 4],
    /// The phase of the trial.
    pub phase: &'a str,
    /// The run time of the trial, in seconds.
    pub seconds: f64,
    /// The last number of each metric, by name.
    pub metrics: &'a [(&'a str, f64)],
    /// The number of reports that wait for delivery: facts, then logs and samples.
    pub spooled: [u64; 2],
    /// The number of batches that the manager accepted, and of failed attempts. `None` without a manager.
    pub deliveries: Option<[u64; 2]>,
    /// The idle time of each GPU, in milliseconds.
    pub gpu_idle_ms: &'a BTreeMap<String, u64>,
    /// The last sample.
    pub sample: Option<&'a Sample>,
}

/// The name of the idle time of a GPU.
const GPU_IDLE_METRIC: &str = "trialkeeper_gpu_idle_seconds_total";

/// A page that consists of families.
struct Page(String);

impl Page {
    /// Begins a family. `kind` is `gauge` or `counter`.
    fn begin_family(&mut self, name: &str, kind: &str) {
        self.push_words(&["# TYPE ", name, " ", kind, "\n"]);
    }

    fn push_words(&mut self, words: &[&str]) {
        self.0.extend(words.iter().copied());
    }

    fn push_sample(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        self.push_words(&[name]);
        for (at, (label, text)) in labels.iter().enumerate() {
            self.push_words(&[if at == 0 { "{" } else { "," }, label, "=\""]);
            for c in text.chars() {
                match c {
                    '\\' => self.0.push_str("\\\\"),
                    '"' => self.0.push_str("\\\""),
                    '\n' => self.0.push_str("\\n"),
                    // The format allows control characters, but they could confuse a terminal.
                    c if c.is_control() => self.0.push('\u{fffd}'),
                    c => self.0.push(c),
                }
            }
            self.0.push('"');
        }
        self.push_words(&[if labels.is_empty() { " " } else { "} " }]);
        if value.is_infinite() {
            self.push_words(&[if value > 0.0 { "+Inf" } else { "-Inf" }]);
        } else {
            write!(self.0, "{value}").expect("writing to a String cannot fail");
        }
        self.0.push('\n');
    }

    /// Appends a family with a single sample without labels for each value. A name that ends with `_total` is a
    /// counter's.
    fn push_single_samples(&mut self, values: &[(&str, Option<f64>)]) {
        for (name, value) in values {
            if let Some(value) = value {
                self.begin_family(name, if name.ends_with("_total") { "counter" } else { "gauge" });
                self.push_sample(name, &[], *value);
            }
        }
    }
}

/// Returns the page.
pub fn page(view: &PageValues<'_>) -> String {
    let mut page = Page(String::with_capacity(4096));
    let [version, experiment, trial, attempt] = view.ids;
    page.begin_family("trialkeeper_info", "gauge");
    let ids =
        [("version", version), ("experiment", experiment), ("trial", trial), ("attempt", attempt)];
    page.push_sample("trialkeeper_info", &ids, 1.0);
    page.begin_family("trialkeeper_trial_phase", "gauge");
    page.push_sample("trialkeeper_trial_phase", &[("phase", view.phase)], 1.0);
    page.push_single_samples(&[("trialkeeper_trial_seconds", Some(view.seconds))]);
    if !view.metrics.is_empty() {
        page.begin_family("trialkeeper_metric", "gauge");
    }
    for (name, value) in view.metrics {
        page.push_sample("trialkeeper_metric", &[("name", name)], *value);
    }
    page.begin_family("trialkeeper_spool_reports", "gauge");
    for (lane, count) in ["facts", "bulk"].into_iter().zip(view.spooled) {
        page.push_sample("trialkeeper_spool_reports", &[("lane", lane)], to_f64(count));
    }
    if let Some([taken, failed]) = view.deliveries {
        page.push_single_samples(&[
            ("trialkeeper_deliveries_total", Some(to_f64(taken))),
            ("trialkeeper_delivery_failures_total", Some(to_f64(failed))),
        ]);
    }
    if let Some(sample) = view.sample {
        push_machine(&mut page, sample);
    }
    if !view.gpu_idle_ms.is_empty() {
        page.begin_family(GPU_IDLE_METRIC, "counter");
    }
    for (gpu, millis) in view.gpu_idle_ms {
        page.push_sample(GPU_IDLE_METRIC, &[("gpu", gpu)], to_f64(*millis) / 1e3);
    }
    page.0
}

fn push_machine(page: &mut Page, sample: &Sample) {
    let count = |number: Option<u64>| number.map(to_f64);
    if let Some(process) = &sample.process {
        page.push_single_samples(&[
            ("trialkeeper_processes", Some(process.processes.into())),
            ("trialkeeper_threads", process.threads.map(f64::from)),
            ("trialkeeper_cpu_percent", process.cpu_percent),
            ("trialkeeper_memory_bytes", Some(to_f64(process.memory_bytes))),
            ("trialkeeper_read_bytes", count(process.read_bytes)),
            ("trialkeeper_written_bytes", count(process.written_bytes)),
            ("trialkeeper_descriptors", process.descriptors.map(f64::from)),
        ]);
    }
    if let Some(cgroup) = &sample.cgroup {
        let seconds = |micros: Option<u64>| count(micros).map(|micros| micros / 1e6);
        page.push_single_samples(&[
            ("trialkeeper_cgroup_memory_bytes", count(cgroup.memory_bytes)),
            ("trialkeeper_cgroup_memory_limit_bytes", count(cgroup.memory_limit_bytes)),
            ("trialkeeper_cgroup_memory_peak_bytes", count(cgroup.memory_peak_bytes)),
            ("trialkeeper_cgroup_memory_percent", cgroup.memory_percent),
            ("trialkeeper_cgroup_cpu_percent", cgroup.cpu_percent),
            ("trialkeeper_cgroup_memory_pressure_percent", cgroup.memory_pressure_percent),
            ("trialkeeper_cgroup_cpu_pressure_percent", cgroup.cpu_pressure_percent),
            ("trialkeeper_cgroup_io_pressure_percent", cgroup.io_pressure_percent),
            ("trialkeeper_cgroup_cpu_limit_cores", cgroup.cpu_limit_cores),
            ("trialkeeper_cgroup_cpu_seconds_total", seconds(cgroup.cpu_usage_us)),
            ("trialkeeper_cgroup_cpu_throttled_seconds_total", seconds(cgroup.cpu_throttled_us)),
            ("trialkeeper_cgroup_oom_events_total", count(cgroup.oom_events)),
            ("trialkeeper_cgroup_oom_kills_total", count(cgroup.oom_kills)),
        ]);
    }
    for (name, kind, value) in DCGM_FIELDS {
        let mut begun = false;
        for gpu in &sample.gpus {
            let Some(value) = value(gpu) else { continue };
            if !std::mem::replace(&mut begun, true) {
                page.begin_family(name, kind);
            }
            let index = gpu.index.to_string();
            let labels = [
                ("gpu", index.as_str()),
                ("UUID", gpu.uuid.as_deref().unwrap_or_default()),
                ("modelName", gpu.name.as_deref().unwrap_or_default()),
            ];
            page.push_sample(name, &labels, value);
        }
    }
}

type GpuField = fn(&GpuSample) -> Option<f64>;

/// The DCGM fields that the agent reads, in DCGM's units: memory in MiB.
const DCGM_FIELDS: [(&str, &str, GpuField); 9] = [
    ("DCGM_FI_DEV_GPU_UTIL", "gauge", |gpu| gpu.utilization_percent),
    ("DCGM_FI_DEV_FB_USED", "gauge", |gpu| gpu.memory_used_bytes.map(to_mib)),
    ("DCGM_FI_DEV_FB_TOTAL", "gauge", |gpu| gpu.memory_total_bytes.map(to_mib)),
    ("DCGM_FI_DEV_POWER_USAGE", "gauge", |gpu| gpu.power_watts),
    ("DCGM_FI_DEV_POWER_MGMT_LIMIT", "gauge", |gpu| gpu.power_limit_watts),
    ("DCGM_FI_DEV_GPU_TEMP", "gauge", |gpu| gpu.temperature_celsius),
    ("DCGM_FI_DEV_SM_CLOCK", "gauge", |gpu| gpu.sm_clock_mhz.map(f64::from)),
    ("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "counter", |gpu| gpu.ecc_uncorrected.map(to_f64)),
    ("DCGM_FI_DEV_MIG_MODE", "gauge", |gpu| gpu.mig_enabled.map(|on| f64::from(u8::from(on)))),
];

fn to_mib(bytes: u64) -> f64 {
    to_f64(bytes) / to_f64(BYTES_PER_MIB)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use trial_protocol::{CgroupSample, ProcessSample};

    use super::*;

    const IDS: [&str; 4] = ["0.1.0", "e1", "t1", "a1"];

    fn page_values<'a>(
        metrics: &'a [(&'a str, f64)],
        gpu_idle_ms: &'a BTreeMap<String, u64>,
        sample: Option<&'a Sample>,
    ) -> PageValues<'a> {
        let deliveries = Some([3, 1]);
        PageValues {
            ids: IDS,
            phase: "running",
            seconds: 1.5,
            metrics,
            spooled: [2, 7],
            deliveries,
            gpu_idle_ms,
            sample,
        }
    }

    #[test]
    fn the_page_has_prometheus_format() {
        let process =
            ProcessSample { processes: 2, memory_bytes: 4096, ..ProcessSample::default() };
        let cgroup = CgroupSample {
            cpu_usage_us: Some(2_500_000),
            cpu_percent: Some(62.5),
            ..CgroupSample::default()
        };
        let gpu = |index, utilization_percent| GpuSample {
            index,
            uuid: Some(format!("GPU-{index}")),
            name: Some("NVIDIA H200".to_owned()),
            utilization_percent,
            memory_used_bytes: Some(1 << 30),
            ..GpuSample::default()
        };
        let gpus = vec![gpu(0, Some(37.0)), gpu(1, None)];
        let sample = Sample { process: Some(process), cgroup: Some(cgroup), gpus };
        let idle = BTreeMap::from([("GPU-0".to_owned(), 12_500)]);
        let metrics = [("loss", 0.25), ("acc \"x\"\\\n\r", f64::INFINITY), ("nan", f64::NAN)];
        let expected = "\
# TYPE trialkeeper_info gauge
trialkeeper_info{version=\"0.1.0\",experiment=\"e1\",trial=\"t1\",attempt=\"a1\"} 1
# TYPE trialkeeper_trial_phase gauge
trialkeeper_trial_phase{phase=\"running\"} 1
# TYPE trialkeeper_trial_seconds gauge
trialkeeper_trial_seconds 1.5
# TYPE trialkeeper_metric gauge
trialkeeper_metric{name=\"loss\"} 0.25
trialkeeper_metric{name=\"acc \\\"x\\\"\\\\\\n\u{fffd}\"} +Inf
trialkeeper_metric{name=\"nan\"} NaN
# TYPE trialkeeper_spool_reports gauge
trialkeeper_spool_reports{lane=\"facts\"} 2
trialkeeper_spool_reports{lane=\"bulk\"} 7
# TYPE trialkeeper_deliveries_total counter
trialkeeper_deliveries_total 3
# TYPE trialkeeper_delivery_failures_total counter
trialkeeper_delivery_failures_total 1
# TYPE trialkeeper_processes gauge
trialkeeper_processes 2
# TYPE trialkeeper_memory_bytes gauge
trialkeeper_memory_bytes 4096
# TYPE trialkeeper_cgroup_cpu_percent gauge
trialkeeper_cgroup_cpu_percent 62.5
# TYPE trialkeeper_cgroup_cpu_seconds_total counter
trialkeeper_cgroup_cpu_seconds_total 2.5
# TYPE DCGM_FI_DEV_GPU_UTIL gauge
DCGM_FI_DEV_GPU_UTIL{gpu=\"0\",UUID=\"GPU-0\",modelName=\"NVIDIA H200\"} 37
# TYPE DCGM_FI_DEV_FB_USED gauge
DCGM_FI_DEV_FB_USED{gpu=\"0\",UUID=\"GPU-0\",modelName=\"NVIDIA H200\"} 1024
DCGM_FI_DEV_FB_USED{gpu=\"1\",UUID=\"GPU-1\",modelName=\"NVIDIA H200\"} 1024
# TYPE trialkeeper_gpu_idle_seconds_total counter
trialkeeper_gpu_idle_seconds_total{gpu=\"GPU-0\"} 12.5
";
        assert_eq!(page(&page_values(&metrics, &idle, Some(&sample))), expected);
    }

    proptest! {
        #[test]
        fn no_name_breaks_out_of_its_line(names: Vec<String>, value: f64) {
            let metrics: Vec<_> = names.iter().map(|name| (name.as_str(), value)).collect();
            let page = page(&page_values(&metrics, &BTreeMap::new(), None));
            let lines = page.split('\n').filter(|line| line.starts_with("trialkeeper_metric{")).count();
            assert_eq!(lines, names.len());
            assert!(page.split('\n').all(|line| line.is_empty() || line.starts_with("# TYPE ") || line.starts_with("trialkeeper_")));
            assert!(page.chars().all(|c| c == '\n' || !c.is_control()));
        }
    }
}
