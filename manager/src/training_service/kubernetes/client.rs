//! All Kubernetes I/O: finds the cluster, sends requests for objects and watches them. The client makes no decisions
//! about trials. It explains every refusal and names the remedy.

mod access;
mod error;
mod expiry;
mod kubeconfig;
mod proxy;
mod retry;
mod transport;
mod watch;

use std::path::PathBuf;
use std::time::Duration;

use futures_util::{AsyncReadExt as _, stream};
use kube::Client;
use kube::api::{
    Api, DeleteParams, DynamicObject, ListParams, LogParams, Patch, PatchParams, PostParams,
    Request,
};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};

pub use self::error::Error;
pub use self::retry::with_retries;
use self::transport::Transport;
pub use self::watch::{WatchEvent, WatchedObject, watch};
use crate::training_service::Output;

/// The time limit for a single request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// The part of a pod's output that is requested, in lines and in bytes.
const TAIL_LINES: i64 = 5;
const TAIL_BYTES: i64 = 4096;
/// The largest piece of followed output that is passed on at once, in bytes.
const PIECE_BYTES: usize = 8 << 10;
/// The time limit for opening a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The access to an experiment's cluster.
#[derive(Debug, Clone, Default)]
pub struct Access {
    /// The path of a kubeconfig. `None`: `KUBECONFIG`, `~/.kube/config`, or the pod that runs this program.
    pub kubeconfig: Option<PathBuf>,
    /// A context of the kubeconfig. `None`: the current context.
    pub context: Option<String>,
    /// The namespace. `None`: the namespace of the context, or `default`.
    pub namespace: Option<String>,
}

/// A kind of object, with the names that the API uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resource {
    /// The API group, empty for the core group.
    pub group: &'static str,
    /// The version of the group.
    pub version: &'static str,
    /// The kind, such as `Job`.
    pub kind: &'static str,
    /// The plural that appears in paths and rights, such as `jobs`.
    pub plural: &'static str,
}

/// Secrets hold tokens, the address of the manager and registry passwords.
pub const SECRETS: Resource = core_resource("Secret", "secrets");
/// The pods of trial jobs.
pub const PODS: Resource = core_resource("Pod", "pods");
/// Events report changes of a pod.
pub const EVENTS: Resource = core_resource("Event", "events");

const fn core_resource(kind: &'static str, plural: &'static str) -> Resource {
    Resource { group: "", version: "v1", kind, plural }
}

impl Resource {
    /// Returns the path of the API group.
    fn api_path(self) -> String {
        let Self { group, version, .. } = self;
        if group.is_empty() {
            format!("/api/{version}")
        } else {
            format!("/apis/{group}/{version}")
        }
    }

    fn api_resource(self) -> ApiResource {
        let Self { group, version, kind, plural } = self;
        ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural)
    }
}

/// A namespace of a cluster. Cloning is cheap.
#[derive(Clone)]
pub struct Cluster {
    client: Client,
    server: String,
    context: Option<String>,
    namespace: String,
}

impl Cluster {
    /// Finds the cluster and loads the credentials, without sending a request.
    pub async fn connect(access: &Access) -> Result<Self, Error> {
        let transport = Transport::open(access).await?;
        let (server, context) = (transport.server.clone(), transport.context());
        let namespace = access.namespace.clone().unwrap_or_else(|| transport.namespace.clone());
        let client = Client::new(transport, namespace.clone());
        Ok(Self { client, server, context, namespace })
    }

    /// Returns the namespace of all objects.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Returns the context of the kubeconfig. `None`: the manager uses its pod's service account.
    pub fn context(&self) -> Option<&str> {
        self.context.as_deref()
    }

    /// Returns the API server's URL.
    pub fn server(&self) -> &str {
        &self.server
    }

    /// Creates an object unless it exists.
    pub async fn create(&self, resource: Resource, object: &Value) -> Result<(), Error> {
        let api = self.dynamic_api(resource);
        let object = self.to_dynamic_object(object)?;
        let params = PostParams::default();
        match self.with_timeout(api.create(&params, &object)).await {
            Ok(_) => Ok(()),
            Err(error) if error.is_conflict() => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Validates an object with a dry run: the cluster checks every field and creates nothing. Returns the object as
    /// the cluster would create it.
    pub async fn dry_run(&self, resource: Resource, object: &Value) -> Result<Value, Error> {
        let path = resource.api_path();
        let (namespace, plural) = (&self.namespace, resource.plural);
        // The library's own request has no parameter for the validation of fields.
        let query = "dryRun=All&fieldValidation=Strict";
        let request =
            hyper::Request::post(format!("{path}/namespaces/{namespace}/{plural}?{query}"))
                .header(hyper::header::CONTENT_TYPE, "application/json")
                .body(object.to_string().into_bytes())
                .map_err(|error| self.request_error(&error))?;
        self.with_timeout(self.client.request(request)).await
    }

    /// Returns whether the cluster serves a kind, according to its API discovery, which every account may read.
    pub async fn is_served(&self, resource: Resource) -> Result<bool, Error> {
        let Resource { group, version, plural, .. } = resource;
        let version = format!("{group}/{version}");
        match self.with_timeout(self.client.list_api_group_resources(&version)).await {
            Ok(known) => Ok(known.resources.iter().any(|known| known.name == plural)),
            Err(Error::NotFound { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Updates an existing object, or creates it. The update comes first: under an exhausted quota, creating an
    /// existing object is refused for the quota.
    pub async fn create_or_update(&self, resource: Resource, object: &Value) -> Result<(), Error> {
        let name = object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
        let content = ["data", "spec"]
            .into_iter()
            .filter_map(|field| Some((field.to_owned(), object.get(field)?.clone())));
        if !self.merge_patch(resource, name, &Value::Object(content.collect())).await? {
            self.create(resource, object).await?;
        }
        Ok(())
    }

    /// Reads an object. `None`: it does not exist.
    pub async fn get(
        &self,
        resource: Resource,
        name: &str,
    ) -> Result<Option<WatchedObject>, Error> {
        self.with_timeout(self.watched_api(resource).get_opt(name)).await
    }

    /// Returns the last lines of output of a pod's container.
    pub async fn last_lines(&self, pod: &str, container: &str) -> Result<String, Error> {
        let params = LogParams {
            container: Some(container.to_owned()),
            tail_lines: Some(TAIL_LINES),
            limit_bytes: Some(TAIL_BYTES),
            ..LogParams::default()
        };
        self.with_timeout(self.client.request_text(self.log_request(pod, &params)?)).await
    }

    /// Follows the output of a pod's container, from its beginning or since `ago`, until the output or the connection
    /// ends.
    pub async fn follow_lines(
        &self,
        pod: &str,
        container: &str,
        ago: Option<Duration>,
    ) -> Result<Output, Error> {
        // The server takes whole seconds and rejects zero.
        let since_seconds = ago.map(|ago| i64::try_from(ago.as_secs()).unwrap_or(i64::MAX).max(1));
        let container = Some(container.to_owned());
        let params = LogParams { container, follow: true, since_seconds, ..LogParams::default() };
        let request = self.log_request(pod, &params)?;
        let reader = self.with_timeout(self.client.request_stream(request)).await?;
        Ok(Box::pin(stream::unfold(Box::pin(reader), async |mut reader| {
            let mut piece = vec![0; PIECE_BYTES];
            let length = reader.read(&mut piece).await.ok().filter(|length| *length > 0)?;
            piece.truncate(length);
            Some((piece, reader))
        })))
    }

    fn log_request(&self, pod: &str, params: &LogParams) -> Result<hyper::Request<Vec<u8>>, Error> {
        let path = format!("/api/v1/namespaces/{}/pods", self.namespace);
        Request::new(path).logs(pod, params).map_err(|error| self.request_error(&error))
    }

    fn request_error(&self, error: &dyn std::fmt::Display) -> Error {
        let message = format!("the request cannot be built: {error}");
        Error::Refused { server: self.server.clone(), message }
    }

    /// Changes the fields of an object that `patch` names. `false`: the object does not exist.
    pub async fn merge_patch(
        &self,
        resource: Resource,
        name: &str,
        patch: &Value,
    ) -> Result<bool, Error> {
        let (api, params) = (self.dynamic_api(resource), PatchParams::default());
        let done = self.with_timeout(api.patch(name, &params, &Patch::Merge(patch))).await;
        not_found_as_false(done.map(drop))
    }

    /// Deletes an object and, in the background, the objects that it owns. `false`: the object did not exist.
    pub async fn delete(&self, resource: Resource, name: &str) -> Result<bool, Error> {
        let (api, params) = (self.dynamic_api(resource), DeleteParams::background());
        not_found_as_false(self.with_timeout(api.delete(name, &params)).await.map(drop))
    }

    /// Deletes every object of a kind that `selector` matches, and the objects that they own.
    pub async fn delete_all(&self, resource: Resource, selector: &str) -> Result<(), Error> {
        let (api, list) = (self.dynamic_api(resource), ListParams::default().labels(selector));
        let params = DeleteParams::background();
        self.with_timeout(api.delete_collection(&params, &list)).await.map(drop)
    }

    /// Returns the complete objects of a kind that `selector` matches, at most 500.
    pub async fn list(&self, resource: Resource, selector: &str) -> Result<Vec<Value>, Error> {
        let list = ListParams::default().labels(selector).limit(500);
        let found = self.with_timeout(self.dynamic_api(resource).list(&list)).await?;
        let whole = found.items.into_iter().map(serde_json::to_value);
        // A value that was read from JSON can be written as JSON.
        Ok(whole.filter_map(Result::ok).collect())
    }

    /// Returns the warnings about an object, the newest last, at most 500.
    pub async fn list_warnings(&self, kind: &str, name: &str) -> Result<Vec<Value>, Error> {
        let fields = format!("involvedObject.kind={kind},involvedObject.name={name},type=Warning");
        let list = ListParams::default().fields(&fields).limit(500);
        let found = self.with_timeout(self.dynamic_api(EVENTS).list(&list)).await?;
        Ok(found.items.into_iter().filter_map(|event| serde_json::to_value(event).ok()).collect())
    }

    /// Returns the names of the objects of a kind that `selector` matches, at most 500.
    pub async fn list_names(
        &self,
        resource: Resource,
        selector: &str,
    ) -> Result<Vec<String>, Error> {
        let list = ListParams::default().labels(selector).limit(500);
        let found = self.with_timeout(self.watched_api(resource).list(&list)).await?;
        Ok(found.items.into_iter().map(|thing| thing.name).collect())
    }

    /// Returns an object with all its fields. `None`: it does not exist.
    pub async fn get_complete_object(
        &self,
        resource: Resource,
        name: &str,
    ) -> Result<Option<Value>, Error> {
        let found = self.with_timeout(self.dynamic_api(resource).get_opt(name)).await?;
        // A value that was read from JSON can be written as JSON.
        Ok(found.and_then(|object| serde_json::to_value(object).ok()))
    }

    /// Returns the answer at a path of the API.
    pub async fn get_path(&self, path: &str) -> Result<Value, Error> {
        let request = hyper::Request::get(path).body(Vec::new());
        let request = request.map_err(|error| self.request_error(&error))?;
        self.with_timeout(self.client.request(request)).await
    }

    /// Returns true if a cluster-wide object exists.
    pub async fn has_cluster_wide_object(
        &self,
        resource: Resource,
        name: &str,
    ) -> Result<bool, Error> {
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &resource.api_resource());
        Ok(self.with_timeout(api.get_opt(name)).await?.is_some())
    }

    /// Returns whether the namespace exists. `None`: the account may not read namespaces.
    pub async fn has_namespace(&self) -> Result<Option<bool>, Error> {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "Namespace"));
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &resource);
        match self.with_timeout(api.get_opt(&self.namespace)).await {
            Ok(found) => Ok(Some(found.is_some())),
            Err(Error::NotAllowed { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns whether the account may do `verb` to objects of a kind, according to the cluster.
    pub async fn is_allowed(&self, verb: &str, resource: Resource) -> Result<bool, Error> {
        let Resource { group, plural, .. } = resource;
        let review = GroupVersionKind::gvk("authorization.k8s.io", "v1", "SelfSubjectAccessReview");
        let reviews = ApiResource::from_gvk(&review);
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &reviews);
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "metadata": {},
            "spec": {"resourceAttributes": {
                "namespace": self.namespace, "verb": verb, "group": group, "resource": plural,
            }},
        });
        let review = self.to_dynamic_object(&review)?;
        let params = PostParams::default();
        let answer = self.with_timeout(api.create(&params, &review)).await?;
        Ok(answer.data.pointer("/status/allowed").and_then(Value::as_bool).unwrap_or(false))
    }

    /// Returns the API for reading the watched part of objects.
    fn watched_api(&self, resource: Resource) -> Api<WatchedObject> {
        Api::namespaced_with(self.client.clone(), &self.namespace, &resource.api_resource())
    }

    fn dynamic_api(&self, resource: Resource) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), &self.namespace, &resource.api_resource())
    }

    fn to_dynamic_object(&self, object: &Value) -> Result<DynamicObject, Error> {
        serde_json::from_value(object.clone()).map_err(|error| Error::Refused {
            server: self.server.clone(),
            message: format!("the object cannot be encoded: {error}"),
        })
    }

    async fn with_timeout<T>(
        &self,
        request: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, Error> {
        match tokio::time::timeout(REQUEST_TIMEOUT, request).await {
            Ok(answer) => answer.map_err(|source| error::from_kube(&self.server, source)),
            Err(_) => Err(Error::Unreachable {
                server: self.server.clone(),
                message: format!("no answer within {REQUEST_TIMEOUT:?}"),
            }),
        }
    }
}

/// Maps the error for an object that does not exist to `false`.
fn not_found_as_false(done: Result<(), Error>) -> Result<bool, Error> {
    match done {
        Ok(()) => Ok(true),
        Err(Error::NotFound { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}
