//! Reads NVIDIA GPUs from the output of one long-running `nvidia-smi --query-gpu`.
//!
//! A driver call can block permanently, so this process calls no library of NVIDIA. The supervisor starts
//! [`ProbeCommand`] through the reaper, passes its lines to [`parse_row`] and [`GpuTable::add_row`], and performs the
//! actions of [`Probe::step`]. This module is pure: it uses no process and no clock.
//!
//! Only device-level readings are used. The driver does not know PID namespaces. Inside a pod, it therefore reports the
//! process ids of the host, or none.

mod probe;
mod visible_gpus;

pub use probe::{Probe, ProbeAction, ProbeCommand, ProbeEvent};
pub use visible_gpus::VisibleGpus;

use probe::freshness;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use trial_protocol::GpuSample;

use crate::util::numbers::BYTES_PER_MIB;

/// The columns to query, in order. The name is last, because only it may contain a comma. Documented by `nvidia-smi
/// --help-query-gpu`.
pub const QUERY_COLUMNS: &str = "index,uuid,utilization.gpu,memory.used,memory.total,power.draw,power.limit,\
                         temperature.gpu,clocks.current.sm,ecc.errors.uncorrected.volatile.total,\
                         mig.mode.current,name";

const COLUMN_COUNT: usize = 12;

/// Phrases of a line that reports the loss of a GPU or of the driver.
const LOSS_PHRASES: [&str; 7] = [
    "GPU is lost",
    "has fallen off the bus",
    "Unable to determine the device handle",
    "GPU requires reset",
    "couldn't communicate with the NVIDIA driver",
    "Failed to initialize NVML",
    "No devices were found",
];

/// The content of one line of the probe.
#[derive(Debug, Clone, PartialEq)]
pub enum ProbeRow {
    /// A reading of one GPU.
    Reading(GpuSample),
    /// A GPU is lost, or all GPUs are unreachable.
    Lost {
        /// The line, at most 200 characters.
        line: String,
    },
    /// Any other line: an empty line, a warning.
    Other,
}

/// Parses one line of the probe.
pub fn parse_row(line: &str) -> ProbeRow {
    let line = line.trim();
    // A row of a lost GPU has `[GPU is lost]` in each unreadable column.
    if LOSS_PHRASES.iter().any(|phrase| line.contains(phrase)) {
        return ProbeRow::Lost { line: line.chars().take(200).collect() };
    }
    let columns: Vec<_> = line.splitn(COLUMN_COUNT, ',').map(str::trim).collect();
    let [
        index,
        uuid,
        utilization,
        used,
        total,
        power,
        power_limit,
        temperature,
        clock,
        ecc,
        mig,
        name,
    ] = columns[..]
    else {
        return ProbeRow::Other;
    };
    let Ok(index) = index.parse() else {
        return ProbeRow::Other;
    };
    ProbeRow::Reading(GpuSample {
        index,
        uuid: without_placeholder(uuid).map(str::to_owned),
        name: without_placeholder(name).map(str::to_owned),
        utilization_percent: parse_float(utilization).filter(|share| (0.0..=100.0).contains(share)),
        memory_used_bytes: parse_integer(used).and_then(|mib| mib.checked_mul(BYTES_PER_MIB)),
        memory_total_bytes: parse_integer(total).and_then(|mib| mib.checked_mul(BYTES_PER_MIB)),
        power_watts: parse_float(power),
        power_limit_watts: parse_float(power_limit),
        temperature_celsius: parse_float(temperature),
        sm_clock_mhz: parse_integer(clock).and_then(|mhz| mhz.try_into().ok()),
        ecc_uncorrected: parse_integer(ecc),
        mig_enabled: match mig {
            "Enabled" => Some(true),
            "Disabled" => Some(false),
            _ => None,
        },
    })
}

/// Returns the value, unless it is a placeholder: `[N/A]`, `[Not Supported]`, `[Unknown Error]` and similar.
fn without_placeholder(value: &str) -> Option<&str> {
    let absent = value.is_empty() || value.starts_with('[') || value == "N/A" || value == "ERR!";
    (!absent).then_some(value)
}

fn parse_float(value: &str) -> Option<f64> {
    without_placeholder(value)?
        .parse()
        .ok()
        .filter(|number: &f64| number.is_finite() && *number >= 0.0)
}

fn parse_integer(value: &str) -> Option<u64> {
    without_placeholder(value)?.parse().ok()
}

/// All GPUs of the machine, read in rounds of probe rows or all at once. The table also stores GPUs that are not the
/// trial's, but never returns them.
#[derive(Debug)]
pub struct GpuTable {
    /// Time between two readings.
    interval: Duration,
    /// The GPUs of the trial.
    own: VisibleGpus,
    /// The time of the latest row.
    read_at: Option<Duration>,
    /// The rows of the current round.
    round: BTreeMap<u32, GpuSample>,
    /// The last complete round.
    last: BTreeMap<u32, GpuSample>,
    /// The GPUs reported as lost.
    lost: BTreeSet<String>,
}

/// An event that a row completes.
#[derive(Debug, Clone, PartialEq)]
pub enum GpuTableEvent {
    /// A reading of every GPU.
    Round(Vec<GpuSample>),
    /// A GPU has disappeared. Reported once, by UUID or else by index.
    Lost(String),
}

impl GpuTable {
    /// Creates a table without readings.
    pub fn new(interval: Duration, own: VisibleGpus) -> Self {
        let (round, last) = (BTreeMap::new(), BTreeMap::new());
        Self { interval, own, read_at: None, round, last, lost: BTreeSet::new() }
    }

    /// Returns whether no GPU was read yet, including GPUs that are not the trial's.
    pub fn is_empty(&self) -> bool {
        self.last.is_empty()
    }

    /// Returns the last reading of each GPU, unless it is outdated.
    pub fn current_readings(&self, now: Duration) -> Vec<GpuSample> {
        let fresh = self.read_at.is_some_and(|read| now <= read + freshness(self.interval));
        if fresh { self.last_readings() } else { Vec::new() }
    }

    /// Returns the last reading of each GPU, regardless of its age.
    pub fn last_readings(&self) -> Vec<GpuSample> {
        self.last.values().filter(|gpu| self.own.has_gpu(gpu)).cloned().collect()
    }

    /// Returns the GPUs lost so far.
    pub fn lost_gpus(&self) -> Vec<String> {
        self.lost.iter().cloned().collect()
    }

    /// Discards the incomplete round of the previous probe. Called when the probe was started.
    pub fn discard_round(&mut self) {
        self.round.clear();
    }

    /// Processes a row, and returns the events that it completes.
    ///
    /// A round is complete when it has the same GPUs as the last round, or when an index appears again. A GPU is lost
    /// when a complete round lacks it. It is also lost when the tool reports its loss, if the GPU was present before.
    pub fn add_row(&mut self, row: ProbeRow, now: Duration) -> Vec<GpuTableEvent> {
        let mut events = Vec::new();
        match row {
            ProbeRow::Reading(sample) => {
                self.read_at = Some(now);
                if self.round.contains_key(&sample.index) {
                    self.end_round(&mut events);
                }
                self.round.insert(sample.index, sample);
                if self.round.len() == self.last.len() && self.round.keys().eq(self.last.keys()) {
                    self.end_round(&mut events);
                }
            }
            ProbeRow::Lost { line } => {
                let named = self.last.values().find(|gpu| is_named_in(gpu, &line)).cloned();
                match named {
                    Some(gpu) => self.record_loss(&gpu, &mut events),
                    // The bus address shows that one GPU is lost. The next round without it shows which one.
                    None if self.last.len() > 1 && bus_address(&line).is_some() => {
                        let address = bus_address(&line).unwrap_or_default();
                        // It may be the GPU of another trial.
                        if self.own.has_all() {
                            self.record_named_loss(format!("GPU {address}"), &mut events);
                        }
                    }
                    // No GPU is named: the only GPU is lost, or all GPUs are unreachable.
                    None => {
                        for gpu in self.last_readings() {
                            self.record_loss(&gpu, &mut events);
                        }
                    }
                }
            }
            ProbeRow::Other => {}
        }
        events
    }

    /// Processes a reading of every GPU at once. A GPU missing from it is lost.
    pub fn add_round(&mut self, round: Vec<GpuSample>, now: Duration) -> Vec<GpuTableEvent> {
        let mut events = Vec::new();
        self.read_at = Some(now);
        self.round = round.into_iter().map(|gpu| (gpu.index, gpu)).collect();
        self.end_round(&mut events);
        events
    }

    fn end_round(&mut self, events: &mut Vec<GpuTableEvent>) {
        let round = std::mem::take(&mut self.round);
        let names: BTreeSet<_> = round.values().map(gpu_name).collect();
        let previous = self.last_readings().into_iter();
        for gpu in previous.filter(|gpu| !names.contains(&gpu_name(gpu))) {
            self.record_loss(&gpu, events);
        }
        // A GPU that returned after a driver reset may be lost again.
        self.lost.retain(|gpu| !names.contains(gpu));
        self.last = round;
        events.push(GpuTableEvent::Round(self.last_readings()));
    }

    fn record_loss(&mut self, gpu: &GpuSample, events: &mut Vec<GpuTableEvent>) {
        if self.own.has_gpu(gpu) {
            self.record_named_loss(gpu_name(gpu), events);
        }
    }

    fn record_named_loss(&mut self, gpu: String, events: &mut Vec<GpuTableEvent>) {
        if self.lost.insert(gpu.clone()) {
            events.push(GpuTableEvent::Lost(gpu));
        }
    }
}

/// Returns the GPU's UUID, or else a name with its index.
pub fn gpu_name(gpu: &GpuSample) -> String {
    gpu.uuid.clone().unwrap_or_else(|| format!("GPU {}", gpu.index))
}

/// Returns whether `line` refers to `gpu`: by UUID, or as a row that begins with the GPU's index.
fn is_named_in(gpu: &GpuSample, line: &str) -> bool {
    let by_uuid = gpu.uuid.as_ref().is_some_and(|uuid| line.contains(uuid));
    let by_index = line.split_once(',').is_some_and(|(index, _)| index.parse() == Ok(gpu.index));
    by_uuid || by_index
}

/// Returns the PCI bus address in `line`, such as `0000:3B:00.0`.
fn bus_address(line: &str) -> Option<&str> {
    let is_hex = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let is_address = |word: &&str| {
        let parts: Vec<_> = word.split([':', '.']).collect();
        matches!(parts[..], [domain, bus, device, function]
            if [domain, bus, device, function].into_iter().all(is_hex) && domain.len() >= 4)
    };
    line.split_ascii_whitespace().map(|word| word.trim_matches([':', '.', ','])).find(is_address)
}

#[cfg(test)]
mod tests;
