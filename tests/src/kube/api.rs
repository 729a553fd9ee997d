//! The handling of requests.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::http::{Answer, Request, WatchEvent};
use super::objects::{Deletion, Refusal, apply_merge_patch, matches_selector, string_at};
use super::{FIRST_TOKEN, Shared, admission, kueue, operators, pods, schema, trainer};

/// The time between two bookmarks of an idle watch.
const BOOKMARK_INTERVAL: Duration = Duration::from_millis(500);

/// The scripted faults, and a record of the requests.
#[derive(Default)]
pub(super) struct Faults(Mutex<FaultState>);

#[derive(Default)]
struct FaultState {
    /// If set, every connection is cut.
    is_unreachable: bool,
    failures: Vec<RequestFailure>,
    delays: Vec<RequestDelay>,
    requests: Vec<String>,
    /// Kinds, or versions of groups, that the cluster does not serve.
    unserved: BTreeSet<String>,
    removed_rights: Vec<String>,
    /// The only rights of the account, if they are limited.
    rights: Option<Vec<String>>,
    /// The rights that requests have used.
    used_rights: BTreeSet<String>,
    /// The rights that access reviews have asked about.
    checked_rights: BTreeSet<String>,
    dropped_answers: usize,
    /// The present token, if it is not the first one.
    token: Option<String>,
}

struct RequestFailure {
    pattern: String,
    code: u16,
    remaining: usize,
    message: String,
}

struct RequestDelay {
    pattern: String,
    remaining: usize,
    time: Duration,
}

thread_local! {
    /// If set, the answer to the current request of this connection is dropped.
    static DROP_ANSWER: Cell<bool> = const { Cell::new(false) };
    /// The delay of the answer, after the request is handled.
    static ANSWER_DELAY: Cell<Option<Duration>> = const { Cell::new(None) };
}

impl Faults {
    /// Instead of a status code: the server cuts the connection and does nothing.
    pub(super) const CUT_BEFORE_HANDLING: u16 = 0;
    /// Instead of a status code: the server handles the request and then cuts the connection.
    pub(super) const CUT_AFTER_HANDLING: u16 = 1;

    fn drop_answer(&self) {
        self.lock().dropped_answers += 1;
        DROP_ANSWER.set(true);
    }

    fn take_dropped(&self) -> bool {
        self.lock().dropped_answers > 0 && DROP_ANSWER.take()
    }

    fn lock(&self) -> MutexGuard<'_, FaultState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn fail_requests(&self, pattern: &str, code: u16, remaining: usize, message: &str) {
        let (pattern, message) = (pattern.to_owned(), message.to_owned());
        self.lock().failures.push(RequestFailure { pattern, code, remaining, message });
    }

    pub(super) fn delay_requests(&self, pattern: &str, time: Duration, remaining: usize) {
        self.lock().delays.push(RequestDelay { pattern: pattern.to_owned(), remaining, time });
    }

    /// Returns the delay of a request's answer.
    fn take_delay(&self, what: &str) -> Option<Duration> {
        let mut inner = self.lock();
        let delay =
            inner.delays.iter_mut().find(|delay| delay.remaining > 0 && delay.pattern == what)?;
        delay.remaining -= 1;
        Some(delay.time)
    }

    pub(super) fn token(&self) -> String {
        self.lock().token.clone().unwrap_or_else(|| FIRST_TOKEN.to_owned())
    }

    pub(super) fn set_token(&self, token: &str) {
        self.lock().token = Some(token.to_owned());
    }

    pub(super) fn set_unreachable(&self, is_unreachable: bool) {
        self.lock().is_unreachable = is_unreachable;
    }

    pub(super) fn requests(&self) -> Vec<String> {
        self.lock().requests.clone()
    }

    pub(super) fn remove_kind(&self, plural: &str) {
        self.lock().unserved.insert(plural.to_owned());
    }

    pub(super) fn restore_kind(&self, plural: &str) {
        self.lock().unserved.remove(plural);
    }

    pub(super) fn remove_right(&self, right: &str) {
        self.lock().removed_rights.push(right.to_owned());
    }

    pub(super) fn limit_rights(&self, rights: Vec<String>) {
        self.lock().rights = Some(rights);
    }

    pub(super) fn used_rights(&self) -> Vec<String> {
        self.lock().used_rights.iter().cloned().collect()
    }

    pub(super) fn checked_rights(&self) -> Vec<String> {
        self.lock().checked_rights.iter().cloned().collect()
    }

    /// Records the right that a request needs, and returns `true` if the account has it.
    fn use_right(&self, right: String) -> bool {
        let mut inner = self.lock();
        let allowed = inner.rights.as_ref().is_none_or(|rights| rights.contains(&right));
        inner.used_rights.insert(right);
        allowed
    }

    /// Returns `true` if the cluster does not serve a kind, or a version of its group.
    fn is_unserved(&self, group: &str, version: &str, plural: &str) -> bool {
        let inner = self.lock();
        inner.unserved.contains(plural) || inner.unserved.contains(&format!("{group}/{version}"))
    }

    fn take_failure(&self, what: &str) -> Option<(u16, String)> {
        let mut inner = self.lock();
        let due = inner
            .failures
            .iter_mut()
            .find(|failure| failure.remaining > 0 && failure.pattern == what)?;
        due.remaining -= 1;
        Some((due.code, due.message.clone()))
    }
}

pub(super) fn answer_request(shared: &Arc<Shared>, request: &Request) -> Answer {
    if shared.faults.lock().is_unreachable {
        return Answer::Cut;
    }
    if request.authorization != format!("Bearer {}", shared.faults.token()) {
        return refusal(401, "Unauthorized", "Unauthorized");
    }
    let answer = route_request(shared, request);
    if let Some(time) = ANSWER_DELAY.take() {
        shared.pause(time);
    }
    // The request is handled, but its answer is lost.
    if shared.faults.take_dropped() { Answer::Cut } else { answer }
}

#[expect(clippy::too_many_lines, reason = "one sequence, in the order of the real server")]
fn route_request(shared: &Arc<Shared>, request: &Request) -> Answer {
    // NNI's files use the namespace `default`. Here it is the same as `lab`.
    let word = |word: &'_ String| if word == "default" { "lab".to_owned() } else { word.clone() };
    let path: Vec<String> = request.path.iter().map(word).collect();
    let path: Vec<&str> = path.iter().map(String::as_str).collect();
    if let ["api", "v1", plural @ "namespaces", _]
    | [_, _, "v1", plural @ "selfsubjectaccessreviews"] = path.as_slice()
        && let Some(answer) = apply_fault(shared, &format!("{} {plural}", request.method))
    {
        return answer;
    }
    match path.as_slice() {
        ["api", "v1", "namespaces", _] if shared.faults.lock().rights.is_some() => {
            // A Role grants rights only within a namespace.
            refusal(403, "Forbidden", "namespaces is forbidden")
        }
        ["api", "v1", "namespaces", name] => match *name {
            "lab" => Answer::Json(
                200,
                json!({"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": name}}),
            ),
            _ => refusal(404, "NotFound", &format!("namespaces \"{name}\" not found")),
        },
        ["apis", "authorization.k8s.io", "v1", "selfsubjectaccessreviews"] => {
            let wanted =
                |at: &str| string_at(&request.body, &format!("/spec/resourceAttributes/{at}"));
            let right = format!("{} {}", wanted("verb"), wanted("resource"));
            let in_role = format!("{}/{} {}", wanted("group"), wanted("resource"), wanted("verb"));
            let mut faults = shared.faults.lock();
            let allowed = !faults.removed_rights.contains(&right)
                && faults.rights.as_ref().is_none_or(|rights| rights.contains(&in_role));
            faults.checked_rights.insert(in_role);
            let mut review = request.body.clone();
            review["status"] = json!({"allowed": allowed});
            Answer::Json(201, review)
        }
        ["api", "v1", "namespaces", "lab", "pods", pod, "log"] => {
            if !shared.faults.use_right("/pods/log get".to_owned()) {
                let what = format!("pods \"{pod}\" is forbidden: cannot get resource \"pods/log\"");
                return refusal(403, "Forbidden", &what);
            }
            match pods::pod_log(shared, pod, request) {
                Ok(text) => Answer::Text(text),
                Err(what) => refusal(400, "BadRequest", &what),
            }
        }
        ["api", "v1", "namespaces", "lab", "pods", pod, "eviction"] if request.method == "POST" => {
            if !shared.faults.use_right("/pods/eviction create".to_owned()) {
                return refusal(403, "Forbidden", "pods/eviction is forbidden");
            }
            if shared.objects.get("pods", pod).is_none() {
                return refusal(404, "NotFound", &format!("pods \"{pod}\" not found"));
            }
            pods::disrupt_pod(shared, pod, "EvictionByEvictionAPI", "Eviction API: evicting");
            Answer::Json(201, json!({"kind": "Status", "apiVersion": "v1", "status": "Success"}))
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
            if !shared.faults.use_right(format!("{group}/localqueues/pendingworkloads get")) {
                return refusal(403, "Forbidden", "localqueues/pendingworkloads is forbidden");
            }
            Answer::Json(200, kueue::pending_workloads(shared, queue))
        }
        ["api", "v1", "namespaces", "lab", plural, ..]
        | ["apis", _, _, "namespaces", "lab", plural, ..]
            if !shared.faults.use_right(required_right(
                request,
                plural,
                path.last() != Some(plural),
            )) =>
        {
            let what = format!("{plural} is forbidden: {} is not allowed", request.method);
            refusal(403, "Forbidden", &what)
        }
        ["api", "v1", "namespaces", "lab", plural] => answer_collection(shared, request, plural),
        ["api", "v1", "namespaces", "lab", plural, name] => {
            answer_object(shared, request, plural, name)
        }
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
            answer_object(shared, request, plural, name)
        }
        ["apis", group, version] if group.contains('.') || *group == "batch" => {
            list_kinds(shared, group, version)
        }
        ["apis", group, version, "namespaces", "lab", plural]
            if is_served(group, version, plural) =>
        {
            answer_collection(shared, request, plural)
        }
        ["apis", group, version, "namespaces", "lab", plural, name]
            if is_served(group, version, plural) =>
        {
            answer_object(shared, request, plural, name)
        }
        other => refusal(404, "NotFound", &format!("nothing at {}", other.join("/"))),
    }
}

/// The served kinds outside the core group: group, version, plural.
const SERVED_KINDS: [(&str, &str, &str); 13] = [
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
fn list_kinds(shared: &Shared, group: &str, version: &str) -> Answer {
    let own = SERVED_KINDS.iter().filter(|(known, at, plural)| {
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
    Answer::Json(200, known)
}

fn is_served(group: &str, version: &str, plural: &str) -> bool {
    SERVED_KINDS.contains(&(group, version, plural))
}

/// Returns the right that a request needs, as `group/plural verb`.
fn required_right(request: &Request, plural: &str, named: bool) -> String {
    let own = SERVED_KINDS.iter().find(|(_, _, known)| *known == plural);
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
fn record_request(shared: &Shared, request: &Request, plural: &str) -> Option<Answer> {
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
    apply_fault(shared, &what)
}

/// Fails a request if a fault is scripted.
fn apply_fault(shared: &Shared, what: &str) -> Option<Answer> {
    ANSWER_DELAY.set(shared.faults.take_delay(what));
    match shared.faults.take_failure(what)? {
        (Faults::CUT_BEFORE_HANDLING, _) => Some(Answer::Cut),
        (Faults::CUT_AFTER_HANDLING, _) => {
            shared.faults.drop_answer();
            None
        }
        (code, message) => Some(refusal(code, "Scripted", &message)),
    }
}

fn answer_collection(shared: &Arc<Shared>, request: &Request, plural: &str) -> Answer {
    if let Some(answer) = record_request(shared, request, plural) {
        return answer;
    }
    let selector = request.query("labelSelector").unwrap_or_default().to_owned();
    match request.method.as_str() {
        "GET" if request.query("watch").is_some_and(|watch| watch != "false") => {
            answer_watch(shared, request, plural, selector)
        }
        "GET" => {
            let (mut items, version) = shared.objects.list_at(plural);
            items.retain(|item| matches_selector(item, &selector) && matches_fields(item, request));
            answer_list_page(shared, request, items, version)
        }
        "POST" => {
            let name = string_at(&request.body, "/metadata/name");
            let mut object = request.body.clone();
            shared.policy.lock().unwrap_or_else(PoisonError::into_inner)(plural, &mut object);
            if let Err(refusal) = admit(shared, plural, &mut object) {
                return refusal;
            }
            if request.query("dryRun") == Some("All") {
                return Answer::Json(201, object);
            }
            match shared.objects.create(plural, object) {
                Ok(object) => Answer::Json(201, Arc::unwrap_or_clone(object)),
                Err(Refusal::AlreadyExists | Refusal::NotFound) => {
                    refusal(409, "AlreadyExists", &format!("{plural} \"{name}\" already exists"))
                }
            }
        }
        "DELETE" => {
            let how = match Deletion::from_options(&request.body) {
                Ok(how) => how,
                Err(problem) => return refusal(422, "Invalid", &problem),
            };
            let (mut items, version) = shared.objects.list_at(plural);
            items.retain(|item| matches_selector(item, &selector));
            for item in &items {
                shared.objects.delete(plural, &string_at(item, "/metadata/name"), how);
            }
            Answer::Json(200, list_object(&items, version))
        }
        other => refusal(405, "MethodNotAllowed", other),
    }
}

/// Fills in the defaults of a new object, or refuses the object.
fn admit(shared: &Shared, plural: &str, object: &mut Value) -> Result<(), Answer> {
    let (kind, name) = (string_at(object, "/kind"), string_at(object, "/metadata/name"));
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

fn answer_object(shared: &Arc<Shared>, request: &Request, plural: &str, name: &str) -> Answer {
    if let Some(answer) = record_request(shared, request, plural) {
        return answer;
    }
    let done = match request.method.as_str() {
        "GET" => shared.objects.get(plural, name).map(Arc::new).ok_or(Refusal::NotFound),
        "PATCH" if request.content_type == "application/merge-patch+json" => {
            shared.objects.change(plural, name, |object| apply_merge_patch(object, &request.body))
        }
        "DELETE" => match Deletion::from_options(&request.body) {
            Ok(how) => shared.objects.delete(plural, name, how).ok_or(Refusal::NotFound),
            Err(problem) => return refusal(422, "Invalid", &problem),
        },
        other => return refusal(415, "UnsupportedMediaType", other),
    };
    match done {
        Ok(object) => Answer::Json(200, Arc::unwrap_or_clone(object)),
        Err(Refusal::NotFound | Refusal::AlreadyExists) => {
            refusal(404, "NotFound", &format!("{plural} \"{name}\" not found"))
        }
    }
}

fn answer_watch(shared: &Arc<Shared>, request: &Request, plural: &str, selector: String) -> Answer {
    let shared = Arc::clone(shared);
    let plural = plural.to_owned();
    let number = |name: &str| request.query(name).and_then(|text| text.parse::<u64>().ok());
    let mut after = number("resourceVersion").unwrap_or(0);
    let until = Instant::now() + Duration::from_secs(number("timeoutSeconds").unwrap_or(300));
    let cuts = shared.objects.watch_cuts();
    let mut has_ended = false;
    Answer::Watch(Box::new(move || {
        loop {
            if has_ended || Instant::now() > until || shared.objects.watch_cuts() != cuts {
                return None;
            }
            match shared.objects.next_change(&plural, after, cuts, BOOKMARK_INTERVAL) {
                Ok(Some(change)) => {
                    after = change.version;
                    if matches_selector(&change.object, &selector) {
                        return Some(WatchEvent::Changed(change));
                    }
                }
                Ok(None) if shared.objects.watch_cuts() != cuts => return None,
                Ok(None) => {
                    let metadata = json!({"resourceVersion": after.to_string()});
                    let object =
                        json!({"kind": "Bookmark", "apiVersion": "v1", "metadata": metadata});
                    return Some(WatchEvent::Other(json!({"type": "BOOKMARK", "object": object})));
                }
                Err(_) => {
                    has_ended = true;
                    let status = failure_status(410, "Expired", "too old resource version");
                    return Some(WatchEvent::Other(json!({"type": "ERROR", "object": status})));
                }
            }
        }
    }))
}

/// Returns `true` if an object matches a field selector: `a.b=c`, joined by commas.
fn matches_fields(item: &Value, request: &Request) -> bool {
    let fields = request.query("fieldSelector").unwrap_or_default();
    fields
        .split(',')
        .filter_map(|field| field.split_once('='))
        .all(|(field, value)| string_at(item, &format!("/{}", field.replace('.', "/"))) == value)
}

/// Returns one page of a list. The real server returns all pages in the state of the first page's version.
/// Here, later pages show the present state, which a client must also handle.
fn answer_list_page(shared: &Shared, request: &Request, items: Vec<Value>, version: u64) -> Answer {
    let limit = request.query("limit").and_then(|limit| limit.parse::<usize>().ok());
    let (since, after) = match request.query("continue").and_then(|token| token.split_once('/')) {
        Some((since, after)) => (since.parse().unwrap_or(0), after.to_owned()),
        None => (version, String::new()),
    };
    if since < shared.objects.oldest_version() {
        let what =
            "The provided continue parameter is too old to display a consistent list result.";
        return refusal(410, "Expired", what);
    }
    let name = |item: &Value| string_at(item, "/metadata/name");
    let rest: Vec<Value> = items.into_iter().filter(|item| name(item) > after).collect();
    let (shown, more) = rest.split_at(limit.unwrap_or(rest.len()).min(rest.len()));
    let mut list = list_object(shown, since);
    if let Some(last) = shown.last().filter(|_| !more.is_empty()) {
        list["metadata"]["continue"] = Value::from(format!("{since}/{}", name(last)));
        list["metadata"]["remainingItemCount"] = Value::from(more.len());
    }
    Answer::Json(200, list)
}

fn list_object(items: &[Value], version: u64) -> Value {
    let metadata = json!({"resourceVersion": version.to_string()});
    json!({"kind": "List", "apiVersion": "v1", "metadata": metadata, "items": items})
}

fn failure_status(code: u16, reason: &str, message: &str) -> Value {
    json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "code": code,
    })
}

fn refusal(code: u16, reason: &str, message: &str) -> Answer {
    Answer::Json(code, failure_status(code, reason, message))
}
