//! Fetches a trial's code and parameters from the manager before the trial starts, for a pod that shares no disk
//! with it. Tries again until it has them or the time is up.
//!
//! Only what was asked for with `--fetch` loads any of this; a plain run does not come here.

use std::fs::File;
use std::io::{self, Seek as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use reqwest::Client;
use ring::digest::{Context, SHA256};
use tokio::time::{Instant, sleep_until};

use crate::delivery::dialect::pod::PodSetupClient;
use crate::delivery::dialect::{self, RetryDecision};
use crate::delivery::{BACKOFF, ManagerAddress, read_token};
use crate::http::client;
use crate::pod::code_base;
use crate::pod::unpack::{self, decompressed, remove_unchanged, unpack};
use crate::util::backoff::JitteredBackoff;
use crate::util::errors::chain;

/// The errors of fetching.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The manager did not give it.
    #[error("cannot {what} (tried for {} s)", .tried.as_secs())]
    Manager {
        /// The request that was tried.
        what: &'static str,
        /// For how long.
        tried: Duration,
        /// The error of the last try.
        #[source]
        source: Box<dialect::Error>,
    },
    /// The code arrived damaged.
    #[error("the code arrived damaged (tried for {} s): its checksum differs from the one that the manager gave", .tried.as_secs())]
    Damaged {
        /// For how long it was tried.
        tried: Duration,
    },
    /// A code archive of this machine.
    #[error("cannot open the code archive {}", .path.display())]
    Archive {
        /// The archive.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The code cannot be put where it belongs.
    #[error("cannot keep the code in {}", .path.display())]
    Write {
        /// Path of the directory.
        path: PathBuf,
        /// The underlying error.
        #[source]
        source: io::Error,
    },
    /// The archive could not be unpacked.
    #[error("cannot unpack the code into {}", .path.display())]
    Unpack {
        /// Path of the directory.
        path: PathBuf,
        /// The underlying error.
        #[source]
        source: unpack::Error,
    },
    /// The other pods did not come.
    #[error("the other pods of this trial have not all reported within {} s; missing: {missing}", .tried.as_secs())]
    Missing {
        /// The time that they were waited for.
        tried: Duration,
        /// The pods that are missing.
        missing: String,
    },
    /// No HTTP client.
    #[error(transparent)]
    Client(#[from] client::Error),
}

/// The manager, asked again until it answers or the time is up.
pub struct Manager {
    address: ManagerAddress,
    token_file: Option<PathBuf>,
    client: Client,
    began: Instant,
    until: Instant,
}

impl Manager {
    /// Asks nothing yet; all requests have to be answered within `timeout` from now.
    pub fn new(
        address: ManagerAddress,
        token_file: Option<PathBuf>,
        ca_file: Option<&Path>,
        timeout: Duration,
    ) -> Result<Self, Error> {
        let client = client::build(ca_file)?;
        let began = Instant::now();
        Ok(Self { address, token_file, client, began, until: began + timeout })
    }

    /// Returns how long it has been asked.
    pub fn tried(&self) -> Duration {
        self.began.elapsed()
    }

    /// Returns whether the time is up.
    pub fn is_late(&self) -> bool {
        Instant::now() >= self.until
    }

    /// The manager's base URL, as it is now.
    pub fn base(&self) -> Result<String, dialect::Error> {
        self.address.url()
    }

    /// Asks until there is an answer, an error that will stay, or no more time. `what` completes "cannot".
    pub async fn ask<T>(
        &self,
        what: &'static str,
        request: impl AsyncFn(PodSetupClient) -> Result<T, dialect::Error>,
    ) -> Result<T, Error> {
        let mut backoff = JitteredBackoff::new(BACKOFF.0, BACKOFF.1);
        let given_up = |source| {
            let (tried, source) = (self.tried(), Box::new(source));
            Error::Manager { what, tried, source }
        };
        loop {
            let error = match self.client() {
                Ok(client) => match request(client).await {
                    Ok(answer) => return Ok(answer),
                    Err(error) => error,
                },
                Err(error) => error,
            };
            let wait = match error.retry_decision() {
                RetryDecision::Retry | RetryDecision::SplitOrRetry => backoff.next_pause(),
                RetryDecision::RetryAfter(after) => after + backoff.next_pause(),
                // The same again would be answered the same.
                RetryDecision::Split | RetryDecision::NeedsOperator => return Err(given_up(error)),
            };
            tracing::info!("cannot {what} yet: {}", crate::util::errors::chain(&error));
            let next = Instant::now() + wait;
            if next >= self.until {
                return Err(given_up(error));
            }
            sleep_until(next).await;
        }
    }

    fn client(&self) -> Result<PodSetupClient, dialect::Error> {
        Ok(PodSetupClient {
            client: self.client.clone(),
            base: self.base()?,
            // Read again each time: it may have been replaced.
            token: self.token_file.as_deref().and_then(read_token),
            timeout: self.until.saturating_duration_since(Instant::now()),
        })
    }

    /// The trial's parameter record.
    pub async fn parameters(&self) -> Result<String, Error> {
        self.ask("fetch the parameters", async |client| client.parameters().await).await
    }

    /// Fetches the code and unpacks it into `into`.
    pub async fn code(&self, into: &Path) -> Result<(), Error> {
        let failed = |source| Error::Write { path: into.to_owned(), source };
        std::fs::create_dir_all(into).map_err(failed)?;
        // The file has no name, so that it goes when the agent does. It lies on the disk that has to hold the code
        // anyway.
        let archive = tempfile::tempfile_in(into).map_err(failed)?;
        let mut backoff = JitteredBackoff::new(BACKOFF.0, BACKOFF.1);
        loop {
            let arrived = self.ask("fetch the code", async |client| keep(client, &archive).await);
            if arrived.await?.map_err(failed)? {
                break;
            }
            let next = Instant::now() + backoff.next_pause();
            if next >= self.until {
                return Err(Error::Damaged { tried: self.tried() });
            }
            sleep_until(next).await;
        }
        let to = into.to_owned();
        let unpacked = tokio::task::spawn_blocking(move || unpack_code(&archive, &to));
        unpacked.await.unwrap_or_else(|lost| Err(failed(io::Error::other(lost))))
    }
}

/// Opens a code archive of this machine.
pub fn open_archive(path: &Path) -> Result<File, Error> {
    File::open(path).map_err(|source| Error::Archive { path: path.to_owned(), source })
}

/// Puts the code of the archive `archive` into the directory `into`, which is made if absent. With `base`, it is copied from
/// the one unpacked copy there; where that cannot be made or read, it is unpacked as without.
pub fn place_code(archive: &File, base: Option<&Path>, into: &Path) -> Result<(), Error> {
    let Some(base) = base else { return unpack_code(archive, into) };
    let copied =
        code_base::find_or_make(archive, base).and_then(|base| code_base::copy(&base, into));
    copied.or_else(|error| {
        tracing::warn!(
            "the code is unpacked for this trial alone, since no copy of {} can be made: {}",
            base.display(),
            chain(&error),
        );
        unpack_code(archive, into)
    })
}

/// Unpacks the code archive `archive`, from its start, into the directory `into`, which is made if absent.
pub fn unpack_code(archive: &File, into: &Path) -> Result<(), Error> {
    decompressed(archive)
        .map_err(unpack::Error::Archive)
        .and_then(|content| unpack(content, into))
        .map_err(|source| Error::Unpack { path: into.to_owned(), source })
}

/// Removes from the directory `from` the files of [`place_code`] that are unchanged since, then the folders that are
/// empty. Whatever cannot be looked at or removed is left.
pub fn remove_unchanged_code(archive: &File, base: Option<&Path>, from: &Path) {
    // The copy is read faster than the archive.
    let base = base.and_then(|base| code_base::find(archive, base).ok().flatten());
    if base.is_some_and(|base| code_base::remove_unchanged(&base, from).is_ok()) {
        return;
    }
    // What cannot be read removes nothing.
    decompressed(archive).map(|content| remove_unchanged(content, from)).ok();
}

/// Keeps what arrives in `archive`, from its start. `true` if it is what the manager sent.
async fn keep(
    client: PodSetupClient,
    mut archive: &File,
) -> Result<io::Result<bool>, dialect::Error> {
    let mut code = client.code().await?;
    let mut sum = Context::new(&SHA256);
    if let Err(error) = archive.rewind().and_then(|()| archive.set_len(0)) {
        return Ok(Err(error));
    }
    while let Some(piece) = code.next().await? {
        sum.update(piece.as_ref());
        if let Err(error) = archive.write_all(piece.as_ref()) {
            return Ok(Err(error));
        }
    }
    Ok(Ok(code.sha256.is_some_and(|said| is_hexadecimal(sum.finish().as_ref(), &said))))
}

/// PURE: whether `text` is `bytes` in hexadecimal digits.
fn is_hexadecimal(bytes: &[u8], text: &str) -> bool {
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    digits.map(|digit| char::from_digit(digit.into(), 16)).eq(text.chars().map(Some))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::util::gzip::gzip;

    #[test]
    fn code_whose_checksum_is_wrong_is_not_unpacked() {
        let folder = tempfile::tempdir().unwrap();
        // Two empty blocks: an archive without entries.
        let good = gzip(&[0; 1024]);
        let mut altered = good.clone();
        let at = altered.len() - 8;
        altered[at] ^= 1;
        for (bytes, is_whole) in [(good, true), (altered, false)] {
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(&bytes).unwrap();
            assert_eq!(unpack_code(&file, &folder.path().join("code")).is_ok(), is_whole);
        }
    }

    #[test]
    fn digits_are_compared() {
        for (text, equal) in
            [("00ff1a", true), ("00ff1", false), ("00ff1a0", false), ("", false), ("00FF1A", false)]
        {
            assert_eq!(is_hexadecimal(&[0, 255, 26], text), equal, "{text}");
        }
    }
}
