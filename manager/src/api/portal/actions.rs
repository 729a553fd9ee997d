//! The actions of the portal's buttons, and the login that allows a browser to use them. The actions are plain forms:
//! they work without JavaScript, and lead back to a page.

use axum::extract::{Request, State};
use axum::http::{HeaderValue, Method, header};
use axum::response::{IntoResponse as _, Redirect, Response};
use maud::html;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use tokio::time::timeout;
use trial_protocol::TrialJobId;

use super::super::access::auth::Authenticator;
use super::super::access::log_in::LogIn;
use super::super::access::throttle::Peer;
use super::super::server::body::BODY_TIMEOUT;
use super::super::user::{
    Change, CheckedQuery, IdempotencyKey, TrialPath, add_trial, search_space,
};
use super::super::{Error, Shared};
use super::base::url;
use super::page::{PageRefusal, Viewer, local_path, page};
use crate::experiment::command::{Command, NewLimits, WrittenDuration};
use crate::search::search_space::SearchSpace;
use crate::search::user_point;

/// The maximum size of a form, in bytes: the longest note, each byte of which takes three bytes in a form, and its
/// tags.
const FORM_LIMIT: usize = 48 << 10;

/// Reads the form of a user who may make changes.
pub(in crate::api) async fn read_user_form<T: DeserializeOwned>(
    authenticator: &Authenticator,
    request: Request,
) -> Result<T, Error> {
    authenticator.admit(&Method::POST, request.headers())?;
    read_form(request).await
}

async fn read_form<T: DeserializeOwned>(request: Request) -> Result<T, Error> {
    // A client at the login is not authorised yet, so it must not keep a connection open by sending nothing.
    let bytes = timeout(BODY_TIMEOUT, axum::body::to_bytes(request.into_body(), FORM_LIMIT)).await;
    let bytes = bytes
        .map_err(|_| Error::TooSlow)?
        .map_err(|_| Error::TooLarge { limit_bytes: FORM_LIMIT })?;
    serde_urlencoded::from_bytes(&bytes)
        .map_err(|error| Error::BadRequest(format!("the form cannot be read: {error}")))
}

#[derive(Deserialize)]
struct EmptyForm {}

pub(super) async fn stop_trial(
    State(shared): State<Shared>,
    TrialPath(trial): TrialPath,
    request: Request,
) -> Result<Redirect, PageRefusal> {
    let headers = request.headers().clone();
    let EmptyForm {} = read_user_form(&shared.state.authenticator, request).await?;
    let back = format!("/trials/{trial}");
    shared.changes.apply(&shared, &headers, Command::StopTrial(trial)).await?;
    Ok(Redirect::to(&url(&back)))
}

pub(super) async fn rerun_trial(
    State(shared): State<Shared>,
    TrialPath(trial): TrialPath,
    request: Request,
) -> Result<Redirect, PageRefusal> {
    let headers = request.headers().clone();
    let EmptyForm {} = read_user_form(&shared.state.authenticator, request).await?;
    let back = format!("/trials/{trial}");
    shared.changes.apply(&shared, &headers, Command::RerunTrial(trial)).await?;
    Ok(Redirect::to(&url(&back)))
}

/// `POST /chosen/stop`: stops the selected trials.
pub(super) async fn stop_selected(
    State(shared): State<Shared>,
    request: Request,
) -> Result<Response, PageRefusal> {
    change_selected(&shared, request, Command::StopTrial).await
}

/// `POST /chosen/rerun`: reruns the selected trials.
pub(super) async fn rerun_selected(
    State(shared): State<Shared>,
    request: Request,
) -> Result<Response, PageRefusal> {
    change_selected(&shared, request, Command::RerunTrial).await
}

/// Sends a command for each trial in a form. If one is refused, the others are still processed.
async fn change_selected(
    shared: &Shared,
    request: Request,
    command: impl Fn(TrialJobId) -> Command,
) -> Result<Response, PageRefusal> {
    let headers = request.headers().clone();
    // The address of the list from which the form came.
    let query = request.uri().query().map(|query| format!("?{query}")).unwrap_or_default();
    let list = url(&format!("/trials{query}"));
    let fields: Vec<(String, String)> =
        read_user_form(&shared.state.authenticator, request).await?;
    let mut refused = Vec::new();
    for (_, id) in fields.iter().filter(|(name, _)| name == "trial") {
        let id =
            TrialJobId::new(id.as_str()).map_err(|error| Error::BadRequest(error.to_string()))?;
        if let Err(error) = shared.changes.apply(shared, &headers, command(id)).await {
            refused.push(error.parts().2);
        }
    }
    if refused.is_empty() {
        return Ok(Redirect::to(&list).into_response());
    }
    let experiment = shared.state.authenticator.experiment().map(ToString::to_string);
    let viewer = Viewer { experiment, may_change: true, ..Viewer::unknown("/trials") };
    let content = html! {
        h1 { "Some changes were refused" }
        ul { @for one in &refused { li { (super::display::sanitize(one)) } } }
        p { a href=(list) { "Back to the trials" } }
    };
    Ok(page(&viewer, "Refused", None, &content))
}

/// `POST /points`: runs a trial with the user's parameters. Members of a parameter have fields with dotted names. An
/// empty field is drawn from the search space.
pub(super) async fn add_point(
    State(shared): State<Shared>,
    request: Request,
) -> Result<Redirect, PageRefusal> {
    let headers = request.headers().clone();
    let fields: Vec<(String, String)> =
        read_user_form(&shared.state.authenticator, request).await?;
    let space = search_space(&shared).await?;
    let own: Vec<&str> = space.iter().flat_map(SearchSpace::names).collect();
    let trial =
        add_trial(&shared, IdempotencyKey::read(&headers)?, point_of_form(&fields, &own)?).await?;
    Ok(Redirect::to(&url(&format!("/trials/{trial}"))))
}

/// Returns the point that a form's fields describe. `own` contains the names of the parameters, which may contain
/// dots themselves.
fn point_of_form(fields: &[(String, String)], own: &[&str]) -> Result<Map<String, Value>, Error> {
    let mut point = Value::Object(Map::new());
    for (name, text) in fields.iter().filter(|(_, text)| !text.trim().is_empty()) {
        let mut at = &mut point;
        let is_own = own.contains(&name.as_str());
        let parts = if is_own { vec![name.as_str()] } else { name.split('.').collect() };
        for part in parts {
            let members = at.as_object_mut().ok_or_else(|| {
                Error::BadRequest(format!("{name}: another field already sets a part of this name"))
            })?;
            at = members.entry(part).or_insert_with(|| Value::Object(Map::new()));
        }
        *at = user_point::parse_written_value(text);
    }
    Ok(point.as_object().cloned().unwrap_or_default())
}

pub(super) async fn stop(
    State(shared): State<Shared>,
    request: Request,
) -> Result<Redirect, PageRefusal> {
    let headers = request.headers().clone();
    let EmptyForm {} = read_user_form(&shared.state.authenticator, request).await?;
    shared.changes.apply(&shared, &headers, Change::Stop).await?;
    Ok(Redirect::to(&url("/")))
}

/// The form that changes the limits. An empty field leaves its limit unchanged.
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
) -> Result<Redirect, PageRefusal> {
    let headers = request.headers().clone();
    let form: LimitsForm = read_user_form(&shared.state.authenticator, request).await?;
    let duration = form.max_experiment_duration.trim();
    let duration = (!duration.is_empty()).then(|| WrittenDuration::parse(&Value::from(duration)));
    let limits = NewLimits {
        concurrency: parse_limit("Concurrent trials", &form.trial_concurrency)?,
        trials: parse_limit("Total trials", &form.max_trial_number)?,
        duration: duration
            .transpose()
            .map_err(|problem| Error::BadRequest(format!("Total time: {problem}")))?,
    };
    shared.changes.apply(&shared, &headers, Command::ChangeLimits(limits)).await?;
    Ok(Redirect::to(&url("/")))
}

fn parse_limit<T: std::str::FromStr>(name: &str, text: &str) -> Result<Option<T>, Error> {
    let text = text.trim();
    let bad = |_| Error::BadRequest(format!("{name}: expected a whole number"));
    (!text.is_empty()).then(|| text.parse().map_err(bad)).transpose()
}

#[derive(Deserialize)]
pub(super) struct LoginQuery {
    ticket: Option<String>,
    /// The page to show after the login.
    next: Option<String>,
}

/// `GET /login`: shows the form, or exchanges a ticket for a cookie.
pub(super) async fn login_page(
    State(log_in): State<LogIn>,
    CheckedQuery(query): CheckedQuery<LoginQuery>,
) -> Result<Response, PageRefusal> {
    let next = query.next.unwrap_or_default();
    let Some(ticket) = query.ticket else {
        return Ok(login_form(&log_in.authenticator, &next, None));
    };
    if !log_in.tickets.redeem(&ticket).await {
        let problem =
            "This address has been used or has expired; `trial-manager open` creates a new one.";
        return Ok(login_form(&log_in.authenticator, &next, Some(problem)));
    }
    let cookie = log_in.authenticator.begin_session().await?;
    let experiment = log_in.authenticator.experiment().map(ToString::to_string);
    let viewer = Viewer { experiment, may_change: true, ..Viewer::unknown("/login") };
    let content = html! {
        h1 { "Logged in" }
        p { a href=(url("/")) { "Continue" } }
    };
    let refresh = HeaderValue::try_from(format!("0; url={}", url("/")));
    let refresh = refresh.unwrap_or_else(|_| HeaderValue::from_static("0; url=/"));
    let mut response = page(&viewer, "Logged in", None, &content);
    let headers = response.headers_mut();
    headers.insert(header::SET_COOKIE, cookie);
    // With a redirection, the browser would still count this as a step from the previous address. A browser sends a
    // strict cookie only on steps between the portal's pages.
    headers.insert(header::REFRESH, refresh);
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    Ok(response)
}

fn login_form(authenticator: &Authenticator, next: &str, problem: Option<&str>) -> Response {
    let viewer = Viewer::unknown("/login");
    let (file, folder) = authenticator.token_file();
    let is_home = authenticator.is_of_home();
    let content = html! {
        h1 { "Log in" }
        p {
            "The token is in the file " code { (file) } " in the " (folder) ". "
            code { @if is_home { "trial-manager serve" } @else { "trial-manager run" } } " prints the folder's path when it starts."
        }
        @if let Some(problem) = problem { p.problem role="alert" { (problem) } }
        form.inline method="post" action=(url("/login")) {
            label { "Token " input #token name="token" type="password" autocomplete="current-password" required autofocus; }
            @if local_path(next) != "/" { input type="hidden" name="next" value=(local_path(next)); }
            button { "Log in" }
        }
        @if !is_home { p.hint { "To log in without the token, run " code { "trial-manager open" } ". To get an address that logs you in, run " code { "trial-manager open --print" } "." } }
    };
    page(&viewer, "Log in", None, &content)
}

#[derive(Deserialize)]
struct LoginForm {
    token: String,
    #[serde(default)]
    next: String,
}

/// `POST /login`: exchanges the token for a cookie.
pub(super) async fn login(
    State(log_in): State<LogIn>,
    request: Request,
) -> Result<Response, PageRefusal> {
    let mut headers = request.headers().clone();
    let peer = request.extensions().get::<Peer>().copied();
    let form: LoginForm = read_form(request).await?;
    log_in.throttle.wait(peer).await;
    let value = HeaderValue::try_from(format!("Bearer {}", form.token.trim()));
    let Ok(value) = value else {
        return Ok(login_form(&log_in.authenticator, &form.next, Some("This is not a token.")));
    };
    headers.insert(header::AUTHORIZATION, value);
    match log_in.authenticator.admit(&Method::POST, &headers) {
        Ok(_) => {
            let cookie = log_in.authenticator.begin_session().await?;
            Ok(([(header::SET_COOKIE, cookie)], Redirect::to(&url(local_path(&form.next))))
                .into_response())
        }
        Err(Error::Forbidden(detail)) => {
            Ok(login_form(&log_in.authenticator, &form.next, Some(&detail)))
        }
        Err(_) => {
            log_in.throttle.count_failure(peer, form.token.trim());
            Ok(login_form(&log_in.authenticator, &form.next, Some("This token is not valid here.")))
        }
    }
}

/// `POST /logout`: ends the session.
pub(super) async fn logout(
    State(log_in): State<LogIn>,
    request: Request,
) -> Result<Response, PageRefusal> {
    let headers = request.headers().clone();
    let EmptyForm {} = read_user_form(&log_in.authenticator, request).await?;
    let cookie = log_in.authenticator.end_session(&headers).await?;
    Ok(([(header::SET_COOKIE, cookie)], Redirect::to(&url("/"))).into_response())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn dotted_fields_are_members_unless_a_parameter_has_that_name() {
        let fields = |all: &[(&str, &str)]| -> Vec<(String, String)> {
            all.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
        };
        #[rustfmt::skip]
        let table = [
            (fields(&[("net._name", "deep"), ("net.layers", "3"), ("lr", " ")]), json!({"net": {"_name": "deep", "layers": 3}})),
            (fields(&[("optimizer.lr", "0.1"), ("net.layers", "3")]),            json!({"optimizer.lr": 0.1, "net": {"layers": 3}})),
        ];
        for (fields, expected) in table {
            let point = point_of_form(&fields, &["optimizer.lr", "net", "lr"]).unwrap();
            assert_eq!(Value::Object(point), expected);
        }
        assert!(point_of_form(&fields(&[("a", "1"), ("a.b", "2")]), &[]).is_err());
    }
}
