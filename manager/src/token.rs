//! The tokens of trials: a secret per experiment, and the tokens that are derived from it. The experiment's user has
//! a separate token, [`UserToken`].
//!
//! A trial's token contains its experiment, its trial and its expiry in clear text, and an HMAC-SHA256 of them. So
//! verification needs only the secret, and no table of tokens that a restart could lose. A token admits only the
//! reports of its own trial. Neither the secret nor a token may be logged.

mod file;
mod user;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use ring::hmac;
use ring::rand::{SecureRandom as _, SystemRandom};
use trial_protocol::{ExperimentId, TrialJobId};

use crate::util::clock::{Clock as _, SystemClock};
pub use user::UserToken;

/// The size of the secret in bytes. It equals the size of a SHA-256 digest; more would not add security.
const SECRET_BYTES: usize = 32;

/// The first part of a token, which identifies the format of the rest.
const TRIAL_TOKEN_SCHEME: &str = "tk2";

/// The lifetime of a token in milliseconds: 90 days.
const TOKEN_LIFETIME_MS: i64 = 90 * DAY_MS;

/// The remaining lifetime below which a token is renewed: 60 days. An agent may thus be without a manager for that
/// time.
const RENEWAL_LIMIT_MS: i64 = 60 * DAY_MS;

const DAY_MS: i64 = 24 * 60 * 60 * 1000;

/// The experiment's secret.
#[derive(Clone)]
pub struct Secret {
    key: hmac::Key,
    /// The time at which the secret was loaded, by the wall clock and by the monotonic clock.
    loaded_at: (i64, Instant),
}

/// The claims of a valid token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenClaims {
    /// The experiment of the token.
    pub experiment: ExperimentId,
    /// The trial of the token.
    pub trial: TrialJobId,
    /// The expiry in milliseconds since the Unix epoch, by the manager's clock.
    pub expires_at_ms: i64,
}

impl TokenClaims {
    /// Checks that the token permits reports of this trial.
    pub fn check_report_permission(
        &self,
        experiment: &ExperimentId,
        trial: &TrialJobId,
    ) -> Result<(), TokenRefusal> {
        if (&self.experiment, &self.trial) == (experiment, trial) {
            Ok(())
        } else {
            Err(TokenRefusal::OtherTrial(self.clone()))
        }
    }
}

/// The reason for which a token does not permit a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenRefusal {
    /// The token was not derived from this secret.
    #[error("the token is not one of this manager's")]
    Invalid,
    /// The token with these claims has expired.
    #[error("the token has expired")]
    Expired(TokenClaims),
    /// The token is valid for another trial.
    #[error("the token is for trial {} of experiment {}", .0.trial, .0.experiment)]
    OtherTrial(TokenClaims),
}

/// The reason for which a secret or token cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be read, written or protected.
    #[error("cannot {action} the secret {}", .path.display())]
    File {
        /// The action that failed.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The file does not contain a secret.
    #[error(
        "{} contains {found} bytes, but a secret has {SECRET_BYTES}; move the file away to create a new secret \
         (running agents then need new tokens)",
        .path.display()
    )]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The size of the file in bytes.
        found: usize,
    },
    /// The file does not contain a valid user's token.
    #[error(
        "the first line of {} is not a token: 16 to 512 printable ASCII characters without a space; move the \
         file away to create a new token",
        .path.display()
    )]
    NoToken {
        /// The file.
        path: PathBuf,
    },
    /// The system provided no random bytes.
    #[error("the system has no random bytes for a secret")]
    NoRandomness,
}

impl Secret {
    /// Reads the secret from its file. On the first start, it creates the secret and the file, which only the owner
    /// can read.
    pub fn load_or_create(path: &Path) -> Result<Self, Error> {
        let bytes = file::read_or_create(path, || Ok(random_bytes::<SECRET_BYTES>()?.to_vec()))?;
        if bytes.len() != SECRET_BYTES {
            return Err(Error::Malformed { path: path.to_owned(), found: bytes.len() });
        }
        Ok(Self::from_bytes(&bytes))
    }

    fn from_bytes(bytes: &[u8]) -> Self {
        let loaded_at = (SystemClock.now_ms(), Instant::now());
        Self { key: hmac::Key::new(hmac::HMAC_SHA256, bytes), loaded_at }
    }

    /// Returns the time for the expiry of tokens, in milliseconds since the Unix epoch: the wall-clock time at the
    /// manager's start plus the time since then. So a jump of the wall clock during the run does not invalidate an
    /// agent's token.
    pub fn now_ms(&self) -> i64 {
        let passed = i64::try_from(self.loaded_at.1.elapsed().as_millis()).unwrap_or(i64::MAX);
        self.loaded_at.0.saturating_add(passed)
    }

    /// Returns the token with which a trial's agent sends its reports, valid from now on.
    pub fn trial_token(
        &self,
        experiment: &ExperimentId,
        trial: &TrialJobId,
        now_ms: i64,
    ) -> String {
        let expires_at_ms = now_ms.saturating_add(TOKEN_LIFETIME_MS);
        let tag =
            hmac::sign(&self.key, message_to_sign(experiment, trial, expires_at_ms).as_bytes());
        let tag = BASE64_URL_SAFE_NO_PAD.encode(tag);
        format!("{TRIAL_TOKEN_SCHEME}.{experiment}.{trial}.{expires_at_ms}.{tag}")
    }

    /// Returns the claims of a token. The signature is compared in constant time.
    pub fn identify(&self, token: &str, now_ms: i64) -> Result<TokenClaims, TokenRefusal> {
        let claims = self.claims(token).ok_or(TokenRefusal::Invalid)?;
        if now_ms < claims.expires_at_ms { Ok(claims) } else { Err(TokenRefusal::Expired(claims)) }
    }

    /// Returns a new token if the holder's token expires soon.
    pub fn renewal(&self, claims: &TokenClaims, now_ms: i64) -> Option<String> {
        let left = claims.expires_at_ms.saturating_sub(now_ms);
        (left < RENEWAL_LIMIT_MS)
            .then(|| self.trial_token(&claims.experiment, &claims.trial, now_ms))
    }

    /// Checks that a token is valid for this trial.
    pub fn check(
        &self,
        token: &str,
        experiment: &ExperimentId,
        trial: &TrialJobId,
        now_ms: i64,
    ) -> Result<(), TokenRefusal> {
        self.identify(token, now_ms)?.check_report_permission(experiment, trial)
    }

    fn claims(&self, token: &str) -> Option<TokenClaims> {
        let mut parts = token.split('.');
        let (scheme, experiment, trial, expires, tag) =
            (parts.next()?, parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        if scheme != TRIAL_TOKEN_SCHEME || parts.next().is_some() {
            return None;
        }
        let experiment = ExperimentId::new(experiment).ok()?;
        let trial = TrialJobId::new(trial).ok()?;
        let tag = BASE64_URL_SAFE_NO_PAD.decode(tag).ok()?;
        let expires_at_ms = expires.parse().ok()?;
        let message = message_to_sign(&experiment, &trial, expires_at_ms);
        hmac::verify(&self.key, message.as_bytes(), &tag).ok()?;
        Some(TokenClaims { experiment, trial, expires_at_ms })
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Returns the message to sign. The first line distinguishes it from other messages that this secret may sign in the
/// future. Ids contain no line break.
fn message_to_sign(experiment: &ExperimentId, trial: &TrialJobId, expires_at_ms: i64) -> String {
    format!("trialkeeper trial token 2\n{experiment}\n{trial}\n{expires_at_ms}")
}

fn random_bytes<const N: usize>() -> Result<[u8; N], Error> {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).map_err(|_| Error::NoRandomness)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use proptest::prelude::*;

    use super::*;

    fn secret(byte: u8) -> Secret {
        Secret::from_bytes(&[byte; SECRET_BYTES])
    }

    fn ids(experiment: &str, trial: &str) -> (ExperimentId, TrialJobId) {
        (ExperimentId::new(experiment).unwrap(), TrialJobId::new(trial).unwrap())
    }

    /// An arbitrary time, in milliseconds since the Unix epoch.
    const NOW: i64 = 1_800_000_000_000;

    #[test]
    fn a_token_is_valid_only_for_its_own_trial() {
        let (experiment, trial) = ids("exp", "t");
        let token = secret(1).trial_token(&experiment, &trial, NOW);
        assert_eq!(secret(1).check(&token, &experiment, &trial, NOW), Ok(()));
        let claims = TokenClaims { experiment, trial, expires_at_ms: NOW + TOKEN_LIFETIME_MS };
        assert_eq!(secret(1).identify(&token, NOW), Ok(claims.clone()));
        let refusal = |secret: &Secret, token: &str, experiment: &str, trial: &str, now_ms| {
            let (experiment, trial) = ids(experiment, trial);
            secret.check(token, &experiment, &trial, now_ms).unwrap_err()
        };
        let (other, expired) =
            (TokenRefusal::OtherTrial(claims.clone()), TokenRefusal::Expired(claims));
        let renamed = token.replace(".t.", ".u.");
        let shifted = token.replace("exp.t.", "ex.pt.");
        let longer_lived =
            token.replace(&format!(".{}.", NOW + TOKEN_LIFETIME_MS), ".9999999999999.");
        let spelled = token.replace(
            &format!(".{}.", NOW + TOKEN_LIFETIME_MS),
            &format!(".+{}.", NOW + TOKEN_LIFETIME_MS),
        );
        let old = token.replace("tk2.", "tk1.");
        let cut = &token[..token.len() - 1];
        let longer = format!("{token}.");
        let end = NOW + TOKEN_LIFETIME_MS;
        #[rustfmt::skip]
        let table = [
            ("another trial's",       secret(1), token.as_str(),   "exp",  "u",  NOW, other.clone()),
            ("another experiment's",  secret(1), token.as_str(),   "exp2", "t",  NOW, other),
            ("another secret's",      secret(2), token.as_str(),   "exp",  "t",  NOW, TokenRefusal::Invalid),
            ("renamed",               secret(1), renamed.as_str(), "exp",  "u",  NOW, TokenRefusal::Invalid),
            ("with a shifted dot",    secret(1), shifted.as_str(), "ex",   "pt", NOW, TokenRefusal::Invalid),
            ("with a later expiry",   secret(1), longer_lived.as_str(), "exp", "t", NOW, TokenRefusal::Invalid),
            ("another scheme",        secret(1), old.as_str(),     "exp",  "t",  NOW, TokenRefusal::Invalid),
            ("shortened",             secret(1), cut,              "exp",  "t",  NOW, TokenRefusal::Invalid),
            ("lengthened",            secret(1), longer.as_str(),  "exp",  "t",  NOW, TokenRefusal::Invalid),
            ("without a signature",   secret(1), "tk2.exp.t.1.",   "exp",  "t",  NOW, TokenRefusal::Invalid),
            ("empty",                 secret(1), "",               "exp",  "t",  NOW, TokenRefusal::Invalid),
            ("expired",               secret(1), token.as_str(),   "exp",  "t",  end, expired.clone()),
            ("expired, other trial",  secret(1), token.as_str(),   "exp",  "u",  end, expired),
        ];
        for (case, secret, token, experiment, trial, now_ms, expected) in table {
            assert_eq!(refusal(&secret, token, experiment, trial, now_ms), expected, "{case}");
        }
        let (experiment, trial) = ids("exp", "t");
        assert_eq!(
            secret(1).check(&token, &experiment, &trial, end - 1),
            Ok(()),
            "valid until its expiry"
        );
        // Another notation of the same number is the same token.
        assert_eq!(secret(1).check(&spelled, &experiment, &trial, NOW), Ok(()));
    }

    #[test]
    fn a_token_is_renewed_in_time() {
        let (experiment, trial) = ids("exp", "t");
        let token = secret(1).trial_token(&experiment, &trial, NOW);
        let mut claims = secret(1).identify(&token, NOW).unwrap();
        assert_eq!(secret(1).renewal(&claims, NOW + 29 * DAY_MS), None);
        // A trial that runs for years and reports once a month.
        for month in 1..=100 {
            let now_ms = NOW + month * 31 * DAY_MS;
            let token = secret(1).renewal(&claims, now_ms).unwrap();
            claims = secret(1).identify(&token, now_ms + 59 * DAY_MS).unwrap();
            assert_eq!(claims.expires_at_ms, now_ms + TOKEN_LIFETIME_MS);
        }
    }

    #[test]
    fn the_secret_is_created_once_and_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        let (experiment, trial) = ids("exp", "t");
        let token = Secret::load_or_create(&path).unwrap().trial_token(&experiment, &trial, NOW);
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let again = Secret::load_or_create(&path).unwrap();
        assert_eq!(again.check(&token, &experiment, &trial, NOW), Ok(()));
        assert_eq!(format!("{again:?}"), "Secret(..)");

        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        Secret::load_or_create(&path).unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "a secret that other users can read is protected");
    }

    #[test]
    fn an_invalid_secret_is_refused() {
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
        fn random_texts_are_not_valid_tokens(text in ".*|tk2\\.[a-z]{1,4}\\.[a-z]{1,4}\\.[0-9]{1,20}\\.[A-Za-z0-9_-]{43}") {
            prop_assert_eq!(secret(1).identify(&text, NOW), Err(TokenRefusal::Invalid));
        }
    }
}
