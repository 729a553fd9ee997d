//! Reads kubeconfig files as `kubectl` does. The library differs: it refuses a missing file of several, base64 text with
//! line breaks and a token with one, and treats empty values as set.

use std::env;
use std::io::{self, IsTerminal as _};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD as STANDARD;
use jiff::Timestamp;
use kube::config::{AuthInfo, Cluster, ExecInteractiveMode, Kubeconfig, KubeconfigError};

use super::error::EXPIRY_FORMAT;
use super::{Access, Error, expiry};
use crate::util::errors::error_chain;

/// The content of the kubeconfig files.
pub(super) struct KubeconfigFiles {
    /// The origin, for messages.
    pub from: String,
    content: Kubeconfig,
}

/// A context of a kubeconfig, with its cluster and user.
#[derive(Debug)]
pub(super) struct SelectedContext {
    /// The namespace of the context.
    pub namespace: Option<String>,
    /// The cluster.
    pub cluster: Cluster,
    /// The user, without credentials if the context has none.
    pub user: AuthInfo,
}

impl KubeconfigFiles {
    /// Reads the named file, those of `KUBECONFIG`, or `~/.kube/config`. `None`: there is no kubeconfig.
    pub(super) fn read(access: &Access) -> Result<Option<Self>, Error> {
        let (from, paths) = match (&access.kubeconfig, kubeconfig_variable()) {
            (Some(path), _) => (path.display().to_string(), vec![path.clone()]),
            (None, Some((from, paths))) => (from, paths),
            (None, None) => match default_path() {
                Some(path) => (path.display().to_string(), vec![path]),
                None => return Ok(None),
            },
        };
        let content = read_files(&paths, access.kubeconfig.is_some()).map_err(|problem| {
            Error::Kubeconfig {
                from: from.clone(),
                // The other lines of a YAML error show an excerpt of the file.
                message: error_chain(&problem).lines().next().unwrap_or_default().to_owned(),
            }
        })?;
        Ok(content.map(|content| Self { from, content }))
    }

    /// Returns the current context.
    pub(super) fn current_context(&self) -> Option<&str> {
        self.content.current_context.as_deref()
    }

    /// Returns a context with its cluster and user. `wanted` is the context to use instead of the current one.
    pub(super) fn select(&self, wanted: Option<&str>) -> Result<SelectedContext, Error> {
        select(&self.content, wanted)
            .map_err(|message| Error::Kubeconfig { from: self.from.clone(), message })
    }
}

impl SelectedContext {
    /// Returns the expiry time of an expired certificate that is the only credential of the user.
    pub(super) fn expired_since(&self) -> Option<String> {
        let user = &self.user;
        let others = user.token_file.is_some() || user.exec.is_some() || user.username.is_some();
        if others || user.auth_provider.is_some() || user.token.is_some() {
            return None;
        }
        let pem = match (&user.client_certificate_data, &user.client_certificate) {
            (Some(data), _) => STANDARD.decode(data).ok()?,
            (None, Some(path)) => std::fs::read(path).ok()?,
            (None, None) => return None,
        };
        let at = expiry::expiry_time(&pem).filter(|at| *at < Timestamp::now())?;
        Some(at.strftime(EXPIRY_FORMAT).to_string())
    }
}

/// Returns the files that `KUBECONFIG` names, and the origin of their content for messages.
pub(super) fn kubeconfig_variable() -> Option<(String, Vec<PathBuf>)> {
    let value = env::var_os("KUBECONFIG")?;
    let paths: Vec<_> =
        env::split_paths(&value).filter(|path| !path.as_os_str().is_empty()).collect();
    (!paths.is_empty()).then(|| (format!("KUBECONFIG ({})", value.to_string_lossy()), paths))
}

fn default_path() -> Option<PathBuf> {
    env::var_os("HOME").map(|home| PathBuf::from(home).join(".kube").join("config"))
}

/// Reads and merges files. `None`: no file exists, or all are empty. A file that the experiment file names must exist.
fn read_files(paths: &[PathBuf], must_exist: bool) -> Result<Option<Kubeconfig>, KubeconfigError> {
    let mut merged = Kubeconfig::default();
    for path in paths {
        if let Some(file) = read_file(path, must_exist)? {
            merged = merged.merge(file)?;
        }
    }
    let is_empty =
        merged.contexts.is_empty() && merged.clusters.is_empty() && merged.auth_infos.is_empty();
    Ok((must_exist || !is_empty).then_some(merged))
}

fn read_file(path: &Path, must_exist: bool) -> Result<Option<Kubeconfig>, KubeconfigError> {
    match Kubeconfig::read_from(path) {
        Ok(mut file) => {
            file.current_context = file.current_context.filter(|name| !name.is_empty());
            Ok(Some(file))
        }
        Err(KubeconfigError::ReadConfig(problem, _))
            if !must_exist && problem.kind() == io::ErrorKind::NotFound =>
        {
            Ok(None)
        }
        Err(problem) => Err(problem),
    }
}

fn select(file: &Kubeconfig, wanted: Option<&str>) -> Result<SelectedContext, String> {
    let name = wanted.or(file.current_context.as_deref()).ok_or(
        "it has no current context; name one with `context`, or `kubectl config use-context`",
    )?;
    let Some(context) = file.contexts.iter().find(|known| known.name == name) else {
        let has: Vec<&str> = file.contexts.iter().map(|known| known.name.as_str()).collect();
        let has = if has.is_empty() { "none".to_owned() } else { has.join(", ") };
        return Err(format!("it has no context `{name}`; its contexts are {has}"));
    };
    let context = context.context.clone().unwrap_or_default();
    let lacks = |kind: &str, part: &str| {
        format!("its context `{name}` names the {kind} `{part}`, which it does not contain")
    };
    let cluster = file.clusters.iter().find(|known| known.name == context.cluster);
    let cluster = cluster.ok_or_else(|| lacks("cluster", &context.cluster))?;
    let mut cluster = cluster.cluster.clone().unwrap_or_default();
    let user = match context.user.as_deref().filter(|user| !user.is_empty()) {
        Some(name) => {
            let user = file.auth_infos.iter().find(|known| known.name == name);
            let user = user.ok_or_else(|| lacks("user", name))?.auth_info.clone();
            let user = user.unwrap_or_default();
            trim_token(user).ok_or_else(|| {
                format!(
                    "the token of the user `{name}` has an invalid character, such as a line break"
                )
            })?
        }
        None => AuthInfo::default(),
    };
    remove_white_space(&mut cluster.certificate_authority_data);
    let user = complete_user(user);
    let namespace = context.namespace.filter(|namespace| !namespace.is_empty());
    Ok(SelectedContext { namespace, cluster, user })
}

/// Removes the line break at the end of a token. A token file without a line break stays a file, because a program may
/// renew it. `None`: the token contains an invalid character.
fn trim_token(mut user: AuthInfo) -> Option<AuthInfo> {
    // The library reports a file that cannot be read.
    let from_file = |path: &String| std::fs::read_to_string(path).ok();
    let token = match secret(&user, "token").filter(|token| !token.is_empty()) {
        Some(token) => token,
        None => {
            user.token = None;
            let text = user.token_file.as_ref().and_then(from_file);
            let Some(text) = text.filter(|text| text.trim() != text) else { return Some(user) };
            text
        }
    };
    let token = token.trim();
    if token.contains(|c: char| !c.is_ascii_graphic()) {
        return None;
    }
    user.token = Some(token.to_owned().into());
    Some(user)
}

/// Returns a user whose data the library can read, and whose program is interactive only if there is a terminal.
fn complete_user(mut user: AuthInfo) -> AuthInfo {
    remove_white_space(&mut user.client_certificate_data);
    let mut key = secret(&user, "client-key-data");
    remove_white_space(&mut key);
    user.client_key_data = key.map(Into::into);
    if let Some(exec) = &mut user.exec
        && exec.interactive_mode != Some(ExecInteractiveMode::Always)
        && !io::stdin().is_terminal()
    {
        // The library then also keeps the program's error output for the message about its failure.
        exec.interactive_mode = Some(ExecInteractiveMode::Never);
    }
    user
}

/// Returns a secret in a user's entry. The library reveals it only to a serialiser.
fn secret(user: &AuthInfo, name: &str) -> Option<String> {
    Some(serde_json::to_value(user).ok()?.get(name)?.as_str()?.to_owned())
}

/// Removes the line breaks of a base64 text. An empty text is no text.
fn remove_white_space(text: &mut Option<String>) {
    if let Some(text) = text {
        text.retain(|c| !c.is_ascii_whitespace());
    }
    text.take_if(|text| text.is_empty());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selected(user: &str) -> Result<AuthInfo, String> {
        let text = format!(
            "users: [{{name: other, user: {{token: 'a b'}}}}, {{name: u, user: {user}}}]
clusters: [{{name: k, cluster: {{server: 'https://k'}}}}]
contexts: [{{name: c, context: {{cluster: k, user: u, namespace: ''}}}}]
current-context: c"
        );
        let selected = select(&Kubeconfig::from_yaml(&text).unwrap(), None)?;
        assert_eq!(selected.namespace, None);
        Ok(selected.user)
    }

    #[test]
    fn a_token_is_read_as_kubectl_reads_it_or_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        std::fs::write(&path, "from-file\n").unwrap();
        let path = path.display();
        for (user, expected) in [
            ("{token: \"abc\\n\"}".to_owned(), Some("abc")),
            (format!("{{tokenFile: '{path}'}}"), Some("from-file")),
            (format!("{{tokenFile: '{path}', token: ''}}"), Some("from-file")),
            ("{token: \"a\\nb\"}".to_owned(), None),
            ("{token: \"a b\"}".to_owned(), None),
        ] {
            let token = selected(&user).ok().and_then(|user| secret(&user, "token"));
            assert_eq!(token.as_deref(), expected, "{user}");
        }
    }

    #[test]
    fn base64_text_may_have_line_breaks() {
        let user = selected(
            "{client-certificate-data: \"YWJj\\n  ZGVm\\n\", client-key-data: \"YWJj\\r\\nZGVm\"}",
        );
        let user = user.unwrap();
        assert_eq!(user.client_certificate_data.as_deref(), Some("YWJjZGVm"));
        assert_eq!(secret(&user, "client-key-data").as_deref(), Some("YWJjZGVm"));
        assert_eq!(selected("{client-key-data: ''}").unwrap().client_key_data.map(|_| ()), None);
    }

    #[test]
    fn a_context_that_is_incomplete_is_refused_by_name() {
        #[rustfmt::skip]
        let table = [
            ("{}",                                                               None,      "it has no current context; "),
            ("contexts: [{name: c, context: {cluster: k}}]",                      Some("d"), "it has no context `d`; its contexts are c"),
            ("{current-context: c}",                                              None,      "it has no context `c`; its contexts are none"),
            ("contexts: [{name: c, context: {cluster: k}}]",                      Some("c"), "its context `c` names the cluster `k`, which"),
            ("clusters: [{name: k}]\ncontexts: [{name: c, context: {cluster: k, user: v}}]", Some("c"), "its context `c` names the user `v`, which"),
        ];
        for (text, wanted, expected) in table {
            let problem = select(&Kubeconfig::from_yaml(text).unwrap(), wanted).unwrap_err();
            assert!(problem.starts_with(expected), "{text}: {problem}");
        }
    }

    #[test]
    fn missing_files_are_ignored_and_the_first_current_context_that_is_not_empty_counts() {
        let folder = tempfile::tempdir().unwrap();
        let [first, second, missing, empty] =
            ["first", "second", "missing", "empty"].map(|name| folder.path().join(name));
        std::fs::write(&first, "current-context: ''\nclusters: [{name: k}]").unwrap();
        std::fs::write(&second, "current-context: c").unwrap();
        std::fs::write(&empty, "").unwrap();
        let paths = [missing.clone(), first, second];
        let merged = read_files(&paths, false).unwrap().unwrap();
        assert_eq!(merged.current_context.as_deref(), Some("c"));
        assert!(read_files(&[missing.clone(), empty], false).unwrap().is_none());
        assert!(read_files(&[missing], true).is_err());
    }
}
