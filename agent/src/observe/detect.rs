//! PURE: detects three ways in which a trial wastes a machine without failing.
//!
//! | alarm | sign |
//! | --- | --- |
//! | [`Alarm::Stalled`] | no metric, no output, no processor time, no work on a GPU, for a fixed time or for a multiple of the trial's own median step |
//! | [`Alarm::GpuIdle`] | a GPU of the trial without work |
//! | [`Alarm::GpuHang`] | a GPU that reports full use at low power: typical of a collective operation that waits for a lost rank |
//!
//! Each episode raises one alarm and ends with the first sign of life. An alarm is only a warning. The conditions for
//! stopping a trial are stricter, see [`Detectors::reason_to_stop`]. A missing reading is no sign of anything.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use trial_protocol::{GpuSample, Sample};

use crate::observe::sample::gpu::gpu_name;

/// The share of one core from which a trial counts as working, in percent. A sleeping Python interpreter with a few
/// timers stays well below.
const CPU_WORK_PERCENT: f64 = 2.0;

/// The share of time from which a GPU counts as working, in percent.
const GPU_WORK_PERCENT: f64 = 1.0;

/// The share of time from which a GPU counts as fully used, in percent.
const GPU_FULL_PERCENT: f64 = 99.0;

/// The maximum and minimum number of steps for the median.
const MAX_STEPS: usize = 31;
const MIN_STEPS: usize = 5;

/// The limits of the detection.
#[derive(Debug, Clone, PartialEq)]
pub struct DetectSpec {
    /// The time without a sign of life that is a stall, whatever the length of the trial's steps. `None`: only steps
    /// decide.
    pub stall_after: Option<Duration>,
    /// The number of median steps without a sign of life that is a stall, but never before `min_stall`.
    pub stall_steps: u32,
    /// The shortest stall that is detected by steps.
    pub min_stall: Duration,
    /// The time without work after which a GPU is idle. `None`: no alarm.
    pub gpu_idle_after: Option<Duration>,
    /// The time after which a GPU with the signature of a hang raises the alarm. `None`: no alarm.
    pub gpu_hang_after: Option<Duration>,
    /// The power below which a fully used GPU counts as hanging, in percent of its limit.
    pub gpu_hang_power_percent: f64,
    /// The conditions that end the trial.
    pub stop: StopConditions,
}

/// The conditions that end a trial.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StopConditions {
    /// A stall.
    pub stall: bool,
    /// All GPUs are idle. A trial that uses only one of its GPUs is working.
    pub gpu_idle: bool,
    /// A GPU seems to hang, and the trial neither reports nor prints. Small kernels have the same signature.
    pub gpu_hang: bool,
}

impl Default for DetectSpec {
    fn default() -> Self {
        Self {
            stall_after: Some(Duration::from_mins(30)),
            stall_steps: 10,
            min_stall: Duration::from_mins(5),
            gpu_idle_after: Some(Duration::from_mins(10)),
            gpu_hang_after: Some(Duration::from_mins(5)),
            gpu_hang_power_percent: 35.0,
            stop: StopConditions::default(),
        }
    }
}

/// An observation of the trial.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum DetectorInput<'a> {
    /// The trial reported an intermediate result: the end of a step.
    Metric,
    /// The trial printed something.
    Output,
    /// A reading.
    Sample(&'a Sample),
    /// Only the time has passed.
    Tick,
}

/// A condition that the user should check.
#[derive(Debug, Clone, PartialEq)]
pub enum Alarm {
    /// No sign of life from the trial.
    Stalled {
        /// The time since the last sign of life.
        silent: Duration,
        /// The trial's median step, if known.
        step: Option<Duration>,
    },
    /// A GPU without work.
    GpuIdle {
        /// The GPU's UUID, or else its index.
        gpu: String,
        /// The idle time.
        idle: Duration,
    },
    /// A GPU that seems to hang.
    GpuHang {
        /// The GPU's UUID, or else its index.
        gpu: String,
        /// The time since the hang began.
        hung: Duration,
        /// The GPU's power during the hang, in watts.
        power_watts: f64,
    },
}

impl Alarm {
    /// Returns the stable name of the alarm's kind, for a note.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Stalled { .. } => "stalled",
            Self::GpuIdle { .. } => "gpu-idle",
            Self::GpuHang { .. } => "gpu-hang",
        }
    }

    /// Returns a sentence for the user.
    pub fn message(&self) -> String {
        match self {
            Self::Stalled { silent, step: None } => format!(
                "No metric, no output and no work on processor or GPU for {} s.",
                silent.as_secs()
            ),
            Self::Stalled { silent, step: Some(step) } => format!(
                "No metric, no output and no work on processor or GPU for {} s; a step usually takes {} s.",
                silent.as_secs(),
                step.as_secs_f64()
            ),
            Self::GpuIdle { gpu, idle } => format!(
                "{gpu} has had no work for {} s: the trial may wait for its data, or need no GPU.",
                idle.as_secs()
            ),
            Self::GpuHang { gpu, hung, power_watts } => format!(
                "{gpu} has been fully used at only {power_watts} W for {} s: a collective may wait for a \
                 process that is gone.",
                hung.as_secs()
            ),
        }
    }
}

/// The state of all detectors for one trial. All times are from one monotonic clock.
#[derive(Debug)]
pub struct Detectors {
    spec: DetectSpec,
    /// The time of the last sign of life.
    last_life_sign: Duration,
    /// The time of the last metric or output.
    last_output: Duration,
    stall_reported: bool,
    last_metric: Option<Duration>,
    /// The lengths of the last steps, oldest first.
    steps: VecDeque<Duration>,
    gpus: BTreeMap<String, GpuState>,
    last_sample: Option<Duration>,
}

/// The state of one GPU.
#[derive(Debug, Default)]
struct GpuState {
    idle: Episode,
    hang: Episode,
    /// The GPU's power at the last sign of a hang, in watts.
    power_watts: f64,
    idle_total: Duration,
}

/// A period during which a condition holds.
#[derive(Debug, Default)]
struct Episode {
    since: Option<Duration>,
    reported: bool,
}

impl Episode {
    /// Updates the episode. Returns the duration if it reaches `limit` and was not reported yet.
    fn step(&mut self, holds: bool, now: Duration, limit: Option<Duration>) -> Option<Duration> {
        if !holds {
            *self = Self::default();
            return None;
        }
        self.since.get_or_insert(now);
        let lasted = self.duration_if_at_least(limit, now).filter(|_| !self.reported);
        self.reported |= lasted.is_some();
        lasted
    }

    /// Returns the duration of the episode, if it is at least `limit`.
    fn duration_if_at_least(&self, limit: Option<Duration>, now: Duration) -> Option<Duration> {
        let lasted = now.saturating_sub(self.since?);
        (lasted >= limit?).then_some(lasted)
    }
}

impl Detectors {
    /// Creates the detectors for a trial that starts at `now`.
    pub fn new(spec: DetectSpec, now: Duration) -> Self {
        Self {
            spec,
            last_life_sign: now,
            last_output: now,
            stall_reported: false,
            last_metric: None,
            steps: VecDeque::new(),
            gpus: BTreeMap::new(),
            last_sample: None,
        }
    }

    /// Processes an observation at `now`, and returns the new alarms.
    pub fn observe(&mut self, seen: DetectorInput<'_>, now: Duration) -> Vec<Alarm> {
        let mut alarms = Vec::new();
        if matches!(seen, DetectorInput::Metric | DetectorInput::Output) {
            self.last_output = now;
        }
        let is_alive = match seen {
            DetectorInput::Metric => {
                if let Some(last) = self.last_metric.replace(now) {
                    self.steps.push_back(now.saturating_sub(last));
                    if self.steps.len() > MAX_STEPS {
                        self.steps.pop_front();
                    }
                }
                true
            }
            DetectorInput::Output => true,
            DetectorInput::Sample(sample) => self.add_sample(sample, now, &mut alarms),
            DetectorInput::Tick => false,
        };

        if is_alive {
            self.last_life_sign = now;
            self.stall_reported = false;
        }
        if !self.stall_reported
            && let Some(stalled) = self.stall_alarm(now)
        {
            self.stall_reported = true;
            alarms.push(stalled);
        }
        alarms
    }

    /// Returns the condition that requires the trial's end, if there is one. `now` is the time of the last sample.
    pub fn reason_to_stop(&self, now: Duration) -> Option<Alarm> {
        let DetectSpec { stop, gpu_idle_after, gpu_hang_after, .. } = &self.spec;
        let stalled = || self.stall_alarm(now).filter(|_| stop.stall);
        let idle = || {
            // All GPUs are idle, so the one with the shortest idle time counts.
            let all = self.gpus.iter().map(|(gpu, state)| {
                Some((state.idle.duration_if_at_least(*gpu_idle_after, now)?, gpu.clone()))
            });
            let all: Option<Vec<_>> = all.collect();
            let (idle, gpu) = all?.into_iter().min().filter(|_| stop.gpu_idle)?;
            Some(Alarm::GpuIdle { gpu, idle })
        };
        let hang = || {
            let silent = now.saturating_sub(self.last_output);
            let mut hung = self.gpus.iter().filter_map(|(gpu, state)| {
                let hung = state.hang.duration_if_at_least(*gpu_hang_after, now)?;
                Some(Alarm::GpuHang { gpu: gpu.clone(), hung, power_watts: state.power_watts })
            });
            hung.next().filter(|_| stop.gpu_hang && Some(silent) >= *gpu_hang_after)
        };
        stalled().or_else(hang).or_else(idle)
    }

    fn stall_alarm(&self, now: Duration) -> Option<Alarm> {
        let silent = now.saturating_sub(self.last_life_sign);
        (silent >= self.stall_limit()?).then(|| Alarm::Stalled { silent, step: self.median_step() })
    }

    /// Returns the idle time of each GPU over the whole trial.
    pub fn gpu_idle_total(&self) -> BTreeMap<String, Duration> {
        self.gpus.iter().map(|(name, gpu)| (name.clone(), gpu.idle_total)).collect()
    }

    /// Returns the median of the last steps, if there are enough.
    fn median_step(&self) -> Option<Duration> {
        let mut steps: Vec<_> = self.steps.iter().copied().collect();
        steps.sort_unstable();
        (steps.len() >= MIN_STEPS).then(|| steps[steps.len() / 2])
    }

    /// Returns the time without a sign of life that is a stall.
    fn stall_limit(&self) -> Option<Duration> {
        let by_steps = self
            .median_step()
            .map(|step| step.saturating_mul(self.spec.stall_steps).max(self.spec.min_stall));
        [by_steps, self.spec.stall_after].into_iter().flatten().min()
    }

    /// Processes a sample. Returns whether the sample shows work.
    fn add_sample(&mut self, sample: &Sample, now: Duration, alarms: &mut Vec<Alarm>) -> bool {
        let since_last = now.saturating_sub(self.last_sample.replace(now).unwrap_or(now));
        let cpu = sample.process.as_ref().and_then(|process| process.cpu_percent);
        let mut works = cpu.is_some_and(|percent| percent >= CPU_WORK_PERCENT);

        let names = sample.gpus.iter().map(gpu_name).collect::<Vec<_>>();
        // The state of a GPU without a reading is unknown.
        self.gpus.iter_mut().filter(|(gpu, _)| !names.contains(gpu)).for_each(|(_, state)| {
            (state.idle, state.hang) = Default::default();
        });

        for gpu in &sample.gpus {
            let name = gpu_name(gpu);
            let state = self.gpus.entry(name.clone()).or_default();
            let is_idle = gpu.utilization_percent.is_some_and(|used| used < GPU_WORK_PERCENT);
            let hang_power = self.spec.hang_power(gpu);

            // The GPU may have worked before the first idle sample.
            if is_idle && state.idle.since.is_some() {
                state.idle_total += since_last;
            }
            if let Some(idle) = state.idle.step(is_idle, now, self.spec.gpu_idle_after) {
                alarms.push(Alarm::GpuIdle { gpu: name.clone(), idle });
            }
            let hung = state.hang.step(hang_power.is_some(), now, self.spec.gpu_hang_after);
            state.power_watts = hang_power.unwrap_or_default();
            if let Some((hung, power_watts)) = hung.zip(hang_power) {
                alarms.push(Alarm::GpuHang { gpu: name, hung, power_watts });
            }
            works |= hang_power.is_none()
                && gpu.utilization_percent.is_some_and(|used| used >= GPU_WORK_PERCENT);
        }
        works
    }
}

impl DetectSpec {
    /// Returns the GPU's power, if the GPU has the signature of a hang.
    fn hang_power(&self, gpu: &GpuSample) -> Option<f64> {
        let (used, power, limit) =
            (gpu.utilization_percent?, gpu.power_watts?, gpu.power_limit_watts?);
        let hangs = used >= GPU_FULL_PERCENT && 100.0 * power < self.gpu_hang_power_percent * limit;
        hangs.then_some(power)
    }
}

#[cfg(test)]
mod tests;
