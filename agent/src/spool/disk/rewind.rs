//! Acknowledged facts that stay on the disk for a manager that requests them again.

use tracing::warn;

use super::Disk;

impl Disk {
    /// Deletes the acknowledged facts that are kept for a manager that requests them again. Returns `false` if there
    /// were none.
    pub(super) fn delete_acked_facts(&mut self) -> bool {
        let facts = &mut self.files.facts;
        let before = facts.files.forgotten();
        if let Err(error) = facts.files.delete_acked(facts.open.as_ref().map(|open| open.first), 0)
        {
            warn!("cannot delete acknowledged reports in {}: {error}", self.files.dir.display());
        }
        let after = facts.files.forgotten();
        self.shared.lock().facts.forgotten = after;
        after > before
    }

    pub(super) fn rewind(&mut self, to: Option<u64>) {
        let files = &mut self.files.facts.files;
        let found = files.rewind(to);
        self.shared.lock().facts.rewind(found, files.forgotten());
        self.files.facts.acked_unsaved = true;
    }
}
