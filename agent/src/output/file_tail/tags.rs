//! PURE: names for a tag that event files of several folders contain, as Keras writes it into `train` and `validation`.
//!
//! The folder that first writes a tag keeps its plain name. The reason is that most trials write into one folder, whose
//! name may contain the time of day. For other folders, the folder's name is put before the tag.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::collect::MAX_NAME_BYTES;

/// The maximum number of remembered names. The registry records no further names anyway.
const MAX_REMEMBERED_TAGS: usize = 1024;

/// The folder that owns each name.
#[derive(Debug, Default)]
pub(super) struct TagFolders(BTreeMap<String, PathBuf>);

impl TagFolders {
    /// Returns the name of the metric that a file in `folder`, below `root`, writes under `tag`.
    pub(super) fn metric_name(&mut self, tag: String, folder: &Path, root: &Path) -> String {
        let below = folder.strip_prefix(root).ok();
        let prefixed = |prefix: &Path| format!("{}/{tag}", prefix.display());
        let with_last = folder.file_name().map(|last| prefixed(Path::new(last)));
        let with_path = below.filter(|below| below.components().count() > 1).map(prefixed);
        let names = [Some(tag.clone()), with_last, with_path];
        for name in names.into_iter().flatten().filter(|name| name.len() <= MAX_NAME_BYTES) {
            match self.0.get(&name) {
                Some(owner) if owner == folder => return name,
                Some(_) => {}
                None if self.0.len() < MAX_REMEMBERED_TAGS => {
                    self.0.insert(name.clone(), folder.to_owned());
                    return name;
                }
                None => return name,
            }
        }
        tag
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_of_several_folders_has_several_names() {
        let mut tags = TagFolders::default();
        #[rustfmt::skip]
        let table = [
            ("loss", "/logs/at-12-30/train",      "loss"),
            ("loss", "/logs/at-12-30/validation", "validation/loss"),
            ("lr",   "/logs/at-12-30/train",      "lr"),
            ("acc",  "/logs/at-12-30/validation", "acc"),
            ("loss", "/logs/at-12-30/train",      "loss"),
            ("loss", "/logs/at-12-31/validation", "at-12-31/validation/loss"),
            ("loss", "/logs",                     "logs/loss"),
            ("loss", "/logs/at-12-30/validation", "validation/loss"),
        ];
        for (tag, folder, name) in table {
            let named = tags.metric_name(tag.to_owned(), Path::new(folder), Path::new("/logs"));
            assert_eq!(named, name, "{tag} in {folder}");
        }
        let long = "x".repeat(MAX_NAME_BYTES);
        for folder in ["/logs/a", "/logs/b"] {
            assert_eq!(tags.metric_name(long.clone(), Path::new(folder), Path::new("/logs")), long);
        }
    }
}
