//! Places a trial's code before the trial starts, fetched from the manager (`--fetch`) or unpacked from an archive
//! (`--code-archive`), and fetches its parameters. Requests are repeated until they succeed or the deadline has passed.

use std::fs::File;
use std::io::{self, Seek as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use reqwest::Client;
use ring::digest::{Context, SHA256};
use tokio::time::{Instant, sleep_until};

use crate::delivery::dialect::pod::PodSetupClient;
use crate::delivery::dialect::{self, RetryDecision};
use crate::delivery::{FIRST_RETRY_PAUSE, MAX_RETRY_PAUSE, ManagerAddress, read_token};
use crate::http::client;
use crate::pod::code_base;
use crate::pod::unpack::{self, open_compressed, remove_unchanged, unpack};
use crate::util::backoff::JitteredBackoff;
use crate::util::errors::chain;

/// The errors of fetching.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The manager did not answer a request successfully.
    #[error("cannot {what} (tried for {} s)", .tried.as_secs())]
    Manager {
        /// The request, as a verb with its object.
        what: &'static str,
        /// The time since the first attempt.
        tried: Duration,
        /// The error of the last attempt.
        #[source]
        source: Box<dialect::Error>,
    },
    /// The code arrived damaged.
    #[error("the code arrived damaged (tried for {} s): its checksum is not the one that the manager sent", .tried.as_secs())]
    Damaged {
        /// The time since the first attempt.
        tried: Duration,
    },
    /// A code archive on this machine cannot be opened.
    #[error("cannot open the code archive {}", .path.display())]
    Archive {
        /// Path of the archive.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The code cannot be written.
    #[error("cannot write the code into {}", .path.display())]
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
    /// Some of the other pods did not report in time.
    #[error("the other pods of this trial have not all reported within {} s; missing: {missing}", .tried.as_secs())]
    Missing {
        /// The time spent waiting for them.
        tried: Duration,
        /// The pods that are missing.
        missing: String,
    },
    /// The HTTP client cannot be created.
    #[error(transparent)]
    Client(#[from] client::Error),
}

/// The manager, to which requests are repeated until it answers or the deadline has passed.
pub struct ManagerClient {
    address: ManagerAddress,
    token_file: Option<PathBuf>,
    client: Client,
    began: Instant,
    deadline: Instant,
}

impl ManagerClient {
    /// Creates the client without sending a request. The manager must answer all requests within `timeout` from now.
    pub fn new(
        address: ManagerAddress,
        token_file: Option<PathBuf>,
        ca_file: Option<&Path>,
        timeout: Duration,
    ) -> Result<Self, Error> {
        let client = client::build_for_downloads(ca_file)?;
        let began = Instant::now();
        Ok(Self { address, token_file, client, began, deadline: began + timeout })
    }

    /// Returns the time since the client was created.
    pub fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// Returns whether the deadline has passed.
    pub fn has_timed_out(&self) -> bool {
        Instant::now() >= self.deadline
    }

    /// Returns the manager's current base URL.
    pub fn base(&self) -> Result<String, dialect::Error> {
        self.address.url()
    }

    /// Repeats a request until there is an answer or a permanent error, or until the deadline has passed. `what`
    /// completes the sentence "cannot …".
    pub async fn retry_request<T>(
        &self,
        what: &'static str,
        request: impl AsyncFn(PodSetupClient) -> Result<T, dialect::Error>,
    ) -> Result<T, Error> {
        let mut backoff = JitteredBackoff::new(FIRST_RETRY_PAUSE, MAX_RETRY_PAUSE);
        let given_up = |source| {
            let (tried, source) = (self.elapsed(), Box::new(source));
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
                // A repetition would get the same answer.
                RetryDecision::Split | RetryDecision::NeedsOperator => return Err(given_up(error)),
            };
            tracing::info!("cannot {what} yet: {}", crate::util::errors::chain(&error));
            let next = Instant::now() + wait;
            if next >= self.deadline {
                return Err(given_up(error));
            }
            sleep_until(next).await;
        }
    }

    fn client(&self) -> Result<PodSetupClient, dialect::Error> {
        Ok(PodSetupClient {
            client: self.client.clone(),
            base: self.base()?,
            // Read for each request, because the file may have been replaced.
            token: self.token_file.as_deref().and_then(read_token),
            timeout: self.deadline.saturating_duration_since(Instant::now()),
        })
    }

    /// Fetches the trial's parameter record.
    pub async fn fetch_parameters(&self) -> Result<String, Error> {
        self.retry_request("fetch the parameters", async |client| client.fetch_parameters().await)
            .await
    }

    /// Fetches the code and unpacks it into `into`.
    pub async fn fetch_code(&self, into: &Path) -> Result<(), Error> {
        let failed = |source| Error::Write { path: into.to_owned(), source };
        std::fs::create_dir_all(into).map_err(failed)?;
        // The file has no name, so it disappears with the agent. It is on the disk that must hold the code anyway.
        let archive = tempfile::tempfile_in(into).map_err(failed)?;
        let mut backoff = JitteredBackoff::new(FIRST_RETRY_PAUSE, MAX_RETRY_PAUSE);
        loop {
            let arrived = self.retry_request("fetch the code", async |client| {
                save_archive(client, &archive).await
            });
            if arrived.await?.map_err(failed)? {
                break;
            }
            let next = Instant::now() + backoff.next_pause();
            if next >= self.deadline {
                return Err(Error::Damaged { tried: self.elapsed() });
            }
            sleep_until(next).await;
        }
        let to = into.to_owned();
        let unpacked = tokio::task::spawn_blocking(move || unpack_code(&archive, &to));
        unpacked.await.unwrap_or_else(|lost| Err(failed(io::Error::other(lost))))
    }
}

/// Opens a code archive on this machine.
pub fn open_archive(path: &Path) -> Result<File, Error> {
    File::open(path).map_err(|source| Error::Archive { path: path.to_owned(), source })
}

/// Places the code of the archive `archive` into the directory `into`, which is created if absent. With `base`, the
/// code is copied from the unpacked copy there. If that copy cannot be created or read, the code is unpacked instead.
pub fn place_code(archive: &File, base: Option<&Path>, into: &Path) -> Result<(), Error> {
    let Some(base) = base else { return unpack_code(archive, into) };
    let copied =
        code_base::find_or_create(archive, base).and_then(|base| code_base::copy(&base, into));
    copied.or_else(|error| {
        tracing::warn!(
            "cannot copy the code from {}: {}; it is unpacked for this trial",
            base.display(),
            chain(&error),
        );
        unpack_code(archive, into)
    })
}

/// Unpacks the code archive `archive`, from its start, into the directory `into`, which is created if absent.
pub fn unpack_code(archive: &File, into: &Path) -> Result<(), Error> {
    open_compressed(archive)
        .map_err(unpack::Error::Archive)
        .and_then(|content| unpack(content, into))
        .map_err(|source| Error::Unpack { path: into.to_owned(), source })
}

/// Removes the unchanged files of [`place_code`] from the directory `from`, then the empty folders. Files that cannot
/// be examined or removed stay.
pub fn remove_unchanged_code(archive: &File, base: Option<&Path>, from: &Path) {
    // Reading the copy is faster than reading the archive.
    let base = base.and_then(|base| code_base::find(archive, base).ok().flatten());
    if base.is_some_and(|base| code_base::remove_unchanged(&base, from).is_ok()) {
        return;
    }
    // If the archive cannot be read, nothing is removed.
    open_compressed(archive).map(|content| remove_unchanged(content, from)).ok();
}

/// Writes the received code into `archive`, from its start. Returns `true` if its checksum is the manager's.
async fn save_archive(
    client: PodSetupClient,
    mut archive: &File,
) -> Result<io::Result<bool>, dialect::Error> {
    let mut code = client.start_code_download().await?;
    let mut sum = Context::new(&SHA256);
    if let Err(error) = archive.rewind().and_then(|()| archive.set_len(0)) {
        return Ok(Err(error));
    }
    while let Some(piece) = code.next_chunk().await? {
        sum.update(piece.as_ref());
        if let Err(error) = archive.write_all(piece.as_ref()) {
            return Ok(Err(error));
        }
    }
    Ok(Ok(code.sha256.is_some_and(|sent| is_hex_of(sum.finish().as_ref(), &sent))))
}

/// PURE: returns whether `text` is `bytes` in hexadecimal digits.
fn is_hex_of(bytes: &[u8], text: &str) -> bool {
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    digits.map(|digit| char::from_digit(digit.into(), 16)).eq(text.chars().map(Some))
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;
    use crate::util::gzip::gzip;

    #[tokio::test(start_paused = true)]
    async fn a_manager_that_never_answers_gets_another_request() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = ManagerAddress::Url(format!("http://{}", listener.local_addr().unwrap()));
        let manager = ManagerClient::new(address, None, None, Duration::from_mins(10)).unwrap();
        let mut connections = Vec::new();
        let two_connections = async {
            while connections.len() < 2 {
                connections.push(listener.accept().await.unwrap());
            }
        };
        tokio::select! {
            fetched = manager.fetch_parameters() => panic!("{fetched:?}"),
            () = two_connections => {}
        }
    }

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
            assert_eq!(is_hex_of(&[0, 255, 26], text), equal, "{text}");
        }
    }
}
