//! Reads AMD GPUs from kernel files (`Documentation/gpu/amdgpu`), without a tool or a library.

use std::fs;
use std::path::{Path, PathBuf};

use trial_protocol::GpuSample;

use crate::util::numbers::to_f64;

/// AMD's PCI vendor id.
const AMD_VENDOR_ID: &str = "0x1002";

/// Reads every AMD GPU under `root`, which is `/` except in tests, in the order of the cards. May wait for the driver,
/// and permanently if it hangs.
pub fn read_gpus(root: &Path) -> Vec<GpuSample> {
    let mut cards: Vec<_> = cards(root).collect();
    cards.sort();
    (0..).zip(cards).map(|(index, (_, device))| read_device(index, &device)).collect()
}

/// Returns whether there is an AMD GPU. Does not wait for a driver: the bus provides the vendor of a card.
pub fn is_present(root: &Path) -> bool {
    cards(root).next().is_some()
}

/// Returns the number and the directory of each card.
fn cards(root: &Path) -> impl Iterator<Item = (u32, PathBuf)> {
    fs::read_dir(root.join("sys/class/drm")).into_iter().flatten().filter_map(|entry| {
        let entry = entry.ok()?;
        // `card0`, but not its connectors such as `card0-DP-1`.
        let number: u32 = entry.file_name().to_str()?.strip_prefix("card")?.parse().ok()?;
        let device = entry.path().join("device");
        (read_text(&device, "vendor")? == AMD_VENDOR_ID).then_some((number, device))
    })
}

fn read_device(index: u32, device: &Path) -> GpuSample {
    let sensors = sensors(device);
    let sensor = |file: &str| read_number(sensors.as_deref()?, file);
    let micro = |number: u64| to_f64(number) / 1e6;
    GpuSample {
        index,
        uuid: read_text(device, "unique_id"),
        name: read_text(device, "product_name"),
        utilization_percent: read_number(device, "gpu_busy_percent")
            .map(to_f64)
            .filter(|share| *share <= 100.0),
        memory_used_bytes: read_number(device, "mem_info_vram_used"),
        memory_total_bytes: read_number(device, "mem_info_vram_total"),
        // Microwatts. Newer kernels have the current power, older kernels an average.
        power_watts: sensor("power1_average").or_else(|| sensor("power1_input")).map(micro),
        power_limit_watts: sensor("power1_cap").map(micro),
        // Millidegrees Celsius.
        temperature_celsius: sensor("temp1_input").map(|milli| to_f64(milli) / 1e3),
        // Hertz.
        sm_clock_mhz: sensor("freq1_input").and_then(|hertz| (hertz / 1_000_000).try_into().ok()),
        ecc_uncorrected: None,
        mig_enabled: None,
    }
}

/// Returns the directory of the card's sensors, `hwmon/hwmonN`.
fn sensors(device: &Path) -> Option<PathBuf> {
    let mut found: Vec<_> =
        fs::read_dir(device.join("hwmon")).ok()?.filter_map(Result::ok).map(|e| e.path()).collect();
    found.sort();
    found.into_iter().next()
}

fn read_text(dir: &Path, file: &str) -> Option<String> {
    let text = fs::read_to_string(dir.join(file)).ok()?;
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

fn read_number(dir: &Path, file: &str) -> Option<u64> {
    read_text(dir, file)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_amd_cards_are_read() {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/gpu/amd");
        let gpus = read_gpus(Path::new(root));
        let first = GpuSample {
            index: 0,
            uuid: Some("a1b2c3d4e5f60718".to_owned()),
            name: Some("AMD Instinct MI210".to_owned()),
            utilization_percent: Some(87.0),
            memory_used_bytes: Some(12_884_901_888),
            memory_total_bytes: Some(68_702_699_520),
            power_watts: Some(212.0),
            power_limit_watts: Some(300.0),
            temperature_celsius: Some(54.0),
            sm_clock_mhz: Some(1_700),
            ..GpuSample::default()
        };
        // The second card has few readings, and its invalid share counts as absent.
        let second = GpuSample { index: 1, power_watts: Some(8.5), ..GpuSample::default() };
        assert_eq!(gpus, [first, second]);
    }

    #[test]
    fn a_machine_without_cards_has_no_gpu() {
        let empty = tempfile::tempdir().unwrap();
        assert_eq!(read_gpus(empty.path()), []);
    }
}
