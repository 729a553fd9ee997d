//! Finds out where the cluster is: a kubeconfig that is named, `KUBECONFIG`, `~/.kube/config`, or the pod
//! that this program runs in. It connects to nothing.

use std::path::PathBuf;

use kube::config::{Config, KubeConfigOptions, Kubeconfig, KubeconfigError};

use super::{Access, Error};
use crate::errors::chain;

/// The cluster's address and our papers.
pub(super) async fn config(access: &Access) -> Result<Config, Error> {
    let options =
        KubeConfigOptions { context: access.context.clone(), ..KubeConfigOptions::default() };
    let (from, file) = match (&access.kubeconfig, std::env::var_os("KUBECONFIG")) {
        (Some(path), _) => (path.display().to_string(), Kubeconfig::read_from(path)),
        (None, Some(paths)) if !paths.is_empty() => {
            let from = format!("KUBECONFIG ({})", paths.to_string_lossy());
            let read =
                Kubeconfig::from_env().and_then(|file| file.ok_or(KubeconfigError::FindPath));
            (from, read)
        }
        (None, _) => match home().filter(|path| path.exists()) {
            Some(path) => (path.display().to_string(), Kubeconfig::read_from(&path)),
            None if std::env::var_os("KUBERNETES_SERVICE_HOST").is_some() => {
                return Config::incluster().map_err(|error| Error::Kubeconfig {
                    from: "the pod's service account".to_owned(),
                    message: chain(&error),
                });
            }
            None => return Err(Error::NoKubeconfig),
        },
    };
    let bad = |message: String| Error::Kubeconfig { from: from.clone(), message };
    let file = file.map_err(|error| bad(chain(&error)))?;
    if let Some(wanted) = &access.context
        && !file.contexts.iter().any(|context| context.name == *wanted)
    {
        let has: Vec<&str> = file.contexts.iter().map(|context| context.name.as_str()).collect();
        let has = if has.is_empty() { "none".to_owned() } else { has.join(", ") };
        return Err(bad(format!("there is no context `{wanted}`; it has {has}")));
    }
    if access.context.is_none() && file.current_context.as_deref().is_none_or(str::is_empty) {
        let what =
            "it has no current context; name one with `context`, or `kubectl config use-context`";
        return Err(bad(what.to_owned()));
    }
    Config::from_custom_kubeconfig(file, &options).await.map_err(|error| bad(chain(&error)))
}

fn home() -> Option<PathBuf> {
    std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".kube").join("config"))
}
