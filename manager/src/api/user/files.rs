//! The files of a trial that ran on the manager's machine.

use std::io;
use std::path::Path;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse as _, Response};
use serde::Deserialize;
use tokio::io::AsyncReadExt as _;
use tokio_util::io::ReaderStream;
use trial_protocol::TrialJobId;
use utoipa::IntoParams;

use super::super::access::auth::User;
use super::super::{Error, Shared, percent};
use super::query_extractor::{CheckedQuery, TrialPath};
use super::trials::requested_attempt;
use crate::code_archive::version::diff_file;
use crate::trial_files::{self, TrialFiles};
use crate::util::layout::DIFFS_FOLDER;
use crate::view;

/// The number of bytes that are read at once. For a client that does not read, the manager holds as many in memory.
const CHUNK_BYTES: usize = 64 << 10;

/// Returns the list of the files that a trial left in its folder
///
/// The list omits the agent's own files and the trial's output.
#[utoipa::path(
    get, path = "/api/v1/trials/{trial}/files", tag = "trials",
    params(("trial", description = "the trial's id, or its number")),
    responses(
        (status = 200, body = TrialFiles),
        (status = 404, description = "no such trial, or it ran on another machine"),
    ),
)]
pub(super) async fn list(
    _: User,
    State(shared): State<Shared>,
    TrialPath(id): TrialPath,
) -> Result<Json<TrialFiles>, Error> {
    Ok(Json(files(&shared, &id).await?))
}

/// Returns the files of a trial.
pub(in crate::api) async fn files(shared: &Shared, id: &TrialJobId) -> Result<TrialFiles, Error> {
    read_folder(shared, id, trial_files::list).await
}

/// The requested file.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct FileQuery {
    /// The file's name, as in the list.
    name: String,
}

/// Returns one of a trial's files
#[utoipa::path(
    get, path = "/api/v1/trials/{trial}/file", tag = "trials",
    params(("trial", description = "the trial's id, or its number"), FileQuery),
    responses(
        (status = 200, content_type = "application/octet-stream"),
        (status = 404, description = "no such trial or file"),
    ),
)]
pub(super) async fn file(
    _: User,
    State(shared): State<Shared>,
    TrialPath(id): TrialPath,
    CheckedQuery(FileQuery { name }): CheckedQuery<FileQuery>,
) -> Result<Response, Error> {
    let saved_as = percent::encode(name.rsplit('/').next().unwrap_or_default());
    let file = read_folder(&shared, &id, move |folder| {
        let file = trial_files::open(folder, &name)?;
        let bytes = file.metadata()?.len();
        Ok((file, bytes))
    });
    let (file, bytes) = file.await?;
    // The response has the present length, even if a running trial lengthens the file.
    let content = tokio::fs::File::from_std(file).take(bytes);
    // Sent as an attachment: a page that a trial wrote must not run with the portal's rights. The name is encoded as
    // in RFC 8187.
    let disposition = HeaderValue::from_str(&format!("attachment; filename*=UTF-8''{saved_as}"));
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream")),
        (header::CONTENT_LENGTH, HeaderValue::from(bytes)),
        (header::CONTENT_DISPOSITION, disposition.expect("an encoded name is ASCII")),
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    ];
    let body = Body::from_stream(ReaderStream::with_capacity(content, CHUNK_BYTES));
    Ok((headers, body).into_response())
}

/// Returns the changes to git's commit in the code with which a trial was started
///
/// The text is the output of `git diff HEAD`, at most the first 256 KiB.
#[utoipa::path(
    get, path = "/api/v1/trials/{trial}/diff", tag = "trials",
    params(("trial", description = "the trial's id, or its number")),
    responses(
        (status = 200, content_type = "text/plain"),
        (status = 404, description = "no such trial, or no changes were recorded"),
    ),
)]
pub(super) async fn diff(
    _: User,
    State(shared): State<Shared>,
    TrialPath(id): TrialPath,
) -> Result<Response, Error> {
    let text = code_diff(&shared, &id).await?.ok_or(Error::NoDiff)?;
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8")),
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    ];
    Ok((headers, text).into_response())
}

/// Returns the changes to git's commit in the code with which a trial was started. `None` if no changes were
/// recorded.
pub(in crate::api) async fn code_diff(
    shared: &Shared,
    id: &TrialJobId,
) -> Result<Option<String>, Error> {
    let state = &shared.state;
    let detail = view::detail(&state.trial_cache, &state.store, id).await?;
    let detail = detail.ok_or_else(|| Error::UnknownTrial(id.clone()))?;
    let digest = detail.code.and_then(|code| code.git?.diff_sha256);
    // Checked because the digest becomes part of a path.
    let is_digest = |text: &String| text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let Some(digest) = digest.filter(is_digest) else { return Ok(None) };
    let file = diff_file(&state.server_info.folder.join(DIFFS_FOLDER), &digest);
    Ok(tokio::fs::read(file).await.ok().map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
}

/// Reads the folder of a trial on a blocking thread.
async fn read_folder<T: Send + 'static>(
    shared: &Shared,
    id: &TrialJobId,
    read: impl FnOnce(&Path) -> io::Result<T> + Send + 'static,
) -> Result<T, Error> {
    // An unknown trial is refused as such.
    requested_attempt(shared, id, None).await?;
    let folder = shared.state.server_info.folder.join(id.as_str());
    let result = tokio::task::spawn_blocking(move || read(&folder)).await;
    result.map_err(io::Error::other).flatten().map_err(|error| {
        if error.kind() == io::ErrorKind::NotFound {
            return Error::NoFile;
        }
        Error::Unreadable(format!("the trial's files cannot be read: {error}"))
    })
}
