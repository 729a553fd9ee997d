//! Reads the key of an Azure storage account. The key comes from a file, from a Key Vault through the `az` command, or
//! from the variable that Azure's own tools read. It never reaches a log or a command line.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use tokio::process::Command;
use tokio::time::timeout;

/// The environment variable that Azure's own tools read.
pub const KEY_VARIABLE: &str = "AZURE_STORAGE_KEY";

/// The time limit for `az`.
const AZ_TIMEOUT: Duration = Duration::from_mins(1);

/// The length of the part of an error message of `az` that is shown, in characters.
const MAX_ERROR_CHARS: usize = 300;

/// The location of the key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeySource {
    /// A file with the key.
    File(PathBuf),
    /// A secret in a Key Vault.
    Vault {
        /// The name of the vault.
        vault: String,
        /// The name of the secret.
        secret: String,
    },
    /// The environment variable [`KEY_VARIABLE`].
    Variable,
}

/// The key of the account. Its `Debug` output hides the value.
#[derive(Clone, PartialEq, Eq)]
pub struct StorageKey(pub String);

impl fmt::Debug for StorageKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StorageKey(..)")
    }
}

/// A reason why the key is not available.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be read.
    #[error("azureKeyFile: cannot read the storage account's key from {}", .path.display())]
    File {
        /// The path of the file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// No location of the key is configured.
    #[error(
        "the key of the Azure storage account is not given; set {KEY_VARIABLE}, name a file with azureKeyFile, \
         or a Key Vault with keyVaultName and keyVaultKey"
    )]
    NotConfigured,
    /// The `az` command cannot be run.
    #[error(
        "cannot run `az`, which reads Key Vaults; install the Azure CLI and log in (`az login`)"
    )]
    NoAz(#[source] io::Error),
    /// The `az` command took too long.
    #[error(
        "`az keyvault secret show` did not end within {AZ_TIMEOUT:?}; is it waiting for a login?"
    )]
    AzTimeout,
    /// The `az` command failed.
    #[error("the secret {secret} of the Key Vault {vault} cannot be read: {stderr}")]
    Vault {
        /// The vault.
        vault: String,
        /// The secret.
        secret: String,
        /// The error message of `az`.
        stderr: String,
    },
    /// The text at the location is not a key.
    #[error("{place} does not contain the key of a storage account; a key is base64")]
    NoKey {
        /// The location of the text.
        place: String,
    },
}

/// Finds the key. `variable` is the value of [`KEY_VARIABLE`], and `az` is the path of Azure's command.
pub async fn find_key(
    source: &KeySource,
    variable: Option<String>,
    az: &Path,
) -> Result<StorageKey, Error> {
    let (text, place) = match source {
        KeySource::File(path) => {
            let text = tokio::fs::read_to_string(path).await;
            let text = text.map_err(|source| Error::File { path: path.clone(), source })?;
            (text, path.display().to_string())
        }
        KeySource::Vault { vault, secret } => {
            (read_from_vault(vault, secret, az).await?, format!("the secret {secret} of {vault}"))
        }
        KeySource::Variable => {
            let text =
                variable.filter(|text| !text.trim().is_empty()).ok_or(Error::NotConfigured)?;
            (text, KEY_VARIABLE.to_owned())
        }
    };
    let key = text.trim();
    if key.is_empty() || BASE64_STANDARD.decode(key).is_err() {
        return Err(Error::NoKey { place });
    }
    Ok(StorageKey(key.to_owned()))
}

async fn read_from_vault(vault: &str, secret: &str, az: &Path) -> Result<String, Error> {
    let mut command = Command::new(az);
    command.args(["keyvault", "secret", "show", "--query", "value", "--output", "tsv"]);
    command.args(["--vault-name", vault, "--name", secret]);
    command.stdin(Stdio::null()).kill_on_drop(true);
    let output = timeout(AZ_TIMEOUT, command.output()).await.map_err(|_| Error::AzTimeout)?;
    let output = output.map_err(Error::NoAz)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    let stderr: String =
        stderr.trim().chars().filter(|c| !c.is_control()).take(MAX_ERROR_CHARS).collect();
    Err(Error::Vault { vault: vault.to_owned(), secret: secret.to_owned(), stderr })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    /// Writes a script that stands in for `az`.
    fn az_script(folder: &Path, script: &str) -> PathBuf {
        let path = folder.join("az");
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    #[tokio::test]
    async fn the_key_is_read_from_its_configured_location() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("key");
        fs::write(&file, "ZmlsZQ==\n").unwrap();
        let script = r#"[ "$*" = "keyvault secret show --query value --output tsv --vault-name v --name s" ] && echo dmF1bHQ="#;
        let az = az_script(folder.path(), script);
        let vault = KeySource::Vault { vault: "v".to_owned(), secret: "s".to_owned() };
        let variable = Some("dmFyaWFibGU=".to_owned());
        for (source, key) in [
            (KeySource::File(file), "ZmlsZQ=="),
            (vault, "dmF1bHQ="),
            (KeySource::Variable, "dmFyaWFibGU="),
        ] {
            let found = find_key(&source, variable.clone(), &az).await.unwrap();
            assert_eq!(found.0, key, "{source:?}");
            assert_eq!(format!("{found:?}"), "StorageKey(..)");
        }
    }

    #[tokio::test]
    async fn the_error_for_a_missing_key_names_the_remedy() {
        let folder = tempfile::tempdir().unwrap();
        let empty = folder.path().join("empty");
        fs::write(&empty, "").unwrap();
        let az = az_script(folder.path(), "echo 'ERROR: Please run az login' >&2; exit 1");
        let vault = || KeySource::Vault { vault: "v".to_owned(), secret: "s".to_owned() };
        let no_az = folder.path().join("none");
        let none = None;
        #[rustfmt::skip]
        let table = [
            (KeySource::Variable,                      none.clone(),         &az,    "set AZURE_STORAGE_KEY"),
            (KeySource::Variable,                      Some("-".to_owned()), &az,    "AZURE_STORAGE_KEY does not contain the key"),
            (KeySource::File(empty),                   none.clone(),         &az,    "empty does not contain the key"),
            (KeySource::File(folder.path().join("x")), none.clone(),         &az,    "azureKeyFile: cannot read the storage account's key from"),
            (vault(),                                  none.clone(),         &az,    "the secret s of the Key Vault v cannot be read: ERROR: Please run az login"),
            (vault(),                                  none,                 &no_az, "install the Azure CLI"),
        ];
        for (source, variable, az, expected) in table {
            let refused = find_key(&source, variable, az).await.unwrap_err().to_string();
            assert!(refused.contains(expected), "{source:?}: {refused}");
        }
    }
}
