//! What buttons do, and how a browser comes to be allowed to press them. Plain forms: they work without
//! JavaScript, and lead back to a page.

use axum::extract::{Request, State};
use axum::http::{HeaderValue, Method, header};
use axum::response::{IntoResponse as _, Redirect, Response};
use maud::html;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::timeout;

use super::super::body::BODY_TIMEOUT;
use super::super::throttle::Peer;
use super::super::user::{Asked, Change, Named};
use super::super::{Error, Shared};
use super::base::url;
use super::page::{Refusal, Viewer, local, page};
use crate::experiment::command::{Command, NewLimits, WrittenDuration};

/// The largest form, in bytes.
const FORM_LIMIT: usize = 16 << 10;

/// A form of a user who may change something.
async fn form<T: DeserializeOwned>(shared: &Shared, request: Request) -> Result<T, Error> {
    shared.state.gate.admit(&Method::POST, request.headers())?;
    read(request).await
}

async fn read<T: DeserializeOwned>(request: Request) -> Result<T, Error> {
    // A client that logs in is a stranger still, and keeps no connection open by sending nothing.
    let bytes = timeout(BODY_TIMEOUT, axum::body::to_bytes(request.into_body(), FORM_LIMIT)).await;
    let bytes = bytes
        .map_err(|_| Error::TooSlow)?
        .map_err(|_| Error::TooLarge { limit_bytes: FORM_LIMIT })?;
    let form = axum::extract::RawForm(bytes);
    let uri = format!("/?{}", String::from_utf8_lossy(&form.0));
    let uri = uri.parse().map_err(|_| Error::BadRequest("the form cannot be read".to_owned()))?;
    let form = axum::extract::Query::try_from_uri(&uri);
    form.map(|form| form.0).map_err(|error| Error::BadRequest(error.body_text()))
}

#[derive(Deserialize)]
struct Nothing {}

pub(super) async fn kill(
    State(shared): State<Shared>,
    Named(trial): Named,
    request: Request,
) -> Result<Redirect, Refusal> {
    let headers = request.headers().clone();
    let Nothing {} = form(&shared, request).await?;
    let back = format!("/trials/{trial}");
    shared.changes.make(&shared, &headers, Command::Kill(trial)).await?;
    Ok(Redirect::to(&url(&back)))
}

pub(super) async fn retry(
    State(shared): State<Shared>,
    Named(trial): Named,
    request: Request,
) -> Result<Redirect, Refusal> {
    let headers = request.headers().clone();
    let Nothing {} = form(&shared, request).await?;
    let back = format!("/trials/{trial}");
    shared.changes.make(&shared, &headers, Command::Retry(trial)).await?;
    Ok(Redirect::to(&url(&back)))
}

pub(super) async fn stop(
    State(shared): State<Shared>,
    request: Request,
) -> Result<Redirect, Refusal> {
    let headers = request.headers().clone();
    let Nothing {} = form(&shared, request).await?;
    shared.changes.make(&shared, &headers, Change::Stop).await?;
    Ok(Redirect::to(&url("/")))
}

/// An empty field leaves its limit as it is.
#[derive(Deserialize)]
struct LimitsForm {
    #[serde(default)]
    trial_concurrency: String,
    #[serde(default)]
    max_trial_number: String,
    #[serde(default)]
    max_experiment_duration: String,
}

pub(super) async fn limits(
    State(shared): State<Shared>,
    request: Request,
) -> Result<Redirect, Refusal> {
    let headers = request.headers().clone();
    let form: LimitsForm = form(&shared, request).await?;
    let duration = form.max_experiment_duration.trim();
    let duration = (!duration.is_empty()).then(|| WrittenDuration::parse(&Value::from(duration)));
    let limits = NewLimits {
        concurrency: number("Trials at a time", &form.trial_concurrency)?,
        trials: number("Trials in all", &form.max_trial_number)?,
        duration: duration
            .transpose()
            .map_err(|problem| Error::BadRequest(format!("Time in all: {problem}")))?,
    };
    shared.changes.make(&shared, &headers, Command::Limit(limits)).await?;
    Ok(Redirect::to(&url("/")))
}

fn number<T: std::str::FromStr>(name: &str, text: &str) -> Result<Option<T>, Error> {
    let text = text.trim();
    let bad = |_| Error::BadRequest(format!("{name}: a whole number is wanted"));
    (!text.is_empty()).then(|| text.parse().map_err(bad)).transpose()
}

#[derive(Deserialize)]
pub(super) struct LoginQuery {
    ticket: Option<String>,
    /// Where to go then.
    next: Option<String>,
}

/// `GET /login`: the form, or a cookie in exchange for a ticket.
pub(super) async fn login_page(
    State(shared): State<Shared>,
    Asked(query): Asked<LoginQuery>,
) -> Result<Response, Refusal> {
    let next = query.next.unwrap_or_default();
    let Some(ticket) = query.ticket else { return Ok(login_form(&next, None)) };
    if !shared.tickets.take(&ticket).await {
        let problem =
            "That address has been used, or is too old; `trial-manager open` gives a new one.";
        return Ok(login_form(&next, Some(problem)));
    }
    let cookie = shared.state.gate.begin_session().await?;
    let experiment = Some(shared.state.gate.experiment().to_string());
    let viewer = Viewer { experiment, may_change: true, ..Viewer::unknown("/login") };
    let content = html! {
        h1 { "Logged in" }
        p { a href=(url("/")) { "To the overview" } }
    };
    let refresh = HeaderValue::try_from(format!("0; url={}", url("/")));
    let refresh = refresh.unwrap_or_else(|_| HeaderValue::from_static("0; url=/"));
    let mut response = page(&viewer, "Logged in", None, &content);
    let headers = response.headers_mut();
    headers.insert(header::SET_COOKIE, cookie);
    // A redirection would still count as the step from wherever the address stood, and a browser shows a strict
    // cookie on our own pages' steps only.
    headers.insert(header::REFRESH, refresh);
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    Ok(response)
}

fn login_form(next: &str, problem: Option<&str>) -> Response {
    let viewer = Viewer::unknown("/login");
    let content = html! {
        h1 { "Log in" }
        p {
            "The user's token is in the file " code { "user.token" } " in the experiment's folder, which "
            code { "trial-manager run" } " names when it starts."
        }
        @if let Some(problem) = problem { p.problem role="alert" { (problem) } }
        form.inline method="post" action=(url("/login")) {
            label { "Token " input #token name="token" type="password" autocomplete="current-password" required autofocus; }
            @if local(next) != "/" { input type="hidden" name="next" value=(local(next)); }
            button { "Log in" }
        }
        p.hint { code { "trial-manager open" } " logs in without it, " code { "trial-manager open --print" } " gives an address that does." }
    };
    page(&viewer, "Log in", None, &content)
}

#[derive(Deserialize)]
struct LoginForm {
    token: String,
    #[serde(default)]
    next: String,
}

/// `POST /login`: a cookie in exchange for the token.
pub(super) async fn login(
    State(shared): State<Shared>,
    request: Request,
) -> Result<Response, Refusal> {
    let mut headers = request.headers().clone();
    let peer = request.extensions().get::<Peer>().copied();
    let form: LoginForm = read(request).await?;
    shared.throttle.wait(peer).await;
    let value = HeaderValue::try_from(format!("Bearer {}", form.token.trim()));
    let Ok(value) = value else { return Ok(login_form(&form.next, Some("That is not a token."))) };
    headers.insert(header::AUTHORIZATION, value);
    match shared.state.gate.admit(&Method::POST, &headers) {
        Ok(_) => {
            let cookie = shared.state.gate.begin_session().await?;
            Ok(([(header::SET_COOKIE, cookie)], Redirect::to(&url(local(&form.next))))
                .into_response())
        }
        Err(Error::Forbidden(detail)) => Ok(login_form(&form.next, Some(&detail))),
        Err(_) => {
            shared.throttle.count(peer, form.token.trim());
            Ok(login_form(&form.next, Some("That is not this experiment's user token.")))
        }
    }
}

/// `POST /logout`.
pub(super) async fn logout(
    State(shared): State<Shared>,
    request: Request,
) -> Result<Response, Refusal> {
    let headers = request.headers().clone();
    let Nothing {} = form(&shared, request).await?;
    let cookie = shared.state.gate.end_session(&headers).await?;
    Ok(([(header::SET_COOKIE, cookie)], Redirect::to(&url("/"))).into_response())
}
