//! The logs that NNI's pages show: of the manager, and of NNI's dispatcher. NNI's server has them at `/logs`.

use std::io::SeekFrom;
use std::path::Path;

use axum::Router;
use axum::extract::{Path as UrlPath, State};
use axum::routing::get;
use tokio::fs::File;
use tokio::io::{AsyncReadExt as _, AsyncSeekExt as _};

use super::NniRefusal;
use crate::api::access::auth::User;
use crate::api::{Error, Shared};

/// The maximum number of bytes that are returned of a log, from its end.
const MAX_LOG_BYTES: u64 = 1 << 20;

/// Returns the routes of the logs.
pub(super) fn routes() -> Router<Shared> {
    Router::new().route("/logs/{file}", get(log))
}

/// Returns the end of a log, or a sentence if the experiment has no such log. NNI's pages wait for both logs.
async fn log(
    _: User,
    State(shared): State<Shared>,
    UrlPath(file): UrlPath<String>,
) -> Result<String, NniRefusal> {
    let folder = &shared.state.server_info.folder;
    let path = match file.as_str() {
        "nnimanager.log" => folder.join("log").join(&file),
        "dispatcher.log" => folder.join("dispatcher").join("log").join(&file),
        _ => return Err(Error::NotFound.into()),
    };
    // A log that cannot be read does not exist: the manager writes it for NNI's client, and the dispatcher may not run.
    let text = read_end(&path).await.unwrap_or_default();
    Ok(if text.is_empty() { format!("{file} is empty.") } else { text })
}

async fn read_end(path: &Path) -> std::io::Result<String> {
    let mut file = File::open(path).await?;
    let length = file.metadata().await?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(MAX_LOG_BYTES))).await?;
    let mut bytes = Vec::new();
    file.take(MAX_LOG_BYTES).read_to_end(&mut bytes).await?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
