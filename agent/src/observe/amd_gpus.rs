//! Reads AMD's GPUs on a thread of its own. The card's driver answers reads of its kernel files, and such a read does
//! not return while the driver resets the card.

use std::path::{Path, PathBuf};
use std::sync::mpsc as blocking;
use std::thread;
use std::time::Duration;

use tokio::sync::mpsc;
use trial_protocol::GpuSample;

use crate::observe::sample::amd;
use crate::observe::sample::gpu::{GpuTable, GpuTableEvent, VisibleGpus};
use crate::output::{HELPER_STACK_BYTES, IntakeEvent};

/// The GPUs and their last readings.
#[derive(Debug)]
pub(super) struct AmdGpus {
    root: PathBuf,
    /// Requests a reading from the thread. `None`: there is no thread, because no GPU was found yet.
    request: Option<blocking::SyncSender<()>>,
    events: mpsc::Sender<IntakeEvent>,
    /// The last readings.
    pub(super) table: GpuTable,
}

impl AmdGpus {
    /// Creates a reader of the GPUs under `root`, which is `/` except in tests. It reads nothing yet.
    pub(super) fn new(
        root: &Path,
        interval: Duration,
        own: VisibleGpus,
        events: mpsc::Sender<IntakeEvent>,
    ) -> Self {
        Self { root: root.to_owned(), request: None, events, table: GpuTable::new(interval, own) }
    }

    /// Requests another reading, unless one is in progress. It arrives as [`IntakeEvent::AmdReading`].
    pub(super) fn request_reading(&mut self) {
        if self.request.is_none() && amd::is_present(&self.root) {
            self.request = self.start();
        }
        if let Some(request) = &self.request {
            // The queue is full while the thread waits for the driver.
            request.try_send(()).ok();
        }
    }

    fn start(&self) -> Option<blocking::SyncSender<()>> {
        let (request, requests) = blocking::sync_channel(1);
        let (root, events) = (self.root.clone(), self.events.clone());
        let named = thread::Builder::new().name("cards".to_owned()).stack_size(HELPER_STACK_BYTES);
        // The thread ends with its receiver, or never, if the driver hangs. It is never joined.
        let work = move || {
            while requests.recv().is_ok() {
                if events.blocking_send(IntakeEvent::AmdReading(amd::read_gpus(&root))).is_err() {
                    return;
                }
            }
        };
        // If no thread can be started, the next sample tries again.
        named.spawn(work).is_ok().then_some(request)
    }

    /// Processes a reading.
    pub(super) fn add_reading(
        &mut self,
        gpus: Vec<GpuSample>,
        now: Duration,
    ) -> Vec<GpuTableEvent> {
        self.table.add_round(gpus, now)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use nix::sys::stat::Mode;

    use super::*;

    const INTERVAL: Duration = Duration::from_secs(5);

    fn sent_gpus(received: &mut mpsc::Receiver<IntakeEvent>) -> Vec<GpuSample> {
        match received.blocking_recv() {
            Some(IntakeEvent::AmdReading(gpus)) => gpus,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_driver_that_hangs_delays_no_reading() {
        let root = tempfile::tempdir().unwrap();
        let device = root.path().join("sys/class/drm/card0/device");
        fs::create_dir_all(&device).unwrap();
        fs::write(device.join("vendor"), "0x1002\n").unwrap();
        fs::write(device.join("unique_id"), "a1\n").unwrap();
        // Opening a FIFO blocks until it has a writer.
        let busy = device.join("gpu_busy_percent");
        nix::unistd::mkfifo(&busy, Mode::S_IRWXU).unwrap();
        let (events, mut received) = mpsc::channel(8);
        let mut gpus = AmdGpus::new(root.path(), INTERVAL, VisibleGpus::default(), events);
        for _ in 0..5 {
            gpus.request_reading();
        }
        assert!(received.try_recv().is_err());
        assert_eq!(gpus.table.current_readings(Duration::ZERO), []);

        fs::write(&busy, "87\n").unwrap();
        let read = sent_gpus(&mut received);
        assert_eq!(read[0].utilization_percent, Some(87.0));
        assert_eq!(gpus.add_reading(read.clone(), INTERVAL).len(), 1);
        assert_eq!(gpus.table.current_readings(INTERVAL), read);
        // An old reading is not current, but it is still the last one.
        assert_eq!(gpus.table.current_readings(INTERVAL * 20), []);
        assert_eq!(gpus.table.last_readings(), read);
        let lost = gpus.add_reading(Vec::new(), INTERVAL * 2);
        assert!(lost.contains(&GpuTableEvent::Lost("a1".to_owned())), "{lost:?}");
        assert_eq!(gpus.table.lost_gpus(), ["a1"]);
    }

    #[test]
    fn without_a_card_there_is_no_thread() {
        let root = tempfile::tempdir().unwrap();
        let mut gpus =
            AmdGpus::new(root.path(), INTERVAL, VisibleGpus::default(), mpsc::channel(1).0);
        gpus.request_reading();
        assert!(gpus.request.is_none());
    }
}
