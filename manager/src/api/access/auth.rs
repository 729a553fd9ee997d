//! Authorisation: trials send their own token, users send the experiment's token.
//!
//! | the manager listens on | reading requires | changing requires |
//! | ---------------------- | ---------------- | ----------------- |
//! | the loopback interface | no token         | the user's token  |
//! | another interface      | the user's token | the user's token  |
//!
//! A user sends the token as a bearer token. A browser with a session from
//! [`begin_session`](super::log_in::begin_session) sends a cookie instead. A program that does not support
//! TrialKeeper's token, such as NNI's client, finds it in its `.netrc` and sends it as the password of the scheme
//! `Basic`. A browser must not send it so, and the manager never requests it: the browser would store the password and
//! send it for other sites' pages too.
//!
//! Without a `.netrc`, NNI's client sends no token. NNI's routes accept changes without a token from a program of the
//! manager's own user, if only this machine reaches the manager ([`local_user`](super::local_user)).
//!
//! A browser also sends requests on behalf of other sites' pages, so the manager checks two more things:
//!
//! * It answers requests without a token only under this machine's own names. The page of another site may have a
//!   host name that resolves to 127.0.0.1, but its requests contain that name.
//! * It refuses a change if the browser reports that another site's page requested it, whatever token the request
//!   carries.

use std::sync::Arc;

use axum::extract::{FromRef, FromRequestParts};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, header};

use super::super::{Error, Shared};
use super::local_user::is_of_own_user;
pub(in crate::api) use super::request_origin::{
    basic_password, bearer_token, has_local_host, is_from_browser, is_not_cross_site,
    refuse_browsers,
};
use super::session::{SESSION_LIFETIME, Sessions};
use crate::token::{Secret, UserToken};
use trial_protocol::ExperimentId;

/// The clients that can reach the manager.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// This machine only: the loopback interface, without encryption.
    Machine,
    /// Other machines too, with encryption.
    Network,
}

/// The check of the user's token, for an experiment or a home; cheap to clone.
#[derive(Debug, Clone)]
pub struct Authenticator(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    user: UserToken,
    /// The secret that recognises trials' tokens. `None` for a home, which has no trials.
    secret: Option<Secret>,
    sessions: Sessions,
    reach: Reach,
    /// The experiment. `None` for the home of several experiments.
    experiment: Option<ExperimentId>,
    /// `true` if the token belongs to a home.
    of_home: bool,
    /// The name of the session's cookie. All ports of a host share their cookies, so each experiment uses a different
    /// name.
    cookie: String,
}

/// A user who is authorised for the request. The handler of every route for users has it as an argument. The method
/// determines whether the request reads (`GET`, `HEAD`) or changes something (all others).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct User(());

impl Authenticator {
    /// Creates the authenticator of an experiment for the owner of `user`. `secret` distinguishes trials' tokens from
    /// invented ones.
    pub fn new(
        experiment: &ExperimentId,
        user: UserToken,
        secret: Secret,
        sessions: Sessions,
        reach: Reach,
    ) -> Self {
        let cookie = format!("trialkeeper-{experiment}");
        let (experiment, secret) = (Some(experiment.clone()), Some(secret));
        let of_home = false;
        Self(Arc::new(Inner { user, secret, sessions, reach, experiment, of_home, cookie }))
    }

    /// Creates the authenticator of a data directory's home, and of all experiments in it, for the owner of `user`.
    pub fn of_home(user: UserToken, sessions: Sessions, reach: Reach) -> Self {
        // An experiment's id never contains a dot, so the names differ.
        let cookie = "trialkeeper.home".to_owned();
        let (secret, experiment) = (None, None);
        Self(Arc::new(Inner { user, secret, sessions, reach, experiment, of_home: true, cookie }))
    }

    /// Returns the authenticator for the pages of one experiment in a home.
    #[must_use]
    pub fn of_experiment(&self, experiment: &ExperimentId, secret: Secret) -> Self {
        self.with_parts(self.0.reach, Some(experiment.clone()), Some(secret))
    }

    fn with_parts(
        &self,
        reach: Reach,
        experiment: Option<ExperimentId>,
        secret: Option<Secret>,
    ) -> Self {
        let Inner { user, sessions, of_home, cookie, .. } = self.0.as_ref();
        let (user, sessions, cookie) = (user.clone(), sessions.clone(), cookie.clone());
        let of_home = *of_home;
        Self(Arc::new(Inner { user, secret, sessions, reach, experiment, of_home, cookie }))
    }

    /// Returns the same authenticator for a listener that only this machine reaches.
    #[must_use]
    pub fn for_local_listener(&self) -> Self {
        self.with_parts(Reach::Machine, self.0.experiment.clone(), self.0.secret.clone())
    }

    /// Returns the experiment of the authenticator. `None` for the home of several experiments.
    pub(in crate::api) fn experiment(&self) -> Option<&ExperimentId> {
        self.0.experiment.as_ref()
    }

    /// Returns whether the authenticator belongs to a home.
    pub(in crate::api) fn is_of_home(&self) -> bool {
        self.0.of_home
    }

    /// Returns the name of the token's file and a description of its folder, for messages to the user.
    pub(in crate::api) fn token_file(&self) -> (String, &'static str) {
        let file = self.0.user.path().file_name().unwrap_or_default().to_string_lossy();
        let folder = if self.0.of_home {
            "folder .home of the data directory"
        } else {
            "experiment's folder"
        };
        (file.into_owned(), folder)
    }

    /// Admits a request that its token or its origin authorises.
    pub(in crate::api) fn admit(
        &self,
        method: &Method,
        headers: &HeaderMap,
    ) -> Result<User, Error> {
        let reads = matches!(*method, Method::GET | Method::HEAD);
        if !reads && !is_not_cross_site(headers) {
            let detail =
                "a page of another site requested this change; only the portal's own pages may";
            return Err(Error::Forbidden(detail.to_owned()));
        }
        if let Some(password) = basic_password(headers) {
            if is_from_browser(headers) {
                let detail = "the scheme Basic is only for programs; in a browser, log in on the page /login";
                return Err(Error::Forbidden(detail.to_owned()));
            }
            if self.0.user.is_equal_to(&password) {
                return Ok(User(()));
            }
            // The password may belong to another experiment, or to another server on this machine. A program sends it
            // to all of them.
            if !(reads && self.0.reach == Reach::Machine) {
                return self.check_token(&password);
            }
        } else if headers.contains_key(header::AUTHORIZATION) {
            let token = bearer_token(headers).ok_or_else(|| self.token_required())?;
            return self.check_token(token);
        }
        if self.cookie(headers).is_some_and(|id| self.0.sessions.is_live(&self.0.user, id)) {
            return Ok(User(()));
        }
        match self.0.reach {
            Reach::Machine if reads && has_local_host(headers) => Ok(User(())),
            Reach::Machine if reads => Err(Error::Unauthorized(
                "without a token, the manager answers only requests to localhost".to_owned(),
            )),
            Reach::Machine | Reach::Network => Err(self.token_required()),
        }
    }

    fn check_token(&self, token: &str) -> Result<User, Error> {
        if self.0.user.is_equal_to(token) {
            return Ok(User(()));
        }
        let claims =
            self.0.secret.as_ref().and_then(|secret| secret.identify(token, i64::MIN).ok());
        Err(match claims {
            Some(claims) => Error::Forbidden(format!(
                "the token belongs to trial {}; this request needs the user's token",
                claims.trial
            )),
            None if self.0.user.reveal().is_err() => self.token_required(),
            None if self.0.of_home => {
                Error::Unauthorized("the token does not belong to this home".to_owned())
            }
            None => {
                Error::Unauthorized("the token is not the user token of this experiment".to_owned())
            }
        })
    }

    fn token_required(&self) -> Error {
        let (file, folder) = self.token_file();
        let readable = self.0.user.reveal().is_ok();
        Error::Unauthorized(match (readable, self.0.of_home) {
            (true, true) => format!(
                "send the home's token as a bearer token; it is in the file {file} in the {folder}"
            ),
            (false, true) => format!(
                "no user can log in: the file {file} in the {folder} is missing or cannot be read; restore it, or restart \
                 `trial-manager serve`, which creates a new one"
            ),
            (false, false) => format!(
                "no user can log in: the file {file} in the {folder} is missing or cannot be read; restore it, or stop the \
                 experiment and start it with `trial-manager resume`, which creates a new one"
            ),
            (true, false) => format!(
                "send the user's token as a bearer token; it is in the file {file} in the {folder} (if a program cannot, \
                 such as NNI's client, start it with NETRC set to the path of the file netrc in the same folder)"
            ),
        })
    }

    fn cookie<'a>(&self, headers: &'a HeaderMap) -> Option<&'a str> {
        let cookies = headers.get_all(header::COOKIE).into_iter();
        let pairs =
            cookies.filter_map(|value| value.to_str().ok()).flat_map(|text| text.split(';'));
        let mut named = pairs.filter_map(|pair| pair.trim().split_once('='));
        named.find(|(name, _)| *name == self.0.cookie).map(|(_, session)| session)
    }

    /// Begins a session for a browser that sent the token, and returns its cookie.
    pub(in crate::api) async fn begin_session(&self) -> Result<HeaderValue, Error> {
        let id = self.0.sessions.begin(&self.0.user).await?;
        self.session_cookie(&id, SESSION_LIFETIME.as_secs())
    }

    /// Ends the session whose cookie the browser sent, if any, and returns an empty cookie that replaces it.
    pub(in crate::api) async fn end_session(
        &self,
        headers: &HeaderMap,
    ) -> Result<HeaderValue, Error> {
        if let Some(id) = self.cookie(headers) {
            self.0.sessions.end(&self.0.user, id).await?;
        }
        self.session_cookie("", 0)
    }

    /// Returns the request's token if it is neither the user's nor a trial's.
    pub(in crate::api) fn wrong_token(&self, headers: &HeaderMap) -> Option<String> {
        let shown = basic_password(headers).or_else(|| bearer_token(headers).map(str::to_owned))?;
        let of_trial = |secret: &Secret| secret.identify(&shown, i64::MIN).is_ok();
        let is_known =
            self.0.user.is_equal_to(&shown) || self.0.secret.as_ref().is_some_and(of_trial);
        (!is_known).then_some(shown)
    }

    fn session_cookie(&self, session: &str, seconds: u64) -> Result<HeaderValue, Error> {
        let secure = match self.0.reach {
            Reach::Machine => "",
            Reach::Network => "; Secure",
        };
        let cookie = format!(
            "{}={session}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}",
            self.0.cookie
        );
        HeaderValue::try_from(cookie).map_err(|error| Error::Unwritable(error.to_string()))
    }
}

impl FromRef<Shared> for Authenticator {
    fn from_ref(shared: &Shared) -> Self {
        shared.state.authenticator.clone()
    }
}

impl<S: Send + Sync> FromRequestParts<S> for User
where
    Authenticator: FromRef<S>,
{
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Error> {
        let authenticator = Authenticator::from_ref(state);
        let refused = match authenticator.admit(&parts.method, &parts.headers) {
            Ok(user) => return Ok(user),
            Err(refused) => refused,
        };
        let is_nni_route = parts.uri.path().starts_with("/api/v1/nni/");
        if is_nni_route && authenticator.0.reach == Reach::Machine && is_of_own_user(parts).await {
            return Ok(Self(()));
        }
        Err(refused)
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::prelude::BASE64_STANDARD;
    use trial_protocol::TrialJobId;

    use super::*;
    use axum::http::StatusCode;

    struct Bed {
        folder: tempfile::TempDir,
        token: String,
        trial: String,
        sessions: Sessions,
        session: String,
    }

    impl Bed {
        async fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let sessions =
                Sessions::in_memory(std::sync::Arc::new(crate::util::clock::SystemClock));
            let user = UserToken::load_or_create(&folder.path().join("user.token")).unwrap();
            let secret = Secret::load_or_create(&folder.path().join("secret")).unwrap();
            let (e, t) = (ExperimentId::new("e").unwrap(), TrialJobId::new("t").unwrap());
            Self {
                token: format!("Bearer {}", user.reveal().unwrap()),
                trial: format!("Bearer {}", secret.trial_token(&e, &t, 0)),
                session: sessions.begin(&user).await.unwrap(),
                sessions,
                folder,
            }
        }

        fn authenticator(&self, reach: Reach) -> Authenticator {
            let user = UserToken::load_or_create(&self.folder.path().join("user.token")).unwrap();
            let secret = Secret::load_or_create(&self.folder.path().join("secret")).unwrap();
            let sessions = self.sessions.clone();
            Authenticator::new(&ExperimentId::new("e").unwrap(), user, secret, sessions, reach)
        }
    }

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    /// A case: the name, the clients that reach the manager, the request, and the admitted user or the refusal's
    /// code.
    type Row<'a> =
        (&'a str, Reach, &'a Method, &'a [(&'static str, &'a str)], Result<(), &'static str>);

    #[tokio::test]
    #[expect(clippy::too_many_lines, reason = "a table")]
    async fn users_are_admitted_by_their_token_or_origin() {
        use Reach::{Machine, Network};
        let bed = Bed::new().await;
        let local = ("host", "127.0.0.1:8080");
        let user = ("authorization", bed.token.as_str());
        let trial = ("authorization", bed.trial.as_str());
        let wrong = ("authorization", "Bearer tku1.let-me-in");
        let netrc = |user: &str, password: &str| {
            format!("Basic {}", BASE64_STANDARD.encode(format!("{user}:{password}")))
        };
        let (token, trials) = (&bed.token["Bearer ".len()..], &bed.trial["Bearer ".len()..]);
        let (basic, anyone) = (netrc("nni", token), netrc("", token));
        let (stale_basic, trial_basic) = (netrc("nni", "let-me-in"), netrc("nni", trials));
        let (basic, anyone) =
            (("authorization", basic.as_str()), ("authorization", anyone.as_str()));
        let stale_basic = ("authorization", stale_basic.as_str());
        let trial_basic = ("authorization", trial_basic.as_str());
        let no_basic = ("authorization", "Basic %%%");
        let fetched = ("sec-fetch-mode", "navigate");
        let linked = ("referer", "http://evil.example/");
        let cookie = format!("theme=dark; trialkeeper-e={}", bed.session);
        let cookie = ("cookie", cookie.as_str());
        let other = format!("trialkeeper-f={}", bed.session);
        let other = ("cookie", other.as_str());
        let stale = ("cookie", "trialkeeper-e=stale");
        let raw = format!("trialkeeper-e={}", &bed.token["Bearer ".len()..]);
        let raw = ("cookie", raw.as_str());
        let ours = ("origin", "http://127.0.0.1:8080");
        let neighbour = ("origin", "http://127.0.0.1:3000");
        let evil = ("host", "evil.example:8080");
        let evil_page = ("origin", "http://evil.example:8080");
        let cross = ("sec-fetch-site", "cross-site");
        let (same, own) = (("sec-fetch-site", "same-site"), ("sec-fetch-site", "same-origin"));
        let (get, post, delete) = (Method::GET, Method::POST, Method::DELETE);
        #[rustfmt::skip]
        let table: &[Row<'_>] = &[
            ("reading on this machine",          Machine, &get,    &[local],                   Ok(())),
            ("changing without a token",         Machine, &post,   &[local],                   Err("unauthorized")),
            ("deleting without a token",         Machine, &delete, &[local],                   Err("unauthorized")),
            ("reading on the network",           Network, &get,    &[local],                   Err("unauthorized")),
            ("changing on the network",          Network, &post,   &[local],                   Err("unauthorized")),
            ("the user reads on the network",    Network, &get,    &[local, user],             Ok(())),
            ("the user changes on the network",  Network, &post,   &[local, user],             Ok(())),
            ("the user changes on this machine", Machine, &post,   &[local, user],             Ok(())),
            ("a token under any host name",      Machine, &post,   &[evil, user],              Ok(())),
            ("a cookie",                         Network, &post,   &[local, cookie],           Ok(())),
            ("a cookie from the portal's page",  Machine, &post,   &[local, cookie, ours],     Ok(())),
            ("a cookie behind a proxy",          Machine, &post,   &[evil, cookie, ours, own], Ok(())),
            ("a page on another port",           Machine, &post,   &[local, cookie, neighbour],     Err("forbidden")),
            ("the same, in a newer browser",     Machine, &post,   &[local, cookie, same],     Err("forbidden")),
            ("a page of another site",           Machine, &post,   &[local, cookie, cross],    Err("forbidden")),
            ("the same with a bearer token",     Machine, &post,   &[local, user, evil_page],  Err("forbidden")),
            ("a frame without an origin",        Machine, &post,   &[local, cookie, ("origin", "null")], Err("forbidden")),
            ("another experiment's cookie",      Network, &get,    &[local, other],            Err("unauthorized")),
            ("the token as a cookie",            Network, &get,    &[local, raw],              Err("unauthorized")),
            ("a stale cookie when reading",      Machine, &get,    &[local, stale],            Ok(())),
            ("a stale cookie when changing",     Machine, &post,   &[local, stale],            Err("unauthorized")),
            ("a wrong token",                    Machine, &get,    &[local, wrong],            Err("unauthorized")),
            ("a wrong token beside a cookie",    Machine, &get,    &[local, wrong, cookie],    Err("unauthorized")),
            ("a program's password",             Machine, &post,   &[local, basic],            Ok(())),
            ("a password on the network",        Network, &get,    &[local, basic],            Ok(())),
            ("a password with another user name", Machine, &delete, &[local, anyone],           Ok(())),
            ("a browser's password",             Machine, &post,   &[local, basic, ours],      Err("forbidden")),
            ("a browser that reads",             Machine, &get,    &[local, basic, fetched],   Err("forbidden")),
            ("an older browser that reads",      Machine, &get,    &[local, basic, linked],    Err("forbidden")),
            ("a password beside a cookie",       Machine, &post,   &[local, basic, cookie],    Err("forbidden")),
            ("a wrong password when reading",    Machine, &get,    &[local, stale_basic],      Ok(())),
            ("the same under another host name", Machine, &get,    &[evil, stale_basic],       Err("unauthorized")),
            ("a wrong password when changing",   Machine, &post,   &[local, stale_basic],      Err("unauthorized")),
            ("the same on the network",          Network, &get,    &[local, stale_basic],      Err("unauthorized")),
            ("a trial's token as a password",    Machine, &post,   &[local, trial_basic],      Err("forbidden")),
            ("a malformed password",             Network, &get,    &[local, no_basic],         Err("unauthorized")),
            ("the same on this machine",         Machine, &get,    &[local, no_basic],         Err("unauthorized")),
            ("a trial's token",                  Machine, &get,    &[local, trial],            Err("forbidden")),
            ("the same on the network",          Network, &post,   &[local, trial],            Err("forbidden")),
            ("a rebound host name",              Machine, &get,    &[evil],                    Err("unauthorized")),
            ("no host name",                     Machine, &get,    &[],                        Err("unauthorized")),
        ];
        for (case, reach, method, pairs, expected) in table {
            let found = bed.authenticator(*reach).admit(method, &headers(pairs));
            let found = found.map(drop).map_err(|error| error.parts().1);
            assert_eq!(found, *expected, "{case}");
        }
    }

    #[tokio::test]
    async fn a_removed_token_file_is_reported() {
        let bed = Bed::new().await;
        let authenticator = bed.authenticator(Reach::Machine);
        std::fs::remove_file(bed.folder.path().join("user.token")).unwrap();
        let local = ("host", "127.0.0.1:8080");
        for pairs in [&[local][..], &[local, ("authorization", bed.token.as_str())]] {
            let refused = authenticator.admit(&Method::POST, &headers(pairs)).unwrap_err();
            let (status, _, detail) = refused.parts();
            assert_eq!(status, StatusCode::UNAUTHORIZED);
            assert!(
                detail.contains("the file user.token") && detail.contains("is missing"),
                "{detail}"
            );
        }
    }

    #[test]
    fn names_of_this_machine_are_recognised() {
        #[rustfmt::skip]
        let table = [
            ("localhost", true), ("LOCALHOST:80", true), ("127.0.0.1", true), ("127.8.9.1:8080", true),
            ("[::1]", true), ("[::1]:8080", true), ("::1", false),
            ("localhost.evil.example", false), ("127.0.0.1.nip.io", false), ("10.0.0.1:8080", false),
            ("[::]:8080", false), ("", false), (":8080", false), ("localhost:evil", false),
        ];
        for (host, expected) in table {
            assert_eq!(has_local_host(&headers(&[("host", host)])), expected, "{host:?}");
        }
    }
}
