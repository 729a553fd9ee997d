//! PURE: selects the trial's GPUs among those of the machine. `nvidia-smi` shows all GPUs, even those hidden from the
//! trial. The work of other GPUs would hide a stall, and their idle time would count against the trial.

use std::ffi::OsString;

use trial_protocol::GpuSample;

/// The variables that hide GPUs from a trial, as read by CUDA and HIP. HIP also reads CUDA's variable.
const VISIBILITY_VARIABLES: [&str; 3] =
    ["CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"];

/// The GPUs that a trial may see.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VisibleGpus {
    /// Indices and prefixes of UUIDs. `None`: all GPUs.
    visible: Option<Vec<String>>,
}

impl VisibleGpus {
    /// Returns the GPUs that the trial's variables select. Parts of a GPU (MIG) have ids of their own, which no
    /// reading contains. If such an id is present, all GPUs may be the trial's.
    pub fn from_variables(variable: &dyn Fn(&str) -> Option<OsString>) -> Self {
        let Some(list) = VISIBILITY_VARIABLES.into_iter().find_map(variable) else {
            return Self::default();
        };
        let list = list.to_string_lossy();
        let entries = list.split(',').map(str::trim);
        // The first invalid entry, such as -1, hides all entries after it.
        let visible: Vec<_> =
            entries.take_while(|entry| is_device(entry)).map(str::to_owned).collect();
        let parts = visible.iter().any(|entry| entry.starts_with("MIG-"));
        Self { visible: (!parts).then_some(visible) }
    }

    /// Returns whether the trial has no GPU.
    pub fn has_none(&self) -> bool {
        self.visible.as_ref().is_some_and(Vec::is_empty)
    }

    /// Returns whether the trial has all GPUs.
    pub fn has_all(&self) -> bool {
        self.visible.is_none()
    }

    /// Returns whether the trial may use `gpu`.
    pub fn has_gpu(&self, gpu: &GpuSample) -> bool {
        let is = |entry: &String| match entry.parse::<u32>() {
            Ok(index) => index == gpu.index,
            Err(_) => gpu.uuid.as_ref().is_some_and(|uuid| uuid.starts_with(entry.as_str())),
        };
        self.visible.as_ref().is_none_or(|visible| visible.iter().any(is))
    }
}

fn is_device(entry: &str) -> bool {
    ["GPU-", "MIG-"].iter().any(|prefix| entry.starts_with(prefix)) || entry.parse::<u32>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A name, the variables, and which of two GPUs are the trial's.
    type Row<'a> = (&'a str, &'a [(&'a str, &'a str)], [bool; 2]);

    #[test]
    fn the_trials_gpus_are_those_visible_to_cuda() {
        #[rustfmt::skip]
        let table: [Row<'_>; 12] = [
            ("no variable",            &[],                                                        [true, true]),
            ("one",                    &[("CUDA_VISIBLE_DEVICES", "1")],                           [false, true]),
            ("both",                   &[("CUDA_VISIBLE_DEVICES", "1, 0")],                        [true, true]),
            ("another",                &[("CUDA_VISIBLE_DEVICES", "7")],                           [false, false]),
            ("none",                   &[("CUDA_VISIBLE_DEVICES", "")],                            [false, false]),
            ("none, as a number",      &[("CUDA_VISIBLE_DEVICES", "-1")],                          [false, false]),
            ("none, as a word",        &[("CUDA_VISIBLE_DEVICES", "NoDevFiles")],                  [false, false]),
            ("up to what is none",     &[("CUDA_VISIBLE_DEVICES", "0,-1,1")],                      [true, false]),
            ("by its UUID",            &[("CUDA_VISIBLE_DEVICES", "GPU-5f0c")],                    [true, false]),
            ("by a UUID's prefix",     &[("CUDA_VISIBLE_DEVICES", "GPU-1")],                       [false, true]),
            ("a part of one",          &[("CUDA_VISIBLE_DEVICES", "MIG-c7384736")],                [true, true]),
            ("HIP's, unless CUDA's is", &[("HIP_VISIBLE_DEVICES", "0"), ("CUDA_VISIBLE_DEVICES", "1")], [false, true]),
        ];
        let gpus = ["GPU-5f0c", "GPU-1d1e"].map(|uuid| Some(uuid.to_owned()));
        for (case, variables, expected) in table {
            let set = |name: &str| {
                let found = variables.iter().find(|(variable, _)| *variable == name);
                found.map(|(_, value)| OsString::from(value))
            };
            let own = VisibleGpus::from_variables(&set);
            let has = [0, 1].map(|index: u32| {
                let uuid = gpus[usize::try_from(index).unwrap()].clone();
                own.has_gpu(&GpuSample { index, uuid, ..GpuSample::default() })
            });
            assert_eq!(has, expected, "{case}");
            assert_eq!(
                (own.has_all(), own.has_none()),
                match variables {
                    [] | [(_, "MIG-c7384736")] => (true, false),
                    [(_, "" | "-1" | "NoDevFiles")] => (false, true),
                    _ => (false, false),
                },
                "{case}"
            );
        }
    }
}
