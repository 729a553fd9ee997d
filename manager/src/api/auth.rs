//! Authorisation: trials show their own token, users the experiment's.
//!
//! | the manager listens on | asked to read           | asked to change something |
//! | ---------------------- | ----------------------- | ------------------------- |
//! | the loopback interface | anybody on this machine | the user                  |
//! | another one            | the user                | the user                  |
//!
//! A user shows the token as a bearer token or, in a browser that was given one by [`begin_session`], as a cookie. A
//! program that knows nothing of TrialKeeper, such as NNI's client, finds it in its `.netrc` and shows it as the
//! password of the scheme `Basic`. No browser may do that, and none is ever asked to: it would remember the password
//! and show it for other sites.
//!
//! NNI's client asks without a token where no `.netrc` helps it. NNI's routes let a program of the manager's own user
//! change things without a token, if only this machine reaches the manager ([`local_user`](super::local_user)).
//!
//! A browser also carries what others make it say, so two more things are checked:
//!
//! * what is open without a token is open under this machine's own names only: a stranger's page whose name
//!   was made to mean 127.0.0.1 asks for the stranger's name;
//! * a change that a browser says comes from another site's page is refused, whatever it carries.

use std::sync::Arc;

use axum::extract::{FromRef, FromRequestParts, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse as _, Response};

use super::Error;
use super::local_user::is_of_own_user;
use super::log_in::LogIn;
pub(super) use super::request_origin::{
    basic, bearer, is_from_portal, names_this_machine, of_a_browser, refuse_browsers,
};
use super::session::{LIFETIME, Sessions};
use crate::token::{Secret, UserToken};
use trial_protocol::ExperimentId;

/// The clients that can reach the manager.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// This machine only: the loopback interface, without encryption.
    Machine,
    /// Others too, with encryption.
    Network,
}

/// The user's token and its limits; cheap to clone.
#[derive(Debug, Clone)]
pub struct Gate(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    user: UserToken,
    /// `None`: no trial has a token of it.
    secret: Option<Secret>,
    sessions: Sessions,
    reach: Reach,
    /// `None`: a home of several.
    experiment: Option<ExperimentId>,
    /// `true` if the token is that of a home.
    of_home: bool,
    /// Cookies are shared by all ports of a host, so each experiment's has a name of its own.
    cookie: String,
}

/// A user who may do what the request asks: in a handler's arguments, for every route that is the user's. Reading
/// (`GET`, `HEAD`) and changing (anything else) are told apart by the method.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct User(());

impl Gate {
    /// Opens an experiment to the owner of `user`; `secret` tells a trial's token from an invented one.
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

    /// Opens the home of a data directory, and all experiments in it, to the owner of `user`.
    pub fn of_home(user: UserToken, sessions: Sessions, reach: Reach) -> Self {
        // No experiment's id has a dot.
        let cookie = "trialkeeper.home".to_owned();
        let (secret, experiment) = (None, None);
        Self(Arc::new(Inner { user, secret, sessions, reach, experiment, of_home: true, cookie }))
    }

    /// Returns the gate for the pages of one experiment of a home.
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

    /// The same for a listener that only this machine reaches.
    #[must_use]
    pub fn of_machine(&self) -> Self {
        self.with_parts(Reach::Machine, self.0.experiment.clone(), self.0.secret.clone())
    }

    /// The experiment that it opens. `None`: the home of several.
    pub(super) fn experiment(&self) -> Option<&ExperimentId> {
        self.0.experiment.as_ref()
    }

    /// Returns whether it opens a home.
    pub(super) fn is_of_home(&self) -> bool {
        self.0.of_home
    }

    /// The name of the token's file, and the folder where it is, for the user.
    pub(super) fn token_file(&self) -> (String, &'static str) {
        let file = self.0.user.path().file_name().unwrap_or_default().to_string_lossy();
        let folder = if self.0.of_home {
            "folder .home of the data directory"
        } else {
            "experiment's folder"
        };
        (file.into_owned(), folder)
    }

    /// Admits a request whose token may do what the request asks.
    pub(super) fn admit(&self, method: &Method, headers: &HeaderMap) -> Result<User, Error> {
        let reads = matches!(*method, Method::GET | Method::HEAD);
        if !reads && !is_from_portal(headers) {
            let detail = "a page of another site asks for a change; that is not done";
            return Err(Error::Forbidden(detail.to_owned()));
        }
        if let Some(password) = basic(headers) {
            if of_a_browser(headers) {
                let detail = "browsers log in on the page /login; the scheme Basic is for programs";
                return Err(Error::Forbidden(detail.to_owned()));
            }
            if self.0.user.is(&password) {
                return Ok(User(()));
            }
            // It may be another experiment's, or another server's of this machine: a program shows it everywhere.
            if !(reads && self.0.reach == Reach::Machine) {
                return self.shown(&password);
            }
        } else if headers.contains_key(header::AUTHORIZATION) {
            let token = bearer(headers).ok_or_else(|| self.wanted())?;
            return self.shown(token);
        }
        if self.cookie(headers).is_some_and(|id| self.0.sessions.is_live(&self.0.user, id)) {
            return Ok(User(()));
        }
        match self.0.reach {
            Reach::Machine if reads && names_this_machine(headers) => Ok(User(())),
            Reach::Machine if reads => Err(Error::Unauthorized(
                "without a token only requests to localhost are answered".to_owned(),
            )),
            Reach::Machine | Reach::Network => Err(self.wanted()),
        }
    }

    fn shown(&self, token: &str) -> Result<User, Error> {
        if self.0.user.is(token) {
            return Ok(User(()));
        }
        let holder =
            self.0.secret.as_ref().and_then(|secret| secret.identify(token, i64::MIN).ok());
        Err(match holder {
            Some(holder) => Error::Forbidden(format!(
                "the token is trial {}'s; this needs the user's",
                holder.trial
            )),
            None if self.0.user.reveal().is_err() => self.wanted(),
            None if self.0.of_home => {
                Error::Unauthorized("the token is not this home's".to_owned())
            }
            None => Error::Unauthorized("the token is not this experiment's user token".to_owned()),
        })
    }

    fn wanted(&self) -> Error {
        let (file, folder) = self.token_file();
        let readable = self.0.user.reveal().is_ok();
        Error::Unauthorized(match (readable, self.0.of_home) {
            (true, true) => format!(
                "send the home's token as a bearer token; it is in the file {file} in the {folder}"
            ),
            (false, true) => format!(
                "no user can sign in: the file {file} in the {folder} is gone or cannot be read; put it back, or start \
                 `trial-manager serve` again, which makes a new one"
            ),
            (false, false) => format!(
                "no user can sign in: the file {file} in the {folder} is gone or cannot be read; put it back, or \
                 stop the experiment, and `trial-manager resume` makes a new one"
            ),
            (true, false) => format!(
                "send the user's token as a bearer token; it is in the file {file} in the {folder} (a program that \
                 cannot, such as NNI's client, is started with NETRC=the file netrc beside it)"
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

    /// Begins a session for a browser that has shown the token, and returns its cookie.
    pub(super) async fn begin_session(&self) -> Result<HeaderValue, Error> {
        let id = self.0.sessions.begin(&self.0.user).await?;
        self.cookie_of(&id, LIFETIME.as_secs())
    }

    /// Ends the session whose cookie a browser shows, if it shows one, and returns the cookie that replaces it.
    pub(super) async fn end_session(&self, headers: &HeaderMap) -> Result<HeaderValue, Error> {
        if let Some(id) = self.cookie(headers) {
            self.0.sessions.end(&self.0.user, id).await?;
        }
        self.cookie_of("", 0)
    }

    /// Returns the token that a request shows and that opens nothing: neither the user's nor a trial's.
    pub(super) fn wrong_token(&self, headers: &HeaderMap) -> Option<String> {
        let shown = basic(headers).or_else(|| bearer(headers).map(str::to_owned))?;
        let of_trial = |secret: &Secret| secret.identify(&shown, i64::MIN).is_ok();
        let is_known = self.0.user.is(&shown) || self.0.secret.as_ref().is_some_and(of_trial);
        (!is_known).then_some(shown)
    }

    fn cookie_of(&self, session: &str, seconds: u64) -> Result<HeaderValue, Error> {
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

impl<S: Send + Sync> FromRequestParts<S> for User
where
    LogIn: FromRef<S>,
{
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Error> {
        let LogIn { gate, .. } = LogIn::from_ref(state);
        let refused = match gate.admit(&parts.method, &parts.headers) {
            Ok(user) => return Ok(user),
            Err(refused) => refused,
        };
        let is_nnis = parts.uri.path().starts_with("/api/v1/nni/");
        if is_nnis && gate.0.reach == Reach::Machine && is_of_own_user(parts).await {
            return Ok(Self(()));
        }
        Err(refused)
    }
}

/// Gives a browser that shows the user's token a cookie to show instead
#[utoipa::path(
    post, path = "/api/v1/session", tag = "session",
    responses((status = 204, description = "the cookie is in `Set-Cookie`")),
    security(("token" = [])),
)]
pub(super) async fn begin_session(_: User, State(log_in): State<LogIn>) -> Result<Response, Error> {
    let cookie = log_in.gate.begin_session().await?;
    Ok((StatusCode::NO_CONTENT, [(header::SET_COOKIE, cookie)]).into_response())
}

/// Ends the session whose cookie is shown, and has the browser forget it
#[utoipa::path(
    delete, path = "/api/v1/session", tag = "session",
    responses((status = 204, description = "ended")), security(("token" = [])),
)]
pub(super) async fn end_session(
    _: User,
    State(log_in): State<LogIn>,
    headers: HeaderMap,
) -> Result<Response, Error> {
    let cookie = log_in.gate.end_session(&headers).await?;
    Ok((StatusCode::NO_CONTENT, [(header::SET_COOKIE, cookie)]).into_response())
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::prelude::BASE64_STANDARD;
    use trial_protocol::TrialJobId;

    use super::*;

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

        fn gate(&self, reach: Reach) -> Gate {
            let user = UserToken::load_or_create(&self.folder.path().join("user.token")).unwrap();
            let secret = Secret::load_or_create(&self.folder.path().join("secret")).unwrap();
            let sessions = self.sessions.clone();
            Gate::new(&ExperimentId::new("e").unwrap(), user, secret, sessions, reach)
        }
    }

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    /// A name, the clients that reach the manager, the request, and the admitted user or the refusal's code.
    type Row<'a> =
        (&'a str, Reach, &'a Method, &'a [(&'static str, &'a str)], Result<(), &'static str>);

    #[tokio::test]
    #[expect(clippy::too_many_lines, reason = "a table")]
    async fn users_are_admitted_by_the_table() {
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
            ("anybody here may read",            Machine, &get,    &[local],                   Ok(())),
            ("but not change",                   Machine, &post,   &[local],                   Err("unauthorized")),
            ("nor delete",                       Machine, &delete, &[local],                   Err("unauthorized")),
            ("nobody elsewhere may read",        Network, &get,    &[local],                   Err("unauthorized")),
            ("nor change",                       Network, &post,   &[local],                   Err("unauthorized")),
            ("the user may read",                Network, &get,    &[local, user],             Ok(())),
            ("and change",                       Network, &post,   &[local, user],             Ok(())),
            ("here too",                         Machine, &post,   &[local, user],             Ok(())),
            ("under any name",                   Machine, &post,   &[evil, user],              Ok(())),
            ("the browser may",                  Network, &post,   &[local, cookie],           Ok(())),
            ("on the portal's page",             Machine, &post,   &[local, cookie, ours],     Ok(())),
            ("behind a proxy",                   Machine, &post,   &[evil, cookie, ours, own], Ok(())),
            ("not on another port's",            Machine, &post,   &[local, cookie, neighbour],     Err("forbidden")),
            ("nor so with a newer browser",      Machine, &post,   &[local, cookie, same],     Err("forbidden")),
            ("nor on another site's",            Machine, &post,   &[local, cookie, cross],    Err("forbidden")),
            ("whatever it carries",              Machine, &post,   &[local, user, evil_page],  Err("forbidden")),
            ("a frame without an origin",        Machine, &post,   &[local, cookie, ("origin", "null")], Err("forbidden")),
            ("another experiment's cookie",      Network, &get,    &[local, other],            Err("unauthorized")),
            ("the token is no cookie",           Network, &get,    &[local, raw],              Err("unauthorized")),
            ("a stale cookie is none",           Machine, &get,    &[local, stale],            Ok(())),
            ("and opens nothing",                Machine, &post,   &[local, stale],            Err("unauthorized")),
            ("a wrong token is refused",         Machine, &get,    &[local, wrong],            Err("unauthorized")),
            ("also beside a cookie",             Machine, &get,    &[local, wrong, cookie],    Err("unauthorized")),
            ("a program's password",             Machine, &post,   &[local, basic],            Ok(())),
            ("elsewhere too",                    Network, &get,    &[local, basic],            Ok(())),
            ("whatever the name",                Machine, &delete, &[local, anyone],           Ok(())),
            ("a password is no browser's",       Machine, &post,   &[local, basic, ours],      Err("forbidden")),
            ("nor one's that reads",             Machine, &get,    &[local, basic, fetched],   Err("forbidden")),
            ("nor an older one's",               Machine, &get,    &[local, basic, linked],    Err("forbidden")),
            ("nor beside a cookie",              Machine, &post,   &[local, basic, cookie],    Err("forbidden")),
            ("another's password reads",         Machine, &get,    &[local, stale_basic],      Ok(())),
            ("under the manager's name only",    Machine, &get,    &[evil, stale_basic],       Err("unauthorized")),
            ("but changes nothing",              Machine, &post,   &[local, stale_basic],      Err("unauthorized")),
            ("and reads nothing elsewhere",      Network, &get,    &[local, stale_basic],      Err("unauthorized")),
            ("a trial is no user so either",     Machine, &post,   &[local, trial_basic],      Err("forbidden")),
            ("no password at all",               Network, &get,    &[local, no_basic],         Err("unauthorized")),
            ("nor here",                         Machine, &get,    &[local, no_basic],         Err("unauthorized")),
            ("a trial is no user",               Machine, &get,    &[local, trial],            Err("forbidden")),
            ("nor elsewhere",                    Network, &post,   &[local, trial],            Err("forbidden")),
            ("a rebound host name",              Machine, &get,    &[evil],                    Err("unauthorized")),
            ("no name",                          Machine, &get,    &[],                        Err("unauthorized")),
        ];
        for (says, reach, method, pairs, expected) in table {
            let found = bed.gate(*reach).admit(method, &headers(pairs));
            let found = found.map(drop).map_err(|error| error.code());
            assert_eq!(found, *expected, "{says}");
        }
    }

    #[tokio::test]
    async fn a_removed_token_file_is_reported() {
        let bed = Bed::new().await;
        let gate = bed.gate(Reach::Machine);
        std::fs::remove_file(bed.folder.path().join("user.token")).unwrap();
        let local = ("host", "127.0.0.1:8080");
        for pairs in [&[local][..], &[local, ("authorization", bed.token.as_str())]] {
            let refused = gate.admit(&Method::POST, &headers(pairs)).unwrap_err();
            let (status, _, detail) = refused.parts();
            assert_eq!(status, StatusCode::UNAUTHORIZED);
            assert!(
                detail.contains("the file user.token") && detail.contains("is gone"),
                "{detail}"
            );
        }
    }

    #[test]
    fn this_machine_s_names_are_known() {
        #[rustfmt::skip]
        let table = [
            ("localhost", true), ("LOCALHOST:80", true), ("127.0.0.1", true), ("127.8.9.1:8080", true),
            ("[::1]", true), ("[::1]:8080", true), ("::1", false),
            ("localhost.evil.example", false), ("127.0.0.1.nip.io", false), ("10.0.0.1:8080", false),
            ("[::]:8080", false), ("", false), (":8080", false), ("localhost:evil", false),
        ];
        for (host, expected) in table {
            assert_eq!(names_this_machine(&headers(&[("host", host)])), expected, "{host:?}");
        }
    }
}
