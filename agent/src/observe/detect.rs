//! PURE: three ways in which a trial wastes a machine without failing.
//!
//! | alarm | sign |
//! | --- | --- |
//! | [`Alarm::Stalled`] | no metric, no output, no processor time, no work on a GPU, for a fixed time or for a multiple of the trial's own median step |
//! | [`Alarm::GpuIdle`] | a GPU that the trial has and does not use |
//! | [`Alarm::GpuHang`] | a GPU that says it is fully used at little power: typical of a collective that waits for a rank that is gone |
//!
//! Each episode alarms once and ends with the first sign of life. An alarm is a warning. What is worth a trial's end, where
//! that is wanted, is less: [`Detectors::reason_to_stop`]. What was not read is no sign of anything.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use trial_protocol::{GpuSample, Sample};

/// Share of one core over which a trial is at work, in percent. A sleeping Python interpreter with a few
/// timers stays well below.
const CPU_WORK_PERCENT: f64 = 2.0;

/// Share of time over which a GPU is at work, in percent.
const GPU_WORK_PERCENT: f64 = 1.0;

/// Share of time from which a GPU counts as fully used, in percent.
const GPU_FULL_PERCENT: f64 = 99.0;

/// Steps that the median is taken over, and how many there must be.
const STEPS_MOST: usize = 31;
const STEPS_LEAST: usize = 5;

/// The limits of the detection.
#[derive(Debug, Clone, PartialEq)]
pub struct DetectSpec {
    /// No sign of life for this long is a stall, whatever the trial's steps. `None`: only steps decide.
    pub stall_after: Option<Duration>,
    /// No sign of life for this many median steps is a stall, but never before `stall_least`.
    pub stall_steps: u32,
    /// The shortest stall that the steps can make.
    pub stall_least: Duration,
    /// A GPU without work for this long is idle. `None`: no alarm.
    pub gpu_idle_after: Option<Duration>,
    /// The signature of a hang for this long is one. `None`: no alarm.
    pub gpu_hang_after: Option<Duration>,
    /// The power below which a fully used GPU hangs, in percent of its limit.
    pub gpu_hang_power_percent: f64,
    /// The conditions that end the trial.
    pub stop: StopOn,
}

/// The conditions that end a trial.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StopOn {
    /// A stall.
    pub stall: bool,
    /// GPUs without work, if that is all of them: a trial that works on one of its GPUs works.
    pub gpu_idle: bool,
    /// A GPU that seems to hang, while the trial neither reports nor prints: small kernels look alike.
    pub gpu_hang: bool,
}

impl Default for DetectSpec {
    fn default() -> Self {
        Self {
            stall_after: Some(Duration::from_mins(30)),
            stall_steps: 10,
            stall_least: Duration::from_mins(5),
            gpu_idle_after: Some(Duration::from_mins(10)),
            gpu_hang_after: Some(Duration::from_mins(5)),
            gpu_hang_power_percent: 35.0,
            stop: StopOn::default(),
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
    /// Nothing; time has passed.
    Tick,
}

/// Something a person should look at.
#[derive(Debug, Clone, PartialEq)]
pub enum Alarm {
    /// No sign of life.
    Stalled {
        /// For how long.
        silent: Duration,
        /// The trial's median step, where it has one.
        step: Option<Duration>,
    },
    /// A GPU without work.
    GpuIdle {
        /// Its UUID, or else its index.
        gpu: String,
        /// For how long.
        idle: Duration,
    },
    /// A GPU that seems to hang.
    GpuHang {
        /// Its UUID, or else its index.
        gpu: String,
        /// For how long.
        hung: Duration,
        /// The power it draws meanwhile, in watts.
        power_watts: f64,
    },
}

impl Alarm {
    /// Stable name of the kind of alarm, for a note.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Stalled { .. } => "stalled",
            Self::GpuIdle { .. } => "gpu-idle",
            Self::GpuHang { .. } => "gpu-hang",
        }
    }

    /// One sentence for a person.
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

/// The state of all detectors for one trial. Times are of one monotonic clock.
#[derive(Debug)]
pub struct Detectors {
    spec: DetectSpec,
    /// The last sign of life.
    alive: Duration,
    /// The last metric or output.
    last_output: Duration,
    stall_reported: bool,
    last_metric: Option<Duration>,
    /// The last steps' lengths, oldest first.
    steps: VecDeque<Duration>,
    gpus: BTreeMap<String, Gpu>,
    last_sample: Option<Duration>,
}

/// The memory of one GPU.
#[derive(Debug, Default)]
struct Gpu {
    idle: Episode,
    hang: Episode,
    /// The power that it drew when it seemed to hang last, in watts.
    power_watts: f64,
    idle_total: Duration,
}

/// A time for which something has been so.
#[derive(Debug, Default)]
struct Episode {
    since: Option<Duration>,
    reported: bool,
}

impl Episode {
    /// Notes whether it is still so, and for how long if that is to be told now.
    fn step(&mut self, is_so: bool, now: Duration, limit: Option<Duration>) -> Option<Duration> {
        if !is_so {
            *self = Self::default();
            return None;
        }
        self.since.get_or_insert(now);
        let lasted = self.longer_than(limit, now).filter(|_| !self.reported);
        self.reported |= lasted.is_some();
        lasted
    }

    /// Returns how long it has been so, if that is too long.
    fn longer_than(&self, limit: Option<Duration>, now: Duration) -> Option<Duration> {
        let lasted = now.saturating_sub(self.since?);
        (lasted >= limit?).then_some(lasted)
    }
}

impl Detectors {
    /// Detectors for a trial that starts `now`.
    pub fn new(spec: DetectSpec, now: Duration) -> Self {
        Self {
            spec,
            alive: now,
            last_output: now,
            stall_reported: false,
            last_metric: None,
            steps: VecDeque::new(),
            gpus: BTreeMap::new(),
            last_sample: None,
        }
    }

    /// Takes what was seen at `now` and gives the alarms that it completes.
    pub fn step(&mut self, seen: DetectorInput<'_>, now: Duration) -> Vec<Alarm> {
        let mut alarms = Vec::new();
        if matches!(seen, DetectorInput::Metric | DetectorInput::Output) {
            self.last_output = now;
        }
        let is_alive = match seen {
            DetectorInput::Metric => {
                if let Some(last) = self.last_metric.replace(now) {
                    self.steps.push_back(now.saturating_sub(last));
                    if self.steps.len() > STEPS_MOST {
                        self.steps.pop_front();
                    }
                }
                true
            }
            DetectorInput::Output => true,
            DetectorInput::Sample(sample) => self.enter_sample(sample, now, &mut alarms),
            DetectorInput::Tick => false,
        };

        if is_alive {
            self.alive = now;
            self.stall_reported = false;
        }
        if !self.stall_reported
            && let Some(stalled) = self.stalled(now)
        {
            self.stall_reported = true;
            alarms.push(stalled);
        }
        alarms
    }

    /// Returns the condition that is to end the trial, if there is one; `now` is when the last sample was taken.
    pub fn reason_to_stop(&self, now: Duration) -> Option<Alarm> {
        let DetectSpec { stop, gpu_idle_after, gpu_hang_after, .. } = &self.spec;
        let stalled = || self.stalled(now).filter(|_| stop.stall);
        let idle = || {
            // Of several, the one that is idle for the shortest time counts: all are.
            let all = self.gpus.iter().map(|(gpu, state)| {
                Some((state.idle.longer_than(*gpu_idle_after, now)?, gpu.clone()))
            });
            let all: Option<Vec<_>> = all.collect();
            let (idle, gpu) = all?.into_iter().min().filter(|_| stop.gpu_idle)?;
            Some(Alarm::GpuIdle { gpu, idle })
        };
        let hang = || {
            let silent = now.saturating_sub(self.last_output);
            let mut hung = self.gpus.iter().filter_map(|(gpu, state)| {
                let hung = state.hang.longer_than(*gpu_hang_after, now)?;
                Some(Alarm::GpuHang { gpu: gpu.clone(), hung, power_watts: state.power_watts })
            });
            hung.next().filter(|_| stop.gpu_hang && Some(silent) >= *gpu_hang_after)
        };
        stalled().or_else(hang).or_else(idle)
    }

    fn stalled(&self, now: Duration) -> Option<Alarm> {
        let silent = now.saturating_sub(self.alive);
        (silent >= self.stall_limit()?).then(|| Alarm::Stalled { silent, step: self.median_step() })
    }

    /// Returns how long each GPU has had no work, over the whole trial.
    pub fn gpu_idle_total(&self) -> BTreeMap<String, Duration> {
        self.gpus.iter().map(|(name, gpu)| (name.clone(), gpu.idle_total)).collect()
    }

    /// The median of the last steps, once there are enough.
    fn median_step(&self) -> Option<Duration> {
        let mut steps: Vec<_> = self.steps.iter().copied().collect();
        steps.sort_unstable();
        (steps.len() >= STEPS_LEAST).then(|| steps[steps.len() / 2])
    }

    /// Returns how long a silence may be.
    fn stall_limit(&self) -> Option<Duration> {
        let by_steps = self
            .median_step()
            .map(|step| step.saturating_mul(self.spec.stall_steps).max(self.spec.stall_least));
        [by_steps, self.spec.stall_after].into_iter().flatten().min()
    }

    /// Returns whether the sample shows work.
    fn enter_sample(&mut self, sample: &Sample, now: Duration, alarms: &mut Vec<Alarm>) -> bool {
        let since_last = now.saturating_sub(self.last_sample.replace(now).unwrap_or(now));
        let cpu = sample.process.as_ref().and_then(|process| process.cpu_percent);
        let mut works = cpu.is_some_and(|percent| percent >= CPU_WORK_PERCENT);

        let names = sample.gpus.iter().map(name).collect::<Vec<_>>();
        // A GPU that was not read may have been idle or not.
        self.gpus.iter_mut().filter(|(gpu, _)| !names.contains(gpu)).for_each(|(_, state)| {
            (state.idle, state.hang) = Default::default();
        });

        for gpu in &sample.gpus {
            let name = name(gpu);
            let state = self.gpus.entry(name.clone()).or_default();
            let is_idle = gpu.utilization_percent.is_some_and(|used| used < GPU_WORK_PERCENT);
            let hang_power = self.spec.hang_power(gpu);

            // The time before the first idle sample is not known to have been idle.
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

fn name(gpu: &GpuSample) -> String {
    gpu.uuid.clone().unwrap_or_else(|| format!("GPU {}", gpu.index))
}

impl DetectSpec {
    /// The power a GPU draws, if it bears the signature of a hang.
    fn hang_power(&self, gpu: &GpuSample) -> Option<f64> {
        let (used, power, limit) =
            (gpu.utilization_percent?, gpu.power_watts?, gpu.power_limit_watts?);
        let hangs = used >= GPU_FULL_PERCENT && 100.0 * power < self.gpu_hang_power_percent * limit;
        hangs.then_some(power)
    }
}

#[cfg(test)]
mod tests;
