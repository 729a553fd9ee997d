//! PURE: which of a machine's GPUs are the trial's. `nvidia-smi` shows all of them, whatever the trial may see: the work of
//! others' would hide a stall, and their idling would be held against it.

use std::ffi::OsString;

use trial_protocol::GpuSample;

/// The variables that keep GPUs from a trial, as CUDA and HIP read them. HIP heeds CUDA's, too.
const VARIABLES: [&str; 3] =
    ["CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"];

/// The GPUs that a trial may see.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GpuAllotment {
    /// Indices and beginnings of UUIDs. `None`: all.
    only: Option<Vec<String>>,
}

impl GpuAllotment {
    /// As the trial's variables say. Parts of a GPU (MIG) have ids of their own, of which a reading knows nothing: with
    /// such a one, all may be the trial's.
    pub fn by(variable: &dyn Fn(&str) -> Option<OsString>) -> Self {
        let Some(list) = VARIABLES.into_iter().find_map(variable) else { return Self::default() };
        let list = list.to_string_lossy();
        let entries = list.split(',').map(str::trim);
        // The first one that is none, such as -1, hides all that follow.
        let only: Vec<_> =
            entries.take_while(|entry| is_device(entry)).map(str::to_owned).collect();
        let parts = only.iter().any(|entry| entry.starts_with("MIG-"));
        Self { only: (!parts).then_some(only) }
    }

    /// Returns whether there are none.
    pub fn is_none(&self) -> bool {
        self.only.as_ref().is_some_and(Vec::is_empty)
    }

    /// Returns whether they are all that there are.
    pub fn is_all(&self) -> bool {
        self.only.is_none()
    }

    /// Returns whether this is one of them.
    pub fn has(&self, gpu: &GpuSample) -> bool {
        let is = |entry: &String| match entry.parse::<u32>() {
            Ok(index) => index == gpu.index,
            Err(_) => gpu.uuid.as_ref().is_some_and(|uuid| uuid.starts_with(entry.as_str())),
        };
        self.only.as_ref().is_none_or(|only| only.iter().any(is))
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
    fn the_trials_gpus_are_those_that_cuda_shows_it() {
        #[rustfmt::skip]
        let table: [Row<'_>; 12] = [
            ("nothing is said",        &[],                                                        [true, true]),
            ("one",                    &[("CUDA_VISIBLE_DEVICES", "1")],                           [false, true]),
            ("both",                   &[("CUDA_VISIBLE_DEVICES", "1, 0")],                        [true, true]),
            ("another",                &[("CUDA_VISIBLE_DEVICES", "7")],                           [false, false]),
            ("none",                   &[("CUDA_VISIBLE_DEVICES", "")],                            [false, false]),
            ("none, in numbers",       &[("CUDA_VISIBLE_DEVICES", "-1")],                          [false, false]),
            ("none, in words",         &[("CUDA_VISIBLE_DEVICES", "NoDevFiles")],                  [false, false]),
            ("up to what is none",     &[("CUDA_VISIBLE_DEVICES", "0,-1,1")],                      [true, false]),
            ("by its UUID",            &[("CUDA_VISIBLE_DEVICES", "GPU-5f0c")],                    [true, false]),
            ("by how that begins",     &[("CUDA_VISIBLE_DEVICES", "GPU-1")],                       [false, true]),
            ("a part of one",          &[("CUDA_VISIBLE_DEVICES", "MIG-c7384736")],                [true, true]),
            ("HIP's, unless CUDA's is", &[("HIP_VISIBLE_DEVICES", "0"), ("CUDA_VISIBLE_DEVICES", "1")], [false, true]),
        ];
        let gpus = ["GPU-5f0c", "GPU-1d1e"].map(|uuid| Some(uuid.to_owned()));
        for (says, variables, expected) in table {
            let set = |name: &str| {
                let found = variables.iter().find(|(variable, _)| *variable == name);
                found.map(|(_, value)| OsString::from(value))
            };
            let own = GpuAllotment::by(&set);
            let has = [0, 1].map(|index: u32| {
                let uuid = gpus[usize::try_from(index).unwrap()].clone();
                own.has(&GpuSample { index, uuid, ..GpuSample::default() })
            });
            assert_eq!(has, expected, "{says}");
            assert_eq!(
                (own.is_all(), own.is_none()),
                match variables {
                    [] | [(_, "MIG-c7384736")] => (true, false),
                    [(_, "" | "-1" | "NoDevFiles")] => (false, true),
                    _ => (false, false),
                },
                "{says}"
            );
        }
    }
}
