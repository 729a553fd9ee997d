//! NVIDIA GPUs, read off the rows of one long-running `nvidia-smi --query-gpu`.
//!
//! A driver call can block for ever, so nothing of NVIDIA's is called in this process: the supervisor
//! starts [`ProbeCommand`] through the one place that waits for children, hands its lines to [`parse_row`]
//! and [`Board::enter`], and does what [`Probe::step`] says. This module is pure: no process, no clock.
//!
//! Only device-level readings are trusted. The driver knows nothing of PID namespaces, so the process ids
//! it reports inside a pod are those of the host, or none.

mod allotment;
mod probe;

pub use allotment::GpuAllotment;
pub use probe::{Probe, ProbeAction, ProbeCommand, ProbeEvent};

use probe::fresh_for;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use trial_protocol::GpuSample;

/// The columns to ask for, in their order; the name is last, since it alone may hold a comma. Documented by `nvidia-smi
/// --help-query-gpu`.
pub const QUERY: &str = "index,uuid,utilization.gpu,memory.used,memory.total,power.draw,power.limit,\
                         temperature.gpu,clocks.current.sm,ecc.errors.uncorrected.volatile.total,\
                         mig.mode.current,name";

const COLUMNS: usize = 12;

const MIB: u64 = 1024 * 1024;

/// Phrases of a line that says a GPU or the driver is gone.
const GONE: [&str; 7] = [
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
pub enum Row {
    /// A reading of one GPU.
    Reading(GpuSample),
    /// A GPU, or the way to all of them, is gone.
    Gone {
        /// The line, at most 200 characters.
        line: String,
    },
    /// Anything else: an empty line, a warning.
    Other,
}

/// Reads one line of the probe.
pub fn parse_row(line: &str) -> Row {
    let line = line.trim();
    // Each row holds `[GPU is lost]` in the columns that cannot be read any more.
    if GONE.iter().any(|phrase| line.contains(phrase)) {
        return Row::Gone { line: line.chars().take(200).collect() };
    }
    let columns: Vec<_> = line.splitn(COLUMNS, ',').map(str::trim).collect();
    let [index, uuid, utilization, used, total, power, power_limit, heat, clock, ecc, mig, name] =
        columns[..]
    else {
        return Row::Other;
    };
    let Ok(index) = index.parse() else {
        return Row::Other;
    };
    Row::Reading(GpuSample {
        index,
        uuid: known(uuid).map(str::to_owned),
        name: known(name).map(str::to_owned),
        utilization_percent: float(utilization).filter(|share| (0.0..=100.0).contains(share)),
        memory_used_bytes: integer(used).and_then(|mib| mib.checked_mul(MIB)),
        memory_total_bytes: integer(total).and_then(|mib| mib.checked_mul(MIB)),
        power_watts: float(power),
        power_limit_watts: float(power_limit),
        temperature_celsius: float(heat),
        sm_clock_mhz: integer(clock).and_then(|mhz| mhz.try_into().ok()),
        ecc_uncorrected: integer(ecc),
        mig_enabled: match mig {
            "Enabled" => Some(true),
            "Disabled" => Some(false),
            _ => None,
        },
    })
}

/// A value that is there: `[N/A]`, `[Not Supported]`, `[Unknown Error]` and their like are not.
fn known(value: &str) -> Option<&str> {
    let absent = value.is_empty() || value.starts_with('[') || value == "N/A" || value == "ERR!";
    (!absent).then_some(value)
}

fn float(value: &str) -> Option<f64> {
    known(value)?.parse().ok().filter(|number: &f64| number.is_finite() && *number >= 0.0)
}

fn integer(value: &str) -> Option<u64> {
    known(value)?.parse().ok()
}

/// All GPUs of the machine, as the rows of the probe bring them round after round, or as they are read all at once. Those
/// that are not the trial's are known, and not told of.
#[derive(Debug)]
pub struct Board {
    /// Time between two readings.
    interval: Duration,
    /// The GPUs of the trial.
    own: GpuAllotment,
    /// The time of the latest row.
    read_at: Option<Duration>,
    /// Rows of the round at hand.
    round: BTreeMap<u32, GpuSample>,
    /// The last whole round.
    last: BTreeMap<u32, GpuSample>,
    /// GPUs that were reported as lost.
    lost: BTreeSet<String>,
}

/// The reading that a row completes.
#[derive(Debug, Clone, PartialEq)]
pub enum BoardEvent {
    /// A reading of every GPU.
    Round(Vec<GpuSample>),
    /// A GPU that was there is not there any more; told once, by UUID or else by index.
    Lost(String),
}

impl Board {
    /// A board that nothing was read of yet.
    pub fn new(interval: Duration, own: GpuAllotment) -> Self {
        let (round, last) = (BTreeMap::new(), BTreeMap::new());
        Self { interval, own, read_at: None, round, last, lost: BTreeSet::new() }
    }

    /// Returns whether any GPU was read, be it the trial's or not.
    pub fn is_empty(&self) -> bool {
        self.last.is_empty()
    }

    /// The last reading of each GPU, unless it is old.
    pub fn current(&self, now: Duration) -> Vec<GpuSample> {
        let fresh = self.read_at.is_some_and(|read| now <= read + fresh_for(self.interval));
        if fresh { self.last() } else { Vec::new() }
    }

    /// The last reading of each GPU, however old.
    pub fn last(&self) -> Vec<GpuSample> {
        self.last.values().filter(|gpu| self.own.has(gpu)).cloned().collect()
    }

    /// GPUs that were lost so far.
    pub fn lost(&self) -> Vec<String> {
        self.lost.iter().cloned().collect()
    }

    /// The probe was started (again): what the last one left of a round does not count.
    pub fn probe_started(&mut self) {
        self.round.clear();
    }

    /// Takes a row and returns what it completes.
    ///
    /// A round is complete when it has as many GPUs as the last one or when an index comes again. A GPU is
    /// lost when a whole round lacks it, or when the tool says so and there was one before.
    pub fn enter(&mut self, row: Row, now: Duration) -> Vec<BoardEvent> {
        let mut events = Vec::new();
        match row {
            Row::Reading(sample) => {
                self.read_at = Some(now);
                if self.round.contains_key(&sample.index) {
                    self.end_round(&mut events);
                }
                self.round.insert(sample.index, sample);
                if self.round.len() == self.last.len() && self.round.keys().eq(self.last.keys()) {
                    self.end_round(&mut events);
                }
            }
            Row::Gone { line } => {
                let named = self.last.values().find(|gpu| is_named(gpu, &line)).cloned();
                match named {
                    Some(gpu) => self.lose(&gpu, &mut events),
                    // Its address on the bus says that it is one; which, a round without it will tell.
                    None if self.last.len() > 1 && bus_address(&line).is_some() => {
                        let address = bus_address(&line).unwrap_or_default();
                        // It may be another's.
                        if self.own.is_all() {
                            self.lose_named(format!("GPU {address}"), &mut events);
                        }
                    }
                    // No GPU is named: with one GPU it is that one, else it is the way to all of them.
                    None => {
                        for gpu in self.last() {
                            self.lose(&gpu, &mut events);
                        }
                    }
                }
            }
            Row::Other => {}
        }
        events
    }

    /// Takes a reading of every GPU at once. One that is not among them is lost.
    pub fn enter_round(&mut self, round: Vec<GpuSample>, now: Duration) -> Vec<BoardEvent> {
        let mut events = Vec::new();
        self.read_at = Some(now);
        self.round = round.into_iter().map(|gpu| (gpu.index, gpu)).collect();
        self.end_round(&mut events);
        events
    }

    fn end_round(&mut self, events: &mut Vec<BoardEvent>) {
        let round = std::mem::take(&mut self.round);
        let names: BTreeSet<_> = round.values().map(name).collect();
        let known = self.last().into_iter();
        for gpu in known.filter(|gpu| !names.contains(&name(gpu))) {
            self.lose(&gpu, events);
        }
        // One that is back after a driver reset may be lost again.
        self.lost.retain(|gpu| !names.contains(gpu));
        self.last = round;
        events.push(BoardEvent::Round(self.last()));
    }

    fn lose(&mut self, gpu: &GpuSample, events: &mut Vec<BoardEvent>) {
        if self.own.has(gpu) {
            self.lose_named(name(gpu), events);
        }
    }

    fn lose_named(&mut self, gpu: String, events: &mut Vec<BoardEvent>) {
        if self.lost.insert(gpu.clone()) {
            events.push(BoardEvent::Lost(gpu));
        }
    }
}

fn name(gpu: &GpuSample) -> String {
    gpu.uuid.clone().unwrap_or_else(|| format!("GPU {}", gpu.index))
}

/// Returns whether `line` speaks of `gpu`: by UUID, or as a row that begins with its index.
fn is_named(gpu: &GpuSample, line: &str) -> bool {
    let by_uuid = gpu.uuid.as_ref().is_some_and(|uuid| line.contains(uuid));
    let by_index = line.split_once(',').is_some_and(|(index, _)| index.parse() == Ok(gpu.index));
    by_uuid || by_index
}

/// The address on the PCI bus that `line` names, such as `0000:3B:00.0`.
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
