//! Who may speak for a trial: a secret per experiment, and tokens made from it.
//!
//! A token names its experiment and trial in clear and carries an HMAC-SHA256 over both, so that checking
//! needs nothing but the secret: no table of tokens, and none to lose on a restart. It opens its own
//! trial's reports and nothing else. Neither secret nor token may reach a log.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use ring::hmac;
use ring::rand::{SecureRandom as _, SystemRandom};
use trial_protocol::{ExperimentId, TrialJobId};

/// Bytes of the secret: as long as SHA-256's digest, more adds nothing.
const SECRET_BYTES: usize = 32;

/// First part of a token; names how the rest is made.
const SCHEME: &str = "tk1";

/// The experiment's secret.
#[derive(Clone)]
pub struct Secret(hmac::Key);

/// Whom a good token belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// The experiment it is for.
    pub experiment: ExperimentId,
    /// The trial it is for.
    pub trial: TrialJobId,
}

impl Holder {
    /// Whether it may speak for this trial.
    pub fn may_speak_for(
        &self,
        experiment: &ExperimentId,
        trial: &TrialJobId,
    ) -> Result<(), Refusal> {
        if (&self.experiment, &self.trial) == (experiment, trial) {
            Ok(())
        } else {
            Err(Refusal::Other(self.clone()))
        }
    }
}

/// Why a token does not open what was asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It was not made from this secret.
    #[error("the token is not one of this manager's")]
    Invalid,
    /// It is good, for something else.
    #[error("the token is for trial {} of experiment {}", .0.trial, .0.experiment)]
    Other(Holder),
}

/// Why there is no secret.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be read, made or protected.
    #[error("cannot {action} the secret {}", .path.display())]
    File {
        /// What was tried.
        action: &'static str,
        /// Which file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The file holds something else.
    #[error(
        "{} holds {found} bytes and a secret has {SECRET_BYTES}; move the file away to have a new one made \
         (running agents then need new tokens)",
        .path.display()
    )]
    Malformed {
        /// Which file.
        path: PathBuf,
        /// Its size.
        found: usize,
    },
    /// The system gave no random bytes.
    #[error("the system has no random bytes for a secret")]
    NoRandomness,
}

impl Secret {
    /// Reads the secret from its file; makes both on the first start, for the owner's eyes only.
    pub fn load_or_create(path: &Path) -> Result<Self, Error> {
        match read(path) {
            Err(Error::File { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                create(path)?;
                // What is in the file now counts, also where another process made it first.
                read(path)
            }
            result => result,
        }
    }

    /// The token with which a trial's agent posts its reports.
    pub fn trial_token(&self, experiment: &ExperimentId, trial: &TrialJobId) -> String {
        let tag = hmac::sign(&self.0, message(experiment, trial).as_bytes());
        format!("{SCHEME}.{experiment}.{trial}.{}", BASE64_URL_SAFE_NO_PAD.encode(tag))
    }

    /// Whose token this is. Takes the same time wherever the token's signature is wrong.
    pub fn identify(&self, token: &str) -> Result<Holder, Refusal> {
        self.holder(token).ok_or(Refusal::Invalid)
    }

    /// Whether a token is that of this trial.
    pub fn check(
        &self,
        token: &str,
        experiment: &ExperimentId,
        trial: &TrialJobId,
    ) -> Result<(), Refusal> {
        self.identify(token)?.may_speak_for(experiment, trial)
    }

    fn holder(&self, token: &str) -> Option<Holder> {
        let mut parts = token.split('.');
        let (scheme, experiment, trial, tag) =
            (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        if scheme != SCHEME || parts.next().is_some() {
            return None;
        }
        let experiment = ExperimentId::new(experiment).ok()?;
        let trial = TrialJobId::new(trial).ok()?;
        let tag = BASE64_URL_SAFE_NO_PAD.decode(tag).ok()?;
        hmac::verify(&self.0, message(&experiment, &trial).as_bytes(), &tag).ok()?;
        Some(Holder { experiment, trial })
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// What is signed. The first line keeps it apart from anything else this secret may sign one day; ids
/// hold no line break.
fn message(experiment: &ExperimentId, trial: &TrialJobId) -> String {
    format!("trialkeeper trial token 1\n{experiment}\n{trial}")
}

fn read(path: &Path) -> Result<Secret, Error> {
    let failed = |action| move |source| Error::File { action, path: path.to_owned(), source };
    let bytes = fs::read(path).map_err(failed("read"))?;
    if bytes.len() != SECRET_BYTES {
        return Err(Error::Malformed { path: path.to_owned(), found: bytes.len() });
    }
    let mode = fs::metadata(path).map_err(failed("read"))?.permissions().mode();
    if mode & 0o077 != 0 {
        tracing::warn!(path = %path.display(), "others could read the secret; it is protected now");
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).map_err(failed("protect"))?;
    }
    Ok(Secret(hmac::Key::new(hmac::HMAC_SHA256, &bytes)))
}

/// Writes a new secret aside and moves it into place, so that nobody ever sees half of one.
fn create(path: &Path) -> Result<(), Error> {
    let failed = |source| Error::File { action: "write", path: path.to_owned(), source };
    let mut bytes = [0; SECRET_BYTES];
    SystemRandom::new().fill(&mut bytes).map_err(|_| Error::NoRandomness)?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    // A named temporary file is made with mode 0600.
    let mut file = tempfile::NamedTempFile::new_in(folder).map_err(failed)?;
    file.write_all(&bytes).and_then(|()| file.as_file().sync_all()).map_err(failed)?;
    match file.persist_noclobber(path) {
        Ok(_) => {}
        Err(refused) if refused.error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(refused) => return Err(failed(refused.error)),
    }
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(failed)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn secret(byte: u8) -> Secret {
        Secret(hmac::Key::new(hmac::HMAC_SHA256, &[byte; SECRET_BYTES]))
    }

    fn ids(experiment: &str, trial: &str) -> (ExperimentId, TrialJobId) {
        (ExperimentId::new(experiment).unwrap(), TrialJobId::new(trial).unwrap())
    }

    #[test]
    fn a_token_opens_its_own_trial_only() {
        let (experiment, trial) = ids("exp", "t");
        let token = secret(1).trial_token(&experiment, &trial);
        assert_eq!(secret(1).check(&token, &experiment, &trial), Ok(()));
        let holder = Holder { experiment, trial };
        assert_eq!(secret(1).identify(&token), Ok(holder.clone()));
        let refusal = |secret: &Secret, token: &str, experiment: &str, trial: &str| {
            let (experiment, trial) = ids(experiment, trial);
            secret.check(token, &experiment, &trial).unwrap_err()
        };
        let other = Refusal::Other(holder);
        let renamed = token.replace(".t.", ".u.");
        let shifted = token.replace("exp.t.", "ex.pt.");
        let cut = &token[..token.len() - 1];
        let longer = format!("{token}.");
        #[rustfmt::skip]
        let table = [
            ("another trial's",       secret(1), token.as_str(),   "exp",  "u",  other.clone()),
            ("another experiment's",  secret(1), token.as_str(),   "exp2", "t",  other),
            ("another secret's",      secret(2), token.as_str(),   "exp",  "t",  Refusal::Invalid),
            ("renamed",               secret(1), renamed.as_str(), "exp",  "u",  Refusal::Invalid),
            ("cut elsewhere",         secret(1), shifted.as_str(), "ex",   "pt", Refusal::Invalid),
            ("shortened",             secret(1), cut,              "exp",  "t",  Refusal::Invalid),
            ("lengthened",            secret(1), longer.as_str(),  "exp",  "t",  Refusal::Invalid),
            ("without a signature",   secret(1), "tk1.exp.t.",     "exp",  "t",  Refusal::Invalid),
            ("empty",                 secret(1), "",               "exp",  "t",  Refusal::Invalid),
        ];
        for (says, secret, token, experiment, trial, expected) in table {
            assert_eq!(refusal(&secret, token, experiment, trial), expected, "{says}");
        }
    }

    #[test]
    fn the_secret_is_made_once_and_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        let (experiment, trial) = ids("exp", "t");
        let token = Secret::load_or_create(&path).unwrap().trial_token(&experiment, &trial);
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let again = Secret::load_or_create(&path).unwrap();
        assert_eq!(again.check(&token, &experiment, &trial), Ok(()));
        assert_eq!(format!("{again:?}"), "Secret(..)");

        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        Secret::load_or_create(&path).unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "a readable secret is protected");
    }

    #[test]
    fn a_secret_that_is_none_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        fs::write(&path, "short").unwrap();
        let refused = Secret::load_or_create(&path).unwrap_err();
        assert!(matches!(refused, Error::Malformed { found: 5, .. }), "{refused}");
        let nowhere = Secret::load_or_create(&folder.path().join("no/secret")).unwrap_err();
        assert!(matches!(nowhere, Error::File { action: "write", .. }), "{nowhere}");
    }

    proptest! {
        #[test]
        fn any_text_is_refused(text in ".*|tk1\\.[a-z]{1,4}\\.[a-z]{1,4}\\.[A-Za-z0-9_-]{43}") {
            prop_assert_eq!(secret(1).identify(&text), Err(Refusal::Invalid));
        }
    }
}
