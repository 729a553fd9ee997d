//! The token that is shown to the manager: from a file that the user may replace, and renewed by the manager before it
//! expires. It must never reach a log.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use tracing::{debug, warn};

/// The token, and where it comes from.
#[derive(Debug, Default)]
pub(super) struct Token {
    file: Option<PathBuf>,
    /// The content of the file when it was last read.
    from_file: Option<String>,
    /// The token that the manager gave instead.
    renewed: Option<String>,
    /// `true` if that manager had proved who it is.
    proved: bool,
    /// `true` if the file is to be looked at.
    stale: bool,
}

impl Token {
    /// Returns the token of this file, which held `known`; otherwise it is read when the token is first asked for.
    pub(super) fn new(file: Option<PathBuf>, known: Option<String>) -> Self {
        let stale = known.is_none();
        Self { file, from_file: known, renewed: None, proved: false, stale }
    }

    /// The file may have been replaced since.
    pub(super) fn refresh(&mut self) {
        self.stale = true;
    }

    /// The manager refused the present token. One that a server gave which had not proved who it is is dropped.
    pub(super) fn refuse(&mut self) {
        if !self.proved && self.from_file.is_some() {
            self.renewed = None;
        }
        self.stale = true;
    }

    /// The present token; without one the manager says what it thinks of that.
    pub(super) fn get(&mut self) -> Option<&str> {
        if std::mem::take(&mut self.stale)
            && let Some(path) = &self.file
        {
            let read = read(path);
            if read.is_some() && read != self.from_file {
                // The user who replaced it knows better than the manager that renewed it.
                self.renewed = None;
                self.from_file = read;
            }
        }
        self.renewed.as_deref().or(self.from_file.as_deref())
    }

    /// Takes another token from an ack, if it names the same trial. Where the manager has `proved` who it is, the token
    /// replaces the one in the file, for the agent that delivers after this one. Otherwise it is kept in memory until it
    /// is refused.
    pub(super) fn renew(&mut self, token: &str, proved: bool) {
        if self.renewed.as_deref() == Some(token) {
            return;
        }
        if self.get().is_some_and(|present| holder(present) != holder(token)) {
            warn!("the manager's answer holds a token of another trial; it is not used");
            return;
        }
        self.renewed = Some(token.to_owned());
        self.proved = proved;
        if !proved {
            return;
        }
        let Some(path) = &self.file else { return };
        match replace(path, token) {
            Ok(()) => {
                self.from_file = self.renewed.take();
            }
            Err(error) => debug!("the renewed token is not kept in {}: {error}", path.display()),
        }
    }
}

/// PURE: the experiment and the trial that a token names: all but its end and its signature.
fn holder(token: &str) -> Option<&str> {
    token.rsplitn(3, '.').nth(2)
}

/// The token in a file; without one the manager says what it thinks of that.
pub fn read(path: &Path) -> Option<String> {
    match text(path) {
        Ok(token) => Some(token),
        Err(error) => {
            warn!("cannot read the token file {}: {error}", path.display());
            None
        }
    }
}

/// Returns the text of a file. One that says nothing is being written just now, or was a pipe that could be read once.
pub(super) fn text(path: &Path) -> io::Result<String> {
    let text = std::fs::read_to_string(path)?.trim().to_owned();
    let said = Some(text).filter(|text| !text.is_empty());
    said.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "it is empty"))
}

/// Writes aside, readable by the owner only, and moves into place: a reader sees one token or the other.
fn replace(path: &Path, token: &str) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let mut file = tempfile::NamedTempFile::new_in(folder.unwrap_or(Path::new(".")))?;
    file.write_all(token.as_bytes())?;
    file.persist(path).map(drop).map_err(|refused| refused.error)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_renewed_token_is_kept_until_the_file_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        fs::write(&path, "first\n").unwrap();
        let mut token = Token::new(Some(path.clone()), None);
        assert_eq!(token.get(), Some("first"));
        token.renew("second", true);
        assert_eq!(token.get(), Some("second"));
        assert_eq!(fs::read_to_string(&path).unwrap(), "second");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        token.refresh();
        assert_eq!(token.get(), Some("second"));
        fs::write(&path, "third").unwrap();
        assert_eq!(token.get(), Some("second"), "not looked at until it is refused");
        token.refresh();
        assert_eq!(token.get(), Some("third"));
    }

    #[test]
    fn a_token_that_was_read_before_outlives_its_file_and_is_replaced_by_another() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let mut token = Token::new(Some(path.clone()), Some("first".to_owned()));
        token.refresh();
        assert_eq!(token.get(), Some("first"));
        fs::write(&path, "\n").unwrap();
        token.refresh();
        assert_eq!(token.get(), Some("first"), "half-way to another");
        fs::write(&path, "second").unwrap();
        token.refresh();
        assert_eq!(token.get(), Some("second"));
    }

    #[test]
    fn a_token_of_a_file_that_cannot_be_written_is_renewed_in_memory() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("gone/token");
        let mut token = Token::new(Some(path.clone()), None);
        assert_eq!(token.get(), None);
        token.renew("second", true);
        token.refresh();
        assert_eq!(token.get(), Some("second"));
        fs::create_dir(folder.path().join("gone")).unwrap();
        fs::write(&path, "third").unwrap();
        token.refresh();
        assert_eq!(token.get(), Some("third"));
        let mut none = Token::new(None, None);
        none.renew("given", true);
        none.refresh();
        assert_eq!(none.get(), Some("given"));
    }

    #[test]
    fn a_token_from_a_server_without_proof_is_never_written_and_dropped_when_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let own = "tk2.e.t.1.mac";
        fs::write(&path, own).unwrap();
        #[rustfmt::skip]
        let table = [
            ("another trial's",             "tk2.e.other.2.mac", true,  own,             own),
            ("none at all",                 "hostile",           true,  own,             own),
            ("the same trial's, unproved",  "tk2.e.t.2.mac",     false, "tk2.e.t.2.mac", own),
            ("the same trial's, proved",    "tk2.e.t.3.mac",     true,  "tk2.e.t.3.mac", "tk2.e.t.3.mac"),
        ];
        for (says, given, proved, used, kept) in table {
            let mut token = Token::new(Some(path.clone()), None);
            token.get();
            token.renew(given, proved);
            assert_eq!(token.get(), Some(used), "{says}");
            assert_eq!(fs::read_to_string(&path).unwrap(), kept, "{says}");
            token.refuse();
            assert_eq!(token.get(), Some(kept), "{says}");
        }
    }
}
