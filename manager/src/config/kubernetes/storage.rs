//! PURE: `storage`, the storage from which pods get the trial's code. It covers NNI 3.0's `K8sNfsConfig` and
//! `K8sAzureStorageConfig`, and two kinds without shared files.

use serde_json::{Map, Value, json};

use super::syntax;
use crate::config::base::Base;
use crate::config::section::resolve;
use crate::config::section::{Problem, Section};
use crate::util::nearest::advice;

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
        /// The mount point of the claim at NNI's manager. Kept without effect.
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
const FIELDS: [&str; 10] = [
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

const KINDS: [&str; 5] = ["http", "image", "nfs", "pvc", "azureStorage"];

/// Reads `storage`, a word or an object.
pub(super) fn read(
    path: &str,
    value: Option<Value>,
    base: Base<'_>,
) -> Result<StorageSpec, Problem> {
    let Some(value) = value else { return Ok(StorageSpec::Http) };
    let value = if value.is_string() { json!({"storageType": value}) } else { value };
    let mut fields = Section::open(path, value, &FIELDS)?;
    // NNI's Python objects have both fields.
    let (first, second) = (fields.string("storageType")?, fields.string("storage")?);
    if let (Some(first), Some(second)) = (&first, &second)
        && plain(first) != plain(second)
    {
        let what = format!("`{second}` differs from `storageType`, which is `{first}`; keep one");
        return Err(fields.fault("storage", what));
    }
    let Some(word) = first.or(second) else {
        return Err(
            fields.fault("storageType", format!("is missing; allowed: {}", KINDS.join(", ")))
        );
    };
    let plain = plain(&word);
    let mut need = |field: &str| -> Result<String, Problem> {
        let missing = format!("is missing; a storage of type {word} needs it");
        fields.string(field)?.ok_or_else(|| fields.fault(field, missing))
    };
    let storage = match plain.as_str() {
        "http" => StorageSpec::Http,
        "image" => StorageSpec::Image,
        "nfs" => StorageSpec::Nfs { server: need("server")?, path: absolute(path, need("path")?)? },
        "pvc" => {
            let mount = absolute(path, need("path")?)?;
            let claim = fields.string("claimName")?;
            if let Some(Err(what)) = claim.as_deref().map(syntax::name) {
                return Err(fields.fault("claimName", what));
            }
            StorageSpec::Pvc { claim, path: mount }
        }
        "azurestorage" => {
            let (account, share) = (need("azureAccount")?, need("azureShare")?);
            let (vault, vault_key) =
                (fields.string("keyVaultName")?, fields.string("keyVaultKey")?);
            if vault.is_some() != vault_key.is_some() {
                let missing = if vault.is_some() { "keyVaultKey" } else { "keyVaultName" };
                return Err(fields.fault(missing, "is missing; a Key Vault needs both"));
            }
            let key_file = fields.string("azureKeyFile")?;
            let key_file = key_file.map(|file| resolve(&file, base).to_string_lossy().into_owned());
            StorageSpec::Azure { account, share, vault, vault_key, key_file }
        }
        _ => {
            let advice = advice(&word, KINDS);
            let what = format!("`{word}` is not known; {advice}");
            return Err(fields.fault("storageType", what));
        }
    };
    Ok(storage)
}

/// Returns the folded word for a kind, and `azurestorage` for both words of that kind.
fn plain(word: &str) -> String {
    let plain = crate::util::nearest::folded(word);
    if plain == "azurefile" { "azurestorage".to_owned() } else { plain }
}

fn absolute(at: &str, path: String) -> Result<String, Problem> {
    if path.starts_with('/') {
        return Ok(path);
    }
    Err(Problem::new(format!("{at}.path"), format!("`{path}` does not begin with a slash")))
}

impl StorageSpec {
    /// Returns whether agents fetch the code from the manager, into the pod or onto the shared storage.
    pub fn needs_code(&self) -> bool {
        match self {
            Self::Image => false,
            Self::Http | Self::Nfs { .. } | Self::Pvc { .. } | Self::Azure { .. } => true,
        }
    }

    /// Returns the canonical form.
    pub(super) fn canonical(&self) -> Value {
        let mut fields = Map::new();
        let mut put = |name: &str, value: Option<&String>| {
            if let Some(value) = value {
                fields.insert(name.to_owned(), Value::from(value.as_str()));
            }
        };
        match self {
            Self::Http => return Value::from("http"),
            Self::Image => return Value::from("image"),
            Self::Nfs { server, path } => {
                put("storageType", Some(&"nfs".to_owned()));
                put("server", Some(server));
                put("path", Some(path));
            }
            Self::Pvc { claim, path } => {
                put("storageType", Some(&"pvc".to_owned()));
                put("claimName", claim.as_ref());
                put("path", Some(path));
            }
            Self::Azure { account, share, vault, vault_key, key_file } => {
                put("storageType", Some(&"azureStorage".to_owned()));
                put("azureAccount", Some(account));
                put("azureShare", Some(share));
                put("keyVaultName", vault.as_ref());
                put("keyVaultKey", vault_key.as_ref());
                put("azureKeyFile", key_file.as_ref());
            }
        }
        Value::Object(fields)
    }
}
