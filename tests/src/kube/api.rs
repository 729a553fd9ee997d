//! The handling of requests.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::http::{Answer, Event, Request};
use super::objects::{Deletion, Refusal, fits, merge, text};
use super::{Shared, TOKEN, admission, kueue, operators, pods, schema, trainer};

/// The time between two bookmarks of an idle watch.
const BOOKMARK_INTERVAL: Duration = Duration::from_millis(500);

/// The scripted faults, and a record of the requests.
#[derive(Default)]
pub(super) struct Faults(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    /// If set, every connection is cut.
    away: bool,
    failing: Vec<Failing>,
    slow: Vec<Slow>,
    requests: Vec<String>,
    /// Kinds, or versions of groups, that the cluster does not serve.
    unserved: BTreeSet<String>,
    no_rights: Vec<String>,
    /// The only rights of the account, if they are limited.
    rights: Option<Vec<String>>,
    /// The rights that requests have used.
    used: BTreeSet<String>,
    /// The rights that access reviews have asked about.
    checked: BTreeSet<String>,
    lost: usize,
    /// The present token, if it is not the first one.
    token: Option<String>,
}

struct Failing {
    fits: String,
    code: u16,
    left: usize,
    message: String,
}

struct Slow {
    fits: String,
    left: usize,
    time: Duration,
}

thread_local! {
    /// If set, the answer to the current request of this connection is dropped.
    static DROP_ANSWER: Cell<bool> = const { Cell::new(false) };
    /// The delay of the answer, after the request is handled.
    static DELAY: Cell<Option<Duration>> = const { Cell::new(None) };
}

impl Faults {
    /// Instead of a status code: the server cuts the connection and does nothing.
    pub(super) const CUT: u16 = 0;
    /// Instead of a status code: the server handles the request and then cuts the connection.
    pub(super) const LOST: u16 = 1;

    fn drop_answer(&self) {
        self.lock().lost += 1;
        DROP_ANSWER.set(true);
    }

    fn is_lost(&self) -> bool {
        self.lock().lost > 0 && DROP_ANSWER.take()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn fail(&self, fits: &str, code: u16, left: usize, message: &str) {
        let (fits, message) = (fits.to_owned(), message.to_owned());
        self.lock().failing.push(Failing { fits, code, left, message });
    }

    pub(super) fn slow(&self, fits: &str, time: Duration, left: usize) {
        self.lock().slow.push(Slow { fits: fits.to_owned(), left, time });
    }

    /// Returns the delay of a request's answer.
    fn delay(&self, what: &str) -> Option<Duration> {
        let mut inner = self.lock();
        let slow = inner.slow.iter_mut().find(|slow| slow.left > 0 && slow.fits == what)?;
        slow.left -= 1;
        Some(slow.time)
    }

    pub(super) fn token(&self) -> String {
        self.lock().token.clone().unwrap_or_else(|| TOKEN.to_owned())
    }

    pub(super) fn renew_token(&self, token: &str) {
        self.lock().token = Some(token.to_owned());
    }

    pub(super) fn away(&self, away: bool) {
        self.lock().away = away;
    }

    pub(super) fn requests(&self) -> Vec<String> {
        self.lock().requests.clone()
    }

    pub(super) fn without_kind(&self, plural: &str) {
        self.lock().unserved.insert(plural.to_owned());
    }

    pub(super) fn with_kind(&self, plural: &str) {
        self.lock().unserved.remove(plural);
    }

    pub(super) fn without_right(&self, right: &str) {
        self.lock().no_rights.push(right.to_owned());
    }

    pub(super) fn limit_rights(&self, rights: Vec<String>) {
        self.lock().rights = Some(rights);
    }

    pub(super) fn used(&self) -> Vec<String> {
        self.lock().used.iter().cloned().collect()
    }

    pub(super) fn checked(&self) -> Vec<String> {
        self.lock().checked.iter().cloned().collect()
    }

    /// Records the right that a request needs, and returns `true` if the account has it.
    fn allows(&self, right: String) -> bool {
        let mut inner = self.lock();
        let allowed = inner.rights.as_ref().is_none_or(|rights| rights.contains(&right));
        inner.used.insert(right);
        allowed
    }

    /// Returns `true` if the cluster does not serve a kind, or a version of its group.
    fn is_unserved(&self, group: &str, version: &str, plural: &str) -> bool {
        let inner = self.lock();
        inner.unserved.contains(plural) || inner.unserved.contains(&format!("{group}/{version}"))
    }

    fn due(&self, what: &str) -> Option<(u16, String)> {
        let mut inner = self.lock();
        let due =
            inner.failing.iter_mut().find(|failing| failing.left > 0 && failing.fits == what)?;
        due.left -= 1;
        Some((due.code, due.message.clone()))
    }
}

pub(super) fn answer(shared: &Arc<Shared>, request: &Request) -> Answer {
    if shared.faults.lock().away {
        return Answer::Cut;
    }
    if request.authorization != format!("Bearer {}", shared.faults.token()) {
        return refusal(401, "Unauthorized", "Unauthorized");
    }
    let answer = route(shared, request);
    if let Some(time) = DELAY.take() {
        shared.pause(time);
    }
    // The request is handled, but its answer is lost.
    if shared.faults.is_lost() { Answer::Cut } else { answer }
}

#[expect(clippy::too_many_lines, reason = "one sequence, in the order of the real server")]
fn route(shared: &Arc<Shared>, request: &Request) -> Answer {
    // NNI's files use the namespace `default`. Here it is the same as `lab`.
    let word = |word: &'_ String| if word == "default" { "lab".to_owned() } else { word.clone() };
    let path: Vec<String> = request.path.iter().map(word).collect();
    let path: Vec<&str> = path.iter().map(String::as_str).collect();
    if let ["api", "v1", plural @ "namespaces", _]
    | [_, _, "v1", plural @ "selfsubjectaccessreviews"] = path.as_slice()
        && let Some(answer) = scripted_fault(shared, &format!("{} {plural}", request.method))
    {
        return answer;
    }
    match path.as_slice() {
        ["api", "v1", "namespaces", _] if shared.faults.lock().rights.is_some() => {
            // A Role grants rights only within a namespace.
            refusal(403, "Forbidden", "namespaces is forbidden")
        }
        ["api", "v1", "namespaces", name] => match *name {
            "lab" => Answer::Whole(
                200,
                json!({"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": name}}),
            ),
            _ => refusal(404, "NotFound", &format!("namespaces \"{name}\" not found")),
        },
        ["apis", "authorization.k8s.io", "v1", "selfsubjectaccessreviews"] => {
            let wanted = |at: &str| text(&request.body, &format!("/spec/resourceAttributes/{at}"));
            let right = format!("{} {}", wanted("verb"), wanted("resource"));
            let in_role = format!("{}/{} {}", wanted("group"), wanted("resource"), wanted("verb"));
            let mut faults = shared.faults.lock();
            let allowed = !faults.no_rights.contains(&right)
                && faults.rights.as_ref().is_none_or(|rights| rights.contains(&in_role));
            faults.checked.insert(in_role);
            let mut review = request.body.clone();
            review["status"] = json!({"allowed": allowed});
            Answer::Whole(201, review)
        }
        ["api", "v1", "namespaces", "lab", "pods", pod, "log"] => {
            if !shared.faults.allows("/pods/log get".to_owned()) {
                let what = format!("pods \"{pod}\" is forbidden: cannot get resource \"pods/log\"");
                return refusal(403, "Forbidden", &what);
            }
            match pods::log(shared, pod, request) {
                Ok(text) => Answer::Text(text),
                Err(what) => refusal(400, "BadRequest", &what),
            }
        }
        ["api", "v1", "namespaces", "lab", "pods", pod, "eviction"] if request.method == "POST" => {
            if !shared.faults.allows("/pods/eviction create".to_owned()) {
                return refusal(403, "Forbidden", "pods/eviction is forbidden");
            }
            if shared.objects.get("pods", pod).is_none() {
                return refusal(404, "NotFound", &format!("pods \"{pod}\" not found"));
            }
            pods::disrupt(shared, pod, "EvictionByEvictionAPI", "Eviction API: evicting");
            Answer::Whole(201, json!({"kind": "Status", "apiVersion": "v1", "status": "Success"}))
        }
        [
            "apis",
            group @ "visibility.kueue.x-k8s.io",
            version,
            "namespaces",
            "lab",
            "localqueues",
            queue,
            "pendingworkloads",
        ] => {
            if shared.faults.is_unserved(group, version, "pendingworkloads") {
                return refusal(404, "NotFound", "404 page not found");
            }
            if !shared.faults.allows(format!("{group}/localqueues/pendingworkloads get")) {
                return refusal(403, "Forbidden", "localqueues/pendingworkloads is forbidden");
            }
            Answer::Whole(200, kueue::pending(shared, queue))
        }
        ["api", "v1", "namespaces", "lab", plural, ..]
        | ["apis", _, _, "namespaces", "lab", plural, ..]
            if !shared.faults.allows(right(request, plural, path.last() != Some(plural))) =>
        {
            let what = format!("{plural} is forbidden: {} is not allowed", request.method);
            refusal(403, "Forbidden", &what)
        }
        ["api", "v1", "namespaces", "lab", plural] => collection(shared, request, plural),
        ["api", "v1", "namespaces", "lab", plural, name] => item(shared, request, plural, name),
        ["apis", group, version, "namespaces", "lab", plural, ..]
            if shared.faults.is_unserved(group, version, plural) =>
        {
            refusal(404, "NotFound", "the server could not find the requested resource")
        }
        ["apis", "kueue.x-k8s.io", _, plural @ "workloadpriorityclasses", name] => {
            // A Role grants rights only within a namespace.
            if shared.faults.lock().rights.is_some() {
                return refusal(403, "Forbidden", &format!("{plural} is forbidden"));
            }
            item(shared, request, plural, name)
        }
        ["apis", group, version] if group.contains('.') || *group == "batch" => {
            discovery(shared, group, version)
        }
        ["apis", group, version, "namespaces", "lab", plural] if serves(group, version, plural) => {
            collection(shared, request, plural)
        }
        ["apis", group, version, "namespaces", "lab", plural, name]
            if serves(group, version, plural) =>
        {
            item(shared, request, plural, name)
        }
        other => refusal(404, "NotFound", &format!("nothing at {}", other.join("/"))),
    }
}

/// The served kinds outside the core group: group, version, plural.
const KINDS: [(&str, &str, &str); 13] = [
    ("frameworkcontroller.microsoft.com", "v1", "frameworks"),
    ("batch", "v1", "jobs"),
    ("jobset.x-k8s.io", "v1alpha2", "jobsets"),
    ("kueue.x-k8s.io", "v1beta1", "workloads"),
    ("kueue.x-k8s.io", "v1beta2", "workloads"),
    ("kueue.x-k8s.io", "v1beta1", "localqueues"),
    ("kueue.x-k8s.io", "v1beta2", "localqueues"),
    ("trainer.kubeflow.org", "v1alpha1", "trainjobs"),
    ("trainer.kubeflow.org", "v1alpha1", "trainingruntimes"),
    ("kubeflow.org", "v1", "tfjobs"),
    ("kubeflow.org", "v1", "pytorchjobs"),
    ("kubeflow.org", "v1", "xgboostjobs"),
    ("kubeflow.org", "v1", "paddlejobs"),
];

/// Lists the kinds of a group's version. Every account may read this list.
fn discovery(shared: &Shared, group: &str, version: &str) -> Answer {
    let own = KINDS.iter().filter(|(known, at, plural)| {
        (*known, *at) == (group, version) && !shared.faults.is_unserved(group, version, plural)
    });
    let resources: Vec<Value> = own
        .map(|(_, _, plural)| {
            json!({"name": plural, "singularName": "", "namespaced": true, "kind": plural, "verbs": ["get"]})
        })
        .collect();
    if resources.is_empty() {
        return refusal(404, "NotFound", "the server could not find the requested resource");
    }
    let known = json!({
        "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": format!("{group}/{version}"),
        "resources": resources,
    });
    Answer::Whole(200, known)
}

fn serves(group: &str, version: &str, plural: &str) -> bool {
    KINDS.contains(&(group, version, plural))
}

/// Returns the right that a request needs, as `group/plural verb`.
fn right(request: &Request, plural: &str, named: bool) -> String {
    let own = KINDS.iter().find(|(_, _, known)| *known == plural);
    let group = own.map_or("", |(group, _, _)| group);
    let verb = match (request.method.as_str(), named) {
        ("GET", _) if request.query("watch").is_some_and(|watch| watch != "false") => "watch",
        ("GET", true) => "get",
        ("GET", false) => "list",
        ("DELETE", false) => "deletecollection",
        ("DELETE", true) => "delete",
        ("POST", _) => "create",
        ("PATCH", _) => "patch",
        (other, _) => other,
    };
    format!("{group}/{plural} {verb}")
}

/// Records the request, and fails it if a fault is scripted.
fn fault(shared: &Shared, request: &Request, plural: &str) -> Option<Answer> {
    let watch = request.query("watch").is_some_and(|watch| watch != "false");
    let verb = match request.method.as_str() {
        _ if watch => "WATCH",
        // A further page of a list.
        "GET" if request.query("continue").is_some() => "CONTINUE",
        // The manager's dry run of a trial's object.
        "POST" if request.query("fieldValidation") == Some("Strict") && plural != "pods" => "TRY",
        method => method,
    };
    let what = format!("{verb} {plural}");
    if !watch {
        shared.faults.lock().requests.push(what.clone());
    }
    scripted_fault(shared, &what)
}

/// Fails a request if a fault is scripted.
fn scripted_fault(shared: &Shared, what: &str) -> Option<Answer> {
    DELAY.set(shared.faults.delay(what));
    match shared.faults.due(what)? {
        (Faults::CUT, _) => Some(Answer::Cut),
        (Faults::LOST, _) => {
            shared.faults.drop_answer();
            None
        }
        (code, message) => Some(refusal(code, "Scripted", &message)),
    }
}

fn collection(shared: &Arc<Shared>, request: &Request, plural: &str) -> Answer {
    if let Some(answer) = fault(shared, request, plural) {
        return answer;
    }
    let selector = request.query("labelSelector").unwrap_or_default().to_owned();
    match request.method.as_str() {
        "GET" if request.query("watch").is_some_and(|watch| watch != "false") => {
            watch(shared, request, plural, selector)
        }
        "GET" => {
            let (mut items, version) = shared.objects.list_at(plural);
            items.retain(|item| fits(item, &selector) && fits_fields(item, request));
            page(shared, request, items, version)
        }
        "POST" => {
            let name = text(&request.body, "/metadata/name");
            let mut object = request.body.clone();
            shared.policy.lock().unwrap_or_else(PoisonError::into_inner)(plural, &mut object);
            if let Err(refusal) = admit(shared, plural, &mut object) {
                return refusal;
            }
            if request.query("dryRun") == Some("All") {
                return Answer::Whole(201, object);
            }
            match shared.objects.create(plural, object) {
                Ok(object) => Answer::Whole(201, Arc::unwrap_or_clone(object)),
                Err(Refusal::Exists | Refusal::Missing) => {
                    refusal(409, "AlreadyExists", &format!("{plural} \"{name}\" already exists"))
                }
            }
        }
        "DELETE" => {
            let how = match Deletion::read(&request.body) {
                Ok(how) => how,
                Err(problem) => return refusal(422, "Invalid", &problem),
            };
            let (mut items, version) = shared.objects.list_at(plural);
            items.retain(|item| fits(item, &selector));
            for item in &items {
                shared.objects.delete(plural, &text(item, "/metadata/name"), how);
            }
            Answer::Whole(200, list(&items, version))
        }
        other => refusal(405, "MethodNotAllowed", other),
    }
}

/// Fills in the defaults of a new object, or refuses the object.
fn admit(shared: &Shared, plural: &str, object: &mut Value) -> Result<(), Answer> {
    let (kind, name) = (text(object, "/kind"), text(object, "/metadata/name"));
    if plural == "trainjobs" {
        return trainer::admit(shared, object).map_err(|what| refusal(403, "Forbidden", &what));
    }
    let admitted = match plural {
        "frameworks" => schema::admit(object),
        "jobs" => admission::admit_job(object),
        "pods" => admission::admit_pod(object),
        _ => operators::admit(plural, object),
    };
    let invalid =
        |problem| refusal(422, "Invalid", &format!("{kind} \"{name}\" is invalid: {problem}"));
    admitted.map_err(invalid)
}

fn item(shared: &Arc<Shared>, request: &Request, plural: &str, name: &str) -> Answer {
    if let Some(answer) = fault(shared, request, plural) {
        return answer;
    }
    let done = match request.method.as_str() {
        "GET" => shared.objects.get(plural, name).map(Arc::new).ok_or(Refusal::Missing),
        "PATCH" if request.content_type == "application/merge-patch+json" => {
            shared.objects.change(plural, name, |object| merge(object, &request.body))
        }
        "DELETE" => match Deletion::read(&request.body) {
            Ok(how) => shared.objects.delete(plural, name, how).ok_or(Refusal::Missing),
            Err(problem) => return refusal(422, "Invalid", &problem),
        },
        other => return refusal(415, "UnsupportedMediaType", other),
    };
    match done {
        Ok(object) => Answer::Whole(200, Arc::unwrap_or_clone(object)),
        Err(Refusal::Missing | Refusal::Exists) => {
            refusal(404, "NotFound", &format!("{plural} \"{name}\" not found"))
        }
    }
}

fn watch(shared: &Arc<Shared>, request: &Request, plural: &str, selector: String) -> Answer {
    let shared = Arc::clone(shared);
    let plural = plural.to_owned();
    let number = |name: &str| request.query(name).and_then(|text| text.parse::<u64>().ok());
    let mut after = number("resourceVersion").unwrap_or(0);
    let until = Instant::now() + Duration::from_secs(number("timeoutSeconds").unwrap_or(300));
    let cuts = shared.objects.cuts();
    let mut over = false;
    Answer::Watch(Box::new(move || {
        loop {
            if over || Instant::now() > until || shared.objects.cuts() != cuts {
                return None;
            }
            match shared.objects.next(&plural, after, cuts, BOOKMARK_INTERVAL) {
                Ok(Some(change)) => {
                    after = change.version;
                    if fits(&change.object, &selector) {
                        return Some(Event::Changed(change));
                    }
                }
                Ok(None) if shared.objects.cuts() != cuts => return None,
                Ok(None) => {
                    let metadata = json!({"resourceVersion": after.to_string()});
                    let object =
                        json!({"kind": "Bookmark", "apiVersion": "v1", "metadata": metadata});
                    return Some(Event::Other(json!({"type": "BOOKMARK", "object": object})));
                }
                Err(_) => {
                    over = true;
                    let status = status(410, "Expired", "too old resource version");
                    return Some(Event::Other(json!({"type": "ERROR", "object": status})));
                }
            }
        }
    }))
}

/// Returns `true` if an object matches a field selector: `a.b=c`, joined by commas.
fn fits_fields(item: &Value, request: &Request) -> bool {
    let fields = request.query("fieldSelector").unwrap_or_default();
    fields
        .split(',')
        .filter_map(|field| field.split_once('='))
        .all(|(field, value)| text(item, &format!("/{}", field.replace('.', "/"))) == value)
}

/// Returns one page of a list. The real server returns all pages in the state of the first page's version.
/// Here, later pages show the present state, which a client must also handle.
fn page(shared: &Shared, request: &Request, items: Vec<Value>, version: u64) -> Answer {
    let limit = request.query("limit").and_then(|limit| limit.parse::<usize>().ok());
    let (since, after) = match request.query("continue").and_then(|token| token.split_once('/')) {
        Some((since, after)) => (since.parse().unwrap_or(0), after.to_owned()),
        None => (version, String::new()),
    };
    if since < shared.objects.oldest() {
        let what =
            "The provided continue parameter is too old to display a consistent list result.";
        return refusal(410, "Expired", what);
    }
    let name = |item: &Value| text(item, "/metadata/name");
    let rest: Vec<Value> = items.into_iter().filter(|item| name(item) > after).collect();
    let (shown, more) = rest.split_at(limit.unwrap_or(rest.len()).min(rest.len()));
    let mut list = list(shown, since);
    if let Some(last) = shown.last().filter(|_| !more.is_empty()) {
        list["metadata"]["continue"] = Value::from(format!("{since}/{}", name(last)));
        list["metadata"]["remainingItemCount"] = Value::from(more.len());
    }
    Answer::Whole(200, list)
}

fn list(items: &[Value], version: u64) -> Value {
    let metadata = json!({"resourceVersion": version.to_string()});
    json!({"kind": "List", "apiVersion": "v1", "metadata": metadata, "items": items})
}

fn status(code: u16, reason: &str, message: &str) -> Value {
    json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "code": code,
    })
}

fn refusal(code: u16, reason: &str, message: &str) -> Answer {
    Answer::Whole(code, status(code, reason, message))
}
