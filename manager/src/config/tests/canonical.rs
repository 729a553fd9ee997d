//! Tests of the canonical form, which is stored, shown by the API, and compared when a search resumes. `NAME.json` in
//! the folder of examples is the form of `NAME.yml`, where `BASE` is the folder of the file.

use std::os::unix::fs::PermissionsExt as _;

use super::*;

/// Returns a copy of the folder of examples, with the files that only their owner may read.
fn examples() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let base = folder.path().canonicalize().unwrap();
    for file in std::fs::read_dir(examples_folder()).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), base.join(file.file_name())).unwrap();
    }
    for name in ["key", "python"] {
        std::fs::write(base.join(name), "").unwrap();
        std::fs::set_permissions(base.join(name), std::fs::Permissions::from_mode(0o600)).unwrap();
    }
    (folder, base)
}

fn examples_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/config/canonical")
}

#[test]
fn the_canonical_form_of_every_platform_stays_the_same() {
    let (_folder, base) = examples();
    let names = [
        "local",
        "hybrid",
        "remote",
        "plugin",
        "openpai",
        "openpai_job",
        "kubernetes",
        "jobset",
        "frameworkcontroller",
        "kubeflow",
        "trainer",
        "legacy",
    ];
    for name in names {
        let spec = load(&base.join(name).with_extension("yml"));
        let spec = spec.unwrap_or_else(|error| panic!("{error}"));
        let written = serde_json::to_string_pretty(&spec.canonical).unwrap();
        let written = written.replace(base.to_str().unwrap(), "BASE") + "\n";
        let expected = std::fs::read_to_string(examples_folder().join(name).with_extension("json"));
        assert_eq!(written, expected.unwrap(), "{name}");
        assert_eq!(from_canonical(&spec.canonical).unwrap(), spec, "{name}");
    }
}
