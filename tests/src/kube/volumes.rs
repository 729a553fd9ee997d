//! The volumes of pods: folders of this machine, laid out as by the kubelet.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine as _;
use serde_json::Value;

use super::Shared;
use super::objects::string_at;

/// The interval between two updates of the volumes. The real kubelet takes a minute.
pub(super) const UPDATE_INTERVAL: Duration = Duration::from_millis(300);

/// Creates a pod's volumes below `folder`. Returns their names and paths.
pub(super) fn create_volumes(
    shared: &Shared,
    spec: &Value,
    folder: &Path,
) -> Result<Vec<(String, PathBuf)>, String> {
    let group = spec.pointer("/securityContext/fsGroup").and_then(Value::as_u64);
    let mut all = Vec::new();
    for volume in spec["volumes"].as_array().into_iter().flatten() {
        let name = string_at(volume, "/name");
        let place = volume_folder(shared, volume, folder);
        fs::create_dir_all(&place).map_err(|error| format!("{}: {error}", place.display()))?;
        // With `fsGroup`, new files in the volume belong to this group. Without it, or if the tests do not
        // run as root, every user may write.
        let mode = if group.is_some() { 0o2777 } else { 0o777 };
        let group = group.and_then(|group| u32::try_from(group).ok());
        drop(chown(&place, None, group));
        fs::set_permissions(&place, Permissions::from_mode(mode)).map_err(|e| e.to_string())?;
        write_secrets(shared, volume, &place)?;
        all.push((name, place));
    }
    Ok(all)
}

/// Writes the present content of Secrets into the volumes, as the kubelet does periodically.
pub(super) fn update_volumes(shared: &Shared, spec: &Value, folder: &Path) {
    for volume in spec["volumes"].as_array().into_iter().flatten() {
        // If a Secret was deleted, the kubelet keeps its last content.
        drop(write_secrets(shared, volume, &volume_folder(shared, volume, folder)));
    }
}

/// Returns a volume's folder. It is in the pod's folder or, for volumes that pods share, in a common folder.
fn volume_folder(shared: &Shared, volume: &Value, folder: &Path) -> PathBuf {
    let own = ["emptyDir", "projected", "secret"].iter().any(|kind| !volume[*kind].is_null());
    let root = if own { folder.join("volumes") } else { shared.folder.join("shares") };
    root.join(string_at(volume, "/name"))
}

/// Writes a volume's Secrets into its folder. The files are links into a hidden folder that is replaced as a
/// whole.
fn write_secrets(shared: &Shared, volume: &Value, place: &Path) -> Result<(), String> {
    let projected = volume.pointer("/projected/sources").and_then(Value::as_array);
    let names = projected.into_iter().flatten().map(|source| string_at(source, "/secret/name"));
    let names = names
        .chain(volume.pointer("/secret/secretName").and_then(Value::as_str).map(str::to_owned));
    let mut files = Vec::new();
    for name in names {
        let secret = shared.objects.get("secrets", &name);
        let secret = secret.ok_or(format!("secret \"{name}\" not found"))?;
        for (key, value) in secret["data"].as_object().into_iter().flatten() {
            let value = value.as_str().unwrap_or_default();
            let bytes = base64::engine::general_purpose::STANDARD.decode(value);
            files.push((key.clone(), bytes.map_err(|error| error.to_string())?));
        }
    }
    if files.is_empty() {
        return Ok(());
    }
    let failed = |error: std::io::Error| format!("{}: {error}", place.display());
    let current = place.join("..data");
    let old = fs::read_link(&current).ok();
    let number = old.as_ref().and_then(|old| old.to_str()?.strip_prefix("..")?.parse::<u64>().ok());
    let new = format!("..{}", number.unwrap_or(0) + 1);
    fs::create_dir_all(place.join(&new)).map_err(failed)?;
    for (key, bytes) in &files {
        fs::write(place.join(&new).join(key), bytes).map_err(failed)?;
        let readable = Permissions::from_mode(0o444);
        fs::set_permissions(place.join(&new).join(key), readable).map_err(failed)?;
    }
    let part = place.join("..data_tmp");
    symlink(&new, &part).and_then(|()| fs::rename(&part, &current)).map_err(failed)?;
    for (key, _) in &files {
        // Fails if the link exists from an earlier update.
        drop(symlink(Path::new("..data").join(key), place.join(key)));
    }
    if let Some(old) = old {
        drop(fs::remove_dir_all(place.join(old)));
    }
    Ok(())
}
