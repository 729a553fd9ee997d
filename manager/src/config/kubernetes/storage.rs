//! PURE: `storage`, the storage from which pods get the trial's code. It covers NNI 3.0's `K8sNfsConfig` and
//! `K8sAzureStorageConfig`, and two kinds without shared files.

use serde_json::{Value, json};

use super::syntax;
use crate::config::path_base::PathBase;
use crate::config::section::{Problem, Section};
use crate::util::nearest::suggest_names;

/// The storage from which the pods get the code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StorageSpec {
    /// TrialKeeper's, and the default: the agent fetches the code from the manager.
    Http,
    /// TrialKeeper's: the image contains the code.
    Image,
    /// `K8sNfsConfig`.
    Nfs {
        /// The host name or address.
        server: String,
        /// The exported path.
        path: String,
    },
    /// The `pvc` of v1.
    Pvc {
        /// The claim in the namespace (TrialKeeper's). `None`: the template mounts it.
        claim: Option<String>,
        /// The path at which NNI's manager mounts the claim. It is recorded and has no effect.
        path: String,
    },
    /// `K8sAzureStorageConfig`.
    Azure {
        /// The storage account.
        account: String,
        /// The file share.
        share: String,
        /// `keyVaultName`: the Key Vault with the account's key.
        vault: Option<String>,
        /// `keyVaultKey`: the name of the key in the vault.
        vault_key: Option<String>,
        /// `azureKeyFile` (TrialKeeper's): a file with the account's key.
        key_file: Option<String>,
    },
}

/// The fields of all types, in the order of the canonical form.
pub(super) const FIELDS: [&str; 10] = [
    "storageType",
    "storage",
    "server",
    "claimName",
    "path",
    "azureAccount",
    "azureShare",
    "keyVaultName",
    "keyVaultKey",
    "azureKeyFile",
];

const STORAGE_KINDS: [&str; 5] = ["http", "image", "nfs", "pvc", "azureStorage"];

/// Reads `storage`, a word or an object.
pub(super) fn read(section: &mut Section, base: PathBase<'_>) -> Result<StorageSpec, Problem> {
    let value = section.take("storage").unwrap_or_else(|| Value::from("http"));
    let value = if value.is_string() { json!({"storageType": value}) } else { value };
    let mut fields = Section::open(&section.field_path("storage"), value, &FIELDS)?;
    let word = read_storage_kind(&mut fields)?;
    let storage = match folded_kind(&word).as_str() {
        "http" => StorageSpec::Http,
        "image" => StorageSpec::Image,
        "nfs" => StorageSpec::Nfs {
            server: read_required(&mut fields, &word, "server")?,
            path: read_mount_path(&mut fields, &word)?,
        },
        "pvc" => {
            let path = read_mount_path(&mut fields, &word)?;
            let claim = fields.string("claimName")?;
            if let Some(Err(what)) = claim.as_deref().map(syntax::check_object_name) {
                return Err(fields.problem("claimName", what));
            }
            StorageSpec::Pvc { claim, path }
        }
        "azurestorage" => read_azure_storage(&mut fields, &word, base)?,
        _ => {
            let advice = suggest_names(&word, STORAGE_KINDS);
            let what = format!("`{word}` is not known; {advice}");
            return Err(fields.problem("storageType", what));
        }
    };
    section.record("storage", canonical_storage(&storage, fields));
    Ok(storage)
}

/// Reads the type of the storage. NNI's Python objects have both fields.
fn read_storage_kind(fields: &mut Section) -> Result<String, Problem> {
    let first = fields.unrecorded_string("storageType")?;
    let second = fields.unrecorded_string("storage")?;
    if let (Some(first), Some(second)) = (&first, &second)
        && folded_kind(first) != folded_kind(second)
    {
        let what = format!("`{second}` differs from `storageType`, which is `{first}`; keep one");
        return Err(fields.problem("storage", what));
    }
    first.or(second).ok_or_else(|| {
        fields.problem("storageType", format!("is missing; allowed: {}", STORAGE_KINDS.join(", ")))
    })
}

/// Returns the canonical form of a storage: a word, or an object of the fields that its reader has recorded.
fn canonical_storage(storage: &StorageSpec, mut fields: Section) -> Value {
    let word = match storage {
        StorageSpec::Http => return Value::from("http"),
        StorageSpec::Image => return Value::from("image"),
        StorageSpec::Nfs { .. } => "nfs",
        StorageSpec::Pvc { .. } => "pvc",
        StorageSpec::Azure { .. } => "azureStorage",
    };
    fields.record("storageType", word);
    // The fields of the other types have no effect.
    fields.ignore(&FIELDS);
    Value::Object(fields.into_canonical())
}

fn read_azure_storage(
    fields: &mut Section,
    word: &str,
    base: PathBase<'_>,
) -> Result<StorageSpec, Problem> {
    let account = read_required(fields, word, "azureAccount")?;
    let share = read_required(fields, word, "azureShare")?;
    let (vault, vault_key) = (fields.string("keyVaultName")?, fields.string("keyVaultKey")?);
    if vault.is_some() != vault_key.is_some() {
        let missing = if vault.is_some() { "keyVaultKey" } else { "keyVaultName" };
        return Err(fields.problem(missing, "is missing; a Key Vault needs both"));
    }
    let key_file = fields.absolute_path("azureKeyFile", base)?;
    let key_file = key_file.map(|file| file.to_string_lossy().into_owned());
    Ok(StorageSpec::Azure { account, share, vault, vault_key, key_file })
}

fn read_required(fields: &mut Section, word: &str, field: &str) -> Result<String, Problem> {
    let missing = format!("is missing; a storage of type {word} needs it");
    fields.string(field)?.ok_or_else(|| fields.problem(field, missing))
}

/// Reads the absolute path at which the storage is mounted.
fn read_mount_path(fields: &mut Section, word: &str) -> Result<String, Problem> {
    let path = read_required(fields, word, "path")?;
    if path.starts_with('/') {
        return Ok(path);
    }
    Err(fields.problem("path", format!("`{path}` does not begin with a slash")))
}

/// Returns the word for a kind without case and separators, and `azurestorage` for both words of that kind.
fn folded_kind(word: &str) -> String {
    let plain = crate::util::nearest::normalize_name(word);
    if plain == "azurefile" { "azurestorage".to_owned() } else { plain }
}

impl StorageSpec {
    /// Returns whether agents fetch the code from the manager, into the pod or onto the shared storage.
    pub fn needs_code(&self) -> bool {
        match self {
            Self::Image => false,
            Self::Http | Self::Nfs { .. } | Self::Pvc { .. } | Self::Azure { .. } => true,
        }
    }
}
